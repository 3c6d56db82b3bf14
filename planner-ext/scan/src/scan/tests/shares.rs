//! What a statement reads ahead while another one reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::physical_plan::ExecutionPlan;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use terrace_tier_store::io::simulated::{Faults, SimulatedEngine};
use terrace_tier_store::io::{BlockIo, Depth, StatementId};

use super::heat::surroundings;
use super::levels::Noting;
use super::{Fixture, Rng};
use crate::scan::expected_reads::StatementScans;
use crate::scan::{ScanConfig, ScanSource, TierScanExec};

/// Rows of a chunk.
const CHUNK_ROWS: usize = 2000;
/// Chunks that each of two statements scans.
const CHUNKS: usize = 40;
/// So many chunks are as long as the budget of reads.
const ROOM: u64 = 24;
/// The column that is scanned.
const COLUMN: usize = 6;

/// The disk serves reads only between two steps, so every step reads what the budget and the shares admit.
#[tokio::test]
async fn a_statement_reads_no_further_than_its_share_once_another_one_reads() {
    let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
    let io = Arc::new(Noting { inner: engine.clone(), reads: Mutex::default() });
    let noting = Arc::clone(&io) as Arc<dyn BlockIo>;
    let rows = 2 * CHUNKS * CHUNK_ROWS;
    let fixture = Fixture::with(&mut Rng(27), rows, CHUNK_ROWS as u32, 0, |options| options.io = Some(noting));
    let lengths = || fixture.version.chunks.iter().map(|entry| entry.chunk.segments[COLUMN].home.len);
    let budget_bytes = ROOM * lengths().max().unwrap();
    fixture.store.io_account().set_limit_bytes(budget_bytes);
    // The budget bounds what is read ahead, not the window, which follows the depth that calibration measured.
    fixture.store.io().depth().set(Depth::MOST);
    // A statement reads on while it has less than half, so it may have one chunk more.
    let half = (budget_bytes / 2).div_ceil(lengths().min().unwrap()) as usize;
    let context = fixture.session(1);
    let source = ScanSource::new(Arc::clone(&fixture.store), Arc::clone(&fixture.table), Arc::clone(&fixture.version));
    let source = Arc::new(source);
    // The two read different chunks, as reads of the same ones are shared.
    let [(mut first, first_id), (mut second, second_id)] = [0, CHUNKS].map(|from| {
        let mut config = ScanConfig::new(Arc::clone(&source), vec![COLUMN], Vec::new(), None, 1);
        config.chunks = (from as u32..(from + CHUNKS) as u32).collect();
        let task = surroundings(&context, 8192);
        let id = task.session_config().get_extension::<StatementScans>().unwrap().id();
        (TierScanExec::try_new(config).unwrap().execute(0, task).unwrap(), id)
    });
    let begun = |id: StatementId| io.reads.lock().iter().filter(|(intent, _)| intent.statement == id).count();
    engine.pause();
    assert!(first.next().now_or_never().is_none());
    let alone = begun(first_id);
    assert!(alone > half + 4 && alone < CHUNKS, "{alone} chunks: alone it has all of the budget, {ROOM}");
    engine.resume();
    while fixture.store.io().stats().in_flight.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    engine.pause();
    assert!(second.next().now_or_never().is_none());
    assert_eq!(begun(second_id), 1, "there is room for the one that it waits for only");
    // The first one uses what it has read, and the second one gets the room.
    let mut emitted = 0;
    for taken in 1..alone {
        emitted += first.next().now_or_never().flatten().unwrap().unwrap().num_rows();
        assert_eq!(emitted, taken * CHUNK_ROWS);
        let held = begun(first_id) - taken;
        assert!(held <= half.max(alone - taken), "{held} chunks after {taken} of {alone}; half are {half}");
        assert!(second.next().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    let others = begun(second_id);
    assert!(4 * others >= alone && others <= half, "{others} chunks of {alone}; half are {half}");
    engine.resume();
    for stream in [&mut first, &mut second] {
        while let Some(batch) = stream.next().await {
            emitted += batch.unwrap().num_rows();
        }
    }
    assert_eq!(emitted, rows);
    drop((first, second));
    fixture.assert_idle().await;
}
