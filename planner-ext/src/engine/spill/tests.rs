//! Tests of spill files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use datafusion::common::DataFusionError;
use datafusion::execution::SpillWriter;
use futures::TryStreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_tier_store::StoreOptions;
use terrace_tier_store::clock::ManualClock;
use terrace_tier_store::io::best_engine;
use terrace_tier_store::io::simulated::{Faults, SimulatedEngine};
use terrace_tier_store::store::NvmOptions;
use terrace_tier_store::tier::nvm::NvmBacking;

use super::file::PIECE_BYTES;
use super::*;

const ENOUGH: SpillLimits = SpillLimits { all_bytes: 1 << 30, statement_bytes: 1 << 30, tier_share: 0.0 };
const MIB: u64 = 1 << 20;

/// Spill files over a store, in a folder on a disk: in the build folder, which lies outside of the repository.
struct Setup {
    space: Arc<SpillSpace>,
    store: Arc<Store>,
    clock: Arc<ManualClock>,
    folder: PathBuf,
    _dir: tempfile::TempDir,
}

fn setup(limits: SpillLimits, change: impl FnOnce(&mut StoreOptions)) -> Setup {
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let mut options = StoreOptions::new(dir.path().join("data"));
    options.io = Some(best_engine());
    change(&mut options);
    let store = Store::open(options).unwrap();
    let folder = dir.path().join("spill");
    std::fs::create_dir(&folder).unwrap();
    let clock = Arc::<ManualClock>::default();
    let space = SpillSpace::new(&folder, limits, &store, clock.clone());
    Setup { space, store, clock, folder, _dir: dir }
}

impl Setup {
    /// Lets pieces leave their tiers until `done`.
    fn leave_tiers_until(&self, done: impl Fn() -> bool) {
        let mut tries = 0;
        while !done() {
            self.space.leave_tiers(true);
            std::thread::yield_now();
            tries += 1;
            assert!(tries < 10_000_000, "{} bytes stay on tiers", self.space.tier_bytes());
        }
    }

    async fn check_idle(&self) {
        while self.store.io().stats().in_flight.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((self.space.used_bytes(), self.space.tier_bytes()), (0, 0));
        assert_eq!(self.store.io_account().used_bytes(), 0);
        assert!(self.store.memory_tiers().iter().all(|tier| tier.account().used_bytes() == 0));
    }
}

fn create(spill: &Arc<StatementSpill>) -> Arc<dyn SpillFile> {
    SpillFactory(Arc::clone(spill)).create_temp_file("a test").unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

async fn read(file: &Arc<dyn SpillFile>) -> Vec<u8> {
    file.read_stream().unwrap().try_collect::<Vec<Bytes>>().await.unwrap().concat()
}

#[tokio::test]
async fn what_is_spilled_is_read_back_by_the_engine_and_goes() {
    for (len, io_budget) in
        [(0, MIB), (1, MIB), (PIECE_BYTES, MIB), (3_000_001, MIB), (30_000_001, 8 * MIB), (3_000_001, 0)]
    {
        let setup = setup(ENOUGH, |options| options.io_budget_bytes = io_budget);
        let stats = setup.store.io().stats();
        let spill = setup.space.for_statement(StatementId::next());
        let file = create(&spill);
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&pattern(len)).unwrap();
        writer.finish().unwrap();
        drop(writer);
        assert_eq!((file.size(), setup.space.used_bytes()), (Some(len as u64), len as u64));
        assert_eq!(std::fs::read_dir(&setup.folder).unwrap().count(), 0, "the file has no name");
        assert!(read(&file).await == pattern(len));
        while stats.in_flight.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
        let written = stats.class_writes(Class::Spill).sums().bytes;
        assert!(written >= len as u64 && written < len as u64 + 4096, "{written}");
        // What was still being written was read from memory.
        let in_memory = (RUNNING_WRITES as u64 + 1) * PIECE_BYTES as u64 + io_budget / 2;
        let from_disk = stats.class_reads(Class::Spill).sums().bytes;
        assert!(from_disk <= len as u64 && from_disk + in_memory >= len as u64, "{from_disk} of {len}");
        let pieces: Vec<Bytes> = file.read_stream().unwrap().try_collect().await.unwrap();
        assert!(setup.store.io_account().used_bytes() >= from_disk, "what is held is charged");
        drop(pieces);
        // A reader that gives up half way leaves nothing.
        drop(file.read_stream().unwrap().try_next().await.unwrap());
        drop(file);
        assert_eq!(spill.spilled_bytes(), len as u64);
        setup.check_idle().await;
    }
}

