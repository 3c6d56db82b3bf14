//! A run-time filter over one integer column as a bitmap of the values that pass; made from a join's keys, as a bitmap
//! or a Bloom filter of the keys.
//!
//! A join publishes `low <= key AND key <= high AND lookup(key)`. If the range is not much larger than the number of
//! rows to test, it pays to evaluate each value of the range once: testing a bit takes a tenth of the time of hashing
//! and probing. This works for any expression over the column that bounds it on both sides.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, PrimitiveArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Date32Type, Int16Type, Int32Type, Int64Type, SchemaRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use terrace_tier_store::tier::codec::NumberFilter;

use super::filter::mask_of;

/// Values of the largest range that is evaluated one by one; its bitmap takes half a megabyte.
const MOST_VALUES: u64 = 1 << 22;
/// Values of the largest range that is tested value by value in a Bloom filter.
const MOST_ASKED: u64 = 1 << 12;
/// Keys get a bitmap if their range takes no more bits than this, or no more than [`BITMAP_BITS_PER_KEY`] per key;
/// otherwise a Bloom filter.
const SMALL_BITMAP_BITS: u64 = 1 << 23;
const BITMAP_BITS_PER_KEY: u64 = 32;

/// The values of one column that pass a filter.
#[derive(Debug)]
pub(super) enum Membership {
    /// One bit per value from `low` on.
    Bitmap {
        /// The first value.
        low: i64,
        /// The bits.
        words: Vec<u64>,
    },
    /// Four bits per value in one word: about one in 400 values passes that should not.
    Bloom {
        /// The bits; their number is a power of two.
        words: Vec<u64>,
    },
}

/// The range of values of the schema's one column that can pass; `None` when the range is open or too wide, or when the
/// column is not of an integer type.
pub(super) fn range(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<RangeInclusive<i64>> {
    let [field] = schema.fields().as_ref() else { return None };
    if !matches!(field.data_type(), DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Date32) {
        return None;
    }
    let (low, high) = bounds(expr);
    (low <= high && high.abs_diff(low) < MOST_VALUES).then_some(low..=high)
}

/// Closed bounds of the values for which the expression can be true; all of i64 when nothing is known.
fn bounds(expr: &Arc<dyn PhysicalExpr>) -> (i64, i64) {
    const OPEN: (i64, i64) = (i64::MIN, i64::MAX);
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else { return OPEN };
    match binary.op() {
        Operator::And => {
            let a = bounds(binary.left());
            let b = bounds(binary.right());
            (a.0.max(b.0), a.1.min(b.1))
        }
        Operator::Or => {
            let a = bounds(binary.left());
            let b = bounds(binary.right());
            (a.0.min(b.0), a.1.max(b.1))
        }
        op => {
            let literal = binary.right().downcast_ref::<Literal>().and_then(|l| integer(l.value()));
            match (op, literal, binary.left().is::<Column>()) {
                (Operator::Eq, Some(value), true) => (value, value),
                (Operator::GtEq | Operator::Gt, Some(value), true) => (value, i64::MAX),
                (Operator::LtEq | Operator::Lt, Some(value), true) => (i64::MIN, value),
                _ => OPEN,
            }
        }
    }
}

fn integer(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Int16(value) => value.map(i64::from),
        ScalarValue::Int32(value) | ScalarValue::Date32(value) => value.map(i64::from),
        ScalarValue::Int64(value) => *value,
        _ => None,
    }
}

impl Membership {
    /// Evaluates `expr` on every value of `range`, a batch at a time.
    pub(super) fn new(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, range: RangeInclusive<i64>) -> Result<Self> {
        let (low, high) = range.into_inner();
        let mut words = Vec::new();
        let mut start = low;
        while start <= high {
            let end = high.min(start.saturating_add(super::SLICE_ROWS as i64 - 1));
            let values = Int64Array::from_iter_values(start..=end);
            words.extend(Self::evaluate(expr, schema, &values)?);
            let Some(next) = end.checked_add(1) else { break };
            start = next;
        }
        Ok(Self::Bitmap { low, words })
    }

