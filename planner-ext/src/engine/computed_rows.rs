//! Rows that a command computes by itself, without a plan: its columns, and the work that makes them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};

use crate::error::Result;

/// The columns of a command that returns rows, and its work, which blocks.
pub(super) struct ComputedRows {
    schema: SchemaRef,
    compute: Box<dyn FnOnce() -> Result<RecordBatch> + Send>,
}

impl ComputedRows {
    /// Rows of these columns; [`ComputedRows::compute`] calls `compute`.
    pub(super) fn new(fields: Vec<Field>, compute: impl FnOnce() -> Result<RecordBatch> + Send + 'static) -> Self {
        Self { schema: Arc::new(Schema::new(fields)), compute: Box::new(compute) }
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