#[tokio::test]
async fn a_statement_that_has_to_stop_spills_no_more() {
    let setup = setup(ENOUGH, |_| ());
    let spill = setup.space.for_statement(StatementId::next());
    let file = create(&spill);
    let mut writer = file.open_writer().unwrap();
    let heap = HeapAccount::new();
    let stops = Arc::new(AtomicBool::new(false));
    let check = Arc::clone(&stops);
    heap.set_stop_check(move || check.load(Ordering::Relaxed));
    heap.charge_call(|| writer.write_all(&pattern(100))).unwrap();
    stops.store(true, Ordering::Relaxed);
    let error = heap.charge_call(|| writer.write_all(&pattern(100))).unwrap_err();
    assert_eq!(error.to_string(), "the statement has to stop");
    assert_eq!(setup.space.used_bytes(), 100);
    drop((writer, file));
    setup.check_idle().await;
}

#[tokio::test]
async fn a_reader_follows_the_writer() {
    let setup = setup(ENOUGH, |_| ());
    let spill = setup.space.for_statement(StatementId::next());
    let file = create(&spill);
    let mut writer = file.open_writer().unwrap();
    let mut reader = file.read_stream().unwrap();
    let (mut written, mut seen) = (0, Vec::new());
    let all = pattern(5_000_000);
    for part in [10, PIECE_BYTES, 1, 3 * PIECE_BYTES + 5, 70, 2_000_000, 4096] {
        writer.write_all(&all[written..written + part]).unwrap();
        written += part;
        while seen.len() < written {
            seen.extend(reader.try_next().await.unwrap().expect("there is more"));
        }
    }
    writer.finish().unwrap();
    assert!(seen == all[..written]);
    assert!(reader.try_next().await.unwrap().is_none());
    drop((writer, reader, file));
    setup.check_idle().await;
}

/// A file, its writer, and what it is to hold.
type OpenFile = (Arc<dyn SpillFile>, Box<dyn SpillWriter>, Vec<u8>);

/// Files of two statements, written in turns and read while others are written; tiers take pieces and want them back.
#[tokio::test]
async fn files_hold_what_was_written_wherever_their_pieces_are() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let percent = [0, 30, 100][seed as usize % 3];
        let limits = SpillLimits { tier_share: f64::from(percent) / 100.0, ..ENOUGH };
        let setup = setup(limits, |options| options.dram_budget_bytes = 6 * MIB);
        let dram = Arc::clone(setup.store.memory_tiers()[0].account());
        let statements = [0, 1].map(|_| setup.space.for_statement(StatementId::next()));
        let mut files: Vec<OpenFile> = Vec::new();
        for step in 0..400 {
            match random.random_range(0..20) {
                0 | 1 => {
                    let file = create(&statements[random.random_range(0..2)]);
                    let writer = file.open_writer().unwrap();
                    files.push((file, writer, Vec::new()));
                }
                2 if !files.is_empty() => drop(files.swap_remove(random.random_range(0..files.len()))),
                3 => drop(dram.recall(random.random_range(0..2 * MIB))),
                4 => setup.space.leave_tiers(true),
                5 if random.random_bool(0.2) => {
                    dram.set_yielding(true);
                    setup.leave_tiers_until(|| setup.space.tier_bytes() == 0);
                    dram.set_yielding(false);
                }
                6 | 7 if !files.is_empty() => {
                    let (file, _, expected) = &files[random.random_range(0..files.len())];
                    assert!(read(file).await == *expected, "seed {seed}, step {step}");
                }
                _ if !files.is_empty() => {
                    let at = random.random_range(0..files.len());
                    let (_, writer, expected) = &mut files[at];
                    let most = [100, 10_000, 400_000][random.random_range(0..3)];
                    let len = random.random_range(1..most);
                    let bytes: Vec<u8> = (0..len).map(|_| random.random()).collect();
                    writer.write_all(&bytes).unwrap();
                    expected.extend(bytes);
                }
                _ => {}
            }
            setup.clock.advance(Duration::from_millis(200));
            let share = dram.limit_bytes() * u64::from(percent as u32) / 100;
            assert!(setup.space.tier_bytes() <= share && dram.used_bytes() <= dram.limit_bytes());
        }
        let held: u64 = files.iter().map(|(.., expected)| expected.len() as u64).sum();
        assert_eq!(setup.space.used_bytes(), held, "seed {seed}");
        for (file, mut writer, expected) in files {
            writer.finish().unwrap();
            assert!(read(&file).await == expected, "seed {seed}");
        }
        drop(statements);
        setup.check_idle().await;
    }
}

