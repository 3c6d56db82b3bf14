#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use terrace_model::TableName;
use terrace_storage::table::Durability;
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, seeds};

use super::super::tests::{definition, keys, rows};
use super::super::transaction::tests::delete_keys;
use super::*;
use crate::store::{Store, StoreOptions, Transaction};

fn open(dir: &Path) -> Arc<Store> {
    Store::open(StoreOptions::new(dir)).unwrap()
}

#[test]
fn a_long_delta_has_few_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (name, durability) in [("logged", Durability::Full), ("volatile", Durability::None)] {
        let mut definition = definition(name);
        (definition.options.chunk_rows, definition.options.durability) = (65_536, durability);
        let table = store.create_table(definition).unwrap();
        let mut most = 0;
        for key in 0..3_000 {
            store.insert(&table, &[rows(key..key + 1)]).unwrap();
            most = most.max(table.version().delta.len());
        }
        assert!(most < 45, "{name}: {most} entries");
        // A fold takes a sequence number like an insert: every sixteenth and every 256th insert causes one.
        let folds = table.version().delta.iter().map(|rows| rows.entry.sequence).max().unwrap() - 2_999;
        assert!(folds < 3_000 / 16 + 3_000 / 256 + 3, "{name}: {folds} folds");
        assert!(table.version().chunks.is_empty());
        assert_eq!(keys(&store, &table), (0..3_000).collect::<Vec<_>>());
        let charged: u64 = table.version().delta.iter().map(|rows| rows.entry.bytes()).sum();
        assert!(charged < 3_000 * 150, "{name}: {charged} bytes; entries that were folded are gone");
    }
    store.close().unwrap();
    drop(store);
    let table = |store: &Store, name: &str| store.table(&TableName::new("public", name)).unwrap();
    let store = open(dir.path());
    assert_eq!(keys(&store, &table(&store, "logged")), (0..3_000).collect::<Vec<_>>());
    assert!(table(&store, "logged").version().delta.len() < 45, "the folded entries are stored folded");
    assert_eq!(keys(&store, &table(&store, "volatile")), (0..3_000).collect::<Vec<_>>());
}

#[test]
fn large_entries_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut definition = definition("t");
    definition.options.chunk_rows = 65_536;
    let table = store.create_table(definition).unwrap();
    for first in (0..18).map(|n| n * 3_600) {
        store.insert(&table, &[rows(first..first + 3_600)]).unwrap();
    }
    assert!(table.version().delta.iter().all(|rows| rows.entry.bytes() >= 64 << 10));
    assert_eq!(table.version().delta.len(), 18);
}

/// Writers that read before one or several folds delete the rows that they chose, or find them deleted.
#[test]
fn deletions_of_old_versions_follow_the_rows() {
    for seed in seeds(0..by_depth(2, 12)) {
        let _seed_report = SeedReport(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut store = open(dir.path());
        let mut definition = definition("t");
        definition.options.chunk_rows = 4_096;
        store.create_table(definition).unwrap();
        let mut model = BTreeSet::new();
        let mut next = 0;
        // Open transactions and what each of them deletes.
        let mut open_ones: Vec<(Transaction, BTreeSet<i64>)> = Vec::new();
        for step in 0..900 {
            let table = store.table(&TableName::new("public", "t")).unwrap();
            match rng.random_range(0..100) {
                0..70 => {
                    let count = if rng.random_bool(0.05) { rng.random_range(100..600) } else { rng.random_range(1..4) };
                    store.insert(&table, &[rows(next..next + count)]).unwrap();
                    model.extend(next..next + count);
                    next += count;
                }
                70..85 if !model.is_empty() => {
                    let to_delete: BTreeSet<i64> =
                        model.iter().copied().choose_multiple(&mut rng, 5).into_iter().collect();
                    let mut transaction = store.begin();
                    delete_keys(&store, &mut transaction, &table, &to_delete.iter().copied().collect::<Vec<_>>());
                    open_ones.push((transaction, to_delete));
                }
                85..97 if !open_ones.is_empty() => {
                    let (transaction, to_delete) = open_ones.swap_remove(rng.random_range(0..open_ones.len()));
                    let all_there = to_delete.is_subset(&model);
                    assert_eq!(transaction.commit().is_ok(), all_there, "seed {seed}, step {step}: {to_delete:?}");
                    if all_there {
                        model.retain(|key| !to_delete.contains(key));
                    }
                }
                97 => store.seal(&table).unwrap(),
                98 => drop(store.optimize(&table).unwrap()),
                99 => {
                    open_ones.clear();
                    drop((table, store));
                    store = open(dir.path());
                }
                _ => {}
            }
            if step % 50 == 0 {
                let table = store.table(&TableName::new("public", "t")).unwrap();
                assert_eq!(keys(&store, &table), model.iter().copied().collect::<Vec<_>>(), "seed {seed}, step {step}");
                assert!(table.version().delta.len() < 60, "seed {seed}, step {step}");
            }
        }
    }
}
