//! An argument of a call, and the bytes of its values.
//!
//! A value within an array counts as at least [`SLOT_BYTES`], as functions on arrays build an index of that width.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, DataType, Date32Type, Date64Type, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::ColumnarValue;

/// The least bytes of a value within an array.
pub(super) const SLOT_BYTES: u64 = 8;

/// Nanoseconds of an hour.
pub(super) const HOUR: i128 = 3_600_000_000_000;

/// An argument of a call: an array with a value for each row, or one value for all.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) array: ArrayRef,
    pub(super) scalar: bool,
}

impl Argument {
    pub(super) fn new(value: &ColumnarValue) -> PlanResult<Self> {
        let scalar = matches!(value, ColumnarValue::Scalar(_));
        let mut array = value.to_array(1)?;
        if let DataType::Dictionary(_, values) = array.data_type() {
            array = cast(&array, values)?;
        }
        Ok(Self { array, scalar })
    }

    pub(super) fn index(&self, row: usize) -> usize {
        if self.scalar { 0 } else { row }
    }

    /// Bytes of all values, in `rows` rows.
    pub(super) fn total(&self, rows: u64) -> u64 {
        let bytes = stored_bytes(self.array.as_ref());
        if self.scalar { bytes.saturating_mul(rows) } else { bytes }
    }

    /// The greatest integer, not below 0.
    pub(super) fn greatest(&self) -> u64 {
        let greatest = self.array.as_primitive_opt::<Int64Type>().and_then(|numbers| numbers.iter().flatten().max());
        greatest.and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
    }

    /// Bytes of the longest text.
    pub(super) fn longest(&self) -> u64 {
        let values = if self.scalar { 1 } else { self.array.len() };
        (0..values).map(|row| self.length(row)).max().unwrap_or_default()
    }

    /// The longest text.
    pub(super) fn longest_bytes(&self) -> &[u8] {
        let values = if self.scalar { 1 } else { self.array.len() };
        (0..values).filter_map(|row| self.bytes(row)).max_by_key(|bytes| bytes.len()).unwrap_or_default()
    }

    /// A text or binary value; none for NULL.
    pub(super) fn bytes(&self, row: usize) -> Option<&[u8]> {
        let (array, row) = (self.array.as_ref(), self.index(row));
        if row >= array.len() || array.is_null(row) {
            return None;
        }
        Some(match array.data_type() {
            DataType::Utf8 => array.as_string::<i32>().value(row).as_bytes(),
            DataType::LargeUtf8 => array.as_string::<i64>().value(row).as_bytes(),
            DataType::Utf8View => array.as_string_view().value(row).as_bytes(),
            DataType::Binary => array.as_binary::<i32>().value(row),
            DataType::LargeBinary => array.as_binary::<i64>().value(row),
            DataType::BinaryView => array.as_binary_view().value(row),
            _ => return None,
        })
    }

    /// Bytes of a text or binary value, 0 for NULL.
    pub(super) fn length(&self, row: usize) -> u64 {
        self.bytes(row).map_or(0, |bytes| bytes.len() as u64)
    }

    pub(super) fn integer(&self, row: usize) -> Option<i64> {
        let (numbers, row) = (self.array.as_primitive_opt::<Int64Type>()?, self.index(row));
        (row < numbers.len() && numbers.is_valid(row)).then(|| numbers.value(row))
    }

    /// A count: an integer, 0 where it is NULL or negative.
    pub(super) fn size(&self, row: usize) -> u64 {
        self.integer(row).and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
    }

    /// A date or timestamp in nanoseconds; none for NULL.
    pub(super) fn instant(&self, row: usize) -> Option<i128> {
        let (array, row) = (self.array.as_ref(), self.index(row));
        if row >= array.len() || array.is_null(row) {
            return None;
        }
        Some(match array.data_type() {
            DataType::Date32 => i128::from(array.as_primitive::<Date32Type>().value(row)) * 24 * HOUR,
            DataType::Date64 => i128::from(array.as_primitive::<Date64Type>().value(row)) * 1_000_000,
            DataType::Timestamp(TimeUnit::Second, _) => {
                i128::from(array.as_primitive::<TimestampSecondType>().value(row)) * 1_000_000_000
            }
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                i128::from(array.as_primitive::<TimestampMillisecondType>().value(row)) * 1_000_000
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                i128::from(array.as_primitive::<TimestampMicrosecondType>().value(row)) * 1_000
            }
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                i128::from(array.as_primitive::<TimestampNanosecondType>().value(row))
            }
            _ => return None,
        })
    }

    /// The elements of a list; none for NULL.
    pub(super) fn list(&self, row: usize) -> Option<ArrayRef> {
        let (array, row) = (self.array.as_ref(), self.index(row));
        if row >= array.len() || array.is_null(row) {
            return None;
        }
        match array.data_type() {
            DataType::List(_) => Some(array.as_list::<i32>().value(row)),
            DataType::LargeList(_) => Some(array.as_list::<i64>().value(row)),
            DataType::FixedSizeList(..) => Some(array.as_fixed_size_list().value(row)),
            _ => None,
        }
    }

    /// One value, as an array; none for NULL.
    pub(super) fn one(&self, row: usize) -> Option<ArrayRef> {
        let row = self.index(row);
        (row < self.array.len() && self.array.is_valid(row)).then(|| self.array.slice(row, 1))
    }

    /// Bytes of a value within an array.
    pub(super) fn stored(&self, row: usize) -> u64 {
        let row = self.index(row);
        if row < self.array.len() { stored_bytes(self.array.slice(row, 1).as_ref()) } else { 0 }
    }
}

/// Bytes of all texts or binary values of an array; none for other types.
pub(super) fn text_bytes(array: &dyn Array) -> Option<u64> {
    Some(match array.data_type() {
        DataType::Utf8 => span(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => span(array.as_string::<i64>().value_offsets()),
        DataType::Utf8View => array.as_string_view().total_bytes_len() as u64,
        DataType::Binary => span(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => span(array.as_binary::<i64>().value_offsets()),
        DataType::BinaryView => array.as_binary_view().total_bytes_len() as u64,
        _ => return None,
    })
}

/// The difference of the last and the first offset.
fn span<O: OffsetSizeTrait>(offsets: &[O]) -> u64 {
    match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => last.as_usize().saturating_sub(first.as_usize()) as u64,
        _ => 0,
    }
}

/// Bytes of the values of an array as elements of another, with those that are nested in them.
fn stored_bytes(array: &dyn Array) -> u64 {
    let slots = (array.len() as u64).saturating_mul(SLOT_BYTES);
    let nested = match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            stored_bytes(elements(list.value_offsets(), list.values()).as_ref())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            stored_bytes(elements(list.value_offsets(), list.values()).as_ref())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            stored_bytes(elements(map.value_offsets(), &entries).as_ref())
        }
        DataType::FixedSizeList(..) => stored_bytes(array.as_fixed_size_list().values().as_ref()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| stored_bytes(column.as_ref())).sum(),
        DataType::FixedSizeBinary(width) => slots.saturating_mul(width.as_usize() as u64 / SLOT_BYTES),
        other => match text_bytes(array) {
            Some(bytes) => bytes,
            None => slots.saturating_mul((other.primitive_width().unwrap_or_default() as u64 / SLOT_BYTES).max(1) - 1),
        },
    };
    slots.saturating_add(nested)
}

/// The elements of the lists with these offsets.
pub(super) fn elements<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> ArrayRef {
    let first = offsets.first().map_or(0, |first| first.as_usize());
    let elements = usize::try_from(span(offsets)).unwrap_or_default();
    values.slice(first, elements)
}
