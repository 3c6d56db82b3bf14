#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use parking_lot::Mutex;
use terrace_model::clock::ManualClock;
use terrace_model::{Account, ChunkId, TierId};
use terrace_storage::migrate::testing::FIRST_ID;
use terrace_storage::table::RuleRows;

use super::*;
use crate::epoch::SegmentInput;
use crate::hysteresis::Direction;
use crate::order::{Order, OrderReport, Scope};
use crate::record::MoveStatus;
use crate::testing::{COLUMN_BYTES, FakeHost, Saved};

/// Room for three `id` columns of 8,000 bytes.
const THREE: u64 = 3 * COLUMN_BYTES;

#[test]
fn the_hottest_segments_come_and_leave_when_the_budget_shrinks() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    (2..7).for_each(|chunk| host.read(chunk, 10 * chunk as u32));
    let preview = tiering.run_epoch(EpochRequest::dry_run("a look")).unwrap();
    assert_eq!((preview.epoch.moves, host.resident().len()), (3, 0), "a dry run moves nothing");
    assert!(host.saved.lock().epochs.is_empty() && host.saved.lock().heat.is_empty());
    assert!(tiering.with_heat(Heat::is_empty));
    assert!(preview.moves.iter().all(|m| m.status == MoveStatus::Planned));

    let report = tiering.run_epoch(EpochRequest::now("requested by test")).unwrap();
    assert_eq!(host.resident(), [4, 5, 6]);
    assert_eq!((report.epoch.id, report.epoch.moves_done, report.epoch.moves_skipped), (1, 3, 0));
    assert_eq!((report.moves[0].table.as_str(), report.moves[0].column.as_str()), ("public.t", "id"));
    assert_eq!(report.moves.iter().map(|m| m.chunk).collect::<Vec<_>>(), [6, 5, 4], "best benefit per byte first");
    assert_eq!(tiering.metrics().moves(TierId(1), TierId(0)), 3);
    assert_eq!(host.saved.lock().epochs, [report]);
    let json = serde_json::to_string(&host.saved.lock().epochs[0]).unwrap();
    assert_eq!(serde_json::from_str::<EpochReport>(&json).unwrap().moves.len(), 3);

    tiering.set_budget("dram", COLUMN_BYTES).unwrap();
    let reader = host.chunks[4].chunk.segments[0].resident.load_full();
    let report = tiering.run_epoch(EpochRequest::now("smaller")).unwrap();
    assert_eq!((host.resident(), report.epoch.id), (vec![6], 2));
    assert!(report.moves.iter().all(|m| m.reason.contains("over its budget")), "{report:?}");
    assert_eq!(host.tiers[0].account().used_bytes(), 2 * COLUMN_BYTES, "one is still being read");
    drop(reader);
    assert_eq!(host.tiers[0].account().used_bytes(), COLUMN_BYTES);
}

#[test]
fn heat_survives_a_restart_and_the_loop_brings_the_hottest_back_at_once() {
    let saved = Arc::default();
    let host = FakeHost::new(THREE, Arc::clone(&saved));
    host.read(7, 50);
    host.tiering().checkpoint().unwrap();
    let host = FakeHost::new(THREE, Arc::clone(&saved));
    let tiering = host.tiering();
    assert_eq!(tiering.restore().unwrap(), 1);
    assert!(saved.lock().calibration.is_some());
    tiering.start(Duration::from_secs(3600)).unwrap();
    while saved.lock().epochs.is_empty() {
        std::thread::yield_now();
    }
    tiering.stop();
    assert_eq!((host.resident(), saved.lock().epochs[0].epoch.trigger.as_str()), (vec![7], "restart"));
    assert!(matches!(tiering.run_epoch(EpochRequest::now("late")), Err(Error::Cancelled)));
}

/// A virtual clock that calls `look` on another thread while a thread sleeps.
struct ObservedClock<F> {
    clock: ManualClock,
    look: F,
}

