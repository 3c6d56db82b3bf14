//! Decimal literals beside columns of other types.
//!
//! Beside a float, the float that is nearest to what is written: a cast of a decimal to a float divides its digits as a
//! float, is off by one place from 16 digits on, and a literal would miss the row that it was read from. Beside an integer or
//! a decimal, what compares as the literal does in the type of the column, so that statistics and keys serve it.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::engine::comparison;

/// The rule; before casts of literals are folded.
#[derive(Debug)]
pub(crate) struct DecimalLiterals;

impl OptimizerRule for DecimalLiterals {
    fn name(&self) -> &str {
        "decimal_literals"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let names = NamePreserver::new(&plan);
        let schema = merge_schema(&plan.inputs());
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(in_column_types(expr, &schema)?.update_data(|expr| name.restore(expr)))
        })
    }
}

/// A coerced expression with its decimal literals in the types of the columns that they stand beside.
pub(crate) fn in_column_types(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !expr.exists(|part| Ok(decimal(part).is_some()))? {
        return Ok(Transformed::no(expr));
    }
    expr.transform_up(|part| Ok(nearest(part)))?
        .transform_data(|expr| expr.transform_down(|part| Ok(comparison::in_column_type(part, schema, &decimal))))
}

fn nearest(expr: Expr) -> Transformed<Expr> {
    let found = match &expr {
        Expr::Cast(cast) => match (cast.expr.as_ref(), cast.field.data_type()) {
            (Expr::Literal(value, _), DataType::Float64) => {
                written(value).and_then(|text| text.parse::<f64>().ok()).map(lit)
            }
            (Expr::Literal(value, _), DataType::Float32) => {
                written(value).and_then(|text| text.parse::<f32>().ok()).map(lit)
            }
            _ => None,
        },
        _ => None,
    };
    found.map_or_else(|| Transformed::no(expr), Transformed::yes)
}

fn decimal(expr: &Expr) -> Option<&ScalarValue> {
    comparison::literal(expr).filter(|value| value.data_type().is_decimal())
}

/// A decimal as it is written.
fn written(value: &ScalarValue) -> Option<String> {
    match value {
        ScalarValue::Decimal128(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        ScalarValue::Decimal256(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        _ => None,
    }
}
