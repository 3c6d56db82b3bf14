//! Comparisons of a column with a number, evaluated on values as they are stored, so that rows that do not pass are
//! never widened, and on bounds.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::not;
use arrow::datatypes::{
    DataType, Date32Type, Decimal32Type, Decimal64Type, Decimal128Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Schema, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};

/// `column op number`, both of the type that the table declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Comparison {
    op: Operator,
    number: i128,
}

impl Comparison {
    /// `None` for any other expression.
    pub(super) fn from_expr(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Self> {
        let binary = expr.downcast_ref::<BinaryExpr>()?;
        let left = binary.left();
        let right = binary.right();
        let (column, op, literal) = match left.is::<Column>() {
            true => (left, *binary.op(), right),
            false => (right, binary.op().swap()?, left),
        };
        let literal = literal.downcast_ref::<Literal>()?.value();
        let compares = column.is::<Column>() && column.data_type(schema).ok()? == literal.data_type();
        let known = matches!(
            op,
            Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq
        );
        (compares && known).then_some(Self { op, number: number(literal)? })
    }

    /// The rows that pass, by a function that finds the rows whose value is in a range, if it does.
    pub(super) fn pass_packed(
        &self,
        within: impl FnOnce(&RangeInclusive<i128>) -> Option<BooleanArray>,
    ) -> Option<BooleanArray> {
        let number = self.number;
        match self.op {
            Operator::Eq => within(&(number..=number)),
            Operator::NotEq => within(&(number..=number)).and_then(|equal| not(&equal).ok()),
            Operator::Lt => within(&(i128::MIN..=number.checked_sub(1)?)),
            Operator::LtEq => within(&(i128::MIN..=number)),
            Operator::Gt => within(&(number.checked_add(1)?..=i128::MAX)),
            Operator::GtEq => within(&(number..=i128::MAX)),
            _ => None,
        }
    }

    /// The stored values that pass. `None` when the number is out of the range of their type.
    pub(super) fn pass(&self, values: &ArrayRef) -> Option<BooleanArray> {
        match values.data_type() {
            DataType::Int8 => self.pass_as::<Int8Type>(values),
            DataType::Int16 => self.pass_as::<Int16Type>(values),
            DataType::Int32 => self.pass_as::<Int32Type>(values),
            DataType::Int64 => self.pass_as::<Int64Type>(values),
            DataType::UInt8 => self.pass_as::<UInt8Type>(values),
            DataType::UInt16 => self.pass_as::<UInt16Type>(values),
            DataType::UInt32 => self.pass_as::<UInt32Type>(values),
            DataType::UInt64 => self.pass_as::<UInt64Type>(values),
            DataType::Decimal32(..) => self.pass_as::<Decimal32Type>(values),
            DataType::Decimal64(..) => self.pass_as::<Decimal64Type>(values),
            DataType::Decimal128(..) => self.pass_as::<Decimal128Type>(values),
            DataType::Date32 => self.pass_as::<Date32Type>(values),
            DataType::Timestamp(TimeUnit::Second, _) => self.pass_as::<TimestampSecondType>(values),
            DataType::Timestamp(TimeUnit::Millisecond, _) => self.pass_as::<TimestampMillisecondType>(values),
            DataType::Timestamp(TimeUnit::Microsecond, _) => self.pass_as::<TimestampMicrosecondType>(values),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => self.pass_as::<TimestampNanosecondType>(values),
            _ => None,
        }
    }

    fn pass_as<T: ArrowPrimitiveType<Native: TryFrom<i128>>>(&self, values: &ArrayRef) -> Option<BooleanArray> {
        let number = T::Native::try_from(self.number).ok()?;
        let array = values.as_primitive_opt::<T>()?;
        let values = array.values();
        let passed = match self.op {
            Operator::Eq => bits(values, |value| value == number),
            Operator::NotEq => bits(values, |value| value != number),
            Operator::Lt => bits(values, |value| value < number),
            Operator::LtEq => bits(values, |value| value <= number),
            Operator::Gt => bits(values, |value| value > number),
            Operator::GtEq => bits(values, |value| value >= number),
            _ => return None,
        };
        Some(BooleanArray::new(passed, array.nulls().cloned()))
    }

    /// True when a value from `min` to `max` may pass.
    pub(super) fn may_pass(&self, min: i64, max: i64) -> bool {
        let min = i128::from(min);
        let max = i128::from(max);
        let number = self.number;
        match self.op {
            Operator::Eq => min <= number && number <= max,
            Operator::NotEq => min != number || number != max,
            Operator::Lt => min < number,
            Operator::LtEq => min <= number,
            Operator::Gt => max > number,
            Operator::GtEq => max >= number,
            _ => true,
        }
    }
}

/// One bit for each value, set if it passes. Values are compared in one loop that the compiler vectorises, and their
/// flags are packed eight at a time: arrow's kernels call a comparison for each value, which is not inlined in a build
/// with many codegen units.
fn bits<N: Copy>(values: &[N], passes: impl Fn(N) -> bool) -> BooleanBuffer {
    let mut bytes = Vec::with_capacity(values.len().div_ceil(64) * 8);
    for values in values.chunks(64) {
        let mut flags = [0_u8; 64];
        flags.iter_mut().zip(values).for_each(|(flag, value)| *flag = u8::from(passes(*value)));
        let (eights, _) = flags.as_chunks::<8>();
        bytes.extend(eights.iter().map(|eight| packed(*eight)));
    }
    BooleanBuffer::new(Buffer::from_vec(bytes), 0, values.len())
}

/// Packs eight bytes of 0 or 1 into bits: the product has byte k at bit 56 + k, and no carry reaches that bit.
fn packed(flags: [u8; 8]) -> u8 {
    (u64::from_le_bytes(flags).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// The number in the representation of the column: decimals without their point, dates and times in the unit of their
/// type.
pub(super) fn number(literal: &ScalarValue) -> Option<i128> {
    match literal {
        ScalarValue::Int8(value) => value.map(i128::from),
        ScalarValue::UInt8(value) => value.map(i128::from),
        ScalarValue::Int16(value) => value.map(i128::from),
        ScalarValue::Int32(value) => value.map(i128::from),
        ScalarValue::Int64(value) => value.map(i128::from),
        ScalarValue::UInt16(value) => value.map(i128::from),
        ScalarValue::UInt32(value) => value.map(i128::from),
        ScalarValue::UInt64(value) => value.map(i128::from),
        ScalarValue::Date32(value) => value.map(i128::from),
        ScalarValue::TimestampSecond(value, _)
        | ScalarValue::TimestampMillisecond(value, _)
        | ScalarValue::TimestampMicrosecond(value, _)
        | ScalarValue::TimestampNanosecond(value, _) => value.map(i128::from),
        ScalarValue::Decimal32(value, ..) => value.map(i128::from),
        ScalarValue::Decimal64(value, ..) => value.map(i128::from),
        ScalarValue::Decimal128(value, ..) => *value,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::RecordBatch;
    use arrow::compute::cast;
    use arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::{binary, col, lit};

    use super::*;

    const OPS: [Operator; 6] =
        [Operator::Eq, Operator::NotEq, Operator::Lt, Operator::LtEq, Operator::Gt, Operator::GtEq];

    #[test]
    fn stored_values_compare_as_wide_ones_do() {
        use DataType as D;
        let kinds = [
            (D::Int32, D::Int8),
            (D::Int64, D::Int16),
            (D::Int64, D::Int32),
            (D::UInt16, D::UInt8),
            (D::UInt32, D::UInt16),
            (D::UInt64, D::UInt32),
            (D::Decimal128(20, 2), D::Decimal32(9, 2)),
            (D::Decimal128(20, 2), D::Decimal64(18, 2)),
            (D::Int8, D::Int8),
            (D::Int64, D::Int64),
            (D::UInt64, D::UInt64),
            (D::Decimal128(20, 2), D::Decimal128(20, 2)),
            (D::Timestamp(TimeUnit::Second, None), D::Timestamp(TimeUnit::Second, None)),
            (D::Timestamp(TimeUnit::Nanosecond, None), D::Timestamp(TimeUnit::Nanosecond, None)),
        ];
        let values = (0..9).map(Some).chain([None]).chain((0..9).map(|v| Some(8 - v))).collect::<Vec<Option<i64>>>();
        // More than are compared at once, and some that are left.
        let values = arrow::array::Int64Array::from(values.repeat(8));
        for (declared, stored) in kinds {
            let schema = Schema::new(vec![Field::new("a", declared.clone(), true)]);
            let wide = cast(&values, &declared).unwrap();
            let narrow = cast(&wide, &stored).unwrap();
            let batch = RecordBatch::try_new(Arc::new(schema.clone()), vec![wide]).unwrap();
            for (number, op, swapped) in (0..9).flat_map(|n| OPS.map(|op| [(n, op, false), (n, op, true)])).flatten() {
                let number = cast(&arrow::array::Int64Array::from(vec![number]), &declared).unwrap();
                let number = lit(ScalarValue::try_from_array(&number, 0).unwrap());
                let column = col("a", &schema).unwrap();
                let (left, right) = if swapped { (number, column) } else { (column, number) };
                let expr = binary(left, op, right, &schema).unwrap();
                let expected = expr.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap();
                let found = Comparison::from_expr(&expr, &schema).unwrap().pass(&narrow).unwrap();
                assert_eq!(&(Arc::new(found) as ArrayRef), &expected, "{expr} on {stored}");
            }
        }
    }

    #[test]
    fn numbers_out_of_range_and_other_expressions_are_not_compared() {
        let schema = Schema::new(vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Int32, true)]);
        let [a, b] = ["a", "b"].map(|name| col(name, &schema).unwrap());
        let from = |left: &Arc<dyn PhysicalExpr>, op, right: Arc<dyn PhysicalExpr>| {
            Comparison::from_expr(&binary(Arc::clone(left), op, right, &schema).unwrap(), &schema)
        };
        let narrow: ArrayRef = Arc::new(arrow::array::Int8Array::from(vec![1, 2]));
        assert_eq!(from(&a, Operator::Lt, lit(127)).unwrap().pass(&narrow), Some(BooleanArray::from(vec![true, true])));
        assert_eq!(from(&a, Operator::Lt, lit(128)).unwrap().pass(&narrow), None);
        assert_eq!(from(&a, Operator::Eq, lit(-129)).unwrap().pass(&narrow), None);
        assert_eq!(from(&a, Operator::Eq, b), None);
        assert_eq!(from(&a, Operator::Plus, lit(1)), None);
        assert_eq!(from(&a, Operator::IsDistinctFrom, lit(1)), None);
        assert_eq!(from(&a, Operator::Eq, lit(ScalarValue::Int32(None))), None);
    }
}
