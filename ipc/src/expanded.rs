//! Bounds the bytes of a message's rows once dictionaries, views and runs are written out.
//!
//! A few bytes can stand for many: dictionary keys, views that share their text, runs, overlapping lists, and columns
//! whose rows take no bytes at all. Code that writes such rows out allocates the expanded size, so [`check_expanded`]
//! sums that size first and stops at the limit.

use arrow::array::{
    AnyDictionaryArray, Array, ArrayRef, AsArray, GenericByteViewArray, OffsetSizeTrait, RecordBatch, RunArray,
    UnionArray,
};
use arrow::datatypes::{
    ArrowNativeType, ByteViewType, DataType, Int16Type, Int32Type, Int64Type, RunEndIndexType, UnionMode,
};

use crate::error::{Error, Result};

/// Bytes that are counted for a row whose value takes none.
const EMPTY_BYTES: u64 = 8;
/// Dictionary keys that are counted at a time.
const KEY_BATCH_ROWS: usize = 8_192;
/// Longest string that lies within its view.
const MAX_INLINE_BYTES: u32 = 12;

/// Checks that the rows of `batch` take at most `limit` bytes once they are written out.
///
/// # Errors
/// [`Error::TooLarge`] names the column that exceeds the limit.
pub fn check_expanded(batch: &RecordBatch, limit: u64) -> Result<(), Error> {
    let mut left = Budget { bytes: limit, is_checked: false };
    let too_large = |what: String| {
        Error::TooLarge(format!(
            "{what} of a message stands for more than {limit} bytes once it is written out: send fewer rows at a time"
        ))
    };
    if batch.num_columns() == 0 {
        left.rows(batch.num_rows()).ok_or_else(|| too_large(format!("{} rows", batch.num_rows())))?;
    }
    for (column, field) in batch.columns().iter().zip(batch.schema_ref().fields()) {
        left.array(column).ok_or_else(|| too_large(format!("column '{}'", field.name())))?;
    }
    Ok(())
}

/// The bytes left of the limit. Every method returns `None` when they do not suffice.
#[derive(Clone, Copy)]
struct Budget {
    bytes: u64,
    /// The array is a slice of values that were checked as a whole before, so [`Budget::check_fits`] need not do it
    /// again.
    is_checked: bool,
}

impl Budget {
    fn take(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(())
    }

    /// Takes [`EMPTY_BYTES`] for each row.
    fn rows(&mut self, rows: usize) -> Option<()> {
        self.take((rows as u64).checked_mul(EMPTY_BYTES)?)
    }

    fn array(&mut self, array: &ArrayRef) -> Option<()> {
        use DataType as D;
        let rows = array.len();
        match array.data_type() {
            D::Null | D::FixedSizeBinary(0) | D::FixedSizeList(_, 0) => self.rows(rows),
            D::Struct(fields) if fields.is_empty() => self.rows(rows),
            D::Utf8View => self.views(array.as_string_view()),
            D::BinaryView => self.views(array.as_binary_view()),
            D::Dictionary(..) => self.dictionary(array.as_any_dictionary()),
            D::RunEndEncoded(ends, _) => match ends.data_type() {
                D::Int16 => self.runs::<Int16Type>(array.as_any().downcast_ref()?),
                D::Int32 => self.runs::<Int32Type>(array.as_any().downcast_ref()?),
                _ => self.runs::<Int64Type>(array.as_any().downcast_ref()?),
            },
            D::Struct(_) => array.as_struct().columns().iter().try_for_each(|child| self.array(child)),
            D::FixedSizeList(..) => self.array(array.as_fixed_size_list().values()),
            D::List(_) => self.list(array.as_list::<i32>().values(), array.as_list::<i32>().value_offsets()),
            D::LargeList(_) => self.list(array.as_list::<i64>().values(), array.as_list::<i64>().value_offsets()),
            D::Map(..) => {
                let map = array.as_map();
                let entries = std::sync::Arc::new(map.entries().clone()) as ArrayRef;
                self.list(&entries, map.value_offsets())
            }
            D::ListView(_) => self.list_views(array.as_list_view::<i32>()),
            D::LargeListView(_) => self.list_views(array.as_list_view::<i64>()),
            D::Union(_, mode) => self.union(array.as_union(), *mode),
            _ => self.take(array.to_data().get_slice_memory_size().ok()? as u64),
        }
    }