impl<F> std::fmt::Debug for ObservedClock<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.clock.fmt(f)
    }
}

impl<F: Fn() + Send + Sync> Clock for ObservedClock<F> {
    fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn unix_us(&self) -> u64 {
        self.clock.unix_us()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::scope(|scope| scope.spawn(&self.look).join().unwrap());
        self.clock.sleep(duration);
    }
}

#[test]
fn after_a_restart_the_hottest_return_first_at_the_rate_and_readers_are_answered_meanwhile() {
    let saved: Arc<Mutex<Saved>> = Arc::default();
    let host = FakeHost::new(6 * COLUMN_BYTES, Arc::clone(&saved)).with_usual_costs();
    let reads = [3, 9, 1, 7, 10, 2, 5, 8, 4, 6];
    reads.iter().enumerate().for_each(|(chunk, tens)| host.read(chunk, 10 * tens));
    host.tiering().checkpoint().unwrap();

    let host = FakeHost::new(6 * COLUMN_BYTES, Arc::clone(&saved));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let io = Account::new("io", u64::MAX);
    let look = {
        let host = Arc::clone(&host);
        let seen = Arc::clone(&seen);
        move || {
            for chunk in 0..10 {
                assert_eq!(host.first_id(chunk, &io), FIRST_ID + chunk as i64 * 1000);
            }
            seen.lock().push(host.resident());
        }
    };
    let clock = Arc::new(ObservedClock { clock: ManualClock::default(), look });
    let rate = TieringOptions { background_bytes_per_s: Some(4000), ..TieringOptions::default() };
    let tiering = host.tiering_on(clock, rate);
    assert_eq!(tiering.restore().unwrap(), 1);
    tiering.start(Duration::from_secs(3600)).unwrap();
    while saved.lock().epochs.is_empty() {
        std::thread::yield_now();
    }
    tiering.stop();
    let report = saved.lock().epochs[0].clone();
    assert_eq!((report.epoch.trigger.as_str(), report.epoch.moves_done), ("restart", 6));
    // 8,000 bytes at 4,000 a second.
    let ended: Vec<_> = report.moves.iter().map(|record| (record.chunk, record.unix_us / 1_000_000)).collect();
    assert_eq!(ended, [(4, 0), (1, 2), (7, 4), (3, 6), (9, 8), (6, 10)]);
    // Readers saw every state in between, and got the right values.
    let mut seen = seen.lock().clone();
    seen.dedup();
    assert_eq!(seen, [vec![4], vec![1, 4], vec![1, 4, 7], vec![1, 3, 4, 7], vec![1, 3, 4, 7, 9]]);
}

#[test]
fn holds_survive_a_restart() {
    let saved: Arc<Mutex<Saved>> = Arc::default();
    let host = FakeHost::new(THREE, Arc::clone(&saved)).with_usual_costs();
    let tiering = host.tiering();
    for round in [[0, 1, 2], [3, 4, 5]] {
        round.into_iter().for_each(|chunk| host.read(chunk, 500));
        tiering.run_epoch(EpochRequest::now("test")).unwrap();
    }
    assert_eq!(host.resident(), [3, 4, 5]);
    let directions = |host: &Arc<FakeHost>, tiering: &Tiering| {
        let (mut inputs, _) = tiering.shared.inputs(host.as_ref(), &host.tables(), None).unwrap();
        tiering.shared.planner.mark(&mut inputs, 3);
        let direction = |segment: &SegmentInput| Some((segment.key.chunk.0, segment.hysteresis?.direction));
        inputs.segments.iter().filter_map(direction).collect::<Vec<_>>()
    };
    let before = directions(&host, &tiering);
    assert!(before.contains(&(3, Direction::Rose)), "{before:?}");
    drop(tiering);
    let restart = || {
        let host = FakeHost::new(THREE, Arc::clone(&saved));
        let tiering = host.tiering();
        assert_eq!(tiering.restore().unwrap(), 1);
        directions(&host, &tiering)
    };
    assert_eq!(restart(), before);
    // A catalog of an older version, and a damaged blob, lose the move history and nothing else.
    for blob in [None, Some(vec![7; 3])] {
        saved.lock().move_history = blob;
        assert_eq!(restart(), []);
    }
}

