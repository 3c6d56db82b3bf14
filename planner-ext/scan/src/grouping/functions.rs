//! The aggregates of an aggregation, and their states by group.
//!
//! `count`, `sum`, `avg`, `min` and `max` of integers, decimals, dates and timestamps have states of their own; one argument that several of
//! them have is evaluated and summed once. Other aggregates have DataFusion's accumulators, which get the same groups: floats are
//! added in the order of the rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::extremes::{Extreme, Extremes, extremes};
use super::layout::{Layout, scan_below};
use super::narrow::{Narrow, Program, Results};
use super::sums::{RowCounts, Sums};

/// Aggregates whose accumulators are DataFusion's where they have no state here. Their states have few bytes each, and do not depend on
/// the order of rows, floats aside.
const HOSTED: [&str; 14] = [
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "count",
    "max",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
];

/// An argument of aggregates.
#[derive(Debug)]
struct Argument {
    expr: Arc<dyn PhysicalExpr>,
    data_type: DataType,
    is_summed: bool,
    /// The step that computes it in 64 bits; `None` where its values are needed as they are.
    narrow: Option<usize>,
}

/// What is computed for an aggregate; numbers are those of arguments.
#[derive(Debug)]
enum Kind {
    /// Rows, or rows in which the argument is not null.
    Count(Option<usize>),
    Sum(usize),
    Average(usize),
    Extreme(usize, Extreme),
    Hosted,
}

/// The aggregates of an aggregation.
#[derive(Debug)]
pub(super) struct Functions {
    arguments: Vec<Argument>,
    /// For each aggregate what is computed, and the types of its state.
    kinds: Vec<(Kind, Vec<DataType>)>,
    /// Computes arguments in 64 bits.
    program: Program,
}

impl Functions {
    /// The aggregates of an aggregation; `None` where one of them is left to DataFusion's operator.
    pub(super) fn new(aggregate: &AggregateExec, layout: &Layout) -> Option<Self> {
        let schema = aggregate.input().schema();
        let mut functions = Self { arguments: Vec::new(), kinds: Vec::new(), program: Program::default() };
        for (function, filter) in aggregate.aggr_expr().iter().zip(aggregate.filter_expr()) {
            if function.is_distinct()
                || !function.order_bys().is_empty()
                || function.expressions().iter().any(is_volatile)
            {
                return None;
            }
            let fields = function.state_fields().ok()?;
            let state: Vec<DataType> = fields.iter().map(|field| field.data_type().clone()).collect();
            let own = if filter.is_none() { functions.own_kind(function, &state, &schema) } else { None };
            let is_hosted = || HOSTED.contains(&function.fun().name()) && function.groups_accumulator_supported();
            let kind = own.or_else(|| is_hosted().then_some(Kind::Hosted))?;
            functions.kinds.push((kind, state));
        }
        // Rows that are handed over are added to other partial sums. With several partitions the order is left open anyway.
        let is_ordered = aggregate.properties().partitioning.partition_count() == 1;
        let has_floats = functions.kinds.iter().flat_map(|(_, state)| state).any(DataType::is_floating);
        functions.find_narrow(layout, &scan_below(aggregate)?.schema());
        (!(is_ordered && has_floats)).then_some(functions)
    }

    /// Finds the arguments that are computed in 64 bits.
    fn find_narrow(&mut self, layout: &Layout, scanned: &Schema) {
        let is_extreme =
            |number| self.kinds.iter().any(|(kind, _)| matches!(kind, Kind::Extreme(of, _) if *of == number));
        let is_narrow: Vec<bool> = (0..self.arguments.len()).map(|number| !is_extreme(number)).collect();
        for (argument, _) in self.arguments.iter_mut().zip(is_narrow).filter(|(_, is_narrow)| *is_narrow) {
            let below = layout.below(&argument.expr).ok();
            argument.narrow = below.and_then(|expr| self.program.step(&expr, scanned));
        }
    }

