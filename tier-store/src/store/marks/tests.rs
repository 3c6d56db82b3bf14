//! Marks together with all other changes of a table: a row that fulfils a mark is never reported not to.
//!
//! `TERRACE_SEED=n` replays one seed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{ArrayRef, UInt32Array, new_null_array};
use arrow::datatypes::{DataType, Field, Int64Type};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use terrace_placement::EpochRequest;
use terrace_storage::io::Class;
use terrace_storage::table::{Alteration, NewRule, RuleKind, RuleRows, TableVersion};
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, seeds};

use super::super::tests::{definition, rows};
use super::*;
use crate::store::rebuild_catalog;
use crate::store::transaction::Transaction;
use crate::{Store, StoreOptions};

/// The condition of a mark, on the key of a row.
pub(in crate::store) fn fulfils(mark: MarkId, key: i64) -> bool {
    (key / 16 + i64::from(mark.0)).rem_euclid(4) == 0
}

fn keys_of(batch: &ArrayRef) -> Vec<i64> {
    batch.as_primitive::<Int64Type>().values().to_vec()
}

fn keys_in(store: &Store, chunk: &Arc<Chunk>) -> Result<Vec<i64>> {
    Ok(keys_of(&store.columns(chunk, &[0])?[0]))
}

/// Checks the known marks of a version: each row that fulfils a mark is one that may. Returns the number of rows that
/// are known not to fulfil one.
pub(in crate::store) fn check_known_marks(store: &Store, version: &TableVersion) -> Result<u64, String> {
    let to_text = |error: Error| error.to_string();
    let mut denied = 0;
    for entry in version.chunks.iter() {
        let keys = keys_in(store, &entry.chunk).map_err(to_text)?;
        for (mark, marked) in entry.chunk.marks() {
            let bits = store.mark_bits(&entry.chunk, mark).map_err(to_text)?;
            if let Some((key, _)) = keys.iter().zip(bits.values()).find(|(key, may)| fulfils(mark, **key) && !may) {
                return Err(format!("row {key} fulfils mark {}; chunk {} says {marked:?}", mark.0, entry.chunk.id.0));
            }
            let all = match marked {
                Marked::Unknown => return Err(format!("chunk {} lists a mark it does not know", entry.chunk.id.0)),
                Marked::None => bits.true_count() == 0,
                Marked::All => bits.false_count() == 0,
                Marked::Some => bits.true_count() > 0 && bits.false_count() > 0,
            };
            if !all || bits.len() != keys.len() {
                return Err(format!("chunk {} is recorded as {marked:?} but has {bits:?}", entry.chunk.id.0));
            }
            denied += bits.false_count() as u64;
        }
    }
    Ok(denied)
}

/// Evaluates a mark for each chunk; returns the chunks of which all rows or no row fulfil it.
pub(in crate::store) fn evaluate_mark(store: &Store, version: &TableVersion, mark: MarkId) -> Result<Vec<ChunkMark>> {
    let mut known = Vec::new();
    for entry in version.chunks.iter() {
        let keys = keys_in(store, &entry.chunk)?;
        match keys.iter().filter(|key| fulfils(mark, **key)).count() {
            0 => known.push(ChunkMark { chunk: entry.chunk.id, mark, may_fulfil: false }),
            all if all == keys.len() => known.push(ChunkMark { chunk: entry.chunk.id, mark, may_fulfil: true }),
            _ => {}
        }
    }
    Ok(known)
}

/// Arranges rows that fulfil a mark first, in chunks of their own.
pub(in crate::store) fn arrange_apart(mark: MarkId, chunk_rows: u32) -> impl Fn(&RecordBatch) -> Result<Arrangement> {
    move |batch| {
        let keys = keys_of(batch.column(0));
        let (mut first, others): (Vec<u32>, Vec<u32>) =
            (0..keys.len() as u32).partition(|row| fulfils(mark, keys[*row as usize]));
        let cuts = |rows: usize| Arrangement::in_current_order(rows, chunk_rows).chunk_rows;
        let chunk_rows = [cuts(first.len()), cuts(others.len())].concat();
        let bits = (0..keys.len()).map(|row| Some(row < first.len())).collect();
        first.extend(others);
        Ok(Arrangement { order: Some(first.into()), chunk_rows, marks: vec![(mark, bits)] })
    }
}

