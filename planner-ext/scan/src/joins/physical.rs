//! Estimates of physical plans, for the choice of the build side of joins.
//!
//! DataFusion asks a registry for the sizes of both sides. The registry returns the rows that the order of joins is
//! based on, and the bytes of a hash table of them: rows times the width of a row and of an entry. Estimates are passed
//! upwards beside DataFusion's statistics, which still give the selectivity of filters.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::stats::Precision;
use datafusion::common::{JoinType, Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::operator_statistics::{
    ExtendedStatistics, StatisticsProvider, StatisticsRegistry, StatisticsResult,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};

use super::estimate::{Estimate, Key, Values, join};
use crate::scan::TierScanExec;
use crate::spilling_join::SpillingHashJoinExec;

/// The registry that DataFusion asks for sizes.
pub(crate) fn registry() -> StatisticsRegistry {
    StatisticsRegistry::with_providers(vec![Arc::new(Estimates)])
}

#[derive(Debug)]
struct Estimates;

impl StatisticsProvider for Estimates {
    fn compute_statistics(&self, plan: &dyn ExecutionPlan, inputs: &[ExtendedStatistics]) -> Result<StatisticsResult> {
        let known: Vec<_> = inputs.iter().map(|input| Arc::clone(input.base_arc())).collect();
        let statistics = plan.statistics_from_inputs(&known, &StatisticsArgs::new())?;
        let mut statistics = Arc::unwrap_or_clone(statistics);
        let inputs: Option<Vec<&Estimate>> = inputs.iter().map(|input| input.get_extension::<Estimate>()).collect();
        let estimate = inputs.and_then(|inputs| estimate(plan, &statistics, &inputs)).map(Estimate::clamped);
        if let Some(estimate) = &estimate
            && statistics.num_rows.is_exact() != Some(true)
        {
            statistics.num_rows = Precision::Inexact(estimate.rows.round() as usize);
        }
        statistics.total_byte_size = match statistics.num_rows.get_value() {
            Some(rows) => Precision::Inexact(rows.saturating_mul(ENTRY_BYTES + width(&plan.schema()))),
            None => Precision::Absent,
        };
        let mut statistics = ExtendedStatistics::new(statistics);
        if let Some(estimate) = estimate {
            statistics.set_extension(estimate);
        }
        Ok(StatisticsResult::Computed(statistics))
    }
}

/// Estimated size of the output of an operator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Rows; `None`: not known.
    pub rows: Option<u64>,
    /// Bytes of a hash table of these rows; 0: not known.
    pub bytes: u64,
}

impl Size {
    fn new(statistics: &Statistics) -> Self {
        let number = |precision: &Precision<usize>| precision.get_value().map(|value| *value as u64);
        Self { rows: number(&statistics.num_rows), bytes: number(&statistics.total_byte_size).unwrap_or(0) }
    }
}

/// Calls `visit` with each operator of a plan, the sizes of its inputs and its own; inputs come first. Returns
/// the size of the result.
///
/// # Errors
/// When the statistics of an operator cannot be computed.
pub fn visit_sizes(
    plan: &Arc<dyn ExecutionPlan>,
    visit: &mut impl FnMut(&Arc<dyn ExecutionPlan>, &[Size], Size),
) -> Result<Size> {
    fn estimated(
        plan: &Arc<dyn ExecutionPlan>,
        visit: &mut impl FnMut(&Arc<dyn ExecutionPlan>, &[Size], Size),
    ) -> Result<ExtendedStatistics> {
        let inputs = plan.children().into_iter().map(|input| estimated(input, visit)).collect::<Result<Vec<_>>>()?;
        let own = match Estimates.compute_statistics(plan.as_ref(), &inputs)? {
            StatisticsResult::Computed(statistics) => statistics,
            StatisticsResult::Delegate => ExtendedStatistics::new(Statistics::new_unknown(&plan.schema())),
        };
        let sizes: Vec<Size> = inputs.iter().map(|input| Size::new(input.base())).collect();
        visit(plan, &sizes, Size::new(own.base()));
        Ok(own)
    }
    Ok(Size::new(estimated(plan, visit)?.base()))
}

/// Estimated bytes of a row in a hash table beside its values: its hash, its place, the next row with that hash.
pub const ENTRY_BYTES: usize = 24;

/// Estimated bytes of a row's values.
fn width(schema: &Schema) -> usize {
    /// A view and a short value behind it.
    const TEXT: usize = 32;
    let bytes = |data_type: &DataType| match data_type {
        DataType::Boolean | DataType::Null => 1,
        other => other.primitive_width().unwrap_or(TEXT),
    };
    schema.fields().iter().map(|field| bytes(field.data_type())).sum::<usize>().max(1)
}

