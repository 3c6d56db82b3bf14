//! db-benchmark of H2O.ai and DuckDB Labs: its tables, drawn by us to its specification, without missing values and in
//! random order, and its queries.
//!
//! ```text
//!   <data-dir>/db-benchmark-<rows>/parquet/<table>.parquet     what DuckDB loads
//!   <data-dir>/db-benchmark-<rows>/store/                      what Terrace opens, through a clone
//! ```
//!
//! - [`draw`]: the rows of the tables
//! - [`queries`]: ten queries that group rows, five that join them, and what is compared of their answers

mod draw;
mod queries;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatchReader;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

pub use queries::{GROUP_BY, JOINS, Query, check, query};

use crate::data::{StoreClone, make_store, read_parquet};
use crate::error::{Error, Result};
use draw::{Draw, TABLES};

/// Rows of the large tables at scale 1.
pub const ROWS: u64 = 10_000_000;
/// Fewer rows would leave groups without rows.
pub const LEAST_ROWS: u64 = 10_000;
/// As in the other data sets.
const ROW_GROUP_ROWS: usize = 131_072;

/// The data of a number of rows.
#[derive(Debug, Clone)]
pub struct DbBenchmark {
    /// Its folder.
    pub dir: PathBuf,
    /// Rows of each of the large tables.
    pub rows: u64,
}

impl DbBenchmark {
    /// The data of a scale (of ten million rows) below `data_dir`; it may not exist yet.
    pub fn new(data_dir: &Path, scale: f64) -> Self {
        let rows = ((scale * ROWS as f64).round() as u64).max(LEAST_ROWS);
        Self { dir: data_dir.join(format!("db-benchmark-{rows}")), rows }
    }

    /// The names of its tables.
    pub fn tables() -> impl Iterator<Item = &'static str> {
        TABLES.into_iter()
    }

    /// A table's Parquet file.
    pub fn parquet(&self, table: &str) -> PathBuf {
        self.dir.join("parquet").join(format!("{table}.parquet"))
    }

    /// True when all data exists.
    pub fn is_complete(&self) -> bool {
        self.dir.join("store").is_dir() && TABLES.iter().all(|table| self.parquet(table).is_file())
    }

    /// Clones the store to a data directory for one side.
    pub fn clone_store(&self) -> Result<StoreClone> {
        StoreClone::from_store(&self.dir.join("store"))
    }

    /// Draws missing data. Uses much memory: call it in a process of its own.
    pub fn prepare(&self) -> Result<()> {
        let folder = self.dir.join("parquet");
        fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
        if TABLES.iter().any(|table| !self.parquet(table).is_file()) {
            let draw = Draw::new(self.rows as usize);
            for table in TABLES {
                let partial = folder.join(format!("{table}.tmp"));
                write_parquet(&draw, table, &partial)?;
                let path = self.parquet(table);
                fs::rename(&partial, &path).map_err(Error::path("create", &path))?;
            }
        }
        make_store(&self.dir, |partial| self.load(partial))
    }

    fn load(&self, data_dir: &Path) -> Result<()> {
        let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(data_dir) })?;
        for table in TABLES {
            let rows = read_parquet(&self.parquet(table), 65_536)?;
            let definition = TableDefinition::new(TableName::new("public", table), rows.schema());
            let mut ingest = store.ingest_new(definition, false)?;
            for batch in rows {
                ingest.write(batch?)?;
            }
            ingest.finish()?;
        }
        Ok(store.close()?)
    }
}

fn write_parquet(draw: &Draw, table: &str, path: &Path) -> Result<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let mut batches = draw.batches(table);
    let Some(first) = batches.next().transpose()? else { return Ok(()) };
    let file = File::create(path).map_err(Error::path("create", path))?;
    let mut writer = ArrowWriter::try_new(file, first.schema(), Some(properties))?;
    writer.write(&first)?;
    for batch in batches {
        writer.write(&batch?)?;
    }
    writer.close()?;
    Ok(())
}
