//! `system.chunks`: one row per sealed chunk.

use std::sync::Arc;

use terrace_tier_store::table::{ChunkEntry, Table};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

type Row = (Arc<Table>, ChunkEntry);

pub(super) fn columns() -> ColumnList<Row> {
    ColumnList::<Row>::new()
        .text("table_schema", |(t, _)| t.name().schema.clone())
        .text("table_name", |(t, _)| t.name().name.clone())
        .count("chunk", |(_, c)| c.chunk.id.0)
        .count("rows", |(_, c)| c.chunk.rows.into())
        .count("deleted_rows", |(_, c)| u64::from(c.chunk.rows) - c.live_rows())
        .count("segments", |(_, c)| c.chunk.segments.iter().filter(|s| s.constant.is_none()).count() as u64)
        .count("damaged_segments", |(_, c)| c.chunk.damaged_segments() as u64)
        .count("file_bytes", |(_, c)| c.chunk.file_bytes)
        .text("file", |(_, c)| c.chunk.path.display().to_string())
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let chunks = names.tables(&live).into_iter().flat_map(|table| {
        let chunks = table.version().chunks.clone();
        (0..chunks.len()).filter_map(move |i| Some((Arc::clone(&table), chunks.get(i)?.clone())))
    });
    Ok(columns().batches(chunks))
}
