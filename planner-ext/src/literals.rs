//! Decimal literals beside floats: the float that is nearest to what is written.
//!
//! A cast of a decimal to a float divides its digits as a float, and is off by one place from 16 digits on. A literal would
//! then miss the row that it was read from.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// The rule; before casts of literals are folded.
#[derive(Debug)]
pub(crate) struct NearestFloat;

impl OptimizerRule for NearestFloat {
    fn name(&self) -> &str {
        "nearest_float"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(expr.transform_up(|expr| Ok(nearest(expr)))?.update_data(|expr| name.restore(expr)))
        })
    }
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

/// A decimal as it is written.
fn written(value: &ScalarValue) -> Option<String> {
    match value {
        ScalarValue::Decimal128(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        ScalarValue::Decimal256(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        _ => None,
    }
}
