//! Rows with the columns in which the server sends them, for Flight and for other protocols.
//!
//! Views become plain texts and bytes, dictionaries and run ends their values ([`crate::schema`]). Values stay what they
//! are: a column of another type than was announced is an error.

use arrow::{
    array::{Array, ArrayRef, AsArray},
    compute::{CastOptions, cast_with_options},
    datatypes::{DataType, Schema, SchemaRef},
    error::ArrowError,
    record_batch::{RecordBatch, RecordBatchOptions},
};
use terrace_ipc::{flat_bytes, flat_texts};

use crate::{
    schema::{WireTypes, same_on_the_wire, wire_schema},
    types::SqlType,
};

/// The columns in which rows of `schema` are sent: types that clients in the field read, with the metadata of Flight SQL.
pub fn plain_schema(schema: &Schema) -> SchemaRef {
    wire_schema(schema, WireTypes::PLAIN)
}

/// The name of a type in SQL, with its digits where CREATE TABLE takes them: `DECIMAL(10, 2)`, `TIMESTAMP(6)`. A nested type is
/// `ARRAY`, `STRUCT` or `MAP`.
pub fn sql_type(data_type: &DataType) -> String {
    let SqlType { name, precision, scale, .. } = SqlType::from_arrow(data_type);
    match (name, precision, scale) {
        ("DECIMAL", Some(precision), Some(scale)) => format!("DECIMAL({precision}, {scale})"),
        ("TIME" | "TIMESTAMP", Some(precision), _) => format!("{name}({precision})"),
        _ => name.to_owned(),
    }
}

/// The rows of `batch` with the columns of `plain`, which [`plain_schema`] made of the schema of its statement. Columns
/// of the right type are shared.
///
/// # Errors
/// For a batch whose columns are others than those of the statement, and for a null where none may be.
pub fn plain_rows(batch: &RecordBatch, plain: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    convert(batch, plain)
}

/// Converts the batch to the columns of `wire`. Columns of the right type are shared; the encoding of others changes,
/// but never their values.
pub(crate) fn convert(batch: &RecordBatch, wire: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    if batch.num_columns() != wire.fields().len() {
        return Err(ArrowError::SchemaError(format!(
            "the result has {} columns, but its schema has {}",
            batch.num_columns(),
            wire.fields().len()
        )));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = batch
        .columns()
        .iter()
        .zip(wire.fields())
        .map(|(column, field)| match column.data_type() {
            same if same == field.data_type() => Ok(column.clone()),
            other if same_on_the_wire(field.data_type(), other) => match (other, field.data_type()) {
                (DataType::Utf8View, DataType::Utf8) => flat_texts(column.as_string_view()),
                (DataType::BinaryView, DataType::Binary) => flat_bytes(column.as_binary_view()),
                (_, wanted) => cast_with_options(column, wanted, &options),
            },
            other => Err(ArrowError::SchemaError(format!(
                "column '{}' has {other}, {} was announced",
                field.name(),
                field.data_type()
            ))),
        })
        .collect::<Result<Vec<ArrayRef>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(wire.clone(), columns, &options)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, StringViewArray};
    use arrow::datatypes::{Field, TimeUnit};

    use super::*;

    #[test]
    fn a_null_in_a_column_announced_without_is_an_error() {
        let batch = RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from(vec![None])) as ArrayRef)]).unwrap();
        let wire = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        assert!(convert(&batch, &wire).is_err());
    }

    #[test]
    fn values_are_never_cast_to_another_type() {
        let batch = RecordBatch::try_from_iter([("a", Arc::new(Float64Array::from(vec![2.5])) as ArrayRef)]).unwrap();
        let wire = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
        let error = convert(&batch, &wire).unwrap_err().to_string();
        assert!(error.contains("Float64") && error.contains("Int64"), "{error}");
    }

    #[test]
    fn rows_for_other_protocols_are_plain() {
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(["a", "a text longer than twelve bytes"]));
        let batch = RecordBatch::try_from_iter([("v", views)]).unwrap();
        let plain = plain_schema(&batch.schema());
        assert_eq!(plain.field(0).metadata()["ARROW:FLIGHT:SQL:TYPE_NAME"], "VARCHAR");
        let rows = plain_rows(&batch, &plain).unwrap();
        assert_eq!(rows.column(0).as_string::<i32>().value(1), "a text longer than twelve bytes");
    }

    #[test]
    fn types_have_the_names_of_sql() {
        let names = [
            DataType::Int64,
            DataType::Utf8View,
            DataType::Decimal128(10, 2),
            DataType::Timestamp(TimeUnit::Microsecond, None),
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            DataType::new_list(DataType::Int8, true),
        ]
        .map(|data_type| sql_type(&data_type));
        let expected = ["BIGINT", "VARCHAR", "DECIMAL(10, 2)", "TIMESTAMP(6)", "TIMESTAMP WITH TIME ZONE", "ARRAY"];
        assert_eq!(names, expected);
    }
}
