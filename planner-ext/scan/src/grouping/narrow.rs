//! Decimals that are summed, computed in 64 bits.
//!
//! [`DecimalExpr`] reads and writes 128 bits a value, and looks for the largest value of both operands each time. Here each
//! column is narrowed once for all arguments, equal parts are computed once, and how many bits a result may have follows from those
//! of its operands. Values of a batch that need more bits are computed as they were planned.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Decimal128Type, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};

use crate::decimal::{DecimalExpr, Operation};

/// Bits of values whose negation fits 64 bits, too, their sign aside.
const MOST_BITS: u32 = 62;

/// A step of a computation.
#[derive(Debug)]
enum Step {
    /// Evaluates an expression, and narrows its values.
    Values(Arc<dyn PhysicalExpr>),
    /// The operation on the results of two earlier steps.
    Arithmetic(Operation, Operand, Operand),
}

/// One side of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Operand {
    /// The result of the step with that number.
    Step(usize),
    One(i64),
}

// A derived implementation would move out of the pointer to dyn.
impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Values(own), Self::Values(other)) => own.eq(other),
            (Self::Arithmetic(operation, left, right), Self::Arithmetic(o, l, r)) => {
                (operation, left, right) == (o, l, r)
            }
            _ => false,
        }
    }
}

/// What is computed of each batch: each step once, after those that it needs.
#[derive(Debug, Default)]
pub(super) struct Program {
    steps: Vec<Step>,
}

