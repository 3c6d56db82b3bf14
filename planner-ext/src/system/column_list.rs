//! Lists of columns: the name, the type and the values of each column of a table, in the table's order.
//!
//! A list makes both the schema of a table and its batches, so that names and values cannot get out of step. Only the
//! tables about hot views have their schema ([`super::hot_views`]) apart from their values, which exist only in builds
//! with hot views; they use [`in_batches`] and the functions that build one array.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, StringViewArray, TimestampMicrosecondArray,
    UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use super::Batches;
use crate::error::Result;

/// Rows per batch.
const BATCH_ROWS: usize = 8192;

/// Type of texts.
pub(super) const TEXT: DataType = DataType::Utf8View;
/// Type of counts.
pub(super) const COUNT: DataType = DataType::UInt64;
/// Type of real numbers.
pub(super) const REAL: DataType = DataType::Float64;
/// Type of truth values.
pub(super) const FLAG: DataType = DataType::Boolean;

/// Type of times.
pub(super) fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))
}

/// Computes the values of a column from rows `T`.
type Values<T> = Box<dyn Fn(&[T]) -> ArrayRef + Send>;

/// A column of rows `T`.
struct Column<T> {
    field: Field,
    array: Values<T>,
}

/// The columns of rows `T`. Each method adds the next column: its name, and its value for a row.
pub(crate) struct ColumnList<T>(Vec<Column<T>>);

impl<T> ColumnList<T> {
    /// No columns.
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn text(self, name: &str, value: impl Fn(&T) -> String + Send + 'static) -> Self {
        self.with(Field::new(name, TEXT, false), move |items| texts(items, &value))
    }

    pub(crate) fn optional_text(self, name: &str, value: impl Fn(&T) -> Option<String> + Send + 'static) -> Self {
        self.with(Field::new(name, TEXT, true), move |items| optional_texts(items, &value))
    }

    /// Like `text`, as `Utf8`: the type of DataFusion's tables in `information_schema`.
    pub(crate) fn utf8(self, name: &str, value: impl Fn(&T) -> String + Send + 'static) -> Self {
        self.with(Field::new(name, DataType::Utf8, false), move |items| {
            Arc::new(StringArray::from_iter_values(items.iter().map(&value)))
        })
    }

    /// Like `optional_text`, as `Utf8`.
    pub(crate) fn optional_utf8(self, name: &str, value: impl Fn(&T) -> Option<String> + Send + 'static) -> Self {
        self.with(Field::new(name, DataType::Utf8, true), move |items| {
            Arc::new(items.iter().map(&value).collect::<StringArray>())
        })
    }

    pub(crate) fn count(self, name: &str, value: impl Fn(&T) -> u64 + Send + 'static) -> Self {
        self.with(Field::new(name, COUNT, false), move |items| counts(items, &value))
    }

    pub(crate) fn optional_count(self, name: &str, value: impl Fn(&T) -> Option<u64> + Send + 'static) -> Self {
        self.with(Field::new(name, COUNT, true), move |items| optional_counts(items, &value))
    }

    pub(crate) fn real(self, name: &str, value: impl Fn(&T) -> f64 + Send + 'static) -> Self {
        self.with(Field::new(name, REAL, false), move |items| reals(items, &value))
    }

    pub(crate) fn optional_real(self, name: &str, value: impl Fn(&T) -> Option<f64> + Send + 'static) -> Self {
        self.with(Field::new(name, REAL, true), move |items| {
            Arc::new(items.iter().map(&value).collect::<Float64Array>())
        })
    }

    pub(crate) fn flag(self, name: &str, value: impl Fn(&T) -> bool + Send + 'static) -> Self {
        self.with(Field::new(name, FLAG, false), move |items| flags(items, &value))
    }

    /// Values are microseconds since the Unix epoch.
    pub(crate) fn time(self, name: &str, unix_us: impl Fn(&T) -> u64 + Send + 'static) -> Self {
        self.with(Field::new(name, time_type(), false), move |items| times(items, &unix_us))
    }

    /// Values are microseconds since the Unix epoch.
    pub(crate) fn optional_time(self, name: &str, unix_us: impl Fn(&T) -> Option<u64> + Send + 'static) -> Self {
        self.with(Field::new(name, time_type(), true), move |items| {
            let values = items.iter().map(|item| unix_us(item).map(signed));
            Arc::new(values.collect::<TimestampMicrosecondArray>().with_timezone("+00:00"))
        })
    }

    fn with(mut self, field: Field, array: impl Fn(&[T]) -> ArrayRef + Send + 'static) -> Self {
        self.0.push(Column { field, array: Box::new(array) });
        self
    }

    /// Names and types of the columns.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.0.iter().map(|column| column.field.clone()).collect::<Vec<_>>()))
    }

    /// The rows as one batch.
    pub(crate) fn batch(&self, items: &[T]) -> Result<RecordBatch> {
        Ok(RecordBatch::try_new(self.schema(), self.arrays(items))?)
    }

    /// The rows as batches; see [`in_batches`].
    pub(super) fn batches(self, items: impl Iterator<Item = T> + Send + 'static) -> Batches
    where
        T: 'static,
    {
        in_batches(items, self.schema(), move |page| self.arrays(page))
    }

    fn arrays(&self, items: &[T]) -> Vec<ArrayRef> {
        self.0.iter().map(|column| (column.array)(items)).collect()
    }
}

/// Batches of up to [`BATCH_ROWS`] rows, each built when it is asked for.
pub(crate) fn in_batches<T: 'static>(
    mut items: impl Iterator<Item = T> + Send + 'static,
    schema: SchemaRef,
    columns: impl Fn(&[T]) -> Vec<ArrayRef> + Send + 'static,
) -> Batches {
    Box::new(std::iter::from_fn(move || {
        let page: Vec<T> = items.by_ref().take(BATCH_ROWS).collect();
        if page.is_empty() {
            return None;
        }
        Some(RecordBatch::try_new(Arc::clone(&schema), columns(&page)).map_err(Into::into))
    }))
}

pub(crate) fn texts<T>(items: &[T], value: impl Fn(&T) -> String) -> ArrayRef {
    Arc::new(items.iter().map(|i| Some(value(i))).collect::<StringViewArray>())
}

pub(crate) fn optional_texts<T>(items: &[T], value: impl Fn(&T) -> Option<String>) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<StringViewArray>())
}

pub(crate) fn counts<T>(items: &[T], value: impl Fn(&T) -> u64) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(items.iter().map(value)))
}

pub(crate) fn optional_counts<T>(items: &[T], value: impl Fn(&T) -> Option<u64>) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<UInt64Array>())
}

pub(crate) fn reals<T>(items: &[T], value: impl Fn(&T) -> f64) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(items.iter().map(value)))
}

pub(crate) fn flags<T>(items: &[T], value: impl Fn(&T) -> bool) -> ArrayRef {
    Arc::new(BooleanArray::from(items.iter().map(value).collect::<Vec<_>>()))
}

pub(crate) fn times<T>(items: &[T], unix_us: impl Fn(&T) -> u64) -> ArrayRef {
    let values = items.iter().map(|item| signed(unix_us(item)));
    Arc::new(TimestampMicrosecondArray::from_iter_values(values).with_timezone("+00:00"))
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}
