//! `system.hot_views`: all hot views, with their states, the coverage of their tables' chunks and the counts of scans.
//! The engine computes the rows (`engine/views_on/rows.rs`).

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};

use super::column_list::{COUNT, FLAG, TEXT, time_type};

/// Columns of the table.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("table_schema", TEXT, false),
        Field::new("table_name", TEXT, false),
        Field::new("view_name", TEXT, false),
        Field::new("columns", TEXT, false),
        Field::new("predicate", TEXT, false),
        Field::new("bound_predicate", TEXT, true),
        Field::new("moving", FLAG, false),
        Field::new("version", COUNT, false),
        Field::new("bound_at", time_type(), false),
        Field::new("made_at", time_type(), false),
        Field::new("problem", TEXT, true),
        Field::new("published_version", COUNT, true),
        Field::new("chunks", COUNT, false),
        Field::new("hot_chunks", COUNT, false),
        Field::new("unknown_chunks", COUNT, false),
        Field::new("rows", COUNT, false),
        Field::new("bytes", COUNT, false),
        Field::new("hits", COUNT, false),
        Field::new("misses", COUNT, false),
        Field::new("pruned_chunks", COUNT, false),
        Field::new("saved_bytes", COUNT, false),
        Field::new("state", TEXT, false),
        Field::new("refresh", TEXT, false),
        Field::new("last_error", TEXT, true),
        Field::new("budget_bytes", COUNT, true),
        Field::new("dram_bytes", COUNT, false),
    ]))
}