impl Program {
    /// The number of the step that computes `expr` over rows of `schema`; `None` where it is no decimal.
    pub(super) fn step(&mut self, expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<usize> {
        match self.operand(expr, schema)? {
            Operand::Step(number) => Some(number),
            Operand::One(_) => None,
        }
    }

    fn operand(&mut self, expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Operand> {
        if let Some(literal) = expr.downcast_ref::<Literal>() {
            let ScalarValue::Decimal128(Some(value), ..) = literal.value() else { return None };
            return i64::try_from(*value).ok().map(Operand::One);
        }
        let step = match expr.downcast_ref::<DecimalExpr>() {
            Some(decimal) => {
                let (left, right) = (self.operand(decimal.left(), schema)?, self.operand(decimal.right(), schema)?);
                // One value for all rows: planners compute it.
                if matches!((left, right), (Operand::One(_), Operand::One(_))) {
                    return None;
                }
                Step::Arithmetic(decimal.operation(), left, right)
            }
            None => match expr.data_type(schema).ok()? {
                DataType::Decimal128(..) => Step::Values(Arc::clone(expr)),
                _ => return None,
            },
        };
        let known = self.steps.iter().position(|known| *known == step);
        let number = known.unwrap_or(self.steps.len());
        if known.is_none() {
            self.steps.push(step);
        }
        Some(Operand::Step(number))
    }
}

/// `expr` over the rows below a projection.
pub(super) fn below(
    expr: &Arc<dyn PhysicalExpr>,
    projection: &[Arc<dyn PhysicalExpr>],
) -> Result<Arc<dyn PhysicalExpr>> {
    let replaced = |part: Arc<dyn PhysicalExpr>| {
        let Some(column) = part.downcast_ref::<Column>() else { return Ok(Transformed::no(part)) };
        let gone = || internal_datafusion_err!("a projection has no column {}", column.index());
        Ok(Transformed::yes(Arc::clone(projection.get(column.index()).ok_or_else(gone)?)))
    };
    Arc::clone(expr).transform_up(replaced).data()
}

/// Values of 64 bits.
#[derive(Debug, Default)]
pub(super) struct Narrow {
    pub(super) values: Vec<i64>,
    /// Each value, those under nulls included, is at least `-2^bits` and less than `2^bits`.
    pub(super) bits: u32,
    pub(super) nulls: Option<NullBuffer>,
}

/// The results of all steps for the latest batch. Their memory serves again.
#[derive(Debug, Default)]
pub(super) struct Results(Vec<Narrow>);

impl Results {
    /// Computes all steps over a batch; false when a value may need more bits. The results are of no use then.
    pub(super) fn compute(&mut self, program: &Program, batch: &RecordBatch) -> Result<bool> {
        self.0.resize_with(program.steps.len(), Narrow::default);
        for (number, step) in program.steps.iter().enumerate() {
            let (earlier, others) = self.0.split_at_mut(number);
            let Some(result) = others.first_mut() else { return Ok(false) };
            let fits = match step {
                Step::Values(expr) => result.narrow(expr, batch)?,
                Step::Arithmetic(operation, left, right) => result.apply(*operation, *left, *right, earlier),
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The result of a step.
    pub(super) fn get(&self, step: usize) -> Option<&Narrow> {
        self.0.get(step)
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|result| result.values.capacity() * size_of::<i64>()).sum()
    }
}

impl Narrow {
    /// Takes the values of an expression; false when they have more bits.
    fn narrow(&mut self, expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<bool> {
        let column = expr.evaluate(batch)?.into_array(batch.num_rows())?;
        let Some(column) = column.as_primitive_opt::<Decimal128Type>() else { return Ok(false) };
        // Sums that a closure had by reference would be in memory: a load and a store for each value.
        let (mut high_bits, mut bits) = (0_i64, 0_i64);
        self.values.resize(column.len(), 0);
        for (to, value) in self.values.iter_mut().zip(column.values()) {
            *to = *value as i64;
            let sign = *to >> 63;
            high_bits |= (*value >> 64) as i64 ^ sign;
            bits |= *to ^ sign;
        }
        self.bits = width(bits);
        self.nulls = column.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Ok(high_bits == 0 && self.bits <= MOST_BITS)
    }

    /// Computes an operation; false when a result may have more bits.
    fn apply(&mut self, operation: Operation, left: Operand, right: Operand, earlier: &[Self]) -> bool {
        let side = |operand| match operand {
            Operand::Step(number) => earlier.get(number).map(Side::Values),
            Operand::One(value) => Some(Side::One(value)),
        };
        let (Some(left), Some(right)) = (side(left), side(right)) else { return false };
        // -2^a * -2^b is 2^(a + b), and a sum has one bit more than the wider side.
        let scaled = |side: &Side<'_>, factor: i64| side.bits() + width(factor) + 1;
        self.bits = match operation {
            Operation::Multiply => left.bits() + right.bits() + 1,
            Operation::Add(a, b) | Operation::Subtract(a, b) => scaled(&left, a).max(scaled(&right, b)) + 1,
        };
        if self.bits > MOST_BITS {
            return false;
        }
        self.nulls = NullBuffer::union(left.nulls(), right.nulls());
        self.values.clear();
        match operation {
            Operation::Multiply => self.extend(&left, &right, |l, r| l * r),
            Operation::Add(1, 1) => self.extend(&left, &right, |l, r| l + r),
            Operation::Add(a, b) => self.extend(&left, &right, |l, r| l * a + r * b),
            Operation::Subtract(1, 1) => self.extend(&left, &right, |l, r| l - r),
            Operation::Subtract(a, b) => self.extend(&left, &right, |l, r| l * a - r * b),
        }
        true
    }

    #[inline]
    fn extend(&mut self, left: &Side<'_>, right: &Side<'_>, operation: impl Fn(i64, i64) -> i64) {
        match (left, right) {
            (Side::Values(l), Side::Values(r)) => {
                self.values.extend(l.values.iter().zip(&r.values).map(|(l, r)| operation(*l, *r)));
            }
            (Side::Values(l), Side::One(r)) => self.values.extend(l.values.iter().map(|l| operation(*l, *r))),
            (Side::One(l), Side::Values(r)) => self.values.extend(r.values.iter().map(|r| operation(*l, *r))),
            // There is no such step.
            (Side::One(_), Side::One(_)) => {}
        }
    }
}

/// One side of an operation, for a batch.
enum Side<'a> {
    Values(&'a Narrow),
    One(i64),
}

impl Side<'_> {
    fn bits(&self) -> u32 {
        match self {
            Self::Values(values) => values.bits,
            Self::One(value) => width(*value),
        }
    }

    fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Self::Values(values) => values.nulls.as_ref(),
            Self::One(_) => None,
        }
    }
}

/// Bits of a value, its sign aside.
fn width(value: i64) -> u32 {
    i64::BITS - (value ^ (value >> 63)).leading_zeros()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use arrow::array::{ArrayRef, Decimal128Array};
    use arrow::datatypes::Field;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{BinaryExpr, col, lit};
    use proptest::prelude::*;

    use super::*;

    const SCALES: [i8; 3] = [0, 2, 5];

    fn schema() -> Schema {
        let field =
            |(number, scale): (usize, &i8)| Field::new(format!("c{number}"), DataType::Decimal128(38, *scale), true);
        Schema::new(SCALES.iter().enumerate().map(field).collect::<Vec<_>>())
    }

    /// A column, or a constant.
    fn leaf() -> impl Strategy<Value = Arc<dyn PhysicalExpr>> {
        let column = (0..SCALES.len()).prop_map(|number| col(&format!("c{number}"), &schema()).unwrap());
        let constant = (-10_000_i128..10_000, 0_i8..4)
            .prop_map(|(value, scale)| lit(ScalarValue::Decimal128(Some(value), 38, scale)));
        prop_oneof![3 => column, 1 => constant]
    }

    /// Arithmetic whose decimals are computed in few bits if they may.
    fn arithmetic() -> impl Strategy<Value = Arc<dyn PhysicalExpr>> {
        leaf().prop_recursive(3, 8, 2, |inner| {
            (inner.clone(), inner, 0..3_usize).prop_map(|(left, right, operation)| {
                let operator = [Operator::Multiply, Operator::Plus, Operator::Minus][operation];
                let wide = BinaryExpr::new(left, operator, right);
                match DecimalExpr::from_binary(&wide, &schema()) {
                    Some(decimal) => Arc::new(decimal) as Arc<dyn PhysicalExpr>,
                    None => Arc::clone(wide.left()),
                }
            })
        })
    }

    fn column(bits: u32) -> impl Strategy<Value = Vec<Option<i128>>> {
        let value = any::<i128>().prop_map(move |value| Some(value >> (127 - bits)));
        proptest::collection::vec(prop_oneof![1 => Just(None), 8 => value], 20)
    }

    fn batch() -> impl Strategy<Value = RecordBatch> {
        let columns = (1_u32..70, 1_u32..40, 1_u32..10).prop_flat_map(|(a, b, c)| (column(a), column(b), column(c)));
        columns.prop_map(|(a, b, c)| {
            let arrays = [a, b, c].into_iter().zip(SCALES).map(|(values, scale)| {
                let array = Decimal128Array::from(values).with_precision_and_scale(38, scale).unwrap();
                Arc::new(array) as ArrayRef
            });
            RecordBatch::try_new(Arc::new(schema()), arrays.collect()).unwrap()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

        #[test]
        fn narrow_values_are_those_of_the_expressions(
            exprs in proptest::collection::vec(arithmetic(), 1..4),
            batches in proptest::collection::vec(batch(), 1..4),
        ) {
            let mut program = Program::default();
            let mut results = Results::default();
            let steps: Vec<Option<usize>> = exprs.iter().map(|expr| program.step(expr, &schema())).collect();
            for batch in &batches {
                if !results.compute(&program, batch).unwrap() {
                    continue;
                }
                for (expr, step) in exprs.iter().zip(&steps) {
                    let Some(step) = step else { continue };
                    let found = results.get(*step).unwrap();
                    let expected = expr.evaluate(batch).unwrap().into_array(batch.num_rows()).unwrap();
                    let expected = expected.as_primitive::<Decimal128Type>();
                    prop_assert_eq!(found.values.len(), batch.num_rows());
                    for (row, value) in found.values.iter().enumerate() {
                        let is_null = found.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                        prop_assert_eq!(is_null, expected.is_null(row), "{} row {}", expr, row);
                        prop_assert!(is_null || i128::from(*value) == expected.value(row), "{} row {}", expr, row);
                        prop_assert!(width(*value) <= found.bits, "{} has more than {} bits", value, found.bits);
                    }
                }
            }
        }
    }

    #[test]
    fn equal_parts_are_computed_once() {
        let schema = schema();
        let product = |left: &Arc<dyn PhysicalExpr>, right: &Arc<dyn PhysicalExpr>| {
            let wide = BinaryExpr::new(Arc::clone(left), Operator::Multiply, Arc::clone(right));
            Arc::new(DecimalExpr::from_binary(&wide, &schema).unwrap()) as Arc<dyn PhysicalExpr>
        };
        let (a, b) = (col("c0", &schema).unwrap(), col("c1", &schema).unwrap());
        let mut program = Program::default();
        let first = program.step(&product(&a, &b), &schema);
        assert_eq!(program.step(&product(&product(&a, &b), &b), &schema), Some(3));
        assert_eq!(program.step(&product(&a, &b), &schema), first);
        assert_eq!(program.step(&a, &schema), Some(0));
        assert_eq!(program.steps.len(), 4);
        assert_eq!(program.step(&lit(1_i64), &schema), None);
    }

    #[test]
    fn values_that_do_not_fit_are_left_alone() {
        let schema = schema();
        let a = col("c0", &schema).unwrap();
        let square = BinaryExpr::new(Arc::clone(&a), Operator::Multiply, a);
        let square: Arc<dyn PhysicalExpr> = Arc::new(DecimalExpr::from_binary(&square, &schema).unwrap());
        let mut program = Program::default();
        program.step(&square, &schema).unwrap();
        let fits = |value: i128| {
            let column =
                |scale| Arc::new(Decimal128Array::from(vec![value]).with_precision_and_scale(38, scale).unwrap());
            let batch =
                RecordBatch::try_new(Arc::new(self::schema()), SCALES.map(|scale| column(scale) as ArrayRef).to_vec());
            Results::default().compute(&program, &batch.unwrap()).unwrap()
        };
        assert!(fits((1 << 30) - 1) && fits(-(1 << 30)));
        assert!(!fits(1 << 31) && !fits(1 << 62) && !fits(1 << 80) && !fits(-(1 << 80)));
    }
}
