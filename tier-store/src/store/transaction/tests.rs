//! Transactions against a plain model: no row is lost or occurs twice, and every conflict is found.
//!
//! `TERRACE_SEED=n` replays one seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, Int64Array, RecordBatch, StringViewArray, cast::AsArray};
use arrow::datatypes::Int64Type;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use roaring::RoaringTreemap;
use terrace_model::TableName;
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::seeds;

use super::super::tests::{definition, items, keys, read, rows};
use super::*;
use crate::StoreOptions;

/// Keys and positions of the live rows of a version.
pub(in crate::store) fn positions(store: &Store, version: &TableVersion) -> Vec<(u64, i64)> {
    let live = version.live_positions();
    let mut found = Vec::new();
    for (batch, item) in items(store, version).unwrap().iter().zip(0..) {
        for (key, row) in batch.column(0).as_primitive::<Int64Type>().values().iter().zip(0..) {
            let position = TableVersion::position(item, row);
            if live.contains(position) {
                found.push((position, *key));
            }
        }
    }
    found
}

/// Rows with these keys; the text is the number of each.
pub(in crate::store) fn pairs(pairs: impl IntoIterator<Item = (i64, i64)>) -> RecordBatch {
    let (keys, numbers): (Vec<i64>, Vec<String>) = pairs.into_iter().map(|(k, n)| (k, n.to_string())).unzip();
    let columns: Vec<Arc<dyn Array>> =
        vec![Arc::new(Int64Array::from(keys)), Arc::new(StringViewArray::from_iter_values(numbers))];
    RecordBatch::try_new(rows(0..0).schema(), columns).unwrap()
}

/// Position and number of each live row, by key.
pub(in crate::store) fn live_rows_by_key(store: &Store, version: &TableVersion) -> BTreeMap<i64, (u64, i64)> {
    let live = version.live_positions();
    let mut found = BTreeMap::new();
    for (batch, item) in items(store, version).unwrap().iter().zip(0..) {
        let keys = batch.column(0).as_primitive::<Int64Type>();
        let numbers = batch.column(1).as_string_view();
        for row in 0..batch.num_rows() {
            let position = TableVersion::position(item, row as u32);
            if live.contains(position) {
                let before = found.insert(keys.value(row), (position, numbers.value(row).parse().unwrap()));
                assert!(before.is_none(), "key {} occurs twice", keys.value(row));
            }
        }
    }
    found
}

pub(in crate::store) fn write(store: &Arc<Store>, table: &Arc<Table>, batch: RecordBatch) -> NewRows {
    let mut ingest = store.ingest(table);
    ingest.write(batch).unwrap();
    ingest.into_new_rows().unwrap()
}

pub(in crate::store) fn delete_keys(
    store: &Arc<Store>,
    transaction: &mut Transaction,
    table: &Arc<Table>,
    to_delete: &[i64],
) {
    let seen = transaction.view(table).unwrap_or_else(|| table.version());
    let rows = positions(store, &seen).into_iter().filter(|(_, k)| to_delete.contains(k)).map(|(p, _)| p).collect();
    transaction.change(table, &seen, &rows, None).unwrap();
}

#[test]
fn the_first_committer_wins_and_inserts_never_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let table = store.create_table(definition("t")).unwrap();
    store.insert(&table, &[rows(0..10)]).unwrap();
    let mut first = store.begin();
    let mut second = store.begin();
    delete_keys(&store, &mut first, &table, &[3]);
    delete_keys(&store, &mut second, &table, &[3, 4]);
    let seen = second.view(&table).unwrap();
    second.change(&table, &seen, &RoaringTreemap::new(), Some(write(&store, &table, rows(20..22)))).unwrap();
    first.commit().unwrap();
    store.seal(&table).unwrap();
    let error = second.commit().unwrap_err();
    assert!(matches!(&error, Error::Conflict { table, .. } if table == "public.t"), "{error}");
    let mut third = store.begin();
    let mut fourth = store.begin();
    delete_keys(&store, &mut third, &table, &[5]);
    delete_keys(&store, &mut fourth, &table, &[6]);
    store.insert(&table, &[rows(30..31)]).unwrap();
    third.commit().unwrap();
    fourth.commit().unwrap();
    assert_eq!(keys(&store, &table), [0, 1, 2, 4, 7, 8, 9, 30]);
}

