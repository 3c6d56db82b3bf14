//! `system.chunks`: one row per sealed chunk.

use std::sync::Arc;

use arrow::datatypes::Field;
use terrace_tier_store::table::{ChunkEntry, Table};

use super::{Batches, Live, NameFilter, count, counts, in_batches, text, texts};
use crate::error::Result;

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        count("chunk"),
        count("rows"),
        count("deleted_rows"),
        count("segments"),
        count("damaged_segments"),
        count("file_bytes"),
        text("file"),
    ]
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let chunks = names.tables(&live).into_iter().flat_map(|table| {
        let chunks = table.version().chunks.clone();
        (0..chunks.len()).filter_map(move |i| Some((Arc::clone(&table), chunks.get(i)?.clone())))
    });
    Ok(in_batches(chunks, fields(), |rows: &[(Arc<Table>, ChunkEntry)]| {
        vec![
            texts(rows, |(t, _)| t.name().schema.clone()),
            texts(rows, |(t, _)| t.name().name.clone()),
            counts(rows, |(_, c)| c.chunk.id.0),
            counts(rows, |(_, c)| c.chunk.rows.into()),
            counts(rows, |(_, c)| u64::from(c.chunk.rows) - c.live_rows()),
            counts(rows, |(_, c)| c.chunk.segments.iter().filter(|s| s.constant.is_none()).count() as u64),
            counts(rows, |(_, c)| c.chunk.damaged_segments() as u64),
            counts(rows, |(_, c)| c.chunk.file_bytes),
            texts(rows, |(_, c)| c.chunk.path.display().to_string()),
        ]
    }))
}