/// Arranges rows in random order and random chunks, and marks some rows that do not fulfil the mark as ones that may.
fn arrange_randomly(mark: MarkId, chunk_rows: u32, seed: u64) -> impl Fn(&RecordBatch) -> Result<Arrangement> {
    move |batch| {
        let mut rng = StdRng::seed_from_u64(seed);
        let keys = keys_of(batch.column(0));
        let order = (0..keys.len() as u32).choose_multiple(&mut rng, keys.len());
        let order = rng.random_bool(0.8).then_some(order);
        let row = |at: usize| order.as_ref().map_or(at, |order| order[at] as usize);
        let bits: BooleanArray =
            (0..keys.len()).map(|at| Some(fulfils(mark, keys[row(at)]) || rng.random_bool(0.01))).collect();
        let mut cuts = Vec::new();
        let mut left = keys.len() as u32;
        while left > 0 {
            cuts.push(rng.random_range(1..=left.min(chunk_rows)));
            left -= cuts[cuts.len() - 1];
        }
        Ok(Arrangement { order: order.map(UInt32Array::from), chunk_rows: cuts, marks: vec![(mark, bits)] })
    }
}

fn live(store: &Store, version: &TableVersion) -> BTreeMap<i64, u64> {
    let chunks = version.chunks.iter().map(|entry| keys_in(store, &entry.chunk).unwrap());
    let items = chunks.chain(version.delta.iter().map(|rows| keys_of(rows.batch().column(0))));
    let alive = version.live_positions();
    let mut found = BTreeMap::new();
    for (keys, item) in items.zip(0..) {
        for (key, row) in keys.into_iter().zip(0..) {
            let position = TableVersion::position(item, row);
            if alive.contains(position) {
                assert!(found.insert(key, position).is_none(), "row {key} occurs twice");
            }
        }
    }
    found
}

fn new_rows(table: &Table, keys: std::ops::Range<i64>) -> RecordBatch {
    let mut columns = rows(keys).columns().to_vec();
    let more = table.schema().fields().iter().skip(columns.len());
    let count = columns[0].len();
    columns.extend(more.map(|field| new_null_array(field.data_type(), count)));
    RecordBatch::try_new(Arc::clone(table.schema()), columns).unwrap()
}

fn delete(store: &Arc<Store>, table: &Arc<Table>, to_delete: &[i64]) -> Transaction {
    let mut transaction = store.begin();
    let seen = table.version();
    let positions =
        live(store, &seen).into_iter().filter(|(key, _)| to_delete.contains(key)).map(|(_, at)| at).collect();
    transaction.change(table, &seen, &positions, None).unwrap();
    transaction
}

fn open(dir: &std::path::Path) -> Arc<Store> {
    Store::open(StoreOptions { delta_budget_bytes: 1 << 20, ..StoreOptions::new(dir) }).unwrap()
}

fn known(table: &Table) -> Vec<(ChunkId, Vec<(MarkId, Marked)>)> {
    table.version().chunks.iter().map(|entry| (entry.chunk.id, entry.chunk.marks().collect())).collect()
}

/// Neighbouring chunks that are named by the same rules.
fn group(version: &TableVersion, rng: &mut StdRng) -> Vec<ChunkEntry> {
    let first = rng.random_range(0..version.chunks.len());
    let named = |entry: &ChunkEntry| version.rules.rules_naming(entry.chunk.id);
    let group = version.chunks.iter().skip(first).take(rng.random_range(1..=4));
    group.take_while(|entry| named(entry) == named(&version.chunks[first])).cloned().collect()
}

