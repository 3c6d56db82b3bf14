//! A scan in one thread whose instructions can be counted: four columns of a million rows, all in DRAM, summed; all
//! rows, or those that pass a filter on one of the columns.
//!
//! `callgrind` collects between entry and exit of [`measured_scan`] only, so loading does not count.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch};
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::prelude::{Expr, SessionConfig, SessionContext, col, lit};
use futures::StreamExt;
use terrace_planner_ext::TierTable;
use terrace_tier_store::io::BlockIo;
use terrace_tier_store::io::blocking::BlockingEngine;
use terrace_tier_store::table::{Table, TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

const ROWS: i64 = 1 << 20;
const COLUMNS: [&str; 4] = ["a", "b", "c", "d"];
const SCANS: usize = 4;

/// The side.
pub struct Micro {
    runtime: Runtime,
    store: Arc<Store>,
    table: Arc<Table>,
}

impl Micro {
    /// Loads the rows into a new store in `data_dir`.
    pub fn new(data_dir: &Path) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().build().map_err(Error::io("cannot start a runtime"))?;
        // Under valgrind no other thread runs while one waits in io_uring.
        let io: Arc<dyn BlockIo> = Arc::new(BlockingEngine::start());
        let store = Store::open(StoreOptions { io: Some(io), ..StoreOptions::new(data_dir) })?;
        let column = |factor: i64| -> ArrayRef {
            Arc::new((0..ROWS).map(|row| Some(row.wrapping_mul(factor) % 1009)).collect::<Int64Array>())
        };
        let columns = COLUMNS.iter().zip([1, 7, 31, 127]).map(|(name, factor)| (*name, column(factor)));
        let rows = RecordBatch::try_from_iter(columns)?;
        let name = TableName::new("public", "micro");
        let mut ingest = store.ingest_new(TableDefinition::new(name.clone(), rows.schema()), false)?;
        ingest.write(rows)?;
        ingest.finish()?;
        let table = store.table(&name)?;
        Ok(Self { runtime, store, table })
    }
}

impl Side for Micro {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let filter = match op {
            "scan" => None,
            // A tenth of the rows, a few of each slice.
            "filtered" => Some(col("b").lt(lit(101_i64))),
            _ => return Err(unknown(op)),
        };
        let start = Instant::now();
        for _ in 0..SCANS {
            measured_scan(&self.runtime, &self.store, &self.table, filter.clone())?;
        }
        Ok(Sample::new(ms_since(start)))
    }
}

/// One scan, planning included.
#[inline(never)]
fn measured_scan(runtime: &Runtime, store: &Arc<Store>, table: &Arc<Table>, filter: Option<Expr>) -> Result<()> {
    let source = TierTable::new(Arc::clone(store), Arc::clone(table), table.version());
    let config = SessionConfig::new().with_target_partitions(1);
    let context = SessionContext::new_with_config(config);
    runtime.block_on(async {
        let sums = COLUMNS.iter().map(|c| sum(col(*c))).collect();
        let mut rows = context.read_table(Arc::new(source))?;
        if let Some(filter) = filter {
            rows = rows.filter(filter)?;
        }
        let mut stream = rows.aggregate(Vec::new(), sums)?.execute_stream().await?;
        while let Some(batch) = stream.next().await {
            std::hint::black_box(batch?.column(0).len());
        }
        Ok(())
    })
}
