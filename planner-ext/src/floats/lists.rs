//! One zero in lists: `x IN (0.0, 5)` asks for -0.0 too, as `x = 0.0` does.
//!
//! DataFusion compares floats with one zero, but looks values up in lists by their bits. What chunks have between their bounds
//! is told by comparisons, so chunks would be left out that have rows which the list finds, and answers depend on which rows
//! lie together: `n NOT IN (-0.0, 5)` with a whole number 0 is such a row.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// The rule.
#[derive(Debug)]
pub(crate) struct OneZero;

impl OptimizerRule for OneZero {
    fn name(&self) -> &str {
        "one_zero"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(expr.transform_up(|expr| Ok(with_both(expr)))?.update_data(|expr| name.restore(expr)))
        })
    }
}

/// The same, with both zeros in a list that has one.
fn with_both(expr: Expr) -> Transformed<Expr> {
    let Expr::InList(mut found) = expr else { return Transformed::no(expr) };
    let missing = missing(&found);
    let changed = !missing.is_empty();
    found.list.extend(missing);
    Transformed::new_transformed(Expr::InList(found), changed)
}

fn missing(list: &InList) -> Vec<Expr> {
    let has =
        |zero: &ScalarValue| list.list.iter().any(|part| matches!(part, Expr::Literal(value, _) if value == zero));
    let zeros = [
        [ScalarValue::from(0.0_f64), ScalarValue::from(-0.0_f64)],
        [ScalarValue::from(0.0_f32), ScalarValue::from(-0.0_f32)],
    ];
    let other = zeros.into_iter().filter_map(|[plus, minus]| match (has(&plus), has(&minus)) {
        (true, false) => Some(lit(minus)),
        (false, true) => Some(lit(plus)),
        _ => None,
    });
    other.collect()
}
