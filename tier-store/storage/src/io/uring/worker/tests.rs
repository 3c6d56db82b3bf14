//! What the engine gives the kernel at once, beside look-ups and without them. The tests take the steps of its thread
//! themselves, so no time decides.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::super::{UringEngine, set_up_ring};
use super::*;
use crate::io::simulated::memory_file;
use crate::io::{BlockIo, Class, Depth, Intent, IoFile, ReadHandle, StatementId};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// The worker without its thread; `None` where the kernel refuses io_uring.
fn worker() -> Option<Worker> {
    match set_up_ring() {
        Ok(ring) => Some(Worker::new(ring, Arc::new(Shared::new().unwrap()))),
        Err(error) => {
            println!("not run: {error}");
            None
        }
    }
}

fn file() -> Arc<IoFile> {
    Arc::new(memory_file(Path::new("/in/memory"), &vec![7_u8; 32 * MIB]).unwrap())
}

/// Asks for a read at the start of each of some pieces of a file.
fn ask(worker: &Worker, class: Class, file: &Arc<IoFile>, count: usize, bytes: usize) -> Vec<ReadHandle> {
    let shared = &worker.shared;
    let read = |number: usize| {
        let window = ((number * bytes) as u64, bytes);
        let (handles, request) = Request::new(class.into(), &shared.stats, &shared.pool, file, &[window]);
        shared.submit(request);
        handles
    };
    (0..count).flat_map(read).collect()
}

/// The most that the kernel had at once.
#[derive(Debug, Default, PartialEq, Eq)]
struct Most {
    /// Bytes of all but points.
    bytes: u64,
    /// Bytes of one of their pieces.
    piece_bytes: u64,
}

/// Pieces that the kernel has, of points or of others.
fn pieces(worker: &Worker, of_points: bool) -> impl Iterator<Item = Piece> {
    let is_point =
        |piece: &Piece| worker.operations[piece.operation].as_ref().is_some_and(|operation| operation.is_point);
    worker.slots.iter().filter_map(|slot| slot.piece).filter(move |piece| is_point(piece) == of_points)
}

/// Serves all that waits.
fn serve(worker: &mut Worker) -> Most {
    let mut most = Most::default();
    loop {
        worker.issue();
        if worker.slots.iter().all(|slot| slot.piece.is_none()) {
            assert_eq!((worker.points.bytes, worker.others.bytes), (0, 0));
            return most;
        }
        let others: Vec<u64> = pieces(worker, false).map(|piece| (piece.end - piece.start) as u64).collect();
        assert_eq!((others.len(), others.iter().sum()), (worker.others.pieces, worker.others.bytes as u64));
        assert_eq!(pieces(worker, true).count(), worker.points.pieces);
        most.bytes = most.bytes.max(others.iter().sum());
        most.piece_bytes = most.piece_bytes.max(others.into_iter().max().unwrap_or(0));
        if let Err(error) = worker.ring.submit_and_wait(1) {
            assert!(is_retryable(&error), "{error}");
        }
        worker.reap();
    }
}

fn expect_look_ups(worker: &Worker, expected: bool) {
    worker.shared.queue.lock().look_ups.expect(expected);
}

#[test]
fn while_look_ups_come_others_have_fewer_bytes_at_once() {
    let Some(mut worker) = worker() else { return };
    let file = file();
    let mut served = |look_ups_come: bool, beside_bytes: u64| {
        worker.shared.depth.set_beside_points(beside_bytes);
        let reads = ask(&worker, Class::Prefetch, &file, 32, MIB);
        expect_look_ups(&worker, look_ups_come);
        let most = serve(&mut worker);
        assert!(reads.into_iter().all(|read| read.wait().is_ok_and(|bytes| bytes.as_slice().len() == MIB)));
        most
    };
    let without = Most { bytes: 8 << 20, piece_bytes: 1 << 20 };
    let beside = |bytes| Most { bytes, piece_bytes: 256 << 10 };
    assert_eq!(served(false, Depth::BESIDE_POINTS), without);
    assert_eq!(served(true, Depth::BESIDE_POINTS), beside(256 << 10));
    assert_eq!(served(true, 512 << 10), beside(512 << 10));
    assert_eq!(served(true, 64 << 20), beside(8 << 20), "never more than without look-ups");
}