#[test]
fn a_model_agrees_whatever_happens_to_marked_chunks() {
    let mut denied = 0;
    let mut rearranged = 0;
    for seed in seeds(0..by_depth(2, 24)) {
        let _seed_report = SeedReport(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        let name = definition("t").name;
        let mut definition = definition("t");
        definition.options.chunk_rows = 64;
        if rng.random_bool(0.3) {
            definition.options.cluster_by = vec!["k".into()];
        }
        store.create_table(definition).unwrap();
        let mut model = BTreeSet::<i64>::new();
        let mut next = 0;
        let mut marks: Vec<MarkId> = Vec::new();
        // The flag: the table was altered meanwhile.
        let mut open_deletes: Vec<(Transaction, Vec<i64>, bool)> = Vec::new();
        for _ in 0..80 {
            let table = store.table(&name).unwrap();
            let version = table.version();
            match rng.random_range(0..20) {
                0..5 => {
                    let count = rng.random_range(1..120);
                    store.insert(&table, &[new_rows(&table, next..next + count)]).unwrap();
                    model.extend(next..next + count);
                    next += count;
                }
                5 => store.seal(&table).unwrap(),
                6 | 7 => {
                    let many = rng.random_range(1..60);
                    let to_delete = model.iter().copied().choose_multiple(&mut rng, many);
                    if !to_delete.is_empty() {
                        open_deletes.push((delete(&store, &table, &to_delete), to_delete, false));
                    }
                }
                8 | 9 if !open_deletes.is_empty() => {
                    let at = rng.random_range(0..open_deletes.len());
                    let (transaction, to_delete, altered) = open_deletes.swap_remove(at);
                    let all_present = to_delete.iter().all(|key| model.contains(key)) && !altered;
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
                10..13 => {
                    let mark = store.new_mark().unwrap();
                    assert!(marks.iter().all(|known| *known < mark), "seed {seed}: a mark was given twice");
                    marks.push(mark);
                    let mut found = evaluate_mark(&store, &version, mark).unwrap();
                    found.push(ChunkMark { chunk: ChunkId(u64::MAX), mark, may_fulfil: false });
                    let count = found.len() as u64 - 1;
                    assert_eq!(store.set_marks(&table, &found).unwrap(), count, "seed {seed}");
                    // Record for some chunks that each row may.
                    let may = version.chunks.iter().filter(|_| rng.random_bool(0.2));
                    let may: Vec<_> =
                        may.map(|entry| ChunkMark { chunk: entry.chunk.id, mark, may_fulfil: true }).collect();
                    store.set_marks(&table, &may).unwrap();
                }
                13..16 if !version.chunks.is_empty() => {
                    let mark = match marks.iter().copied().choose(&mut rng) {
                        Some(known) if rng.random_bool(0.7) => known,
                        _ => store.new_mark().unwrap(),
                    };
                    marks.retain(|known| *known != mark);
                    marks.push(mark);
                    marks.sort_unstable();
                    let group = group(&version, &mut rng);
                    let live: u64 = group.iter().map(ChunkEntry::live_rows).sum();
                    let done = match rng.random_bool(0.5) {
                        true => store.rearrange(&table, &group, &arrange_apart(mark, 64)).unwrap(),
                        false => store.rearrange(&table, &group, &arrange_randomly(mark, 64, rng.random())).unwrap(),
                    };
                    assert_eq!(done.chunks_in, group.len() as u64, "seed {seed}");
                    assert!(done.chunks_out >= live.div_ceil(64), "seed {seed}");
                    rearranged += done.chunks_out;
                }
                16 if rng.random_bool(0.3) => {
                    let gone: Vec<MarkId> = marks.extract_if(.., |_| rng.random_bool(0.5)).collect();
                    store.forget_marks(&table, &gone).unwrap();
                    let left = known(&store.table(&name).unwrap());
                    assert!(left.iter().all(|(_, marks)| marks.iter().all(|(mark, _)| !gone.contains(mark))));
                }
                17 if rng.random_bool(0.4) => {
                    let fields = table.schema().fields();
                    let fresh = format!("c{}", rng.random::<u64>());
                    let change = match fields.get(2).filter(|_| rng.random_bool(0.5)) {
                        Some(field) => Alteration::DropColumn(field.name().clone()),
                        None => {
                            let field = Field::new(fresh, DataType::Int32, true);
                            Alteration::AddColumn { field, default: None, value: None }
                        }
                    };
                    let before = known(&table);
                    let after = store.alter_table(&name, &[change]).unwrap();
                    assert_eq!(known(&after), before, "seed {seed}: ALTER keeps the known marks");
                    open_deletes.iter_mut().for_each(|(.., altered)| *altered = true);
                    if let Some(first) = version.chunks.first() {
                        let stale = store.set_marks(
                            &table,
                            &[ChunkMark { chunk: first.chunk.id, mark: MarkId(0), may_fulfil: true }],
                        );
                        assert!(matches!(stale, Err(Error::Conflict { .. })), "seed {seed}");
                    }
                }
                18 if rng.random_bool(0.5) => {
                    open_deletes.clear();
                    let before = known(&table);
                    drop((version, table, store));
                    store = open(dir.path());
                    assert_eq!(
                        known(&store.table(&name).unwrap()),
                        before,
                        "seed {seed}: as it was before the restart"
                    );
                }
                19 if rng.random_bool(0.3) => drop(store.tiering().run_epoch(EpochRequest::now("test")).unwrap()),
                _ => drop(store.optimize(&table).unwrap()),
            }
            let table = store.table(&name).unwrap();
            let version = table.version();
            assert_eq!(live(&store, &version).into_keys().collect::<BTreeSet<_>>(), model, "seed {seed}");
            denied += check_known_marks(&store, &version).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        }
    }
    assert!(
        denied > by_depth(0, 100_000) && rearranged > by_depth(0, 100),
        "{denied} rows denied, {rearranged} chunks rearranged: nothing was tried"
    );
}

/// A table of four chunks of 64 rows, of which the rows 0..16, 64..80 and so on fulfil mark 0.
fn four_chunks(dir: &std::path::Path) -> (Arc<Store>, Arc<Table>, MarkId) {
    let store = open(dir);
    let mut definition = definition("t");
    definition.options.chunk_rows = 64;
    let table = store.create_table(definition).unwrap();
    store.insert(&table, &[rows(0..256)]).unwrap();
    store.seal(&table).unwrap();
    let mark = store.new_mark().unwrap();
    assert_eq!((mark, table.version().chunks.len()), (MarkId(0), 4));
    (store, table, mark)
}

#[test]
fn rows_of_a_view_come_together_and_stay_so() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table, mark) = four_chunks(dir.path());
    let states =
        |table: &Table| known(table).into_iter().flat_map(|(_, marks)| marks).map(|(_, m)| m).collect::<Vec<_>>();
    let before = table.version();
    let early = delete(&store, &table, &[0, 17, 200]);
    delete(&store, &table, &[1]).commit().unwrap();
    let done = store.rearrange(&table, &before.chunks, &arrange_apart(mark, 64)).unwrap();
    assert_eq!((done.chunks_in, done.chunks_out, done.rows_dropped), (4, 4, 1));
    assert_eq!(states(&table), [Marked::All, Marked::None, Marked::None, Marked::None]);
    early.commit().unwrap();
    let version = table.version();
    let expected: BTreeSet<i64> = (0..256).filter(|key| ![0, 1, 17, 200].contains(key)).collect();
    assert_eq!(live(&store, &version).into_keys().collect::<BTreeSet<_>>(), expected);
    assert_eq!(live(&store, &before).len(), 256, "a reader of the old version can still read it");
    // Chunks of new rows do not know the mark; compactions do not mix them with chunks that do.
    store.insert(&table, &[rows(300..320)]).unwrap();
    store.seal(&table).unwrap();
    store.optimize(&table).unwrap();
    let version = table.version();
    let states: Vec<(Marked, u64)> = version.chunks.iter().map(|e| (e.chunk.marked(mark), e.live_rows())).collect();
    let sum = |wanted| states.iter().filter(|(marked, _)| *marked == wanted).map(|(_, rows)| rows).sum::<u64>();
    assert_eq!((sum(Marked::All), sum(Marked::None), sum(Marked::Unknown), sum(Marked::Some)), (61, 191, 20, 0));
    check_known_marks(&store, &version).unwrap();
    // Chunks that were replaced, and rules for some of the chunks.
    let stale = store.rearrange(&table, &before.chunks, &arrange_apart(mark, 64));
    assert!(matches!(stale, Err(Error::Conflict { .. })), "{stale:?}");
    let rows = RuleRows::Chunks([version.chunks[0].chunk.id].into_iter().collect());
    let wish = NewRule { kind: RuleKind::Pin, tier: "ssd".into(), columns: Vec::new(), rows, form: None };
    store.add_rule(table.name(), wish).unwrap();
    let mixed = store.rearrange(&table, &version.chunks[..2], &arrange_apart(mark, 64));
    assert!(matches!(mixed, Err(Error::Conflict { .. })), "{mixed:?}");
}

