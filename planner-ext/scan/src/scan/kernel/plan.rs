//! The first half of an aggregate over a scan, as kernels compute it: filter, keys of groups, measures.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use terrace_tier_store::tier::hbm::device::scan::{Aggregate, ColumnRef, Measure};

use super::condition::{Condition, KernelColumns};
use super::masked::{Argument, Counted, Measures};
use super::measure::product;
use crate::scan::exec::TierScanExec;

/// Most measures that kernels compute at once.
const MOST_MEASURES: usize = 24;

/// How a column of the state of an aggregate follows from the measures of a group, which are given by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// A count.
    Count(Counted),
    /// The count of an average; null when it is 0, as the second half divides by every count that is known.
    Divisor(Counted),
    /// A sum or an extreme; null when `counted` is 0: no row had a value.
    Value {
        /// The sum, or the extreme.
        value: usize,
        /// The rows that had one.
        counted: Counted,
    },
}

/// What kernels compute in place of the first half of an aggregate.
#[derive(Debug)]
pub(super) struct KernelPlan {
    /// The columns of the table that they read.
    pub(super) columns: KernelColumns,
    /// Rows that count.
    pub(super) filter: Condition,
    /// Numbers of the columns that are the keys of the groups.
    pub(super) keys: Vec<u32>,
    /// The measures; the first one counts rows.
    pub(super) measures: Measures,
    /// The columns of the output after those of the keys.
    pub(super) states: Vec<State>,
    /// The schema of the output.
    pub(super) schema: SchemaRef,
}

/// The scan below an aggregate, through nodes that neither drop nor add rows.
pub(super) fn scan_below(aggregate: &AggregateExec) -> Option<&TierScanExec> {
    let mut input = aggregate.input();
    while let Some(below) = below(input) {
        input = below;
    }
    input.downcast_ref::<TierScanExec>()
}

/// The input of a projection, or of what spreads the rows of a small table over partitions.
fn below(node: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    let spread = node.downcast_ref::<RepartitionExec>().map(RepartitionExec::input);
    spread.or_else(|| node.downcast_ref::<ProjectionExec>().map(ProjectionExec::input))
}

impl KernelPlan {
    /// The plan of an aggregate; `None` where kernels do not compute it.
    pub(super) fn from_aggregate(aggregate: &AggregateExec) -> Option<Self> {
        let is_first_half = *aggregate.mode() == AggregateMode::Partial
            && aggregate.limit_options().is_none()
            && *aggregate.input_order_mode() == InputOrderMode::Linear
            && aggregate.group_expr().is_single();
        let scan = scan_below(aggregate).filter(|_| is_first_half)?;
        let config = scan.config();
        if !config.dynamic.is_empty() || config.fetch.is_some() || config.ordering.is_some() {
            return None;
        }
        let mut columns = KernelColumns::new(Arc::clone(config.source.table.schema()));
        let filters = config.filters.iter().map(|filter| Condition::from_expr(filter, &mut columns));
        let filter = Condition::All(filters.collect::<Option<Vec<_>>>()?);
        let over_table = |expr: &Arc<dyn PhysicalExpr>| over_table(aggregate, scan, expr);
        let keys = aggregate.group_expr().expr().iter().map(|(expr, _)| columns.column(&over_table(expr)?));
        let keys = keys.collect::<Option<Vec<u32>>>()?;
        let mut measures = Measures::new();
        let mut states = Vec::new();
        for (function, filter) in aggregate.aggr_expr().iter().zip(aggregate.filter_expr()) {
            let args = function.expressions();
            let [arg] = args.as_slice() else { return None };
            let filter = match filter {
                Some(filter) => Some(over_table(filter)?),
                None => None,
            };
            let argument = measures.argument(over_table(arg)?, filter, &mut columns)?;
            states.extend(states_of(function, &argument, &mut columns, &mut measures)?);
        }
        let schema = aggregate.schema();
        let is_complete = schema.fields().len() == keys.len() + states.len();
        // Without a column there is nothing to read.
        let is_worth_it = !columns.positions().is_empty() && measures.count() <= MOST_MEASURES;
        (is_complete && is_worth_it).then_some(Self { columns, filter, keys, measures, states, schema })
    }

