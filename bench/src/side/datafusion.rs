//! DataFusion without Terrace: the same version, batches and partitions, over memory tables or Parquet files. Over
//! memory tables it has Terrace's thresholds for joins; "leaf qN" reads them through [`super::leaf`].
//!
//! Rows are distributed to the partitions of a memory table batch by batch, in stored order, so that a filter on the
//! clustered column leaves equal work for all partitions. Strings are compacted per batch, as Terrace does.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{RecordBatch, RecordBatchReader};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::StreamExt;
use terrace_planner_ext::scan::join_thresholds;
use terrace_tier_store::tier::codec::normalize;
use tokio::runtime::Runtime;

use super::leaf::{self, LeafTable};
use super::{Side, unknown};
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::{ssb, tpch};

const BATCH_ROWS: usize = 8192;

/// The side.
pub struct Plain {
    runtime: Runtime,
    context: SessionContext,
    /// The tables behind leaves.
    leaves: SessionContext,
}

impl Plain {
    fn new(threads: usize, config: SessionConfig) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .map_err(Error::io("cannot start a runtime"))?;
        let config = config.with_target_partitions(threads).with_batch_size(BATCH_ROWS);
        let leaves = SessionContext::new_with_config(config.clone());
        Ok(Self { runtime, context: SessionContext::new_with_config(config), leaves })
    }

    /// Loads all tables into memory.
    pub fn in_memory(data: &Dataset, threads: usize) -> Result<Self> {
        let side = Self::new(threads, join_thresholds(SessionConfig::new()))?;
        for table in data.tables() {
            let rows = data.read(table, BATCH_ROWS)?;
            let schema = rows.schema();
            let mut partitions = vec![Vec::new(); threads.max(1)];
            let count = partitions.len();
            for (number, batch) in rows.enumerate() {
                if let Some(partition) = partitions.get_mut(number % count) {
                    partition.push(normalize(&batch?)?);
                }
            }
            let rows = partitions.iter().flatten().map(RecordBatch::num_rows).sum();
            let stored = Arc::new(MemTable::try_new(schema, partitions)?);
            let leaf = LeafTable::new(table, rows, Arc::clone(&stored) as _);
            side.leaves.register_table(table, Arc::new(leaf))?;
            side.context.register_table(table, stored)?;
        }
        Ok(side)
    }

    /// Reads the Parquet files in place, with DataFusion's defaults.
    pub fn on_parquet(data: &Dataset, threads: usize) -> Result<Self> {
        let side = Self::new(threads, SessionConfig::new())?;
        for table in data.tables() {
            let path = data.parquet(table).display().to_string();
            let options = ParquetReadOptions::default();
            side.runtime.block_on(side.context.register_parquet(table, &path, options))?;
        }
        Ok(side)
    }

    fn show(&self, sql: &str) -> Result<Sample> {
        let sql = match sql.rsplit_once(' ') {
            Some((head, q)) if tpch::query(q).is_some() => format!("{head} {}", tpch::query(q).unwrap_or_default()),
            _ => sql.to_owned(),
        };
        let batches = self.runtime.block_on(async { self.context.sql(&sql).await?.collect().await })?;
        eprintln!("{}", arrow::util::pretty::pretty_format_batches(&batches)?);
        Ok(Sample::default())
    }
}

/// Runs a query in a context, on a worker, as the engine runs its statements. `plan` is the digest of its plan.
pub fn run_query(runtime: &Runtime, context: &SessionContext, sql: &'static str) -> Result<Sample> {
    let context = context.clone();
    let task = runtime.spawn(async move {
        let start = Instant::now();
        let plan = context.sql(sql).await?.create_physical_plan().await?;
        let planned = start.elapsed();
        // Take the digest before the query runs: the plan's text includes filters that joins make at run time.
        let digest = leaf::digest(&plan);
        let start = Instant::now();
        let mut stream = execute_stream(plan, context.task_ctx())?;
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            rows += batch?.num_rows();
        }
        let ms = (planned + start.elapsed()).as_secs_f64() * 1e3;
        Ok::<_, Error>(Sample::new(ms).with("rows", rows as f64).with("plan", digest))
    });
    runtime.block_on(task).map_err(|e| Error::failed(format!("the query ended: {e}")))?
}

/// The query of "leaf qN".
pub fn leaf_query(op: &str) -> Option<&'static str> {
    tpch::query(op.strip_prefix("leaf ")?)
}

impl Side for Plain {
    fn run(&mut self, op: &str) -> Result<Sample> {
        if let Some(sql) = leaf_query(op) {
            return run_query(&self.runtime, &self.leaves, sql);
        }
        match (tpch::query(op).or_else(|| ssb::query(op)), op.split_once(' ')) {
            (Some(sql), _) => run_query(&self.runtime, &self.context, sql),
            (None, Some(("show", sql))) => self.show(sql),
            _ => Err(unknown(op)),
        }
    }
}
