//! Expressions over floats that the analysis replaces.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{
    AggregateFunction, AggregateFunctionParams, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, lit};
use datafusion::optimizer::AnalyzerRule;

/// `-f` becomes `f * -1.0`, which leaves the sign of a NaN alone: a NaN with a sign sorts below all numbers. An argument
/// of a DISTINCT aggregate becomes `f + 0.0`, which is 0.0 for both zeros: the accumulators of several aggregates beside
/// each other count bits (`FloatDistinctCountAccumulator`).
#[derive(Debug)]
pub(super) struct OneZeroOneNan;

impl AnalyzerRule for OneZeroOneNan {
    fn name(&self) -> &str {
        "one_zero_one_nan"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                let rewritten = expr.transform_up(|part| Ok(rewritten(part, &schema)))?;
                Ok(rewritten.update_data(|expr| name.restore(expr)))
            })?
            .map_data(LogicalPlan::recompute_schema)
        })
        .data()
    }
}

fn rewritten(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::Negative(inner) if is_float(&inner, schema) && !matches!(*inner, Expr::Literal(..)) => {
            Transformed::yes(*inner * lit(-1.0))
        }
        Expr::AggregateFunction(AggregateFunction { func, params }) if params.distinct => {
            let AggregateFunctionParams { args, .. } = params;
            let (args, changed) = with_one_zero(args, schema);
            let params = AggregateFunctionParams { args, ..params };
            Transformed::new_transformed(Expr::AggregateFunction(AggregateFunction { func, params }), changed)
        }
        Expr::WindowFunction(mut window) if window.params.distinct => {
            let WindowFunction { params: WindowFunctionParams { args, .. }, .. } = &mut *window;
            let (one_zero, changed) = with_one_zero(std::mem::take(args), schema);
            *args = one_zero;
            Transformed::new_transformed(Expr::WindowFunction(window), changed)
        }
        other => Transformed::no(other),
    }
}

fn with_one_zero(args: Vec<Expr>, schema: &DFSchema) -> (Vec<Expr>, bool) {
    let mut changed = false;
    let one_zero = args.into_iter().map(|arg| {
        let rewrite = is_float(&arg, schema) && !has_one_zero(&arg);
        changed |= rewrite;
        if rewrite { arg + lit(0.0) } else { arg }
    });
    let one_zero = one_zero.collect();
    (one_zero, changed)
}

/// Whether this rule was here before: a plan is analysed more than once.
fn has_one_zero(expr: &Expr) -> bool {
    matches!(expr, Expr::BinaryExpr(sum) if *sum.right == lit(0.0))
}

fn is_float(expr: &Expr, schema: &DFSchema) -> bool {
    use arrow::datatypes::DataType::{Float32, Float64};
    expr.get_type(schema).is_ok_and(|kind| matches!(kind, Float32 | Float64))
}