#[tokio::test]
async fn a_tier_with_room_takes_its_share_and_gives_it_back() {
    let limits = SpillLimits { tier_share: 0.5, ..ENOUGH };
    let setup = setup(limits, |options| options.dram_budget_bytes = 8 * MIB);
    let dram = Arc::clone(setup.store.memory_tiers()[0].account());
    let spill = setup.space.for_statement(StatementId::next());
    let file = create(&spill);
    let mut writer = file.open_writer().unwrap();
    writer.write_all(&pattern(6 << 20)).unwrap();
    writer.finish().unwrap();
    assert_eq!((setup.space.tier_bytes(), dram.used_bytes()), (4 * MIB, 4 * MIB));
    let written = || setup.store.io().stats().class_writes(Class::Spill).sums().bytes;
    assert!(written() <= 2 * MIB);
    // A reader keeps what it holds, and the tier's charge for it.
    let first = file.read_stream().unwrap().try_next().await.unwrap().unwrap();
    assert!(dram.recall(MIB));
    setup.leave_tiers_until(|| setup.space.tier_bytes() == 3 * MIB);
    assert_eq!(dram.used_bytes(), 3 * MIB + PIECE_BYTES as u64);
    drop(first);
    assert_eq!(dram.used_bytes(), 3 * MIB);
    setup.space.leave_tiers(true);
    assert_eq!(dram.used_bytes(), 3 * MIB, "nothing more was wanted");
    // For a while there is no room for others.
    let later = |file: &Arc<dyn SpillFile>| {
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&pattern(PIECE_BYTES)).unwrap();
        setup.space.tier_bytes()
    };
    assert_eq!(later(&create(&spill)), 3 * MIB);
    setup.clock.advance(Duration::from_secs(2));
    assert_eq!(later(&create(&spill)), 3 * MIB + PIECE_BYTES as u64);
    // DRAM takes none while there is little memory.
    setup.space.leave_tiers(false);
    assert_eq!(later(&create(&spill)), 3 * MIB);
    setup.space.leave_tiers(true);
    dram.close();
    setup.leave_tiers_until(|| setup.space.tier_bytes() == 0);
    assert_eq!(dram.used_bytes(), 0);
    assert!(read(&file).await == pattern(6 << 20));
    drop((writer, file));
    setup.check_idle().await;
}

#[tokio::test]
async fn nvm_takes_the_pieces_that_dram_has_no_room_for() {
    let limits = SpillLimits { tier_share: 0.5, ..ENOUGH };
    let setup = setup(limits, |options| {
        options.dram_budget_bytes = 2 * MIB;
        options.nvm = Some(NvmOptions { backing: NvmBacking::Emulated, capacity_bytes: 4 * MIB, limiter: None });
    });
    let [dram, nvm] = [0, 1].map(|tier| Arc::clone(setup.store.memory_tiers()[tier].account()));
    let charged = || [dram.used_bytes(), nvm.used_bytes()];
    let written = || setup.store.io().stats().class_writes(Class::Spill).sums().bytes;
    let spill = setup.space.for_statement(StatementId::next());
    let write = |bytes: u64| {
        let file = create(&spill);
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&pattern(bytes as usize)).unwrap();
        writer.finish().unwrap();
        file
    };
    let first = write(MIB);
    assert_eq!(charged(), [MIB, 0]);
    let second = write(MIB);
    assert_eq!(charged(), [MIB, MIB], "DRAM has lent its share");
    let third = write(2 * MIB);
    assert_eq!((charged(), setup.space.tier_bytes()), ([MIB, 2 * MIB], 3 * MIB), "so has NVM");
    while written() < MIB {
        tokio::task::yield_now().await;
    }
    assert_eq!(written(), MIB, "the disk has the rest");
    assert!(read(&first).await == pattern(1 << 20) && read(&second).await == pattern(1 << 20));
    drop((first, second));
    assert_eq!(charged(), [0, MIB]);
    // DRAM takes none while there is little memory, nor while others have all of it.
    setup.space.leave_tiers(false);
    let while_short = write(MIB);
    assert_eq!(charged(), [0, 2 * MIB]);
    setup.space.leave_tiers(true);
    let while_ample = write(MIB);
    assert_eq!(charged(), [MIB, 2 * MIB]);
    drop((while_short, while_ample));
    let others = dram.try_charge(2 * MIB).unwrap();
    let beside = write(MIB);
    assert_eq!((charged(), setup.space.tier_bytes()), ([2 * MIB, 2 * MIB], 2 * MIB));
    drop(others);
    // What NVM wants back goes to the disk, not to DRAM.
    assert!(nvm.recall(MIB));
    setup.leave_tiers_until(|| nvm.used_bytes() == MIB);
    assert_eq!(charged(), [0, MIB]);
    assert!(read(&third).await == pattern(2 << 20) && read(&beside).await == pattern(1 << 20));
    drop((third, beside));
    setup.check_idle().await;
}

