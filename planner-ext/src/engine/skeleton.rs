//! Optimized plans of queries with parameters, made before the values are known.
//!
//! The optimizer takes most of the time of a point look-up, and makes the same plan for each key. A query of one table whose
//! parameters are compared with columns, and with nothing else, is therefore optimized once with the placeholders in it; each
//! execution puts its values in their place ([`Skeleton::with_values`]).
//!
//! That gives the rows that optimizing the bound plan gives: the rules keep the rows whatever a placeholder's value is, as long
//! as it has the placeholder's type. What has to see values sees them, as it happens when operators are planned: pruning of chunks, look-ups
//! of keys, hot views, estimates. A value that is not one of the column's type (NULL, 2.5 compared with an integer) decides
//! more than which rows pass; then, and where a condition is not a comparison of a column after optimizing, the caller
//! binds the query as written ([`parameters`](super::parameters)).

use std::cell::Cell;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ExprSchema, ScalarValue};
use datafusion::error::Result as PlanResult;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{Between, BinaryExpr, Placeholder};
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use terrace_scan::comparison::equal_value;

use super::plan_cache::{MOST_LITERAL_BYTES, literal_bytes};

/// The optimized plan of a query, with the placeholders of its parameters.
#[derive(Debug)]
pub(super) struct Skeleton {
    /// The plan that was optimized, which has the columns of the result.
    analysed: LogicalPlan,
    optimized: LogicalPlan,
}

impl Skeleton {
    /// Optimizes a query that is planned and not analysed; `None` where its values decide more than which rows pass.
    pub(super) fn new(state: &SessionState, plan: &LogicalPlan) -> PlanResult<Option<Self>> {
        if !only_compares_parameters(plan)? {
            return Ok(None);
        }
        let analysed = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {})?;
        let optimized = state.optimize(&analysed)?;
        let is_kept = filters_by_parameters(&optimized)? && literal_bytes(&optimized)? <= MOST_LITERAL_BYTES;
        Ok(is_kept.then_some(Self { analysed, optimized }))
    }

    /// The plan before the rules of the optimizer, with its placeholders.
    pub(super) fn analysed(&self) -> &LogicalPlan {
        &self.analysed
    }

    /// The optimized plan with the values of a row; `None` where one of them is not compared in the type of its column.
    pub(super) fn with_values(&self, bound: &RecordBatch, row: usize) -> PlanResult<Option<LogicalPlan>> {
        let fits = Cell::new(true);
        let to_literal = |part: Expr| -> PlanResult<Transformed<Expr>> {
            let value = match &part {
                Expr::Placeholder(placeholder) => bound_value(placeholder, bound, row)?,
                _ => return Ok(Transformed::no(part)),
            };
            Ok(match value {
                Some(value) => Transformed::yes(Expr::Literal(value, None)),
                None => {
                    fits.set(false);
                    Transformed::no(part)
                }
            })
        };
        let plan = self.optimized.clone().transform_up(|node| {
            Ok(match node {
                LogicalPlan::TableScan(mut scan) => {
                    for filter in &mut scan.filters {
                        *filter = std::mem::take(filter).transform_up(&to_literal).data()?;
                    }
                    Transformed::yes(LogicalPlan::TableScan(scan))
                }
                LogicalPlan::Filter(mut filter) => {
                    let predicate = std::mem::take(&mut filter.predicate);
                    filter.predicate = predicate.transform_up(&to_literal).data()?;
                    Transformed::yes(LogicalPlan::Filter(filter))
                }
                other => Transformed::no(other),
            })
        });
        let plan = plan.data()?;
        Ok(fits.get().then_some(plan))
    }
}

