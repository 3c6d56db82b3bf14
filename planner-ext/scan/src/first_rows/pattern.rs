//! Finds filters that let pass the first rows of each group, and the place for the operator.
//!
//! Only windows that number rows stand between the filter and the sort: any other window of the same operator may read rows behind
//! the first ones (`lead`, frames to the end). What is passed on the way neither drops rows nor computes anything of several rows.

use std::sync::Arc;

use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowUDFExpr};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::exec::FirstRowsPerGroupExec;
use crate::safe_cast::is_safe_cast;

/// With more rows of a group, sorting all of them costs little more.
const MOST_ROWS: u64 = 10_000;
/// The operator has to pass on at most one row in so many, as far as that is known.
const LEAST_SAVED: f64 = 2.0;

/// What is kept: the first rows of each group in an order.
#[derive(Debug, Clone)]
pub(super) struct FirstRows {
    /// Rows of each group.
    pub(super) most: usize,
    /// What the rows of a group have in common; none for one group of all rows.
    pub(super) groups: Vec<Arc<dyn PhysicalExpr>>,
    /// Which rows are the first.
    pub(super) order: Vec<PhysicalSortExpr>,
}

/// A filter with the operator below the sort of its windows; `None` for other operators, and where it would gain nothing.
pub(super) fn with_first_rows(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
    for (column, most) in split_conjunction(filter.predicate()).into_iter().filter_map(limit) {
        if !(1..=MOST_ROWS).contains(&most) {
            continue;
        }
        if let Some(input) = above_window(filter.input(), column, most as usize)? {
            return Ok(Some(replace_children_if_necessary(Arc::clone(node), vec![input])?));
        }
    }
    Ok(None)
}

/// The column that a condition compares, and its greatest value that passes.
pub(super) fn limit(condition: &Arc<dyn PhysicalExpr>) -> Option<(usize, u64)> {
    let comparison = condition.downcast_ref::<BinaryExpr>()?;
    let (column, operator, bound) = match number_column(comparison.left()) {
        Some(column) => (column, *comparison.op(), comparison.right()),
        None => (number_column(comparison.right())?, comparison.op().swap()?, comparison.left()),
    };
    let bound = whole(bound.downcast_ref::<Literal>()?.value())?;
    let most = match operator {
        Operator::LtEq | Operator::Eq => bound,
        Operator::Lt => bound.checked_sub(1)?,
        _ => return None,
    };
    Some((column, most))
}

/// The position of the column that an expression passes on, if it keeps the values of numbers of rows.
fn number_column(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    let mut expr = expr;
    let keeps_numbers = |to: &DataType| to == &DataType::Int64 || is_safe_cast(&DataType::UInt64, to);
    while let Some(cast) = expr.downcast_ref::<CastExpr>().filter(|cast| keeps_numbers(cast.cast_type())) {
        expr = cast.expr();
    }
    Some(expr.downcast_ref::<Column>()?.index())
}

/// The value of a literal that is a whole number.
fn whole(value: &ScalarValue) -> Option<u64> {
    let data_type = value.data_type();
    if !data_type.is_integer() && !matches!(data_type, DataType::Decimal128(..)) {
        return None;
    }
    let number = value.cast_to(&DataType::UInt64).ok()?;
    match &number {
        ScalarValue::UInt64(Some(whole)) if number.cast_to(&data_type).ok()? == *value => Some(*whole),
        _ => None,
    }
}

/// A plan with the operator far below, if `column` of its output has the numbers of a window's rows.
fn above_window(plan: &Arc<dyn ExecutionPlan>, column: usize, most: usize) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let window = plan.downcast_ref::<BoundedWindowAggExec>().map(|node| (node.window_expr(), node.input()));
    let window = window.or_else(|| plan.downcast_ref::<WindowAggExec>().map(|node| (node.window_expr(), node.input())));
    if let Some((windows, input)) = window {
        let Some(first) = first_rows(windows, input, column, most)? else { return Ok(None) };
        return over(plan, above_sort(input, &first)?);
    }
    let column = match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => projection.expr().get(column).and_then(|output| number_column(&output.expr)),
        None if passes_all(plan) => return over(plan, input_of(plan, |input| above_window(input, column, most))?),
        None => None,
    };
    let Some(column) = column else { return Ok(None) };
    over(plan, input_of(plan, |input| above_window(input, column, most))?)
}

