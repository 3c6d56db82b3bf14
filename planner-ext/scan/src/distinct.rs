//! Aggregates of the distinct values of several columns, without groups.
//!
//! DataFusion makes groups of `SELECT count(DISTINCT a) FROM t`, which spill and are aggregated in parallel. For
//! `SELECT count(DISTINCT a), count(DISTINCT b), avg(c) FROM t` it keeps a set for each column in each partition, and ends
//! where they do not fit. This rule makes one aggregate for each column, and one of the rest, which return one row each,
//! and joins these rows. They run one after the other, so that the memory is that of the largest.
//!
//! Each aggregate scans the table, with the columns that it reads. So the rule is for scans of the store, and not for joins or
//! files, nor for filters that cost more than comparisons: three scans of `lineitem` with a LIKE on its comments took 2.5
//! times as long as one. Without filters, the rule takes 0.6 of the time for three columns with many different values, and
//! 1.1 for two with few (TPC-H SF 1, 2 threads).
//!
//! Upstream: <https://github.com/apache/datafusion/issues/21087> (Optimize multiple COUNT(DISTINCT) memory via logical plan
//! rewrite), open; can go when the test `several_distinct_columns_spill` passes without it.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, LogicalPlanBuilder, Operator, Projection};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::provider::TierTable;

/// The optimizer rule. It has to run before the one that makes groups.
#[derive(Debug)]
pub(crate) struct SplitDistinctAggregates;

impl OptimizerRule for SplitDistinctAggregates {
    fn name(&self) -> &str {
        "split_distinct_aggregates"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Aggregate(aggregate) = &plan else { return Ok(Transformed::no(plan)) };
        let parts = parts(aggregate);
        if parts.len() < 2 || !aggregate.group_expr.is_empty() || !reads_one_table(&aggregate.input)? {
            return Ok(Transformed::no(plan));
        }
        let mut joined: Option<LogicalPlanBuilder> = None;
        for part in parts {
            let part = LogicalPlan::Aggregate(Aggregate::try_new(Arc::clone(&aggregate.input), vec![], part)?);
            joined = Some(match joined {
                Some(joined) => joined.cross_join(part)?,
                None => LogicalPlanBuilder::new(part),
            });
        }
        let Some(joined) = joined else { return Ok(Transformed::no(plan)) };
        // In the order and under the names of the statement.
        let columns = aggregate.aggr_expr.iter().map(column).collect();
        let schema = Arc::clone(&aggregate.schema);
        let joined = Projection::try_new_with_schema(columns, Arc::new(joined.build()?), schema)?;
        Ok(Transformed::yes(LogicalPlan::Projection(joined)))
    }
}

/// The column that has the value of an aggregate of the statement.
fn column(expression: &Expr) -> Expr {
    let value = Expr::Column(Column::new_unqualified(unaliased(expression).schema_name().to_string()));
    match expression {
        Expr::Alias(alias) => value.alias_qualified(alias.relation.clone(), alias.name.clone()),
        _ => value,
    }
}

/// The aggregates by the column whose distinct values they are of, and the rest. One part, if there is one such column: its
/// set is small beside many, and a second scan of the table costs more (TPC-DS q28).
fn parts(aggregate: &Aggregate) -> Vec<Vec<Expr>> {
    let mut distinct: Vec<(&Expr, Vec<Expr>)> = Vec::new();
    let mut rest = Vec::new();
    for expression in &aggregate.aggr_expr {
        // An alias keeps DataFusion from making groups.
        let expression = unaliased(expression);
        let part = match distinct_argument(expression) {
            Some(argument) => match distinct.iter().position(|(other, _)| *other == argument) {
                Some(at) => distinct.get_mut(at).map(|(_, part)| part),
                None => {
                    distinct.push((argument, Vec::new()));
                    distinct.last_mut().map(|(_, part)| part)
                }
            },
            None => Some(&mut rest),
        };
        if let Some(part) = part.filter(|part| !part.contains(expression)) {
            part.push(expression.clone());
        }
    }
    if distinct.len() < 2 {
        return vec![aggregate.aggr_expr.clone()];
    }
    let parts = distinct.into_iter().map(|(_, part)| part);
    parts.chain((!rest.is_empty()).then_some(rest)).collect()
}

/// The argument of an aggregate of distinct values of which DataFusion can make groups.
fn distinct_argument(expression: &Expr) -> Option<&Expr> {
    let AggregateFunction { params, .. } = function(expression)?;
    let [argument] = params.args.as_slice() else { return None };
    let is_plain = params.distinct && params.filter.is_none() && params.order_by.is_empty();
    (is_plain && !matches!(argument, Expr::Literal(..))).then_some(argument)
}

fn function(expression: &Expr) -> Option<&AggregateFunction> {
    match expression {
        Expr::AggregateFunction(function) => Some(function),
        _ => None,
    }
}

fn unaliased(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

/// Whether a condition only compares columns and values.
fn is_cheap(condition: &Expr) -> bool {
    let is_other = |part: &Expr| {
        use Operator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
        let compares = |op| matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | And | Or);
        let is_comparison = matches!(part, Expr::BinaryExpr(binary) if compares(binary.op));
        let is_simple = matches!(
            part,
            Expr::Column(_)
                | Expr::Literal(..)
                | Expr::Not(_)
                | Expr::IsNull(_)
                | Expr::IsNotNull(_)
                | Expr::Between(_)
                | Expr::InList(_)
                | Expr::Cast(_)
        );
        Ok(!is_comparison && !is_simple)
    };
    !condition.exists(is_other).unwrap_or(true)
}

/// Whether a plan reads one table of the store, whose rows stay the same, and computes the same each time, for no row of
/// another plan.
fn reads_one_table(plan: &LogicalPlan) -> Result<bool> {
    let mut is_repeatable = true;
    plan.apply_with_subqueries(|node| {
        is_repeatable &= match node {
            LogicalPlan::TableScan(scan) => {
                source_as_provider(&scan.source)?.is::<TierTable>() && scan.filters.iter().all(is_cheap)
            }
            LogicalPlan::Filter(filter) => is_cheap(&filter.predicate),
            LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => true,
            _ => false,
        };
        node.apply_expressions(|expression| {
            is_repeatable &= !expression.is_volatile() && !expression.contains_outer();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if is_repeatable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_repeatable)
}