#[test]
fn what_would_lose_rows_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table, mark) = four_chunks(dir.path());
    let group = &table.version().chunks[..2];
    let plain = || Arrangement::in_current_order(128, 64);
    let twice = [group[0].clone(), group[0].clone()];
    assert!(matches!(store.rearrange(&table, &twice, &|_| Ok(plain())), Err(Error::Invalid(_))));
    let order = |rows: Vec<u32>| Some(UInt32Array::from(rows));
    let bits = |rows: usize| vec![(mark, BooleanArray::from(vec![true; rows]))];
    let bad = [
        Arrangement { order: order((0..127).chain([0]).collect()), ..plain() },
        Arrangement { order: order((0..127).collect()), ..plain() },
        Arrangement { order: order((1..129).collect()), ..plain() },
        Arrangement { chunk_rows: vec![64, 63], ..plain() },
        Arrangement { chunk_rows: vec![128], ..plain() },
        Arrangement { chunk_rows: vec![64, 0, 64], ..plain() },
        Arrangement { marks: bits(127), ..plain() },
        Arrangement { marks: vec![(mark, BooleanArray::from(vec![None; 128]))], ..plain() },
    ];
    for arrangement in bad {
        let refused = store.rearrange(&table, group, &|_| Ok(arrangement.clone()));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{arrangement:?}: {refused:?}");
    }
    let version = table.version();
    assert!(version.chunks.iter().zip(group).all(|(now, before)| Arc::ptr_eq(&now.chunk, &before.chunk)));
    assert_eq!(std::fs::read_dir(dir.path().join("ssd/t1")).unwrap().count(), 4, "no file is left");
    let good = Arrangement { chunk_rows: vec![1, 64, 63], marks: bits(128), ..plain() };
    assert_eq!(store.rearrange(&table, group, &|_| Ok(good.clone())).unwrap().chunks_out, 3);
}

