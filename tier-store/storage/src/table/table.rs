//! A table: its definition, its versions, and the one place where they change.
//!
//! Writers build on the *head*, under its lock: the newest version, whose commit may still be on its way to the disk.
//! Readers get the *current* version, which is durable. The head is ahead by what waits for an fsync, so that commits
//! of several writers to one table share one fsync.
//!
//! A [`Table`] has one definition for its lifetime. ALTER replaces it by a successor with the same id, which takes over
//! segments and files. Readers of the old table go on with its last version; its writers get an error and start again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use terrace_model::{ChunkId, ColumnId, Error, FileFormat, Result, TableId, TableName, TieringMode};

use super::column::Column;
use super::key::check_enforceable;
use super::sample::Samples;
use super::{Chunk, ChunkEntry, DeltaRows, Rules, TableStatistics, TableVersion};
use crate::tier::codec::{self, StoredColumn};

/// The durability of an acknowledged insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// It survives a crash.
    #[default]
    Full,
    /// It survives once its rows are sealed into a chunk.
    None,
}

/// The initial placement of new chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChunkAdmission {
    /// In DRAM while the budget allows, else at home.
    #[default]
    Auto,
    /// At home.
    Ssd,
}

/// Settings of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableOptions {
    /// Maximum rows of a chunk, 1 to 65,536.
    pub chunk_rows: u32,
    /// Columns that bulk loads are sorted by.
    pub cluster_by: Vec<String>,
    /// The durability of an acknowledged insert.
    pub durability: Durability,
    /// The initial placement of new chunks.
    pub admission: ChunkAdmission,
    /// No two rows have the same primary key. Stored after the rest of a table's record.
    #[serde(skip)]
    pub enforce_primary_key: bool,
    /// How the tiering loop treats the table. Stored after the rest of a table's record, too.
    #[serde(skip)]
    pub tiering: TieringMode,
    /// The format of new chunk files; `None` until the table is created: that of the store. Stored after the rest of a table's
    /// record, too.
    #[serde(skip)]
    pub format: Option<FileFormat>,
}

impl TableOptions {
    /// The format of new chunk files.
    pub fn file_format(&self) -> FileFormat {
        self.format.unwrap_or_default()
    }
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            chunk_rows: 65_536,
            cluster_by: Vec::new(),
            durability: Durability::default(),
            admission: ChunkAdmission::default(),
            enforce_primary_key: false,
            tiering: TieringMode::default(),
            format: None,
        }
    }
}

/// The definition of a table.
#[derive(Debug, Clone)]
pub struct TableDefinition {
    /// Schema and name.
    pub name: TableName,
    /// Columns.
    pub schema: SchemaRef,
    /// Further properties of the columns, in the order of `schema`.
    pub columns: Vec<Column>,
    /// Names of the key columns; enforced if the settings say so.
    pub primary_key: Vec<String>,
    /// Settings.
    pub options: TableOptions,
    /// Comment for users.
    pub comment: Option<String>,
    /// Id of the next column to be added.
    pub(crate) next_column: u32,
}

impl TableDefinition {
    /// A table with default settings.
    pub fn new(name: TableName, schema: SchemaRef) -> Self {
        let next_column = schema.fields().len() as u32;
        let columns = (0..next_column).map(|id| Column::new(ColumnId(id))).collect();
        let primary_key = Vec::new();
        let options = TableOptions::default();
        Self { name, schema, columns, primary_key, options, comment: None, next_column }
    }

    /// The name of a column.
    pub fn column_name(&self, column: ColumnId) -> String {
        let at = self.columns.iter().position(|known| known.id == column);
        let field = at.and_then(|at| self.schema.fields().get(at));
        field.map_or_else(|| format!("column {}", column.0), |field| field.name().clone())
    }

    /// Refuses types that cannot be stored, names of columns that do not exist, and settings out of range.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names a column and its type, [`Error::NotFound`] a column that does not exist;
    /// [`Error::Invalid`] says what else is wrong.
    pub fn check(&self) -> Result<()> {
        if self.options.chunk_rows == 0 || self.options.chunk_rows > 65_536 {
            return Err(Error::Invalid(format!("chunk_rows is {}; it must be 1 to 65536", self.options.chunk_rows)));
        }
        if self.columns.len() != self.schema.fields().len() {
            let known = self.columns.len();
            let fields = self.schema.fields().len();
            return Err(Error::Invalid(format!("{} has {fields} columns, but {known} column records", self.name)));
        }
        codec::check_types(&self.schema)?;
        for column in self.options.cluster_by.iter().chain(&self.primary_key) {
            if self.schema.column_with_name(column).is_none() {
                return Err(Error::not_found("column", format!("{}.{column}", self.name)));
            }
        }
        if self.options.enforce_primary_key {
            check_enforceable(&self.name.to_string(), &self.schema, &self.primary_key)?;
        }
        let mut names: Vec<&str> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
        names.sort_unstable();
        let same = |pair: &&[&str]| pair.first() == pair.last();
        match names.windows(2).find(same).and_then(<[&str]>::first) {
            Some(name) => Err(Error::Invalid(format!("column '{name}' is named twice"))),
            None => Ok(()),
        }
    }
}

