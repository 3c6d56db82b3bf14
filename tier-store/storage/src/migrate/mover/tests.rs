#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::clock::{Clock, ManualClock, SystemClock};
use terrace_model::{Account, FileFormat, TierIndex, TierKind};

use super::*;
use crate::migrate::testing::{FIRST_ID, FakeHome, ROWS};
use crate::migrate::{Health, MoveExecutor, MoveQueue, Verdict};
use crate::tier::SegmentBytes;
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
    Relocation { chunk: Arc::clone(chunk), column, from, to, form: Form::Plain }
}

fn used(tiers: &[Arc<dyn MemoryTier>]) -> Vec<u64> {
    tiers.iter().map(|tier| tier.account().used_bytes()).collect()
}

#[test]
fn a_move_copies_swaps_and_releases_with_the_last_reader() {
    let home = FakeHome::default();
    let tiers = tiers(100_000, 100_000);
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

/// A segment that is packed at home comes to a tier in either form, in the packed one as it is, and goes from form to form.
#[test]
fn segments_that_are_packed_at_home_get_both_forms() {
    let home = FakeHome::default();
    let tiers = tiers(100_000, 100_000);
    let chunk = home.add_in(1, 1, FileFormat::Packed);
    let segment = &chunk.segments[0];
    let stored_bytes = segment.home.len;
    assert!(segment.home.is_packed() && stored_bytes < 2_000, "{stored_bytes}");
    assert_eq!([Form::Plain, Form::Packed].map(|form| segment.bytes_in(form)), [8_000, stored_bytes]);
    let go = |from, to, form| {
        let moved = try_move(&tiers, &home, &Relocation { form, ..relocation(&chunk, 0, from, to) });
        assert_eq!(moved.unwrap(), Outcome::Moved);
        let copy = segment.resident.load_full()?;
        let values = copy.column.widened().unwrap();
        assert_eq!(values.as_primitive::<arrow::datatypes::Int64Type>().value(5), FIRST_ID + 1005);
        Some((copy.column.form(), copy.bytes.buffer.len() as u64))
    };
    assert_eq!(go(SSD, DRAM, Form::Packed), Some((Form::Packed, stored_bytes)));
    assert_eq!(go(DRAM, SSD, Form::Packed), None);
    assert_eq!(go(SSD, DRAM, Form::Plain), Some((Form::Plain, 8_000)));
    assert_eq!(go(DRAM, NVM, Form::Packed), Some((Form::Packed, stored_bytes)));
    assert_eq!(go(NVM, DRAM, Form::Plain), Some((Form::Plain, 8_000)));
    assert_eq!(go(DRAM, SSD, Form::Plain), None);
    assert_eq!((home.reads.load(Ordering::Relaxed), used(&tiers)), (2, vec![0, 0]));
}

#[test]
fn full_tiers_exchange_segments_and_a_stubborn_reader_is_given_up_on() {
    [MoveExecutor::Caller, MoveExecutor::Background, MoveExecutor::Threads(4)]
        .into_iter()
        .for_each(full_tiers_exchange_segments);
}

fn full_tiers_exchange_segments(executor: MoveExecutor) {
    let home = FakeHome::default();
    let tiers = tiers(8192, 8192);
    let a = home.add(1, 1);
    let b = home.add(1, 2);
    let clock = ManualClock::default();
    let cancel = AtomicBool::new(false);
    let health = Health::default();
    let queue = |patience| MoveQueue {
        tiers: &tiers,
        home: &home,
        health: &health,
        clock: &clock,
        cancel: &cancel,
        rates: &[],
        patience,
        executor,
        urgent: false,
    };
    let run = |moves: &[Relocation]| {
        let mut verdicts = vec![None; moves.len()];
        queue(Duration::from_millis(20)).run(moves, |number, verdict| verdicts[number] = Some(verdict));
        verdicts.into_iter().map(Option::unwrap).collect::<Vec<_>>()
    };
    let done = |v: &Verdict| matches!(v, Verdict::Done { .. });
    assert!(run(&[relocation(&a, 0, SSD, DRAM), relocation(&b, 0, SSD, NVM)]).iter().all(done));
    // Both tiers are full: neither move has room until one drops its copy.
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

#[test]
fn copies_on_a_full_tier_change_their_form_within_its_budget() {
    for executor in [MoveExecutor::Caller, MoveExecutor::Background, MoveExecutor::Threads(3)] {
        let home = FakeHome::default();
        let chunks: Vec<_> = (0..4).map(|id| home.add(1, id)).collect();
        let tiers = tiers(1 << 20, 0);
        let charged = |form| tiers[0].charged_bytes(chunks[0].segments[0].bytes_in(form) as usize);
        let [plain, packed] = Form::ALL.map(charged);
        assert!(packed < plain / 2, "{packed} {plain}");
        tiers[0].account().set_limit_bytes(4 * plain);
        let health = Health::default();
        let clock = SystemClock::default();
        let queue = MoveQueue {
            tiers: &tiers,
            home: &home,
            health: &health,
            clock: &clock,
            cancel: &AtomicBool::new(false),
            rates: &[],
            patience: Duration::from_millis(20),
            executor,
            urgent: false,
        };
        let all_in = |from, form| {
            let moves: Vec<_> =
                chunks.iter().map(|chunk| Relocation { form, ..relocation(chunk, 0, from, DRAM) }).collect();
            let mut done = 0;
            queue.run(&moves, |_, verdict| done += usize::from(matches!(verdict, Verdict::Done { .. })));
            assert_eq!(done, chunks.len(), "{executor:?} {form}");
            for chunk in &chunks {
                let copy = chunk.segments[0].resident.load_full().unwrap();
                assert_eq!((copy.tier.id(), copy.column.form()), (DRAM, form), "{executor:?}");
                let values = copy.column.widened().unwrap();
                assert_eq!(
                    values.as_primitive::<arrow::datatypes::Int64Type>().value(5),
                    FIRST_ID + chunk.id.0 as i64 * 1000 + 5
                );
            }
        };
        let reads = || home.reads.load(Ordering::Relaxed);
        all_in(SSD, Form::Plain);
        assert_eq!((used(&tiers)[0], reads()), (4 * plain, 4));
        // Nothing has room at first: at least one copy is dropped and made again from home, and not all are.
        all_in(DRAM, Form::Packed);
        assert_eq!(used(&tiers)[0], 4 * packed);
        assert!((5..8).contains(&reads()), "{executor:?}: {}", reads());
        all_in(DRAM, Form::Plain);
        assert_eq!(used(&tiers)[0], 4 * plain);
        assert!(tiers[0].account().peak_bytes() <= tiers[0].account().limit_bytes(), "{executor:?}");
    }
}

#[test]
fn a_packed_copy_stays_where_readers_leave_no_room_for_a_plain_one() {
    let home = FakeHome::default();
    let [rising, read] = [0, 1].map(|id| home.add(1, id));
    let tiers = tiers(1 << 20, 0);
    let packed = |from| Relocation { form: Form::Packed, ..relocation(&rising, 0, from, DRAM) };
    assert_eq!(try_move(&tiers, &home, &packed(SSD)).unwrap(), Outcome::Moved);
    assert_eq!(try_move(&tiers, &home, &relocation(&read, 0, SSD, DRAM)).unwrap(), Outcome::Moved);
    let reader = read.segments[0].resident.load_full().unwrap();
    // The other copy leaves, but its bytes stay charged as long as they are read.
    assert_eq!(try_move(&tiers, &home, &relocation(&read, 0, DRAM, SSD)).unwrap(), Outcome::Moved);
    let bytes = used(&tiers)[0];
    tiers[0].account().set_limit_bytes(bytes);
    let health = Health::default();
    let clock = SystemClock::default();
    let queue = MoveQueue {
        tiers: &tiers,
        home: &home,
        health: &health,
        clock: &clock,
        cancel: &AtomicBool::new(false),
        rates: &[],
        patience: Duration::from_millis(4),
        executor: MoveExecutor::Caller,
        urgent: false,
    };
    let unpack = || {
        let mut verdicts = Vec::new();
        queue.run(&[relocation(&rising, 0, DRAM, DRAM)], |_, verdict| verdicts.push(verdict));
        let copy = rising.segments[0].resident.load_full();
        (verdicts, copy.map(|copy| copy.column.form()))
    };
    let (verdicts, form) = unpack();
    assert!(matches!(&verdicts[..], [Verdict::Skipped(why)] if why.contains("dram is full")), "{verdicts:?}");
    assert_eq!((form, used(&tiers)[0]), (Some(Form::Packed), bytes));
    drop(reader);
    let (verdicts, form) = unpack();
    assert!(matches!(&verdicts[..], [Verdict::Done { .. }]), "{verdicts:?}");
    assert_eq!(form, Some(Form::Plain));
}

#[test]
fn a_move_has_temporary_data_make_room() {
    let home = FakeHome::default();
    let tiers = tiers(8192, 8192);
    let chunk = home.add(1, 1);
    let dram = tiers[0].account();
    let stored = (dram.try_lend(8192, 8192).unwrap(), dram.try_charge(8192).unwrap());
    let queue = MoveQueue {
        tiers: &tiers,
        home: &home,
        health: &Health::default(),
        clock: &SystemClock::default(),
        cancel: &AtomicBool::new(false),
        rates: &[],
        patience: Duration::from_secs(60),
        executor: MoveExecutor::Caller,
        urgent: false,
    };
    let mut verdicts = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while dram.take_recalled() == 0 {
                std::thread::yield_now();
            }
            drop(stored);
        });
        queue.run(&[relocation(&chunk, 0, SSD, DRAM)], |_, verdict| verdicts.push(verdict));
    });
    assert!(matches!(verdicts[..], [Verdict::Done { .. }]), "{verdicts:?}");
    assert_eq!((dram.lent_bytes(), used(&tiers)[0]), (0, tiers[0].charged_bytes(chunk.segments[0].bytes() as usize)));
}

