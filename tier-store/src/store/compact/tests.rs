//! Compaction beside writers: no row is lost, comes back or occurs twice; rows keep their place, order, heat and tier.
//!
//! `TERRACE_SEED=n` replays one seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::disallowed_methods)]

use std::sync::atomic::AtomicBool;

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use terrace_model::Pattern;
use terrace_model::clock::{Clock, ManualClock};
use terrace_placement::TieringHost;
use terrace_placement::heat::{Heat, SegmentKey};
use terrace_storage::io::{Class, WritingStatement};
use terrace_storage::migrate::{Outcome, Relocation, try_move};
use terrace_storage::table::ChunkAdmission;
use terrace_storage::tier::codec::Form;
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, seeds};

use super::super::tests::{definition, keys, read, rows};
use super::super::transaction::tests::delete_keys;
use super::*;
use crate::{Store, StoreOptions};

fn open(dir: &std::path::Path) -> Arc<Store> {
    Store::open(StoreOptions::new(dir)).unwrap()
}

fn delete(store: &Arc<Store>, table: &Arc<Table>, to_delete: &[i64]) {
    let mut transaction = store.begin();
    delete_keys(store, &mut transaction, table, to_delete);
    transaction.commit().unwrap();
}

/// Rows of each chunk and how many of them are deleted.
fn chunk_row_counts(table: &Table) -> Vec<(u32, u64)> {
    let version = table.version();
    version.chunks.iter().map(|c| (c.chunk.rows, c.deletions.as_ref().map_or(0, |d| d.len()))).collect()
}

#[test]
fn holes_and_small_chunks_go_and_rows_keep_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let table = store.create_table(definition("t")).unwrap();
    for start in (0..3_000).step_by(1_000) {
        store.insert(&table, &[rows(start..start + 1_000)]).unwrap();
        store.seal(&table).unwrap();
    }
    delete(&store, &table, &(1_000..1_300).collect::<Vec<_>>());
    delete(&store, &table, &[5]);
    assert_eq!(chunk_row_counts(&table), [(1000, 1), (1000, 300), (1000, 0)]);
    let before = table.version();
    let files = || std::fs::read_dir(dir.path().join("ssd").join(format!("t{}", table.id().0))).unwrap().count();
    // One deleted row makes a chunk worth rewriting only in the thorough mode.
    let attempt = store.core().compact(&table, CompactionMode::Background, &HashSet::new()).unwrap();
    assert_eq!(attempt.result.unwrap().rows_dropped, 300);
    assert!(store.core().compact(&table, CompactionMode::Background, &HashSet::new()).is_none());
    assert_eq!(chunk_row_counts(&table), [(1000, 1), (700, 0), (1000, 0)]);
    let done = store.optimize(&table).unwrap();
    assert_eq!((done.chunks_in, done.chunks_out, done.rows_dropped), (1, 1, 1));
    assert_eq!(chunk_row_counts(&table), [(999, 0), (700, 0), (1000, 0)]);
    let expected: Vec<i64> = (0..3_000).filter(|k| *k != 5 && !(1_000..1_300).contains(k)).collect();
    assert_eq!(keys(&store, &table), expected);
    assert_eq!(table.version().statistics.len(), 3);
    // Readers keep their version; its files are deleted with the last of them.
    assert_eq!((read(&store, &before).unwrap().num_rows(), files()), (2_699, 5));
    drop(before);
    assert_eq!(files(), 3);
    for start in 0..6 {
        store.insert(&table, &[rows(10_000 + start * 10..10_005 + start * 10)]).unwrap();
        store.seal(&table).unwrap();
    }
    assert_eq!(chunk_row_counts(&table).len(), 9);
    store.core().compact(&table, CompactionMode::Background, &HashSet::new()).unwrap().result.unwrap();
    assert_eq!(chunk_row_counts(&table)[3..], [(30, 0)]);
    let all = keys(&store, &table);
    drop((table, store));
    let store = open(dir.path());
    let table = store.table(&definition("t").name).unwrap();
    assert_eq!((keys(&store, &table), chunk_row_counts(&table).len()), (all, 4));
}