/// Gives each row of a chunk of 64 a bit: whether it fulfils the mark.
fn mark_each_row(mark: MarkId) -> impl Fn(&RecordBatch) -> Result<Arrangement> {
    move |batch| {
        let keys = keys_of(batch.column(0));
        let bits = keys.iter().map(|key| Some(fulfils(mark, *key))).collect();
        Ok(Arrangement { marks: vec![(mark, bits)], ..Arrangement::in_current_order(keys.len(), 64) })
    }
}

/// Bits are segments like others: they are checked, healed, moved and counted, and have a name in reports.
#[test]
fn bits_are_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table, mark) = four_chunks(dir.path());
    store.rearrange(&table, &table.version().chunks, &mark_each_row(mark)).unwrap();
    let version = table.version();
    let chunk = &version.chunks[1].chunk;
    let position = chunk.mark_position(mark).unwrap();
    assert_eq!((chunk.marked(mark), position, chunk.column_name(2)), (Marked::Some, 2, "hot view mark 0".into()));
    let segment = &chunk.segments[position];
    assert!(segment.bytes() > 0 && segment.resident.load().is_none(), "bits start at home");
    let tiers = store.memory_tiers();
    let home = store.core().home.as_ref();
    let relocation = terrace_storage::migrate::Relocation {
        chunk: Arc::clone(chunk),
        column: position,
        from: store.home_tier(),
        to: terrace_model::TierId(0),
        form: terrace_storage::tier::codec::Form::Plain,
    };
    assert_eq!(
        terrace_storage::migrate::try_move(&tiers, home, &relocation).unwrap(),
        terrace_storage::migrate::Outcome::Moved
    );
    check_known_marks(&store, &version).unwrap();
    // The heat of bits is counted and saved.
    segment.counters.record(terrace_model::Pattern::Sequential, 64);
    let mut heat = terrace_placement::heat::Heat::default();
    let mut saved = terrace_placement::heat::Heat::default();
    heat.observe(version.chunks.iter().map(|entry| &entry.chunk), 4.0);
    saved.add_blob(table.id(), &heat.to_blob(table.id())).unwrap();
    let key = terrace_placement::heat::SegmentKey::for_segment(chunk, segment);
    assert_eq!((heat.get(&key).total(), saved.get(&key).total()), (1.0, 1.0));
    // Bits and header of a damaged file are healed from the copy.
    let healthy = std::fs::read(&chunk.path).unwrap();
    for segment in chunk.columns() {
        assert!(segment.resident.load().is_some(), "columns were admitted");
    }
    for at in [segment.home.offset as usize, 20] {
        let mut bytes = healthy.clone();
        bytes[at] ^= 1;
        std::fs::write(&chunk.path, &bytes).unwrap();
        store.core().heal(chunk).unwrap();
        assert!(std::fs::read(&chunk.path).unwrap() == healthy, "byte {at}");
    }
    let report = store.check(Default::default(), &mut |_| true).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    // The resident copies of forgotten bits are released.
    let dram = tiers[0].account();
    let held = segment.resident.load().as_ref().unwrap().bytes.charged_bytes;
    let used = dram.used_bytes();
    store.forget_marks(&table, &[mark]).unwrap();
    assert_eq!((dram.used_bytes(), chunk.marked(mark)), (used - held, Marked::Some), "the old version keeps its own");
    assert!(known(&table).iter().all(|(_, marks)| marks.is_empty()));
}

