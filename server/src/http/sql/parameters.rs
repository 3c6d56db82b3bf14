//! Values of a statement's parameters, from JSON.
//!
//! A number without a fraction and an exponent is a BIGINT (beyond its range BIGINT UNSIGNED), any other a DOUBLE; texts,
//! booleans and null are what they are. The engine casts a value where a column stores it or is compared with it.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, NullArray, RecordBatch, StringArray, UInt64Array,
};
use arrow::datatypes::Schema;
use serde_json::{Map, Number, Value};
use terrace_planner_ext::Error;

use super::super::problem::{Problem, Result};

/// One row with the parameters of a statement; `None` when the request gives none. `wanted` are the parameters that the
/// statement has: a list gives them in order, an object by their names, without the `$`.
pub(super) fn row(given: Option<Value>, wanted: &Schema) -> Result<Option<RecordBatch>> {
    let values = match given {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => values,
        Some(Value::Object(named)) => by_name(named, wanted)?,
        Some(other) => {
            let detail = format!("'parameters' must be a list or an object, not {other}");
            return Err(Problem::bad_request(detail));
        }
    };
    if values.is_empty() {
        return Ok(None);
    }
    let mut columns = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        let name = wanted.fields().get(index).map_or_else(|| format!("${}", index + 1), |field| field.name().clone());
        let array = array(value).map_err(|why| Problem::bad_request(format!("parameter {name} {why}")))?;
        columns.push((name, array, true));
    }
    let row = RecordBatch::try_from_iter_with_nullable(columns).map_err(Error::from)?;
    Ok(Some(row))
}

/// The values of an object in order of the parameters.
fn by_name(mut named: Map<String, Value>, wanted: &Schema) -> Result<Vec<Value>> {
    let mut values = Vec::with_capacity(wanted.fields().len());
    for field in wanted.fields() {
        let value = named.remove(field.name().trim_start_matches('$'));
        values.push(value.ok_or_else(|| Problem::bad_request(format!("parameter {} has no value", field.name())))?);
    }
    match named.keys().next() {
        None => Ok(values),
        Some(more) => {
            let names: Vec<&str> = wanted.fields().iter().map(|field| field.name().as_str()).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Err(Problem::bad_request(format!("the statement has no parameter ${more}; there are: {there}")))
        }
    }
}

/// One value as an array; an error says what is wrong with it.
fn array(value: &Value) -> std::result::Result<ArrayRef, &'static str> {
    Ok(match value {
        Value::Null => Arc::new(NullArray::new(1)),
        Value::Bool(value) => Arc::new(BooleanArray::from(vec![*value])),
        Value::String(value) => Arc::new(StringArray::from(vec![value.as_str()])),
        Value::Number(number) => return numbers(number),
        Value::Array(_) => return Err("is a list; a value is a number, a text, a boolean or null"),
        Value::Object(_) => return Err("is an object; a value is a number, a text, a boolean or null"),
    })
}

fn numbers(number: &Number) -> std::result::Result<ArrayRef, &'static str> {
    if let Some(value) = number.as_i64() {
        return Ok(Arc::new(Int64Array::from(vec![value])));
    }
    if let Some(value) = number.as_u64() {
        return Ok(Arc::new(UInt64Array::from(vec![value])));
    }
    match number.as_f64() {
        Some(value) => Ok(Arc::new(Float64Array::from(vec![value]))),
        None => Err("is a number that no DOUBLE can hold"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int64Type};
    use serde_json::json;

    use super::*;

    fn wanted(names: &[&str]) -> Schema {
        Schema::new(names.iter().map(|name| Field::new(*name, DataType::Null, true)).collect::<Vec<_>>())
    }

    fn types(given: Value) -> Vec<DataType> {
        let row = row(Some(given), &wanted(&["$1"])).unwrap().unwrap();
        row.columns().iter().map(|column| column.data_type().clone()).collect()
    }

    #[test]
    fn values_have_the_types_of_json() {
        let found = types(json!([1, 1.0, 1e3, "x", true, null, u64::MAX]));
        let expected = [
            DataType::Int64,
            DataType::Float64,
            DataType::Float64,
            DataType::Utf8,
            DataType::Boolean,
            DataType::Null,
            DataType::UInt64,
        ];
        assert_eq!(found, expected);
        assert!(row(None, &wanted(&[])).unwrap().is_none());
        assert!(row(Some(json!([])), &wanted(&[])).unwrap().is_none());
    }

    #[test]
    fn objects_give_values_by_name() {
        let named = row(Some(json!({"most": 3, "least": 1})), &wanted(&["$least", "$most"])).unwrap().unwrap();
        let values: Vec<i64> = named.columns().iter().map(|c| c.as_primitive::<Int64Type>().value(0)).collect();
        assert_eq!(values, [1, 3]);
        for (given, words) in [
            (json!({"least": 1}), "$most has no value"),
            (json!({"least": 1, "most": 2, "more": 3}), "no parameter $more; there are: $least, $most"),
            (json!([[1]]), "$least is a list"),
            (json!([1, {}]), "$most is an object"),
            (json!(7), "a list or an object"),
        ] {
            let refused = row(Some(given), &wanted(&["$least", "$most"])).unwrap_err();
            assert!(refused.status.is_client_error() && refused.detail.contains(words), "{}", refused.detail);
        }
    }
}
