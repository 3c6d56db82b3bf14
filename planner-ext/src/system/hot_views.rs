//! `system.hot_views`: all hot views, with their states, the coverage of their tables' chunks and the counts of scans.
//! The engine computes the rows (`engine/views_on/rows.rs`).

use arrow::datatypes::Field;

use super::{count, flag, optional_count, optional_text, text, time};

/// Columns of the table.
pub(crate) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        text("view_name"),
        text("columns"),
        text("predicate"),
        optional_text("bound_predicate"),
        flag("moving"),
        count("version"),
        time("bound_at"),
        time("made_at"),
        optional_text("problem"),
        optional_count("published_version"),
        count("chunks"),
        count("hot_chunks"),
        count("unknown_chunks"),
        count("rows"),
        count("bytes"),
        count("hits"),
        count("misses"),
        count("pruned_chunks"),
        count("saved_bytes"),
        text("state"),
        text("refresh"),
        optional_text("last_error"),
        optional_count("budget_bytes"),
        count("dram_bytes"),
    ]
}