/// A writer on a thread of its own, while the disk serves nothing.
#[test]
fn a_writer_waits_only_when_too_many_of_its_writes_run() {
    const PIECES: usize = 40;
    let piece = pattern(PIECE_BYTES);
    // Half of the budget of reads takes pieces besides those of the reserve.
    for (budget_pieces, passing) in [(0, RUNNING_WRITES), (8, RUNNING_WRITES + 4)] {
        let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
        let setup = setup(ENOUGH, |options| {
            options.io = Some(engine.clone());
            options.io_budget_bytes = (budget_pieces * PIECE_BYTES) as u64;
        });
        let in_flight = || setup.store.io().stats().in_flight.load(Ordering::SeqCst);
        let spill = setup.space.for_statement(StatementId::next());
        let file = create(&spill);
        let passed = AtomicUsize::new(0);
        engine.pause();
        let seen = std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut writer = file.open_writer().unwrap();
                for _ in 0..PIECES {
                    writer.write_all(&piece).unwrap();
                    passed.fetch_add(1, Ordering::SeqCst);
                }
                writer.finish().unwrap();
            });
            let mut tries = 0;
            while in_flight() <= passing as u64 && tries < 10_000_000 {
                std::thread::yield_now();
                tries += 1;
            }
            // A writer that does not wait has time to go on.
            (0..100_000).for_each(|_| std::thread::yield_now());
            let seen = (passed.load(Ordering::SeqCst), in_flight());
            engine.resume();
            seen
        });
        assert_eq!(seen, (passing, passing as u64 + 1), "the last one waits");
        assert_eq!(passed.load(Ordering::SeqCst), PIECES);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(read(&file)) == piece.repeat(PIECES));
        drop(file);
        runtime.block_on(setup.check_idle());
    }
}

#[tokio::test]
async fn space_on_disk_is_free_once_a_file_is_gone() {
    use std::os::unix::fs::MetadataExt;
    let setup = setup(ENOUGH, |_| ());
    let spill = setup.space.for_statement(StatementId::next());
    let files = [0, 1].map(|_| create(&spill));
    for file in &files {
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&pattern(20 << 20)).unwrap();
        writer.finish().unwrap();
    }
    let on_disk = || {
        let path = spill.disk().unwrap().descriptor_path();
        std::fs::metadata(path).unwrap().blocks() * 512
    };
    while setup.store.io().stats().in_flight.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    assert!((40 * MIB..44 * MIB).contains(&on_disk()), "{}", on_disk());
    let [first, second] = files;
    drop(first);
    assert!((20 * MIB..22 * MIB).contains(&on_disk()), "{}", on_disk());
    assert!(read(&second).await == pattern(20 << 20));
    // Files that are dropped while they are written leave nothing either, but for what is freed with the next ones.
    for _ in 0..200 {
        let file = create(&spill);
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&pattern(3 * PIECE_BYTES)).unwrap();
        writer.finish().unwrap();
    }
    while setup.store.io().stats().in_flight.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    assert!(on_disk() < 22 * MIB + 2 * (16 << 20), "{}", on_disk());
}

/// A writer and readers on threads of their own, while pieces leave their tier.
#[test]
fn pieces_leave_their_tier_while_others_write_and_read() {
    let limits = SpillLimits { tier_share: 1.0, ..ENOUGH };
    let setup = setup(limits, |options| options.dram_budget_bytes = 8 * MIB);
    let dram = Arc::clone(setup.store.memory_tiers()[0].account());
    let spill = setup.space.for_statement(StatementId::next());
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..2)
            .map(|seed| {
                let spill = Arc::clone(&spill);
                threads.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let mut random = StdRng::seed_from_u64(seed);
                    for _ in 0..60 {
                        let file = create(&spill);
                        let mut writer = file.open_writer().unwrap();
                        let expected = pattern(random.random_range(1..4_000_000));
                        for part in expected.chunks(50_000) {
                            writer.write_all(part).unwrap();
                        }
                        writer.finish().unwrap();
                        assert!(runtime.block_on(read(&file)) == expected);
                        assert!(runtime.block_on(read(&file)) == expected, "again");
                    }
                })
            })
            .collect();
        threads.spawn(|| {
            while !has_ended.load(Ordering::SeqCst) {
                dram.recall(MIB);
                setup.space.leave_tiers(true);
                setup.clock.advance(Duration::from_millis(500));
                std::thread::yield_now();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        has_ended.store(true, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok), "a worker failed");
    });
    assert_eq!((setup.space.used_bytes(), setup.space.tier_bytes()), (0, 0));
}

