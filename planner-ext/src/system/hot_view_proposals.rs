//! `system.hot_view_proposals`: hot views that would pay for the statements of the last epochs, with reasons and
//! states. The engine computes the rows (`engine/views_on/rows.rs`).

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};

use super::column_list::{COUNT, REAL, TEXT, time_type};

/// Columns of the table.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("table_schema", TEXT, false),
        Field::new("table_name", TEXT, false),
        Field::new("view_name", TEXT, false),
        Field::new("state", TEXT, false),
        Field::new("predicate", TEXT, false),
        Field::new("statement", TEXT, false),
        Field::new("reason", TEXT, false),
        Field::new("scans_per_epoch", REAL, false),
        Field::new("served_per_epoch", REAL, false),
        Field::new("read_bytes_per_epoch", COUNT, false),
        Field::new("saved_bytes_per_epoch", COUNT, false),
        Field::new("rows", COUNT, false),
        Field::new("table_rows", COUNT, false),
        Field::new("cost_bytes", COUNT, false),
        Field::new("payback_epochs", REAL, false),
        Field::new("proposed_at", time_type(), false),
        Field::new("changed_at", time_type(), false),
    ]))
}