    fn views<T: ByteViewType>(&mut self, array: &GenericByteViewArray<T>) -> Option<()> {
        let long = |view: &u128| if *view as u32 > MAX_INLINE_BYTES { u64::from(*view as u32) } else { 0 };
        self.take(array.views().iter().fold(0_u64, |sum, view| sum.saturating_add(long(view))))?;
        self.take(size_of_val(array.views().as_ref()) as u64)
    }

    /// Checks that the values that rows point at fit once by themselves: a writer may first write out all of them.
    fn check_fits(&self, values: &ArrayRef) -> Option<()> {
        let mut left = *self;
        if self.is_checked { Some(()) } else { left.array(values) }
    }

    /// Takes the bytes of values that are written out `times`.
    fn repeated(&mut self, values: &ArrayRef, times: u64) -> Option<()> {
        let mut left = Self { is_checked: true, ..*self };
        left.array(values)?;
        self.take((self.bytes - left.bytes).max(1).checked_mul(times)?)
    }

    /// Counts keys in batches of rows, so that it takes little memory whatever the number of keys and values.
    fn dictionary(&mut self, array: &dyn AnyDictionaryArray) -> Option<()> {
        let rows = array.len();
        let values = array.values();
        if values.is_empty() {
            return self.rows(rows);
        }
        self.check_fits(values)?;
        for start in (0..rows).step_by(KEY_BATCH_ROWS) {
            let slice = array.slice(start, KEY_BATCH_ROWS.min(rows - start));
            let slice = slice.as_any_dictionary();
            let mut keys = slice.normalized_keys();
            if let Some(nulls) = slice.keys().nulls() {
                self.rows(nulls.null_count())?;
                let mut valid = nulls.iter();
                keys.retain(|_| valid.next().unwrap_or(true));
            }
            keys.sort_unstable();
            let equal = keys.chunk_by(|a, b| a == b);
            let counts: Vec<(usize, usize)> = equal.filter_map(|keys| Some((*keys.first()?, keys.len()))).collect();
            // Consecutive keys with equal counts are counted as one slice of the values.
            for keys in counts.chunk_by(|(a, times_a), (b, times_b)| a + 1 == *b && times_a == times_b) {
                let (first, times) = *keys.first()?;
                self.repeated(&values.slice(first, keys.len()), times as u64)?;
            }
        }
        Some(())
    }

    fn runs<R: RunEndIndexType>(&mut self, array: &RunArray<R>) -> Option<()> {
        let ends = array.run_ends();
        let values = array.values();
        self.check_fits(values)?;
        if ends.is_empty() {
            return Some(());
        }
        let mut start = ends.offset();
        let last = ends.offset() + ends.len();
        for run in ends.get_start_physical_index()..=ends.get_end_physical_index() {
            let end = ends.values().get(run)?.as_usize().min(last);
            self.repeated(&values.slice(run, 1), end.saturating_sub(start) as u64)?;
            start = end;
        }
        Some(())
    }

    fn list<O: OffsetSizeTrait>(&mut self, values: &ArrayRef, offsets: &[O]) -> Option<()> {
        let first = offsets.first()?.as_usize();
        let last = offsets.last()?.as_usize();
        self.take(size_of_val(offsets) as u64)?;
        self.array(&values.slice(first, last.checked_sub(first)?))
    }

    /// Counts each list by itself, as lists may overlap.
    fn list_views<O: OffsetSizeTrait>(&mut self, array: &arrow::array::GenericListViewArray<O>) -> Option<()> {
        self.rows(array.len())?;
        self.check_fits(array.values())?;
        for (offset, size) in array.value_offsets().iter().zip(array.value_sizes()) {
            let offset = offset.as_usize();
            let size = size.as_usize();
            if size > 0 {
                self.repeated(&array.values().slice(offset, size), 1)?;
            }
        }
        Some(())
    }

