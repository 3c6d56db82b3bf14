#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::clock::{Clock, ManualClock, SystemClock};
use terrace_model::{Account, ChunkId, Pattern, TieringMode};
use terrace_storage::table::{NewRule, RuleKind, RuleRows, Rules};
use terrace_storage::tier::codec::FormChoice;
use terrace_storage::tier::reader::ReadColumn;

use super::*;
use crate::heat::{Heat, SegmentKey};
use crate::testing::builders::table_rule;
use crate::testing::{COLUMN_BYTES, FakeHost};
use crate::tiering::{Tiering, TieringHost};
use crate::{EpochRequest, MoveStatus, SEVERAL, TieringOptions};

/// Room for three `id` columns.
const THREE: u64 = 3 * COLUMN_BYTES;

/// A store, its loop, and the account of its cold reads.
struct Setup {
    host: Arc<FakeHost>,
    tiering: Tiering,
    io: Arc<Account>,
}

impl Setup {
    /// The queue is open, but rounds run only when a test runs them.
    fn new(dram_bytes: u64, kind: MergeKind, policy: PolicyKind, top_percent: f64) -> Self {
        Self::on_clock(Arc::new(SystemClock::default()), dram_bytes, kind, policy, top_percent)
    }

    fn on_clock(clock: Arc<dyn Clock>, dram_bytes: u64, kind: MergeKind, policy: PolicyKind, top_percent: f64) -> Self {
        let host = FakeHost::new(dram_bytes, Arc::default()).with_usual_costs();
        let merge = MergeOptions { kind, top_percent, queue_bytes: 64 << 10 };
        let options = TieringOptions { policy, merge, background_bytes_per_s: None, ..TieringOptions::default() };
        let tiering = host.tiering_on(clock, options);
        if kind != MergeKind::Never {
            tiering.shared.merger.offers().open();
        }
        Self { host, tiering, io: Account::new("io", u64::MAX) }
    }

    fn cache(dram_bytes: u64, policy: PolicyKind) -> Self {
        Self::new(dram_bytes, MergeKind::Always, policy, 5.0)
    }

    fn cold(&self, chunk: usize) -> ReadColumn {
        self.host.home.read(&self.host.chunks[chunk].chunk, 0, &self.io)
    }

    /// A scan of a chunk's `id`, cold or not, and a round.
    fn scan(&self, chunk: usize) {
        self.host.read(chunk, 1);
        if !self.host.resident().contains(&(chunk as u64)) {
            self.tiering.offer([self.cold(chunk)].into_iter());
        }
        self.round();
    }

    fn round(&self) {
        self.tiering.shared.merge_round(FirstReads::ByCaller).unwrap();
        assert_eq!(self.io.used_bytes(), 0, "a round leaves no read behind");
        let account = self.host.tiers[0].account();
        assert!(account.used_bytes() <= account.limit_bytes(), "over the budget");
    }

    fn scans(&self, chunks: &[usize]) -> Vec<u64> {
        chunks.iter().for_each(|chunk| self.scan(*chunk));
        self.host.resident()
    }

    fn epoch(&self) -> Vec<crate::MoveRecord> {
        self.tiering.run_epoch(EpochRequest::now("test")).unwrap().moves
    }
}

#[test]
fn lru_makes_room_by_what_was_read_longest_ago() {
    let setup = Setup::cache(THREE, PolicyKind::Lru);
    assert_eq!(setup.scans(&[0, 1, 2]), [0, 1, 2], "there is free room");
    assert_eq!(setup.host.home.reads.load(Ordering::Relaxed), 0, "nothing was read again");
    assert_eq!(setup.scans(&[0, 3]), [0, 2, 3], "1 was read before 2 and 0");
    assert_eq!(setup.scans(&[2, 4]), [2, 3, 4], "0 was read before 3 came, 2 after");
    assert_eq!(setup.scans(&[5]), [2, 4, 5]);
    // An epoch in between forgets nothing.
    setup.epoch();
    let before = setup.host.resident();
    assert_eq!(before.len(), 3);
    let after = setup.scans(&[6]);
    assert!(after.contains(&6) && after.len() == 3 && !after.contains(&2), "{before:?} {after:?}");
}