/// The state of a table that writers build on.
#[derive(Debug, Clone)]
pub struct Head {
    /// The newest version, durable or on its way to be.
    pub version: Arc<TableVersion>,
    /// The table was altered, dropped or replaced: nothing may be written to it any more.
    pub dropped: bool,
}

/// A superseded version that readers may still use.
#[derive(Debug)]
struct OldVersion {
    version: Weak<TableVersion>,
    since_us: u64,
}

/// Superseded versions that are still being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldVersions {
    /// Number of such versions.
    pub count: u64,
    /// When the oldest of them was superseded, on the store's clock; `None` without one.
    pub oldest_since_us: Option<u64>,
}

/// A table of the store.
#[derive(Debug)]
pub struct Table {
    id: TableId,
    definition: TableDefinition,
    current: ArcSwap<TableVersion>,
    head: Mutex<Head>,
    shared: Arc<Shared>,
}

/// State that a table shares with its successors.
#[derive(Debug, Default)]
struct Shared {
    old: Mutex<Vec<OldVersion>>,
    sealing: Mutex<()>,
    compacting: Mutex<()>,
    samples: Samples,
    next_chunk: AtomicU64,
    next_delta: AtomicU64,
}

impl Shared {
    /// Records a version that is no longer current.
    fn supersede(&self, version: &Arc<TableVersion>, since_us: u64) {
        let mut old = self.old.lock();
        old.retain(|o| o.version.strong_count() > 0);
        old.push(OldVersion { version: Arc::downgrade(version), since_us });
    }
}

impl Table {
    /// A table with the rows that the catalog has.
    pub fn new(
        id: TableId,
        definition: TableDefinition,
        chunks: Vec<ChunkEntry>,
        statistics: TableStatistics,
        delta: Vec<DeltaRows>,
        rules: Rules,
    ) -> Self {
        let next_chunk = chunks.iter().map(|c| c.chunk.id.0 + 1).max().unwrap_or(0);
        let next_delta = delta.iter().map(|d| d.entry.sequence + 1).max().unwrap_or(0);
        let chunks = chunks.into();
        let delta = delta.into();
        let statistics = statistics.into();
        let rules = rules.into();
        let version = Arc::new(TableVersion { number: 0, chunks, delta, statistics, rules });
        let next_chunk = AtomicU64::new(next_chunk);
        let next_delta = AtomicU64::new(next_delta);
        Self::with_version(id, definition, version, Arc::new(Shared { next_chunk, next_delta, ..Shared::default() }))
    }

    fn with_version(id: TableId, definition: TableDefinition, version: Arc<TableVersion>, shared: Arc<Shared>) -> Self {
        let current = ArcSwap::new(Arc::clone(&version));
        Self { id, definition, current, head: Mutex::new(Head { version, dropped: false }), shared }
    }

    /// Makes the table that replaces this one, with `version` as its first version.
    pub fn successor(&self, definition: TableDefinition, version: TableVersion, now_us: u64) -> Self {
        self.shared.supersede(&self.version(), now_us);
        Self::with_version(self.id, definition, Arc::new(version), Arc::clone(&self.shared))
    }

    /// Its number.
    #[inline]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Schema and name.
    #[inline]
    pub fn name(&self) -> &TableName {
        &self.definition.name
    }

    /// Columns.
    #[inline]
    pub fn schema(&self) -> &SchemaRef {
        &self.definition.schema
    }

    /// Its definition.
    #[inline]
    pub fn definition(&self) -> &TableDefinition {
        &self.definition
    }

    /// Key columns, as declared.
    #[inline]
    pub fn primary_key(&self) -> &[String] {
        &self.definition.primary_key
    }

    /// Settings.
    #[inline]
    pub fn options(&self) -> &TableOptions {
        &self.definition.options
    }

    /// The snapshot a statement reads.
    #[inline]
    pub fn version(&self) -> Arc<TableVersion> {
        self.current.load_full()
    }