    /// Whether a batch whose arguments were computed in 64 bits is needed in no other way.
    fn is_narrow(&self) -> bool {
        let has_hosted = self.kinds.iter().any(|(kind, _)| matches!(kind, Kind::Hosted));
        !has_hosted && self.arguments.iter().all(|argument| argument.narrow.is_some())
    }

    /// The aggregates of `aggregate` that have DataFusion's accumulators.
    pub(super) fn hosted<'a>(
        &'a self,
        aggregate: &'a AggregateExec,
    ) -> impl Iterator<Item = &'a AggregateFunctionExpr> {
        let functions = self.kinds.iter().zip(aggregate.aggr_expr());
        functions.filter(|((kind, _), _)| matches!(kind, Kind::Hosted)).map(|(_, function)| function.as_ref())
    }

    /// What is computed for an aggregate that has a state here.
    fn own_kind(&mut self, function: &AggregateFunctionExpr, state: &[DataType], schema: &Schema) -> Option<Kind> {
        let [expr] = <[_; 1]>::try_from(function.expressions()).ok()?;
        let data_type = expr.data_type(schema).ok()?;
        let is_same = |state: &DataType| std::mem::discriminant(state) == std::mem::discriminant(&data_type);
        let is_decimal = matches!(data_type, DataType::Decimal128(..));
        // By name: the engine wraps DataFusion's functions in types of its own.
        match (function.fun().name(), state) {
            ("count", [_]) if is_never_null(&expr, schema) => Some(Kind::Count(None)),
            ("count", [_]) => Some(Kind::Count(Some(self.argument(expr, data_type, false)))),
            ("sum", [sum]) if is_same(sum) && Sums::new(&data_type).is_some() => {
                Some(Kind::Sum(self.argument(expr, data_type, true)))
            }
            ("avg", [_, sum]) if is_decimal && is_same(sum) => {
                Some(Kind::Average(self.argument(expr, data_type, true)))
            }
            ("min", [least]) if *least == data_type && extremes(&data_type, Extreme::Least).is_some() => {
                Some(Kind::Extreme(self.argument(expr, data_type, false), Extreme::Least))
            }
            ("max", [greatest]) if *greatest == data_type && extremes(&data_type, Extreme::Greatest).is_some() => {
                Some(Kind::Extreme(self.argument(expr, data_type, false), Extreme::Greatest))
            }
            _ => None,
        }
    }

    /// The number of an argument, which is added if it is new.
    fn argument(&mut self, expr: Arc<dyn PhysicalExpr>, data_type: DataType, is_summed: bool) -> usize {
        let known = self.arguments.iter().position(|known| known.expr.eq(&expr));
        let number = known.unwrap_or(self.arguments.len());
        match self.arguments.get_mut(number) {
            Some(argument) => argument.is_summed |= is_summed,
            None => self.arguments.push(Argument { expr, data_type, is_summed, narrow: None }),
        }
        number
    }
}

/// Whether counting the values of an expression counts rows.
fn is_never_null(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    match expr.downcast_ref::<Literal>() {
        Some(literal) => !literal.value().is_null(),
        None => expr.is::<Column>() && expr.nullable(schema).is_ok_and(|nullable| !nullable),
    }
}

/// The state of an argument by group.
struct ArgumentState {
    expr: Arc<dyn PhysicalExpr>,
    /// Rows in which it is null.
    nulls: Vec<i64>,
    sums: Option<Sums>,
}

impl ArgumentState {
    fn add(&mut self, groups: &[u32], values: &ArrayRef, count: usize) -> Result<()> {
        self.count_nulls(groups, values.logical_nulls().as_ref(), count);
        self.sums.as_mut().map_or(Ok(()), |sums| sums.add(groups, values, count))
    }

    fn add_narrow(&mut self, groups: &[u32], narrow: &Narrow, count: usize) {
        self.count_nulls(groups, narrow.nulls.as_ref(), count);
        if let Some(sums) = &mut self.sums {
            sums.add_narrow(groups, narrow, count);
        }
    }

