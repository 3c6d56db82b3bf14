#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::clock::{Clock, ManualClock, SystemClock};
use crate::migrate::testing::{FIRST_ID, FakeHome, ROWS};
use crate::migrate::{Crew, MoveQueue, Verdict};
use crate::tier::dram::DramTier;
use crate::tier::nvm::{NvmBacking, NvmTier};

const DRAM: TierId = TierId(0);
const NVM: TierId = TierId(1);
const SSD: TierId = TierId(2);

fn tiers(dram_bytes: u64, nvm_bytes: u64) -> Vec<Arc<dyn MemoryTier>> {
    let nvm = NvmTier::open(NVM, "nvm", &NvmBacking::Emulated, 4 << 20, None, Account::new("nvm", nvm_bytes)).unwrap();
    vec![Arc::new(DramTier::new(DRAM, Account::new("dram", dram_bytes))), Arc::new(nvm)]
}

fn relocation(chunk: &Arc<Chunk>, column: usize, from: TierId, to: TierId) -> Relocation {
    Relocation { chunk: Arc::clone(chunk), column, from, to }
}

fn used(tiers: &[Arc<dyn MemoryTier>]) -> Vec<u64> {
    tiers.iter().map(|tier| tier.account().used_bytes()).collect()
}

#[test]
fn a_move_copies_swaps_and_releases_with_the_last_reader() {
    let (home, tiers) = (FakeHome::default(), tiers(100_000, 100_000));
    let chunk = home.add(1, 1);
    let go = |from, to| try_move(&tiers, &home, &relocation(&chunk, 0, from, to)).unwrap();
    assert_eq!(go(SSD, DRAM), Outcome::Moved);
    let charged = tiers[0].charged_bytes(chunk.segments[0].bytes() as usize);
    assert_eq!((used(&tiers)[0], used(&tiers)[1]), (charged, 0));
    let reader = chunk.segments[0].resident.load_full().unwrap().column.widened().unwrap();
    assert_eq!(go(DRAM, NVM), Outcome::Moved);
    assert_eq!(home.reads.load(Ordering::Relaxed), 1, "the image came from DRAM");
    assert_eq!(used(&tiers)[0], charged, "the reader still holds the old copy");
    assert_eq!(reader.as_primitive::<arrow::datatypes::Int64Type>().value(5), FIRST_ID + 1005);
    drop(reader);
    assert_eq!(used(&tiers)[0], 0);
    assert_eq!(go(DRAM, SSD), Outcome::Stale(NVM));
    assert_eq!(go(NVM, SSD), Outcome::Moved);
    assert!(chunk.segments[0].resident.load().is_none());
    assert_eq!(used(&tiers), [0, 0]);
    tiers[0].account().set_limit_bytes(10);
    assert_eq!(go(SSD, DRAM), Outcome::Full);
    assert_eq!(home.reads.load(Ordering::Relaxed), 1, "a full tier costs no read");
}

#[test]
fn full_tiers_exchange_segments_and_a_stubborn_reader_is_given_up_on() {
    [Crew::Caller, Crew::Background, Crew::Threads(4)].into_iter().for_each(full_tiers_exchange_segments);
}