#[test]
fn what_is_left_to_rewrite_shrinks_with_each_step() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut definition = definition("t");
    definition.options.chunk_rows = 1_000;
    let table = store.create_table(definition).unwrap();
    assert_eq!(store.optimizable_bytes(&table), 0);
    for start in (0..12_000).step_by(1_000) {
        store.insert(&table, &[rows(start..start + 1_000)]).unwrap();
        store.seal(&table).unwrap();
    }
    assert_eq!(store.optimizable_bytes(&table), 0, "full chunks stay");
    delete(&store, &table, &(0..9_000).step_by(1_000).collect::<Vec<_>>());
    let holed: u64 = table.version().chunks[..9].iter().map(image_bytes).sum();
    assert_eq!(store.optimizable_bytes(&table), holed);
    let mut left = vec![holed];
    while store.optimize_step(&table).unwrap().is_some() {
        left.push(store.optimizable_bytes(&table));
    }
    assert!(left.len() > 2 && left.is_sorted_by(|a, b| a > b) && left.ends_with(&[0]), "{left:?}");
    store.insert(&table, &[rows(20_000..20_010)]).unwrap();
    store.seal(&table).unwrap();
    let small = |table: &Table| table.version().chunks.iter().filter(|entry| entry.chunk.rows < 500).count();
    assert_eq!((small(&table), store.optimizable_bytes(&table)), (1, 0), "a small chunk alone stays");
}

#[test]
fn a_clustered_table_is_sorted_and_old_positions_stay_good() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut definition = definition("t");
    let key = definition.schema.field(0).name().clone();
    definition.options.cluster_by = vec![key];
    let table = store.create_table(definition).unwrap();
    for start in [300, 100, 400, 0, 200] {
        store.insert(&table, &[rows(start..start + 100)]).unwrap();
        store.seal(&table).unwrap();
    }
    let mut early = store.begin();
    delete_keys(&store, &mut early, &table, &[7, 307, 499]);
    let mut second = store.begin();
    delete_keys(&store, &mut second, &table, &[307, 8]);
    assert_eq!(store.optimize(&table).unwrap().chunks_in, 5);
    assert_eq!(chunk_row_counts(&table), [(500, 0)]);
    let version = table.version();
    let sorted = read(&store, &version).unwrap();
    let sorted = sorted.column(0).as_any().downcast_ref::<arrow::array::Int64Array>().unwrap();
    assert!(sorted.values().is_sorted());
    early.commit().unwrap();
    assert!(matches!(second.commit(), Err(Error::Conflict { .. })));
    assert_eq!(keys(&store, &table), (0..500).filter(|k| ![7, 307, 499].contains(k)).collect::<Vec<_>>());
}

#[test]
fn new_chunks_inherit_heat_counters_and_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut definition = definition("t");
    definition.options.chunk_rows = 2_000;
    let table = store.create_table(definition).unwrap();
    for start in [0, 500, 1_000, 1_500] {
        store.insert(&table, &[rows(start..start + 500)]).unwrap();
        store.seal(&table).unwrap();
    }
    let old = table.version();
    for (chunk, scans) in old.chunks.iter().zip([8, 8, 8, 0]) {
        (0..scans).for_each(|_| chunk.chunk.segments[0].counters.record(Pattern::Sequential, 500));
        (0..scans / 2).for_each(|_| chunk.chunk.segments[0].counters.record_kernel());
        chunk.chunk.segments[1].resident.store(None);
    }
    let mut heat = Heat::default();
    heat.observe(old.chunks.iter().map(|c| &c.chunk), 4.0);
    store.optimize(&table).unwrap();
    let new = table.version();
    let chunk = &new.chunks[0].chunk;
    let inherited = chunk.segments[0].counters.snapshot();
    assert_eq!((new.chunks.len(), inherited.accesses[0], inherited.kernel), (1, 6, 3));
    assert!(chunk.segments[0].resident.load().is_some() && chunk.segments[1].resident.load().is_none());
    let key = SegmentKey { table: table.id(), chunk: chunk.id, column: chunk.segments[0].column };
    chunk.segments[0].counters.record(Pattern::Sequential, 2_000);
    heat.observe([chunk], 4.0);
    // Six scans, then one, at the weights of two epochs.
    let decay = 0.5_f32.powf(0.25);
    let expected = (6.0 * decay + 1.0) / (decay + 1.0);
    assert!((heat.get(&key).total() - expected).abs() < 1e-4, "{} is not {expected}", heat.get(&key).total());
    assert!((heat.get(&key).kernel - 3.0 * decay / (decay + 1.0)).abs() < 1e-4, "{:?}", heat.get(&key));
}

