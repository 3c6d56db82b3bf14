//! `system.tables`: one row per table of the store, with its size and settings.

use std::sync::Arc;

use terrace_tier_store::table::{ChunkAdmission, Durability, Table, TableVersion};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

type Row = (Arc<Table>, Arc<TableVersion>);

pub(super) fn columns() -> ColumnList<Row> {
    ColumnList::<Row>::new()
        .text("table_schema", |(t, _)| t.name().schema.clone())
        .text("table_name", |(t, _)| t.name().name.clone())
        .count("columns", |(t, _)| t.schema().fields().len() as u64)
        .count("rows", |(_, v)| v.live_rows())
        .count("chunks", |(_, v)| v.chunks.len() as u64)
        .count("file_bytes", |(_, v)| v.chunks.iter().map(|c| c.chunk.file_bytes).sum())
        .count("delta_rows", |(_, v)| v.delta_rows())
        .count("delta_bytes", |(_, v)| v.delta_bytes())
        .count("deleted_rows", |(_, v)| v.deleted_rows())
        .count("version", |(_, v)| v.number)
        .count("old_versions", |(t, _)| t.old_versions().count)
        .text("primary_key", |(t, _)| t.primary_key().join(","))
        .flag("key_enforced", |(t, _)| t.options().enforce_primary_key)
        .text("cluster_by", |(t, _)| t.options().cluster_by.join(","))
        .count("chunk_rows", |(t, _)| t.options().chunk_rows.into())
        .text("durability", |(t, _)| match t.options().durability {
            Durability::Full => "full".to_owned(),
            Durability::None => "none".to_owned(),
        })
        .text("admission", |(t, _)| match t.options().admission {
            ChunkAdmission::Auto => "auto".to_owned(),
            ChunkAdmission::Ssd => "ssd".to_owned(),
        })
        .text("tiering", |(t, _)| t.options().tiering.name().to_owned())
        .optional_text("comment", |(t, _)| t.definition().comment.clone())
        .text("format", |(t, _)| t.options().file_format().to_string())
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let tables = names.tables(&live).into_iter().map(|t| {
        let version = t.version();
        (t, version)
    });
    Ok(columns().batches(tables))
}