/// Making bits reads the columns of a condition, and compactions read the bits: all of it is upkeep.
#[test]
fn what_bits_read_is_no_demand_of_statements_and_heats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table, mark) = four_chunks(dir.path());
    store.rearrange(&table, &table.version().chunks, &mark_each_row(mark)).unwrap();
    let version = table.version();
    let segments = || version.chunks.iter().flat_map(|entry| entry.chunk.segments.iter());
    segments().for_each(|segment| segment.resident.store(None));
    let accesses = || segments().map(|segment| segment.counters.snapshot()).collect::<Vec<_>>();
    let stats = store.core().io.stats();
    let read_bytes = |class| stats.class_reads(class).sums().bytes;
    let others = || Class::ALL.into_iter().filter(|class| *class != Class::Upkeep).map(read_bytes).collect::<Vec<_>>();
    let before = (accesses(), stats.demand.sums(), others());
    let steps: [&dyn Fn(); 3] = [
        &|| drop(evaluate_mark(&store, &version, mark).unwrap()),
        &|| drop(store.mark_bits(&version.chunks[1].chunk, mark).unwrap()),
        &|| drop(store.core().known_marks(&version.chunks).unwrap()),
    ];
    for (number, step) in steps.into_iter().enumerate() {
        let read_before = read_bytes(Class::Upkeep);
        step();
        // A read is counted just after its reader has it.
        let counted = (0..1_000).any(|_| {
            let grew = read_bytes(Class::Upkeep) > read_before;
            if !grew {
                store.core().clock.sleep(std::time::Duration::from_millis(5));
            }
            grew
        });
        assert!(counted, "step {number} reads cold bytes");
        assert_eq!((accesses(), stats.demand.sums(), others()), before, "step {number}");
    }
}