/// A home whose reads block the executor's thread until all other moves have ended.
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
    fn check(&self, chunk: &Chunk) -> Result<()> {
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
fn a_background_executor_that_gets_no_processor_is_helped() {
    let home = Stuck { home: FakeHome::default(), ended: AtomicUsize::new(0), others: 3 };
    let tiers = tiers(1 << 20, 0);
    let cancel = AtomicBool::new(false);
    let clock = SystemClock::default();
    let moves: Vec<_> = (0..4).map(|id| relocation(&home.home.add(1, id), 0, SSD, DRAM)).collect();
    let queue = MoveQueue {
        tiers: &tiers,
        home: &home,
        health: &Health::default(),
        clock: &clock,
        cancel: &cancel,
        rates: &[Some(1 << 30); 3],
        patience: Duration::ZERO,
        executor: MoveExecutor::Background,
        urgent: false,
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
    let home = FakeHome::default();
    let tiers = tiers(1 << 20, 0);
    let clock = ManualClock::default();
    let cancel = AtomicBool::new(false);
    let moves: Vec<_> = (0..11).map(|id| relocation(&home.add(1, id), 0, SSD, DRAM)).collect();
    let bytes: u64 = moves.iter().take(10).map(Relocation::bytes).sum();
    let rates = &[Some(100_000); 3];
    let patience = Duration::ZERO;
    let mut done = 0;
    let health = Health::default();
    let executor = MoveExecutor::Caller;
    MoveQueue {
        tiers: &tiers,
        home: &home,
        health: &health,
        clock: &clock,
        cancel: &cancel,
        rates,
        patience,
        executor,
        urgent: false,
    }
    .run(&moves, |_, verdict| done += usize::from(matches!(verdict, Verdict::Done { .. })));
    assert_eq!((done, clock.now_us()), (11, bytes * 10));
}

#[test]
fn a_busy_device_holds_back_its_own_moves_only() {
    let home = FakeHome::default();
    let tiers = tiers(1 << 20, 1 << 20);
    let clock = ManualClock::default();
    let cancel = AtomicBool::new(false);
    let health = Health::default();
    let chunks: Vec<_> = (0..20).map(|id| home.add(1, id)).collect();
    let run = |rates: &[Option<u64>], moves: &[Relocation]| {
        let start_us = clock.now_us();
        let mut ended = vec![None; moves.len()];
        let patience = Duration::ZERO;
        let executor = MoveExecutor::Caller;
        let queue = MoveQueue {
            tiers: &tiers,
            home: &home,
            health: &health,
            clock: &clock,
            cancel: &cancel,
            rates,
            patience,
            executor,
            urgent: false,
        };
        queue.run(moves, |number, verdict| {
            assert!(matches!(verdict, Verdict::Done { .. }), "{verdict:?}");
            ended[number] = Some(clock.now_us() - start_us);
        });
        ended.into_iter().map(Option::unwrap).collect::<Vec<u64>>()
    };
    assert_eq!(run(&[], &chunks[..10].iter().map(|c| relocation(c, 0, SSD, NVM)).collect::<Vec<_>>()), [0; 10]);
    // Eight kilobytes each: 80 ms of the disk, 8 ms of NVM, and nothing of DRAM.
    let slow = chunks[10..].iter().map(|chunk| relocation(chunk, 0, SSD, DRAM));
    let fast = chunks[..10].iter().map(|chunk| relocation(chunk, 0, NVM, DRAM));
    let ended = run(&[None, Some(1_000_000), Some(100_000)], &slow.chain(fast).collect::<Vec<_>>());
    let home_us = |chunk: &Arc<Chunk>| chunk.segments[0].home.len * 10;
    let (slow, fast) = ended.split_at(10);
    assert_eq!(slow[9], chunks[10..19].iter().map(home_us).sum::<u64>(), "{ended:?}");
    assert_eq!(fast, (0..10).map(|n| n * 8_000).collect::<Vec<u64>>(), "{ended:?}");
    // The rate limits writes to the device too; moves that only drop a copy do not wait.
    let to_nvm: Vec<_> = chunks[..5].iter().map(|chunk| relocation(chunk, 0, DRAM, NVM)).collect();
    assert_eq!(run(&[None, Some(1_000_000)], &to_nvm), [0, 8_000, 16_000, 24_000, 32_000]);
    let dropped: Vec<_> = chunks[..5].iter().map(|chunk| relocation(chunk, 0, NVM, SSD)).collect();
    assert_eq!(run(&[Some(1); 3], &dropped), [0; 5]);
}

#[test]
fn any_executor_carries_out_each_move_once_reads_chunks_at_once_and_goes_on_after_a_failure() {
    for executor in [MoveExecutor::Caller, MoveExecutor::Background, MoveExecutor::Threads(3)] {
        let home = FakeHome::default();
        let tiers = tiers(1 << 20, 1 << 20);
        let chunks: Vec<_> = (0..40).map(|id| home.add(1, id)).collect();
        home.lose(&chunks[7]);
        let both = |to| chunks.iter().map(move |chunk| (chunk, to));
        let moves = both(DRAM).map(|(chunk, to)| relocation(chunk, 0, SSD, to));
        let moves: Vec<_> = moves.chain(both(NVM).map(|(chunk, to)| relocation(chunk, 1, SSD, to))).collect();
        let clock = SystemClock::default();
        let cancel = AtomicBool::new(false);
        let mut verdicts = vec![None; moves.len()];
        let queue = MoveQueue {
            tiers: &tiers,
            home: &home,
            health: &Health::default(),
            clock: &clock,
            cancel: &cancel,
            rates: &[],
            patience: Duration::ZERO,
            executor,
            urgent: false,
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
        // The lost file is read once for both columns, and then for each column.
        assert_eq!((done, home.calls.load(Ordering::Relaxed)), (78, 39 + 3), "{executor:?}");
    }
}

#[test]
fn budgets_hold_and_values_are_right_while_everything_moves_at_random() {
    let home = FakeHome::default();
    let tiers = tiers(40_000, 30_000);
    let chunks: Vec<_> = (0..12).map(|id| home.add(1, id)).collect();
    let stop = AtomicBool::new(false);
    let over =
        |tiers: &[Arc<dyn MemoryTier>]| tiers.iter().any(|t| t.account().peak_bytes() > t.account().limit_bytes());
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let chunks = &chunks;
            let stop = &stop;
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
            let chunks = &chunks;
            let tiers = &tiers;
            let home = &home;
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed);
                let mut moved = 0;
                for _ in 0..2000 {
                    let chunk = &chunks[rng.random_range(0..chunks.len())];
                    let from = TierId(rng.random_range(0..3));
                    let to = TierId(rng.random_range(0..3));
                    let form = [Form::Plain, Form::Packed][rng.random_range(0..2)];
                    let relocation = Relocation { form, ..relocation(chunk, rng.random_range(0..2), from, to) };
                    let outcome = try_move(tiers, home, &relocation).unwrap();
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

/// A memory tier whose device can be made to fail.
#[derive(Debug)]
struct Fallible {
    memory: DramTier,
    fails: AtomicBool,
    stored: AtomicUsize,
}

impl Fallible {
    fn new(id: TierId, bytes: u64) -> Arc<Self> {
        let memory = DramTier::new(id, Account::new("nvm", bytes));
        Arc::new(Self { memory, fails: AtomicBool::new(false), stored: AtomicUsize::new(0) })
    }
}

impl MemoryTier for Fallible {
    fn index(&self) -> &TierIndex {
        self.memory.index()
    }
    fn name(&self) -> &str {
        self.memory.name()
    }
    fn kind(&self) -> TierKind {
        TierKind::Nvm
    }
    fn emulated(&self) -> bool {
        true
    }
    fn describe(&self) -> String {
        "fallible".into()
    }
    fn account(&self) -> &Arc<Account> {
        self.memory.account()
    }
    fn charged_bytes(&self, len: usize) -> u64 {
        self.memory.charged_bytes(len)
    }
    fn store(&self, image: &[u8]) -> Result<SegmentBytes> {
        self.stored.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::io("write", "/dev/pmem0", &std::io::Error::from_raw_os_error(libc::EIO)));
        }
        self.memory.store(image)
    }
}

#[test]
fn moves_of_a_device_that_fails_pause_and_others_go_on() {
    for executor in [MoveExecutor::Caller, MoveExecutor::Background, MoveExecutor::Threads(3)] {
        let home = FakeHome::default();
        let nvm = Fallible::new(NVM, 1 << 20);
        let tiers: Vec<Arc<dyn MemoryTier>> =
            vec![Arc::new(DramTier::new(DRAM, Account::new("dram", 1 << 20))), Arc::clone(&nvm) as _];
        let clock = ManualClock::default();
        let cancel = AtomicBool::new(false);
        let health = Health::default();
        let chunks: Vec<_> = (0..30).map(|id| home.add(1, id)).collect();
        let run = |from, to, chunks: &[Arc<Chunk>]| {
            let rates = &[];
            let patience = Duration::ZERO;
            let moves: Vec<_> = chunks.iter().map(|chunk| relocation(chunk, 0, from, to)).collect();
            let mut done = 0;
            let mut whys = Vec::new();
            let health = &health;
            let clock = &clock;
            let cancel = &cancel;
            let queue = MoveQueue {
                tiers: &tiers,
                home: &home,
                health,
                clock,
                cancel,
                rates,
                patience,
                executor,
                urgent: false,
            };
            queue.run(&moves, |_, verdict| match verdict {
                Verdict::Done { .. } => done += 1,
                Verdict::Skipped(why) => whys.push(why),
            });
            (done, whys)
        };
        let stored = || nvm.stored.swap(0, Ordering::Relaxed);
        assert_eq!((run(SSD, NVM, &chunks[..5]).0, stored()), (5, 5));
        nvm.fails.store(true, Ordering::Relaxed);
        let (done, whys) = run(SSD, NVM, &chunks[5..25]);
        let tried = stored();
        // Each thread may have begun one move.
        assert!(done == 0 && (3..=3 + 4).contains(&tried), "{executor:?}: {done}, {tried}");
        let paused = |whys: &[String], until: &str| {
            let said =
                |why: &&String| why.starts_with("nvm is failing (cannot write /dev/pmem0") && why.ends_with(until);
            whys.iter().filter(said).count()
        };
        assert_eq!(paused(&whys, "tried again in 30 s"), 20 - tried, "{executor:?}: {whys:?}");
        // No move to or from the paused device is tried, except those that drop a copy; moves of other devices go on.
        assert_eq!((run(NVM, DRAM, &chunks[..2]).0, run(NVM, SSD, &chunks[..1]).0), (0, 1));
        assert_eq!((run(SSD, DRAM, &chunks[25..]).0, stored()), (5, 0));
        clock.advance(Duration::from_secs(30));
        let (done, whys) = run(SSD, NVM, &chunks[5..25]);
        assert_eq!((done, whys.len(), stored()), (0, 20, 1), "{executor:?}: one tries it");
        assert_eq!(paused(&whys, "tried again in 60 s"), 19, "{whys:?}");
        clock.advance(Duration::from_secs(60));
        nvm.fails.store(false, Ordering::Relaxed);
        let (done, whys) = run(SSD, NVM, &chunks[5..25]);
        assert_eq!((done, whys.len(), health.failing("nvm")), (20, 0, None), "{executor:?}: {whys:?}");
    }
}

#[test]
fn a_home_that_does_not_read_pauses_what_comes_from_it_and_keeps_copies_in_memory() {
    let home = FakeHome::default();
    let tiers = tiers(1 << 20, 8192);
    let clock = ManualClock::default();
    let cancel = AtomicBool::new(false);
    let health = Health::default();
    let chunks: Vec<_> = (0..8).map(|id| home.add(1, id)).collect();
    let run_as = |urgent, moves: &[Relocation]| {
        let rates = &[];
        let patience = Duration::ZERO;
        let executor = MoveExecutor::Caller;
        let health = &health;
        let clock = &clock;
        let cancel = &cancel;
        let mut verdicts = vec![None; moves.len()];
        MoveQueue { tiers: &tiers, home: &home, health, clock, cancel, rates, patience, executor, urgent }
            .run(moves, |number, verdict| verdicts[number] = Some(verdict));
        verdicts.into_iter().map(|v| matches!(v, Some(Verdict::Done { .. }))).collect::<Vec<_>>()
    };
    let run = |moves: &[Relocation]| run_as(false, moves);
    let to_dram = |range: std::ops::Range<usize>| {
        chunks[range].iter().map(|chunk| relocation(chunk, 0, SSD, DRAM)).collect::<Vec<_>>()
    };
    assert_eq!(run(&[relocation(&chunks[0], 0, SSD, DRAM), relocation(&chunks[1], 0, SSD, NVM)]), [true; 2]);
    home.fails.store(true, Ordering::Relaxed);
    assert_eq!(run(&to_dram(2..7)), [false; 5]);
    assert_eq!((home.calls.load(Ordering::Relaxed), health.failing("dram")), (2 + 3, None));
    assert!(health.is_paused("ssd", &clock));
    // NVM is full: before, a copy would have been dropped and taken from home again.
    let swap = [relocation(&chunks[0], 0, DRAM, NVM)];
    assert_eq!(run(&swap), [false]);
    assert_eq!(chunks[0].segments[0].resident.load().as_ref().unwrap().tier.id(), DRAM);
    let drop = [relocation(&chunks[1], 0, NVM, SSD)];
    assert_eq!(run(&drop), [false], "nothing else of it could be read");
    assert_eq!(run_as(true, &drop), [true], "nothing is read or written");
    assert_eq!(run(&swap), [true]);
    home.fails.store(false, Ordering::Relaxed);
    assert_eq!(run(&to_dram(2..7)), [false; 5], "not before its time");
    clock.advance(Duration::from_secs(30));
    assert_eq!((run(&to_dram(2..7)), health.failing("ssd")), (vec![true; 5], None));
}
