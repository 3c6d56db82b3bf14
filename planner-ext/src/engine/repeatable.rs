//! Queries that have the same rows each time they run on the same table versions.
//!
//! Values of immutable functions and rows of tables are not enough: which rows `LIMIT` takes, which of equal rows a
//! window function numbers first, and the last digits of a sum of floats depend on the order in which operators get
//! their rows, and that differs from one execution to the next. So a query counts only when all of its operators
//! are known to give the same rows for any order ([`has_same_rows`]). The order of the rows themselves is that of
//! ORDER BY, where there is one.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan};

use super::plan_cache::is_repeatable;

/// Aggregate functions whose value does not depend on the order of rows, unless it is a float.
const EXACT_AGGREGATES: [&str; 10] =
    ["avg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "count", "max", "min", "sum"];

/// Whether each execution of a query on the same table versions has the same rows.
pub(super) fn has_same_rows(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut is_same = is_repeatable(plan)?;
    plan.apply_with_subqueries(|node| {
        is_same &= is_exact(node);
        Ok(if is_same { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_same)
}

/// Whether an operator gives the same rows, whatever the order of those it gets.
fn is_exact(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Union(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::Subquery(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Values(_) => true,
        LogicalPlan::TableScan(scan) => scan.fetch.is_none(),
        LogicalPlan::Sort(sort) => sort.fetch.is_none(),
        LogicalPlan::Aggregate(aggregate) => {
            aggregate.aggr_expr.iter().all(is_exact_aggregate) && has_exact_columns(node)
        }
        LogicalPlan::Distinct(Distinct::All(_)) => has_exact_columns(node),
        _ => false,
    }
}

fn is_exact_aggregate(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_exact_aggregate(&alias.expr),
        Expr::AggregateFunction(call) => EXACT_AGGREGATES.contains(&call.func.name()),
        _ => false,
    }
}

/// Whether no column has floats: their sums depend on the order, and a group of 0.0 and -0.0 has the value that came first.
fn has_exact_columns(node: &LogicalPlan) -> bool {
    node.schema().fields().iter().all(|field| !may_have_floats(field.data_type()))
}

fn may_have_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => may_have_floats(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| may_have_floats(field.data_type())),
        DataType::Dictionary(_, values) => may_have_floats(values),
        DataType::RunEndEncoded(_, values) => may_have_floats(values.data_type()),
        DataType::Union(..) => true,
        other => other.is_floating(),
    }
}
