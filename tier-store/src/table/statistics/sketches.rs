//! Sketches of the distinct values of a table's columns, each the union of those of the chunks.
//!
//! The catalog has one entry per segment, ordered by column, so that a planner reads those of the columns it asks for. Of
//! what it read only the union stays, with the version; the next version takes it over while chunks only come, and reads
//! again once some went, as nothing can be taken out of a union. A value that only deleted rows have still counts.
//!
//! Chunks written before there were sketches have none, nor have those older than the column. Where bounds show a chunk
//! to have one value or only nulls that is no matter; else nothing is said of the column.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

use arrow::array::cast::AsArray;
use arrow::datatypes::UInt64Type;

use super::{ChunkStatistics, TableStatistics, column_arrays, known_or, rows_of};
use crate::catalog::{Catalog, Space, key, key_part};
use crate::error::{Error, Result};
use crate::table::sketch::Sketch;
use crate::table::{ColumnId, TableDefinition, TableId};

/// Sketches of a chunk by the position of the column; `None` for types that have none.
pub(super) type ColumnSketches = Arc<[Option<Sketch>]>;

/// Sketches of all columns of a version.
#[derive(Debug)]
pub(super) struct TableSketches {
    /// Not kept open by a version that somebody still holds.
    source: Option<(Weak<Catalog>, TableId)>,
    /// Of a transaction's own chunks, by place: the catalog does not know them.
    own: Vec<(u64, ColumnSketches)>,
    /// By position; `None` when some chunk's values are not known.
    merged: Vec<OnceLock<Option<Sketch>>>,
}

impl TableSketches {
    /// Nothing is read yet; `source` has the sketches of the chunks, if anything does.
    pub(super) fn new(definition: &TableDefinition, source: Option<(Weak<Catalog>, TableId)>) -> Self {
        Self { source, own: Vec::new(), merged: definition.columns.iter().map(|_| OnceLock::new()).collect() }
    }

    /// The same chunks under another definition of the table.
    pub(super) fn under(&self, definition: &TableDefinition) -> Self {
        Self::new(definition, self.source.clone())
    }

    /// With chunks `added`; `shrunk` says that others went.
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
        Self { source: self.source.clone(), own: self.own.clone(), merged: merged.collect() }
    }
}

impl TableStatistics {
    /// The distinct values of a column over all chunks, read and merged once; `None` when some chunk's are not known.
    pub fn sketch(&self, index: usize) -> Result<Option<&Sketch>> {
        let cell = self.sketches.merged.get(index).ok_or_else(|| Error::Invalid(format!("no column {index}")))?;
        known_or(cell, || self.merge_sketches(index)).map(Option::as_ref)
    }

    /// The same, of a transaction that added these chunks and did not commit them yet.
    pub(crate) fn holding(mut self, added: &[(u64, ChunkStatistics)]) -> Self {
        self.sketches.own.extend(added.iter().map(|(place, chunk)| (*place, Arc::clone(&chunk.sketches))));
        self
    }

    fn merge_sketches(&self, index: usize) -> Result<Option<Sketch>> {
        let Some(column) = self.described.get(index) else { return Ok(None) };
        let mut missing: BTreeSet<u64> = self.groups.values().flat_map(|group| group.places.iter().copied()).collect();
        let mut all = Sketch::default();
        for (place, sketches) in &self.sketches.own {
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

    /// Adds the values of the chunks at these places; false when their bounds do not tell them.
    fn merge_bounds(&self, index: usize, places: &BTreeSet<u64>, all: &mut Sketch) -> Result<bool> {
        let Some(column) = self.described.get(index) else { return Ok(false) };
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
                match Sketch::of([&min]).filter(|_| one_value) {
                    Some(value) => all.merge(&value),
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }
}

impl ChunkStatistics {
    /// Keys and values in the catalog of the sketches of a chunk at `place`, with these columns.
    pub(crate) fn stored_sketches(
        &self,
        table: TableId,
        place: u64,
        columns: impl Iterator<Item = ColumnId>,
    ) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let sketches = columns.zip(self.sketches.iter());
        sketches.filter_map(move |(id, sketch)| Some((sketch_key(table, id, place), sketch.as_ref()?.encode())))
    }
}

/// Key in the catalog of the sketch of a column of the chunk at `place`.
pub(crate) fn sketch_key(table: TableId, column: ColumnId, place: u64) -> Vec<u8> {
    key(&[table.0, column.0.into(), place])
}
