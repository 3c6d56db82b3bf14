//! A run-time filter over one integer column, as a bitmap of the values that pass.
//!
//! A join publishes `low <= key AND key <= high AND lookup(key)`. Where the range is not much larger than the number of
//! rows asked, it pays to ask each value of the range once: testing a bit takes a tenth of hashing and probing. Any
//! expression over the column will do, as long as it bounds it on both sides.

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

use super::filter::mask_of;

/// Values of the largest range that gets a bitmap, of half a megabyte.
const MOST_VALUES: u64 = 1 << 22;

/// The values of one column that pass a filter.
#[derive(Debug)]
pub(super) struct Membership {
    low: i64,
    words: Vec<u64>,
}

/// The range outside of which no value of the schema's one column passes; `None` when it is open, too wide, or the
/// column is not of an integer type.
pub(super) fn range(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<RangeInclusive<i64>> {
    let [field] = schema.fields().as_ref() else { return None };
    if !matches!(field.data_type(), DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Date32) {
        return None;
    }
    let (low, high) = bounds(expr);
    (low <= high && high.abs_diff(low) < MOST_VALUES).then_some(low..=high)
}

/// Closed bounds of the column where the expression is true; the whole of i64 where nothing is known.
fn bounds(expr: &Arc<dyn PhysicalExpr>) -> (i64, i64) {
    const OPEN: (i64, i64) = (i64::MIN, i64::MAX);
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else { return OPEN };
    match binary.op() {
        Operator::And => {
            let (a, b) = (bounds(binary.left()), bounds(binary.right()));
            (a.0.max(b.0), a.1.min(b.1))
        }
        Operator::Or => {
            let (a, b) = (bounds(binary.left()), bounds(binary.right()));
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
    /// Asks `expr` for every value of `range`, a batch at a time.
    pub(super) fn new(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, range: RangeInclusive<i64>) -> Result<Self> {
        let (low, high) = range.into_inner();
        let mut words = Vec::new();
        let mut start = low;
        while start <= high {
            let end = high.min(start.saturating_add(super::SLICE_ROWS as i64 - 1));
            let values = Int64Array::from_iter_values(start..=end);
            words.extend(Self::ask(expr, schema, &values)?);
            let Some(next) = end.checked_add(1) else { break };
            start = next;
        }
        Ok(Self { low, words })
    }

    fn ask(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, values: &Int64Array) -> Result<Vec<u64>> {
        let wanted = schema.field(0).data_type();
        let column = match wanted {
            // Days have no cast from 64 bits.
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

    /// The rows of a column whose value passes, without nulls; `None` for a column of another type.
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
        BooleanBuffer::collect_bool(values.len(), |row| {
            let value: i64 = values.get(row).map_or(i64::MIN, |value| (*value).into());
            // Below `low` it wraps to far above the last word.
            let place = value.wrapping_sub(self.low) as u64;
            let word = usize::try_from(place / 64).ok().and_then(|word| self.words.get(word));
            word.is_some_and(|word| word >> (place % 64) & 1 == 1)
        })
    }
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

    #[test]
    fn only_integers_with_both_bounds_have_a_range() {
        let closed = |a: Expr| a.clone().gt_eq(lit(1_i64)).and(a.lt_eq(lit(90_i64)));
        let of = |expr, data_type| {
            let (expr, schema) = compiled(expr, data_type);
            range(&expr, &schema)
        };
        assert_eq!(of(closed(col("k")), DataType::Int64), Some(1..=90));
        assert_eq!(of(col("k").gt_eq(lit(1_i64)), DataType::Int64), None);
        assert_eq!(of(closed(col("k")).or(col("k").is_null()), DataType::Int64), None);
        assert_eq!(of(closed(col("k") + lit(1_i64)), DataType::Int64), None);
        let wide = col("k").gt_eq(lit(i64::MIN + 1)).and(col("k").lt_eq(lit(i64::MAX)));
        assert_eq!(of(wide, DataType::Int64), None);
        let day = |n| lit(ScalarValue::Date32(Some(n)));
        let days = col("k").gt_eq(day(9)).and(col("k").lt_eq(day(11)));
        let (expr, schema) = compiled(days, DataType::Date32);
        let bitmap = Membership::new(&expr, &schema, range(&expr, &schema).unwrap()).unwrap();
        let column: ArrayRef = Arc::new(Date32Array::from(vec![8, 9, 11, 12]));
        let passed = mask_of(bitmap.test(&column).unwrap()).unwrap().unwrap();
        assert_eq!(passed, BooleanArray::from(vec![false, true, true, false]));
    }
}
