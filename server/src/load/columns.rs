//! The columns of rows: types for those without a value, and rows with the columns of a source.
//!
//! A column that is null in all rows of a file has no type there. It gets the type of the first file that has one, or
//! of the table that rows are added to, or else it is text. Which columns a source has, [`super::union`] says.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use terrace_flight::sql_type;

use super::partitions::DataFile;

/// True when a column, or a part of one, has no type.
pub fn has_untyped(schema: &Schema) -> bool {
    schema.fields().iter().any(|field| is_untyped(field.data_type()))
}

/// True for a type that is none, or has a part without one.
pub fn is_untyped(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_untyped(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| is_untyped(field.data_type())),
        _ => false,
    }
}

/// The name of a type in SQL; for nested types, whose names there say little, in Arrow.
pub fn type_name(data_type: &DataType) -> String {
    if data_type.is_nested() { data_type.to_string() } else { sql_type(data_type) }
}

/// The schema, with the types of `other` for columns without a type.
pub fn filled(schema: &Schema, other: &Schema) -> SchemaRef {
    let fields = filled_fields(schema.fields(), other.fields());
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The schema, with text for columns without a type.
pub fn with_text(schema: &Schema) -> SchemaRef {
    let fields: Fields = schema.fields().iter().map(text_field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn filled_fields(fields: &Fields, others: &Fields) -> Fields {
    let other = |name: &str| {
        let exact = others.iter().find(|other| other.name() == name);
        exact.or_else(|| others.iter().find(|other| other.name().eq_ignore_ascii_case(name)))
    };
    fields.iter().map(|field| other(field.name()).map_or_else(|| field.clone(), |o| filled_field(field, o))).collect()
}

fn filled_field(field: &FieldRef, other: &FieldRef) -> FieldRef {
    with_type(field, filled_type(field.data_type(), other.data_type()))
}

/// `data_type`, with the types of `other` for its parts without a type.
pub fn filled_type(data_type: &DataType, other: &DataType) -> DataType {
    use DataType as T;
    match (data_type, other) {
        (T::Null, other) => other.clone(),
        (T::List(a), T::List(b) | T::LargeList(b) | T::FixedSizeList(b, _)) => T::List(filled_field(a, b)),
        (T::LargeList(a), T::List(b) | T::LargeList(b) | T::FixedSizeList(b, _)) => T::LargeList(filled_field(a, b)),
        (T::FixedSizeList(a, n), T::List(b) | T::LargeList(b) | T::FixedSizeList(b, _)) => {
            T::FixedSizeList(filled_field(a, b), *n)
        }
        (T::Struct(a), T::Struct(b)) => T::Struct(filled_fields(a, b)),
        _ => data_type.clone(),
    }
}

fn text_field(field: &FieldRef) -> FieldRef {
    with_type(field, text_type(field.data_type()))
}

fn text_type(data_type: &DataType) -> DataType {
    use DataType as T;
    match data_type {
        T::Null => T::Utf8,
        T::List(item) => T::List(text_field(item)),
        T::LargeList(item) => T::LargeList(text_field(item)),
        T::FixedSizeList(item, n) => T::FixedSizeList(text_field(item), *n),
        T::Struct(fields) => T::Struct(fields.iter().map(text_field).collect()),
        other => other.clone(),
    }
}

/// The field with another type. A field without a type becomes nullable, because its rows are null.
fn with_type(field: &FieldRef, data_type: DataType) -> FieldRef {
    let nullable = field.is_nullable() || field.data_type() == &DataType::Null;
    Arc::new(field.as_ref().clone().with_data_type(data_type).with_nullable(nullable))
}

/// Returns the batch with the columns of `schema` in its order, found by name and cast where the types differ; those that
/// the file does not have are null. `deciders` names for each column the file that gave it its type.
///
/// # Errors
/// A message that names the column.
pub fn fit(
    batch: &RecordBatch,
    file: &DataFile,
    schema: &SchemaRef,
    deciders: &[String],
) -> Result<RecordBatch, String> {
    let own = batch.schema_ref().fields().iter().map(|field| field.name());
    let mut names = own.chain(file.partitions.iter().map(|(name, _)| name));
    if let Some(more) = names.find(|name| schema.column_with_name(name).is_none()) {
        return Err(format!("it has the column '{more}', which it did not have when the load began"));
    }
    let columns = schema.fields().iter().enumerate().map(|(index, field)| {
        let name = field.name();
        match (batch.column_by_name(name), file.column(name, field.data_type(), batch.num_rows())) {
            (Some(column), _) => cast(column, field, deciders.get(index).map_or("another file", String::as_str)),
            (None, Some(column)) => column.map_err(|e| format!("column '{name}' of its folder: {e}")),
            (None, None) => Ok(new_null_array(field.data_type(), batch.num_rows())),
        }
    });
    let columns = columns.collect::<Result<Vec<_>, String>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|e| e.to_string())
}

/// Casts the column to the type of `field`, which `decider` gave it. A value that does not fit is an error, never a null or
/// another value.
fn cast(column: &ArrayRef, field: &Field, decider: &str) -> Result<ArrayRef, String> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let typed = filled_type(column.data_type(), field.data_type());
    let to = field.data_type();
    let failed = |e: ArrowError| {
        let (from, to) = (type_name(column.data_type()), type_name(to));
        format!("column '{}' is {from} here and {to} in {decider}: {e}", field.name())
    };
    let column = cast_with_options(column, &typed, &options).map_err(failed)?;
    if column.data_type() == to {
        return Ok(column);
    }
    let there = cast_with_options(&column, to, &options).map_err(failed)?;
    let back = cast_with_options(&there, column.data_type(), &options).map_err(failed)?;
    if back.as_ref() != column.as_ref() {
        let (from, to) = (type_name(column.data_type()), type_name(to));
        let name = field.name();
        return Err(format!("column '{name}' is {from} here and {to} in {decider}, which cannot hold its values"));
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(item: DataType) -> DataType {
        DataType::List(Arc::new(Field::new("item", item, true)))
    }

    #[test]
    fn what_has_no_type_gets_one() {
        let nested = DataType::Struct(vec![Field::new("x", DataType::Null, true)].into());
        let bare = Schema::new(vec![
            Field::new("a", DataType::Null, true),
            Field::new("b", list(DataType::Null), true),
            Field::new("c", nested, true),
            Field::new("d", DataType::Int8, false),
        ]);
        assert!(has_untyped(&bare));
        let full = Schema::new(vec![
            Field::new("A", DataType::Int64, false),
            Field::new("b", list(DataType::Date32), true),
            Field::new("d", DataType::Utf8, true),
        ]);
        let filled = filled(&bare, &full);
        assert_eq!(filled.field(0), &Field::new("a", DataType::Int64, true));
        assert_eq!(filled.field(1).data_type(), &list(DataType::Date32));
        assert_eq!(filled.field(3).data_type(), &DataType::Int8, "what has a type keeps it");
        assert!(has_untyped(&filled));
        let text = with_text(&filled);
        assert_eq!(text.field(2).data_type(), &DataType::Struct(vec![Field::new("x", DataType::Utf8, true)].into()));
        assert!(!has_untyped(&text));
    }
}
