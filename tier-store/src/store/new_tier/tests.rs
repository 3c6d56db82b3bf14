//! Tiers that are added, drained and dropped, on a real store. `TERRACE_SEED=n` replays one seed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{Pattern, TierKind};
use terrace_placement::{EpochRequest, MergeKind, MoveStatus, Order, Scope, TierState};
use terrace_storage::table::{NewRule, RuleKind, RuleRows, Table, TableVersion};
use terrace_storage::tier::reader::Admission;
use terrace_test_support::depth::{by_depth, is_deep};
use terrace_test_support::seeds::{SeedReport, seeds};

use super::super::tests::{definition, read, rows};
use super::*;
use crate::StoreOptions;
use crate::store::NvmOptions;

const MIB: u64 = 1 << 20;
const ROWS: i64 = 8_000;
/// A device of 50 bytes per microsecond: slower than memory on any machine.
const SLOW: Limiter = Limiter { bandwidth_ratio: 0.01, base_bytes_per_us: 5_000.0, random_latency_ns: 0 };

fn options(dir: &Path, has_nvm: bool) -> StoreOptions {
    let mut options = StoreOptions::new(dir);
    options.dram_budget_bytes = 0;
    options.compaction_bytes_per_s = 0;
    options.tiering.patience = Duration::from_millis(10);
    let nvm = NvmOptions { backing: NvmBacking::Emulated, capacity_bytes: 4 * MIB, limiter: None };
    options.nvm = has_nvm.then_some(nvm);
    options
}

/// A table of 8 chunks of 1,000 rows.
fn filled_table(store: &Arc<Store>) -> Arc<Table> {
    let table = store.create_table(definition("t")).unwrap();
    store.insert(&table, &[rows(0..ROWS)]).unwrap();
    store.seal(&table).unwrap();
    table
}

fn bring_back(store: &Store, tier: &str) -> Result<u64> {
    let scope = Scope { columns: Vec::new(), rows: RuleRows::All };
    let order = Order::BringBack { table: "public.t".into(), scope, tier: tier.into() };
    Ok(store.tiering().order(&order)?.epoch.moves_done.into())
}

fn epoch(store: &Store) -> u32 {
    store.tiering().run_epoch(EpochRequest::now("test")).unwrap().epoch.moves_done
}

fn new(name: &str, capacity_bytes: u64, limiter: Option<Limiter>) -> NewTier {
    NewTier { name: name.into(), backing: NvmBacking::Emulated, capacity_bytes, budget_bytes: None, limiter }
}

fn names(store: &Store) -> Vec<String> {
    store.tier_infos().into_iter().map(|tier| tier.name).collect()
}

/// State, segments and bytes used of a tier.
fn state(store: &Store, name: &str) -> (TierState, u64, u64) {
    let found = store.tier_infos().into_iter().find(|tier| tier.name == name).unwrap();
    (found.state, found.segments, found.used_bytes)
}

