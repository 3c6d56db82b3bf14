//! `system.tables`: one row per table of the store, with its size and settings.

use std::sync::Arc;

use arrow::datatypes::Field;
use terrace_tier_store::table::{ChunkAdmission, Durability, Table, TableVersion};

use super::{
    Batches, Live, NameFilter, count, counts, flag, flags, in_batches, optional_text, optional_texts, text, texts,
};
use crate::error::Result;

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        count("columns"),
        count("rows"),
        count("chunks"),
        count("file_bytes"),
        count("delta_rows"),
        count("delta_bytes"),
        count("deleted_rows"),
        count("version"),
        count("old_versions"),
        text("primary_key"),
        flag("key_enforced"),
        text("cluster_by"),
        count("chunk_rows"),
        text("durability"),
        text("admission"),
        text("tiering"),
        optional_text("comment"),
    ]
}

type Row = (Arc<Table>, Arc<TableVersion>);

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let tables = names.tables(&live).into_iter().map(|t| {
        let version = t.version();
        (t, version)
    });
    Ok(in_batches(tables, fields(), |rows: &[Row]| {
        vec![
            texts(rows, |(t, _)| t.name().schema.clone()),
            texts(rows, |(t, _)| t.name().name.clone()),
            counts(rows, |(t, _)| t.schema().fields().len() as u64),
            counts(rows, |(_, v)| v.live_rows()),
            counts(rows, |(_, v)| v.chunks.len() as u64),
            counts(rows, |(_, v)| v.chunks.iter().map(|c| c.chunk.file_bytes).sum()),
            counts(rows, |(_, v)| v.delta_rows()),
            counts(rows, |(_, v)| v.delta_bytes()),
            counts(rows, |(_, v)| v.deleted_rows()),
            counts(rows, |(_, v)| v.number),
            counts(rows, |(t, _)| t.old_versions().count),
            texts(rows, |(t, _)| t.primary_key().join(",")),
            flags(rows, |(t, _)| t.options().enforce_primary_key),
            texts(rows, |(t, _)| t.options().cluster_by.join(",")),
            counts(rows, |(t, _)| t.options().chunk_rows.into()),
            texts(rows, |(t, _)| match t.options().durability {
                Durability::Full => "full".to_owned(),
                Durability::None => "none".to_owned(),
            }),
            texts(rows, |(t, _)| match t.options().admission {
                ChunkAdmission::Auto => "auto".to_owned(),
                ChunkAdmission::Ssd => "ssd".to_owned(),
            }),
            texts(rows, |(t, _)| t.options().tiering.name().to_owned()),
            optional_texts(rows, |(t, _)| t.definition().comment.clone()),
        ]
    }))
}
