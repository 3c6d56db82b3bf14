//! TPC-H and the Star Schema Benchmark on disk, made once per scale: Parquet files in the clustered order, and a Terrace
//! store loaded from them.
//!
//! ```text
//!   <data-dir>/tpch-<scale>/parquet/<table>.parquet     what peers load; ssb-<scale> likewise
//!   <data-dir>/tpch-<scale>/store/                      what Terrace opens, through a clone
//! ```
//!
//! All sides read the same rows in the same order. Chunk files never change, so a side gets its own data directory by
//! hard links and a copy of the catalog.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionConfig, SessionContext, col};
use futures::StreamExt;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use terrace_server::load::generated::Generated;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

use crate::environment;
use crate::error::{Error, Result};
use crate::ssb;
use crate::tpch::{self, BATCH_ROWS};

/// A multiple of the sides' batch size, so that only the last batch of a table is short.
const ROW_GROUP_ROWS: usize = 131_072;

/// A generated benchmark of one scale.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Its folder.
    pub dir: PathBuf,
    /// Scale factor.
    pub scale: f64,
    tables: Vec<Generated>,
}

impl Dataset {
    /// TPC-H of a scale below `data_dir`; it may not exist yet.
    pub fn new(data_dir: &Path, scale: f64) -> Self {
        let tables = tpch::TABLES.map(|table| Generated::tpch(table, scale));
        Self { dir: data_dir.join(format!("tpch-{scale}")), scale, tables: tables.to_vec() }
    }

    /// The Star Schema Benchmark of a scale below `data_dir`; it may not exist yet.
    pub fn star(data_dir: &Path, scale: f64) -> Self {
        let tables = ssb::TABLES.map(|table| Generated::ssb(table, scale));
        Self { dir: data_dir.join(format!("ssb-{scale}")), scale, tables: tables.to_vec() }
    }

    /// The names of its tables.
    pub fn tables(&self) -> impl Iterator<Item = &'static str> {
        self.tables.iter().map(Generated::name)
    }

    /// A table's Parquet file.
    pub fn parquet(&self, table: &str) -> PathBuf {
        self.dir.join("parquet").join(format!("{table}.parquet"))
    }

    /// The store from which clones are made.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// True when all data exists.
    pub fn is_complete(&self) -> bool {
        self.store().is_dir() && self.tables().all(|table| self.parquet(table).is_file())
    }

    /// Generates missing data. Uses much memory: call it in a process of its own.
    pub fn prepare(&self) -> Result<()> {
        let folder = self.dir.join("parquet");
        fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
        let runtime = tokio::runtime::Runtime::new().map_err(Error::io("cannot start a runtime"))?;
        for table in &self.tables {
            let path = self.parquet(table.name());
            let partial = folder.join(format!("{}.tmp", table.name()));
            if !path.is_file() {
                runtime.block_on(write_parquet(*table, &partial))?;
                fs::rename(&partial, &path).map_err(Error::path("create", &path))?;
            }
        }
        make_store(&self.dir, |partial| self.load(partial))
    }

    fn load(&self, data_dir: &Path) -> Result<()> {
        let options = StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(data_dir) };
        let store = Store::open(options)?;
        for table in &self.tables {
            let rows = self.read(table.name(), 65_536)?;
            let mut definition = TableDefinition::new(TableName::new("public", table.name()), rows.schema());
            definition.options.cluster_by = order(table).iter().take(1).map(|c| (*c).to_owned()).collect();
            let mut ingest = store.ingest_new(definition, false)?;
            for batch in rows {
                ingest.write(batch?)?;
            }
            ingest.finish()?;
        }
        Ok(store.close()?)
    }

    /// A reader of a table's rows in stored order.
    pub fn read(&self, table: &str, batch_rows: usize) -> Result<impl RecordBatchReader + use<>> {
        read_parquet(&self.parquet(table), batch_rows)
    }

    /// Clones the store to a data directory for one side.
    pub fn clone_store(&self) -> Result<StoreClone> {
        StoreClone::from_store(&self.store())
    }
}