    /// A filter that passes `keys`, and possibly a few other values.
    pub(super) fn from_keys(keys: &[i64]) -> Self {
        let (Some(low), Some(high)) = (keys.iter().min().copied(), keys.iter().max().copied()) else {
            return Self::Bitmap { low: 0, words: Vec::new() };
        };
        let range = high.abs_diff(low);
        if range < SMALL_BITMAP_BITS.max(BITMAP_BITS_PER_KEY * keys.len() as u64) {
            let mut words = vec![0_u64; (range / 64 + 1) as usize];
            for key in keys {
                let place = key.abs_diff(low);
                if let Some(word) = words.get_mut((place / 64) as usize) {
                    *word |= 1 << (place % 64);
                }
            }
            return Self::Bitmap { low, words };
        }
        let mut words = vec![0_u64; (keys.len() / 4).next_power_of_two().max(2)];
        for key in keys {
            let (place, bits) = bloom(*key, words.len());
            if let Some(word) = words.get_mut(place) {
                *word |= bits;
            }
        }
        Self::Bloom { words }
    }

    /// The words of the bitmap for `values`.
    fn evaluate(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, values: &Int64Array) -> Result<Vec<u64>> {
        let wanted = schema.field(0).data_type();
        let column = match wanted {
            // There is no cast from 64-bit integers to days.
            DataType::Date32 => cast(&cast(values, &DataType::Int32)?, wanted)?,
            _ => cast(values, wanted)?,
        };
        let answer = expr.evaluate(&RecordBatch::try_new(Arc::clone(schema), vec![column])?)?;
        let passed = match mask_of(answer)? {
            Some(mask) if mask.len() == values.len() => mask.values().clone(),
            Some(_) => BooleanBuffer::new_unset(values.len()),
            None => BooleanBuffer::new_set(values.len()),
        };
        Ok(passed.bit_chunks().iter_padded().take(values.len().div_ceil(64)).collect())
    }

    /// False when no value of `range` passes.
    pub(super) fn any_in(&self, range: &RangeInclusive<i64>) -> bool {
        let first = *range.start();
        let last = *range.end();
        match self {
            Self::Bitmap { low, words } => {
                let bits = words.len() as u64 * 64;
                let start = first.max(*low).abs_diff(*low);
                if last < *low || first > last || start >= bits {
                    return false;
                }
                let end = last.abs_diff(*low).min(bits - 1);
                let start_word = (start / 64) as usize;
                let end_word = (end / 64) as usize;
                let mut words = words.iter().enumerate().take(end_word + 1).skip(start_word);
                words.any(|(place, word)| {
                    let after = if place == start_word { u64::MAX << (start % 64) } else { u64::MAX };
                    let before = if place == end_word { u64::MAX >> (63 - end % 64) } else { u64::MAX };
                    word & after & before != 0
                })
            }
            Self::Bloom { words } => {
                let passes = |value: i64| {
                    let (place, bits) = bloom(value, words.len());
                    words.get(place).is_some_and(|word| word & bits == bits)
                };
                first.abs_diff(last) >= MOST_ASKED || range.clone().any(passes)
            }
        }
    }

    /// Size of the filter in memory.
    pub(super) fn bytes(&self) -> usize {
        let (Self::Bitmap { words, .. } | Self::Bloom { words }) = self;
        size_of_val(words.as_slice())
    }

    /// The rows of a column whose values pass, without nulls; `None` for a column of another type.
    pub(super) fn test(&self, column: &ArrayRef) -> Option<ColumnarValue> {
        let passed = match column.data_type() {
            DataType::Int16 => self.test_as::<Int16Type>(column.as_primitive()),
            DataType::Int32 => self.test_as::<Int32Type>(column.as_primitive()),
            DataType::Date32 => self.test_as::<Date32Type>(column.as_primitive()),
            DataType::Int64 => self.test_as::<Int64Type>(column.as_primitive()),
            _ => return None,
        };
        let passed = match column.nulls() {
            Some(valid) => &passed & valid.inner(),
            None => passed,
        };
        Some(ColumnarValue::Array(Arc::new(BooleanArray::new(passed, None))))
    }

