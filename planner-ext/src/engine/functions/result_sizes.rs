//! How many bytes a call of a function would make, computed from its arguments.
//!
//! A bound over the whole batch, from lengths and counts, comes first; only where it exceeds the limit of one value are
//! sizes computed row by row. All arithmetic saturates. A value within an array counts as at least [`SLOT_BYTES`].

use arrow::array::{Array, AsArray, Int64Array};
use arrow::datatypes::{DataType, IntervalMonthDayNanoType};
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::ColumnarValue;

use super::argument::{Argument, HOUR, SLOT_BYTES};
use super::matches::{count_equal, count_pattern, count_text, joined_bytes, references};
use crate::error::Error;

/// The most bytes of one value that a function makes.
pub(super) const VALUE_BYTES: u64 = 64 << 20;

/// The most pairs of bytes that `levenshtein` compares for one row; more take a second and longer.
const COMPARED_PAIRS: u64 = 1 << 30;
/// A shorter text counts as one of this length.
const LEAST_COMPARED: u64 = 256;
/// Pairs that take as long as a byte of other functions.
const PAIRS_PER_BYTE: u64 = 64;

/// The name of the function that the operator `||` becomes.
pub(super) const CONCAT_OPERATOR: &str = "text_concat";

/// Most bytes of the text of a number or time.
pub(super) const ELEMENT_TEXT_BYTES: u64 = 48;

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
    Encode,
    PatternReplace,
    PatternMatch,
    /// Elements of all arguments in one array.
    ArrayConcat,
    ArrayToString,
    ArrayReplace(Replaced),
    /// A small result after much work: each character of one text is compared with each of the other.
    EditDistance,
    /// A small result after work on texts.
    Search,
}

/// Which of the equal elements `array_replace` replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Replaced {
    First,
    /// As many as an argument says.
    Counted,
    All,
}

impl SizeRule {
    /// The rule for the function `name`; none for functions that are not bounded.
    pub(super) fn for_function(name: &str) -> Option<Self> {
        Some(match name {
            "repeat" => Self::Repeat,
            "lpad" | "rpad" => Self::Pad,
            "replace" => Self::Replace,
            "concat" | "overlay" | CONCAT_OPERATOR => Self::Concat,
            "concat_ws" => Self::ConcatWithSeparator,
            "range" => Self::Range(false),
            "generate_series" => Self::Range(true),
            "array_repeat" => Self::ArrayRepeat,
            "array_resize" => Self::ArrayResize,
            "encode" => Self::Encode,
            "regexp_replace" => Self::PatternReplace,
            "regexp_match" => Self::PatternMatch,
            "array_append" | "array_concat" | "array_prepend" | "array_union" => Self::ArrayConcat,
            "array_to_string" => Self::ArrayToString,
            "levenshtein" => Self::EditDistance,
            "regexp_count" | "regexp_instr" | "regexp_like" => Self::Search,
            "array_replace" => Self::ArrayReplace(Replaced::First),
            "array_replace_n" => Self::ArrayReplace(Replaced::Counted),
            "array_replace_all" => Self::ArrayReplace(Replaced::All),
            _ => return None,
        })
    }

    /// The bytes that `function` would make; zero where a cheap bound shows that they are within [`VALUE_BYTES`]. They may
    /// be too high where they are within `most_bytes`.
    pub(super) fn result_size(
        self,
        function: &str,
        args: &[ColumnarValue],
        rows: usize,
        most_bytes: u64,
    ) -> PlanResult<ResultSize> {
        let arguments = args.iter().map(Argument::new).collect::<PlanResult<Vec<_>>>()?;
        let rows = if arguments.iter().all(|argument| argument.scalar) { 1 } else { rows };
        if let (Self::EditDistance, [one, other, ..]) = (self, arguments.as_slice()) {
            return compared_bytes(function, one, other, rows);
        }
        if self.upper_bound(&arguments, rows as u64) <= VALUE_BYTES {
            return Ok(ResultSize::default());
        }
        let size = self.row_sizes(function, &arguments, rows, None)?;
        if let (Self::PatternReplace, [text, pattern, _, flags @ ..]) = (self, arguments.as_slice())
            && (size.largest_value > VALUE_BYTES || size.batch > most_bytes)
            && let Some(places) = count_pattern(text, pattern, flags.first(), rows)
        {
            return self.row_sizes(function, &arguments, rows, Some(&places));
        }
        Ok(size)
    }

