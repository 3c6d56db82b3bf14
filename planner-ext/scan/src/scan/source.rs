//! The source of a scan: one version of one table, addressed by items.
//!
//! An item is a position in `version.chunks`, or, from there on, a position in `version.delta`. For statements that
//! change rows the source has one more column, [`ROW_COLUMN`](terrace_error::ROW_COLUMN) or a name like it: the position of each row in the
//! version. Other statements do not see this column.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use terrace_tier_store::Store;
use terrace_tier_store::io::{Level, OperatorLevel};
use terrace_tier_store::table::{ChunkEntry, ColumnId, DeltaRows, Table, TableVersion};
use terrace_tier_store::tier::TierId;

use super::statistics::KnownValues;

/// A table as one statement sees it.
#[derive(Debug)]
pub struct ScanSource {
    /// The store: tiers, access totals.
    pub store: Arc<Store>,
    /// The table, for names and insertion.
    pub table: Arc<Table>,
    /// The snapshot.
    pub version: Arc<TableVersion>,
    tiers: Arc<[String]>,
    schema: SchemaRef,
    /// Whether plans show how many chunks and bytes it has, and where they lie.
    shows_figures: bool,
    /// What is known of the values of each column; the planner asks for it with every join that it considers.
    pub(super) values: Box<[OnceLock<KnownValues>]>,
}

impl ScanSource {
    /// A source for the given version of a table.
    pub fn new(store: Arc<Store>, table: Arc<Table>, version: Arc<TableVersion>) -> Self {
        let mut tiers: Vec<String> = store.memory_tiers().iter().map(|t| t.name().to_owned()).collect();
        tiers.push(store.home().name().to_owned());
        let schema = Arc::clone(table.schema());
        let values = unknown_values(&schema);
        Self { store, table, version, tiers: tiers.into(), schema, shows_figures: true, values }
    }

    /// Like this source, but with the position of each row in a last column called `name`.
    pub fn with_positions(&self, name: &str) -> Self {
        let store = Arc::clone(&self.store);
        let table = Arc::clone(&self.table);
        let version = Arc::clone(&self.version);
        let row: FieldRef = Arc::new(Field::new(name, DataType::UInt64, false));
        let fields: Vec<FieldRef> = table.schema().fields().iter().cloned().chain([row]).collect();
        let schema = Arc::new(Schema::new(fields));
        let values = unknown_values(&schema);
        let tiers = Arc::clone(&self.tiers);
        Self { store, table, version, tiers, schema, shows_figures: self.shows_figures, values }
    }

    /// The source for one who must not see figures of the table.
    pub fn without_figures(self) -> Self {
        Self { shows_figures: false, ..self }
    }

    /// Whether plans show how many chunks and bytes it has, and where they lie.
    pub fn shows_figures(&self) -> bool {
        self.shows_figures
    }

    /// Name of the column of row positions; `None` for a source without it.
    pub fn position_column(&self) -> Option<&str> {
        Some(self.schema.fields().get(self.table.schema().fields().len())?.name())
    }

    /// True for the column of row positions, which is stored nowhere.
    pub(super) fn is_row_column(&self, column: usize) -> bool {
        column >= self.table.schema().fields().len()
    }

    /// The ids of columns; that of row positions has none.
    pub(super) fn column_ids(&self, columns: &[usize]) -> impl Iterator<Item = ColumnId> {
        let known = &self.table.definition().columns;
        columns.iter().filter_map(move |column| known.get(*column)).map(|column| column.id)
    }

    /// Counts an operator that reads columns at random, if it has a level, until what this returns is dropped.
    pub(super) fn begin_reads(&self, level: Level, columns: &[usize]) -> OperatorLevel {
        self.store.column_levels().begin(level, self.table.id(), self.column_ids(columns))
    }

    /// Reports that `bytes` of a segment are read in place on `tier`, so that an emulated device can delay the read.
    pub(super) fn touch(&self, tier: TierId, bytes: u64) {
        self.store.touch(tier, bytes);
    }

    /// Columns of the table, followed by the column of row positions if the source has one.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Names of the tiers by [`TierId`] as of the start of the statement; the home tier is the last.
    pub fn tiers(&self) -> &Arc<[String]> {
        &self.tiers
    }

    /// The current index of the home tier.
    pub fn home_tier(&self) -> TierId {
        self.store.home_tier()
    }

    /// The chunk of an item; `None` for the delta.
    pub fn chunk(&self, item: u32) -> Option<&ChunkEntry> {
        self.version.chunks.get(item as usize)
    }

    /// Items of the delta.
    pub fn delta_items(&self) -> std::ops::Range<u32> {
        let first = self.version.chunks.len() as u32;
        first..first + self.version.delta.len() as u32
    }

    /// The delta rows of an item.
    pub fn delta(&self, item: u32) -> Option<&DeltaRows> {
        self.version.delta.get((item as usize).checked_sub(self.version.chunks.len())?)
    }

    /// Rows of an item that are not deleted.
    pub fn live_rows(&self, item: u32) -> u64 {
        match self.chunk(item) {
            Some(entry) => entry.live_rows(),
            None => self.delta(item).map_or(0, DeltaRows::live_rows),
        }
    }
}

fn unknown_values(schema: &Schema) -> Box<[OnceLock<KnownValues>]> {
    schema.fields().iter().map(|_| OnceLock::new()).collect()
}