    fn count_nulls(&mut self, groups: &[u32], nulls: Option<&NullBuffer>, count: usize) {
        self.nulls.resize(count, 0);
        let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return };
        for (group, _) in groups.iter().zip(nulls).filter(|(_, valid)| !valid) {
            if let Some(nulls) = self.nulls.get_mut(*group as usize) {
                *nulls += 1;
            }
        }
    }
}

/// An accumulator of DataFusion, with what it is given.
struct Hosted {
    accumulator: Box<dyn GroupsAccumulator>,
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
}

impl Hosted {
    fn add(&mut self, batch: &RecordBatch, groups: &[usize], count: usize) -> Result<()> {
        let evaluated = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(batch.num_rows());
        let values = self.arguments.iter().map(evaluated).collect::<Result<Vec<_>>>()?;
        let filter = self.filter.as_ref().map(evaluated).transpose()?;
        let other = || internal_datafusion_err!("the condition of an aggregate has no truth values");
        let filter = filter.as_ref().map(|filter| filter.as_boolean_opt().ok_or_else(other)).transpose()?;
        self.accumulator.update_batch(&values, groups, filter, count)
    }
}

/// The states of all aggregates by group.
pub(super) struct States {
    functions: Arc<Functions>,
    /// Number of groups.
    count: usize,
    rows: RowCounts,
    /// Of the latest batch.
    narrow: Results,
    arguments: Vec<ArgumentState>,
    /// By aggregate; `None` for those that have none.
    extremes: Vec<Option<Box<dyn Extremes>>>,
    hosted: Vec<Option<Hosted>>,
}

impl States {
    /// The states of no groups.
    ///
    /// # Errors
    /// When DataFusion has no accumulator for an aggregate.
    pub(super) fn new(functions: &Arc<Functions>, aggregate: &AggregateExec) -> Result<Self> {
        let argument = |argument: &Argument| ArgumentState {
            expr: Arc::clone(&argument.expr),
            nulls: Vec::new(),
            sums: if argument.is_summed { Sums::new(&argument.data_type) } else { None },
        };
        let extreme = |(kind, _): &(Kind, Vec<DataType>)| match kind {
            Kind::Extreme(number, extreme) => {
                functions.arguments.get(*number).and_then(|argument| extremes(&argument.data_type, *extreme))
            }
            _ => None,
        };
        let planned = functions.kinds.iter().zip(aggregate.aggr_expr().iter().zip(aggregate.filter_expr()));
        let hosted = planned.map(|((kind, _), (function, filter))| match kind {
            Kind::Hosted => {
                let accumulator = function.create_groups_accumulator()?;
                Ok::<_, DataFusionError>(Some(Hosted {
                    accumulator,
                    arguments: function.expressions(),
                    filter: filter.clone(),
                }))
            }
            _ => Ok(None),
        });
        Ok(Self {
            count: 0,
            rows: RowCounts::default(),
            narrow: Results::default(),
            arguments: functions.arguments.iter().map(argument).collect(),
            extremes: functions.kinds.iter().map(extreme).collect(),
            hosted: hosted.collect::<Result<_>>()?,
            functions: Arc::clone(functions),
        })
    }

    /// Adds rows of the scan, of which `groups` has the groups, out of so many.
    pub(super) fn add(&mut self, layout: &Layout, scanned: &RecordBatch, groups: &[u32], count: usize) -> Result<()> {
        self.count = count;
        self.rows.add(groups, count);
        let functions = Arc::clone(&self.functions);
        let is_narrow = self.narrow.compute(&functions.program, scanned)?;
        if is_narrow {
            for (argument, state) in functions.arguments.iter().zip(&mut self.arguments) {
                if let Some(narrow) = argument.narrow.and_then(|step| self.narrow.get(step)) {
                    state.add_narrow(groups, narrow, count);
                }
            }
            if functions.is_narrow() {
                return Ok(());
            }
        }
        let batch = &layout.projected(scanned)?;
        let mut values = Vec::with_capacity(self.arguments.len());
        for (argument, state) in functions.arguments.iter().zip(&mut self.arguments) {
            if is_narrow && argument.narrow.is_some() {
                values.push(None);
                continue;
            }
            let column = state.expr.evaluate(batch)?.into_array(batch.num_rows())?;
            state.add(groups, &column, count)?;
            values.push(Some(column));
        }
        for ((kind, _), extremes) in functions.kinds.iter().zip(&mut self.extremes) {
            if let (Kind::Extreme(number, _), Some(extremes)) = (kind, extremes)
                && let Some(Some(values)) = values.get(*number)
            {
                extremes.add(groups, values, count)?;
            }
        }
        if self.hosted.iter().any(Option::is_some) {
            let groups: Vec<usize> = groups.iter().map(|group| *group as usize).collect();
            for hosted in self.hosted.iter_mut().flatten() {
                hosted.add(batch, &groups, count)?;
            }
        }
        Ok(())
    }

