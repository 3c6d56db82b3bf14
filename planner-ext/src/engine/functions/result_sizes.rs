//! How many bytes a call of a function would make, computed from its arguments.
//!
//! A bound over the whole batch, from lengths and counts, comes first; only where it exceeds the limit of one value are
//! sizes computed row by row. All arithmetic saturates. A value within an array counts as at least [`SLOT_BYTES`], as
//! functions on arrays build an index of that width.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, DataType, Date32Type, Date64Type, Int64Type, IntervalMonthDayNanoType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::ColumnarValue;

use crate::error::Error;

/// The most bytes of one value that a function makes.
pub(super) const VALUE_BYTES: u64 = 64 << 20;

/// The least bytes of a value within an array.
const SLOT_BYTES: u64 = 8;

/// Nanoseconds of an hour.
const HOUR: i128 = 3_600_000_000_000;

/// Nanoseconds of a day.
const DAY_NS: i64 = 86_400_000_000_000;

/// What a call would make.
#[derive(Debug, Default)]
pub(super) struct ResultSize {
    /// Bytes of its largest value.
    pub(super) largest_value: u64,
    /// Bytes of all its values.
    pub(super) batch: u64,
}

/// How the size of a result follows from the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SizeRule {
    Repeat,
    Pad,
    Replace,
    Concat,
    ConcatWithSeparator,
    /// Whether the end belongs to the result.
    Range(bool),
    ArrayRepeat,
    ArrayResize,
}

impl SizeRule {
    /// The rule for the function `name`; none for functions that are not bounded.
    pub(super) fn for_function(name: &str) -> Option<Self> {
        Some(match name {
            "repeat" => Self::Repeat,
            "lpad" | "rpad" => Self::Pad,
            "replace" => Self::Replace,
            "concat" => Self::Concat,
            "concat_ws" => Self::ConcatWithSeparator,
            "range" => Self::Range(false),
            "generate_series" => Self::Range(true),
            "array_repeat" => Self::ArrayRepeat,
            "array_resize" => Self::ArrayResize,
            _ => return None,
        })
    }

    /// The bytes that `function` would make; zero where a cheap bound shows that they are within [`VALUE_BYTES`].
    pub(super) fn result_size(self, function: &str, args: &[ColumnarValue], rows: usize) -> PlanResult<ResultSize> {
        let arguments = args.iter().map(Argument::new).collect::<PlanResult<Vec<_>>>()?;
        let rows = if arguments.iter().all(|argument| argument.scalar) { 1 } else { rows };
        let mut size = ResultSize::default();
        if self.upper_bound(&arguments, rows as u64) <= VALUE_BYTES {
            return Ok(size);
        }
        for row in 0..rows {
            let Some(bytes) = self.value_bytes(&arguments, row) else {
                let problem = "needs a step that goes one way; the parts of this one have different signs";
                return Err(Error::invalid(format!("{function} {problem}")).into());
            };
            size.largest_value = size.largest_value.max(bytes);
            size.batch = size.batch.saturating_add(bytes);
        }
        Ok(size)
    }

    /// A bound on the bytes of all rows, which costs little.
    fn upper_bound(self, arguments: &[Argument], rows: u64) -> u64 {
        match (self, arguments) {
            (Self::Repeat, [text, count]) => text.total(rows).saturating_mul(count.greatest()),
            (Self::Pad, [text, length, ..]) => {
                text.total(rows).saturating_add(rows.saturating_mul(length.greatest()).saturating_mul(4))
            }
            (Self::Replace, [text, from, to]) => {
                let shortest = if from.scalar { from.longest().max(1) } else { 1 };
                let text = text.total(rows);
                text.saturating_add((text / shortest).saturating_mul(to.longest()))
            }
            (Self::Concat, texts) => sum(texts.iter().map(|text| text.total(rows))),
            (Self::ConcatWithSeparator, [separator, texts @ ..]) => {
                let separators = separator.total(rows).saturating_mul(texts.len() as u64);
                sum(texts.iter().map(|text| text.total(rows))).saturating_add(separators)
            }
            (Self::ArrayRepeat, [element, count]) => element.total(rows).saturating_mul(count.greatest()),
            (Self::ArrayResize, [list, length, fill @ ..]) => {
                let fill = fill.first().map_or(rows.saturating_mul(SLOT_BYTES), |fill| fill.total(rows));
                list.total(rows).saturating_add(fill.saturating_mul(length.greatest()))
            }
            // The exact size of a range costs little.
            _ => u64::MAX,
        }
    }