fn refused<T: std::fmt::Debug>(result: Result<T>, words: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

fn check_all_rows(store: &Store, table: &Table) {
    assert_eq!(read(store, &table.version()).unwrap(), rows(0..ROWS));
}

#[test]
fn a_tier_is_drained_dropped_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), true)).unwrap();
    let table = filled_table(&store);
    assert_eq!(bring_back(&store, "nvm").unwrap(), 16);
    assert_eq!((state(&store, "nvm").0, state(&store, "nvm").1), (TierState::Active, 16));
    let tiering = store.tiering();
    refused(tiering.drop_tier("nvm"), "holds 16 segments");
    refused(tiering.drop_tier("dram"), "process memory");
    refused(tiering.drain_tier("ssd"), "home");
    refused(tiering.drain_tier("tape"), "the tiers are dram, nvm, ssd");

    tiering.drain_tier("nvm").unwrap();
    assert_eq!(state(&store, "nvm").0, TierState::Draining);
    refused(bring_back(&store, "nvm"), "drained");
    refused(tiering.drop_tier("nvm"), "still holds 16 segments");
    // Resume the tier: no segment has moved.
    tiering.resume_tier("nvm").unwrap();
    assert_eq!((state(&store, "nvm").0, state(&store, "nvm").1), (TierState::Active, 16));
    tiering.drain_tier("nvm").unwrap();
    tiering.drain_tier("nvm").unwrap();

    // A reader uses a copy that is about to be dropped.
    let reader = table.version().chunks[0].chunk.segments[1].resident.load_full().unwrap();
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    let done = report.moves.iter().filter(|m| m.status == MoveStatus::Done);
    assert_eq!(done.clone().count(), 16);
    assert!(done.clone().all(|m| (m.from.as_str(), m.reason.as_str()) == ("nvm", "nvm is drained")), "{report:?}");
    assert_eq!((state(&store, "nvm").0, state(&store, "nvm").1), (TierState::Draining, 0));
    refused(tiering.drop_tier("nvm"), "statements still read");
    assert_eq!(reader.column.widened().unwrap().len(), 1000);
    drop(reader);
    assert_eq!(state(&store, "nvm"), (TierState::Drained, 0, 0));
    let pool = Arc::downgrade(&store.memory_tiers()[1]);
    tiering.drop_tier("nvm").unwrap();
    assert_eq!(names(&store), ["dram", "ssd"]);
    assert!(pool.upgrade().is_none(), "the pool is unmapped");
    refused(tiering.drop_tier("nvm"), "the tiers are dram, ssd");
    check_all_rows(&store, &table);
    epoch(&store);

    store.add_tier(new("nvm", 4 * MIB, None)).unwrap();
    assert_eq!(names(&store), ["dram", "nvm", "ssd"]);
    assert_eq!(bring_back(&store, "nvm").unwrap(), 16);
    check_all_rows(&store, &table);
    assert_eq!(tiering.calibration().unwrap().tiers.len(), 3);
}

#[test]
fn copies_know_their_tier_when_a_faster_one_comes_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), true);
    options.nvm = Some(NvmOptions { backing: NvmBacking::Emulated, capacity_bytes: 2 * MIB, limiter: Some(SLOW) });
    let store = Store::open(options).unwrap();
    let table = filled_table(&store);
    bring_back(&store, "nvm").unwrap();
    let totals = store.access_totals();
    totals.record(TierId(1), Pattern::Sequential, 10);
    totals.record(TierId(2), Pattern::Sequential, 20);
    let moved = store.tiering().metrics().moves(TierId(2), TierId(1));

    store.add_tier(new("cxl", 4 * MIB, None)).unwrap();
    assert_eq!(names(&store), ["dram", "cxl", "nvm", "ssd"]);
    assert_eq!((state(&store, "nvm").1, state(&store, "cxl").1), (16, 0));
    check_all_rows(&store, &table);
    let bytes = |id: u8| store.access_totals().get(TierId(id), Pattern::Sequential).bytes;
    assert_eq!((bytes(1), bytes(2), bytes(3)), (0, 10, 20));
    assert_eq!(store.tiering().metrics().moves(TierId(3), TierId(2)), moved);
    let costs = store.costs();
    assert!(costs.len() == 4 && costs[1].sweep_us(MIB) < costs[2].sweep_us(MIB));

    assert_eq!(bring_back(&store, "cxl").unwrap(), 16);
    assert_eq!((state(&store, "nvm").1, state(&store, "cxl").1), (0, 16));
    store.tiering().drain_tier("nvm").unwrap();
    store.tiering().drop_tier("nvm").unwrap();
    assert_eq!((names(&store).join(" "), state(&store, "cxl").1), ("dram cxl ssd".into(), 16));
    assert_eq!((bytes(1), bytes(2)), (0, 20));
    check_all_rows(&store, &table);
    // Roll back to a placement in which a tier had another position.
    let last = store.epochs(1).unwrap()[0].id;
    store.tiering().drain_tier("cxl").unwrap();
    epoch(&store);
    store.tiering().resume_tier("cxl").unwrap();
    store.tiering().order(&Order::RollBack { epoch: last }).unwrap();
    assert_eq!(state(&store, "cxl").1, 16);
}