#[test]
fn lfu_makes_room_by_what_is_read_least_often() {
    let setup = Setup::cache(THREE, PolicyKind::Lfu);
    assert_eq!(setup.scans(&[0, 0, 0, 1, 1, 2]), [0, 1, 2]);
    assert_eq!(setup.scans(&[3]), [0, 1, 3], "2 was read once");
    assert_eq!(setup.scans(&[1, 4]), [0, 1, 4], "a cache takes what comes");
}

#[test]
fn other_policies_make_room_by_least_benefit_and_static_by_none() {
    let setup = Setup::cache(THREE, PolicyKind::Optimal);
    setup.host.read(1, 9);
    assert_eq!(setup.scans(&[0, 1, 2, 2, 3]), [1, 2, 3]);
    let fixed = Setup::cache(THREE, PolicyKind::Static);
    assert_eq!(fixed.scans(&[0, 1, 2, 3, 3, 3]), [0, 1, 2]);
}

#[test]
fn selective_takes_the_best_and_only_for_less() {
    let setup = Setup::new(THREE, MergeKind::Selective, PolicyKind::Optimal, 15.0);
    // 20 segments: three are among the best 15 %.
    for (chunk, reads) in [(0, 50), (1, 40), (2, 30), (3, 20), (4, 10)] {
        setup.host.read(chunk, reads);
    }
    assert_eq!(setup.scans(&[4, 3, 0, 2, 1]), [0, 1, 2], "4 and 3 are not among the three best");
    assert_eq!(setup.scans(&[3, 4]), [0, 1, 2]);
    setup.host.read(3, 100);
    assert_eq!(setup.scans(&[3]), [0, 1, 3], "2 saves least");
    let counts = &setup.tiering.metrics().merge;
    let counted = [&counts.promoted, &counts.made_room, &counts.declined].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counted, [4, 1, 4]);
}

