//! Analyzer rule that replaces expressions over floats.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/22826> (Datafusion FP comparator works incorrectly with -0.0
//! +0.0), whose repair left out `FloatDistinctCountAccumulator`; no issue found on the sign of NaN (`NegativeExpr` in
//! datafusion-physical-expr/src/expressions/negative.rs). Can go when the test
//! `distinct_counts_have_one_zero_and_negated_nan_stays_the_greatest` passes without it.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunction, BinaryExpr, Sort, WindowFunctionParams};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::AnalyzerRule;

/// `-f` becomes `f * -1.0`, which keeps the sign of a NaN: a NaN with a sign sorts below all numbers. An argument of a
/// DISTINCT aggregate becomes `f + 0.0`, which is 0.0 for both zeros: with several aggregates the accumulators count
/// different bits (`FloatDistinctCountAccumulator`).
#[derive(Debug)]
pub(super) struct OneZeroOneNan;

impl AnalyzerRule for OneZeroOneNan {
    fn name(&self) -> &str {
        "one_zero_one_nan"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let will_group = matches!(&node, LogicalPlan::Aggregate(aggregate) if will_group(aggregate));
            let schema = merge_schema(&node.inputs());
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                let rewritten = expr.transform_up(|part| {
                    let keeps = will_group && matches!(part, Expr::AggregateFunction(_));
                    Ok(if keeps { Transformed::no(part) } else { rewritten(part, &schema) })
                })?;
                Ok(rewritten.update_data(|expr| name.restore(expr)))
            })?
            .map_data(LogicalPlan::recompute_schema)
        })
        .data()
    }
}

/// True if DataFusion turns this aggregate into one over groups of its only DISTINCT argument
/// (`SingleDistinctToGroupBy`): groups have one zero, and an argument with another name would prevent this
/// optimization.
fn will_group(aggregate: &Aggregate) -> bool {
    let mut distinct = None;
    let simple = aggregate.aggr_expr.iter().all(|expr| {
        let Expr::AggregateFunction(AggregateFunction { func, params }) = expr else { return false };
        // Replacing a negation changes the name of the argument, too.
        if expr.exists(|part| Ok(matches!(part, Expr::Negative(_)))).unwrap_or(true)
            || params.filter.is_some()
            || !params.order_by.is_empty()
        {
            return false;
        }
        match (params.distinct, params.args.as_slice()) {
            (true, [argument]) => *distinct.get_or_insert(argument) == argument,
            (true, _) => false,
            (false, _) => matches!(func.name(), "sum" | "min" | "max"),
        }
    });
    simple && distinct.is_some() && !matches!(aggregate.group_expr.first(), Some(Expr::GroupingSet(_)))
}

fn rewritten(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::Negative(inner) if !matches!(*inner, Expr::Literal(..)) => match float(-1.0, &inner, schema) {
            Some(minus_one) => Transformed::yes(*inner * minus_one),
            None => Transformed::no(Expr::Negative(inner)),
        },
        Expr::AggregateFunction(AggregateFunction { func, mut params }) if params.distinct => {
            let changed = with_one_zero(&mut params.args, &mut params.order_by, schema);
            Transformed::new_transformed(Expr::AggregateFunction(AggregateFunction { func, params }), changed)
        }
        Expr::WindowFunction(mut window) if window.params.distinct => {
            let WindowFunctionParams { args, order_by, .. } = &mut window.params;
            let changed = with_one_zero(args, order_by, schema);
            Transformed::new_transformed(Expr::WindowFunction(window), changed)
        }
        other => Transformed::no(other),
    }
}

/// Gives the arguments of a DISTINCT aggregate one zero, and also its sort expressions, which can only be arguments.
fn with_one_zero(args: &mut [Expr], order_by: &mut [Sort], schema: &DFSchema) -> bool {
    let mut changed = false;
    for expr in args.iter_mut().chain(order_by.iter_mut().map(|sort| &mut sort.expr)) {
        if let Some(zero) = float(0.0, expr, schema).filter(|_| !has_one_zero(expr)) {
            *expr = std::mem::take(expr) + zero;
            changed = true;
        }
    }
    changed
}

/// True if this rule has rewritten the expression before: a plan is analysed more than once.
fn has_one_zero(expr: &Expr) -> bool {
    matches!(expr, Expr::BinaryExpr(BinaryExpr { op: Operator::Plus, right, .. })
        if **right == lit(0.0) || **right == lit(0.0_f32))
}

/// `value` in the type of an expression, if that is a float type.
fn float(value: f32, expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    match expr.get_type(schema).ok()? {
        DataType::Float32 => Some(lit(value)),
        DataType::Float64 => Some(lit(f64::from(value))),
        _ => None,
    }
}
