//! Calls of functions over much data, a few rows at a time, so that a statement that has to stop does so between two steps.
//!
//! A function gets a whole batch: `regexp_replace` of 8,192 texts of 20 KB takes half a minute, in which nothing else can stop
//! it.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericByteBuilder};
use arrow::compute::concat;
use arrow::datatypes::{DataType, GenericStringType};
use datafusion::common::exec_err;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use terrace_heap::HeapAccount;

/// Bytes of the arguments and the result of one step, on average over the rows of a batch.
const STEP_BYTES: u64 = 2 << 20;

/// Calls `function` for all rows at once where they have few bytes, else in steps. `result_bytes` is what the result is
/// expected to have, 0 where that is little. Fails between two steps when the statement has to stop.
pub(super) fn in_steps(
    args: ScalarFunctionArgs,
    result_bytes: u64,
    function: impl Fn(ScalarFunctionArgs) -> PlanResult<ColumnarValue>,
) -> PlanResult<ColumnarValue> {
    let rows = args.number_rows;
    let arrays = || {
        args.args.iter().filter_map(|arg| match arg {
            ColumnarValue::Array(array) => Some(array),
            ColumnarValue::Scalar(_) => None,
        })
    };
    // A slice of lists has the elements of all, for which functions make room.
    let has_steps = arrays().next().is_some() && !arrays().any(|array| array.data_type().is_nested());
    if !has_steps || args.return_field.data_type().is_nested() {
        return function(args);
    }
    let bytes = arrays().fold(result_bytes, |bytes, array| bytes.saturating_add(array_bytes(array)));
    let steps = steps(rows, bytes);
    if steps.len() <= 1 {
        return function(args);
    }
    let mut results = Parts::default();
    for step in steps {
        if HeapAccount::current_should_stop() {
            return exec_err!("the statement has to stop");
        }
        let part = |arg: &ColumnarValue| match arg {
            ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(step.start, step.len())),
            scalar @ ColumnarValue::Scalar(_) => scalar.clone(),
        };
        let args = ScalarFunctionArgs {
            args: args.args.iter().map(part).collect(),
            arg_fields: args.arg_fields.clone(),
            number_rows: step.len(),
            return_field: Arc::clone(&args.return_field),
            config_options: Arc::clone(&args.config_options),
        };
        results.push(function(args)?.into_array(step.len())?)?;
    }
    Ok(ColumnarValue::Array(results.finish()?))
}

/// The rows of each step; one step for what no statement asked for, as nothing stops it.
pub(super) fn steps(rows: usize, bytes: u64) -> Vec<Range<usize>> {
    let can_stop = || HeapAccount::current().is_some_and(|account| account.should_stop().is_some());
    if bytes <= STEP_BYTES || rows <= 1 || !can_stop() {
        return std::iter::once(0..rows).collect();
    }
    let step = usize::try_from(rows as u64 * STEP_BYTES / bytes).unwrap_or(rows).max(1);
    (0..rows).step_by(step).map(|start| start..rows.min(start + step)).collect()
}

/// The bytes of the values of an array; a text that several rows refer to counts for each.
pub(in crate::engine) fn array_bytes(array: &ArrayRef) -> u64 {
    match array.data_type() {
        // The lengths are in the low 32 bits of the views. Several may refer to one text.
        DataType::Utf8View => array.as_string_view().views().iter().map(|view| u64::from(*view as u32)).sum(),
        DataType::BinaryView => array.as_binary_view().views().iter().map(|view| u64::from(*view as u32)).sum(),
        _ => array.to_data().get_slice_memory_size().map_or(0, |bytes| bytes as u64),
    }
}

/// The results of steps. Texts are added to one array, so that they are there once.
#[derive(Default)]
enum Parts {
    #[default]
    None,
    Texts(GenericByteBuilder<GenericStringType<i32>>),
    LargeTexts(GenericByteBuilder<GenericStringType<i64>>),
    Others(Vec<ArrayRef>),
}

impl Parts {
    fn push(&mut self, part: ArrayRef) -> PlanResult<()> {
        if let Self::None = self {
            *self = match part.data_type() {
                DataType::Utf8 => Self::Texts(GenericByteBuilder::new()),
                DataType::LargeUtf8 => Self::LargeTexts(GenericByteBuilder::new()),
                _ => Self::Others(Vec::new()),
            };
        }
        match self {
            Self::Texts(texts) if part.data_type() == &DataType::Utf8 => texts.append_array(part.as_string())?,
            Self::LargeTexts(texts) if part.data_type() == &DataType::LargeUtf8 => {
                texts.append_array(part.as_string())?;
            }
            Self::Others(parts) => parts.push(part),
            _ => return exec_err!("a function returned arrays of different types"),
        }
        Ok(())
    }