#[test]
fn the_switch_stops_the_loop_but_not_the_user() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    tiering.set_mode(TieringMode::Off).unwrap();
    tiering.start(Duration::from_millis(1)).unwrap();
    host.read(1, 9);
    for _ in 0..3 {
        tiering.run_epoch(EpochRequest::now("requested")).unwrap();
    }
    let triggers: Vec<_> = host.saved.lock().epochs.iter().map(|report| report.epoch.trigger.clone()).collect();
    assert_eq!(triggers, ["requested"; 3]);
    tiering.set_first_mode(TieringMode::Auto);
    while host.saved.lock().epochs.len() < 4 {
        std::thread::yield_now();
    }
    drop(tiering);
    assert_eq!(host.resident(), [1]);
}

#[test]
fn budgets_of_unknown_tiers_and_above_the_maximum_are_refused() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    assert!(matches!(tiering.set_budget("tape", 1), Err(Error::NotFound { kind: "tier", .. })));
    assert!(matches!(tiering.set_budget("dram", (1 << 20) + 1), Err(Error::Invalid(_))));
    tiering.set_budget("dram", 1 << 20).unwrap();
    assert_eq!(host.tiers[0].account().limit_bytes(), 1 << 20);
}

fn scope(first: u64, last: u64) -> Scope {
    Scope { columns: vec![terrace_model::ColumnId(0)], rows: RuleRows::Chunks((first..=last).map(ChunkId).collect()) }
}

fn outcomes(report: &OrderReport) -> Vec<(String, u64)> {
    report.outcome.iter().map(|outcome| (outcome.what.clone(), outcome.segments)).collect()
}

#[test]
fn advice_is_logged_and_moves_nothing_and_off_does_not_weigh() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    (2..7).for_each(|chunk| host.read(chunk, 10 * chunk as u32));
    *host.mode.lock() = TieringMode::Advise;
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!((report.epoch.moves, report.epoch.moves_proposed, host.resident().len()), (0, 3, 0));
    assert!(report.moves.iter().all(|m| m.status == MoveStatus::Proposed && m.to == "dram"), "{report:?}");
    *host.mode.lock() = TieringMode::Off;
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!((report.epoch.segments, report.moves.len(), host.resident().len()), (0, 0, 0));
    *host.mode.lock() = TieringMode::Auto;
    tiering.set_mode(TieringMode::Advise).unwrap();
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!((report.epoch.moves_proposed, host.resident().len()), (3, 0));
    let why = &tiering.explain("public.t", &scope(6, 6)).unwrap()[0].why;
    assert!(why.starts_with("tiering is advise; with tiering = auto: goes from ssd to dram"), "{why}");
    // The mode outlives the process; the configuration's does not.
    tiering.set_first_mode(TieringMode::Auto);
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(host.resident(), [4, 5, 6]);
    let again = host.tiering();
    again.restore().unwrap();
    assert_eq!(again.control().mode, TieringMode::Advise);
}

#[test]
fn nothing_moves_while_frozen() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    host.read(3, 10);
    tiering.freeze().unwrap();
    let refusal = |result: Result<EpochReport>| result.unwrap_err().to_string();
    assert!(refusal(tiering.run_epoch(EpochRequest::now("test"))).contains("UNFREEZE PLACEMENT"));
    let warm = Order::WarmUp { table: "public.t".into(), scope: Scope::all() };
    assert!(tiering.order(&warm).unwrap_err().to_string().contains("frozen"));
    assert_eq!(tiering.run_epoch(EpochRequest::dry_run("test")).unwrap().epoch.moves, 1);
    let again = host.tiering();
    again.restore().unwrap();
    assert!(again.control().frozen_unix_us.is_some() && !again.is_enabled());
    tiering.unfreeze().unwrap();
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(host.resident(), [3]);
}

