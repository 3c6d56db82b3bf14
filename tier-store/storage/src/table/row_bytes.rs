//! Computes the bytes that rows take, whatever buffers they share with other rows. Ingest cuts chunks by them, and
//! statements report them.

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::DataType;

use crate::tier::codec;

/// Bytes of the rows of a batch: for a slice only its own rows, for views also the strings that they refer to.
pub fn row_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|column| array_bytes(column) as u64).sum()
}

fn array_bytes(array: &ArrayRef) -> usize {
    fn list_bytes<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> usize {
        let offsets = list.value_offsets();
        let ends = offsets.first().zip(offsets.last()).map(|(first, last)| (first.as_usize(), last.as_usize()));
        let (first, last) = ends.unwrap_or_default();
        size_of_val(offsets) + array_bytes(&list.values().slice(first, last - first))
    }
    match array.data_type() {
        DataType::Utf8View => 16 * array.len() + codec::long_bytes(array.as_string_view(), 0..array.len()),
        DataType::BinaryView => 16 * array.len() + codec::long_bytes(array.as_binary_view(), 0..array.len()),
        DataType::List(_) => list_bytes(array.as_list::<i32>()),
        DataType::LargeList(_) => list_bytes(array.as_list::<i64>()),
        DataType::FixedSizeList(..) => array_bytes(array.as_fixed_size_list().values()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(array_bytes).sum(),
        _ => array.to_data().get_slice_memory_size().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringViewArray};

    use super::*;

    #[test]
    fn a_slice_has_the_bytes_of_its_own_rows() {
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(["short", &"long ".repeat(20), "x"]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let batch = RecordBatch::try_from_iter([("s", texts), ("n", numbers)]).unwrap();
        let bytes = |offset, rows| row_bytes(&batch.slice(offset, rows));
        assert_eq!([bytes(0, 3), bytes(0, 1), bytes(1, 1), bytes(2, 0)], [3 * 24 + 100, 24, 124, 0]);
    }
}