    /// Some rows of a segment, for estimates; `None` when there is no sample and the segment is not resident.
    #[inline]
    pub fn sample(&self, chunk: &Chunk, column: usize) -> Option<ArrayRef> {
        self.shared.samples.get(chunk, column)
    }

    /// Takes the sample of a segment from `values`, which are all of its values, unless there is one.
    #[inline]
    pub fn offer_sample(&self, chunk: &Chunk, column: usize, values: &StoredColumn) {
        self.shared.samples.offer(chunk, column, values);
    }

    /// The number of a new chunk.
    pub fn allocate_chunk(&self) -> ChunkId {
        ChunkId(self.shared.next_chunk.fetch_add(1, Ordering::Relaxed))
    }

    /// The sequence number of a new delta entry.
    pub fn allocate_delta(&self) -> u64 {
        self.shared.next_delta.fetch_add(1, Ordering::Relaxed)
    }

    /// Locks the head for a writer. Heads of several tables are locked in order of the table ids.
    pub fn lock_head(&self) -> MutexGuard<'_, Head> {
        self.head.lock()
    }

    /// Locks sealing: one seal of a table runs at a time, so that no row is sealed twice.
    pub fn lock_sealing(&self) -> MutexGuard<'_, ()> {
        self.shared.sealing.lock()
    }

    /// Like [`Table::lock_sealing`]; `None` while another thread holds the lock.
    #[inline]
    pub fn try_lock_sealing(&self) -> Option<MutexGuard<'_, ()>> {
        self.shared.sealing.try_lock()
    }

    /// Locks compaction: one compaction of a table runs at a time, so that no chunk is replaced twice.
    pub fn lock_compacting(&self) -> MutexGuard<'_, ()> {
        self.shared.compacting.lock()
    }

    /// Makes a version current. The caller has committed it and publishes versions in order.
    pub fn publish(&self, version: Arc<TableVersion>, now_us: u64) {
        let previous = self.current.swap(version);
        self.shared.supersede(&previous, now_us);
    }

    /// Superseded versions that are still read.
    pub fn old_versions(&self) -> OldVersions {
        let mut old = self.shared.old.lock();
        old.retain(|o| o.version.strong_count() > 0);
        OldVersions { count: old.len() as u64, oldest_since_us: old.iter().map(|o| o.since_us).min() }
    }

    /// Removes the samples of a dropped chunk.
    #[inline]
    pub fn forget_chunk(&self, chunk: ChunkId) {
        self.shared.samples.forget(chunk);
    }

    /// Checks rows against the columns: same names and types in the same order, no null where none may be.
    pub fn check_rows(&self, batch: &RecordBatch) -> Result<()> {
        let mismatch = |what: String| Error::SchemaMismatch { table: self.name().to_string(), what };
        let expected = self.schema().fields();
        let found = batch.schema();
        if expected.len() != found.fields().len() {
            return Err(mismatch(format!("it has {} columns, the rows have {}", expected.len(), found.fields().len())));
        }
        for ((want, have), array) in expected.iter().zip(found.fields()).zip(batch.columns()) {
            if want.name() != have.name() || !want.data_type().equals_datatype(have.data_type()) {
                return Err(mismatch(format!(
                    "column '{}' is {}, the rows have '{}' {}",
                    want.name(),
                    want.data_type(),
                    have.name(),
                    have.data_type()
                )));
            }
            if !want.is_nullable() && array.logical_null_count() > 0 {
                return Err(mismatch(format!("column '{}' is NOT NULL and a row has no value there", want.name())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::datatypes::{DataType, Field, Schema, UnionMode};

    use super::*;

    #[test]
    fn a_column_of_two_definitions_is_named_as_the_user_wrote_it() {
        let fields = ["b", "a", "a"].map(|name| Field::new(name, DataType::Int32, true));
        let definition = TableDefinition::new(TableName::new("s", "t"), Arc::new(Schema::new(fields.to_vec())));
        assert_eq!(definition.check().unwrap_err().to_string(), "column 'a' is named twice");
    }

    #[test]
    fn a_column_that_files_cannot_hold_is_refused_by_name() {
        let member = Field::new("member", DataType::Int32, true);
        let union = DataType::Union([(0, Arc::new(member))].into_iter().collect(), UnionMode::Dense);
        let nested = DataType::new_list(union.clone(), true);
        for data_type in [union, nested] {
            let fields = vec![Field::new("k", DataType::Int64, false), Field::new("u", data_type, true)];
            let definition = TableDefinition::new(TableName::new("s", "t"), Arc::new(Schema::new(fields)));
            let refused = definition.check().unwrap_err();
            assert!(matches!(&refused, Error::Unsupported(what) if what.starts_with("column 'u'")), "{refused}");
        }
    }
}