/// Whether a plan reads one table, once, and has parameters, all of which are compared with columns of their types in
/// conditions of filters.
fn only_compares_parameters(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut is_simple = true;
    let mut scans = 0;
    let mut parameters = 0;
    plan.apply_with_subqueries(|node| {
        scans += usize::from(matches!(node, LogicalPlan::TableScan(_)));
        is_simple &= is_simple_operator(node)?;
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|condition| {
            let found = placeholders(condition)?;
            let compared = if found > 0 { compared_placeholders(condition, &schema)? } else { 0 };
            is_simple &= found == compared && (found == 0 || matches!(node, LogicalPlan::Filter(_)));
            parameters += found;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if is_simple { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_simple && scans == 1 && parameters > 0)
}

/// Whether rules of the optimizer do the same to an operator whatever the values of the parameters below it are. Those that order joins
/// estimate rows by them; those that split aggregates of distinct values ask for literals.
fn is_simple_operator(node: &LogicalPlan) -> PlanResult<bool> {
    let is_distinct = |part: &Expr| Ok(matches!(part, Expr::AggregateFunction(call) if call.params.distinct));
    Ok(match node {
        LogicalPlan::TableScan(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_) => true,
        LogicalPlan::Aggregate(aggregate) => {
            let mut has_distinct = false;
            for expr in &aggregate.aggr_expr {
                has_distinct |= expr.exists(is_distinct)?;
            }
            !has_distinct
        }
        _ => false,
    })
}

/// Whether all placeholders of an optimized plan are compared with columns, each in a conjunct of its own, in filters and scans: with
/// literals in their place the rules would have made the same conjuncts.
fn filters_by_parameters(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut is_so = true;
    plan.apply_with_subqueries(|node| {
        let is_filter = matches!(node, LogicalPlan::TableScan(_) | LogicalPlan::Filter(_));
        node.apply_expressions(|expr| {
            for conjunct in split_conjunction(expr) {
                is_so &= placeholders(conjunct)? == 0 || is_filter && is_comparison_of_column(conjunct);
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if is_so { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_so)
}

fn is_comparison_of_column(expr: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else { return false };
    is_comparison(*op)
        && matches!(
            (left.as_ref(), right.as_ref()),
            (Expr::Column(_), Expr::Placeholder(_)) | (Expr::Placeholder(_), Expr::Column(_))
        )
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

fn placeholders(expr: &Expr) -> PlanResult<usize> {
    let mut count = 0;
    expr.apply(|part| {
        count += usize::from(matches!(part, Expr::Placeholder(_)));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(count)
}

/// The number of placeholders that are compared with a column of their type.
fn compared_placeholders(expr: &Expr, schema: &DFSchema) -> PlanResult<usize> {
    let mut count = 0;
    let is_compared = |column: &Expr, value: &Expr| usize::from(has_type_of_column(column, value, schema));
    expr.apply(|part| {
        count += match part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => {
                is_compared(left, right) + is_compared(right, left)
            }
            Expr::Between(Between { expr, low, high, .. }) => is_compared(expr, low) + is_compared(expr, high),
            _ => 0,
        };
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(count)
}

/// Whether these are a column and a placeholder of its type, and this type has values that are compared step by step or as texts.
fn has_type_of_column(column: &Expr, value: &Expr, schema: &DFSchema) -> bool {
    let (Expr::Column(column), Expr::Placeholder(Placeholder { field: Some(field), .. })) = (column, value) else {
        return false;
    };
    let kind = field.data_type();
    // Floats are left out: equal ones may differ, and rules look for zeros.
    let is_kept = is_text(kind)
        || kind.is_integer()
        || matches!(kind, DataType::Date32 | DataType::Timestamp(..) | DataType::Decimal128(..));
    is_kept && schema.data_type(column).is_ok_and(|found| found == kind)
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// The value of a parameter in its placeholder's type; `None` for NULL, and where that type has no equal value or does not
/// decide how the two are compared.
fn bound_value(placeholder: &Placeholder, bound: &RecordBatch, row: usize) -> PlanResult<Option<ScalarValue>> {
    let number = placeholder.id.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
    let column = number.and_then(|number| bound.columns().get(number.checked_sub(1)?));
    let (Some(column), Some(field)) = (column, &placeholder.field) else { return Ok(None) };
    let kind = field.data_type();
    let value = match ScalarValue::try_from_array(column, row)? {
        ScalarValue::Dictionary(_, value) => *value,
        value => value,
    };
    if value.is_null() {
        return Ok(None);
    }
    let own = value.data_type();
    if own == *kind {
        return Ok(Some(value));
    }
    let is_alike = own.is_signed_integer() && kind.is_signed_integer() || is_text(&own) && is_text(kind);
    Ok(if is_alike { equal_value(&value, kind) } else { None })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int32Array, Int64Array, StringArray};
    use datafusion::prelude::SessionContext;

    use super::*;

    /// A plan over `t (k BIGINT, i INT, f DOUBLE, s VARCHAR)` of DataFusion's own.
    async fn planned(sql: &str) -> (SessionContext, LogicalPlan) {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t (k BIGINT, i INT, f DOUBLE, s VARCHAR)").await.unwrap();
        let plan = context.state().create_logical_plan(sql).await.unwrap();
        (context, plan)
    }

    async fn skeleton(sql: &str) -> Option<Skeleton> {
        let (context, plan) = planned(sql).await;
        Skeleton::new(&context.state(), &plan).unwrap()
    }

    fn row(values: Vec<ArrayRef>) -> RecordBatch {
        let names: Vec<String> = (0..values.len()).map(|index| index.to_string()).collect();
        RecordBatch::try_from_iter(names.iter().map(String::as_str).zip(values)).unwrap()
    }

    #[tokio::test]
    async fn parameters_that_are_compared_with_columns_wait_for_their_values() {
        for sql in [
            "SELECT k, s FROM t WHERE k = $1",
            "SELECT s FROM t WHERE $1 <= k AND s < $2",
            "SELECT count(*), max(i) FROM t WHERE k BETWEEN $1 AND $2 AND i > 3",
            "SELECT x FROM (SELECT k AS x, s FROM t) AS a WHERE x <> $1 ORDER BY s LIMIT 3",
            "SELECT s FROM t WHERE NOT (k = $1)",
        ] {
            assert!(skeleton(sql).await.is_some(), "{sql}");
        }
    }

    #[tokio::test]
    async fn others_are_optimized_with_their_values() {
        for sql in [
            "SELECT k FROM t",
            "SELECT k + $1 FROM t",
            "SELECT k FROM t WHERE k + 1 = $1",
            "SELECT k FROM t WHERE k = $1 + 1",
            "SELECT k FROM t WHERE f = $1",
            "SELECT k FROM t WHERE k = $1 OR s = 'a'",
            "SELECT k FROM t WHERE k IN ($1, $2)",
            "SELECT x FROM (SELECT CAST(i AS BIGINT) AS x FROM t) AS a WHERE x = $1",
            "SELECT k FROM t WHERE s LIKE $1",
            "SELECT k FROM t WHERE k = $1 LIMIT $2",
            "SELECT count(DISTINCT k), count(DISTINCT s) FROM t WHERE i = $1",
            "SELECT a.k FROM t AS a JOIN t AS b ON a.k = b.k WHERE a.i = $1",
            "SELECT k FROM t WHERE i = $1 AND k IN (SELECT k FROM t WHERE i = 3)",
        ] {
            assert!(skeleton(sql).await.is_none(), "{sql}");
        }
    }

    #[tokio::test]
    async fn values_of_the_types_of_columns_take_the_places() {
        let found = skeleton("SELECT k FROM t WHERE i = $1 AND k > $1 AND s <= $2").await.unwrap();
        let text = || Arc::new(StringArray::from(vec!["a"])) as ArrayRef;
        let long = |value| Arc::new(Int64Array::from(vec![value])) as ArrayRef;
        let with = |values: Vec<ArrayRef>| found.with_values(&row(values), 0).unwrap();
        let seven = with(vec![long(7), text()]).unwrap();
        assert_eq!(seven.get_parameter_names().unwrap().len(), 0);
        let shown = seven.display_indent().to_string();
        assert!(shown.contains("Int32(7)") && shown.contains("Int64(7)") && shown.contains("(\"a\")"), "{shown}");
        let eight = with(vec![Arc::new(Int32Array::from(vec![8])), text()]).unwrap();
        assert!(eight.display_indent().to_string().contains("Int64(8)"));
        // The skeleton has its placeholders still.
        assert_eq!(found.optimized.get_parameter_names().unwrap().len(), 2);

        assert!(with(vec![long(1 << 40), text()]).is_none(), "no INT");
        assert!(with(vec![Arc::new(Int64Array::from(vec![None::<i64>])), text()]).is_none());
        assert!(with(vec![Arc::new(Float64Array::from(vec![7.0])), text()]).is_none());
        assert!(with(vec![text(), text()]).is_none());
        assert!(with(vec![long(7), long(7)]).is_none());
        assert!(with(vec![long(7)]).is_none());
    }
}
