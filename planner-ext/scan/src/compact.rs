//! Copies batches that keep far more memory than their rows have bytes.
//!
//! What a batch keeps is counted as DataFusion counts it: the capacity of every buffer that it refers to, once. Slices of a
//! larger batch keep all of it, views keep each page that a text lies in, and batches that Arrow's coalescer made have
//! text buffers of up to 1 MiB, however little is in them. A column whose buffers are at least two thirds used stays as it is.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericByteViewArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{ByteViewType, DataType};
use arrow::error::ArrowError;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::error::Result;
use terrace_tier_store::tier::codec;

/// Bytes kept, as a share of the bytes of the rows, from which on a batch or column is copied: three halves.
const COPIED_FROM: Share = Share { kept: 3, used: 2 };

/// A relation of kept to used bytes.
struct Share {
    kept: usize,
    used: usize,
}

impl Share {
    fn is_exceeded(&self, kept: usize, used: usize) -> bool {
        kept.saturating_mul(self.used) > used.saturating_mul(self.kept)
    }
}

/// Returns the rows of `batch` in buffers of their own size where they keep more than half as much again.
///
/// # Errors
///
/// Fails where Arrow cannot copy a column.
pub fn compact(batch: RecordBatch) -> Result<RecordBatch> {
    if !COPIED_FROM.is_exceeded(get_record_batch_memory_size(&batch), rows_bytes(&batch)) {
        return Ok(batch);
    }
    let copied = |column: &ArrayRef| {
        let needed = used_bytes(column.as_ref());
        match COPIED_FROM.is_exceeded(column.get_buffer_memory_size(), needed) {
            true => copy(column),
            false => Ok(Arc::clone(column)),
        }
    };
    let columns = batch.columns().iter().map(copied).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

/// Bytes of the rows of a batch, without the parts of its buffers that they do not use.
pub(crate) fn rows_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| used_bytes(column.as_ref())).sum()
}

/// Bytes of the values of an array, without the parts of its buffers that they do not use.
fn used_bytes(array: &dyn Array) -> usize {
    let rows = array.len();
    let nulls = array.nulls().map_or(0, |_| rows.div_ceil(8));
    let values = match array.data_type() {
        DataType::Utf8View => view_bytes(array.as_string_view()),
        DataType::BinaryView => view_bytes(array.as_binary_view()),
        DataType::List(_) => list_bytes(array.as_list::<i32>().value_offsets(), array.as_list::<i32>().values()),
        DataType::LargeList(_) => list_bytes(array.as_list::<i64>().value_offsets(), array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => used_bytes(array.as_fixed_size_list().values().as_ref()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| used_bytes(column.as_ref())).sum(),
        DataType::Dictionary(keys, _) => {
            let width = keys.primitive_width().unwrap_or(size_of::<u64>());
            rows * width + used_bytes(array.as_any_dictionary().values().as_ref())
        }
        // Includes the bitmap of NULLs.
        _ => return array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_buffer_memory_size()),
    };
    values + nulls
}

fn view_bytes<T: ByteViewType>(views: &GenericByteViewArray<T>) -> usize {
    std::mem::size_of_val::<[u128]>(views.views()) + views.total_buffer_bytes_used()
}

fn list_bytes<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> usize {
    let first = offsets.first().map_or(0, |offset| offset.as_usize());
    let end = offsets.last().map_or(0, |offset| offset.as_usize());
    std::mem::size_of_val(offsets) + used_bytes(values.slice(first, end.saturating_sub(first)).as_ref())
}

/// Copies an array into buffers of its size.
fn copy(array: &ArrayRef) -> Result<ArrayRef> {
    codec::copied(array).map_err(|error| ArrowError::from_external_error(Box::new(error)).into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{
        BinaryViewArray, BooleanArray, DictionaryArray, Int64Array, LargeListArray, ListArray, StringArray,
        StringViewArray, StructArray,
    };
    use arrow::datatypes::{Field, Int32Type, Int64Type};

    use super::*;

    /// Columns of 80,000 rows.
    fn columns() -> Vec<ArrayRef> {
        let rows = 0..80_000_i64;
        let text = |row: i64| (row % 7 > 0).then(|| format!("a text of some length {row}"));
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter(rows.clone().map(text)));
        let lists = rows.clone().map(|row| Some((0..row % 5).map(Some).collect::<Vec<_>>()));
        let large = LargeListArray::from_iter_primitive::<Int64Type, _, _>(lists.clone());
        vec![
            Arc::clone(&texts),
            Arc::new(StringViewArray::from_iter(rows.clone().map(|row| Some(format!("t{row}"))))),
            Arc::new(BinaryViewArray::from_iter(rows.clone().map(|row| text(row).map(String::into_bytes)))),
            Arc::new(StringArray::from_iter(rows.clone().map(text))),
            Arc::new(Int64Array::from_iter(rows.clone().map(|row| (row % 3 > 0).then_some(row)))),
            Arc::new(BooleanArray::from_iter(rows.clone().map(|row| Some(row % 3 == 0)))),
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)),
            Arc::new(large),
            Arc::new(rows.map(|row| if row % 2 == 0 { "even" } else { "odd" }).collect::<DictionaryArray<Int32Type>>()),
            Arc::new(StructArray::from(vec![(Arc::new(Field::new("s", DataType::Utf8View, true)), texts)])),
        ]
    }

    fn kept(batch: &RecordBatch) -> usize {
        get_record_batch_memory_size(batch)
    }

    #[test]
    fn slices_keep_what_their_rows_need_and_mean_the_same() {
        for column in columns() {
            let data_type = column.data_type().clone();
            let whole = RecordBatch::try_from_iter([("c", column)]).unwrap();
            let slice = whole.slice(40_001, 8_000);
            let compacted = compact(slice.clone()).unwrap();
            assert_eq!(compacted, slice, "{data_type}");
            let needed = used_bytes(slice.column(0).as_ref());
            assert!(kept(&compacted) <= needed + needed / 2 + 1_000, "{data_type}: {} of {needed}", kept(&compacted));
            assert!(kept(&slice) > 2 * needed, "{data_type}: {} of {needed}", kept(&slice));
        }
    }

    #[test]
    fn what_is_well_used_is_not_copied() {
        for column in columns() {
            let data_type = column.data_type().clone();
            let own = copy(&column).unwrap();
            let whole = RecordBatch::try_from_iter([("c", own)]).unwrap();
            let compacted = compact(whole.clone()).unwrap();
            assert!(Arc::ptr_eq(whole.column(0), compacted.column(0)), "{data_type}");
        }
    }
}
