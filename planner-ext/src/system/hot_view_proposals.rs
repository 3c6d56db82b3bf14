//! `system.hot_view_proposals`: hot views that would pay for the statements of the last epochs, with reasons and
//! states. The engine computes the rows (`engine/views_on/rows.rs`).

use arrow::datatypes::Field;

use super::{count, real, text, time};

/// Columns of the table.
pub(crate) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        text("view_name"),
        text("state"),
        text("predicate"),
        text("statement"),
        text("reason"),
        real("scans_per_epoch"),
        real("served_per_epoch"),
        count("read_bytes_per_epoch"),
        count("saved_bytes_per_epoch"),
        count("rows"),
        count("table_rows"),
        count("cost_bytes"),
        real("payback_epochs"),
        time("proposed_at"),
        time("changed_at"),
    ]
}