#[test]
fn impossible_wishes_are_refused_with_the_figures() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), true);
    options.tiering.max_budget_bytes = [("dram".to_owned(), 8 * MIB), ("nvm".to_owned(), 4 * MIB)].into();
    let store = Store::open(options).unwrap();
    let table = filled_table(&store);
    let wish =
        NewRule { kind: RuleKind::Pin, tier: "nvm".into(), columns: Vec::new(), rows: RuleRows::All, form: None };
    store.add_rule(table.name(), wish.clone()).unwrap();
    epoch(&store);
    refused(store.tiering().drain_tier("nvm"), "tier 'nvm' cannot be drained: pins need ");
    assert_eq!(state(&store, "nvm").0, TierState::Active);

    store.tiering().set_budget("dram", 5 * MIB).unwrap();
    refused(store.add_tier(new("nvm", MIB, None)), "tier 'nvm' already exists");
    refused(store.add_tier(new("Nvm", MIB, None)), "cannot be the name");
    refused(
        store.add_tier(NewTier { budget_bytes: Some(2 * MIB), ..new("a", MIB, None) }),
        "its budget of 2097152 is larger",
    );
    let nowhere = NvmBacking::Path(dir.path().join("no/such/folder"));
    refused(store.add_tier(NewTier { backing: nowhere, ..new("a", MIB, None) }), "does not exist");
    refused(
        store.add_tier(new("a", 4 * MIB, None)),
        "takes 4.0 MiB of this process's memory: dram and emulated tiers may have 8.0 MiB in all, of which 5.0 MiB are \
         taken; lower that budget by 1.0 MiB first",
    );
    store.add_tier(new("a", 2 * MIB, None)).unwrap();
    refused(
        store.tiering().set_budget("dram", 7 * MIB),
        "a budget of 7.00 MiB for tier 'dram' is more than its maximum of 6.00 MiB (6291456 bytes)",
    );
    refused(store.tiering().set_budget("a", 3 * MIB), "more than its maximum of 2.00 MiB (2097152 bytes)");
    store.tiering().drain_tier("a").unwrap();
    refused(store.add_rule(table.name(), NewRule { tier: "a".into(), ..wish }), "pins need");
    epoch(&store);
    store.tiering().drop_tier("a").unwrap();
    store.tiering().set_budget("dram", 7 * MIB).unwrap();
    for n in 0..5 {
        store.add_tier(new(&format!("t{n}"), MIB / 8, None)).unwrap();
    }
    refused(store.add_tier(new("t5", MIB / 8, None)), "there are 8 tiers");
    check_all_rows(&store, &table);
}

#[test]
fn a_tier_that_is_configured_no_more_takes_nothing_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), true)).unwrap();
    let table = filled_table(&store);
    let wish = |kind| NewRule { kind, tier: "nvm".into(), columns: Vec::new(), rows: RuleRows::All, form: None };
    store.add_rule(table.name(), wish(RuleKind::Exclude)).unwrap();
    store.add_rule(table.name(), wish(RuleKind::Pin)).unwrap();
    epoch(&store);
    assert_eq!(state(&store, "nvm").1, 16);
    let last = store.epochs(1).unwrap()[0].id;
    store.close().unwrap();
    drop((table, store));

    let store = Store::open(options(dir.path(), false)).unwrap();
    let table = store.table(&definition("t").name).unwrap();
    check_all_rows(&store, &table);
    let unmet =
        |store: &Store| store.rule_statuses(&|_| true).iter().map(|s| (s.met, s.unmet_bytes > 0)).collect::<Vec<_>>();
    assert_eq!(unmet(&store), [(false, false), (false, true)]);
    epoch(&store);
    check_all_rows(&store, &table);
    let outcome = store.tiering().order(&Order::RollBack { epoch: last }).unwrap().outcome;
    assert!(
        outcome.iter().any(|part| part.what.contains("the tier no longer exists") && part.segments == 16),
        "{outcome:?}"
    );
    refused(bring_back(&store, "nvm"), "the tiers are dram, ssd");
    // Rules are in force again as soon as there is a tier of that name.
    store.add_tier(new("nvm", 4 * MIB, None)).unwrap();
    epoch(&store);
    assert_eq!(unmet(&store)[1], (true, false));
    assert_eq!(state(&store, "nvm").1, 16);
    check_all_rows(&store, &table);
}