/// Random inserts, deletes, seals, compactions and reopens; transactions stay open across all of it.
#[test]
fn a_model_agrees_under_compaction() {
    for seed in seeds(0..by_depth(2, 30)) {
        let _seed_report = SeedReport(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        let name = definition("t").name;
        let mut definition = definition("t");
        definition.options.chunk_rows = 64;
        if rng.random_bool(0.5) {
            definition.options.cluster_by = vec![definition.schema.field(0).name().clone()];
        }
        store.create_table(definition).unwrap();
        let mut model = std::collections::BTreeSet::<i64>::new();
        let mut next = 0;
        let mut open_deletes: Vec<(crate::store::Transaction, Vec<i64>)> = Vec::new();
        for _ in 0..60 {
            let table = store.table(&name).unwrap();
            match rng.random_range(0..10) {
                0..3 => {
                    let count = rng.random_range(1..150);
                    store.insert(&table, &[rows(next..next + count)]).unwrap();
                    model.extend(next..next + count);
                    next += count;
                }
                3 => store.seal(&table).unwrap(),
                4 | 5 => {
                    let many = rng.random_range(1..80);
                    let to_delete = model.iter().copied().choose_multiple(&mut rng, many);
                    let mut transaction = store.begin();
                    delete_keys(&store, &mut transaction, &table, &to_delete);
                    open_deletes.push((transaction, to_delete));
                }
                6 | 7 if !open_deletes.is_empty() => {
                    let (transaction, to_delete) = open_deletes.swap_remove(rng.random_range(0..open_deletes.len()));
                    let all_present = to_delete.iter().all(|key| model.contains(key));
                    match transaction.commit() {
                        Ok(()) => {
                            assert!(all_present, "seed {seed}: a row was deleted twice");
                            model.retain(|key| !to_delete.contains(key));
                        }
                        Err(Error::Conflict { .. }) => {
                            assert!(!all_present, "seed {seed}: a conflict without a reason")
                        }
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
                8 => drop(
                    store
                        .core()
                        .compact(&table, CompactionMode::Background, &HashSet::new())
                        .map(|a| a.result.unwrap()),
                ),
                9 if rng.random_bool(0.3) => {
                    open_deletes.clear();
                    drop((table, store));
                    store = open(dir.path());
                }
                _ => drop(store.optimize(&table).unwrap()),
            }
            let table = store.table(&name).unwrap();
            let expected: Vec<i64> = model.iter().copied().collect();
            assert_eq!(keys(&store, &table), expected, "seed {seed}");
        }
    }
}

/// While a group is rewritten its last chunk loses its last row, and a new chunk is added at the end of the table.
#[test]
fn a_place_given_away_meanwhile_is_not_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let table = store.create_table(definition("t")).unwrap();
    for start in [0, 1_000] {
        store.insert(&table, &[rows(start..start + 1_000)]).unwrap();
        store.seal(&table).unwrap();
    }
    delete(&store, &table, &(0..400).chain(1_000..1_400).collect::<Vec<_>>());
    let group = table.version().chunks.to_vec();
    delete(&store, &table, &(1_400..2_000).collect::<Vec<_>>());
    store.insert(&table, &[rows(5_000..6_000)]).unwrap();
    store.seal(&table).unwrap();
    store.core().rewrite(&table, &group).unwrap();
    let version = table.version();
    let places: HashSet<u64> = version.chunks.iter().map(|c| c.place).collect();
    assert_eq!((places.len(), version.statistics.len()), (version.chunks.len(), version.chunks.len()));
    let expected: Vec<i64> = (400..1_000).chain(5_000..6_000).collect();
    assert_eq!(keys(&store, &table), expected);
    drop((version, group, table, store));
    let store = open(dir.path());
    let table = store.table(&definition("t").name).unwrap();
    assert_eq!(keys(&store, &table), expected);
    assert!(table.version().statistics.column(0).is_ok());
}

/// Writers and the compactor at the same time.
#[test]
fn deletes_during_a_compaction_are_carried_over() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        Store::open(StoreOptions { compaction_bytes_per_s: u64::MAX, ..StoreOptions::new(dir.path()) }).unwrap();
    let table = store.create_table(definition("t")).unwrap();
    store.insert(&table, &[rows(0..4_000)]).unwrap();
    store.seal(&table).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.optimize(&table).unwrap();
            }
        });
        for start in (0..4_000).step_by(80) {
            delete(&store, &table, &(start..start + 40).collect::<Vec<_>>());
            store.insert(&table, &[rows(10_000 + start..10_010 + start)]).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let mut expected: Vec<i64> = (0..4_000).filter(|k| k % 80 >= 40).collect();
    expected.extend((0..4_000).step_by(80).flat_map(|start| 10_000 + start..10_010 + start));
    assert_eq!(keys(&store, &table), expected);
    assert!(store.compactions().rows_dropped.load(Ordering::Relaxed) > 0);
}

