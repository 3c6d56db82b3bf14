//! Placement rules during inserts, seals, deletes, compactions, alterations, epochs and restarts.
//!
//! `TERRACE_SEED=n` replays one seed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use terrace_model::ColumnId;
use terrace_placement::EpochRequest;
use terrace_storage::table::{Alteration, Comparison, Literal, Predicate, TableDefinition};
use terrace_test_support::depth::{by_depth, is_deep};
use terrace_test_support::seeds::{SeedReport, requested_seeds, seeds};

use super::super::tests::{definition, keys, rows};
use super::super::transaction::tests::delete_keys;
use super::*;
use crate::{Store, StoreOptions};

fn open(dir: &std::path::Path, dram: u64) -> Arc<Store> {
    let mut options = StoreOptions::new(dir);
    (options.dram_budget_bytes, options.epoch_interval, options.compaction_bytes_per_s) = (dram, None, 0);
    Store::open(options).unwrap()
}

fn name() -> TableName {
    definition("t").name
}

fn new_rule(kind: RuleKind, tier: &str, columns: &[u32], rows: RuleRows) -> NewRule {
    NewRule { kind, tier: tier.into(), columns: columns.iter().copied().map(ColumnId).collect(), rows, form: None }
}

fn chunks(ids: impl IntoIterator<Item = u64>) -> RuleRows {
    RuleRows::Chunks(ids.into_iter().map(ChunkId).collect())
}

fn keys_from(key: i64) -> RuleRows {
    let value: ArrayRef = Arc::new(Int64Array::from(vec![key]));
    RuleRows::Where(Predicate::Compare(ColumnId(0), Comparison::GtEq, Literal::new(&value).unwrap()))
}

fn sqls(store: &Store) -> Vec<String> {
    let table = store.table(&name()).unwrap();
    let names = |column| table.definition().column_name(column);
    table.version().rules.iter().map(|rule| format!("{}: {}", rule.number, rule.sql(&names))).collect()
}

/// Chunk and column of the segments with a copy in DRAM.
fn resident(store: &Store) -> Vec<(u64, u32)> {
    let version = store.table(&name()).unwrap().version();
    let segments = version.chunks.iter().flat_map(|c| c.chunk.segments.iter().map(|s| (c.chunk.id.0, s)));
    segments.filter(|(_, s)| s.resident.load().is_some()).map(|(id, s)| (id, s.column.0)).collect()
}

fn epoch(store: &Store) {
    store.tiering().run_epoch(EpochRequest::now("test")).unwrap();
}

/// Four chunks of 1,000 rows, nothing in DRAM.
fn four_chunks(dir: &std::path::Path, dram: u64) -> Arc<Store> {
    let store = open(dir, 0);
    let table = store.create_table(definition("t")).unwrap();
    store.insert(&table, &[rows(0..4_000)]).unwrap();
    store.seal(&table).unwrap();
    store.tiering().set_budget("dram", dram).unwrap();
    assert!(resident(&store).is_empty());
    store
}

#[test]
fn rules_follow_their_table_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = four_chunks(dir.path(), 1 << 20);
    store.add_rule(&name(), new_rule(RuleKind::Pin, "dram", &[0], chunks([1, 2, 77]))).unwrap();
    store.add_rule(&name(), new_rule(RuleKind::Pin, "dram", &[1], keys_from(3_000))).unwrap();
    store.add_rule(&name(), new_rule(RuleKind::Exclude, "dram", &[], chunks([2]))).unwrap();
    store.add_rule(&name(), new_rule(RuleKind::Prefer, "ssd", &[1], RuleRows::All)).unwrap();
    epoch(&store);
    assert_eq!(resident(&store), [(1, 0), (3, 1)]);
    store.alter_table(&name(), &[Alteration::RenameColumn { from: "k".into(), to: "key".into() }]).unwrap();
    let said = [
        "1: PIN COLUMNS (key) CHUNKS 1 TO 2 TO dram",
        "2: PIN COLUMNS (v) WHERE key >= 3000 TO dram",
        "3: EXCLUDE CHUNKS 2 FROM dram",
        "4: PREFER COLUMNS (v) ON ssd",
    ];
    assert_eq!(sqls(&store), said);
    drop(store);
    let store = open(dir.path(), 1 << 20);
    assert_eq!(sqls(&store), said);
    epoch(&store);
    assert_eq!(resident(&store), [(1, 0), (3, 1)]);
    let statuses = store.rule_statuses(&|_| true);
    let figures: Vec<_> = statuses.iter().map(|s| (s.segments, s.met, s.overruled_bytes > 0)).collect();
    assert_eq!(figures, [(2, true, true), (1, true, false), (2, true, false), (4, true, true)]);
    assert_eq!(statuses[0].met_bytes + statuses[0].overruled_bytes, statuses[0].bytes);

    store.alter_table(&name(), &[Alteration::DropColumn("v".into())]).unwrap();
    assert_eq!(sqls(&store), [said[0], said[2]]);
    let table = store.table(&name()).unwrap();
    let mut transaction = store.begin();
    let to_delete: Vec<i64> = (1_000..3_000).collect();
    delete_rows(&mut transaction, &table, &to_delete);
    transaction.commit().unwrap();
    assert!(sqls(&store).is_empty(), "their last chunk is gone");
    drop((store, table));
    let store = open(dir.path(), 0);
    assert!(sqls(&store).is_empty());
    store.drop_table(&name()).unwrap();
    store.create_table(definition("t")).unwrap();
    let rule = store.add_rule(&name(), new_rule(RuleKind::Exclude, "dram", &[], RuleRows::All)).unwrap();
    assert_eq!((rule.number, sqls(&store).len()), (1, 1));
}