/// Reads all rows from whichever tiers have them now, like a scan.
fn scan(store: &Store, version: &TableVersion, seed: u64) {
    for (entry, first) in version.chunks.iter().zip((0..).step_by(1000)) {
        let chunk = &entry.chunk;
        let handles: Vec<_> = chunk.segments.iter().map(|segment| segment.resident.load_full()).collect();
        let missing: Vec<usize> = (0..handles.len()).filter(|at| handles[*at].is_none()).collect();
        let cold = (!missing.is_empty())
            .then(|| store.home().read_columns(chunk, &missing, Admission::Guaranteed).unwrap())
            .flatten()
            .map(|read| read.wait().unwrap());
        let mut read = cold.iter().flat_map(|cold| &cold.columns);
        let expected = rows(first..first + 1000);
        for (at, handle) in handles.iter().enumerate() {
            let column = handle.as_ref().map(|resident| &resident.column).or_else(|| read.next()).unwrap();
            assert_eq!(&column.widened().unwrap(), expected.column(at), "seed {seed}, rows from {first}, column {at}");
            chunk.segments[at].counters.record(Pattern::Sequential, 1000);
        }
        cold.into_iter().for_each(|cold| store.release_columns(cold));
    }
}

/// Names of the kinds of steps.
const STEPS: [&str; 7] = ["add", "drain", "resume", "drop", "budget", "bring", "epoch"];

/// One random step: changes a tier or a budget, gives an order or runs an epoch. Returns its kind, unless it was
/// refused.
fn step(store: &Store, random: &mut StdRng) -> Option<&'static str> {
    let memory: Vec<String> = store.memory_tiers().iter().map(|tier| tier.name().to_owned()).collect();
    let one = memory[random.random_range(0..memory.len())].clone();
    let tiering = store.tiering();
    // A refused step changes nothing; its messages are tested above.
    let (kind, done) = match random.random_range(0..9) {
        0 | 1 => {
            let backing = match random.random_bool(0.5) {
                true => NvmBacking::Emulated,
                false => NvmBacking::AllowNonDax(store.data_dir().join(format!("pool{}", random.random_range(0..3)))),
            };
            let name = format!("t{}", random.random_range(0..4));
            // Tiers that are measured and not slow come before others.
            let limiter = random.random_bool(0.5).then_some(SLOW);
            let tier = NewTier { backing, ..new(&name, random.random_range(1..6) * MIB / 8, limiter) };
            ("add", store.add_tier(tier).is_ok())
        }
        2 => ("drain", tiering.drain_tier(&one).is_ok()),
        3 => ("resume", tiering.resume_tier(&one).is_ok()),
        4 => ("drop", tiering.drop_tier(&one).is_ok()),
        5 => {
            // The tier was emptied before; readers release its copies soon.
            drop(tiering.drain_tier(&one));
            drop(tiering.run_epoch(EpochRequest::now("test")));
            let dropped = || {
                store.core.clock.sleep(Duration::from_millis(1));
                tiering.drop_tier(&one).is_ok()
            };
            ("drop", one != "dram" && (0..50).any(|_| dropped()))
        }
        6 => ("budget", tiering.set_budget(&one, random.random_range(0..MIB / 4)).is_ok()),
        7 => ("bring", bring_back(store, &one).is_ok_and(|moved| moved > 0)),
        _ => ("epoch", tiering.run_epoch(EpochRequest::now("test")).is_ok()),
    };
    done.then_some(kind)
}

