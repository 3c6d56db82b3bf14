//! Rows of a generator as record batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, RecordBatch, RecordBatchReader, StringViewArray};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;

/// A row of a table.
pub trait Row: Sized {
    /// The names and values of the table's columns, in the order of the specification. Without rows, the columns are
    /// empty and have their types.
    fn columns(rows: &[Self]) -> Vec<(&'static str, ArrayRef)>;
}

/// Collects rows into batches.
pub struct Reader<I> {
    rows: I,
    batch_rows: usize,
    schema: SchemaRef,
}

impl<I> Reader<I>
where
    I: Iterator,
    I::Item: Row,
{
    /// Batches of `batch_rows` rows, the last one shorter. No column has nulls.
    pub fn new(rows: I, batch_rows: usize) -> Self {
        let columns = <I::Item as Row>::columns(&[]).into_iter();
        let fields: Vec<Field> =
            columns.map(|(name, values)| Field::new(name, values.data_type().clone(), false)).collect();
        Self { rows, batch_rows, schema: Arc::new(Schema::new(fields)) }
    }
}

impl<I> Iterator for Reader<I>
where
    I: Iterator,
    I::Item: Row,
{
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows: Vec<I::Item> = self.rows.by_ref().take(self.batch_rows).collect();
        if rows.is_empty() {
            return None;
        }
        let columns = <I::Item as Row>::columns(&rows).into_iter().map(|(_, values)| values).collect();
        Some(RecordBatch::try_new(Arc::clone(&self.schema), columns))
    }
}

impl<I> RecordBatchReader for Reader<I>
where
    I: Iterator,
    I::Item: Row,
{
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// A column of INTEGER.
pub fn numbers(values: impl Iterator<Item = i32>) -> ArrayRef {
    Arc::new(Int32Array::from_iter_values(values))
}

/// A column of text.
pub fn texts<T: AsRef<str>>(values: impl Iterator<Item = T>) -> ArrayRef {
    Arc::new(StringViewArray::from_iter_values(values))
}