#[test]
fn rows_stay_on_their_tier_when_the_disk_fails() {
    let limits = SpillLimits { tier_share: 1.0, ..ENOUGH };
    let engine = Arc::new(SimulatedEngine::start(1, Faults::default()));
    let setup = setup(limits, |options| options.io = Some(engine.clone()));
    let dram = Arc::clone(setup.store.memory_tiers()[0].account());
    let spill = setup.space.for_statement(StatementId::next());
    let file = create(&spill);
    let mut writer = file.open_writer().unwrap();
    writer.write_all(&pattern(2 << 20)).unwrap();
    engine.set_faults(Faults { error_rate: 1.0, ..Faults::default() });
    dram.recall(MIB);
    setup.space.leave_tiers(true);
    setup.leave_tiers_until(|| dram.used_bytes() == 2 * MIB && spill.writes.lock().is_empty());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(read(&file)) == pattern(2 << 20));
    setup.clock.advance(Duration::from_secs(2));
    dram.recall(MIB);
    setup.space.leave_tiers(true);
    setup.clock.advance(Duration::from_secs(2));
    writer.write_all(&pattern(2 << 20)).unwrap();
    assert_eq!(setup.store.io().stats().errors.load(Ordering::SeqCst), 8, "the others do not try");
}

#[test]
fn a_disk_that_fails_ends_the_statement() {
    let setup = setup(ENOUGH, |options| {
        options.io = Some(Arc::new(SimulatedEngine::start(1, Faults { fails_after: Some(3), ..Faults::default() })));
    });
    let spill = setup.space.for_statement(StatementId::next());
    let file = create(&spill);
    let mut writer = file.open_writer().unwrap();
    let failed = (0..100).find_map(|_| writer.write_all(&pattern(PIECE_BYTES)).err()).expect("a write fails");
    let error = crate::error::Error::from(DataFusionError::from(failed));
    assert!(error.message().contains("cannot write") && error.message().contains("spill-"), "{}", error.message());
    std::fs::remove_dir(&setup.folder).unwrap();
    let other = create(&setup.space.for_statement(StatementId::next()));
    let failed = other.open_writer().unwrap().write_all(&pattern(PIECE_BYTES)).unwrap_err();
    let error = crate::error::Error::from(DataFusionError::from(failed));
    assert!(error.message().contains("cannot create"), "{}", error.message());
}

#[test]
fn too_much_is_refused_with_the_numbers() {
    let Setup { space, .. } = setup(SpillLimits { all_bytes: 1000, statement_bytes: 600, ..ENOUGH }, |_| ());
    let refused = |written: std::io::Result<()>, texts: [&str; 3]| {
        let error = crate::error::Error::from(DataFusionError::from(written.unwrap_err()));
        assert_eq!(error.kind(), crate::error::ErrorKind::ResourceExhausted);
        assert!(texts.iter().all(|text| error.message().contains(text)), "{}", error.message());
    };
    let [first, second] = [0, 1].map(|_| space.for_statement(StatementId::next()));
    let [file, other] = [&first, &second].map(create);
    let [mut writer, mut other_writer] = [&file, &other].map(|file| file.open_writer().unwrap());
    writer.write_all(&[1; 500]).unwrap();
    refused(writer.write_all(&[1; 101]), ["statement has", "500 bytes", "600 in all (query.statement_spill_limit)"]);
    other_writer.write_all(&[1; 400]).unwrap();
    refused(other_writer.write_all(&[1; 101]), ["statements have", "900 bytes", "1000 in all (query.spill_limit)"]);
    writer.write_all(&[1; 100]).unwrap();
    assert_eq!((space.used_bytes(), first.spilled_bytes(), second.spilled_bytes()), (1000, 600, 400));
    // Its own space is free again, and what it has spilled stays counted.
    drop((writer, file));
    assert_eq!((space.used_bytes(), first.spilled_bytes()), (400, 600));
    let more = create(&first);
    let mut again = more.open_writer().unwrap();
    again.write_all(&[1; 600]).unwrap();
}