#[test]
fn an_epoch_under_way_is_cancelled_after_the_move_it_is_at() {
    let host = FakeHost::new(THREE, Arc::default());
    let rate = TieringOptions { background_bytes_per_s: Some(4000), ..TieringOptions::default() };
    let tiering = host.tiering_with(rate);
    let none = "no epoch is under way, so there is nothing to cancel";
    let refused = |tiering: &Tiering| tiering.cancel_epoch().unwrap_err().to_string();
    assert!(refused(&tiering).contains(none), "{}", refused(&tiering));
    (2..7).for_each(|chunk| host.read(chunk, 10 * chunk as u32));
    // The second move waits for seconds.
    let slow = EpochRequest { is_paced: true, ..EpochRequest::now("test") };
    let report = std::thread::scope(|scope| {
        let epoch = scope.spawn(|| tiering.run_epoch(slow).unwrap());
        while host.resident().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!((tiering.under_way(), tiering.cancel_epoch().unwrap()), (Some(1), 1));
        epoch.join().unwrap()
    });
    assert_eq!((report.epoch.moves_done, report.epoch.moves_skipped, host.resident()), (1, 2, vec![6]));
    assert!(report.moves.iter().skip(1).all(|record| record.why.as_deref() == Some("cancelled")), "{report:?}");
    assert!(tiering.under_way().is_none() && refused(&tiering).contains(none));
    tiering.run_epoch(EpochRequest::dry_run("test")).unwrap();
    // The cancellation does not affect the next epoch.
    assert_eq!(tiering.run_epoch(EpochRequest::now("test")).unwrap().epoch.moves_done, 2);
}

#[test]
fn orders_bring_back_warm_up_and_roll_back_within_the_budget() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    (2..7).for_each(|chunk| host.read(chunk, 10 * chunk as u32));
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(host.resident(), [4, 5, 6]);
    let bring =
        |first, last| Order::BringBack { table: "public.t".into(), scope: scope(first, last), tier: "dram".into() };
    let report = tiering.order(&bring(0, 1)).unwrap();
    assert_eq!(host.resident(), [0, 1, 6], "the coolest of the others make room, and the hottest stays");
    assert_eq!(outcomes(&report), [("moved to dram".into(), 2), ("made room: moved to ssd".into(), 2)]);
    assert_eq!((report.epoch.id, report.epoch.trigger.as_str()), (2, "bring public.t to dram"));
    assert!(report.moves.iter().any(|m| m.reason == "ordered: bring public.t to dram"), "{report:?}");
    let refused = tiering.order(&bring(0, 3)).unwrap_err().to_string();
    assert!(
        refused.contains("need 32.0 KiB on dram, the budget is 24.0 KiB") && refused.contains("8.0 KiB too much"),
        "{refused}"
    );
    assert_eq!(host.resident(), [0, 1, 6]);
    let nothing = tiering.order(&bring(90, 91)).unwrap_err().to_string();
    assert!(nothing.contains("no segment is in this scope"), "{nothing}");

    // No statement reads 0 and 1: a warm-up takes their room, but no more room than pays.
    let warm = Order::WarmUp { table: "public.t".into(), scope: scope(7, 9) };
    let report = tiering.order(&warm).unwrap();
    assert_eq!(host.resident().len(), 3);
    assert!(
        host.resident().contains(&6) && !host.resident().contains(&0) && !host.resident().contains(&1),
        "{report:?}"
    );
    assert!(
        outcomes(&report).contains(&("not moved: memory is full of segments that are read more".into(), 1)),
        "{report:?}"
    );

    let report = tiering.order(&Order::RollBack { epoch: 1 }).unwrap();
    assert_eq!(host.resident(), [4, 5, 6]);
    assert_eq!(report.epoch.trigger, "roll back to epoch 1");
    assert!(outcomes(&report).contains(&("already on dram".into(), 1)), "{report:?}");
    let missing = tiering.order(&Order::RollBack { epoch: 77 }).unwrap_err().to_string();
    assert!(
        missing.contains("placement of epoch '77' does not exist; the store keeps those of epochs 1 to 4"),
        "{missing}"
    );
}