fn full_tiers_exchange_segments(crew: Crew) {
    let (home, tiers) = (FakeHome::default(), tiers(8192, 8192));
    let (a, b) = (home.add(1, 1), home.add(1, 2));
    let (clock, cancel) = (ManualClock::default(), AtomicBool::new(false));
    let queue = |patience| MoveQueue {
        tiers: &tiers,
        home: &home,
        clock: &clock,
        cancel: &cancel,
        bytes_per_s: None,
        patience,
        crew,
    };
    let run = |moves: &[Relocation]| {
        let mut verdicts = vec![None; moves.len()];
        queue(Duration::from_millis(20)).run(moves, |number, verdict| verdicts[number] = Some(verdict));
        verdicts.into_iter().map(Option::unwrap).collect::<Vec<_>>()
    };
    let done = |v: &Verdict| matches!(v, Verdict::Done { .. });
    assert!(run(&[relocation(&a, 0, SSD, DRAM), relocation(&b, 0, SSD, NVM)]).iter().all(done));
    // Both tiers are full: neither move has room until one lets go.
    assert!(run(&[relocation(&a, 0, DRAM, NVM), relocation(&b, 0, NVM, DRAM)]).iter().all(done));
    assert_eq!(a.segments[0].resident.load().as_ref().unwrap().tier.id(), NVM);
    assert_eq!(b.segments[0].resident.load().as_ref().unwrap().tier.id(), DRAM);
    let reader = b.segments[0].resident.load_full();
    let verdicts = run(&[relocation(&b, 0, DRAM, SSD), relocation(&a, 0, NVM, DRAM)]);
    assert!(done(&verdicts[0]));
    assert!(matches!(&verdicts[1], Verdict::Skipped(why) if why.contains("still being read")), "{verdicts:?}");
    assert!(clock.now_us() >= 20_000, "it waited before");
    drop(reader);
    assert!(run(&[relocation(&a, 0, NVM, DRAM)]).iter().all(done));
    cancel.store(true, Ordering::Relaxed);
    assert_eq!(run(&[relocation(&b, 0, SSD, NVM)]), [Verdict::Skipped("cancelled".into())]);
}

/// A home whose reads stand still in the crew's own thread until all other moves have ended.
struct Stuck {
    home: FakeHome,
    ended: AtomicUsize,
    others: usize,
}

impl HomeTier for Stuck {
    fn name(&self) -> &str {
        "ssd"
    }
    fn account(&self) -> &Arc<Account> {
        self.home.account()
    }
    fn describe(&self) -> String {
        self.home.describe()
    }
    fn device(&self) -> Option<&SsdTier> {
        None
    }
    fn check(&self, chunk: &Arc<Chunk>) -> Result<()> {
        self.home.check(chunk)
    }
    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        let clock = SystemClock::default();
        while std::thread::current().name() == Some("terrace-mover") && self.ended.load(Ordering::Relaxed) < self.others
        {
            if clock.now_us() > 20_000_000 {
                return Err(Error::Cancelled);
            }
            clock.sleep(Duration::from_millis(1));
        }
        HomeTier::read(&self.home, chunk, columns)
    }
}

#[test]
fn a_background_crew_that_gets_no_processor_is_helped() {
    let home = Stuck { home: FakeHome::default(), ended: AtomicUsize::new(0), others: 3 };
    let (tiers, cancel, clock) = (tiers(1 << 20, 0), AtomicBool::new(false), SystemClock::default());
    let moves: Vec<_> = (0..4).map(|id| relocation(&home.home.add(1, id), 0, SSD, DRAM)).collect();
    let queue = MoveQueue {
        tiers: &tiers,
        home: &home,
        clock: &clock,
        cancel: &cancel,
        bytes_per_s: Some(1 << 30),
        patience: Duration::ZERO,
        crew: Crew::Background,
    };
    let mut verdicts = Vec::new();
    queue.run(&moves, |_, verdict| {
        verdicts.push(verdict);
        home.ended.fetch_add(1, Ordering::Relaxed);
    });
    assert!(verdicts.len() == 4 && verdicts.iter().all(|v| matches!(v, Verdict::Done { .. })), "{verdicts:?}");
}

#[test]
fn the_rate_holds_on_the_clock() {
    let (home, tiers) = (FakeHome::default(), tiers(1 << 20, 0));
    let (clock, cancel) = (ManualClock::default(), AtomicBool::new(false));
    let moves: Vec<_> = (0..11).map(|id| relocation(&home.add(1, id), 0, SSD, DRAM)).collect();
    let bytes: u64 = moves.iter().take(10).map(Relocation::bytes).sum();
    let (bytes_per_s, patience) = (Some(100_000), Duration::ZERO);
    let mut done = 0;
    MoveQueue { tiers: &tiers, home: &home, clock: &clock, cancel: &cancel, bytes_per_s, patience, crew: Crew::Caller }
        .run(&moves, |_, verdict| done += usize::from(matches!(verdict, Verdict::Done { .. })));
    assert_eq!((done, clock.now_us()), (11, bytes * 10));
}

