//! Arithmetic on decimals in 64 bits.
//!
//! Arrow computes a `DECIMAL(15, 2)` in 128 bits with a check of every operation, at 5-7 ns a value. Values seldom need
//! that: one pass finds the most bits of a value in a batch, and where no result can exceed 64 bits the operation is one
//! instruction. Results, types and errors are the same: batches that do not fit are computed by Arrow.
//!
//! Upstream: no issue found; `decimal_op` in arrow-arith/src/numeric.rs checks each operation in 128 bits. Can go when
//! Q1 in `terrace-bench run P1` takes as long without it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, PrimitiveArray, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::numeric;
use arrow::datatypes::{DataType, Decimal128Type, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr_common::datum::apply;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;

/// Bits of a result that certainly fits an i64, its sign aside.
const MOST_BITS: u32 = 62;

/// `left op right` on two `Decimal128`.
#[derive(Debug, Clone, Eq)]
pub(crate) struct DecimalExpr {
    left: Arc<dyn PhysicalExpr>,
    right: Arc<dyn PhysicalExpr>,
    operation: Operation,
    precision: u8,
    scale: i8,
}

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Multiply,
    /// Both sides are first multiplied by these powers of ten.
    Add(i64, i64),
    Subtract(i64, i64),
}

// A derived implementation would move out of the pointers to dyn.
impl PartialEq for DecimalExpr {
    fn eq(&self, other: &Self) -> bool {
        let result = |e: &Self| (e.operation, e.precision, e.scale);
        self.left.eq(&other.left) && self.right.eq(&other.right) && result(self) == result(other)
    }
}

impl Hash for DecimalExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.left, &self.right, self.operation, self.precision, self.scale).hash(state);
    }
}

impl DecimalExpr {
    /// Replaces `expr`; `None` when it is no supported arithmetic on decimals.
    pub(crate) fn from_binary(expr: &BinaryExpr, schema: &Schema) -> Option<Self> {
        let type_of = |e: &dyn PhysicalExpr| e.data_type(schema).ok();
        let types = (type_of(expr.left().as_ref())?, type_of(expr.right().as_ref())?, type_of(expr)?);
        let (DataType::Decimal128(_, left), DataType::Decimal128(_, right), DataType::Decimal128(precision, scale)) =
            types
        else {
            return None;
        };
        let powers = || {
            let power = |own: i8| 10_i64.checked_pow(u32::try_from(left.max(right).checked_sub(own)?).ok()?);
            power(left).zip(power(right)).filter(|_| scale == left.max(right))
        };
        let operation = match expr.op() {
            Operator::Multiply if left.checked_add(right) == Some(scale) => Some(Operation::Multiply),
            Operator::Plus => powers().map(|(l, r)| Operation::Add(l, r)),
            Operator::Minus => powers().map(|(l, r)| Operation::Subtract(l, r)),
            _ => None,
        };
        let left = Arc::clone(expr.left());
        let right = Arc::clone(expr.right());
        operation.map(|operation| Self { left, right, operation, precision, scale })
    }

    pub(crate) fn left(&self) -> &Arc<dyn PhysicalExpr> {
        &self.left
    }

    pub(crate) fn right(&self) -> &Arc<dyn PhysicalExpr> {
        &self.right
    }

    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    fn symbol(&self) -> &'static str {
        match self.operation {
            Operation::Multiply => "*",
            Operation::Add(..) => "+",
            Operation::Subtract(..) => "-",
        }
    }

    /// Computes in 64 bits; `None` when some result might not fit.
    fn evaluate_narrow(&self, left: &ColumnarValue, right: &ColumnarValue) -> Option<Decimal128Array> {
        let left = Operand::from_value(left)?;
        let right = Operand::from_value(right)?;
        match self.operation {
            Operation::Multiply => (left.bit_width() + right.bit_width() <= MOST_BITS)
                .then(|| apply_narrow(&left, &right, |l, r| l * r))?,
            Operation::Add(a, b) => {
                sum_fits(&left, a, &right, b).then(|| apply_narrow(&left, &right, |l, r| l * a + r * b))?
            }
            Operation::Subtract(a, b) => {
                sum_fits(&left, a, &right, b).then(|| apply_narrow(&left, &right, |l, r| l * a - r * b))?
            }
        }
    }
}

fn bit_width(value: i128) -> u32 {
    i128::BITS - (value ^ (value >> 127)).leading_zeros()
}

fn sum_fits(left: &Operand<'_>, a: i64, right: &Operand<'_>, b: i64) -> bool {
    left.bit_width() + bit_width(a.into()) < MOST_BITS && right.bit_width() + bit_width(b.into()) < MOST_BITS
}

/// One operand.
enum Operand<'a> {
    Values(&'a Decimal128Array),
    One(i128),
}

