//! The tier store as a library, without SQL and without a server: make a table, read it, let an epoch place it.
//!
//! ```text
//! cargo run --release -p terrace-tier-store --example library
//! ```

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use terrace_tier_store::heat::Pattern;
use terrace_tier_store::placement::EpochRequest;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Result, Store, StoreOptions};

const ROWS: i64 = 300_000;

fn main() -> Result<()> {
    let data_dir = std::env::temp_dir().join(format!("terrace-library-{}", std::process::id()));
    let store = Store::open(StoreOptions { dram_budget_bytes: 1 << 20, ..StoreOptions::new(&data_dir) })?;

    // A table is made from an Arrow schema; its rows are sealed into chunks of 65,536.
    let schema = Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, false),
        Field::new("text", DataType::Utf8, false),
    ]));
    let table = store.create_table(TableDefinition::new(TableName::new("public", "notes"), Arc::clone(&schema)))?;
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("note {row}"))));
    store.insert(&table, &[RecordBatch::try_new(schema, vec![keys, texts])?])?;
    store.seal(&table)?;

    // Readers take a version and read columns from wherever they lie. A reader counts what it reads: that is what makes a
    // column hot. Here the keys of the last chunk are read again and again.
    let version = table.version();
    println!("{} rows in {} chunks", version.live_rows(), version.chunks.len());
    if let Some(last) = version.chunks.last() {
        for _ in 0..50 {
            store.columns(&last.chunk, &[0])?;
            if let Some(segment) = last.chunk.segments.first() {
                segment.counters.record(Pattern::Sequential, u64::from(last.chunk.rows));
            }
        }
    }

    // An epoch folds the counters into heat, chooses a tier for every segment, and says why it moves what it moves.
    for record in store.tiering().run_epoch(EpochRequest::now("example"))?.moves {
        println!(
            "chunk {} column {}: {} -> {}: {}",
            record.chunk, record.column, record.from, record.to, record.reason
        );
    }
    for tier in store.tier_infos() {
        println!("{tier:?}");
    }

    store.close()?;
    std::fs::remove_dir_all(&data_dir)
        .map_err(|error| terrace_tier_store::Error::io("remove", data_dir.display().to_string(), &error))
}
