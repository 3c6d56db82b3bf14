//! Predicates by which placement rules select chunks.
//!
//! A predicate consists of comparisons of a column with a value, IS NULL and IS NOT NULL, joined by AND and OR. Only
//! the bounds of the chunks are consulted: a chunk is selected unless they prove that it has no row which satisfies the
//! predicate. Columns are named by id, so renames do not affect a predicate.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, Scalar};
use arrow::compute::kernels::cmp;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use serde::{Deserialize, Serialize};
use terrace_model::{ColumnId, Error, Result};

use super::ColumnBounds;
use crate::catalog::records::{decode_batches, encode_batches};

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Comparison {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
}

impl Comparison {
    fn sign(self) -> &'static str {
        match self {
            Self::Eq => "=",
            Self::NotEq => "<>",
            Self::Lt => "<",
            Self::LtEq => "<=",
            Self::Gt => ">",
            Self::GtEq => ">=",
        }
    }
}

/// A value that a column is compared with, as an Arrow IPC stream of one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Literal(Vec<u8>);

impl Literal {
    /// Makes a literal of `value`, which has one row of the column's type that is not null.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    pub fn new(value: &ArrayRef) -> Result<Self> {
        if value.len() != 1 || value.logical_null_count() > 0 {
            return Err(Error::Invalid("a condition compares a column with a single value that is not null".into()));
        }
        let schema = Arc::new(Schema::new(vec![Field::new("value", value.data_type().clone(), true)]));
        let row = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(value)])?;
        Ok(Self(encode_batches(&schema, &[row])?))
    }

    fn array(&self) -> Result<ArrayRef> {
        let (_, batches) = decode_batches(&self.0)?;
        let value = batches.first().and_then(|batch| batch.columns().first()).filter(|column| column.len() == 1);
        value.cloned().ok_or_else(|| Error::Catalog("the value of a placement rule is missing".into()))
    }

    /// Formats it as SQL, to be compared with a column of its type.
    fn sql(&self) -> String {
        let Ok(array) = self.array() else { return "?".into() };
        let text = array_value_to_string(&array, 0).unwrap_or_default();
        match array.data_type() {
            plain if plain.is_numeric() || *plain == DataType::Boolean => text,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => format!("X'{text}'"),
            _ => format!("'{}'", text.replace('\'', "''")),
        }
    }
}

/// A condition on rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Predicate {
    /// The comparison of a column with a value is true.
    Compare(ColumnId, Comparison, Literal),
    /// The column is null.
    IsNull(ColumnId),
    /// The column is not null.
    IsNotNull(ColumnId),
    /// All of these are true.
    And(Vec<Predicate>),
    /// At least one of these is true.
    Or(Vec<Predicate>),
}

/// Gives the bounds of a column, one entry per chunk; `None` when they are unknown.
pub type BoundsByColumn<'a> = &'a dyn Fn(ColumnId) -> Option<ColumnBounds>;

impl Predicate {
    /// Merges an AND within an AND, and an OR within an OR.
    #[must_use]
    pub fn flat(self) -> Self {
        match self {
            Self::And(parts) => Self::And(
                parts
                    .into_iter()
                    .flat_map(|part| if let Self::And(inner) = part { inner } else { vec![part] })
                    .collect(),
            ),
            Self::Or(parts) => Self::Or(
                parts
                    .into_iter()
                    .flat_map(|part| if let Self::Or(inner) = part { inner } else { vec![part] })
                    .collect(),
            ),
            other => other,
        }
    }

    /// The columns that it needs, possibly with repetitions.
    pub fn columns(&self) -> Vec<ColumnId> {
        match self {
            Self::Compare(column, ..) | Self::IsNull(column) | Self::IsNotNull(column) => vec![*column],
            Self::And(parts) | Self::Or(parts) => parts.iter().flat_map(Self::columns).collect(),
        }
    }

    /// Formats it as SQL; `name` gives the names of columns.
    pub fn sql(&self, name: &dyn Fn(ColumnId) -> String) -> String {
        let joined = |parts: &[Self], word: &str| {
            let mut text = String::new();
            for (i, part) in parts.iter().enumerate() {
                let between = if i > 0 { word } else { "" };
                let _ = match part {
                    Self::And(_) | Self::Or(_) => write!(text, "{between}({})", part.sql(name)),
                    _ => write!(text, "{between}{}", part.sql(name)),
                };
            }
            text
        };
        match self {
            Self::Compare(column, comparison, value) => {
                format!("{} {} {}", name(*column), comparison.sign(), value.sql())
            }
            Self::IsNull(column) => format!("{} IS NULL", name(*column)),
            Self::IsNotNull(column) => format!("{} IS NOT NULL", name(*column)),
            Self::And(parts) => joined(parts, " AND "),
            Self::Or(parts) => joined(parts, " OR "),
        }
    }