#[test]
fn chunks_that_were_replaced_or_dropped_are_moved_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(dir.path()) }).unwrap();
    let table = store.create_table(definition("t")).unwrap();
    for start in (0..2_000).step_by(1_000) {
        store.insert(&table, &[rows(start..start + 1_000)]).unwrap();
        store.seal(&table).unwrap();
    }
    // A plan refers to chunks of the version that it was made from.
    let planned = table.version();
    let tiers = store.memory_tiers();
    let home = store.core().home();
    tiers[0].account().set_limit_bytes(1 << 20);
    let go = |chunk: &Arc<Chunk>| {
        let relocation =
            Relocation { chunk: Arc::clone(chunk), column: 0, from: TierId(1), to: TierId(0), form: Form::Plain };
        try_move(&tiers, home, &relocation).unwrap()
    };
    delete(&store, &table, &(0..500).collect::<Vec<_>>());
    store.optimize(&table).unwrap();
    assert_eq!(go(&planned.chunks[0].chunk), Outcome::Gone);
    assert_eq!(go(&planned.chunks[1].chunk), Outcome::Moved, "this one is still there");
    let used = tiers[0].account().used_bytes();
    store.drop_table(table.name()).unwrap();
    assert_eq!(go(&table.version().chunks[0].chunk), Outcome::Gone);
    assert_eq!(tiers[0].account().used_bytes(), used, "no copy is made of a dropped table");
    assert_eq!(read(&store, &planned).unwrap().num_rows(), 2_000, "a reader of the version can still read it");
}

#[test]
fn what_compaction_reads_is_no_demand_of_statements() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut definition = definition("t");
    definition.options.admission = ChunkAdmission::Ssd;
    let table = store.create_table(definition).unwrap();
    for start in (0..600).step_by(100) {
        store.insert(&table, &[rows(start..start + 100)]).unwrap();
        store.seal(&table).unwrap();
    }
    let core = store.core();
    let of_statements = core.io.stats().demand.sums();
    let read_before = core.io.stats().read_bytes();
    let done = store.optimize(&table).unwrap();
    assert_eq!((done.chunks_in, done.chunks_out), (6, 1));
    assert!(done.read_bytes > 0 && core.io.stats().read_bytes() >= read_before + done.read_bytes, "{done:?}");
    let chunk = Arc::clone(&table.version().chunks.first().unwrap().chunk);
    let accesses = || chunk.columns().iter().map(|segment| segment.counters.snapshot()).collect::<Vec<_>>();
    let inherited = accesses();
    store.columns(&chunk, &[0]).unwrap();
    assert_eq!((core.io.stats().demand.sums(), accesses()), (of_statements, inherited.clone()));
    core.read_keys(&chunk, &[0], true, &WritingStatement::default()).unwrap();
    assert_ne!(accesses(), inherited);
    // A read is counted soon after its reader has the bytes.
    while core.io.stats().demand.sums().bytes == of_statements.bytes {
        std::thread::yield_now();
    }
}

/// On a clock that moves by the pauses of the background task, what it reads in class `upkeep` never exceeds its rate.
#[test]
fn background_compaction_reads_no_more_than_its_rate() {
    const BYTES_PER_S: u64 = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut definition = definition("t");
    definition.options.admission = ChunkAdmission::Ssd;
    let table = store.create_table(definition).unwrap();
    for start in (0..12_000).step_by(1_000) {
        store.insert(&table, &[rows(start..start + 1_000)]).unwrap();
        store.seal(&table).unwrap();
        delete(&store, &table, &(start..start + 300).collect::<Vec<_>>());
    }
    let read_bytes = || store.core().io.stats().class_reads(Class::Upkeep).sums().bytes;
    let groups = || store.compactions().groups.load(Ordering::Relaxed);
    let read_before = read_bytes();
    let clock = ManualClock::default();
    let mut compactor = Compactor::new(Arc::clone(&store.core), BYTES_PER_S);
    let mut done = 0;
    loop {
        clock.sleep(compactor.step());
        if groups() == done {
            break;
        }
        done = groups();
        let bytes = read_bytes() - read_before;
        let most_bytes = BYTES_PER_S * clock.now_us() / 1_000_000;
        assert!(bytes <= most_bytes, "{done} groups: {bytes} bytes read, {most_bytes} allowed");
        assert!(bytes > done * BYTES_PER_S, "the shortest pauses alone would keep to the rate");
    }
    // Four full chunks of rows are a group: five chunks, five, and two.
    assert_eq!((done, store.compactions().chunks_in.load(Ordering::Relaxed)), (3, 12));
}
