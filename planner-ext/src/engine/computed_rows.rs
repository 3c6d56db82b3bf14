//! Rows that a command computes by itself, without a plan: its columns, and the work that makes them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::error::Result;
use crate::system::ColumnList;

/// The columns of a command that returns rows, and its work, which blocks.
pub(super) struct ComputedRows {
    schema: SchemaRef,
    compute: Box<dyn FnOnce() -> Result<RecordBatch> + Send>,
}

impl ComputedRows {
    /// Rows of these columns; [`ComputedRows::compute`] calls `rows`.
    pub(super) fn new<T: 'static>(
        columns: ColumnList<T>,
        rows: impl FnOnce() -> Result<Vec<T>> + Send + 'static,
    ) -> Self {
        Self { schema: columns.schema(), compute: Box::new(move || columns.batch(&rows()?)) }
    }

    /// Columns of the rows.
    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Does the work and returns its rows. Blocks.
    pub(super) fn compute(self) -> Result<RecordBatch> {
        (self.compute)()
    }
}