    /// Tells for each chunk, given its number of rows, whether it may have a row that satisfies the predicate.
    pub fn may_match(&self, rows: &[u32], bounds: BoundsByColumn<'_>) -> Vec<bool> {
        let unsure = || vec![true; rows.len()];
        match self {
            Self::And(parts) => parts.iter().fold(unsure(), |mut keep, part| {
                keep.iter_mut().zip(part.may_match(rows, bounds)).for_each(|(keep, part)| *keep &= part);
                keep
            }),
            Self::Or(parts) => parts.iter().fold(vec![false; rows.len()], |mut keep, part| {
                keep.iter_mut().zip(part.may_match(rows, bounds)).for_each(|(keep, part)| *keep |= part);
                keep
            }),
            Self::IsNull(column) => match bounds(*column) {
                Some(known) if known.null_counts.len() == rows.len() => {
                    known.null_counts.values().iter().map(|nulls| *nulls > 0).collect()
                }
                _ => unsure(),
            },
            Self::IsNotNull(column) => match bounds(*column) {
                Some(known) if known.null_counts.len() == rows.len() => {
                    known.null_counts.values().iter().zip(rows).map(|(nulls, rows)| *nulls < u64::from(*rows)).collect()
                }
                _ => unsure(),
            },
            Self::Compare(column, comparison, value) => bounds(*column)
                .zip(value.array().ok())
                .and_then(|(known, value)| chunks_may_match(&known, *comparison, value).ok())
                .filter(|keep| keep.len() == rows.len())
                .unwrap_or_else(unsure),
        }
    }
}

