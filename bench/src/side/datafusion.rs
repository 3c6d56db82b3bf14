//! DataFusion without Terrace: the same version, batches and partitions, over memory tables or Parquet files.
//!
//! Rows are dealt to the partitions of a memory table batch by batch, in stored order, so that a filter on the clustered
//! column leaves both partitions equal work. Strings are compacted per batch, as Terrace does.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatchReader;
use datafusion::datasource::MemTable;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::StreamExt;
use terrace_tier_store::tier::codec::normalize;
use tokio::runtime::Runtime;

use super::{Side, ms_since, unknown};
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::tpch::{self, TABLES};

const BATCH_ROWS: usize = 8192;

/// The side.
pub struct Plain {
    runtime: Runtime,
    context: SessionContext,
}

impl Plain {
    fn new(threads: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .map_err(Error::io("cannot start a runtime"))?;
        let config = SessionConfig::new().with_target_partitions(threads).with_batch_size(BATCH_ROWS);
        Ok(Self { runtime, context: SessionContext::new_with_config(config) })
    }

    /// Loads all tables into memory.
    pub fn in_memory(data: &Dataset, threads: usize) -> Result<Self> {
        let side = Self::new(threads)?;
        for table in TABLES {
            let rows = data.read(table.name, BATCH_ROWS)?;
            let schema = rows.schema();
            let mut partitions = vec![Vec::new(); threads.max(1)];
            let count = partitions.len();
            for (number, batch) in rows.enumerate() {
                if let Some(partition) = partitions.get_mut(number % count) {
                    partition.push(normalize(&batch?)?);
                }
            }
            side.context.register_table(table.name, Arc::new(MemTable::try_new(schema, partitions)?))?;
        }
        Ok(side)
    }

    /// Reads the Parquet files in place, with DataFusion's defaults.
    pub fn on_parquet(data: &Dataset, threads: usize) -> Result<Self> {
        let side = Self::new(threads)?;
        for table in TABLES {
            let path = data.parquet(table.name).display().to_string();
            let options = ParquetReadOptions::default();
            side.runtime.block_on(side.context.register_parquet(table.name, &path, options))?;
        }
        Ok(side)
    }

    fn sql(&self, sql: &'static str) -> Result<Sample> {
        let context = self.context.clone();
        let start = Instant::now();
        // On a worker, as the engine runs its statements.
        let task = self.runtime.spawn(async move {
            let mut stream = context.sql(sql).await?.execute_stream().await?;
            let mut rows = 0;
            while let Some(batch) = stream.next().await {
                rows += batch?.num_rows();
            }
            Ok::<_, Error>(rows)
        });
        let rows = self.runtime.block_on(task).map_err(|e| Error::failed(format!("the query ended: {e}")))??;
        Ok(Sample::new(ms_since(start)).with("rows", rows as f64))
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

impl Side for Plain {
    fn run(&mut self, op: &str) -> Result<Sample> {
        match (tpch::query(op), op.split_once(' ')) {
            (Some(sql), _) => self.sql(sql),
            (None, Some(("show", sql))) => self.show(sql),
            _ => Err(unknown(op)),
        }
    }
}
