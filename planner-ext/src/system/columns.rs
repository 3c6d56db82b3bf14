//! `system.columns`: one row per column of each table, with its size and its number of distinct values.

use std::sync::Arc;

use arrow::datatypes::FieldRef;
use terrace_tier_store::table::{Segment, Table, TableVersion};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Row> {
    ColumnList::<Row>::new()
        .text("table_schema", |r| r.table.name().schema.clone())
        .text("table_name", |r| r.table.name().name.clone())
        .text("column_name", |r| r.field.name().clone())
        .count("position", |r| r.position as u64)
        .text("data_type", |r| r.field.data_type().to_string())
        .count("bytes", Row::bytes)
        .count("stored_bytes", Row::stored_bytes)
        .optional_count("distinct_values", Row::distinct)
}

pub(super) struct Row {
    table: Arc<Table>,
    version: Arc<TableVersion>,
    field: FieldRef,
    position: usize,
}

impl Row {
    fn bytes(&self) -> u64 {
        self.segments().map(|segment| segment.bytes()).sum()
    }

    fn stored_bytes(&self) -> u64 {
        self.segments().map(|segment| segment.home.len).sum()
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        let chunks = self.version.chunks.iter();
        chunks.filter_map(|entry| entry.chunk.columns().get(self.position)).map(Arc::as_ref)
    }

    /// `None` also if the catalog cannot be read; reading rows reports that error.
    fn distinct(&self) -> Option<u64> {
        self.version.distinct(self.position).ok().flatten().map(|count| count.round() as u64)
    }
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let found = names.tables(&live).into_iter().flat_map(|table| {
        let version = table.version();
        let fields: Vec<FieldRef> = table.schema().fields().iter().cloned().collect();
        let row =
            move |(position, field)| Row { table: Arc::clone(&table), version: Arc::clone(&version), field, position };
        fields.into_iter().enumerate().map(row)
    });
    Ok(columns().batches(found))
}