impl<'a> Operand<'a> {
    fn from_value(value: &'a ColumnarValue) -> Option<Self> {
        match value {
            ColumnarValue::Array(array) => Some(Self::Values(array.as_primitive_opt::<Decimal128Type>()?)),
            ColumnarValue::Scalar(ScalarValue::Decimal128(value, ..)) => value.map(Self::One),
            ColumnarValue::Scalar(_) => None,
        }
    }

    /// Bits of its largest value, the sign aside. Values below nulls count too.
    fn bit_width(&self) -> u32 {
        match self {
            Self::Values(array) => {
                bit_width(array.values().iter().fold(0, |all, value| all | (value ^ (value >> 127))))
            }
            Self::One(value) => bit_width(*value),
        }
    }

    fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Self::Values(array) => array.nulls(),
            Self::One(_) => None,
        }
    }
}

/// Applies `op` to each pair of values; `None` when neither operand is an array, or their lengths differ.
#[inline]
fn apply_narrow(left: &Operand<'_>, right: &Operand<'_>, op: impl Fn(i64, i64) -> i64) -> Option<Decimal128Array> {
    let values: Vec<i128> = match (left, right) {
        (Operand::Values(l), Operand::Values(r)) if l.len() == r.len() => {
            l.values().iter().zip(r.values()).map(|(l, r)| i128::from(op(*l as i64, *r as i64))).collect()
        }
        (Operand::Values(l), Operand::One(r)) => {
            let r = *r as i64;
            l.values().iter().map(|l| i128::from(op(*l as i64, r))).collect()
        }
        (Operand::One(l), Operand::Values(r)) => {
            let l = *l as i64;
            r.values().iter().map(|r| i128::from(op(l, *r as i64))).collect()
        }
        _ => return None,
    };
    Some(PrimitiveArray::new(values.into(), NullBuffer::union(left.nulls(), right.nulls())))
}

impl fmt::Display for DecimalExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operand =
            |f: &mut fmt::Formatter<'_>, e: &Arc<dyn PhysicalExpr>| match e.is::<Self>() || e.is::<BinaryExpr>() {
                true => write!(f, "({e})"),
                false => write!(f, "{e}"),
            };
        operand(f, &self.left)?;
        write!(f, " {} ", self.symbol())?;
        operand(f, &self.right)
    }
}