    /// The numbers of the columns of which codes stand for texts.
    pub(super) fn text_columns(&self) -> impl Iterator<Item = u32> {
        let numbers = 0..self.columns.positions().len() as u32;
        numbers.filter(move |number| self.columns.data_type(*number).is_some_and(super::condition::is_text))
    }
}

/// An expression over the input of an aggregate, as one over the table of the scan below it.
fn over_table(
    aggregate: &AggregateExec,
    scan: &TierScanExec,
    expr: &Arc<dyn PhysicalExpr>,
) -> Option<Arc<dyn PhysicalExpr>> {
    let mut input = aggregate.input();
    let mut expr = Arc::clone(expr);
    while let Some(below) = below(input) {
        if let Some(projection) = input.downcast_ref::<ProjectionExec>() {
            // From the leaves up, so that what is put in place of a column is not visited again.
            let replaced = expr.transform_up(|node| {
                let column = node.downcast_ref::<Column>().and_then(|column| projection.expr().get(column.index()));
                Ok(column
                    .map_or_else(|| Transformed::no(Arc::clone(&node)), |it| Transformed::yes(Arc::clone(&it.expr))))
            });
            expr = replaced.data().ok()?;
        }
        input = below;
    }
    scan.config().to_table(&expr).ok()
}

/// The columns of the state of an aggregate function, in the order in which DataFusion has them.
fn states_of(
    function: &AggregateFunctionExpr,
    argument: &Argument,
    columns: &mut KernelColumns,
    measures: &mut Measures,
) -> Option<Vec<State>> {
    if function.is_distinct() || !function.order_bys().is_empty() {
        return None;
    }
    let types: Vec<DataType> = function.state_fields().ok()?.iter().map(|field| field.data_type().clone()).collect();
    let sum = |columns: &mut KernelColumns, measures: &mut Measures| {
        let (factors, data_type) = product(&argument.expr, columns)?;
        let counted = measures.counted(factors.iter().map(|factor| factor.column), argument);
        let value = measures.number_of(Measure::sum(factors), argument.rows);
        Some((State::Value { value, counted }, counted, data_type))
    };
    match function.fun().name() {
        "count" => {
            let counted = match argument.expr.downcast_ref::<Literal>() {
                Some(literal) if literal.value().is_null() => return None,
                Some(_) => measures.counted([], argument),
                None => measures.counted([ColumnRef::Chunk(columns.column(&argument.expr)?)], argument),
            };
            (types == [DataType::Int64]).then(|| vec![State::Count(counted)])
        }
        "sum" => {
            let (state, _, data_type) = sum(columns, measures)?;
            (types.len() == 1 && is_sum_of(types.first()?, &data_type)).then(|| vec![state])
        }
        "avg" => {
            let (state, counted, data_type) = sum(columns, measures)?;
            let [count, total] = types.as_slice() else { return None };
            let fits = *count == DataType::UInt64 && is_sum_of(total, &data_type) && *total != DataType::Int64;
            fits.then(|| vec![State::Divisor(counted), state])
        }
        name @ ("min" | "max") if argument.with_zeros.is_none() => {
            let (column, data_type) = columns.number(&argument.expr)?;
            let aggregate = if name == "min" { Aggregate::Min } else { Aggregate::Max };
            let measure = Measure { aggregate, filter: None, factors: vec![column.factor()] };
            let value = measures.number_of(measure, argument.rows);
            let counted = measures.counted([column], argument);
            (types == [data_type]).then(|| vec![State::Value { value, counted }])
        }
        _ => None,
    }
}

/// True when values of a type are added up to this type as kernels do: exactly, at the same scale.
fn is_sum_of(total: &DataType, values: &DataType) -> bool {
    match (total, values) {
        (DataType::Int64, DataType::Int64) => true,
        (DataType::Decimal128(_, total), DataType::Decimal128(_, values)) => total == values,
        _ => false,
    }
}
