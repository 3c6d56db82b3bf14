//! The rows of the tables. With n rows, and k = 100 groups as in the published runs:
//!
//! ```text
//!   g1        n rows: id1, id2 (texts), id4, id5 (integers) of k values; id3 (text), id6 (integer) of n / k;
//!             v1 of 1 to 5, v2 of 1 to 15, v3 below 100 with six digits
//!   x         n rows: id1, id2, id3 of n / 1e6, n / 1e3 and n values, id4, id5, id6 the same as texts, v1 below 100
//!   small     n / 1e6 rows: id1, id4, v2        medium    n / 1e3 rows: id1, id2, id4, id5, v2
//!   big       n rows: id1 to id6, v2
//! ```
//!
//! Of the values of a key nine tenths are in both tables of a join, and a tenth in each of them alone. Each value that a
//! table may have is in it at least once.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, RecordBatch, StringViewArray};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::error::Result;

/// All tables: that of the queries which group rows, then those of the joins.
pub const TABLES: [&str; 5] = ["g1", "x", "small", "medium", "big"];
const GROUPS: i32 = 100;
const SEED: u64 = 108;
const BATCH_ROWS: usize = 65_536;
/// Fewer values would leave none for the tenths of one side.
const LEAST_KEYS: usize = 10;

/// The values of one key of the joins.
struct Keys {
    /// Those of the left table.
    left: Vec<i32>,
    /// Those of the right table.
    right: Vec<i32>,
}

impl Keys {
    fn draw(count: usize, rng: &mut StdRng) -> Self {
        let tenth = count / 10;
        let mut all: Vec<i32> = (1..=(count + tenth) as i32).collect();
        all.shuffle(rng);
        let right_only = all.split_off(count);
        let left_only = all.split_off(count - tenth);
        let left = all.iter().copied().chain(left_only).collect();
        let right = all.into_iter().chain(right_only).collect();
        Self { left, right }
    }
}

/// The drawn keys, from which tables are made.
pub struct Draw {
    rows: usize,
    small: Keys,
    medium: Keys,
    big: Keys,
}

impl Draw {
    /// Draws the keys for tables of `rows` rows.
    pub fn new(rows: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(SEED);
        let mut keys = |count: usize| Keys::draw(count.max(LEAST_KEYS), &mut rng);
        Self { rows, small: keys(rows / 1_000_000), medium: keys(rows / 1_000), big: keys(rows) }
    }

    /// The rows of a table, in batches; always the same.
    pub fn batches(&self, table: &str) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        let number = TABLES.iter().position(|name| *name == table).unwrap_or_default();
        let mut rng = StdRng::seed_from_u64(SEED + 1 + number as u64);
        if table == "g1" {
            let rows = self.rows;
            return Box::new(parts(rows).map(move |(_, count)| groups(rows, count, &mut rng)));
        }
        let (keys, count): (Vec<&Vec<i32>>, usize) = match table {
            "x" => (vec![&self.small.left, &self.medium.left, &self.big.left], self.rows),
            "small" => (vec![&self.small.right], self.small.right.len()),
            "medium" => (vec![&self.small.right, &self.medium.right], self.medium.right.len()),
            _ => (vec![&self.small.right, &self.medium.right, &self.big.right], self.rows),
        };
        let keys: Vec<Vec<i32>> = keys.into_iter().map(|keys| sample_all(keys, count, &mut rng)).collect();
        let value = if table == "x" { "v1" } else { "v2" };
        Box::new(parts(count).map(move |(start, count)| {
            let values = floats(count, &mut rng);
            let slice = |keys: &Vec<i32>| keys.iter().skip(start).take(count).copied().collect::<Vec<i32>>();
            joined(&keys.iter().map(slice).collect::<Vec<_>>(), value, values)
        }))
    }
}

/// First row and rows of each batch.
fn parts(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(BATCH_ROWS).map(move |start| (start, BATCH_ROWS.min(rows - start)))
}

/// All of the values, and random ones of them, `count` in all, in random order.
fn sample_all(values: &[i32], count: usize, rng: &mut StdRng) -> Vec<i32> {
    let mut drawn: Vec<i32> = values.iter().copied().take(count).collect();
    while drawn.len() < count {
        let at = rng.random_range(0..values.len());
        drawn.extend(values.get(at));
    }
    drawn.shuffle(rng);
    drawn
}

