//! A store on the disk and the NVDIMM of a virtual machine that is killed while it works. `tests/dax/run.sh` runs it.
//!
//! The operations are fixed, so that the number of operations determines the state. Each number is printed when the
//! operation is acknowledged; the host keeps the console, kills the machine, boots it again and passes the last number
//! it saw. The state must be the one after that operation, or after the next one, whose line may not have been printed.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::PathBuf;

use roaring::RoaringTreemap;
use terrace_model::Pattern;
use terrace_placement::EpochRequest;
use terrace_storage::table::TableVersion;
use terrace_storage::tier::nvm::NvmBacking;

use super::tests::{definition, items, keys, rows};
use super::*;
use arrow::array::cast::AsArray;
use arrow::datatypes::Int64Type;

/// Keys that an operation inserts.
fn added(operation: i64) -> std::ops::Range<i64> {
    let start = operation * 10_000;
    match operation % 10 {
        3 => start..start + 5_000,
        8 | 9 => start..start,
        digit => start..start + 1 + 37 * digit,
    }
}

/// The operation whose rows an operation deletes, if it deletes any.
fn deletes(operation: i64) -> Option<i64> {
    (operation % 10 == 8).then_some(operation - 5)
}

/// Keys after the first `done` operations.
fn state(done: i64) -> BTreeSet<i64> {
    let gone: BTreeSet<i64> = (0..done).filter_map(deletes).collect();
    (0..done).filter(|operation| !gone.contains(operation)).flat_map(added).collect()
}

fn perform(store: &Arc<Store>, table: &Arc<Table>, operation: i64) {
    let batch = rows(added(operation));
    if let Some(to_delete) = deletes(operation) {
        let version = table.version();
        let to_delete = added(to_delete);
        let mut positions = RoaringTreemap::new();
        for (batch, item) in items(store, &version).unwrap().iter().zip(0..) {
            for (key, row) in batch.column(0).as_primitive::<Int64Type>().values().iter().zip(0..) {
                if to_delete.contains(key) {
                    positions.insert(TableVersion::position(item, row));
                }
            }
        }
        let mut transaction = store.begin();
        transaction.change(table, &version, &positions, None).unwrap();
        transaction.commit().unwrap();
    } else if batch.num_rows() == 0 {
        for segment in table.version().chunks.iter().flat_map(|entry| entry.chunk.segments.iter()) {
            segment.counters.record(Pattern::Sequential, 100_000);
        }
        store.tiering().run_epoch(EpochRequest::now("test")).unwrap();
    } else if batch.num_rows() > 1_000 {
        let mut ingest = store.ingest(table);
        ingest.write(batch).unwrap();
        ingest.finish().unwrap();
    } else {
        store.insert(table, &[batch]).unwrap();
    }
}

#[test]
#[ignore = "needs a machine that is killed while it works (TERRACE_TEST_DISK_DIR); tests/dax/run.sh boots one"]
fn a_store_survives_the_death_of_its_machine() {
    let folder = |name| std::env::var_os(name).unwrap_or_else(|| panic!("{name} names a folder"));
    let disk = folder("TERRACE_TEST_DISK_DIR");
    let pool = folder("TERRACE_TEST_DAX_DIR");
    let acknowledged: Option<i64> = std::env::var("TERRACE_TEST_ACKNOWLEDGED").ok().map(|text| text.parse().unwrap());
    let mut options = StoreOptions::new(PathBuf::from(disk).join("data"));
    options.dram_budget_bytes = 64 << 10;
    let backing = NvmBacking::Path(PathBuf::from(pool).join("store.pool"));
    options.nvm = Some(NvmOptions { backing, capacity_bytes: 1 << 20, limiter: None });
    let store = Store::open(options).unwrap();
    let name = definition("t").name;
    let (table, mut done) = match acknowledged {
        None => (store.create_table(definition("t")).unwrap(), 0),
        Some(last) => {
            let table = store.table(&name).unwrap();
            let found: BTreeSet<i64> = keys(&store, &table).into_iter().collect();
            assert_eq!(found.len() as u64, table.version().live_rows(), "a row occurs twice");
            let done = (last + 1..last + 3).find(|done| state(*done) == found);
            println!("TERRACE-STORE-CHECKED {last} {}", found.len());
            (
                table,
                done.unwrap_or_else(|| {
                    panic!("after {last}: {} rows, {} expected", found.len(), state(last + 1).len())
                }),
            )
        }
    };
    loop {
        perform(&store, &table, done);
        println!("TERRACE-STORE-DID {done}");
        done += 1;
    }
}