/// Before each read all values are computed anew, as after a second: earlier reads count a little less by then.
#[test]
fn a_scan_takes_free_room_and_evicts_only_for_what_was_read_before() {
    let setup = Setup::new(THREE, MergeKind::Selective, PolicyKind::Optimal, 100.0);
    let counts = &setup.tiering.metrics().merge;
    let mut story = String::new();
    for (chunk, reads) in [(0, 6), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (9, 1), (9, 1), (3, 1), (1, 1)] {
        setup.host.read(chunk, reads - 1);
        setup.tiering.shared.merger.renumber(Some);
        setup.scan(chunk);
        let [came, left] = [&counts.promoted, &counts.made_room].map(|count| count.load(Ordering::Relaxed));
        story += &format!("{chunk} is read, {reads} times: {:?}; {came} came, {left} left\n", setup.host.resident());
    }
    insta::assert_snapshot!(story, @r"
    0 is read, 6 times: [0]; 1 came, 0 left
    1 is read, 1 times: [0, 1]; 2 came, 0 left
    2 is read, 1 times: [0, 1, 2]; 3 came, 0 left
    3 is read, 1 times: [0, 1, 2]; 3 came, 0 left
    4 is read, 1 times: [0, 1, 2]; 3 came, 0 left
    5 is read, 1 times: [0, 1, 2]; 3 came, 0 left
    9 is read, 1 times: [0, 1, 2]; 3 came, 0 left
    9 is read, 1 times: [0, 2, 9]; 4 came, 1 left
    3 is read, 1 times: [0, 3, 9]; 5 came, 2 left
    1 is read, 1 times: [0, 3, 9]; 5 came, 2 left
    ");
    assert_eq!(counts.declined.load(Ordering::Relaxed), 5);
    assert_eq!(setup.host.home.reads.load(Ordering::Relaxed), 0, "nothing was read again");
}

/// A clock that moves on while the threads look at it that get idle time only.
#[derive(Debug, Default)]
struct IdleClock(ManualClock);

impl Clock for IdleClock {
    fn now_us(&self) -> u64 {
        if std::thread::current().name() == Some("terrace-upkeep") {
            self.0.advance(Duration::from_millis(1));
        }
        self.0.now_us()
    }

    fn unix_us(&self) -> u64 {
        self.0.unix_us()
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }
}

#[test]
fn what_was_read_once_comes_in_idle_time_and_then_waits_as_long() {
    let clock = Arc::new(IdleClock::default());
    let shared: Arc<dyn Clock> = Arc::<IdleClock>::clone(&clock);
    let setup = Setup::on_clock(shared, THREE, MergeKind::Selective, PolicyKind::Optimal, 100.0);
    // What is in memory after a round, and whether it took idle time.
    let round = |chunk: usize| {
        setup.host.read(chunk, 1);
        setup.tiering.offer([setup.cold(chunk)].into_iter());
        let start_us = clock.0.now_us();
        setup.tiering.shared.merge_round(FirstReads::InIdleTime).unwrap();
        assert_eq!(setup.io.used_bytes(), 0, "a round leaves no read behind");
        (setup.host.resident(), clock.0.now_us() > start_us)
    };
    let forgotten = || setup.tiering.metrics().merge.forgotten.load(Ordering::Relaxed);
    assert_eq!(round(0), (vec![0], true));
    assert_eq!((round(1), forgotten()), ((vec![0], false), 1), "the next one has to wait");
    assert_eq!(round(1), (vec![0, 1], false), "it was read again");
    clock.0.advance(Duration::from_millis(100));
    assert_eq!((round(2), forgotten()), ((vec![0, 1, 2], true), 1));
}

#[test]
fn a_rule_speaks_for_a_segment_that_was_not_read_before() {
    let setup = Setup::new(THREE, MergeKind::Selective, PolicyKind::Optimal, 100.0);
    assert_eq!(setup.scans(&[0, 1, 2]), [0, 1, 2]);
    let rows = RuleRows::Chunks([ChunkId(3)].into_iter().collect());
    let wish = NewRule { rows, ..table_rule(RuleKind::Prefer, "dram") };
    *setup.host.rules.lock() = Arc::new(Rules::default().with(wish, 0).0);
    let resident = setup.scans(&[3]);
    assert!(resident.contains(&3) && resident.len() == 3, "{resident:?}");
}

#[test]
fn of_a_part_that_was_read_the_rest_is_read_where_that_pays() {
    let part = |setup: &Setup, chunk: usize| {
        setup.host.read(chunk, 5);
        setup.tiering.offer([ReadColumn { bytes: None, charge: None, ..setup.cold(chunk) }].into_iter());
        setup.round();
        (setup.host.resident(), setup.host.home.reads.load(Ordering::Relaxed))
    };
    let selective = Setup::new(THREE, MergeKind::Selective, PolicyKind::Optimal, 100.0);
    assert_eq!(part(&selective, 4), (vec![4], 1));
    let cache = Setup::cache(THREE, PolicyKind::Lru);
    assert_eq!(part(&cache, 4), (Vec::new(), 0), "a cache keeps what it has, and has no more");
}

#[test]
fn rules_and_modes_hold_between_epochs_too() {
    let setup = Setup::cache(2 * COLUMN_BYTES, PolicyKind::Lru);
    let wish = |kind, tier: &str, chunk: u64| NewRule {
        rows: RuleRows::Chunks([ChunkId(chunk)].into_iter().collect()),
        ..table_rule(kind, tier)
    };
    let rules = [(RuleKind::Exclude, "dram", 1), (RuleKind::Exclude, "ssd", 2), (RuleKind::Prefer, "ssd", 3)];
    let rules =
        rules.into_iter().fold(Rules::default(), |rules, (kind, tier, chunk)| rules.with(wish(kind, tier, chunk), 0).0);
    *setup.host.rules.lock() = Arc::new(rules);
    assert_eq!(setup.scans(&[2, 1, 3, 4]), [2, 4]);
    assert_eq!(setup.scans(&[5, 6]), [2, 6], "2 must not lie at home");
    *setup.host.mode.lock() = TieringMode::Advise;
    assert_eq!(setup.scans(&[7]), [2, 6]);
    *setup.host.mode.lock() = TieringMode::Auto;
    for mode in [TieringMode::Off, TieringMode::Advise] {
        setup.tiering.set_first_mode(mode);
        assert_eq!(setup.scans(&[7]), [2, 6], "{mode:?}");
    }
    setup.tiering.set_first_mode(TieringMode::Auto);
    setup.tiering.freeze().unwrap();
    assert_eq!(setup.scans(&[7]), [2, 6]);
    setup.tiering.unfreeze().unwrap();
    assert_eq!(setup.scans(&[7]), [2, 7]);
}

#[test]
fn what_nobody_has_time_for_is_forgotten_and_holds_nothing() {
    let setup = Setup::cache(THREE, PolicyKind::Lru);
    let epoch_under_way = setup.tiering.shared.controller.lock_epoch();
    setup.scan(0);
    assert!(setup.host.resident().is_empty(), "an epoch has the turn");
    drop(epoch_under_way);
    // 64 KiB may wait.
    let bytes = setup.cold(0).bytes.unwrap().len() as u64;
    let many = (0..10).flat_map(|_| (0..10).map(|chunk| setup.cold(chunk)));
    setup.tiering.offer(many);
    assert!(setup.io.used_bytes() <= 64 << 10 && setup.io.used_bytes() + bytes > 64 << 10);
    assert!(setup.tiering.metrics().merge.forgotten.load(Ordering::Relaxed) > 0);
    setup.tiering.stop();
    assert_eq!(setup.io.used_bytes(), 0);
    setup.tiering.offer([setup.cold(0)].into_iter());
    assert_eq!(setup.io.used_bytes(), 0, "it is closed");
}

#[test]
fn an_epoch_logs_a_row_for_each_direction() {
    let setup = Setup::cache(THREE, PolicyKind::Lru);
    setup.scans(&[0, 1, 2, 3]);
    let rows: Vec<_> = setup.epoch().into_iter().filter(|record| record.table == SEVERAL).collect();
    let row = |at: usize| (rows[at].from.as_str(), rows[at].to.as_str(), rows[at].segments, rows[at].bytes);
    assert_eq!((rows.len(), row(0), row(1)), (2, ("dram", "ssd", 1, 8000), ("ssd", "dram", 4, 32_000)));
    assert!(rows.iter().all(|row| row.status == MoveStatus::Done && row.column == SEVERAL));
    assert_eq!(
        rows[0].reason,
        "made room for segments promoted on read: 1 segment since the previous epoch; the least recently read first"
    );
    assert_eq!(rows[1].reason, "promoted on read: 4 segments since the previous epoch, read from ssd; merge = always");
    assert!(rows[1].benefit_us > 0.0 && rows[0].benefit_us < 0.0);
    let unweighed = "no price and no second tier was weighed";
    assert_eq!(
        [&rows[0].condition, &rows[1].condition],
        [
            &format!("a segment stays on dram when it is read more recently than others there; {unweighed}"),
            &format!("a segment stays on ssd when it is not read as a whole; {unweighed}, merge = always")
        ]
    );
    assert!(rows.iter().all(|row| row.price_ns_per_byte.is_none() && row.runner_up.is_none()));
    let numbers: Vec<u32> = setup.host.saved.lock().epochs[0].moves.iter().map(|record| record.number).collect();
    assert_eq!(numbers, (0..numbers.len() as u32).collect::<Vec<_>>());
    assert!(setup.epoch().iter().all(|record| record.table != SEVERAL), "each is logged once");
}

#[test]
fn what_was_weighed_is_in_the_row() {
    let setup = Setup::new(THREE, MergeKind::Selective, PolicyKind::Optimal, 100.0);
    [(0, 50), (1, 40), (2, 30), (3, 60)].into_iter().for_each(|(chunk, reads)| setup.host.read(chunk, reads));
    assert_eq!(setup.scans(&[0, 1, 2]), [0, 1, 2]);
    assert_eq!(setup.scans(&[3]), [0, 1, 3]);
    let rows: Vec<_> = setup.epoch().into_iter().filter(|record| record.table == SEVERAL).collect();
    let [left, came] = &rows[..] else { panic!("{rows:?}") };
    // Of four segments that came, one needed room: its price is the benefit of the segment that left.
    let paid_ns = -left.benefit_us * 1e3 / came.bytes as f64;
    assert!((came.price_ns_per_byte.unwrap() - paid_ns).abs() < 0.05 * paid_ns, "{came:?} {left:?}");
    let margin_us = came.runner_up_us.unwrap();
    assert_eq!(came.runner_up.as_deref(), Some("ssd"));
    assert!(margin_us > 0.0 && margin_us < came.benefit_us + left.benefit_us, "its copy costs too: {came:?}");
    let least = "a segment stays on ssd when it saves no more on dram than the evicted segments lose, plus its copy; the lowest";
    assert!(came.condition.starts_with(least), "{}", came.condition);
    assert!(
        left.condition.starts_with("a segment stays on dram when it saves more per byte than others there; of these")
    );
    assert_eq!((left.price_ns_per_byte, &left.runner_up), (None, &None));
}

#[test]
fn what_came_after_the_last_epoch_is_logged_at_the_stop() {
    let setup = Setup::cache(THREE, PolicyKind::Lru);
    setup.scans(&[0]);
    let before = setup.epoch().len();
    setup.scans(&[1, 2, 3]);
    setup.tiering.stop();
    setup.tiering.checkpoint().unwrap();
    setup.tiering.checkpoint().unwrap();
    let moves = setup.host.saved.lock().epochs[0].moves.clone();
    let late: Vec<_> =
        moves[before..].iter().map(|row| (row.number as usize, row.segments, row.reason.as_str())).collect();
    let since = "after this epoch, until the server stopped";
    assert_eq!(
        late,
        [
            (
                before,
                1,
                &*format!("made room for segments promoted on read: 1 segment {since}; the least recently read first")
            ),
            (before + 1, 3, &*format!("promoted on read: 3 segments {since}, read from ssd; merge = always")),
        ]
    );
}

#[test]
fn heat_of_this_moment_is_that_of_the_last_look_and_the_reads_since() {
    let host = FakeHost::new(THREE, Arc::default());
    let chunk = &host.chunks[3].chunk;
    let key = SegmentKey::for_segment(chunk, &chunk.segments[0]);
    let segment = &chunk.segments[0];
    let mut heat = Heat::default();
    for (reads, expected) in [(4, 4.0), (0, 2.0), (7, 8.0)] {
        host.read(3, reads);
        assert_eq!(heat.new_accesses(host.chunks.iter().map(|entry| &entry.chunk)), u64::from(reads));
        heat.observe(host.chunks.iter().map(|entry| &entry.chunk), 1.0);
        assert_eq!(heat.sums(&key).total(), expected);
        assert_eq!(heat.sums_now(chunk, segment), heat.sums(&key));
    }
    host.read(3, 2);
    assert_eq!(heat.sums_now(chunk, segment).total(), 10.0);
    assert_eq!(
        Heat::default().sums_now(chunk, segment).total(),
        13.0,
        "of a chunk that was never looked at, its reads"
    );
    assert_eq!(heat.clone().scaled_to_epochs(3.0).sums(&key).total(), heat.get(&key).total() * 3.0);
}

#[test]
fn time_between_epochs_is_counted_in_reads() {
    let host = FakeHost::new(THREE, Arc::default());
    let chunk = |at: usize| &host.chunks[at].chunk;
    let mut known = Heat::default();
    host.read(0, 60);
    host.read(2, 30);
    known.observe(host.chunks.iter().map(|entry| &entry.chunk), 3.0);
    let mut recent = recent::RecentHeat::default();
    let mut interval = |reads: &[(usize, u32)]| {
        reads.iter().for_each(|(chunk, count)| host.read(*chunk, *count));
        let room = recent::MemoryRoom { bytes: THREE, form: FormChoice::Plain };
        recent.end_interval(&host.tables(), room, None, 3.0, &known);
        let heat = |at: usize| recent.heat(&SegmentKey::for_segment(chunk(at), &chunk(at).segments[0])).total();
        [heat(0), heat(1), heat(2)]
    };
    let near = |found: [f32; 3], expected: [f32; 3]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1.0), "{found:?} is not {expected:?}");
    };
    near(interval(&[]), [60.0, 0.0, 30.0]);
    (0..50).for_each(|_| near(interval(&[]), [60.0, 0.0, 30.0]));
    // Three of the larger segments fit, so a read counts half after some 100 others. All together stay as hot as epochs
    // say.
    near(interval(&[(1, 96)]), [28.9, 46.6, 14.5]);
    (0..12).for_each(|_| _ = interval(&[(1, 96)]));
    near(interval(&[(1, 96)]), [0.0, 90.0, 0.0]);
    near(interval(&[(0, 1_000_000)]), [90.0, 0.0, 0.0]);
}