    fn test_as<T: ArrowPrimitiveType<Native: Into<i64>>>(&self, column: &PrimitiveArray<T>) -> BooleanBuffer {
        let values: &[T::Native] = column.values();
        let value = |row: usize| values.get(row).map_or(i64::MIN, |value| (*value).into());
        match self {
            Self::Bitmap { low, words } => BooleanBuffer::collect_bool(values.len(), |row| {
                // A value below `low` wraps to a place far above the last word.
                let place = value(row).wrapping_sub(*low) as u64;
                let word = usize::try_from(place / 64).ok().and_then(|word| words.get(word));
                word.is_some_and(|word| word >> (place % 64) & 1 == 1)
            }),
            Self::Bloom { words } => BooleanBuffer::collect_bool(values.len(), |row| {
                let (place, bits) = bloom(value(row), words.len());
                words.get(place).is_some_and(|word| word & bits == bits)
            }),
        }
    }
}

impl NumberFilter for Membership {
    fn any_in(&self, values: &RangeInclusive<i64>) -> bool {
        Self::any_in(self, values)
    }

    #[inline]
    fn passes(&self, value: i64) -> bool {
        match self {
            Self::Bitmap { low, words } => {
                // A value below `low` wraps to a place far above the last word.
                let place = value.wrapping_sub(*low) as u64;
                let word = usize::try_from(place / 64).ok().and_then(|word| words.get(word));
                word.is_some_and(|word| word >> (place % 64) & 1 == 1)
            }
            Self::Bloom { words } => {
                let (place, bits) = bloom(value, words.len());
                words.get(place).is_some_and(|word| word & bits == bits)
            }
        }
    }
}