#[test]
fn look_ups_are_noticed_as_they_come() {
    let Some(mut worker) = worker() else { return };
    let file = file();
    let mut reads = ask(&worker, Class::Needed, &file, 4, PAGE);
    let shared = Arc::clone(&worker.shared);
    for _ in 0..4 {
        assert!(!worker.shared.look_ups_come());
        let intent = Intent { statement: StatementId::next(), ..Class::Point.into() };
        let (handles, request) = Request::new(intent, &shared.stats, &shared.pool, &file, &[(0, PAGE)]);
        shared.submit(request);
        reads.extend(handles);
    }
    assert!(worker.shared.look_ups_come());
    expect_look_ups(&worker, false);
    assert!(!worker.shared.look_ups_come());
    serve(&mut worker);
    assert!(reads.into_iter().all(|read| read.wait().is_ok()));
}

#[test]
fn points_overtake_a_read_that_has_begun_and_stop_nobody() {
    let Some(mut worker) = worker() else { return };
    let file = file();
    let large = ask(&worker, Class::Prefetch, &file, 4, 8 * MIB);
    expect_look_ups(&worker, true);
    worker.issue();
    assert_eq!((worker.points.bytes, worker.others.bytes as u64), (0, Depth::BESIDE_POINTS));
    // More of them than the kernel gets at once: others keep some of the pieces.
    let points = ask(&worker, Class::Point, &file, 2 * DEPTH, PAGE);
    expect_look_ups(&worker, true);
    worker.issue();
    assert_eq!((worker.points.pieces, worker.others.bytes as u64), (MOST_POINTS, Depth::BESIDE_POINTS));
    serve(&mut worker);
    assert!(large.into_iter().chain(points).all(|read| read.wait().is_ok()));
}

#[test]
fn a_raised_read_goes_to_the_kernel_before_those_of_its_old_class() {
    let Some(mut worker) = worker() else { return };
    let engine = UringEngine { shared: Arc::clone(&worker.shared), thread: None };
    let file = file();
    let reads = ask(&worker, Class::Prefetch, &file, 4, MIB);
    engine.raise(Class::Needed.into(), &reads[2]);
    // Of others than points the kernel has one read at once.
    worker.shared.depth.set_beside_points(MIB as u64);
    expect_look_ups(&worker, true);
    worker.issue();
    let running: Vec<Piece> = pieces(&worker, false).collect();
    let first_byte = |piece: &Piece| worker.operations[piece.operation].as_ref().unwrap().request.first_byte();
    assert_eq!(running.len() * PIECE_BESIDE_POINTS_BYTES, MIB);
    assert!(running.iter().all(|piece| first_byte(piece) == 2 * MIB as u64));
    serve(&mut worker);
    assert!(reads.into_iter().all(|read| read.wait().is_ok()));
}

/// Else the windows of a read of upkeep, or of one ahead, that failed would go before what statements wait for.
#[test]
fn windows_that_are_read_again_keep_their_intent() {
    let Some(mut worker) = worker() else { return };
    let shared = Arc::clone(&worker.shared);
    let engine = UringEngine { shared: Arc::clone(&shared), thread: None };
    // It ends before the second window.
    let short = memory_file(Path::new("/in/memory"), &vec![7_u8; MIB]).unwrap();
    let file = Arc::new(IoFile { len: 4 * MIB as u64, ..short });
    let windows = [(0, PAGE), (2 * MIB as u64, PAGE)];
    let mut fail = |intent: Intent, raised: Option<Intent>| {
        let (handles, request) = Request::new(intent, &shared.stats, &shared.pool, &file, &windows);
        shared.submit(request);
        if let (Some(raised), Some(handle)) = (raised, handles.first()) {
            engine.raise(raised, handle);
        }
        worker.issue();
        while worker.slots.iter().any(|slot| slot.piece.is_some()) {
            if let Err(error) = worker.ring.submit_and_wait(1) {
                assert!(is_retryable(&error), "{error}");
            }
            worker.reap();
        }
        let mut queue = shared.queue.lock();
        let again: Vec<Request> = std::iter::from_fn(|| queue.waiting.pop()).collect();
        assert!(again.iter().all(|request| request.len == PAGE));
        again.iter().map(|request| request.intent).collect::<Vec<_>>()
    };
    let [ahead, needed] =
        [Class::Prefetch, Class::Needed].map(|class| Intent { statement: StatementId::next(), ..Intent::from(class) });
    assert_eq!(fail(Class::Upkeep.into(), None), [Intent::from(Class::Upkeep); 2]);
    assert_eq!(fail(ahead, None), [ahead; 2]);
    assert_eq!(fail(ahead, Some(needed)), [needed; 2]);
}
