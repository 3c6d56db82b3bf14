//! Estimates of logical plans: how many rows they give, and how many distinct values their columns have.

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

/// Share of rows that a filter keeps of which nothing is known.
const FILTER_SELECTIVITY: f64 = 0.2;

/// The estimate of a plan; `None` where the rows of a table are unknown.
pub(super) fn of(plan: &LogicalPlan) -> Option<Estimate> {
    let columns = plan.schema().fields().len();
    let estimate = match plan {
        LogicalPlan::TableScan(scan) => of_scan(scan)?,
        LogicalPlan::SubqueryAlias(alias) => of(&alias.input)?,
        LogicalPlan::Filter(filter) => {
            let input = of(&filter.input)?;
            Estimate { rows: input.rows * FILTER_SELECTIVITY, ..input }
        }
        LogicalPlan::Projection(projection) => {
            let input = of(&projection.input)?;
            let values = projection.expr.iter().map(|e| of_expr(e, &input, projection.input.schema()));
            Estimate { columns: values.collect(), ..input }
        }
        LogicalPlan::Aggregate(aggregate) => {
            let input = of(&aggregate.input)?;
            let groups = aggregate.group_expr.iter().map(|e| of_expr(e, &input, aggregate.input.schema()));
            input.grouped(groups.collect(), columns)
        }
        LogicalPlan::Distinct(distinct) => of(distinct.input())?,
        LogicalPlan::Sort(sort) => of(&sort.input)?.limited(sort.fetch.map(|n| n as f64)),
        LogicalPlan::Limit(limit) => {
            let skipped = matches!(limit.get_skip_type(), Ok(SkipType::Literal(_)));
            let fetch = match limit.get_fetch_type() {
                Ok(FetchType::Literal(fetch)) if skipped => fetch.map(|n| n as f64),
                _ => None,
            };
            of(&limit.input)?.limited(fetch)
        }
        LogicalPlan::Union(union) => {
            let inputs = union.inputs.iter().map(|input| of(input)).collect::<Option<Vec<_>>>()?;
            Estimate::union(&inputs)?
        }
        LogicalPlan::Values(values) => Estimate::unknown(values.values.len() as f64, columns),
        LogicalPlan::EmptyRelation(_) => Estimate::unknown(1.0, columns),
        LogicalPlan::Join(join) => of_join(join)?,
        LogicalPlan::Repartition(repartition) => of(&repartition.input)?,
        _ => return None,
    };
    Some(estimate.clamped())
}

/// Values of an expression over `input`: those of a column, else at most one per row.
fn of_expr(expr: &Expr, input: &Estimate, schema: &DFSchema) -> Values {
    let of_column = |column: &Column| input.columns.get(schema.maybe_index_of_column(column)?).copied();
    let unknown = Values::unknown(input.base_rows);
    match expr {
        Expr::Column(column) => of_column(column).unwrap_or(unknown),
        Expr::Alias(alias) => of_expr(&alias.expr, input, schema),
        Expr::Literal(..) => Values::unknown(1.0),
        other => {
            let distinct = other.column_refs().into_iter().filter_map(of_column).map(|values| values.distinct);
            Values::unknown(distinct.product::<f64>().min(input.base_rows))
        }
    }
}

fn of_scan(scan: &TableScan) -> Option<Estimate> {
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
    let of_column = |column| Values::of_column(table.source(), column);
    let values = (0..columns).map(|at| position(at).map_or(Values::unknown(base_rows), of_column));
    Some(Estimate { rows, base_rows, columns: values.collect() }.limited(scan.fetch.map(|n| n as f64)))
}

/// A join that is not reordered, or lies below something that is none.
fn of_join(plan: &Join) -> Option<Estimate> {
    let left = of(&plan.left)?;
    let right = of(&plan.right)?;
    let key = |expr: &Expr, input: &Estimate, plan: &LogicalPlan| Key {
        values: of_expr(expr, input, plan.schema()),
        column: expr.try_as_col().and_then(|column| plan.schema().maybe_index_of_column(column)),
    };
    let on = plan.on.iter().map(|(a, b)| (key(a, &left, &plan.left), key(b, &right, &plan.right)));
    Some(join(&left, &right, &on.collect::<Vec<_>>(), plan.join_type, plan.filter.is_some()))
}
