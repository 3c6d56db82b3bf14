//! How often functions find what they replace, and how long the text of an array is.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Datum, Int64Array, LargeStringArray, Scalar};
use arrow::compute::cast;
use arrow::compute::kernels::cmp::not_distinct;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::functions::regex::regexpcount::regexp_count_func;
use terrace_heap::HeapAccount;

use super::argument::{Argument, elements, text_bytes};
use super::in_steps::{array_bytes, steps};
use super::result_sizes::ELEMENT_TEXT_BYTES;

/// How often `replace` finds `from`.
pub(super) fn count_text(text: &[u8], from: &[u8]) -> u64 {
    match (std::str::from_utf8(text), std::str::from_utf8(from)) {
        (Ok(text), Ok(from)) => text.matches(from).count() as u64,
        _ => 0,
    }
}

/// How often `regexp_replace` finds a pattern, by row; none where that is not known, as when the statement has to stop. A
/// pattern that is wrong is counted nowhere: the function says why.
pub(super) fn count_pattern(
    text: &Argument,
    pattern: &Argument,
    flags: Option<&Argument>,
    rows: usize,
) -> Option<Int64Array> {
    // One text for many patterns would be counted for the first.
    if text.scalar && rows > 1 {
        return None;
    }
    let large = |argument: &Argument| cast(&argument.array, &DataType::LargeUtf8).ok();
    let mut arguments = vec![large(text)?, large(pattern)?];
    if let Some(flags) = flags {
        // Counting knows no such flag.
        let without_all = |flags: Option<&str>| flags.map(|flags| flags.replace('g', ""));
        let flags = large(flags)?;
        let others: LargeStringArray = flags.as_string_opt::<i64>()?.iter().map(without_all).collect();
        arguments.push(Arc::new(Int64Array::from(vec![1])));
        arguments.push(Arc::new(others));
    }
    let mut found = Vec::with_capacity(rows);
    for step in steps(rows, array_bytes(&text.array)) {
        let part = |array: &ArrayRef| match array.len() == rows {
            true => array.slice(step.start, step.len()),
            false => Arc::clone(array),
        };
        let counts = regexp_count_func(&arguments.iter().map(part).collect::<Vec<_>>()).ok()?;
        let counts = counts.as_primitive_opt::<Int64Type>().filter(|counts| counts.len() == step.len())?;
        found.extend(counts);
        if HeapAccount::current_should_stop() {
            return None;
        }
    }
    Some(found.into())
}

/// How many groups of a match a replacement refers to.
pub(super) fn references(replacement: &[u8]) -> u64 {
    replacement.iter().filter(|byte| matches!(byte, b'\\' | b'$')).count() as u64
}

/// How many elements are equal to the value of a row; all of them where they cannot be compared.
pub(super) fn count_equal(elements: &ArrayRef, value: &Argument, row: usize) -> u64 {
    let equal = match value.one(row) {
        Some(value) => {
            let value = Scalar::new(value);
            let (elements, value): (&dyn Datum, &dyn Datum) = (elements, &value);
            not_distinct(elements, value).map(|equal| equal.true_count())
        }
        None => Ok(elements.null_count()),
    };
    equal.unwrap_or_else(|_| elements.len()) as u64
}

/// At most the bytes of the text of all elements, each with `between` bytes beside it.
pub(super) fn joined_bytes(array: &dyn Array, between: u64) -> u64 {
    match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            joined_bytes(elements(list.value_offsets(), list.values()).as_ref(), between)
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            joined_bytes(elements(list.value_offsets(), list.values()).as_ref(), between)
        }
        DataType::FixedSizeList(..) => joined_bytes(array.as_fixed_size_list().values().as_ref(), between),
        _ => {
            let count = array.len() as u64;
            let texts = text_bytes(array).unwrap_or_else(|| count.saturating_mul(ELEMENT_TEXT_BYTES));
            texts.saturating_add(count.saturating_mul(between))
        }
    }
}
