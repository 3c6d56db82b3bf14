//! One zero in lists: `x IN (0.0, 5)` also finds -0.0, as `x = 0.0` does.
//!
//! DataFusion compares floats with one zero, but looks values up in lists by their bits. Chunks are pruned by
//! comparisons with their bounds, so chunks could be excluded that have rows which the list finds, and answers would
//! depend on which rows lie together: `n NOT IN (-0.0, 5)` with a whole number 0 is such a case.
//!
//! Upstream: <https://github.com/apache/datafusion/pull/25186> (IN LIST: treat signed zeros as equal), open; can go
//! when the test `lists_have_one_zero_as_comparisons_do` passes without it.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// Optimizer rule that adds the other zero to lists with one zero.
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
            Ok(expr.transform_up(|expr| Ok(with_both_zeros(expr)))?.update_data(|expr| name.restore(expr)))
        })
    }
}

/// Adds the other zero to a list that has only one of them.
fn with_both_zeros(expr: Expr) -> Transformed<Expr> {
    let Expr::InList(mut found) = expr else { return Transformed::no(expr) };
    let missing = missing_zeros(&found);
    let changed = !missing.is_empty();
    found.list.extend(missing);
    Transformed::new_transformed(Expr::InList(found), changed)
}

fn missing_zeros(list: &InList) -> Vec<Expr> {
    let has =
        |zero: &ScalarValue| list.list.iter().any(|part| matches!(part, Expr::Literal(value, _) if value == zero));
    let zeros = [
        [ScalarValue::from(0.0_f64), ScalarValue::from(-0.0_f64)],
        [ScalarValue::from(0.0_f32), ScalarValue::from(-0.0_f32)],
    ];
    let missing = zeros.into_iter().filter_map(|[plus, minus]| match (has(&plus), has(&minus)) {
        (true, false) => Some(lit(minus)),
        (false, true) => Some(lit(plus)),
        _ => None,
    });
    missing.collect()
}
