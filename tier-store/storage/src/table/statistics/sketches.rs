//! Sketches of the distinct values of a table's columns, each the union of the sketches of the chunks.
//!
//! The catalog has one entry per segment, ordered by column, so a planner reads only those of the columns it needs. The
//! version keeps only the union of the sketches it read. The next version takes the union over if chunks were only
//! added. If some were removed it reads again, as nothing can be removed from a union. A value that only deleted rows
//! have still counts.
//!
//! Chunks written before sketches existed have none, nor have chunks older than the column. Their bounds stand in where
//! they show that the chunk has one value or only nulls; otherwise the column has no sketch.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

use arrow::array::cast::AsArray;
use arrow::datatypes::UInt64Type;
use terrace_model::{ColumnId, Error, Result, TableId};

use super::{ChunkStatistics, TableStatistics, column_arrays, get_or_try_init, rows_of};
use crate::catalog::{Catalog, Space, key, key_part};
use crate::table::TableDefinition;
use crate::table::sketch::Sketch;

/// Sketches of a chunk by position of the column; `None` for types without sketches.
pub(super) type ColumnSketches = Arc<[Option<Sketch>]>;

/// Sketches of all columns of a version.
#[derive(Debug)]
pub(super) struct TableSketches {
    /// The catalog that has the sketches, weak so that a version does not keep it open.
    source: Option<(Weak<Catalog>, TableId)>,
    /// Sketches of a transaction's own chunks, by place: the catalog does not have them.
    own_chunks: Vec<(u64, ColumnSketches)>,
    /// The union by position of the column; `None` when the values of some chunk are unknown.
    merged: Vec<OnceLock<Option<Sketch>>>,
}

impl TableSketches {
    /// Makes the sketches of a version without reading any; `source` has those of the chunks, if they are stored.
    pub(super) fn new(definition: &TableDefinition, source: Option<(Weak<Catalog>, TableId)>) -> Self {
        Self { source, own_chunks: Vec::new(), merged: definition.columns.iter().map(|_| OnceLock::new()).collect() }
    }

    /// The sketches of the same chunks under another definition of the table.
    pub(super) fn with_definition(&self, definition: &TableDefinition) -> Self {
        Self::new(definition, self.source.clone())
    }

    /// The sketches with `added` chunks; `shrunk`: other chunks were removed.
    pub(super) fn changed(&self, shrunk: bool, added: &[(u64, ChunkStatistics)]) -> Self {
        let with_added = |(column, known): (usize, &Sketch)| {
            let mut all = known.clone();
            for (_, chunk) in added {
                all.merge(chunk.sketches.get(column)?.as_ref()?);
            }
            Some(all)
        };
        let merged = self.merged.iter().enumerate().map(|(column, cell)| match cell.get() {
            Some(known) if !shrunk => OnceLock::from(known.as_ref().and_then(|k| with_added((column, k)))),
            _ => OnceLock::new(),
        });
        Self { source: self.source.clone(), own_chunks: self.own_chunks.clone(), merged: merged.collect() }
    }
}

impl TableStatistics {
    /// The sketch of a column over all chunks, read and merged once; `None` when the values of some chunk are unknown.
    pub fn sketch(&self, index: usize) -> Result<Option<&Sketch>> {
        let cell = self.sketches.merged.get(index).ok_or_else(|| Error::Invalid(format!("no column {index}")))?;
        get_or_try_init(cell, || self.merge_sketches(index)).map(Option::as_ref)
    }

    /// Adds the sketches of chunks that a transaction has not committed yet.
    pub fn with_own_chunks(mut self, added: &[(u64, ChunkStatistics)]) -> Self {
        self.sketches.own_chunks.extend(added.iter().map(|(place, chunk)| (*place, Arc::clone(&chunk.sketches))));
        self
    }

    fn merge_sketches(&self, index: usize) -> Result<Option<Sketch>> {
        let Some(column) = self.table_columns.get(index) else { return Ok(None) };
        let mut missing: BTreeSet<u64> = self.groups.values().flat_map(|group| group.places.iter().copied()).collect();
        let mut all = Sketch::default();
        for (place, sketches) in &self.sketches.own_chunks {
            if let Some(sketch) = sketches.get(index).and_then(Option::as_ref).filter(|_| missing.remove(place)) {
                all.merge(sketch);
            }
        }
        let source = self.sketches.source.as_ref();
        if let Some((catalog, table)) = source.and_then(|(catalog, table)| Some((catalog.upgrade()?, table))) {
            catalog.scan(Space::Sketches, &key(&[table.0, column.id.0.into()]), |k, v| {
                if missing.remove(&key_part(k, 2)) {
                    all.merge(&Sketch::decode(v)?);
                }
                Ok(true)
            })?;
        }
        Ok(self.merge_bounds(index, &missing, &mut all)?.then_some(all))
    }

    /// Adds the values of the chunks at these places to `all`; false when their bounds do not determine them.
    fn merge_bounds(&self, index: usize, places: &BTreeSet<u64>, all: &mut Sketch) -> Result<bool> {
        let Some(column) = self.table_columns.get(index) else { return Ok(false) };
        for group in self.groups.values() {
            let mut rows = group.places.iter().zip(0..).filter(|(place, _)| places.contains(place)).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let batch = group.batch()?;
            let bounds = column_arrays(&batch, self.schema.field(index).data_type(), column)?;
            let ([min, max, nulls, exact], chunk_rows) = (bounds.as_slice(), rows_of(&batch)?) else {
                return Ok(false);
            };
            let nulls = nulls.as_primitive::<UInt64Type>();
            let chunk_rows = chunk_rows.as_primitive::<UInt64Type>();
            for (_, row) in rows {
                if nulls.value(row) == chunk_rows.value(row) {
                    continue;
                }
                let min = min.slice(row, 1);
                let max = max.slice(row, 1);
                let one_value = exact.as_boolean().value(row) && min == max;
                match Sketch::from_arrays([&min]).filter(|_| one_value) {
                    Some(value) => all.merge(&value),
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }
}

impl ChunkStatistics {
    /// Makes the catalog entries (keys and values) of the sketches of a chunk at `place`, with these columns.
    pub fn stored_sketches(
        &self,
        table: TableId,
        place: u64,
        columns: impl Iterator<Item = ColumnId>,
    ) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let sketches = columns.zip(self.sketches.iter());
        sketches.filter_map(move |(id, sketch)| Some((sketch_key(table, id, place), sketch.as_ref()?.encode())))
    }
}

/// The catalog key of the sketch of a column of the chunk at `place`.
pub fn sketch_key(table: TableId, column: ColumnId, place: u64) -> Vec<u8> {
    key(&[table.0, column.0.into(), place])
}