    /// The bytes of one value, zero for NULL. None if the function may not end.
    fn value_bytes(self, arguments: &[Argument], row: usize) -> Option<u64> {
        Some(match (self, arguments) {
            (Self::Repeat, [text, count]) => text.length(row).saturating_mul(count.size(row)),
            (Self::Pad, [text, length, fill @ ..]) => {
                let Some(text) = text.bytes(row) else { return Some(0) };
                // All bytes of UTF-8 but those that continue a character.
                let characters = text.iter().filter(|byte| **byte & 0xC0 != 0x80).count() as u64;
                let missing = length.size(row).saturating_sub(characters);
                let width = fill.first().map_or(1, |fill| fill.bytes(row).map_or(0, longest_character));
                (text.len() as u64).saturating_add(missing.saturating_mul(width))
            }
            (Self::Replace, [text, from, to]) => {
                let Some(text) = text.bytes(row) else { return Some(0) };
                let added = to.length(row).saturating_sub(from.length(row));
                let matches = match from.bytes(row) {
                    Some(from) if added > 0 && !from.is_empty() => count_matches(text, from),
                    _ => 0,
                };
                (text.len() as u64).saturating_add(matches.saturating_mul(added))
            }
            (Self::Concat, texts) => sum(texts.iter().map(|text| text.length(row))),
            (Self::ConcatWithSeparator, [separator, texts @ ..]) => {
                let joined = texts.iter().filter(|text| text.bytes(row).is_some()).count() as u64;
                let separators = separator.length(row).saturating_mul(joined.saturating_sub(1));
                sum(texts.iter().map(|text| text.length(row))).saturating_add(separators)
            }
            (Self::Range(inclusive), [stop]) => {
                range_bytes(Some(0), stop.integer(row), Some(1), inclusive).unwrap_or_default()
            }
            (Self::Range(inclusive), [start, stop]) => {
                range_bytes(start.integer(row), stop.integer(row), Some(1), inclusive).unwrap_or_default()
            }
            (Self::Range(_), [start, stop, step]) if start.instant(row).is_some() => {
                return time_range_bytes(start, stop, step, row);
            }
            (Self::Range(inclusive), [start, stop, step]) => {
                range_bytes(start.integer(row), stop.integer(row), step.integer(row), inclusive).unwrap_or_default()
            }
            (Self::ArrayRepeat, [element, count]) => element.stored(row).saturating_mul(count.size(row)),
            (Self::ArrayResize, [list, length, fill @ ..]) => {
                let Some(elements) = list.list_length(row) else { return Some(0) };
                let added = length.size(row).saturating_sub(elements);
                let fill = fill.first().map_or(SLOT_BYTES, |fill| fill.stored(row));
                list.stored(row).saturating_add(added.saturating_mul(fill))
            }
            _ => 0,
        })
    }
}

/// Bytes of a range of integers, counted as DataFusion does; none if an argument is NULL. A step of 0 is its error.
fn range_bytes(start: Option<i64>, stop: Option<i64>, step: Option<i64>, inclusive: bool) -> Option<u64> {
    let step = step?;
    let (start, stop) = (start?, stop?);
    if step == 0 || (start == stop && !inclusive) {
        return Some(0);
    }
    let last = match (inclusive, step > 0) {
        (true, _) => stop,
        (false, true) => stop.saturating_sub(1),
        (false, false) => stop.saturating_add(1),
    };
    if (step > 0 && start > last) || (step < 0 && start < last) {
        return Some(0);
    }
    let elements = (start.abs_diff(last) / step.unsigned_abs()).saturating_add(1);
    Some(elements.saturating_mul(SLOT_BYTES))
}

/// At most the bytes of a range of dates or timestamps. None if its steps may not lead to the end.
fn time_range_bytes(start: &Argument, stop: &Argument, step: &Argument, row: usize) -> Option<u64> {
    let index = step.index(row);
    let steps = step.array.as_primitive_opt::<IntervalMonthDayNanoType>().filter(|steps| steps.is_valid(index));
    let (Some(start_at), Some(stop_at), Some(steps)) = (start.instant(row), stop.instant(row), steps) else {
        return Some(0);
    };
    let (months, days, time) = IntervalMonthDayNanoType::to_parts(steps.value(index));
    let of_dates = matches!(start.array.data_type(), DataType::Date32 | DataType::Date64);
    if months == 0 && days == 0 && (of_dates || time == 0) {
        return Some(0); // an error of DataFusion
    }
    // To a date it adds the time in whole days, and its direction is that of months and days.
    let time = if of_dates { time / DAY_NS * DAY_NS } else { time };
    let signs = [i64::from(months.signum()), i64::from(days.signum()), time.signum()];
    if of_dates && signs.contains(&1) && signs.contains(&-1) {
        return None;
    }
    // A month has 28 to 31 days, a day 23 to 25 hours.
    let (months, days, time) = (i128::from(months) * 24 * HOUR, i128::from(days) * HOUR, i128::from(time));
    let shortest = (months * 28).min(months * 31) + (days * 23).min(days * 25) + time;
    let longest = (months * 28).max(months * 31) + (days * 23).max(days * 25) + time;
    let elements = if shortest > 0 {
        steps_within(stop_at - start_at, shortest)
    } else if longest < 0 {
        steps_within(start_at - stop_at, -longest)
    } else {
        return None;
    };
    Some(elements.saturating_mul(SLOT_BYTES))
}