impl PhysicalExpr for DecimalExpr {
    fn data_type(&self, _schema: &Schema) -> Result<DataType> {
        Ok(DataType::Decimal128(self.precision, self.scale))
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        Ok(self.left.nullable(schema)? || self.right.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let left = self.left.evaluate(batch)?;
        let right = self.right.evaluate(batch)?;
        if let Some(result) = self.evaluate_narrow(&left, &right) {
            let result = result.with_precision_and_scale(self.precision, self.scale)?;
            return Ok(ColumnarValue::Array(Arc::new(result) as ArrayRef));
        }
        match self.operation {
            Operation::Multiply => apply(&left, &right, numeric::mul_wrapping),
            Operation::Add(..) => apply(&left, &right, numeric::add_wrapping),
            Operation::Subtract(..) => apply(&left, &right, numeric::sub_wrapping),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.left, &self.right]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let [left, right] = <[_; 2]>::try_from(children)
            .or_else(|children| internal_err!("decimal arithmetic on {} operands", children.len()))?;
        Ok(Arc::new(Self { left, right, ..Self::clone(&self) }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(")?;
        self.left.fmt_sql(f)?;
        write!(f, " {} ", self.symbol())?;
        self.right.fmt_sql(f)?;
        write!(f, ")")
    }
}

/// Puts [`DecimalExpr`] into projections and the arguments of aggregates.
#[derive(Debug)]
pub(crate) struct DecimalRule;

impl PhysicalOptimizerRule for DecimalRule {
    fn name(&self) -> &str {
        "decimal_arithmetic"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| Ok(with_decimal_exprs(&plan)?.map_or_else(|| Transformed::no(plan), Transformed::yes)))
            .data()
    }
}

fn with_decimal_exprs(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let mut changed = false;
    let mut rewrite = |expr: &Arc<dyn PhysicalExpr>, schema: &Schema| {
        let rewritten = Arc::clone(expr).transform_up(|e| {
            Ok(match e.downcast_ref::<BinaryExpr>().and_then(|binary| DecimalExpr::from_binary(binary, schema)) {
                Some(narrow) => Transformed::yes(Arc::new(narrow) as Arc<dyn PhysicalExpr>),
                None => Transformed::no(e),
            })
        })?;
        changed |= rewritten.transformed;
        Ok::<_, datafusion::error::DataFusionError>(rewritten.data)
    };
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let schema = projection.input().schema();
        let mut exprs = projection.expr().to_vec();
        for expr in &mut exprs {
            expr.expr = rewrite(&expr.expr, &schema)?;
        }
        let input = Arc::clone(projection.input());
        return changed.then(|| Ok(Arc::new(ProjectionExec::try_new(exprs, input)?) as _)).transpose();
    }
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>() else { return Ok(None) };
    // The final half of an aggregate has arguments over the input of the first half.
    let schema = aggregate.input_schema();
    let mut functions = Vec::with_capacity(aggregate.aggr_expr().len());
    for function in aggregate.aggr_expr() {
        let known = function.all_expressions();
        let args = known.args.iter().map(|arg| rewrite(arg, &schema)).collect::<Result<Vec<_>>>()?;
        let same = args.iter().zip(&known.args).all(|(new, old)| Arc::ptr_eq(new, old));
        // A function with new expressions loses the mark that it is reversed.
        let new = match same || function.is_reversed() {
            true => None,
            false => function.with_new_expressions(args, known.order_by_exprs),
        };
        functions.push(new.map_or_else(|| Arc::clone(function), Arc::new));
    }
    Ok(changed.then(|| Arc::new(aggregate.with_new_aggr_exprs(functions)) as _))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::{col, lit};
    use proptest::prelude::*;

    use super::*;

    fn decimals(values: Vec<Option<i128>>, precision: u8, scale: i8) -> ArrayRef {
        Arc::new(Decimal128Array::from(values).with_precision_and_scale(precision, scale).unwrap())
    }

    /// A value of up to so many bits, or null.
    fn value(bits: u32) -> impl Strategy<Value = Option<i128>> {
        let value =
            (any::<i128>(), 0..=bits).prop_map(|(value, bits)| if bits == 0 { 0 } else { value >> (128 - bits) });
        prop_oneof![1 => Just(None), 1 => Just(Some(0)), 8 => value.prop_map(Some)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn narrow_arithmetic_gives_what_wide_gives(
            rows in proptest::collection::vec((value(64), value(64)), 0..40),
            one in value(40),
            (bits, shift) in (1_u32..126, 0_u32..64),
            (left_scale, right_scale) in (0_i8..9, 0_i8..9),
            (op, shape) in (0..3, 0..3),
        ) {
            // Small and large values in turn: around the edge of 64 bits too.
            let scaled = |v: Option<i128>| v.map(|v| if bits > 64 { v << (shift.min(bits - 64)) } else { v >> (64 - bits) });
            let (l, r): (Vec<_>, Vec<_>) = rows.into_iter().map(|(l, r)| (scaled(l), scaled(r))).unzip();
            let l = decimals(l, 38, left_scale);
            let r = decimals(r, 38, right_scale);
            let schema = Arc::new(Schema::new(vec![
                Field::new("l", l.data_type().clone(), true),
                Field::new("r", r.data_type().clone(), true),
            ]));
            let batch = RecordBatch::try_new(Arc::clone(&schema), vec![l, r]).unwrap();
            let constant = |scale| lit(ScalarValue::Decimal128(one, 38, scale));
            let (left, right) = match shape {
                0 => (col("l", &schema).unwrap(), col("r", &schema).unwrap()),
                1 => (constant(left_scale), col("r", &schema).unwrap()),
                _ => (col("l", &schema).unwrap(), constant(right_scale)),
            };
            let op = [Operator::Multiply, Operator::Plus, Operator::Minus][op as usize];
            let wide = BinaryExpr::new(left, op, right);
            let Some(narrow) = DecimalExpr::from_binary(&wide, &schema) else { panic!("{wide} is arithmetic of decimals") };
            let evaluated = |e: &dyn PhysicalExpr| {
                e.evaluate(&batch).and_then(|v| v.into_array(batch.num_rows())).map_err(|e| e.to_string())
            };
            match (evaluated(&wide), evaluated(&narrow)) {
                (Ok(wide), Ok(narrow)) => {
                    prop_assert_eq!(wide.data_type(), narrow.data_type());
                    prop_assert_eq!(&wide, &narrow);
                }
                (wide, narrow) => prop_assert_eq!(wide.map(drop), narrow.map(drop)),
            }
            prop_assert_eq!(wide.to_string(), narrow.to_string());
        }
    }

    #[test]
    fn small_values_take_the_short_way() {
        let schema = Schema::new(vec![Field::new("a", DataType::Decimal128(15, 2), true)]);
        let a = col("a", &schema).unwrap();
        let expr = BinaryExpr::new(Arc::clone(&a), Operator::Multiply, a);
        let expr = DecimalExpr::from_binary(&expr, &schema).unwrap();
        let short = |value: i128| {
            let column = ColumnarValue::Array(decimals(vec![Some(1), None, Some(value)], 15, 2));
            expr.evaluate_narrow(&column, &column).is_some()
        };
        assert!(short(i128::from(i32::MAX)));
        assert!(short(i128::from(i32::MIN)));
        assert!(!short(1 << 32));
    }
}