#[test]
fn a_seal_does_not_bring_deleted_rows_back_and_old_positions_stay_good() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let table = store.create_table(definition("t")).unwrap();
    for start in (0..900).step_by(100) {
        store.insert(&table, &[rows(start..start + 100)]).unwrap();
    }
    let mut early = store.begin();
    delete_keys(&store, &mut early, &table, &[250, 899]);
    let mut late = store.begin();
    delete_keys(&store, &mut late, &table, &[250, 0]);
    let mut other = store.begin();
    delete_keys(&store, &mut other, &table, &[251, 0]);
    let old = table.version();
    early.commit().unwrap();
    store.seal(&table).unwrap();
    assert!(late.commit().is_err());
    other.commit().unwrap();
    let expected: Vec<i64> = (0..900).filter(|k| ![0, 250, 251, 899].contains(k)).collect();
    assert_eq!(keys(&store, &table), expected);
    assert_eq!(read(&store, &old).unwrap().num_rows(), 900);
    assert_eq!(table.old_versions().count, 1);
    drop(old);
    assert_eq!(table.old_versions().count, 0);
}

#[test]
fn a_transaction_sees_its_own_changes_and_leaves_no_trace_when_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let table = store.create_table(definition("t")).unwrap();
    store.insert(&table, &[rows(0..10)]).unwrap();
    let charged = store.delta_account().used_bytes();
    let mut transaction = store.begin();
    let seen = table.version();
    let all = seen.live_positions();
    transaction.change(&table, &seen, &all, Some(write(&store, &table, rows(100..2_600)))).unwrap();
    let counts = |view: Arc<TableVersion>| (view.live_rows(), view.chunks.len(), view.statistics.len());
    assert_eq!(counts(transaction.view(&table).unwrap()), (2_500, 3, 3));
    let before = transaction.savepoint();
    for start in (0..1_200).step_by(100) {
        let seen = transaction.view(&table).unwrap();
        let none = RoaringTreemap::new();
        transaction.change(&table, &seen, &none, Some(write(&store, &table, rows(start..start + 100)))).unwrap();
    }
    let view = transaction.view(&table).unwrap();
    assert!(view.delta_rows() < 1_000, "many small inserts become chunks");
    assert_eq!(read(&store, &view).unwrap().num_rows(), 3_700);
    transaction.roll_back_to(before);
    assert_eq!(read(&store, &transaction.view(&table).unwrap()).unwrap().num_rows(), 2_500);
    assert_eq!(keys(&store, &table), (0..10).collect::<Vec<_>>());
    drop((transaction, view));
    assert_eq!(store.delta_account().used_bytes(), charged);
    let files = std::fs::read_dir(dir.path().join("ssd/t1")).map_or(0, Iterator::count);
    assert_eq!(files, 0, "files of the transaction are gone");
}

#[test]
fn deleting_everything_frees_the_files_and_survives_a_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let name = TableName::new("public", "t");
    {
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        let table = store.create_table(definition("t")).unwrap();
        let mut ingest = store.ingest(&table);
        ingest.write(rows(0..5_000)).unwrap();
        ingest.finish().unwrap();
        store.insert(&table, &[rows(5_000..5_010)]).unwrap();
        let mut some = store.begin();
        delete_keys(&store, &mut some, &table, &(1_000..2_000).chain([17, 2_500, 5_003]).collect::<Vec<_>>());
        some.commit().unwrap();
        assert_eq!(table.version().chunks.len(), 4, "a chunk without live rows goes");
        assert_eq!(std::fs::read_dir(dir.path().join("ssd/t1")).unwrap().count(), 4);
    }
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let table = store.table(&name).unwrap();
    let left: Vec<i64> =
        (0..5_010).filter(|k| !(1_000..2_000).contains(k) && ![17, 2_500, 5_003].contains(k)).collect();
    assert_eq!(keys(&store, &table), left);
    let bounds = table.version().statistics.column(0).unwrap().clone();
    assert_eq!(bounds.min.as_primitive::<Int64Type>().values().as_ref(), &[0, 2_000, 3_000, 4_000]);
    let mut all = store.begin();
    let seen = table.version();
    all.change(&table, &seen, &seen.live_positions(), None).unwrap();
    all.commit().unwrap();
    assert_eq!((table.version().chunks.len(), table.version().delta.len()), (0, 0));
    assert!(std::fs::read_dir(dir.path().join("ssd/t1")).unwrap().count() > 0, "an old version is still read");
    drop(seen);
    assert_eq!(std::fs::read_dir(dir.path().join("ssd/t1")).map_or(0, Iterator::count), 0);
    drop((table, store));
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(store.table(&name).unwrap().version().live_rows(), 0);
}