/// How many steps of a length above 0 fit, with the first.
fn steps_within(distance: i128, step: i128) -> u64 {
    if distance < 0 { 0 } else { u64::try_from(distance / step).map_or(u64::MAX, |steps| steps.saturating_add(1)) }
}

/// Bytes of the longest character of a text.
fn longest_character(text: &[u8]) -> u64 {
    let widths = text.iter().map(|byte| match *byte {
        0..=0x7F => 1,
        0xF0.. => 4,
        0xE0.. => 3,
        _ => 2,
    });
    widths.max().unwrap_or_default()
}

/// How often `replace` finds `from`.
fn count_matches(text: &[u8], from: &[u8]) -> u64 {
    match (std::str::from_utf8(text), std::str::from_utf8(from)) {
        (Ok(text), Ok(from)) => text.matches(from).count() as u64,
        _ => 0,
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// An argument of a call: an array with a value for each row, or one value for all.
#[derive(Debug)]
struct Argument {
    array: ArrayRef,
    scalar: bool,
}

impl Argument {
    fn new(value: &ColumnarValue) -> PlanResult<Self> {
        let scalar = matches!(value, ColumnarValue::Scalar(_));
        let mut array = value.to_array(1)?;
        if let DataType::Dictionary(_, values) = array.data_type() {
            array = cast(&array, values)?;
        }
        Ok(Self { array, scalar })
    }

    fn index(&self, row: usize) -> usize {
        if self.scalar { 0 } else { row }
    }

    /// Bytes of all values, in `rows` rows.
    fn total(&self, rows: u64) -> u64 {
        let bytes = stored_bytes(self.array.as_ref());
        if self.scalar { bytes.saturating_mul(rows) } else { bytes }
    }

    /// The greatest integer, not below 0.
    fn greatest(&self) -> u64 {
        let greatest = self.array.as_primitive_opt::<Int64Type>().and_then(|numbers| numbers.iter().flatten().max());
        greatest.and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
    }

    /// Bytes of the longest text.
    fn longest(&self) -> u64 {
        let values = if self.scalar { 1 } else { self.array.len() };
        (0..values).map(|row| self.length(row)).max().unwrap_or_default()
    }

    /// A text or binary value; none for NULL.
    fn bytes(&self, row: usize) -> Option<&[u8]> {
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
    fn length(&self, row: usize) -> u64 {
        self.bytes(row).map_or(0, |bytes| bytes.len() as u64)
    }

    fn integer(&self, row: usize) -> Option<i64> {
        let (numbers, row) = (self.array.as_primitive_opt::<Int64Type>()?, self.index(row));
        (row < numbers.len() && numbers.is_valid(row)).then(|| numbers.value(row))
    }

    /// A count: an integer, 0 where it is NULL or negative.
    fn size(&self, row: usize) -> u64 {
        self.integer(row).and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
    }

    /// A date or timestamp in nanoseconds; none for NULL.
    fn instant(&self, row: usize) -> Option<i128> {
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

    /// How many elements a list has; none for NULL.
    fn list_length(&self, row: usize) -> Option<u64> {
        let (array, row) = (self.array.as_ref(), self.index(row));
        if row >= array.len() || array.is_null(row) {
            return None;
        }
        match array.data_type() {
            DataType::List(_) => Some(array.as_list::<i32>().value_length(row).as_usize() as u64),
            DataType::LargeList(_) => Some(array.as_list::<i64>().value_length(row).as_usize() as u64),
            _ => None,
        }
    }

    /// Bytes of a value within an array.
    fn stored(&self, row: usize) -> u64 {
        let row = self.index(row);
        if row < self.array.len() { stored_bytes(self.array.slice(row, 1).as_ref()) } else { 0 }
    }
}

/// Bytes of all texts or binary values of an array; none for other types.
fn text_bytes(array: &dyn Array) -> Option<u64> {
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
        DataType::Struct(_) => sum(array.as_struct().columns().iter().map(|column| stored_bytes(column.as_ref()))),
        DataType::FixedSizeBinary(width) => slots.saturating_mul(width.as_usize() as u64 / SLOT_BYTES),
        other => match text_bytes(array) {
            Some(bytes) => bytes,
            None => slots.saturating_mul((other.primitive_width().unwrap_or_default() as u64 / SLOT_BYTES).max(1) - 1),
        },
    };
    slots.saturating_add(nested)
}

/// The elements of the lists with these offsets.
fn elements<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> ArrayRef {
    let first = offsets.first().map_or(0, |first| first.as_usize());
    let elements = usize::try_from(span(offsets)).unwrap_or_default();
    values.slice(first, elements)
}
