//! Rows that leave a statement.
//!
//! A [`HeapAccount`] is credited for what the work of its statement frees. Rows that go to a client are freed by the
//! connection, on other threads. How much that is, is not to be seen in the rows: their buffers have room to spare, and may
//! be those of larger batches. So each buffer carries the account, and is freed as work of the statement.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use arrow::array::{ArrayData, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::error::Result;
use bytes::Bytes;
use terrace_heap::HeapAccount;

/// Returns the rows in the same buffers, whose memory is credited to `account` wherever they are dropped.
pub(in crate::engine) fn credited(batch: &RecordBatch, account: &Arc<HeapAccount>) -> Result<RecordBatch> {
    // The connection frees what is allocated here, too.
    HeapAccount::uncharged(|| {
        let columns = batch.columns().iter().map(|column| make_array(with_account(column.to_data(), account)));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(batch.schema(), columns.collect(), &options)
    })
}

fn with_account(data: ArrayData, account: &Arc<HeapAccount>) -> ArrayData {
    let carry = |buffer: &Buffer| {
        let buffer = ManuallyDrop::new(buffer.clone());
        Buffer::from(Bytes::from_owner(CreditedBuffer { buffer, account: Arc::clone(account) }))
    };
    let buffers = data.buffers().iter().map(carry).collect();
    let children = data.child_data().iter().map(|child| with_account(child.clone(), account)).collect();
    let nulls = data.nulls().map(|nulls| {
        let bits = BooleanBuffer::new(carry(nulls.buffer()), nulls.offset(), nulls.len());
        // SAFETY: the same bits have the same number of zeros.
        unsafe { NullBuffer::new_unchecked(bits, nulls.null_count()) }
    });
    let builder = data.into_builder().buffers(buffers).child_data(children).nulls(nulls);
    // SAFETY: the parts of valid data, with the same bytes at the same places.
    unsafe { builder.build_unchecked() }
}

/// A buffer that is freed as work of a statement.
struct CreditedBuffer {
    buffer: ManuallyDrop<Buffer>,
    account: Arc<HeapAccount>,
}

impl AsRef<[u8]> for CreditedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_slice()
    }
}

impl Drop for CreditedBuffer {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        self.account.charge_call(|| drop(buffer));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{
        Array, ArrayRef, DictionaryArray, Int64Array, ListArray, StringArray, StringViewArray, StructArray,
    };
    use arrow::datatypes::{DataType, Field, Int32Type, Int64Type};

    use super::*;

    #[test]
    fn rows_are_the_same_and_share_their_buffers() {
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter(
            (0..1000).map(|row| (row % 7 > 0).then(|| format!("a text of some length {row}"))),
        ));
        let lists =
            (0..1000).map(|row| (row % 5 > 0).then(|| (0..row % 4).map(|v| Some(i64::from(v))).collect::<Vec<_>>()));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("views", Arc::clone(&texts)),
            ("numbers", Arc::new((0..1000).map(|row| (row % 3 > 0).then_some(row)).collect::<Int64Array>())),
            ("texts", Arc::new((0..1000).map(|row| Some(row.to_string())).collect::<StringArray>())),
            ("lists", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
            (
                "dictionary",
                Arc::new(
                    (0..1000)
                        .map(|row| if row % 2 == 0 { "even" } else { "odd" })
                        .collect::<DictionaryArray<Int32Type>>(),
                ),
            ),
            ("struct", Arc::new(StructArray::from(vec![(Arc::new(Field::new("s", DataType::Utf8View, true)), texts)]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let account = HeapAccount::new();
        for batch in [batch.slice(0, 0), batch.slice(13, 900), batch] {
            let carried = credited(&batch, &account).unwrap();
            assert_eq!(carried, batch);
            for (carried, column) in carried.columns().iter().zip(batch.columns()) {
                carried.to_data().validate_full().unwrap();
                let (carried, data) = (carried.to_data(), column.to_data());
                let places = |data: &ArrayData| data.buffers().iter().map(|buffer| buffer.as_ptr()).collect::<Vec<_>>();
                assert!(batch.num_rows() == 0 || places(&carried) == places(&data), "{}", column.data_type());
            }
            assert!(Arc::strong_count(&account) > 1);
        }
        assert_eq!(Arc::strong_count(&account), 1, "each buffer let go of it");
    }
}
