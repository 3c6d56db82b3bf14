//! Calls of functions over much data, a few rows at a time, so that a statement that has to stop does so between two steps.
//!
//! A function gets a whole batch: `regexp_replace` of 8,192 texts of 20 KB takes half a minute, in which nothing else can stop
//! it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::concat;
use arrow::datatypes::DataType;
use datafusion::common::exec_err;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use terrace_heap::HeapAccount;

/// Bytes of the arguments and the result of one step.
const STEP_BYTES: u64 = 2 << 20;

/// Calls `function` for all rows at once where they have few bytes, else in steps. `result_bytes` is the most that the result
/// can have. Fails between two steps when the statement has to stop.
pub(super) fn in_steps(
    args: ScalarFunctionArgs,
    result_bytes: u64,
    function: impl Fn(ScalarFunctionArgs) -> PlanResult<ColumnarValue>,
) -> PlanResult<ColumnarValue> {
    let rows = args.number_rows;
    let arrays = || args.args.iter().filter(|arg| matches!(arg, ColumnarValue::Array(_)));
    let bytes = arrays().fold(result_bytes, |bytes, array| bytes.saturating_add(array_bytes(array)));
    let has_steps = bytes > STEP_BYTES && rows > 1 && arrays().next().is_some();
    let account = has_steps.then(HeapAccount::current).flatten().filter(|account| account.should_stop().is_some());
    let Some(account) = account else { return function(args) };
    let step = usize::try_from(rows as u64 * STEP_BYTES / bytes).unwrap_or(rows).max(1);
    let mut results: Vec<ArrayRef> = Vec::with_capacity(rows.div_ceil(step));
    for start in (0..rows).step_by(step) {
        if account.should_stop() == Some(true) {
            return exec_err!("the statement has to stop");
        }
        let count = step.min(rows - start);
        let part = |arg: &ColumnarValue| match arg {
            ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(start, count)),
            scalar @ ColumnarValue::Scalar(_) => scalar.clone(),
        };
        let args = ScalarFunctionArgs {
            args: args.args.iter().map(part).collect(),
            arg_fields: args.arg_fields.clone(),
            number_rows: count,
            return_field: Arc::clone(&args.return_field),
            config_options: Arc::clone(&args.config_options),
        };
        results.push(function(args)?.into_array(count)?);
    }
    let results: Vec<&dyn Array> = results.iter().map(AsRef::as_ref).collect();
    Ok(ColumnarValue::Array(concat(&results)?))
}

/// The bytes of an argument that a function reads.
fn array_bytes(argument: &ColumnarValue) -> u64 {
    let ColumnarValue::Array(array) = argument else { return 0 };
    match array.data_type() {
        // The lengths are in the low 32 bits of the views. Several may refer to one text.
        DataType::Utf8View => array.as_string_view().views().iter().map(|view| u64::from(*view as u32)).sum(),
        DataType::BinaryView => array.as_binary_view().views().iter().map(|view| u64::from(*view as u32)).sum(),
        _ => array.to_data().get_slice_memory_size().map_or(0, |bytes| bytes as u64),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::array::StringViewArray;
    use arrow::datatypes::Field;
    use datafusion::common::ScalarValue;

    use super::*;

    /// Texts of 20 KB, and a number for all of them.
    fn args(rows: usize) -> ScalarFunctionArgs {
        let texts = (0..rows).map(|row| Some(row.to_string().repeat(20_000)));
        let texts: ArrayRef = Arc::new(texts.collect::<StringViewArray>());
        ScalarFunctionArgs {
            args: vec![ColumnarValue::Array(texts), ColumnarValue::Scalar(ScalarValue::from(3_i64))],
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