/// Below 100, with six digits behind the point.
fn floats(count: usize, rng: &mut StdRng) -> Vec<f64> {
    (0..count).map(|_| (rng.random::<f64>() * 1e8).round() / 1e6).collect()
}

/// Rows of `g1`, of which there are `rows` in all.
fn groups(rows: usize, count: usize, rng: &mut StdRng) -> Result<RecordBatch> {
    let many = (rows as i32 / GROUPS).max(1);
    let mut integers = |most: i32| (0..count).map(|_| rng.random_range(1..=most)).collect::<Vec<i32>>();
    let text = |values: Vec<i32>, digits: usize| {
        let texts = values.into_iter().map(|value| format!("id{value:0digits$}"));
        Arc::new(StringViewArray::from_iter_values(texts)) as ArrayRef
    };
    let number = |values: Vec<i32>| Arc::new(Int32Array::from(values)) as ArrayRef;
    let columns: [(&str, ArrayRef); 9] = [
        ("id1", text(integers(GROUPS), 3)),
        ("id2", text(integers(GROUPS), 3)),
        ("id3", text(integers(many), 10)),
        ("id4", number(integers(GROUPS))),
        ("id5", number(integers(GROUPS))),
        ("id6", number(integers(many))),
        ("v1", number(integers(5))),
        ("v2", number(integers(15))),
        ("v3", Arc::new(Float64Array::from(floats(count, rng)))),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// Rows of a table of the joins: its keys as integers, then as texts, then its value.
fn joined(keys: &[Vec<i32>], name: &str, values: Vec<f64>) -> Result<RecordBatch> {
    let numbers = keys.iter().enumerate().map(|(at, keys)| {
        let numbers: ArrayRef = Arc::new(Int32Array::from(keys.clone()));
        (format!("id{}", at + 1), numbers)
    });
    let texts = keys.iter().enumerate().map(|(at, keys)| {
        let texts = keys.iter().map(|key| format!("id{key}"));
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts));
        (format!("id{}", at + 4), texts)
    });
    let values: ArrayRef = Arc::new(Float64Array::from(values));
    Ok(RecordBatch::try_from_iter(numbers.chain(texts).chain([(name.to_owned(), values)]))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use arrow::array::AsArray;
    use arrow::datatypes::Int32Type;

    use super::*;

    const ROWS: usize = 100_000;

    fn table(draw: &Draw, name: &str) -> RecordBatch {
        let batches: Vec<RecordBatch> = draw.batches(name).map(Result::unwrap).collect();
        arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap()
    }

    fn values(batch: &RecordBatch, column: &str) -> BTreeSet<i32> {
        let column = batch.column_by_name(column).unwrap().as_primitive::<Int32Type>();
        column.values().iter().copied().collect()
    }

    #[test]
    fn groups_have_the_values_of_the_specification() {
        let draw = Draw::new(ROWS);
        let rows = table(&draw, "g1");
        assert_eq!(rows.num_rows(), ROWS);
        for (column, most) in [("id4", 100), ("id5", 100), ("id6", 1_000), ("v1", 5), ("v2", 15)] {
            assert_eq!(values(&rows, column), (1..=most).collect(), "{column}");
        }
        let first = rows.column_by_name("id3").unwrap().as_string_view().value(0).to_owned();
        assert_eq!(first.len(), 12, "{first}");
        assert_eq!(rows, table(&draw, "g1"));
    }

    #[test]
    fn nine_tenths_of_the_keys_are_on_both_sides() {
        let draw = Draw::new(ROWS);
        let left = table(&draw, "x");
        for (right, column, keys) in [("small", "id1", 10), ("medium", "id2", 100), ("big", "id3", ROWS)] {
            let right = table(&draw, right);
            let (left, right) = (values(&left, column), values(&right, column));
            assert_eq!((left.len(), right.len()), (keys, keys), "{column}");
            assert_eq!(left.intersection(&right).count(), keys - keys / 10, "{column}");
        }
        assert_eq!(table(&draw, "big").num_rows(), ROWS);
        let text = left.column_by_name("id6").unwrap().as_string_view().value(7).to_owned();
        let number = left.column_by_name("id3").unwrap().as_primitive::<Int32Type>().value(7);
        assert_eq!(text, format!("id{number}"));
    }
}