/// An open transaction with the content that it must see.
struct Open {
    transaction: Transaction,
    base: Arc<TableVersion>,
    /// Keys of the base that it deleted, and all keys that it sees.
    deleted: BTreeSet<i64>,
    sees: BTreeSet<i64>,
    /// Keys that others deleted since it began.
    lost: BTreeSet<i64>,
    saved: Option<(Savepoint, BTreeSet<i64>, BTreeSet<i64>)>,
}

/// A table, its model, transactions and readers.
struct World {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    table: Arc<Table>,
    model: BTreeSet<i64>,
    open: Vec<Open>,
    readers: Vec<(Arc<TableVersion>, BTreeSet<i64>)>,
    next_key: i64,
    random: StdRng,
}

impl World {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        let mut random = StdRng::seed_from_u64(seed);
        let mut definition = definition("t");
        definition.options.chunk_rows = random.random_range(3..40);
        let table = store.create_table(definition).unwrap();
        let (model, open, readers) = Default::default();
        Self { dir, store, table, model, open, readers, next_key: 0, random }
    }

    fn fresh(&mut self) -> std::ops::Range<i64> {
        let count = if self.random.random_ratio(1, 8) { 150 } else { 12 };
        let count = self.random.random_range(1..count);
        self.next_key += count;
        self.next_key - count..self.next_key
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..25 => {
                let keys = self.fresh();
                self.store.insert(&self.table, &[rows(keys.clone())]).unwrap();
                self.model.extend(keys);
            }
            25..35 => self.begin(),
            35..70 if !self.open.is_empty() => self.change(),
            70..85 if !self.open.is_empty() => self.end(),
            85..93 => self.store.seal(&self.table).unwrap(),
            93..96 => self.readers.push((self.table.version(), self.model.clone())),
            96..98 => self.reopen(),
            _ => {}
        }
        let found: BTreeSet<i64> = keys(&self.store, &self.table).into_iter().collect();
        assert_eq!(found, self.model);
        assert_eq!(self.table.version().live_rows(), self.model.len() as u64, "no row twice");
    }

    fn begin(&mut self) {
        let transaction = self.store.begin();
        let base = self.table.version();
        let sees = self.model.clone();
        let (deleted, lost, saved) = Default::default();
        self.open.push(Open { transaction, base, deleted, sees, lost, saved });
    }

    fn change(&mut self) {
        let at = self.random.random_range(0..self.open.len());
        let added = self.fresh();
        let deletes = self.random.random_ratio(3, 4);
        let inserts = self.random.random_ratio(1, 2);
        let one_in = self.random.random_range(1..60);
        let open = &mut self.open[at];
        match self.random.random_range(0..10) {
            0 => {
                open.saved = Some((open.transaction.savepoint(), open.deleted.clone(), open.sees.clone()));
                return;
            }
            1 => {
                if let Some((savepoint, deleted, sees)) = open.saved.take() {
                    open.transaction.roll_back_to(savepoint);
                    (open.deleted, open.sees) = (deleted, sees);
                }
                return;
            }
            _ => {}
        }
        let seen = open.transaction.view(&self.table).unwrap_or_else(|| Arc::clone(&open.base));
        let old = read(&self.store, &open.base).unwrap();
        let old: BTreeSet<i64> = old.column(0).as_primitive::<Int64Type>().values().iter().copied().collect();
        let mut to_delete = RoaringTreemap::new();
        for (position, key) in positions(&self.store, &seen) {
            if deletes && self.random.random_ratio(1, one_in) {
                to_delete.insert(position);
                open.sees.remove(&key);
                if old.contains(&key) {
                    open.deleted.insert(key);
                }
            }
        }
        let rows = inserts.then(|| write(&self.store, &self.table, rows(added.clone())));
        if inserts {
            open.sees.extend(added);
        }
        open.transaction.change(&self.table, &seen, &to_delete, rows).unwrap();
        // An empty change is not recorded.
        let view = open.transaction.view(&self.table).unwrap_or(seen);
        let view = read(&self.store, &view).unwrap();
        let view: Vec<i64> = view.column(0).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(view.len(), open.sees.len());
        assert_eq!(view.into_iter().collect::<BTreeSet<_>>(), open.sees);
    }

    fn end(&mut self) {
        let at = self.random.random_range(0..self.open.len());
        let ended = self.open.swap_remove(at);
        if self.random.random_ratio(1, 4) {
            return;
        }
        let old = read(&self.store, &ended.base).unwrap();
        let old: BTreeSet<i64> = old.column(0).as_primitive::<Int64Type>().values().iter().copied().collect();
        let conflicts = !ended.deleted.is_disjoint(&ended.lost);
        match ended.transaction.commit() {
            Ok(()) => {
                assert!(!conflicts, "both deleted {:?}", ended.deleted.intersection(&ended.lost));
                self.model.retain(|k| !ended.deleted.contains(k));
                self.model.extend(ended.sees.difference(&old));
                self.open.iter_mut().for_each(|o| o.lost.extend(&ended.deleted));
            }
            Err(Error::Conflict { .. }) => assert!(conflicts),
            Err(other) => panic!("{other}"),
        }
    }

    fn reopen(&mut self) {
        self.check_readers();
        self.open.clear();
        self.readers.clear();
        let path = self.dir.path().to_owned();
        let name = self.table.name().clone();
        let spare = tempfile::tempdir().unwrap();
        // The old store must be dropped before the new one may open: put a store without tables in its place.
        self.store = Store::open(StoreOptions::new(spare.path())).unwrap();
        self.table = self.store.create_table(definition("spare")).unwrap();
        self.store = Store::open(StoreOptions::new(path)).unwrap();
        self.table = self.store.table(&name).unwrap();
    }

    fn check_readers(&self) {
        for (version, expected) in &self.readers {
            let found = read(&self.store, version).unwrap();
            let found: BTreeSet<i64> = found.column(0).as_primitive::<Int64Type>().values().iter().copied().collect();
            assert_eq!(&found, expected, "a reader of an old version sees the old rows");
        }
    }
}