#[test]
fn a_rule_about_a_form_is_overruled_by_a_later_one_and_holds_where_there_is_no_such_form() {
    let dir = tempfile::tempdir().unwrap();
    let store = four_chunks(dir.path(), 1 << 20);
    let packed = |kind| NewRule { form: Some(Form::Packed), ..new_rule(kind, "dram", &[0], RuleRows::All) };
    let outcomes = |table: &TableName| -> Vec<[bool; 3]> {
        let statuses = store.rule_statuses(&|name| name == table);
        statuses.iter().map(|s| [s.met_bytes, s.unmet_bytes, s.overruled_bytes].map(|bytes| bytes > 0)).collect()
    };
    store.add_rule(&name(), packed(RuleKind::Pin)).unwrap();
    epoch(&store);
    assert_eq!(outcomes(&name()), [[true, false, false]]);
    store.add_rule(&name(), packed(RuleKind::Exclude)).unwrap();
    epoch(&store);
    assert_eq!(outcomes(&name()), [[false, false, true], [true, false, false]]);
    // Floats have no packed form.
    let floats: ArrayRef = Arc::new(arrow::array::Float64Array::from_iter_values((0..1000).map(f64::from)));
    let floats = arrow::array::RecordBatch::try_from_iter([("x", floats)]).unwrap();
    let floats_name = TableName::new("public", "floats");
    let table = store.create_table(TableDefinition::new(floats_name.clone(), floats.schema())).unwrap();
    store.insert(&table, &[floats]).unwrap();
    store.seal(&table).unwrap();
    store.add_rule(&floats_name, packed(RuleKind::Exclude)).unwrap();
    assert_eq!(outcomes(&floats_name), [[true, false, false]]);
}

/// Deletes keys of a table with one column, by position.
fn delete_rows(transaction: &mut crate::store::Transaction, table: &Arc<Table>, to_delete: &[i64]) {
    let version = table.version();
    let mut positions = roaring::RoaringTreemap::new();
    for key in to_delete {
        positions.insert(TableVersion::position((*key / 1_000) as u32, (*key % 1_000) as u32));
    }
    transaction.change(table, &version, &positions, None).unwrap();
}