/// A reader of a Parquet file's rows.
pub fn read_parquet(path: &Path, batch_rows: usize) -> Result<impl RecordBatchReader + use<>> {
    let file = File::open(path).map_err(Error::path("read", path))?;
    Ok(ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(batch_rows).build()?)
}

/// Creates `folder/store` when it is missing. `load` fills a temporary folder, which is then renamed, so that the store
/// is complete or does not exist.
pub fn make_store(folder: &Path, load: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let store = folder.join("store");
    let partial = folder.join("store.tmp");
    if store.is_dir() {
        return Ok(());
    }
    if partial.is_dir() {
        fs::remove_dir_all(&partial).map_err(Error::path("remove", &partial))?;
    }
    load(&partial)?;
    fs::rename(&partial, &store).map_err(Error::path("create", &store))
}

/// A data directory that is removed when dropped.
#[derive(Debug)]
pub struct StoreClone(PathBuf);

impl StoreClone {
    /// A new, empty folder.
    pub fn empty(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
        Ok(Self(folder))
    }

    /// A copy of a data directory that no process has open.
    pub fn from_store(store: &Path) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let clone = Self(store.with_file_name(format!("side-{}-{number}", std::process::id())));
        link_folder(store, &clone.0)?;
        Ok(clone)
    }

    /// Makes it a copy of another data directory, in place of what it has; no process has either of them open.
    pub fn replace_by(&self, store: &Path) -> Result<()> {
        fs::remove_dir_all(&self.0).map_err(Error::path("remove", &self.0))?;
        link_folder(store, &self.0)
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

impl Drop for StoreClone {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

fn link_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(Error::path("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::path("read", from))? {
        let source = entry.map_err(Error::path("read", from))?.path();
        let Some(name) = source.file_name() else { continue };
        let target = to.join(name);
        if source.is_dir() {
            link_folder(&source, &target)?;
        } else if source.extension().is_some_and(|e| e == "arrow") {
            fs::hard_link(&source, &target).map_err(Error::path("link", &target))?;
        } else {
            fs::copy(&source, &target).map_err(Error::path("copy", &target))?;
        }
    }
    Ok(())
}

/// Bytes of all files in a folder and below.
pub fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(Error::path("read", folder))? {
        let entry = entry.map_err(Error::path("read", folder))?;
        let metadata = entry.metadata().map_err(Error::path("read", &entry.path()))?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// The columns that a table is sorted by.
fn order(table: &Generated) -> &'static [&'static str] {
    match table.name() {
        "lineorder" => ssb::LINEORDER,
        name => tpch::TABLES.iter().find(|table| table.name == name).map(tpch::order).unwrap_or_default(),
    }
}

async fn write_parquet(table: Generated, path: &Path) -> Result<()> {
    let schema = table.schema();
    let order = order(&table);
    let parts = if order.is_empty() { 1 } else { 2 };
    let partitions = (1..=parts)
        .map(|part| -> Arc<dyn PartitionStream> { Arc::new(Part { table, part, parts, schema: Arc::clone(&schema) }) });
    let source = StreamingTable::try_new(Arc::clone(&schema), partitions.collect())?;
    // Each of the two sorts has its share, and spills beyond it; else one takes what the merge of the other needs.
    let sort_memory = FairSpillPool::new(environment::memory_bytes() as usize / 2);
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(sort_memory)).build_arc()?;
    let context = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    let mut rows = context.read_table(Arc::new(source))?;
    if !order.is_empty() {
        rows = rows.sort(order.iter().map(|c| col(*c).sort(true, false)).collect())?;
    }
    let file = File::create(path).map_err(Error::path("create", path))?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties))?;
    let mut stream = rows.execute_stream().await?;
    while let Some(batch) = stream.next().await {
        writer.write(&batch?)?;
    }
    writer.close()?;
    Ok(())
}

/// One part of a generated table as a partition.
#[derive(Debug)]
struct Part {
    table: Generated,
    part: i32,
    parts: i32,
    schema: SchemaRef,
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.table.generate_part(self.part, self.parts, BATCH_ROWS);
        let batches = rows.map(|batch| -> datafusion::error::Result<RecordBatch> { Ok(batch?) });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter(batches)))
    }
}