#[test]
fn the_read_that_offers_a_segment_can_be_left_out_of_its_heat() {
    let host = FakeHost::new(THREE, Arc::default());
    let segment = |at: usize| (&host.chunks[at].chunk, &host.chunks[at].chunk.segments[0]);
    let mut known = Heat::default();
    host.read(0, 60);
    known.observe(host.chunks.iter().map(|entry| &entry.chunk), 3.0);
    let mut recent = recent::RecentHeat::default();
    let (chunk, read) = segment(1);
    assert!(recent.was_read_before(chunk, read), "nothing is known yet");
    assert_eq!(recent.without_last_read(&recent.heat_now(chunk, read)).total(), 0.0);
    let room = recent::MemoryRoom { bytes: THREE, form: FormChoice::Plain };
    recent.end_interval(&host.tables(), room, None, 3.0, &known);
    let mut shares = Vec::new();
    for reads in 1..4 {
        host.read(1, 1);
        let now = recent.heat_now(chunk, read);
        shares.push((recent.without_last_read(&now).total() / now.total() * f32::from(reads as u8)).round());
        assert_eq!(recent.was_read_before(chunk, read), reads > 1);
    }
    assert_eq!(shares, [0.0, 1.0, 2.0]);
    let (chunk, read) = segment(0);
    assert!(recent.was_read_before(chunk, read), "the epochs know it");
}