#[test]
fn what_moves_bring_is_counted_afterwards() {
    let saved: Arc<Mutex<Saved>> = Arc::default();
    let host = FakeHost::new(THREE, Arc::clone(&saved));
    let tiering = host.tiering();
    (0..2).for_each(|chunk| host.read(chunk, 8));
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(host.resident(), [0, 1]);
    let moves = || saved.lock().epochs[0].moves.clone();
    assert!(moves().iter().all(|m| m.measured_us.is_none() && m.condition.contains("read less than")), "{:?}", moves());
    // One segment is read as before, the other no longer.
    for epoch in 1..=4_u32 {
        host.read(0, 8);
        tiering.run_epoch(EpochRequest::now("test")).unwrap();
        assert!(moves().iter().all(|m| m.measured_epochs == epoch));
    }
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs();
    let move_of = |chunk: u64| moves().into_iter().find(|m| m.chunk == chunk).unwrap();
    assert!(near(move_of(0).measured_us.unwrap(), move_of(0).benefit_us), "{:?}", move_of(0));
    assert_eq!(move_of(1).measured_us, Some(0.0));
    let epoch = saved.lock().epochs[0].epoch.clone();
    assert!(near(epoch.measured_us.unwrap() * 2.0, epoch.predicted_us), "{epoch:?}");
    assert!(near(epoch.prediction_error.unwrap(), 0.5) && tiering.metrics().last_prediction_error.get() > 0.0);
    // After the epochs within which it had to pay back, the measurement is over.
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(move_of(0).measured_epochs, 4);
}

#[test]
fn the_second_bound_keeps_no_move_and_no_epoch_waiting() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = Arc::new(host.tiering());
    (2..7).for_each(|chunk| host.read(chunk, 10 * chunk as u32));
    let looks = Arc::new(Mutex::new(Vec::new()));
    let look = {
        let (tiering, host, looks) = (Arc::downgrade(&tiering), Arc::downgrade(&host), Arc::clone(&looks));
        move || {
            let (Some(tiering), Some(host)) = (tiering.upgrade(), host.upgrade()) else { return };
            let may_begin = || tiering.shared.controller.try_lock_epoch().is_some();
            let is_free = std::thread::scope(|scope| scope.spawn(may_begin).join().unwrap());
            looks.lock().push((is_free, tiering.under_way(), host.resident()));
        }
    };
    *host.on_load_epoch.lock() = Some(Box::new(look));
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(*looks.lock(), [(true, None, vec![4, 5, 6])]);
    assert_eq!(report.epoch.certified_by.as_deref(), Some("microlp"));
    assert!(report.epoch.certified_gap.is_some_and(|gap| (0.0..1.0).contains(&gap)), "{report:?}");
    assert_eq!(host.saved.lock().epochs, [report]);
    // A preview is not saved; orders are, and what is measured later of the moves keeps the bound.
    let preview = tiering.run_epoch(EpochRequest::dry_run("test")).unwrap();
    assert!(preview.epoch.certified_gap.is_some() && looks.lock().len() == 1);
    let order = Order::WarmUp { table: "public.t".into(), scope: Scope::all() };
    assert!(tiering.order(&order).unwrap().epoch.certified_gap.is_some());
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    let free: Vec<bool> = looks.lock().iter().map(|(is_free, ..)| *is_free).collect();
    assert_eq!(free, [true; 3]);
    let saved = host.saved.lock();
    assert!(saved.epochs.iter().all(|report| report.epoch.certified_gap.is_some()), "{:?}", saved.epochs);
    assert!(saved.epochs[0].epoch.measured_us.is_some(), "{:?}", saved.epochs[0]);
}

