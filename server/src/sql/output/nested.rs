//! Values that a format does not have: nested ones as JSON text, keys of maps as text, intervals as text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, Schema};
use arrow::json::writer::{EncoderOptions, make_encoder};

use crate::error::{Error, Result};

/// The rows with lists, structs and maps as JSON text, for formats without them.
pub fn flattened(rows: &RecordBatch) -> Result<RecordBatch> {
    converted(rows, |field, column| match field.data_type().is_nested() {
        true => json_text(field, column).map(Some),
        false => Ok(None),
    })
}

/// The rows with texts as the keys of maps, which JSON wants.
pub fn with_text_keys(rows: &RecordBatch) -> Result<RecordBatch> {
    converted(rows, |field, column| {
        let wanted = text_keys(field.data_type());
        if wanted == *field.data_type() { Ok(None) } else { Ok(Some(cast(column, &wanted)?)) }
    })
}

/// The rows with intervals as text, which Parquet does not have with nanoseconds.
pub fn without_intervals(rows: &RecordBatch) -> Result<RecordBatch> {
    converted(rows, |field, column| match field.data_type() {
        DataType::Interval(IntervalUnit::MonthDayNano) => Ok(Some(cast(column, &DataType::Utf8)?)),
        _ => Ok(None),
    })
}

/// The rows with those columns replaced for which `convert` gives another.
fn converted(
    rows: &RecordBatch,
    convert: impl Fn(&FieldRef, &ArrayRef) -> Result<Option<ArrayRef>>,
) -> Result<RecordBatch> {
    let schema = rows.schema();
    let mut fields = Vec::with_capacity(rows.num_columns());
    let mut columns = Vec::with_capacity(rows.num_columns());
    for (field, column) in schema.fields().iter().zip(rows.columns()) {
        match convert(field, column)? {
            Some(other) => {
                fields.push(Arc::new(Field::new(field.name(), other.data_type().clone(), field.is_nullable())));
                columns.push(other);
            }
            None => {
                fields.push(Arc::clone(field));
                columns.push(Arc::clone(column));
            }
        }
    }
    let schema = Arc::new(Schema::new(fields));
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

/// Each value of a column as JSON text.
fn json_text(field: &FieldRef, column: &ArrayRef) -> Result<ArrayRef> {
    let wanted = text_keys(field.data_type());
    let column = if wanted == *field.data_type() { Arc::clone(column) } else { cast(column, &wanted)? };
    let field = Arc::new(Field::new(field.name(), wanted, field.is_nullable()));
    let options = EncoderOptions::default().with_explicit_nulls(true);
    let mut encoder = make_encoder(&field, column.as_ref(), &options)?;
    let mut texts = StringBuilder::new();
    let mut text = Vec::new();
    for row in 0..column.len() {
        if encoder.is_null(row) {
            texts.append_null();
            continue;
        }
        text.clear();
        encoder.encode(row, &mut text);
        texts.append_value(std::str::from_utf8(&text).map_err(|e| Error::System(format!("cannot write JSON: {e}")))?);
    }
    Ok(Arc::new(texts.finish()))
}

/// The type with texts as the keys of all maps in it.
fn text_keys(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(field.as_ref().clone().with_data_type(text_keys(field.data_type())));
    match data_type {
        DataType::List(item) => DataType::List(inner(item)),
        DataType::LargeList(item) => DataType::LargeList(inner(item)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(inner(item), *len),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::Map(entries, is_sorted) => {
            let DataType::Struct(pair) = entries.data_type() else { return data_type.clone() };
            let field = |at: usize, field: &FieldRef| match (at, field.data_type()) {
                (0, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => Arc::clone(field),
                (0, _) => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
                _ => inner(field),
            };
            let pair = pair.iter().enumerate().map(|(at, each)| field(at, each)).collect();
            let entries = entries.as_ref().clone().with_data_type(DataType::Struct(pair));
            DataType::Map(Arc::new(entries), *is_sorted)
        }
        other => other.clone(),
    }
}