#[test]
fn random_transactions_seals_and_reopens_agree_with_the_model() {
    for seed in seeds(0..by_depth(1, 6)) {
        let run = || {
            let mut world = World::new(seed);
            (0..150).for_each(|_| world.step());
            world.check_readers();
            world.reopen();
            assert_eq!(keys(&world.store, &world.table), world.model.iter().copied().collect::<Vec<_>>());
        };
        if std::panic::catch_unwind(run).is_err() {
            panic!("failed; replay with TERRACE_SEED={seed}");
        }
    }
}

/// Moves money between two tables in one transaction; false on a conflict.
fn transfer(store: &Arc<Store>, random: &mut StdRng, names: [&str; 2]) -> bool {
    let snapshot = store.snapshot();
    let mut transaction = store.begin();
    for (name, amount) in names.into_iter().zip([-1, 1]) {
        let (table, seen) = snapshot.iter().find(|(t, _)| t.name().name == name).unwrap();
        let balances = live_rows_by_key(store, seen);
        let (id, (position, balance)) = balances.into_iter().nth(random.random_range(0..20)).unwrap();
        let new = write(store, table, pairs([(id, balance + amount)]));
        transaction.change(table, seen, &[position].into_iter().collect(), Some(new)).unwrap();
    }
    match transaction.commit() {
        Ok(()) => true,
        Err(Error::Conflict { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn concurrent_transfers_between_two_tables_keep_the_total() {
    let seed = seeds(0..1)[0];
    let dir = tempfile::tempdir().unwrap();
    let total = |store: &Store| {
        let snapshot = store.snapshot();
        let sums = snapshot.iter().map(|(_, version)| {
            let balances = live_rows_by_key(store, version);
            assert_eq!(balances.len(), 20);
            balances.values().map(|(_, balance)| balance).sum::<i64>()
        });
        sums.sum::<i64>()
    };
    {
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        for name in ["a", "b"] {
            let mut definition = definition(name);
            definition.options.chunk_rows = 7;
            let table = store.create_table(definition).unwrap();
            store.insert(&table, &[pairs((0..20).map(|id| (id, 100)))]).unwrap();
        }
        let done = AtomicBool::new(false);
        let store = &store;
        let done = &done;
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|n| {
                    let mut random = StdRng::seed_from_u64(seed + n);
                    let names = if n % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
                    scope.spawn(move || (0..40).filter(|_| transfer(store, &mut random, names)).count())
                })
                .collect();
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    store.tables().iter().for_each(|t| store.seal(t).unwrap());
                }
            });
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    assert_eq!(total(store), 4_000, "a reader saw half of a transfer");
                }
            });
            let ended: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
            done.store(true, Ordering::SeqCst);
            let ended: usize = ended.into_iter().map(|ended| ended.expect("a writer")).sum();
            assert!(ended > 0, "TERRACE_SEED={seed}");
        });
        assert_eq!(total(store), 4_000);
    }
    assert_eq!(total(&Store::open(StoreOptions::new(dir.path())).unwrap()), 4_000);
}