#[test]
fn what_cannot_be_is_refused_with_the_figures() {
    let dir = tempfile::tempdir().unwrap();
    let store = four_chunks(dir.path(), 5_000);
    let refused = |wish| store.add_rule(&name(), wish).unwrap_err().to_string();
    let too_much = refused(new_rule(RuleKind::Pin, "dram", &[0], RuleRows::All));
    assert!(too_much.starts_with("pins need 8.0 KiB of dram, the budget is 4.9 KiB; 3.1 KiB too much"), "{too_much}");
    let homeless = refused(new_rule(RuleKind::Exclude, "ssd", &[0], RuleRows::All));
    // There is only one other tier.
    assert!(homeless.starts_with("pins need 8.0 KiB of dram"), "{homeless}");
    let unknown = refused(new_rule(RuleKind::Pin, "tape", &[0], RuleRows::All));
    assert!(unknown.contains("tier 'tape' does not exist; the tiers are dram, ssd"), "{unknown}");
    let absent = refused(new_rule(RuleKind::Pin, "dram", &[0], chunks([8, 9])));
    assert!(absent.contains("no chunk of 8 TO 9; its chunks are 0 TO 3"), "{absent}");
    assert!(sqls(&store).is_empty());

    store.add_rule(&name(), new_rule(RuleKind::Pin, "dram", &[0], chunks([0, 1]))).unwrap();
    let error = store.tiering().set_budget("dram", 2_500).unwrap_err().to_string();
    assert!(error.contains("pins need 4.0 KiB of dram, the budget is 2.4 KiB; 1.6 KiB too much"), "{error}");
    store.tiering().set_budget("dram", 4_096).unwrap();
    // A rule that needs no more memory may be added although others are not met.
    drop(store);
    let store = open(dir.path(), 2_250);
    epoch(&store);
    assert_eq!(resident(&store), [(0, 0)]);
    assert_eq!(store.tiering().metrics().given_way_segments.load(std::sync::atomic::Ordering::Relaxed), 1);
    store.add_rule(&name(), new_rule(RuleKind::Exclude, "dram", &[1], RuleRows::All)).unwrap();
    assert!(store.drop_rules(&name(), &RuleChoice::Number(9)).is_err());
    store.drop_rules(&name(), &RuleChoice::Pins).unwrap();
    epoch(&store);
    assert_eq!(store.tiering().metrics().given_way_segments.load(std::sync::atomic::Ordering::Relaxed), 0);
    store.tiering().set_budget("dram", 0).unwrap();
}

#[test]
fn new_chunks_start_where_rules_say() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1 << 20);
    let mut definition = definition("t");
    definition.options.admission = terrace_storage::table::ChunkAdmission::Ssd;
    let table = store.create_table(definition).unwrap();
    store.add_rule(&name(), new_rule(RuleKind::Pin, "dram", &[0], keys_from(1_000))).unwrap();
    let mut ingest = store.ingest(&table);
    ingest.write(rows(0..2_000)).unwrap();
    ingest.finish().unwrap();
    assert_eq!(resident(&store), [(1, 0)]);
    store.add_rule(&name(), new_rule(RuleKind::Exclude, "dram", &[0], RuleRows::All)).unwrap();
    store.insert(&table, &[rows(2_000..3_000)]).unwrap();
    store.seal(&table).unwrap();
    assert_eq!(resident(&store), [(1, 0)], "resident segments leave with the next epoch");
    epoch(&store);
    assert!(resident(&store).is_empty());
}

/// A store under random changes, and for each rule on chunks the keys that it was made for.
struct Life {
    rng: StdRng,
    dir: tempfile::TempDir,
    store: Option<Arc<Store>>,
    named: BTreeMap<u64, BTreeSet<i64>>,
    next_key: i64,
    compactions: u64,
}

impl Life {
    fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    fn table(&self) -> Arc<Table> {
        self.store().table(&name()).unwrap()
    }

    /// The live keys of each chunk.
    fn keys_by_chunk(&self) -> BTreeMap<u64, BTreeSet<i64>> {
        let version = self.table().version();
        let items = super::super::tests::items(self.store(), &version).unwrap();
        let live = |entry: &terrace_storage::table::ChunkEntry, batch: &arrow::array::RecordBatch| {
            let keys = batch.column(0).as_primitive::<Int64Type>().values().iter().zip(0..);
            let deleted = |row| entry.deletions.as_ref().is_some_and(|d| d.contains(row));
            keys.filter(|(_, row)| !deleted(*row)).map(|(key, _)| *key).collect()
        };
        version.chunks.iter().zip(&items).map(|(entry, batch)| (entry.chunk.id.0, live(entry, batch))).collect()
    }

    fn step(&mut self) {
        let store = Arc::clone(self.store());
        let table = self.table();
        match self.rng.random_range(0..12) {
            0..3 => {
                let count = [20, 100, 600][self.rng.random_range(0..3)];
                store.insert(&table, &[rows(self.next_key..self.next_key + count)]).unwrap();
                self.next_key += count;
                store.seal(&table).unwrap();
            }
            3..5 => {
                let all = keys(&store, &table);
                let count = all.len() / [50, 3][self.rng.random_range(0..2)];
                let to_delete = all.into_iter().choose_multiple(&mut self.rng, count);
                let mut transaction = store.begin();
                delete_keys(&store, &mut transaction, &table, &to_delete);
                transaction.commit().unwrap();
                self.named.values_mut().for_each(|keys| keys.retain(|key| !to_delete.contains(key)));
            }
            5 => self.compactions += u64::from(store.optimize(&table).unwrap().chunks_in > 0),
            6..9 => self.rule(),
            9 => {
                let rules: Vec<u64> = table.version().rules.iter().map(|rule| rule.number).collect();
                if let Some(number) = rules.into_iter().choose(&mut self.rng) {
                    store.drop_rules(&name(), &RuleChoice::Number(number)).unwrap();
                    self.named.remove(&number);
                }
            }
            10 => {
                let bytes = self.rng.random_range(0..200_000);
                let _ = store.tiering().set_budget("dram", bytes);
            }
            _ => {
                drop((store, table));
                self.store = None;
                self.store = Some(open(self.dir.path(), self.rng.random_range(0..200_000)));
            }
        }
        // A rule whose last chunk was removed is dropped.
        self.named.retain(|_, keys| !keys.is_empty());
        self.check();
    }

