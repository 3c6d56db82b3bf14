//! Estimates of logical plans: their number of rows, and the distinct values of their columns.

use datafusion::common::stats::Precision;
use datafusion::common::{Column, DFSchema};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, FetchType, Join, LogicalPlan, SkipType, TableScan};
use datafusion::physical_expr::create_physical_expr;

use super::estimate::{Estimate, Key, Values, join};
use crate::provider::TierTable;

/// Selectivity of a filter about which nothing is known.
const FILTER_SELECTIVITY: f64 = 0.2;

/// The estimate of a plan; `None` if the number of rows of a table is unknown.
pub(super) fn estimate(plan: &LogicalPlan) -> Option<Estimate> {
    let columns = plan.schema().fields().len();
    let estimate = match plan {
        LogicalPlan::TableScan(scan) => estimate_scan(scan)?,
        LogicalPlan::SubqueryAlias(alias) => estimate(&alias.input)?,
        LogicalPlan::Filter(filter) => {
            let input = estimate(&filter.input)?;
            Estimate { rows: input.rows * FILTER_SELECTIVITY, ..input }
        }
        LogicalPlan::Projection(projection) => {
            let input = estimate(&projection.input)?;
            let values = projection.expr.iter().map(|e| expr_values(e, &input, projection.input.schema()));
            Estimate { columns: values.collect(), ..input }
        }
        LogicalPlan::Aggregate(aggregate) => {
            let input = estimate(&aggregate.input)?;
            let groups = aggregate.group_expr.iter().map(|e| expr_values(e, &input, aggregate.input.schema()));
            input.grouped(groups.collect(), columns)
        }
        LogicalPlan::Distinct(distinct) => estimate(distinct.input())?,
        LogicalPlan::Sort(sort) => estimate(&sort.input)?.limited(sort.fetch.map(|n| n as f64)),
        LogicalPlan::Limit(limit) => {
            let skipped = matches!(limit.get_skip_type(), Ok(SkipType::Literal(_)));
            let fetch = match limit.get_fetch_type() {
                Ok(FetchType::Literal(fetch)) if skipped => fetch.map(|n| n as f64),
                _ => None,
            };
            estimate(&limit.input)?.limited(fetch)
        }
        LogicalPlan::Union(union) => {
            let inputs = union.inputs.iter().map(|input| estimate(input)).collect::<Option<Vec<_>>>()?;
            Estimate::union(&inputs)?
        }
        LogicalPlan::Values(values) => Estimate::unknown(values.values.len() as f64, columns),
        LogicalPlan::EmptyRelation(_) => Estimate::unknown(1.0, columns),
        LogicalPlan::Join(join) => estimate_join(join)?,
        LogicalPlan::Repartition(repartition) => estimate(&repartition.input)?,
        _ => return None,
    };
    Some(estimate.clamped())
}

/// Values of an expression over `input`: those of the column, or else at most one per row.
fn expr_values(expr: &Expr, input: &Estimate, schema: &DFSchema) -> Values {
    let column_values = |column: &Column| input.columns.get(schema.maybe_index_of_column(column)?).copied();
    let unknown = Values::unknown(input.base_rows);
    match expr {
        Expr::Column(column) => column_values(column).unwrap_or(unknown),
        Expr::Alias(alias) => expr_values(&alias.expr, input, schema),
        Expr::Literal(..) => Values::unknown(1.0),
        other => {
            let distinct = other.column_refs().into_iter().filter_map(column_values).map(|values| values.distinct);
            Values::unknown(distinct.product::<f64>().min(input.base_rows))
        }
    }
}

fn estimate_scan(scan: &TableScan) -> Option<Estimate> {
    let columns = scan.projected_schema.fields().len();
    let position = |at: usize| scan.projection.as_ref().map_or(Some(at), |p| p.get(at).copied());
    let provider = source_as_provider(&scan.source).ok()?;
    let Some(table) = provider.downcast_ref::<TierTable>() else {
        let (Precision::Exact(rows) | Precision::Inexact(rows)) = provider.statistics()?.num_rows else { return None };
        let base_rows = rows as f64;
        let filtered = FILTER_SELECTIVITY.powi(scan.filters.len().min(3) as i32);
        return Some(Estimate {
            rows: base_rows * filtered,
            base_rows,
            columns: vec![Values::unknown(base_rows); columns],
        });
    };
    let schema = DFSchema::try_from(std::sync::Arc::clone(table.source().schema())).ok()?;
    let properties = ExecutionProps::new();
    let filters = unnormalize_cols(scan.filters.iter().cloned());
    let context = PhysicalPlanningContext::default();
    let filters = filters.iter().filter_map(|filter| create_physical_expr(filter, &schema, &properties, &context).ok());
    let rows = table.source().estimated_rows(filters.collect())?;
    let base_rows = table.version().live_rows() as f64;
    let column_values = |column| Values::from_column(table.source(), column);
    let values = (0..columns).map(|at| position(at).map_or(Values::unknown(base_rows), column_values));
    Some(Estimate { rows, base_rows, columns: values.collect() }.limited(scan.fetch.map(|n| n as f64)))
}

/// The estimate of a join that is not reordered, or lies below a node that is not a join.
fn estimate_join(plan: &Join) -> Option<Estimate> {
    let left = estimate(&plan.left)?;
    let right = estimate(&plan.right)?;
    let key = |expr: &Expr, input: &Estimate, plan: &LogicalPlan| Key {
        values: expr_values(expr, input, plan.schema()),
        column: expr.try_as_col().and_then(|column| plan.schema().maybe_index_of_column(column)),
    };
    let on = plan.on.iter().map(|(a, b)| (key(a, &left, &plan.left), key(b, &right, &plan.right)));
    Some(join(&left, &right, &on.collect::<Vec<_>>(), plan.join_type, plan.filter.is_some()))
}
