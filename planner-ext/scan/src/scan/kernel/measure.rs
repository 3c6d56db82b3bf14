//! Arguments of aggregates as products of the factors that kernels multiply.
//!
//! A kernel computes `(offset + scale * column) * ..` on numbers as they are stored. A decimal is stored without its point, so
//! sums of decimals of several scales are brought to the scale of their result, as Arrow does. Where Arrow would wrap around,
//! the kernels refuse: whoever makes the program computes such a scan on the processor.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Literal};
use terrace_tier_store::tier::hbm::device::scan::{ColumnRef, Factor};

use super::condition::{KernelColumns, literal_number};

/// `offset + scale * column`; without a column a constant.
#[derive(Debug, Clone, Copy)]
struct Affine {
    column: Option<ColumnRef>,
    offset: i64,
    scale: i64,
}

impl Affine {
    /// Multiplied by a number; `None` beyond 64 bits.
    fn times(self, number: i64) -> Option<Self> {
        let offset = self.offset.checked_mul(number)?;
        Some(Self { offset, scale: self.scale.checked_mul(number)?, ..self })
    }

    /// Added to another one; `None` when both have a column, and beyond 64 bits.
    fn plus(self, other: Self) -> Option<Self> {
        let column = match (self.column, other.column) {
            (Some(_), Some(_)) => return None,
            (one, other) => one.or(other),
        };
        let offset = self.offset.checked_add(other.offset)?;
        Some(Self { column, offset, scale: self.scale.checked_add(other.scale)? })
    }

    fn factor(self) -> Option<Factor> {
        Some(Factor { column: self.column?, offset: self.offset, scale: self.scale })
    }
}

/// The factors whose product an expression over the table is, and its type; `None` where kernels do not compute it.
pub(super) fn product(expr: &Arc<dyn PhysicalExpr>, columns: &mut KernelColumns) -> Option<(Vec<Factor>, DataType)> {
    let data_type = expr.data_type(columns.schema()).ok()?;
    let one = ScalarValue::Int64(Some(1));
    let is_one = expr.downcast_ref::<Literal>().is_some_and(|literal| *literal.value() == one);
    // Without factors the product is 1.
    let factors = if is_one { Vec::new() } else { factors(expr, columns)? };
    Some((factors, data_type))
}

fn factors(expr: &Arc<dyn PhysicalExpr>, columns: &mut KernelColumns) -> Option<Vec<Factor>> {
    if let Some(factor) = affine(expr, columns).and_then(Affine::factor) {
        return Some(vec![factor]);
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        return keeps_numbers(cast, columns).then(|| factors(cast.expr(), columns)).flatten();
    }
    let binary = expr.downcast_ref::<BinaryExpr>().filter(|binary| *binary.op() == Operator::Multiply)?;
    let scales = [binary.left(), binary.right()].map(|side| scale_of(side, columns));
    let [Some(left), Some(right)] = scales else { return None };
    if left.checked_add(right)? != scale_of(expr, columns)? {
        return None;
    }
    let mut product = factors(binary.left(), columns)?;
    product.extend(factors(binary.right(), columns)?);
    Some(product)
}

/// Digits behind the point of numbers on which Arrow calculates as kernels do: decimals of 128 bits, and integers of 64 bits,
/// which have none. Narrower integers wrap around earlier.
fn scale_of(expr: &Arc<dyn PhysicalExpr>, columns: &KernelColumns) -> Option<i8> {
    match expr.data_type(columns.schema()).ok()? {
        DataType::Decimal128(_, scale) => Some(scale),
        DataType::Int64 => Some(0),
        _ => None,
    }
}

/// True for a cast that changes no number: of integers to more bits, and of decimals to more digits before the point.
fn keeps_numbers(cast: &CastExpr, columns: &KernelColumns) -> bool {
    let Ok(from) = cast.expr().data_type(columns.schema()) else { return false };
    match (&from, cast.cast_type()) {
        (DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64, DataType::Int64) => true,
        (DataType::UInt8 | DataType::UInt16 | DataType::UInt32, DataType::Int64) => true,
        (DataType::Decimal128(before, from), DataType::Decimal128(after, to)) => from == to && before <= after,
        _ => false,
    }
}

/// The affine function of one column, or the constant, that an expression is.
fn affine(expr: &Arc<dyn PhysicalExpr>, columns: &mut KernelColumns) -> Option<Affine> {
    if let Some((column, _)) = columns.number(expr) {
        return Some(Affine { column: Some(column), offset: 0, scale: 1 });
    }
    if let Some(literal) = expr.downcast_ref::<Literal>() {
        let offset = literal_number(literal.value(), &literal.value().data_type())?;
        return Some(Affine { column: None, offset, scale: 0 });
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        return keeps_numbers(cast, columns).then(|| affine(cast.expr(), columns)).flatten();
    }
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    let left = scale_of(binary.left(), columns)?;
    let right = scale_of(binary.right(), columns)?;
    let result = scale_of(expr, columns)?;
    if !matches!(binary.op(), Operator::Plus | Operator::Minus) || result != left.max(right) {
        return None;
    }
    let power = |own: i8| 10_i64.checked_pow(u32::try_from(result.checked_sub(own)?).ok()?);
    let one = affine(binary.left(), columns)?.times(power(left)?)?;
    let other = affine(binary.right(), columns)?.times(power(right)?)?;
    let sign = if *binary.op() == Operator::Minus { -1 } else { 1 };
    one.plus(other.times(sign)?)
}