/// Tells for each chunk whether it may have a value for which the comparison is true.
fn chunks_may_match(known: &ColumnBounds, comparison: Comparison, value: ArrayRef) -> Result<Vec<bool>, ArrowError> {
    let value = Scalar::new(value);
    let min = |compare: fn(&dyn arrow::array::Datum, &dyn arrow::array::Datum) -> Result<BooleanArray, ArrowError>| {
        compare(&known.min, &value)
    };
    let max = |compare: fn(&dyn arrow::array::Datum, &dyn arrow::array::Datum) -> Result<BooleanArray, ArrowError>| {
        compare(&known.max, &value)
    };
    // An unknown bound excludes no chunk.
    let or_unknown = |array: BooleanArray| array.iter().map(|is| is.unwrap_or(true)).collect::<Vec<_>>();
    Ok(match comparison {
        Comparison::Lt => or_unknown(min(cmp::lt)?),
        Comparison::LtEq => or_unknown(min(cmp::lt_eq)?),
        Comparison::Gt => or_unknown(max(cmp::gt)?),
        Comparison::GtEq => or_unknown(max(cmp::gt_eq)?),
        Comparison::Eq => {
            let low = or_unknown(min(cmp::lt_eq)?);
            let high = or_unknown(max(cmp::gt_eq)?);
            low.into_iter().zip(high).map(|(low, high)| low && high).collect()
        }
        Comparison::NotEq => {
            let low = min(cmp::eq)?;
            let high = max(cmp::eq)?;
            let all_equal = low.iter().zip(&high).zip(&known.exact);
            all_equal.map(|((low, high), exact)| (low, high, exact) != (Some(true), Some(true), Some(true))).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::collections::BTreeSet;

    use arrow::array::{Float64Array, Int64Array, StringViewArray};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use terrace_model::TableName;

    use super::*;
    use crate::table::{ChunkStatistics, TableDefinition, TableStatistics};

    const LETTERS: [&str; 4] = ["a", "b", "bb", "c"];

    fn schema() -> Arc<Schema> {
        Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, true),
            Field::new("s", DataType::Utf8View, true),
            Field::new("f", DataType::Float64, true),
        ]))
    }

    fn batch(rng: &mut StdRng) -> RecordBatch {
        let rows = rng.random_range(1..6);
        let base = rng.random_range(0..8);
        let gaps = rng.random_bool(0.3);
        let hole = |rng: &mut StdRng| gaps && rng.random_bool(0.6);
        let n: Int64Array = (0..rows).map(|_| (!hole(rng)).then(|| base + rng.random_range(0..3))).collect();
        let long = "b".repeat(200);
        let text =
            |rng: &mut StdRng| if rng.random_bool(0.1) { long.clone() } else { LETTERS[rng.random_range(0..4)].into() };
        let s: StringViewArray = (0..rows).map(|_| (!hole(rng)).then(|| text(rng))).collect();
        let value = |rng: &mut StdRng| if rng.random_bool(0.1) { f64::NAN } else { f64::from(rng.random_range(0..4)) };
        let f: Float64Array = (0..rows).map(|_| (!hole(rng)).then(|| value(rng))).collect();
        RecordBatch::try_new(schema(), vec![Arc::new(n), Arc::new(s), Arc::new(f)]).unwrap()
    }

    fn predicate(rng: &mut StdRng, depth: u32) -> Predicate {
        let column = ColumnId(rng.random_range(0..3));
        match rng.random_range(0..if depth == 0 { 8 } else { 10 }) {
            0 => Predicate::IsNull(column),
            1 => Predicate::IsNotNull(column),
            2..8 => {
                let all = [
                    Comparison::Eq,
                    Comparison::NotEq,
                    Comparison::Lt,
                    Comparison::LtEq,
                    Comparison::Gt,
                    Comparison::GtEq,
                ];
                let value: ArrayRef = match column.0 {
                    0 => Arc::new(Int64Array::from(vec![rng.random_range(-1..12)])),
                    1 => Arc::new(StringViewArray::from(vec![LETTERS[rng.random_range(0..4)]])),
                    _ => Arc::new(Float64Array::from(vec![f64::from(rng.random_range(-1..5))])),
                };
                Predicate::Compare(column, all[rng.random_range(0..6)], Literal::new(&value).unwrap())
            }
            8 => Predicate::And((0..3).map(|_| predicate(rng, depth - 1)).collect()),
            _ => Predicate::Or((0..3).map(|_| predicate(rng, depth - 1)).collect()),
        }
    }

    /// Whether some row makes it true, by looking at the rows.
    fn holds(predicate: &Predicate, batch: &RecordBatch) -> BooleanArray {
        let column = |id: &ColumnId| Arc::clone(batch.column(id.0 as usize));
        let all = |parts: &[Predicate], and: bool| {
            let parts: Vec<_> = parts.iter().map(|part| holds(part, batch)).collect();
            (0..batch.num_rows())
                .map(|row| {
                    let mut values = parts.iter().map(|part| part.value(row) && part.is_valid(row));
                    Some(if and { values.all(|v| v) } else { values.any(|v| v) })
                })
                .collect()
        };
        match predicate {
            Predicate::And(parts) => all(parts, true),
            Predicate::Or(parts) => all(parts, false),
            Predicate::IsNull(id) => arrow::compute::is_null(&column(id)).unwrap(),
            Predicate::IsNotNull(id) => arrow::compute::is_not_null(&column(id)).unwrap(),
            Predicate::Compare(id, comparison, value) => {
                let value = Scalar::new(value.array().unwrap());
                let compare = match comparison {
                    Comparison::Eq => cmp::eq,
                    Comparison::NotEq => cmp::neq,
                    Comparison::Lt => cmp::lt,
                    Comparison::LtEq => cmp::lt_eq,
                    Comparison::Gt => cmp::gt,
                    Comparison::GtEq => cmp::gt_eq,
                };
                compare(&column(id), &value).unwrap()
            }
        }
    }

    #[test]
    fn a_chunk_with_a_matching_row_is_always_in() {
        let mut rng = StdRng::seed_from_u64(45);
        let definition = TableDefinition::new(TableName::new("public", "t"), schema());
        let mut ruled_out = 0;
        let mut needed = 0;
        for round in 0..400 {
            let chunks: Vec<_> = (0..rng.random_range(1..9)).map(|_| batch(&mut rng)).collect();
            let bounds: Vec<_> = (0..).zip(chunks.iter().map(|c| ChunkStatistics::compute(c).unwrap())).collect();
            let (statistics, _) = TableStatistics::empty(&definition).changed(&BTreeSet::new(), &bounds).unwrap();
            let rows: Vec<u32> = chunks.iter().map(|c| c.num_rows() as u32).collect();
            let known = |id: ColumnId| statistics.column(id.0 as usize).ok().cloned();
            for _ in 0..10 {
                let predicate = predicate(&mut rng, 2);
                let keep = predicate.may_match(&rows, &known);
                for (at, chunk) in chunks.iter().enumerate() {
                    let matches = holds(&predicate, chunk).iter().flatten().any(|row| row);
                    assert!(keep[at] || !matches, "round {round}: {predicate:?} on {chunk:?}");
                    // A chunk gives the same result alone as among others.
                    let alone = bounds[at].1.column_bounds();
                    let alone = predicate.may_match(&rows[at..=at], &|id| alone(id.0 as usize));
                    assert_eq!(alone, [keep[at]], "round {round}: {predicate:?}");
                    ruled_out += u32::from(!keep[at]);
                    needed += u32::from(matches);
                }
            }
        }
        assert!(ruled_out > 1000 && needed > 1000, "{ruled_out} ruled out, {needed} needed");
    }

    #[test]
    fn it_reads_as_sql() {
        let n = Literal::new(&(Arc::new(Int64Array::from(vec![-5])) as ArrayRef)).unwrap();
        let s = Literal::new(&(Arc::new(StringViewArray::from(vec!["o'k"])) as ArrayRef)).unwrap();
        let either = Predicate::Or(vec![
            Predicate::Compare(ColumnId(0), Comparison::GtEq, n),
            Predicate::And(vec![Predicate::Compare(ColumnId(1), Comparison::NotEq, s), Predicate::IsNull(ColumnId(0))]),
        ]);
        assert_eq!(either.sql(&|id| format!("c{}", id.0)), "c0 >= -5 OR (c1 <> 'o''k' AND c0 IS NULL)");
        assert_eq!(either.columns(), [0, 1, 0].map(ColumnId));
        assert!(Literal::new(&(Arc::new(Int64Array::from(vec![None])) as ArrayRef)).is_err());
    }
}