/// Chunks without rows of a view inherit only the reads that were not scans of the view.
#[test]
fn cold_chunks_do_not_inherit_the_scans_of_a_view() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table, mark) = four_chunks(dir.path());
    let column = table.version().chunks[0].chunk.segments[0].column;
    for entry in table.version().chunks.iter() {
        (0..10).for_each(|_| entry.chunk.segments[0].counters.record(terrace_model::Pattern::Sequential, 64));
    }
    let mut heat = terrace_placement::heat::Heat::default();
    let observe = |heat: &mut terrace_placement::heat::Heat, reads: u64| {
        let view = terrace_placement::heat::ViewUse {
            name: "public.v".into(),
            table: table.id(),
            mark,
            reads: vec![(column, reads)],
            columns: vec![column],
            budget_bytes: None,
        };
        heat.observe_views(&[view], 4.0);
        heat.observe(table.version().chunks.iter().map(|entry| &entry.chunk), 4.0);
    };
    let by_mark = |heat: &terrace_placement::heat::Heat| {
        let of = |entry: &ChunkEntry| {
            (
                entry.chunk.marked(mark),
                heat.get(&terrace_placement::heat::SegmentKey::for_segment(&entry.chunk, &entry.chunk.segments[0])),
            )
        };
        table.version().chunks.iter().map(of).map(|(marked, heat)| (marked, heat.total())).collect::<Vec<_>>()
    };
    observe(&mut heat, 8);
    assert!(by_mark(&heat).iter().all(|(_, reads)| *reads == 10.0));
    store.rearrange(&table, &table.version().chunks, &arrange_apart(mark, 64)).unwrap();
    // Eight of ten reads were scans of the view, and these continue; the other two were not.
    observe(&mut heat, 16);
    let decay = 0.5_f32.powf(0.25);
    let share = decay / (decay + 1.0);
    let mut hot = 0;
    let mut cold = 0;
    for (marked, reads) in by_mark(&heat) {
        let expected = if marked == Marked::None { 2.0 * share } else { 10.0 * share };
        assert!((reads - expected).abs() < 1e-3, "{marked:?}: {reads} is not {expected}");
        *(if marked == Marked::None { &mut cold } else { &mut hot }) += 1;
    }
    assert!(hot > 0 && cold > 0);
    // Cold chunks that are compacted together had none of these scans.
    let cold: Vec<ChunkEntry> =
        table.version().chunks.iter().filter(|entry| entry.chunk.marked(mark) == Marked::None).cloned().collect();
    store.rearrange(&table, &cold, &|batch| Ok(Arrangement::in_current_order(batch.num_rows(), 64))).unwrap();
    let entry = table.version().chunks.iter().find(|entry| entry.chunk.marked(mark) == Marked::None).cloned().unwrap();
    assert!(entry.chunk.heritage.get().unwrap().cleared.is_empty());
}

/// A catalog that is rebuilt from files knows no marks, and does not allocate a mark that was allocated before.
#[test]
fn a_rebuilt_catalog_knows_nothing_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table, mark) = four_chunks(dir.path());
    store.rearrange(&table, &table.version().chunks, &arrange_randomly(mark, 64, 1)).unwrap();
    assert!(known(&table).iter().any(|(_, marks)| marks.contains(&(mark, Marked::Some))));
    let second = store.new_mark().unwrap();
    drop((table, store));
    rebuild_catalog(dir.path(), true, 1, &mut |_| true).unwrap();
    let store = open(dir.path());
    let table = store.table(&definition("t").name).unwrap();
    assert!(known(&table).iter().all(|(_, marks)| marks.is_empty()));
    assert_eq!(live(&store, &table.version()).len(), 256);
    assert!(store.new_mark().unwrap() > second);
    drop((table, store));
    std::fs::remove_file(dir.path().join("catalog.redb")).unwrap();
    rebuild_catalog(dir.path(), true, 1_790_000_000_000_000, &mut |_| true).unwrap();
    assert_eq!(open(dir.path()).new_mark().unwrap(), MarkId(29_833_333), "one for each minute");
}

#[test]
fn records_written_before_there_were_marks_are_read() {
    use terrace_storage::catalog::records::{ChunkRecord, decode, encode};
    #[derive(serde::Serialize)]
    struct Before {
        file: String,
        file_bytes: u64,
        rows: u32,
        place: u64,
        columns: Vec<terrace_model::ColumnId>,
        homes: Vec<terrace_storage::table::SegmentHome>,
    }
    let columns = vec![terrace_model::ColumnId(3)];
    let homes = vec![terrace_storage::table::SegmentHome::default()];
    let before = Before { file: "t1/c2.arrow".into(), file_bytes: 4_096, rows: 5, place: 6, columns, homes };
    let read: ChunkRecord = decode(&encode(&before).unwrap(), "a chunk").unwrap();
    assert_eq!((read.file.as_str(), read.place, read.homes.len(), read.marks.len()), ("t1/c2.arrow", 6, 1, 0));
    let marked = ChunkRecord { marks: vec![(MarkId(7), true), (MarkId(9), false)], ..read };
    let bytes = encode(&marked).unwrap();
    assert_eq!(decode::<ChunkRecord>(&bytes, "a chunk").unwrap().marks, marked.marks);
}
