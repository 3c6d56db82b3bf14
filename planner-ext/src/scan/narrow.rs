//! Comparisons of a column with a number, on values as they are stored: rows that do not pass are never widened.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray, Scalar};
use arrow::compute::kernels::cmp;
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Int8Type, Int16Type, Int32Type, Schema, UInt8Type, UInt16Type, UInt32Type,
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
    pub(super) fn of(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Self> {
        let binary = expr.downcast_ref::<BinaryExpr>()?;
        let (left, right) = (binary.left(), binary.right());
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

    /// What it says of stored values. `None` when the number has no place in their type.
    pub(super) fn pass(&self, values: &ArrayRef) -> Option<BooleanArray> {
        let number = self.number_as(values.data_type())?;
        let passed = match self.op {
            Operator::Eq => cmp::eq(values, &number),
            Operator::NotEq => cmp::neq(values, &number),
            Operator::Lt => cmp::lt(values, &number),
            Operator::LtEq => cmp::lt_eq(values, &number),
            Operator::Gt => cmp::gt(values, &number),
            Operator::GtEq => cmp::gt_eq(values, &number),
            _ => return None,
        };
        passed.ok()
    }

    fn number_as(&self, stored: &DataType) -> Option<Scalar<ArrayRef>> {
        match stored {
            DataType::Int8 => scalar::<Int8Type>(self.number, stored),
            DataType::Int16 => scalar::<Int16Type>(self.number, stored),
            DataType::Int32 => scalar::<Int32Type>(self.number, stored),
            DataType::UInt8 => scalar::<UInt8Type>(self.number, stored),
            DataType::UInt16 => scalar::<UInt16Type>(self.number, stored),
            DataType::UInt32 => scalar::<UInt32Type>(self.number, stored),
            DataType::Decimal32(..) => scalar::<Decimal32Type>(self.number, stored),
            DataType::Decimal64(..) => scalar::<Decimal64Type>(self.number, stored),
            _ => None,
        }
    }
}

fn scalar<T: ArrowPrimitiveType<Native: TryFrom<i128>>>(number: i128, stored: &DataType) -> Option<Scalar<ArrayRef>> {
    let number = T::Native::try_from(number).ok()?;
    let number = PrimitiveArray::<T>::from_value(number, 1).with_data_type(stored.clone());
    Some(Scalar::new(Arc::new(number)))
}

/// Of the types that are stored narrower; decimals without their point, which is where the column has it.
fn number(literal: &ScalarValue) -> Option<i128> {
    match literal {
        ScalarValue::Int16(value) => value.map(i128::from),
        ScalarValue::Int32(value) => value.map(i128::from),
        ScalarValue::Int64(value) => value.map(i128::from),
        ScalarValue::UInt16(value) => value.map(i128::from),
        ScalarValue::UInt32(value) => value.map(i128::from),
        ScalarValue::UInt64(value) => value.map(i128::from),
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
        ];
        let values = (0..9).map(Some).chain([None]).chain((0..9).map(|v| Some(8 - v))).collect::<Vec<Option<i64>>>();
        let values = arrow::array::Int64Array::from(values);
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
                let found = Comparison::of(&expr, &schema).unwrap().pass(&narrow).unwrap();
                assert_eq!(&(Arc::new(found) as ArrayRef), &expected, "{expr} on {stored}");
            }
        }
    }

    #[test]
    fn what_has_no_place_and_what_is_no_number_is_left_to_others() {
        let schema = Schema::new(vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Int32, true)]);
        let [a, b] = ["a", "b"].map(|name| col(name, &schema).unwrap());
        let of = |left: &Arc<dyn PhysicalExpr>, op, right: Arc<dyn PhysicalExpr>| {
            Comparison::of(&binary(Arc::clone(left), op, right, &schema).unwrap(), &schema)
        };
        let narrow: ArrayRef = Arc::new(arrow::array::Int8Array::from(vec![1, 2]));
        assert_eq!(of(&a, Operator::Lt, lit(127)).unwrap().pass(&narrow), Some(BooleanArray::from(vec![true, true])));
        assert_eq!(of(&a, Operator::Lt, lit(128)).unwrap().pass(&narrow), None);
        assert_eq!(of(&a, Operator::Eq, lit(-129)).unwrap().pass(&narrow), None);
        assert_eq!(of(&a, Operator::Eq, b), None);
        assert_eq!(of(&a, Operator::Plus, lit(1)), None);
        assert_eq!(of(&a, Operator::IsDistinctFrom, lit(1)), None);
        assert_eq!(of(&a, Operator::Eq, lit(ScalarValue::Int32(None))), None);
    }
}