/// What the windows of an operator over `input` number, if all of them number the same rows in the same order, and `column` of its output
/// has these numbers.
fn first_rows(
    windows: &[Arc<dyn WindowExpr>],
    input: &Arc<dyn ExecutionPlan>,
    column: usize,
    most: usize,
) -> Result<Option<FirstRows>> {
    let schema = input.schema();
    let number = column.checked_sub(schema.fields().len());
    let Some(window) = number.and_then(|number| windows.get(number)) else { return Ok(None) };
    let numbers_alike = |other: &Arc<dyn WindowExpr>| {
        is_row_number(other) && other.partition_by() == window.partition_by() && other.order_by() == window.order_by()
    };
    let groups = window.partition_by().to_vec();
    let order = window.order_by().to_vec();
    let mut keys = groups.iter().chain(order.iter().map(|sort| &sort.expr));
    if !windows.iter().all(numbers_alike) || schema.fields().is_empty() || keys.any(is_volatile) {
        return Ok(None);
    }
    for group in &groups {
        if !is_groupable(&group.data_type(&schema)?) {
            return Ok(None);
        }
    }
    let fields = order.iter().map(|sort| Ok(SortField::new_with_options(sort.expr.data_type(&schema)?, sort.options)));
    let fields = fields.collect::<Result<Vec<_>>>()?;
    let is_comparable = RowConverter::supports_fields(&fields);
    Ok(is_comparable.then_some(FirstRows { most, groups, order }))
}

/// Whether rows of a window's partition have equal bits. Floats do not: there are two zeros, and groups must not be larger than a partition.
fn is_groupable(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean | DataType::Decimal128(..) => true,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..) => {
            true
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
        other => other.is_integer(),
    }
}

fn is_row_number(window: &Arc<dyn WindowExpr>) -> bool {
    let standard = window.as_any().downcast_ref::<StandardWindowExpr>();
    let function = standard.and_then(|window| window.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>());
    function.is_some_and(|function| function.fun().name() == "row_number")
}

/// The input of a window with the operator below its sort; `None` where nothing is sorted.
fn above_sort(plan: &Arc<dyn ExecutionPlan>, first: &FirstRows) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_none()) {
        return over(plan, input_of(plan, |input| below_sort(input, first))?);
    }
    let merges_all = plan.is::<SortPreservingMergeExec>() && plan.fetch().is_none();
    if !merges_all && !passes_all(plan) {
        return Ok(None);
    }
    over(plan, input_of(plan, |input| above_sort(input, first))?)
}

/// The input of a sort with the operator, below exchanges: they pass on fewer rows then.
fn below_sort(plan: &Arc<dyn ExecutionPlan>, first: &FirstRows) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let partitions = plan.output_partitioning().partition_count();
    if passes_all(plan)
        && let [input] = plan.children().as_slice()
        && input.output_partitioning().partition_count() >= partitions
    {
        return over(plan, below_sort(input, first)?);
    }
    if plan.is::<FirstRowsPerGroupExec>() {
        return Ok(None);
    }
    let expected = Expected::new(plan, first)?;
    if !expected.saves(first, partitions) {
        return Ok(None);
    }
    let operator: Arc<dyn ExecutionPlan> =
        Arc::new(FirstRowsPerGroupExec::new(Arc::clone(plan), first.clone(), expected.groups));
    Ok(Some(operator))
}

/// What statistics know.
struct Expected {
    rows: Option<usize>,
    groups: Option<usize>,
}

impl Expected {
    fn new(plan: &Arc<dyn ExecutionPlan>, first: &FirstRows) -> Result<Self> {
        let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())?;
        let distinct = |group: &Arc<dyn PhysicalExpr>| {
            let column = group.downcast_ref::<Column>()?.index();
            // Null is a value, too.
            Some(statistics.column_statistics.get(column)?.distinct_count.get_value()?.saturating_add(1))
        };
        let groups = first.groups.iter().map(distinct).try_fold(1_usize, |all, one| Some(all.saturating_mul(one?)));
        let rows = statistics.num_rows.get_value().copied();
        Ok(Self { rows, groups: groups.zip(rows).map(|(groups, rows)| groups.min(rows)) })
    }

    /// Whether groups have so many rows that most of them are dropped, or their number is not known.
    fn saves(&self, first: &FirstRows, partitions: usize) -> bool {
        let Some((rows, groups)) = self.rows.zip(self.groups) else { return true };
        let kept = groups as f64 * first.most as f64 * partitions as f64;
        kept * LEAST_SAVED <= rows as f64
    }
}

/// Whether an operator passes on all rows of its input, with their columns.
fn passes_all(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_exchange =
        plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>() || plan.is::<CooperativeExec>();
    is_exchange && plan.fetch().is_none()
}

/// What becomes of the only input of an operator.
fn input_of(
    plan: &Arc<dyn ExecutionPlan>,
    change: impl FnOnce(&Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    match plan.children().as_slice() {
        [input] => change(input),
        _ => Ok(None),
    }
}

/// The operator over its changed input.
fn over(
    plan: &Arc<dyn ExecutionPlan>,
    input: Option<Arc<dyn ExecutionPlan>>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    input.map(|input| replace_children_if_necessary(Arc::clone(plan), vec![input])).transpose()
}