#[test]
fn any_crew_carries_out_each_move_once_reads_chunks_at_once_and_goes_on_after_a_failure() {
    for crew in [Crew::Caller, Crew::Background, Crew::Threads(3)] {
        let (home, tiers) = (FakeHome::default(), tiers(1 << 20, 1 << 20));
        let chunks: Vec<_> = (0..40).map(|id| home.add(1, id)).collect();
        home.lose(&chunks[7]);
        let both = |to| chunks.iter().map(move |chunk| (chunk, to));
        let moves = both(DRAM).map(|(chunk, to)| relocation(chunk, 0, SSD, to));
        let moves: Vec<_> = moves.chain(both(NVM).map(|(chunk, to)| relocation(chunk, 1, SSD, to))).collect();
        let (clock, cancel) = (SystemClock::default(), AtomicBool::new(false));
        let mut verdicts = vec![None; moves.len()];
        let queue = MoveQueue {
            tiers: &tiers,
            home: &home,
            clock: &clock,
            cancel: &cancel,
            bytes_per_s: None,
            patience: Duration::ZERO,
            crew,
        };
        queue
            .run(&moves, |number, verdict| assert_eq!(verdicts[number].replace(verdict), None, "{number} ended twice"));
        for (number, (verdict, relocation)) in verdicts.iter().zip(&moves).enumerate() {
            let place =
                relocation.chunk.segments[relocation.column].resident.load_full().map(|resident| resident.tier.id());
            match verdict.as_ref().unwrap() {
                Verdict::Done { .. } => assert_eq!(place, Some(relocation.to)),
                Verdict::Skipped(why) => assert!(why.contains("no such file") && number % 40 == 7, "{number}: {why}"),
            }
        }
        let done = verdicts.iter().filter(|v| matches!(v, Some(Verdict::Done { .. }))).count();
        // The lost one is asked for once with both columns, and then for each.
        assert_eq!((done, home.calls.load(Ordering::Relaxed)), (78, 39 + 3), "{crew:?}");
    }
}

#[test]
fn budgets_hold_and_values_are_right_while_everything_moves_at_random() {
    let (home, tiers) = (FakeHome::default(), tiers(40_000, 30_000));
    let chunks: Vec<_> = (0..12).map(|id| home.add(1, id)).collect();
    let stop = AtomicBool::new(false);
    let over =
        |tiers: &[Arc<dyn MemoryTier>]| tiers.iter().any(|t| t.account().peak_bytes() > t.account().limit_bytes());
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (chunks, stop) = (&chunks, &stop);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed);
                let mut held: Vec<(u64, Arc<Resident>)> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let chunk = &chunks[rng.random_range(0..chunks.len())];
                    if let Some(resident) = chunk.segments[0].resident.load_full() {
                        held.push((chunk.id.0, resident));
                    }
                    if held.len() > 3 {
                        let (id, resident) = held.swap_remove(rng.random_range(0..held.len()));
                        let row = rng.random_range(0..ROWS);
                        let values = resident.column.widened().unwrap();
                        let values: &Int64Array = values.as_primitive();
                        assert_eq!(values.value(row), FIRST_ID + (id * 1000) as i64 + row as i64);
                    }
                }
            });
        }
        let movers = [10, 11].map(|seed| {
            let (chunks, tiers, home) = (&chunks, &tiers, &home);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed);
                let mut moved = 0;
                for _ in 0..2000 {
                    let chunk = &chunks[rng.random_range(0..chunks.len())];
                    let (from, to) = (TierId(rng.random_range(0..3)), TierId(rng.random_range(0..3)));
                    let outcome = try_move(tiers, home, &relocation(chunk, rng.random_range(0..2), from, to)).unwrap();
                    moved += usize::from(outcome == Outcome::Moved);
                    assert!(!over(tiers));
                }
                assert!(moved > 100, "only {moved} moves");
            })
        });
        let ended = movers.map(|mover| mover.join());
        stop.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    drop(chunks);
    assert_eq!(used(&tiers), [0, 0]);
}
