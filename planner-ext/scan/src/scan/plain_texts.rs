//! Texts and bytes as plain arrays instead of views, for rows that leave the server as such.
//!
//! The last operator of a plan is asked for them. Where it is a scan, it copies texts from where they are stored, or from their
//! dictionary, and makes no views that somebody else would read once and drop.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::Result;
use terrace_ipc::{flat_bytes, flat_texts};

/// The schema with columns of texts and bytes as plain arrays.
pub(super) fn plain_schema(schema: &Schema) -> Schema {
    let plain = |field: &FieldRef| match plain_type(field.data_type()) {
        Some(data_type) => Arc::new(field.as_ref().clone().with_data_type(data_type)),
        None => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = schema.fields().iter().map(plain).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn plain_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Utf8View => Some(DataType::Utf8),
        DataType::BinaryView => Some(DataType::Binary),
        _ => None,
    }
}

/// The column as a plain array; it is shared where it is one.
pub(super) fn plain_array(column: &ArrayRef) -> Result<ArrayRef> {
    Ok(match column.data_type() {
        DataType::Utf8View => flat_texts(column.as_string_view())?,
        DataType::BinaryView => flat_bytes(column.as_binary_view())?,
        _ => Arc::clone(column),
    })
}

/// The rows in plain arrays; `schema` is the plain one.
pub(super) fn plain_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(plain_array).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use arrow::array::{BinaryViewArray, Int64Array, StringViewArray};
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn views_become_plain_and_all_else_stays() {
        let fields = [("s", DataType::Utf8View), ("b", DataType::BinaryView), ("i", DataType::Int64)];
        let note = |name: &str| HashMap::from([("note".to_owned(), name.to_owned())]);
        let fields = fields.map(|(name, data_type)| Field::new(name, data_type, true).with_metadata(note(name)));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringViewArray::from(vec![Some("a text that is not short"), None, Some("b")])),
            Arc::new(BinaryViewArray::from_iter([None, Some(&[0xff_u8; 20][..]), Some(&[][..])])),
            Arc::new(Int64Array::from(vec![1, 2, 3])),
        ];
        let views = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let plain = Arc::new(plain_schema(&schema));
        for rows in [views.slice(0, 3), views.slice(1, 2), views.slice(3, 0)] {
            let batch = plain_batch(&rows, &plain).unwrap();
            assert_eq!(batch.num_rows(), rows.num_rows());
            for (found, given) in batch.columns().iter().zip(rows.columns()) {
                assert_eq!(&arrow::compute::cast(found, given.data_type()).unwrap(), given);
            }
        }
        let types: Vec<&DataType> = plain.fields().iter().map(|field| field.data_type()).collect();
        assert_eq!(types, [&DataType::Utf8, &DataType::Binary, &DataType::Int64]);
        assert!(plain.fields().iter().all(|field| field.is_nullable() && field.metadata()["note"] == *field.name()));
    }
}