    /// The bytes of all rows, added up. `places`: how often a pattern is found.
    fn row_sizes(
        self,
        function: &str,
        arguments: &[Argument],
        rows: usize,
        places: Option<&Int64Array>,
    ) -> PlanResult<ResultSize> {
        let mut size = ResultSize::default();
        for row in 0..rows {
            let bytes = match (self, arguments) {
                (Self::PatternReplace, [text, _, to, flags @ ..]) => {
                    Some(pattern_replace_bytes(text, to, flags.first(), places, row))
                }
                _ => self.value_bytes(arguments, row),
            };
            let Some(bytes) = bytes else {
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
            (Self::Encode, [text, ..]) => text.total(rows).saturating_mul(2),
            (Self::PatternReplace, [text, _, to, flags @ ..]) => {
                let text = text.total(rows);
                let places = if flags.is_empty() { rows } else { text.saturating_add(rows) };
                let referenced = text.saturating_mul(references(to.longest_bytes()));
                text.saturating_add(places.saturating_mul(to.longest())).saturating_add(referenced)
            }
            (Self::PatternMatch, [text, pattern, ..]) => text.total(rows).saturating_mul(pattern.longest().max(1)),
            (Self::Search, _) => 0,
            (Self::ArrayConcat, parts) => sum(parts.iter().map(|part| part.total(rows))),
            (Self::ArrayToString, [list, texts @ ..]) => {
                let longest = texts.iter().map(Argument::longest).max().unwrap_or_default();
                list.total(rows).saturating_mul(longest.saturating_add(ELEMENT_TEXT_BYTES / SLOT_BYTES))
            }
            (Self::ArrayReplace(_), [list, _, to, ..]) => {
                let list = list.total(rows);
                list.saturating_add((list / SLOT_BYTES).saturating_mul(to.total(1)))
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
                    Some(from) if added > 0 && !from.is_empty() => count_text(text, from),
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
                let Some(elements) = list.list(row) else { return Some(0) };
                let added = length.size(row).saturating_sub(elements.len() as u64);
                let fill = fill.first().map_or(SLOT_BYTES, |fill| fill.stored(row));
                list.stored(row).saturating_add(added.saturating_mul(fill))
            }
            (Self::Encode, [text, format]) => match format.bytes(row) {
                Some(b"hex") => text.length(row).saturating_mul(2),
                _ => text.length(row).div_ceil(3).saturating_mul(4),
            },
            (Self::PatternMatch, [text, pattern, ..]) => {
                let groups = pattern.bytes(row).unwrap_or_default().iter().filter(|byte| **byte == b'(').count();
                text.length(row).saturating_mul((groups as u64).max(1))
            }
            (Self::ArrayConcat, parts) => sum(parts.iter().map(|part| part.stored(row))),
            (Self::ArrayToString, [list, separator, null @ ..]) => {
                let Some(elements) = list.list(row) else { return Some(0) };
                let null = null.first().map_or(0, |null| null.length(row));
                joined_bytes(elements.as_ref(), separator.length(row).saturating_add(null))
            }
            (Self::ArrayReplace(which), [list, from, to, most @ ..]) => {
                let Some(elements) = list.list(row) else { return Some(0) };
                let equal = count_equal(&elements, from, row);
                let replaced = match which {
                    Replaced::First => equal.min(1),
                    Replaced::Counted => equal.min(most.first().map_or(0, |most| most.size(row))),
                    Replaced::All => equal,
                };
                list.stored(row).saturating_add(replaced.saturating_mul(to.stored(row)))
            }
            _ => 0,
        })
    }
}

/// At most the bytes of what `regexp_replace` makes of a row. Without `places`, it may find its pattern between any two
/// bytes.
fn pattern_replace_bytes(
    text: &Argument,
    to: &Argument,
    flags: Option<&Argument>,
    places: Option<&Int64Array>,
    row: usize,
) -> u64 {
    let (Some(text), Some(with)) = (text.bytes(row), to.bytes(row)) else { return 0 };
    let length = text.len() as u64;
    let most = match places {
        Some(places) if places.is_valid(row) => u64::try_from(places.value(row)).unwrap_or_default(),
        Some(_) => 0,
        None => length.saturating_add(1),
    };
    let all = flags.and_then(|flags| flags.bytes(row)).is_some_and(|flags| flags.contains(&b'g'));
    let found = if all { most } else { most.min(1) };
    let referenced = length.saturating_mul(references(with));
    length.saturating_add(found.saturating_mul(with.len() as u64)).saturating_add(referenced)
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

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// The bytes of other functions that take as long as `levenshtein` of all rows. Fails where one row takes too long, or too
/// much memory: a number for each character of the second text.
fn compared_bytes(function: &str, one: &Argument, other: &Argument, rows: usize) -> PlanResult<ResultSize> {
    let mut batch = 0_u64;
    for row in 0..rows {
        let lengths = [one.length(row), other.length(row)];
        let [first, second] = lengths.map(|length| length.max(LEAST_COMPARED));
        let pairs = first.saturating_mul(second);
        if pairs > COMPARED_PAIRS {
            let [first, second] = lengths;
            return Err(Error::invalid(format!(
                "{function} of texts of {first} and {second} bytes compares too many of their characters; the product of \
                 the lengths is at most {COMPARED_PAIRS}, where one below {LEAST_COMPARED} counts as {LEAST_COMPARED}"
            ))
            .into());
        }
        batch = sum([batch, pairs / PAIRS_PER_BYTE].into_iter().chain(lengths));
    }
    Ok(ResultSize { largest_value: 0, batch })
}