    fn rule(&mut self) {
        let by_chunk = self.keys_by_chunk();
        let kind = [RuleKind::Pin, RuleKind::Pin, RuleKind::Exclude, RuleKind::Prefer][self.rng.random_range(0..4)];
        let tier = ["dram", "ssd"][self.rng.random_range(0..2)];
        let columns: &[u32] = [&[][..], &[0], &[1], &[0, 1]][self.rng.random_range(0..4)];
        let chosen: BTreeSet<u64> = by_chunk.keys().copied().filter(|_| self.rng.random_bool(0.3)).collect();
        let rows = match self.rng.random_range(0..4) {
            0 => RuleRows::All,
            1 => keys_from(self.rng.random_range(0..self.next_key + 1)),
            _ if chosen.is_empty() => return,
            _ => chunks(chosen.iter().copied()),
        };
        let by_chunks = matches!(rows, RuleRows::Chunks(_));
        let before: BTreeSet<u64> = self.table().version().rules.iter().map(|rule| rule.number).collect();
        if let Ok(rule) = self.store().add_rule(&name(), new_rule(kind, tier, columns, rows)) {
            if by_chunks {
                let keys = chosen.iter().flat_map(|chunk| by_chunk[chunk].iter().copied()).collect();
                self.named.insert(rule.number, keys);
            }
            // A rule that was added again replaced the first one.
            let after: BTreeSet<u64> = self.table().version().rules.iter().map(|rule| rule.number).collect();
            self.named.retain(|number, _| !before.contains(number) || after.contains(number));
        }
    }

    fn check(&self) {
        let version = self.table().version();
        let by_chunk = self.keys_by_chunk();
        let mut named: BTreeMap<u64, BTreeSet<i64>> = BTreeMap::new();
        for rule in version.rules.iter() {
            if let RuleRows::Chunks(chunks) = &rule.spec.rows {
                let keys = chunks.iter().flat_map(|chunk| by_chunk[&chunk.0].iter().copied());
                named.insert(rule.number, keys.collect());
            }
        }
        assert_eq!(named, self.named, "rules are on the rows they were made for, and on no others");
    }

    fn check_epoch(&self) {
        let store = self.store();
        epoch(store);
        for tier in store.memory_tiers().iter() {
            assert!(tier.account().used_bytes() <= tier.account().limit_bytes());
        }
        let homeless = Feasibility::for_tables(store.core(), &TieringHost::tables(store.core())).homeless_bytes();
        let statuses = store.rule_statuses(&|_| true);
        let hard = statuses.iter().filter(|status| status.kind != "prefer");
        let unmet: Vec<_> = hard.filter(|status| !status.met).collect();
        assert!(unmet.is_empty() || homeless > 0, "{unmet:?}");
        // An exclusion from DRAM costs nothing, so it never gives way.
        assert!(unmet.iter().all(|status| status.kind == "pin" || status.tier == "ssd"), "{unmet:?}");
        assert!(unmet.iter().all(|status| status.unmet_bytes <= homeless), "{unmet:?}");
    }
}

#[test]
fn rules_hold_through_random_lives() {
    let mut compactions = 0;
    for seed in seeds(0..by_depth(2, 12)) {
        let _seed_report = SeedReport(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), rng.random_range(0..200_000));
        store.create_table(definition("t")).unwrap();
        let mut life = Life { rng, dir, store: Some(store), named: BTreeMap::new(), next_key: 0, compactions: 0 };
        for _ in 0..60 {
            life.step();
            if life.rng.random_bool(0.5) {
                life.check_epoch();
            }
        }
        compactions += life.compactions;
    }
    assert!(compactions > 10 || !is_deep() || requested_seeds().is_some(), "{compactions} compactions");
}
