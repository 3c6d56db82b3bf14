//! Views that carry the bytes of their values only.
//!
//! A view array refers to whole buffers: a slice of it keeps all of them in memory, and a message would carry all of their bytes,
//! those of rows that are not part of it too. Arrow's `gc` copies what the views of one array refer to. [`compact_views`] does so within
//! lists, structs, maps and dictionaries as well, for the rows of a slice alone. The values of a dictionary stay, as its keys refer
//! to them; those of results are plain texts ([`schema`](crate::schema)).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MutableArrayData, RecordBatch, RecordBatchOptions, make_array};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// Copies the columns that are views or have views in them, however deep; shares the others.
///
/// # Errors
/// Those of Arrow's arrays.
pub(crate) fn compact_views(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(|column| has_views(column.data_type())) {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(compacted).collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
}

fn compacted(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::Utf8View => Ok(Arc::new(array.as_string_view().gc())),
        DataType::BinaryView => Ok(Arc::new(array.as_binary_view().gc())),
        nested if has_views(nested) => {
            let data = array.to_data();
            // A slice of a list has all values of the list below it; the copy has those of its rows.
            let mut rows = MutableArrayData::new(vec![&data], false, data.len());
            rows.try_extend(0, 0, data.len())?;
            let rows = rows.freeze();
            let children = rows.child_data().iter().map(|child| Ok(compacted(&make_array(child.clone()))?.to_data()));
            let children = children.collect::<Result<Vec<_>, ArrowError>>()?;
            Ok(make_array(rows.into_builder().child_data(children).build()?))
        }
        _ => Ok(Arc::clone(array)),
    }
}

/// Whether arrays of a type are views, or have some in them.
fn has_views(data_type: &DataType) -> bool {
    use DataType as D;
    match data_type {
        D::Utf8View | D::BinaryView => true,
        D::List(item) | D::LargeList(item) | D::ListView(item) | D::LargeListView(item) => has_views(item.data_type()),
        D::FixedSizeList(item, _) | D::Map(item, _) => has_views(item.data_type()),
        D::Struct(fields) => fields.iter().any(|field| has_views(field.data_type())),
        D::Union(fields, _) => fields.iter().any(|(_, field)| has_views(field.data_type())),
        D::Dictionary(_, values) => has_views(values),
        D::RunEndEncoded(_, values) => has_views(values.data_type()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{
        ArrayData, BinaryViewArray, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array, LargeListArray,
        ListArray, MapArray, StringViewArray, StructArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, FieldRef, Int32Type};

    use super::*;

    const ROWS: usize = 1000;

    fn text(row: usize) -> String {
        format!("a value that does not fit into a view, of row {row:04}")
    }

    fn texts() -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values((0..ROWS).map(text)))
    }

    fn item(values: &ArrayRef) -> FieldRef {
        Arc::new(Field::new_list_field(values.data_type().clone(), true))
    }

    fn lists_of(values: ArrayRef) -> ArrayRef {
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(1, ROWS));
        Arc::new(ListArray::try_new(item(&values), offsets, values, None).unwrap())
    }

    fn structs_of(values: ArrayRef) -> ArrayRef {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
        let field = |name: &str, values: &ArrayRef| Arc::new(Field::new(name, values.data_type().clone(), true));
        Arc::new(StructArray::from(vec![(field("n", &numbers), numbers), (field("v", &values), values)]))
    }

    fn maps() -> ArrayRef {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
        let key = Arc::new(Field::new("keys", DataType::Int64, false));
        let value = Arc::new(Field::new("values", DataType::Utf8View, true));
        let entries = StructArray::from(vec![(key, keys), (value, texts())]);
        let field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(1, ROWS));
        Arc::new(MapArray::try_new(field, offsets, entries, None, false).unwrap())
    }

    /// Arrays of a value per row, of which each has views in it.
    fn arrays() -> Vec<ArrayRef> {
        let bytes = (0..ROWS).map(|row| text(row).into_bytes());
        let large = OffsetBuffer::from_lengths(std::iter::repeat_n(1, ROWS));
        vec![
            texts(),
            Arc::new(BinaryViewArray::from_iter_values(bytes)),
            lists_of(texts()),
            Arc::new(LargeListArray::try_new(item(&texts()), large, texts(), None).unwrap()),
            Arc::new(FixedSizeListArray::try_new(item(&texts()), 1, texts(), None).unwrap()),
            structs_of(texts()),
            maps(),
            lists_of(structs_of(lists_of(texts()))),
        ]
    }

    /// Whether a buffer of an array, or of one in it, has these bytes.
    fn holds(data: &ArrayData, bytes: &[u8]) -> bool {
        data.buffers().iter().any(|buffer| buffer.as_slice().windows(bytes.len()).any(|found| found == bytes))
            || data.child_data().iter().any(|child| holds(child, bytes))
    }

    #[test]
    fn views_at_any_depth_carry_the_bytes_of_their_rows_only() {
        for array in arrays() {
            let data_type = array.data_type().clone();
            let whole = RecordBatch::try_from_iter([("c", array)]).unwrap();
            let slice = whole.slice(10, 2);
            assert!(holds(&slice.column(0).to_data(), text(900).as_bytes()), "{data_type}: a slice has all bytes");
            let compacted = compact_views(&slice).unwrap();
            assert_eq!(compacted, slice, "{data_type}");
            let data = compacted.column(0).to_data();
            for row in 0..ROWS {
                assert_eq!(holds(&data, text(row).as_bytes()), (10..12).contains(&row), "{data_type}: row {row}");
            }
        }
    }

    #[test]
    fn dictionaries_carry_the_bytes_of_their_values_only() {
        let keys = Int32Array::from(vec![Some(1), None, Some(0)]);
        let array: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::try_new(keys, texts().slice(10, 2)).unwrap());
        let batch = RecordBatch::try_from_iter([("d", array)]).unwrap();
        let compacted = compact_views(&batch).unwrap();
        assert_eq!(compacted, batch);
        let data = compacted.column(0).to_data();
        assert!(holds(&data, text(10).as_bytes()) && holds(&data, text(11).as_bytes()));
        assert!(!holds(&data, text(12).as_bytes()) && !holds(&data, text(9).as_bytes()));
    }

    #[test]
    fn columns_without_views_are_shared() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
        let batch = RecordBatch::try_from_iter([("n", Arc::clone(&numbers)), ("v", texts())]).unwrap();
        assert!(Arc::ptr_eq(compact_views(&batch).unwrap().column(0), &numbers));
    }
}