/// Checks the invariants of a store without work in progress.
fn check_settled(store: &Store, table: &Table) {
    let memory = store.memory_tiers();
    for (at, tier) in memory.iter().enumerate() {
        assert_eq!(usize::from(tier.id().0), at, "{} stands where the list has it", tier.name());
    }
    let version = table.version();
    let mut charged = vec![0; memory.len()];
    for segment in version.chunks.iter().flat_map(|entry| entry.chunk.segments.iter()) {
        if let Some(resident) = segment.resident.load_full() {
            charged[usize::from(resident.tier.id().0)] += resident.bytes.charged_bytes;
        }
    }
    for (tier, charged) in memory.iter().zip(charged) {
        assert_eq!(tier.account().used_bytes(), charged, "bytes of {}", tier.name());
    }
    let infos = store.tier_infos();
    let bytes: u64 = version.chunks.iter().flat_map(|entry| entry.chunk.segments.iter()).map(|s| s.bytes()).sum();
    assert_eq!(infos.iter().map(|tier| tier.placed_bytes).sum::<u64>(), bytes);
    assert_eq!(infos.last().map(|tier| tier.kind), Some(TierKind::Ssd));
    assert_eq!(store.costs().len(), infos.len());
    assert_eq!(store.tiering().calibration().unwrap().tiers.len(), infos.len());
}

#[test]
fn answers_are_the_same_while_tiers_come_and_go() {
    let mut done = std::collections::BTreeSet::new();
    for seed in seeds(1..by_depth(2, 4)) {
        let _seed_report = SeedReport(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), true);
        options.dram_budget_bytes = MIB / 8;
        options.tiering.merge.kind = MergeKind::Always;
        // The loop runs when it is woken.
        options.epoch_interval = Some(Duration::from_secs(3600));
        let store = Store::open(options).unwrap();
        let table = filled_table(&store);
        let stop = AtomicBool::new(false);
        let reads = AtomicU64::new(0);
        let came = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        scan(&store, &table.version(), seed);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut random = StdRng::seed_from_u64(seed);
            let mut seen = std::collections::BTreeSet::new();
            // Only the reader thread panics; the steps must still end.
            for _ in 0..150 {
                done.extend(step(&store, &mut random));
                seen.insert(names(&store));
            }
            stop.store(true, Ordering::Relaxed);
            seen.len()
        });
        assert!(came > 3, "seed {seed}: {came} sets of tiers, hardly anything was tested");
        assert!(reads.load(Ordering::Relaxed) > 10, "seed {seed}: hardly anything was read");
        // There is no reader any more: all tiers can be dropped except process memory.
        for tier in store.memory_tiers().iter().filter(|tier| tier.kind() != TierKind::Dram) {
            store.tiering().drain_tier(tier.name()).unwrap();
            let drained = (0..10).any(|_| {
                epoch(&store);
                state(&store, tier.name()).0 == TierState::Drained
            });
            assert!(drained, "seed {seed}: {} keeps {:?}", tier.name(), state(&store, tier.name()));
            store.tiering().drop_tier(tier.name()).unwrap();
        }
        store.tiering().stop();
        check_settled(&store, &table);
        assert_eq!(names(&store), ["dram", "ssd"]);
        check_all_rows(&store, &table);
    }
    assert!(!is_deep() || done.len() == STEPS.len(), "{done:?} of {STEPS:?}");
}

#[test]
fn what_is_known_of_other_tiers_stays_when_a_slow_one_comes_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), false)).unwrap();
    let table = filled_table(&store);
    epoch(&store);
    let known = |name: &str| {
        let calibration = store.tiering().calibration().unwrap();
        calibration.tiers.iter().find(|tier| tier.name == name).map(|tier| format!("{:?}", tier.cost))
    };
    let before = known("ssd");
    assert!(before.is_some());
    store.add_tier(new("slow", MIB, Some(SLOW))).unwrap();
    assert_eq!(known("ssd"), before);
    store.tiering().drain_tier("slow").unwrap();
    epoch(&store);
    store.tiering().drop_tier("slow").unwrap();
    assert_eq!((known("ssd"), known("slow")), (before, None));
    check_all_rows(&store, &table);
}
