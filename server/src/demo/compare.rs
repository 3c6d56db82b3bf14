//! Compares two results as multisets of rows. Floats may differ by 1e-9 of their size; all other values must be equal.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::error::Result;

const TOLERANCE: f64 = 1e-9;

/// The floats of the rows, by the values of their other columns.
type Rows = BTreeMap<String, Vec<Vec<f64>>>;

/// True when `a` and `b` hold the same rows, in any order.
pub fn equal(a: &[RecordBatch], b: &[RecordBatch]) -> Result<bool> {
    let mut a = rows(a)?;
    let mut b = rows(b)?;
    if a.len() != b.len() {
        return Ok(false);
    }
    Ok(a.iter_mut().zip(b.iter_mut()).all(|((key_a, floats_a), (key_b, floats_b))| {
        key_a == key_b && floats_a.len() == floats_b.len() && same_floats(floats_a, floats_b)
    }))
}

fn rows(batches: &[RecordBatch]) -> Result<Rows> {
    let options = FormatOptions::default().with_null("\u{0}");
    let mut rows = Rows::new();
    for batch in batches {
        let (floats, exact): (Vec<_>, Vec<_>) =
            batch.columns().iter().partition(|c| matches!(c.data_type(), DataType::Float32 | DataType::Float64));
        let floats = floats.into_iter().map(|c| cast(c, &DataType::Float64)).collect::<Result<Vec<_>, _>>()?;
        let exact = exact.into_iter().map(|c| ArrayFormatter::try_new(c, &options)).collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let mut key: String = exact.iter().map(|column| format!("{}\u{1f}", column.value(row))).collect();
            let mut values = Vec::with_capacity(floats.len());
            for column in &floats {
                // A null in a float column must be equal exactly.
                key.push(if column.is_null(row) { '-' } else { '+' });
                values.push(if column.is_null(row) { 0.0 } else { column.as_primitive::<Float64Type>().value(row) });
            }
            rows.entry(key).or_default().push(values);
        }
    }
    Ok(rows)
}

/// Compares sorted rows one by one. When the tolerance leaves their order open, it matches each row with any free one.
fn same_floats(a: &mut [Vec<f64>], b: &mut [Vec<f64>]) -> bool {
    let order = |x: &Vec<f64>, y: &Vec<f64>| {
        let mut pairs = x.iter().zip(y).map(|(x, y)| x.total_cmp(y));
        pairs.find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    };
    a.sort_by(order);
    b.sort_by(order);
    let near = |x: &Vec<f64>, y: &Vec<f64>| x.iter().zip(y).all(|(x, y)| near(*x, *y));
    if a.iter().zip(b.iter()).all(|(x, y)| near(x, y)) {
        return true;
    }
    let mut free: Vec<&Vec<f64>> = b.iter().collect();
    a.iter().all(|x| match free.iter().position(|y| near(x, y)) {
        Some(found) => {
            free.remove(found);
            true
        }
        None => false,
    })
}

fn near(x: f64, y: f64) -> bool {
    x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= TOLERANCE * x.abs().max(y.abs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::Arc;

    use super::*;
    use arrow::array::{Float64Array, StringArray};

    fn batch(names: &[Option<&str>], values: &[Option<f64>]) -> Vec<RecordBatch> {
        let names = Arc::new(StringArray::from(names.to_vec()));
        let values = Arc::new(Float64Array::from(values.to_vec()));
        vec![RecordBatch::try_from_iter([("n", names as _), ("v", values as _)]).unwrap()]
    }

    #[test]
    fn order_and_rounding_do_not_matter_anything_else_does() {
        let a = batch(&[Some("x"), Some("y"), None], &[Some(1.0), Some(2.0), None]);
        let near = batch(&[None, Some("y"), Some("x")], &[None, Some(2.0 + 1e-12), Some(1.0)]);
        assert!(equal(&a, &near).unwrap());
        for (names, values) in [
            ([Some("x"), Some("y"), None], [Some(1.0), Some(2.00001), None]),
            ([Some("x"), Some("y"), None], [Some(1.0), Some(2.0), Some(0.0)]),
            ([Some("x"), Some("y"), Some("")], [Some(1.0), Some(2.0), None]),
            ([Some("x"), Some("x"), None], [Some(1.0), Some(2.0), None]),
        ] {
            assert!(!equal(&a, &batch(&names, &values)).unwrap(), "{names:?} {values:?}");
        }
        assert!(!equal(&a, &[a[0].slice(0, 2)]).unwrap(), "a row less");
        assert!(!equal(&a, &[a[0].clone(), a[0].slice(0, 1)]).unwrap(), "a row twice");
        assert!(equal(&[], &[]).unwrap());
    }

    #[test]
    fn rows_that_sort_differently_within_the_tolerance_are_matched() {
        let wide = |rows: &[[f64; 2]]| {
            let column = |i: usize| Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r[i]))) as _;
            vec![RecordBatch::try_from_iter([("a", column(0)), ("b", column(1))]).unwrap()]
        };
        let a = wide(&[[1.0, 5.0], [1.0 + 1e-12, 2.0]]);
        let b = wide(&[[1.0 + 1e-12, 5.0], [1.0, 2.0]]);
        assert!(equal(&a, &b).unwrap());
    }
}