#[test]
fn budgets_hold_while_readers_writers_and_epochs_are_at_work() {
    for (kind, enough) in [(MergeKind::Always, 50), (MergeKind::Selective, 5)] {
        let setup = Setup::new(THREE, kind, PolicyKind::Lru, 50.0);
        setup.tiering.shared.merger.offers().close();
        setup.tiering.start(std::time::Duration::from_millis(3)).unwrap();
        assert!(setup.tiering.takes_offers());
        let stop = AtomicBool::new(false);
        let account = setup.host.tiers[0].account();
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let setup = &setup;
                let stop = &stop;
                let mut rng = StdRng::seed_from_u64(reader);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let chunk = rng.random_range(0..10);
                        setup.host.read(chunk, 1);
                        let segment = &setup.host.chunks[chunk].chunk.segments[0];
                        match segment.resident.load_full() {
                            Some(resident) => held.push(resident.column.clone()),
                            None => setup.tiering.offer([setup.cold(chunk)].into_iter()),
                        }
                        let most = rng.random_range(0..3);
                        held.truncate(most);
                        std::thread::yield_now();
                    }
                });
            }
            scope.spawn(|| {
                let start = std::time::Instant::now();
                // Until enough happened, however slow the machine is.
                let done = || setup.tiering.metrics().merge.promoted.load(Ordering::Relaxed) >= enough;
                while !done() && start.elapsed().as_secs() < 30 {
                    let copy = setup.host.tiers[0].store(&[0; 4096]);
                    let before = account.used_bytes();
                    assert!(before <= account.limit_bytes(), "{before}");
                    drop(copy);
                    // Another segment becomes hot.
                    let hot = start.elapsed().as_millis() as usize / 20 % 10;
                    setup.host.chunks[hot].chunk.segments[0].counters.record(Pattern::Sequential, 1000);
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                stop.store(true, Ordering::Relaxed);
            });
        });
        setup.tiering.stop();
        assert!(
            setup.tiering.metrics().merge.promoted.load(Ordering::Relaxed) >= enough,
            "{kind:?}: too little happened"
        );
        assert!(account.peak_bytes() <= THREE, "{} at the peak", account.peak_bytes());
        assert_eq!(setup.io.used_bytes(), 0);
    }
}