    fn finish(self) -> PlanResult<ArrayRef> {
        Ok(match self {
            Self::None => return exec_err!("a function was called for no rows"),
            Self::Texts(mut texts) => Arc::new(texts.finish()),
            Self::LargeTexts(mut texts) => Arc::new(texts.finish()),
            Self::Others(parts) => concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::array::{ListArray, StringViewArray};
    use arrow::compute::cast;
    use arrow::datatypes::{Field, Int64Type};
    use datafusion::common::ScalarValue;

    use super::*;

    const NUMBER: ColumnarValue = ColumnarValue::Scalar(ScalarValue::Int64(Some(3)));

    /// Texts of 20 KB, and a number for all of them.
    fn args(rows: usize) -> ScalarFunctionArgs {
        let texts = (0..rows).map(|row| Some(row.to_string().repeat(20_000)));
        let texts: ArrayRef = Arc::new(texts.collect::<StringViewArray>());
        ScalarFunctionArgs {
            args: vec![ColumnarValue::Array(texts), NUMBER],
            arg_fields: vec![
                Arc::new(Field::new("s", DataType::Utf8View, true)),
                Arc::new(Field::new("n", DataType::Int64, true)),
            ],
            number_rows: rows,
            return_field: Arc::new(Field::new("r", DataType::Utf8View, true)),
            config_options: Arc::default(),
        }
    }

    /// The first argument, and the rows of each call.
    fn call(args: ScalarFunctionArgs) -> (PlanResult<ColumnarValue>, Vec<usize>) {
        let calls = std::sync::Mutex::new(Vec::new());
        let result = in_steps(args, 0, |args| {
            assert!(args.args[0].clone().into_array(1).unwrap().len() == args.number_rows);
            assert!(matches!(args.args[1], ColumnarValue::Scalar(_)));
            calls.lock().unwrap().push(args.number_rows);
            Ok(args.args[0].clone())
        });
        (result, calls.into_inner().unwrap())
    }

    #[test]
    fn many_bytes_take_several_steps_and_give_the_same_rows() {
        let whole = args(1_000).args[0].clone().into_array(1_000).unwrap();
        // Nothing can stop what works for no statement.
        assert_eq!(call(args(1_000)).1, [1_000]);
        let account = HeapAccount::new();
        account.set_stop_check(|| false);
        let (result, calls) = account.charge_call(|| call(args(1_000)));
        assert!(calls.len() > 10 && calls.iter().sum::<usize>() == 1_000, "{calls:?}");
        assert_eq!(&result.unwrap().into_array(1_000).unwrap(), &whole);
        assert_eq!(account.charge_call(|| call(args(10))).1, [10]);
        // Texts that have their bytes beside each other are collected in one array.
        for to in [DataType::Utf8, DataType::LargeUtf8] {
            let texts = cast(&whole, &to).unwrap();
            let with_texts =
                || ScalarFunctionArgs { args: vec![ColumnarValue::Array(Arc::clone(&texts)), NUMBER], ..args(1_000) };
            let (result, calls) = account.charge_call(|| call(with_texts()));
            assert!(calls.len() > 10, "{calls:?}");
            assert_eq!(&result.unwrap().into_array(1_000).unwrap(), &texts);
        }
    }

    #[test]
    fn lists_take_one_step() {
        let account = HeapAccount::new();
        account.set_stop_check(|| false);
        let lists = (0..1_000).map(|_| Some((0..1_000).map(Some)));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        let with_lists = ScalarFunctionArgs { args: vec![ColumnarValue::Array(lists), NUMBER], ..args(1_000) };
        assert_eq!(account.charge_call(|| call(with_lists)).1, [1_000]);
    }

    #[test]
    fn a_statement_stops_between_two_steps() {
        let account = HeapAccount::new();
        let checks = AtomicUsize::new(0);
        account.set_stop_check(move || checks.fetch_add(1, Ordering::Relaxed) > 3);
        let (result, calls) = account.charge_call(|| call(args(1_000)));
        assert!(result.unwrap_err().to_string().contains("has to stop"));
        assert_eq!(calls.len(), 3);
    }
}
