//! Sketches of distinct values match the chunks after seals, loads, rewrites, drops and reopens.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_storage::catalog::{Commit, Space};
use terrace_storage::table::{Alteration, Sketch, TableVersion};
use terrace_test_support::depth::by_depth;

use super::tests::{definition, items, keys, rows};
use super::transaction::tests::{delete_keys, write};
use super::*;

fn open(dir: &Path) -> Arc<Store> {
    Store::open(StoreOptions::new(dir)).unwrap()
}

fn table(store: &Store, name: &str) -> Arc<Table> {
    store.table(&TableName::new("public", name)).unwrap()
}

fn load(store: &Arc<Store>, name: &str, range: std::ops::Range<i64>) -> Arc<Table> {
    let mut ingest = store.ingest_new(definition(name), true).unwrap();
    ingest.write(rows(range)).unwrap();
    ingest.finish().unwrap();
    table(store, name)
}

fn delete(store: &Arc<Store>, table: &Arc<Table>, to_delete: &[i64]) {
    let mut transaction = store.begin();
    delete_keys(store, &mut transaction, table, to_delete);
    transaction.commit().unwrap();
}

/// Checks that the sketches of a version are those of the rows of its chunks.
fn assert_right(store: &Store, version: &TableVersion) {
    let items = items(store, version).unwrap();
    for column in 0..2 {
        let arrays = || items.iter().map(|batch| batch.column(column));
        let expected = Sketch::from_arrays(arrays().take(version.chunks.len())).unwrap();
        assert_eq!(version.statistics.sketch(column).unwrap(), Some(&expected), "column {column}");
        let all = Sketch::from_arrays(arrays()).unwrap().estimate().min(version.live_rows() as f64);
        assert_eq!(version.distinct(column).unwrap(), Some(all), "column {column}");
    }
}

fn stored(store: &Store) -> usize {
    let mut found = 0;
    let count = |_: &[u8], _: &[u8]| {
        found += 1;
        Ok(true)
    };
    store.core.catalog.scan(Space::Sketches, &[], count).unwrap();
    found
}

#[test]
fn sketches_follow_the_chunks() {
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..by_depth(2, 6) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        let mut next = 0;
        load(&store, "t", 0..0);
        for _ in 0..25 {
            let t = table(&store, "t");
            let range = next..next + rng.random_range(1..2_500);
            match rng.random_range(0..8) {
                0 | 1 => {
                    let mut ingest = store.ingest(&t);
                    ingest.write(rows(range.clone())).unwrap();
                    ingest.finish().unwrap();
                    next = range.end;
                }
                2 => {
                    let few = next..next + rng.random_range(1..300);
                    store.insert(&t, &[rows(few.clone())]).unwrap();
                    next = few.end;
                }
                3 => store.seal(&t).unwrap(),
                4 => {
                    let all = keys(&store, &t);
                    let from = rng.random_range(0..=all.len());
                    let count = rng.random_range(0..3000);
                    delete(&store, &t, all.get(from..(from + count).min(all.len())).unwrap());
                }
                5 => drop(store.optimize(&t).unwrap()),
                6 => {
                    drop((t, store));
                    store = open(dir.path());
                }
                // Not in every step, so that versions are also made from versions whose sketches were not loaded.
                _ => assert_right(&store, &t.version()),
            }
        }
        let t = table(&store, "t");
        assert_right(&store, &t.version());
        let segments: usize = t.version().chunks.iter().map(|c| c.chunk.segments.len()).sum();
        assert_eq!(stored(&store), segments);
    }
}

#[test]
fn a_long_delta_is_estimated_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut definition = definition("t");
    definition.options.chunk_rows = 65_536;
    let t = store.create_table(definition).unwrap();
    assert_eq!(t.version().distinct(0).unwrap(), Some(0.0));
    for first in (0..20_000).step_by(400) {
        store.insert(&t, &[rows(first..first + 400)]).unwrap();
    }
    let near = |column, count: f64| {
        let found = t.version().distinct(column).unwrap().unwrap();
        assert!((found / count - 1.0).abs() < 0.26, "column {column}: {found}");
    };
    // A seventh of the texts is null.
    near(0, 20_000.0);
    near(1, 20_000.0 * 6.0 / 7.0);
    store.seal(&t).unwrap();
    store.insert(&t, &[rows(0..3_000)]).unwrap();
    near(0, 20_000.0);
    near(1, 20_000.0 * 6.0 / 7.0);
}

#[test]
fn a_transaction_counts_what_it_added() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let t = load(&store, "t", 0..3_000);
    for asked_before in [false, true] {
        if asked_before {
            assert_right(&store, &t.version());
        }
        let mut transaction = store.begin();
        for first in [10_000, 20_000] {
            let seen = transaction.view(&t).unwrap_or_else(|| t.version());
            let added = write(&store, &t, rows(first..first + 4_000));
            transaction.change(&t, &seen, &roaring::RoaringTreemap::new(), Some(added)).unwrap();
            assert_right(&store, &transaction.view(&t).unwrap());
        }
    }
    assert_right(&store, &t.version());
    assert_eq!(stored(&store), 6);
}

#[test]
fn sketches_go_with_their_table_and_column_and_are_copied_with_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    load(&store, "t", 0..2_500);
    load(&store, "gone", 0..1_000);
    assert_eq!(stored(&store), 8);
    store.drop_table(&TableName::new("public", "gone")).unwrap();
    load(&store, "t", 0..3_500);
    assert_eq!(stored(&store), 8);
    let copies = tempfile::tempdir().unwrap();
    let copy = copies.path().join("copy");
    let back = copies.path().join("back");
    store.backup(&copy, &mut |_| true).unwrap();
    store.alter_table(&TableName::new("public", "t"), &[Alteration::DropColumn("k".into())]).unwrap();
    assert_eq!(stored(&store), 4);
    restore(&copy, &back, &mut |_| true).unwrap();
    let store = open(&back);
    assert_right(&store, &table(&store, "t").version());
    assert_eq!(stored(&store), 8);
}

#[test]
fn nothing_is_said_of_chunks_without_sketches_until_they_are_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let t = load(&store, "t", 0..2_500);
    // As an earlier version of the program left it.
    let mut commit = Commit::default();
    commit.delete_prefix(Space::Sketches, Vec::new());
    store.core.catalog.commit(commit).unwrap();
    drop((t, store));
    let distinct = |store: &Store| table(store, "t").version().distinct(0).unwrap();
    let store = open(dir.path());
    assert_eq!(distinct(&store), None);
    store.insert(&table(&store, "t"), &[rows(2_500..2_600)]).unwrap();
    store.seal(&table(&store, "t")).unwrap();
    assert_eq!((distinct(&store), stored(&store)), (None, 2));
    store.close().unwrap();
    drop(store);
    assert_eq!(check(dir.path(), CheckOptions::default(), &mut |_| true).unwrap().findings, []);
    rebuild_catalog(dir.path(), true, 0, &mut |_| true).unwrap();
    let store = open(dir.path());
    assert_right(&store, &table(&store, "t").version());
    assert!(distinct(&store).is_some());
}
