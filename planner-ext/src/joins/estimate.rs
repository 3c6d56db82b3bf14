//! How many rows a relation has, and how many distinct values its columns.

use datafusion::common::stats::Precision;
use datafusion::common::{Column, DFSchema};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, FetchType, Join, JoinType, LogicalPlan, SkipType, TableScan};
use datafusion::physical_expr::create_physical_expr;

use crate::provider::TierTable;

/// What is believed of a relation.
#[derive(Debug, Clone)]
pub(super) struct Estimate {
    /// Rows that it gives.
    pub(super) rows: f64,
    /// Rows without its filters.
    pub(super) base_rows: f64,
    /// Per column of its output the distinct values without its filters.
    pub(super) distinct: Vec<f64>,
}

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
            let distinct = projection.expr.iter().map(|e| of_expr(e, &input, projection.input.schema()));
            Estimate { distinct: distinct.collect(), ..input }
        }
        LogicalPlan::Aggregate(aggregate) => {
            let input = of(&aggregate.input)?;
            let groups: Vec<f64> =
                aggregate.group_expr.iter().map(|e| of_expr(e, &input, aggregate.input.schema())).collect();
            let rows = groups.iter().product::<f64>().min(input.rows);
            let mut distinct = groups;
            distinct.resize(columns, rows);
            Estimate { rows, base_rows: rows, distinct }
        }
        LogicalPlan::Distinct(distinct) => of(distinct.input())?,
        LogicalPlan::Sort(sort) => limited(of(&sort.input)?, sort.fetch.map(|n| n as f64)),
        LogicalPlan::Limit(limit) => {
            let skipped = matches!(limit.get_skip_type(), Ok(SkipType::Literal(_)));
            let fetch = match limit.get_fetch_type() {
                Ok(FetchType::Literal(fetch)) if skipped => fetch.map(|n| n as f64),
                _ => None,
            };
            limited(of(&limit.input)?, fetch)
        }
        LogicalPlan::Union(union) => {
            let inputs = union.inputs.iter().map(|input| of(input)).collect::<Option<Vec<_>>>()?;
            let rows = inputs.iter().map(|i| i.rows).sum();
            Estimate { rows, base_rows: rows, distinct: vec![rows; columns] }
        }
        LogicalPlan::Values(values) => {
            let rows = values.values.len() as f64;
            Estimate { rows, base_rows: rows, distinct: vec![rows; columns] }
        }
        LogicalPlan::EmptyRelation(_) => Estimate { rows: 1.0, base_rows: 1.0, distinct: vec![1.0; columns] },
        LogicalPlan::Join(join) => of_join(join)?,
        LogicalPlan::Repartition(repartition) => of(&repartition.input)?,
        _ => return None,
    };
    // No column has more values than there are rows.
    let base_rows = estimate.base_rows.max(1.0);
    let distinct = estimate.distinct.into_iter().map(|d| d.clamp(1.0, base_rows)).collect();
    Some(Estimate { rows: estimate.rows.clamp(1.0, base_rows), base_rows, distinct })
}

fn limited(input: Estimate, fetch: Option<f64>) -> Estimate {
    let Some(fetch) = fetch.filter(|fetch| *fetch < input.rows) else { return input };
    Estimate { rows: fetch, base_rows: fetch, ..input }
}

/// Distinct values of an expression over `input`: those of a column, else at most one per row.
fn of_expr(expr: &Expr, input: &Estimate, schema: &DFSchema) -> f64 {
    let of_column = |column: &Column| {
        let at = schema.maybe_index_of_column(column)?;
        input.distinct.get(at).copied()
    };
    match expr {
        Expr::Column(column) => of_column(column).unwrap_or(input.base_rows),
        Expr::Alias(alias) => of_expr(&alias.expr, input, schema),
        Expr::Literal(..) => 1.0,
        other => other.column_refs().into_iter().filter_map(of_column).product::<f64>().min(input.base_rows),
    }
}

fn of_scan(scan: &TableScan) -> Option<Estimate> {
    let columns = scan.projected_schema.fields().len();
    let position = |at: usize| scan.projection.as_ref().map_or(Some(at), |p| p.get(at).copied());
    let provider = source_as_provider(&scan.source).ok()?;
    let Some(table) = provider.downcast_ref::<TierTable>() else {
        let (Precision::Exact(rows) | Precision::Inexact(rows)) = provider.statistics()?.num_rows else { return None };
        let (base_rows, filtered) = (rows as f64, FILTER_SELECTIVITY.powi(scan.filters.len().min(3) as i32));
        return Some(Estimate { rows: base_rows * filtered, base_rows, distinct: vec![base_rows; columns] });
    };
    let schema = DFSchema::try_from(std::sync::Arc::clone(table.source().schema())).ok()?;
    let properties = ExecutionProps::new();
    let filters = unnormalize_cols(scan.filters.iter().cloned());
    let context = PhysicalPlanningContext::default();
    let filters = filters.iter().filter_map(|filter| create_physical_expr(filter, &schema, &properties, &context).ok());
    let rows = table.source().estimated_rows(filters.collect())?;
    let base_rows = table.version().live_rows() as f64;
    let distinct = (0..columns).map(|at| position(at).map_or(base_rows, |column| table.source().distinct(column)));
    let distinct = distinct.collect();
    Some(limited(Estimate { rows, base_rows, distinct }, scan.fetch.map(|n| n as f64)))
}

/// A join that is not reordered, or lies below something that is none.
fn of_join(join: &Join) -> Option<Estimate> {
    let (left, right) = (of(&join.left)?, of(&join.right)?);
    let distinct_of = |expr: &Expr, input: &Estimate, plan: &LogicalPlan| of_expr(expr, input, plan.schema());
    let keys: Vec<(f64, f64)> =
        join.on.iter().map(|(a, b)| (distinct_of(a, &left, &join.left), distinct_of(b, &right, &join.right))).collect();
    let inner = || keys.iter().fold(left.rows * right.rows, |rows, (a, b)| rows / a.max(*b).max(1.0));
    // The share of rows with a partner: as many values as the other side has left.
    let matched = |own: &dyn Fn(&(f64, f64)) -> f64, other: &Estimate| {
        let values = keys.iter().map(own).fold(1.0, f64::max);
        (other.rows / values).clamp(0.0, 1.0)
    };
    let both = || left.distinct.iter().chain(&right.distinct).copied().collect();
    let one = |side: &Estimate, share: f64| Estimate { rows: side.rows * share, ..side.clone() };
    Some(match join.join_type {
        JoinType::Inner => joined(inner(), both()),
        JoinType::Left => joined(inner().max(left.rows), both()),
        JoinType::Right => joined(inner().max(right.rows), both()),
        JoinType::Full => joined(inner().max(left.rows + right.rows), both()),
        JoinType::LeftSemi => one(&left, matched(&|k| k.0, &right)),
        JoinType::RightSemi => one(&right, matched(&|k| k.1, &left)),
        JoinType::LeftAnti => one(&left, (1.0 - matched(&|k| k.0, &right)).max(0.1)),
        JoinType::RightAnti => one(&right, (1.0 - matched(&|k| k.1, &left)).max(0.1)),
        JoinType::LeftMark | JoinType::RightMark => {
            let side = if join.join_type == JoinType::LeftMark { left } else { right };
            let mut distinct = side.distinct;
            distinct.push(2.0);
            Estimate { distinct, ..side }
        }
    })
}

fn joined(rows: f64, distinct: Vec<f64>) -> Estimate {
    Estimate { rows, base_rows: rows, distinct }
}