/// The time of day is only recorded; epochs, hysteresis and measurements use a monotonic clock.
#[test]
fn a_clock_that_jumps_changes_nothing_but_the_dates() {
    let course = |jumps: bool| {
        let host = FakeHost::new(THREE, Arc::default()).with_usual_costs();
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(86_400));
        let tiering = host.tiering_on(Arc::clone(&clock) as _, TieringOptions::default());
        for round in 0..12_usize {
            if jumps {
                let hour = 3_600_000_000_i64;
                clock.jump([0, -1_000_000 * hour, 20 * hour, -3 * hour, i64::MAX / 4][round % 5]);
            }
            (0..3).for_each(|near| host.read((round / 4 * 3 + near) % 10, 20));
            clock.advance(Duration::from_secs(60));
            tiering.run_epoch(EpochRequest::now("test")).unwrap();
        }
        let saved = host.saved.lock();
        let epochs: Vec<_> = saved.epochs.iter().map(|report| (report.epoch.id, report.epoch.moves_done)).collect();
        let moves: Vec<_> = saved.epochs.iter().flat_map(|report| &report.moves).collect();
        let records: Vec<_> = moves.iter().map(|m| (m.chunk, m.to.clone(), m.reason.clone(), m.measured_us)).collect();
        (host.resident(), epochs, records)
    };
    let steady = course(false);
    assert!(steady.2.len() > 6 && steady.2.iter().any(|(.., measured)| measured.is_some()), "{steady:?}");
    assert_eq!(course(true), steady);
}

#[test]
fn a_home_that_fails_is_not_planned_with_and_its_moves_go_on_after_a_try() {
    let host = FakeHost::new(THREE, Arc::default()).with_usual_costs();
    let clock = Arc::new(ManualClock::default());
    let tiering = host.tiering_on(Arc::clone(&clock) as _, TieringOptions::default());
    (0..10).for_each(|chunk| host.read(chunk, 10 * (chunk + 1) as u32));
    let epoch = || tiering.run_epoch(EpochRequest::now("test")).unwrap();
    host.home.fails.store(true, Ordering::Relaxed);
    let report = epoch();
    assert_eq!((report.epoch.moves, report.epoch.moves_skipped, host.resident().len()), (3, 3, 0));
    assert!(report.moves.iter().all(|m| m.why.as_deref().is_some_and(|why| why.contains("nvme0n1"))), "{report:?}");
    let failing = tiering.failing("ssd").unwrap();
    assert_eq!((tiering.failing("dram"), failing.retry_unix_us), (None, clock.unix_us() + 30_000_000));
    assert_eq!(epoch().epoch.moves, 0, "nothing is planned that could not be done");
    let why = &tiering.explain("public.t", &scope(9, 9)).unwrap()[0].why;
    assert!(why.ends_with("; moves to and from ssd are paused because the device fails"), "{why}");
    clock.advance(Duration::from_secs(30));
    let report = epoch();
    let tried = |m: &&MoveRecord| !m.why.as_deref().unwrap_or_default().contains("is failing");
    assert_eq!((report.epoch.moves_skipped, report.moves.iter().filter(tried).count()), (3, 1), "{report:?}");
    assert!(report.moves[2].why.as_deref().unwrap().ends_with("tried again in 60 s"), "{report:?}");
    clock.advance(Duration::from_secs(60));
    host.home.fails.store(false, Ordering::Relaxed);
    assert_eq!((epoch().epoch.moves_done, host.resident()), (3, vec![7, 8, 9]));
    assert_eq!(tiering.failing("ssd"), None);
    // While the device fails again, segments stay in memory, but a lower budget is obeyed all the same.
    host.home.fails.store(true, Ordering::Relaxed);
    tiering.set_budget("dram", COLUMN_BYTES).unwrap();
    epoch();
    assert_eq!(host.resident(), [9]);
}
