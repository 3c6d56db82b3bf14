//! A store in this process with one table that has a primary key, enforced or only declared.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use terrace_tier_store::table::{Table, TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

use super::{Side, ms_since, unknown};
use crate::error::Result;
use crate::row::Sample;

/// Rows per batch of a bulk load.
const BATCH_ROWS: u64 = 8192;

/// The side.
pub struct Keys {
    store: Arc<Store>,
    table: Arc<Table>,
    random: bool,
    next: u64,
}

impl Keys {
    /// A new store with an empty table.
    pub fn new(data_dir: &Path, enforced: bool, random: bool, cold: bool) -> Result<Self> {
        let mut options = StoreOptions::new(data_dir);
        if cold {
            options.dram_budget_bytes = 0;
        }
        let store = Store::open(options)?;
        let mut definition = TableDefinition::new(TableName::new("public", "t"), rows(0..0, false)?.schema());
        definition.primary_key = vec!["k".to_owned()];
        definition.options.enforce_primary_key = enforced;
        let table = store.create_table(definition)?;
        Ok(Self { store, table, random, next: 0 })
    }

    fn rows(&mut self, count: u64) -> Result<RecordBatch> {
        self.next += count;
        rows(self.next - count..self.next, self.random)
    }

    /// Loads `count` rows with new keys as chunks, in one commit.
    fn load(&mut self, count: u64) -> Result<Sample> {
        let parts = (0..count).step_by(BATCH_ROWS as usize).map(|start| self.rows(BATCH_ROWS.min(count - start)));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let start = Instant::now();
        let mut ingest = self.store.ingest(&self.table);
        parts.into_iter().try_for_each(|part| ingest.write(part))?;
        ingest.finish()?;
        Ok(Sample::new(ms_since(start)).with("rows", count as f64))
    }

    /// Inserts `count` rows at a time, durably, until the time is over.
    fn insert(&mut self, count: u64, duration: Duration) -> Result<Sample> {
        let start = Instant::now();
        let mut inserts = 0_u64;
        while start.elapsed() < duration {
            let rows = self.rows(count)?;
            self.store.insert(&self.table, &[rows])?;
            inserts += 1;
        }
        Ok(Sample::new(ms_since(start)).with("inserts", inserts as f64).with("rows", (inserts * count) as f64))
    }
}

impl Side for Keys {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let words: Vec<&str> = op.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| unknown(op));
        match words.as_slice() {
            ["load", rows] => self.load(number(rows)?),
            ["insert", rows, ms] => self.insert(number(rows)?, Duration::from_millis(number(ms)?)),
            _ => Err(unknown(op)),
        }
    }
}

/// Rows with different keys, rising or spread over all numbers.
fn rows(numbers: std::ops::Range<u64>, random: bool) -> Result<RecordBatch> {
    // Multiplying by an odd factor maps numbers to different numbers.
    let key = |n: u64| if random { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64 } else { n as i64 };
    let keys: ArrayRef = Arc::new(numbers.clone().map(key).collect::<Int64Array>());
    let values: ArrayRef = Arc::new(numbers.map(|n| n as i64).collect::<Int64Array>());
    let field = |name: &str| Field::new(name, DataType::Int64, false);
    Ok(RecordBatch::try_new(Arc::new(Schema::new(vec![field("k"), field("v")])), vec![keys, values])?)
}