/// The estimate of an operator from those of its inputs and from DataFusion's statistics of the operator.
fn estimate(plan: &dyn ExecutionPlan, statistics: &Statistics, inputs: &[&Estimate]) -> Option<Estimate> {
    let columns = plan.schema().fields().len();
    let rows = statistics.num_rows.get_value().map(|rows| *rows as f64);
    if let Some(scan) = plan.downcast_ref::<TierScanExec>() {
        let source = &scan.config().source;
        let rows = rows?;
        let columns = scan.config().projection.iter().map(|column| Values::from_column(source, *column)).collect();
        let base_rows = (source.version.live_rows() as f64).max(rows);
        return Some(Estimate { rows, base_rows, columns });
    }
    if plan.is::<UnionExec>() || plan.is::<InterleaveExec>() {
        return Estimate::union(&inputs.iter().map(|input| (*input).clone()).collect::<Vec<_>>());
    }
    match inputs {
        [] => Some(Estimate::unknown(rows?, columns)),
        [input] => estimate_unary(plan, rows, input),
        [left, right] => estimate_join(plan, left, right),
        _ => None,
    }
}

fn estimate_unary(plan: &dyn ExecutionPlan, rows: Option<f64>, input: &Estimate) -> Option<Estimate> {
    let columns = plan.schema().fields().len();
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let columns = projection.expr().iter().map(|column| key(&column.expr, input).values).collect();
        return Some(Estimate { columns, ..input.clone() });
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let group_by = aggregate.group_expr();
        let keys: Vec<Values> = group_by.expr().iter().map(|(expr, _)| key(expr, input).values).collect();
        if !group_by.has_grouping_set() {
            return Some(input.grouped(keys, columns));
        }
        // DataFusion expects no more groups than rows; but each grouping set has its own.
        let groups_of = |is_left_out: &Vec<bool>| {
            let keys = keys.iter().zip(is_left_out).filter(|(_, is_left_out)| !**is_left_out);
            keys.map(|(key, _)| key.distinct).product::<f64>().min(input.rows)
        };
        let rows = group_by.groups().iter().map(groups_of).sum();
        let mut values = keys;
        values.resize(columns, Values::unknown(rows));
        return Some(Estimate { rows, base_rows: rows, columns: values });
    }
    let filter = plan.downcast_ref::<FilterExec>();
    let mut values = projected(&input.columns, filter.and_then(|filter| filter.projection().as_deref()));
    let from = plan.children().first()?.schema();
    let to = plan.schema();
    let keeps_columns = filter.is_some() || from.fields().iter().zip(to.fields()).all(|(a, b)| a.name() == b.name());
    if columns < values.len() || !keeps_columns {
        return Some(Estimate::unknown(rows?, columns));
    }
    // Columns that the operator adds, such as a window function.
    values.resize(columns, Values::unknown(input.base_rows));
    let rows = rows.unwrap_or(input.rows);
    Some(Estimate { rows, base_rows: input.base_rows.max(rows), columns: values })
}

fn estimate_join(plan: &dyn ExecutionPlan, left: &Estimate, right: &Estimate) -> Option<Estimate> {
    let hash_join = plan.downcast_ref::<HashJoinExec>();
    let hash_join = hash_join.or_else(|| plan.downcast_ref::<SpillingHashJoinExec>().map(SpillingHashJoinExec::join));
    let (on, other, join_type, projection) = if let Some(join) = hash_join {
        (join.on(), join.filter().is_some(), *join.join_type(), join.projection.as_deref())
    } else if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        (join.on(), join.filter().is_some(), join.join_type(), None)
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        (&[][..], join.filter().is_some(), *join.join_type(), join.projection().as_deref())
    } else if plan.is::<CrossJoinExec>() {
        (&[][..], false, JoinType::Inner, None)
    } else {
        return None;
    };
    let on: Vec<(Key, Key)> = on.iter().map(|(a, b)| (key(a, left), key(b, right))).collect();
    let joined = join(left, right, &on, join_type, other);
    Some(Estimate { columns: projected(&joined.columns, projection), ..joined })
}

fn projected(columns: &[Values], projection: Option<&[usize]>) -> Vec<Values> {
    match projection {
        Some(projection) => projection.iter().filter_map(|at| columns.get(*at).copied()).collect(),
        None => columns.to_vec(),
    }
}

/// An expression over `input` as a key: the values of the column, or else at most one per row.
fn key(expr: &Arc<dyn PhysicalExpr>, input: &Estimate) -> Key {
    let unknown = Values::unknown(input.base_rows);
    let column_values = |at: usize| input.columns.get(at).copied().unwrap_or(unknown);
    if let Some(column) = expr.downcast_ref::<Column>() {
        return Key { values: column_values(column.index()), column: Some(column.index()) };
    }
    let distinct = match expr.is::<Literal>() {
        true => 1.0,
        false => collect_columns(expr).iter().map(|column| column_values(column.index()).distinct).product::<f64>(),
    };
    Key { values: Values::unknown(distinct.min(input.base_rows)), column: None }
}