/// The word of a value in a Bloom filter of `words` words, a power of two, and its bits there.
#[inline]
fn bloom(value: i64, words: usize) -> (usize, u64) {
    // The finalizer of MurmurHash3: every bit of the value changes every bit of the hash.
    let mut hash = value as u64;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    let bits = 1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63) | 1 << (hash >> 18 & 63);
    ((hash >> 24) as usize & (words - 1), bits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use arrow::array::{Date32Array, Int32Array};
    use arrow::datatypes::{Field, Schema};
    use datafusion::common::ToDFSchema;
    use datafusion::prelude::{Expr, SessionContext, col, lit};

    use super::*;

    fn compiled(expr: Expr, data_type: DataType) -> (Arc<dyn PhysicalExpr>, SchemaRef) {
        let schema = Arc::new(Schema::new(vec![Field::new("k", data_type, true)]));
        let columns = Arc::clone(&schema).to_dfschema().unwrap();
        (SessionContext::new().create_physical_expr(expr, &columns).unwrap(), schema)
    }

    #[test]
    fn a_bitmap_answers_as_the_expression_does_for_every_value_and_null() {
        let k = || col("k");
        let inside = k().gt_eq(lit(-70_i32)).and(k().lt_eq(lit(20_000_i32)));
        let routed = inside.clone().and((k() % lit(7_i32)).eq(lit(3_i32))).or(k().eq(lit(21_111_i32)));
        for expr in [inside, routed] {
            let (expr, schema) = compiled(expr, DataType::Int32);
            let bitmap = Membership::new(&expr, &schema, range(&expr, &schema).unwrap()).unwrap();
            let extremes = [None, Some(i32::MIN), Some(i32::MAX)];
            let column: ArrayRef = Arc::new((-200..22_000).map(Some).chain(extremes).collect::<Int32Array>());
            let batch = RecordBatch::try_new(schema, vec![Arc::clone(&column)]).unwrap();
            let expected = mask_of(expr.evaluate(&batch).unwrap()).unwrap().unwrap();
            let found = mask_of(bitmap.test(&column).unwrap()).unwrap().unwrap();
            assert_eq!(found, expected);
            // A slice starts in the middle of a word.
            let slice = mask_of(bitmap.test(&column.slice(77, 300)).unwrap()).unwrap().unwrap();
            assert_eq!(slice, expected.slice(77, 300));
        }
    }

    /// Any range, against all its values one by one.
    #[test]
    fn a_range_without_keys_is_recognised() {
        let mut rng = crate::scan::tests::Rng(5);
        let mut some = 0;
        let mut none = 0;
        for (step, exact) in [(1, true), (300, true), (1 << 40, false)] {
            let keys: Vec<i64> = (0..500).map(|_| (rng.below(2000) as i64 - 1000) * step).collect();
            let filter = Membership::from_keys(&keys);
            for _ in 0..2000 {
                let first = (rng.below(2400) as i64 - 1200) * step + rng.below(3) as i64 - 1;
                let last = first + rng.below(400) as i64 - 1;
                let has_key = keys.iter().any(|key| (first..=last).contains(key));
                let found = filter.any_in(&(first..=last));
                assert!(found || !has_key, "{first}..={last} of {step}");
                assert!(!exact || found == has_key, "{first}..={last} of {step}");
                (some, none) = (some + usize::from(found), none + usize::from(!found));
            }
            assert!(filter.any_in(&(i64::MIN..=i64::MAX)));
        }
        assert!(some > 500 && none > 500, "{some} {none}");
        let empty = Membership::from_keys(&[]);
        assert!(!empty.any_in(&(i64::MIN..=i64::MAX)) && !empty.any_in(&(0..=0)));
    }

    #[test]
    fn all_keys_pass_and_few_others() {
        for (step, exact) in [(1, true), (700, true), (1 << 40, false)] {
            let keys: Vec<i64> = (-5000..5000).map(|n: i64| n.wrapping_mul(step) ^ 1).collect();
            let filter = Membership::from_keys(&keys);
            assert_eq!(matches!(filter, Membership::Bitmap { .. }), exact);
            let passed = |values: Vec<i64>| {
                let count = values.iter().filter(|value| filter.passes(**value)).count();
                let column: ArrayRef = Arc::new(Int64Array::from(values));
                let mask = mask_of(filter.test(&column).unwrap()).unwrap();
                assert_eq!(mask.map_or(column.len(), |mask| mask.true_count()), count);
                count
            };
            assert_eq!(passed(keys), 10_000);
            let others = passed((0..100_000).map(|n| 7_000_000_000 + n * 12_345_678_901).collect());
            assert!(others < if exact { 1 } else { 2000 }, "{others}");
        }
        let nothing = Membership::from_keys(&[]);
        let column: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, i64::MIN]));
        assert_eq!(mask_of(nothing.test(&column).unwrap()).unwrap().unwrap().true_count(), 0);
    }

    #[test]
    fn only_integers_with_both_bounds_have_a_range() {
        let closed = |a: Expr| a.clone().gt_eq(lit(1_i64)).and(a.lt_eq(lit(90_i64)));
        let range_of = |expr, data_type| {
            let (expr, schema) = compiled(expr, data_type);
            range(&expr, &schema)
        };
        assert_eq!(range_of(closed(col("k")), DataType::Int64), Some(1..=90));
        assert_eq!(range_of(col("k").gt_eq(lit(1_i64)), DataType::Int64), None);
        assert_eq!(range_of(closed(col("k")).or(col("k").is_null()), DataType::Int64), None);
        assert_eq!(range_of(closed(col("k") + lit(1_i64)), DataType::Int64), None);
        let wide = col("k").gt_eq(lit(i64::MIN + 1)).and(col("k").lt_eq(lit(i64::MAX)));
        assert_eq!(range_of(wide, DataType::Int64), None);
        let day = |n| lit(ScalarValue::Date32(Some(n)));
        let days = col("k").gt_eq(day(9)).and(col("k").lt_eq(day(11)));
        let (expr, schema) = compiled(days, DataType::Date32);
        let bitmap = Membership::new(&expr, &schema, range(&expr, &schema).unwrap()).unwrap();
        let column: ArrayRef = Arc::new(Date32Array::from(vec![8, 9, 11, 12]));
        let passed = mask_of(bitmap.test(&column).unwrap()).unwrap().unwrap();
        assert_eq!(passed, BooleanArray::from(vec![false, true, true, false]));
    }
}