    /// Number of groups.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        let argument = |argument: &ArgumentState| {
            argument.nulls.capacity() * size_of::<i64>() + argument.sums.as_ref().map_or(0, Sums::bytes)
        };
        self.rows.bytes()
            + self.narrow.bytes()
            + self.arguments.iter().map(argument).sum::<usize>()
            + self.extremes.iter().flatten().map(|extremes| extremes.bytes()).sum::<usize>()
            + self.hosted.iter().flatten().map(|hosted| hosted.accumulator.size()).sum::<usize>()
    }

    /// The columns of the states, in the order of the aggregates.
    pub(super) fn columns(&mut self) -> Result<Vec<ArrayRef>> {
        let functions = Arc::clone(&self.functions);
        let mut columns = Vec::new();
        for (number, (kind, state)) in functions.kinds.iter().enumerate() {
            match (kind, state.as_slice()) {
                (Kind::Count(argument), _) => {
                    columns.push(Arc::new(Int64Array::from(self.values(*argument))) as ArrayRef)
                }
                (Kind::Sum(argument), [sum]) => columns.push(self.sum(*argument, sum)?),
                (Kind::Average(argument), [_, sum]) => {
                    let counts = self.values(Some(*argument)).into_iter().map(|count| count as u64);
                    let counts = UInt64Array::try_new(counts.collect(), self.nulls(*argument))?;
                    columns.push(Arc::new(counts));
                    columns.push(self.sum(*argument, sum)?);
                }
                (Kind::Extreme(argument, _), _) => {
                    let nulls = self.nulls(*argument);
                    let extremes = self.extremes.get(number).and_then(Option::as_ref).ok_or_else(lost)?;
                    columns.push(extremes.column(nulls)?);
                }
                (Kind::Hosted, _) => {
                    let hosted = self.hosted.get_mut(number).and_then(Option::as_mut).ok_or_else(lost)?;
                    columns.extend(hosted.accumulator.state(EmitTo::All)?);
                }
                _ => return Err(lost()),
            }
        }
        Ok(columns)
    }

    /// The number of values of an argument that are not null, or of rows, by group.
    fn values(&self, argument: Option<usize>) -> Vec<i64> {
        match argument.and_then(|argument| self.arguments.get(argument)) {
            Some(argument) => self.rows.counts().zip(&argument.nulls).map(|(rows, nulls)| rows - nulls).collect(),
            None => self.rows.counts().collect(),
        }
    }

    /// Groups in which an argument is null in all rows, as nulls; `None` when there are none.
    fn nulls(&self, argument: usize) -> Option<NullBuffer> {
        let has_values: Vec<bool> = self.values(Some(argument)).into_iter().map(|values| values > 0).collect();
        has_values.contains(&false).then(|| NullBuffer::from(has_values))
    }

    fn sum(&mut self, argument: usize, data_type: &DataType) -> Result<ArrayRef> {
        let nulls = self.nulls(argument);
        let sums = self.arguments.get_mut(argument).and_then(|argument| argument.sums.as_mut()).ok_or_else(lost)?;
        sums.column(nulls, data_type)
    }
}

fn lost() -> DataFusionError {
    internal_datafusion_err!("an aggregate has lost its state")
}