    fn union(&mut self, array: &UnionArray, mode: UnionMode) -> Option<()> {
        self.rows(array.len())?;
        if mode == UnionMode::Sparse {
            return array.fields().iter().try_for_each(|(id, _)| self.array(array.child(id)));
        }
        array.fields().iter().try_for_each(|(id, _)| self.check_fits(array.child(id)))?;
        (0..array.len()).try_for_each(|row| self.repeated(&array.value(row), 1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{
        BinaryViewArray, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array, ListViewArray, NullArray,
        RecordBatchOptions, StringArray, StringViewArray, StructArray, UnionArray,
    };
    use arrow::buffer::{Buffer, ScalarBuffer};
    use arrow::datatypes::{Field, Fields, Schema, UnionFields};

    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn check(column: ArrayRef) -> Result<()> {
        check_expanded(&RecordBatch::try_from_iter([("c", column)]).unwrap(), LIMIT)
    }

    fn too_large(column: ArrayRef) {
        let found = check(column);
        assert!(matches!(&found, Err(Error::TooLarge(why)) if why.contains("column 'c'")), "{found:?}");
    }

    #[test]
    fn what_stands_for_itself_counts_its_bytes() {
        check(Arc::new(Int64Array::from_iter_values(0..(LIMIT / 8) as i64))).unwrap();
        too_large(Arc::new(Int64Array::from_iter_values(0..=(LIMIT / 8) as i64)));
        check(Arc::new(StringArray::from_iter_values((0..10_000).map(|i| i.to_string())))).unwrap();
    }

    #[test]
    fn rows_of_no_bytes_count() {
        too_large(Arc::new(NullArray::new(1 << 40)));
        let child = Arc::new(Field::new("item", DataType::Int32, true));
        let none: ArrayRef = Arc::new(Int32Array::from(Vec::<i32>::new()));
        let lists = FixedSizeListArray::try_new_with_length(child, 0, none, None, 1 << 40).unwrap();
        too_large(Arc::new(lists));
        too_large(Arc::new(StructArray::new_empty_fields(1 << 40, None)));
        let options = RecordBatchOptions::new().with_row_count(Some(1 << 40));
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::new(Fields::empty())), vec![], &options).unwrap();
        assert!(matches!(check_expanded(&rows, LIMIT), Err(Error::TooLarge(_))));
        check(Arc::new(NullArray::new(1_000))).unwrap();
    }

    #[test]
    fn a_text_counts_as_often_as_it_stands_there() {
        let text = Buffer::from(vec![b'x'; 100_000]);
        let view = u128::from(100_000_u32) | u128::from(u32::from_le_bytes(*b"xxxx")) << 32;
        let views = |rows: usize| {
            let views = ScalarBuffer::from(vec![view; rows]);
            Arc::new(BinaryViewArray::try_new(views, vec![text.clone()], None).unwrap()) as ArrayRef
        };
        check(views(10)).unwrap();
        too_large(views(11));
        check(Arc::new(StringViewArray::from_iter_values((0..10_000).map(|i| format!("{i:020}"))))).unwrap();
    }

    #[test]
    fn a_key_counts_what_it_stands_for() {
        let values = Arc::new(StringArray::from(vec!["short".to_owned(), "l".repeat(200_000)]));
        let keys = |key: i32| {
            let keys = Int32Array::from(vec![key; 20_000]);
            Arc::new(DictionaryArray::try_new(keys, Arc::clone(&values) as ArrayRef).unwrap()) as ArrayRef
        };
        check(keys(0)).unwrap();
        too_large(keys(1));
        let nothing =
            DictionaryArray::try_new(Int32Array::from(vec![0]), Arc::new(NullArray::new(1 << 40)) as ArrayRef);
        too_large(Arc::new(nothing.unwrap()));
    }

    /// Keys that cycle through 100 texts of 10 bytes.
    fn keyed(rows: usize) -> ArrayRef {
        let values = Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("{i:010}"))));
        let keys = Int32Array::from_iter_values((0..rows as i32).map(|row| row % 100));
        Arc::new(DictionaryArray::try_new(keys, values).unwrap())
    }

    #[test]
    fn keys_count_what_they_stand_for_and_not_the_whole_dictionary() {
        let numbers = Arc::new(Int64Array::from(vec![7; 750_000])) as ArrayRef;
        let mut columns = vec![("d", keyed(750_000))];
        columns.extend(["a", "b", "c", "e"].map(|name| (name, Arc::clone(&numbers))));
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        for (limit, is_taken) in [(1 << 30, true), (40 << 20, true), (30 << 20, false)] {
            assert_eq!(check_expanded(&batch, limit).is_ok(), is_taken, "{limit}");
        }
        // A null stands for no text.
        let values = Arc::new(StringArray::from(vec!["l".repeat(500_000)])) as ArrayRef;
        let sparse = Int32Array::from_iter((0..20_000).map(|row| (row == 9_000).then_some(0)));
        check(Arc::new(DictionaryArray::try_new(sparse, Arc::clone(&values)).unwrap())).unwrap();
        let twice = Int32Array::from_iter((0..20_000).map(|row| (row % 9_000 == 8_999).then_some(0)));
        too_large(Arc::new(DictionaryArray::try_new(twice, values).unwrap()));
    }

    #[test]
    fn nested_keys_and_runs_count_the_rows_that_are_pointed_at() {
        let rows = 20_000;
        let dictionary = keyed(rows);
        let field = Arc::new(Field::new("item", dictionary.data_type().clone(), true));
        let offsets = ScalarBuffer::from_iter(0..rows as i32);
        let sizes = ScalarBuffer::from(vec![1_i32; rows]);
        check(Arc::new(ListViewArray::try_new(field, offsets, sizes, Arc::clone(&dictionary), None).unwrap())).unwrap();
        let fields = UnionFields::from_fields([Field::new("d", dictionary.data_type().clone(), true)]);
        let offsets = Some(ScalarBuffer::from_iter(0..rows as i32));
        let ids = ScalarBuffer::from(vec![0_i8; rows]);
        check(Arc::new(UnionArray::try_new(fields, ids, offsets, vec![Arc::clone(&dictionary)]).unwrap())).unwrap();
        let keys = Int32Array::from_iter_values(0..rows as i32);
        check(Arc::new(DictionaryArray::try_new(keys, dictionary).unwrap())).unwrap();
        // Each key stands for one row of a run, which a slice of the runs is.
        let ends = Int32Array::from(vec![20_000, 40_000]);
        let runs: ArrayRef = Arc::new(RunArray::try_new(&ends, &Int64Array::from(vec![1, 2])).unwrap());
        let keys = |count: usize| Int32Array::from_iter_values((0..count as i32).map(|row| row % 40_000));
        check(Arc::new(DictionaryArray::try_new(keys(100_000), Arc::clone(&runs)).unwrap())).unwrap();
        too_large(Arc::new(DictionaryArray::try_new(keys(140_000), Arc::clone(&runs)).unwrap()));
        check(runs.slice(19_990, 20)).unwrap();
        let limit = 20 * 8;
        let batch = |rows| RecordBatch::try_from_iter([("c", runs.slice(19_990, rows))]).unwrap();
        let all = check_expanded(&batch(20), 2 * limit);
        assert!(all.is_ok() && check_expanded(&batch(20), limit - 1).is_err(), "{all:?}");
    }

    #[test]
    fn a_run_counts_each_of_its_rows() {
        let run = |end: i64| {
            let ends = Int64Array::from(vec![end]);
            Arc::new(RunArray::try_new(&ends, &StringArray::from(vec!["value"])).unwrap()) as ArrayRef
        };
        check(run(10_000)).unwrap();
        too_large(run(1 << 40));
    }

    #[test]
    fn lists_that_overlap_count_each() {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
        let field = Arc::new(Field::new("item", DataType::Int64, true));
        let lists = |rows: usize| {
            let offsets = ScalarBuffer::from(vec![0_i32; rows]);
            let sizes = ScalarBuffer::from(vec![1_000_i32; rows]);
            Arc::new(ListViewArray::try_new(field.clone(), offsets, sizes, values.clone(), None).unwrap()) as ArrayRef
        };
        check(lists(100)).unwrap();
        too_large(lists(1_000));
    }
}
