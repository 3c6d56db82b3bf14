//! Aggregates that collect the values of a group, with an honest size.
//!
//! DataFusion reserves what an accumulator says that it holds ([`Accumulator::size`]), after each batch. Two parts are
//! missing in what its own say:
//!
//! - **The copy at the end.** `array_agg` joins its batches into one list, and a partial aggregation turns the state of each
//!   group into scalars and these into arrays, while it still holds the state. Nothing can stop that on the way. So an
//!   accumulator here counts twice what it holds, and [`GROUP_STATE_BYTES`] for its group. One of `DISTINCT` values, as
//!   `count` has, counts half as much again: three of them over 12 million rows had 1.45 times what they reserved.
//! - **The bytes of text views.** `array_agg` keeps arrays and adds up `ArrayData::get_slice_memory_size`, which counts the
//!   16 bytes of a view and not the text behind it (arrow-data 59.1, `data.rs`: it leaves out `variadic` buffers).
//!
//! So memory for the result is there before it is made, and an aggregation that has too little of it spills or ends early.
//!
//! Upstream: <https://github.com/apache/arrow-rs/pull/10519> (fix(arrow-data): account for view payload buffers in slice
//! memory size), merged; with an arrow that has it `text_bytes` counts twice and has to go. No issue found on the copies:
//! the rest can go when the tests `array_agg_of_texts...` and `percentiles_of_many_groups...` of `tests/limits.rs` pass
//! without it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, GenericByteViewArray, OffsetSizeTrait};
use arrow::datatypes::{ByteViewType, DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as PlanResult;
use datafusion::execution::registry::FunctionRegistry;
use datafusion::execution::session_state::SessionState;
use datafusion::functions_aggregate::nth_value::nth_value_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr};
use datafusion::logical_expr::udf_eq::UdfEq;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, Expr, GetFieldAccess, GroupsAccumulator,
    Operator, ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};

use crate::error::Result;

/// Bytes of the state of one group on its way into arrays, beside its values: that of a percentile is five scalars of 64
/// bytes and a list, which is half a KiB with its offsets, its values and their buffers.
const GROUP_STATE_BYTES: usize = 1 << 10;

/// Aggregates whose state grows with the values of a group: always, or where they are of `DISTINCT` values.
const FUNCTIONS: [&str; 15] = [
    "approx_distinct",
    "approx_median",
    "approx_percentile_cont",
    "approx_percentile_cont_with_weight",
    "array_agg",
    "avg",
    "bit_xor",
    "count",
    "median",
    "nth_value",
    "percentile_cont",
    "string_agg",
    "sum",
    "var",
    "var_pop",
];

/// Those of [`FUNCTIONS`] that keep no values unless they are of `DISTINCT` ones.
const COLLECT_DISTINCT: [&str; 6] = ["avg", "bit_xor", "count", "sum", "var", "var_pop"];

/// Plans `array_agg(x)[i]` as the wrapped `nth_value(x, i)`. DataFusion's own planner, which comes after it, takes its
/// `nth_value` for that; beside a call of the wrapped one the same column would be there twice.
#[derive(Debug)]
pub(super) struct ArrayAggElements;

impl ExprPlanner for ArrayAggElements {
    fn plan_field_access(
        &self,
        access: RawFieldAccessExpr,
        _: &DFSchema,
    ) -> PlanResult<PlannerResult<RawFieldAccessExpr>> {
        Ok(match access {
            RawFieldAccessExpr {
                expr: Expr::AggregateFunction(AggregateFunction { func, mut params }),
                field_access: GetFieldAccess::ListIndex { key },
            } if func.name() == "array_agg" => {
                params.args.push(*key);
                let func = CollectingFunction::wrap(&nth_value_udaf());
                PlannerResult::Planned(Expr::AggregateFunction(AggregateFunction { func, params }))
            }
            other => PlannerResult::Original(other),
        })
    }
}

/// Wraps the aggregates of `state` that collect values.
pub(super) fn count_copies(state: &mut SessionState) -> Result<()> {
    for name in FUNCTIONS {
        let function = state.udaf(name)?;
        state.register_udaf(CollectingFunction::wrap(&function))?;
    }
    Ok(())
}

/// An aggregate of DataFusion whose accumulators count what they will need for their results.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CollectingFunction {
    inner: UdfEq<Arc<dyn AggregateUDFImpl>>,
}

impl CollectingFunction {
    /// Wraps `function`, if it is not wrapped yet.
    fn wrap(function: &Arc<AggregateUDF>) -> Arc<AggregateUDF> {
        if function.inner().is::<Self>() {
            return Arc::clone(function);
        }
        let inner = UdfEq::from(Arc::clone(function.inner()));
        Arc::new(AggregateUDF::new_from_impl(Self { inner }))
    }

    /// What its result takes beside the state of its accumulator; `None` where that keeps no values.
    fn copy(&self, args: &AccumulatorArgs<'_>) -> Option<ResultCopy> {
        match COLLECT_DISTINCT.contains(&self.inner.name()) {
            true => args.is_distinct.then_some(ResultCopy::Half),
            false => Some(ResultCopy::Whole),
        }
    }

    /// Whether its accumulator keeps arrays as they come: in order of arrival, duplicates included.
    fn keeps_arrays(&self, args: &AccumulatorArgs<'_>) -> bool {
        self.inner.name() == "array_agg" && !args.is_distinct && args.order_bys.is_empty()
    }
}

/// Wraps an aggregate that collects values.
fn wrapped(expression: Expr) -> Transformed<Expr> {
    match expression {
        Expr::AggregateFunction(AggregateFunction { func, params }) if FUNCTIONS.contains(&func.name()) => {
            let func = CollectingFunction::wrap(&func);
            Transformed::yes(Expr::AggregateFunction(AggregateFunction { func, params }))
        }
        other => Transformed::no(other),
    }
}

/// Bytes of the texts behind the views in `array`, in lists, maps and structs too. Those in dictionaries and unions are
/// not counted.
fn text_bytes(array: &dyn Array) -> usize {
    match array.data_type() {
        DataType::Utf8View => view_bytes(array.as_string_view()),
        DataType::BinaryView => view_bytes(array.as_binary_view()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| text_bytes(column)).sum(),
        DataType::List(_) => range_bytes(array.as_list::<i32>().values(), array.as_list::<i32>().value_offsets()),
        DataType::LargeList(_) => range_bytes(array.as_list::<i64>().values(), array.as_list::<i64>().value_offsets()),
        DataType::FixedSizeList(..) => text_bytes(array.as_fixed_size_list().values()),
        DataType::Map(..) => range_bytes(array.as_map().entries(), array.as_map().value_offsets()),
        _ => 0,
    }
}

/// The texts of `views`: those of all views, or what they lie in, if several views share a text.
fn view_bytes<T: ByteViewType + ?Sized>(views: &GenericByteViewArray<T>) -> usize {
    // The length is in the low 32 bits. Shorter texts lie in the views.
    let long = |view: &u128| if *view as u32 > 12 { *view as u32 as usize } else { 0 };
    let buffers = views.data_buffers().iter().map(|buffer| buffer.len()).sum();
    views.views().iter().map(long).sum::<usize>().min(buffers)
}

/// The texts of the elements that `offsets` name.
fn range_bytes<O: OffsetSizeTrait>(elements: &dyn Array, offsets: &[O]) -> usize {
    match offsets {
        [from, .., to] => text_bytes(&elements.slice(from.as_usize(), to.as_usize() - from.as_usize())),
        _ => 0,
    }
}

/// What the result of an accumulator takes, as a share of its state.
#[derive(Debug, Clone, Copy)]
enum ResultCopy {
    Whole,
    /// Distinct values: their arrays are about half as large as the sets that they come from, and are there beside the set of
    /// the final aggregation, which takes them over.
    Half,
}

impl ResultCopy {
    fn group_state_bytes(self) -> usize {
        match self {
            Self::Whole => GROUP_STATE_BYTES,
            // A scalar with a list.
            Self::Half => GROUP_STATE_BYTES / 4,
        }
    }
}

/// An accumulator that counts what its result will take.
#[derive(Debug)]
struct Collector<A: ?Sized> {
    copy: ResultCopy,
    /// Whether the arrays that come stay in memory.
    keeps_arrays: bool,
    /// The texts behind the views of these arrays.
    text_bytes: usize,
    state_bytes: usize,
    inner: Box<A>,
}

impl<A: ?Sized> Collector<A> {
    fn record(&mut self, values: &[ArrayRef]) {
        if self.keeps_arrays {
            self.text_bytes += values.iter().map(|array| text_bytes(array)).sum::<usize>();
        }
    }

    /// What is held, and the copy. Texts behind views are not copied.
    fn size_with_copy(&self, inner_bytes: usize) -> usize {
        let copy_bytes = match self.copy {
            ResultCopy::Whole => inner_bytes,
            ResultCopy::Half => inner_bytes / 2,
        };
        inner_bytes.saturating_add(copy_bytes).saturating_add(self.text_bytes).saturating_add(self.state_bytes)
    }
}

#[warn(clippy::missing_trait_methods, reason = "a method that is not delegated changes the function")]
impl Accumulator for Collector<dyn Accumulator> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        self.record(values);
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> PlanResult<ScalarValue> {
        self.inner.evaluate()
    }

    fn size(&self) -> usize {
        self.size_with_copy(self.inner.size())
    }

    fn state(&mut self) -> PlanResult<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> PlanResult<()> {
        self.record(states);
        self.inner.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}

impl Collector<dyn GroupsAccumulator> {
    /// Emits with `emit`. The texts of the groups that stay are taken to be their share of the size.
    fn emitting<T>(&mut self, emit: impl FnOnce(&mut dyn GroupsAccumulator) -> PlanResult<T>) -> PlanResult<T> {
        let before = self.inner.size();
        let emitted = emit(self.inner.as_mut());
        let share = self.inner.size() as f64 / before.max(1) as f64;
        self.text_bytes = (self.text_bytes as f64 * share.min(1.0)) as usize;
        emitted
    }
}

#[warn(clippy::missing_trait_methods, reason = "a method that is not delegated changes the function")]
impl GroupsAccumulator for Collector<dyn GroupsAccumulator> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        group_count: usize,
    ) -> PlanResult<()> {
        // An array of which no row counts is not kept.
        if filter.is_none_or(|filter| filter.has_true()) {
            self.record(values);
        }
        self.inner.update_batch(values, groups, filter, group_count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> PlanResult<ArrayRef> {
        self.emitting(|inner| inner.evaluate(emit_to))
    }

    fn state(&mut self, emit_to: EmitTo) -> PlanResult<Vec<ArrayRef>> {
        self.emitting(|inner| inner.state(emit_to))
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], group_count: usize) -> PlanResult<()> {
        self.record(values);
        self.inner.merge_batch(values, groups, group_count)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> PlanResult<Vec<ArrayRef>> {
        self.inner.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.size_with_copy(self.inner.size())
    }
}

#[warn(clippy::missing_trait_methods, reason = "a method that is not delegated changes the function")]
impl AggregateUDFImpl for CollectingFunction {
    fn accumulator(&self, args: AccumulatorArgs<'_>) -> PlanResult<Box<dyn Accumulator>> {
        let Some(copy) = self.copy(&args) else { return self.inner.accumulator(args) };
        let keeps_arrays = self.keeps_arrays(&args);
        let inner = self.inner.accumulator(args)?;
        let collector: Box<Collector<dyn Accumulator>> =
            Box::new(Collector { copy, keeps_arrays, text_bytes: 0, state_bytes: copy.group_state_bytes(), inner });
        Ok(collector)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> PlanResult<Box<dyn GroupsAccumulator>> {
        let Some(copy) = self.copy(&args) else { return self.inner.create_groups_accumulator(args) };
        let keeps_arrays = self.keeps_arrays(&args);
        let inner = self.inner.create_groups_accumulator(args)?;
        // It turns its state into arrays without scalars between.
        Ok(Box::new(Collector { copy, keeps_arrays, text_bytes: 0, state_bytes: 0, inner }))
    }

    /// Windows reserve nothing for their accumulators.
    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> PlanResult<Box<dyn Accumulator>> {
        self.inner.create_sliding_accumulator(args)
    }

    fn with_beneficial_ordering(
        self: Arc<Self>,
        beneficial_ordering: bool,
    ) -> PlanResult<Option<Arc<dyn AggregateUDFImpl>>> {
        let ordered = Arc::clone(&self.inner).with_beneficial_ordering(beneficial_ordering)?;
        Ok(ordered.map(|inner| Arc::new(Self { inner: UdfEq::from(inner) }) as Arc<dyn AggregateUDFImpl>))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.inner.reverse_expr() {
            ReversedUDAF::Reversed(function) => ReversedUDAF::Reversed(Self::wrap(&function)),
            other => other,
        }
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, params: &AggregateFunctionParams) -> PlanResult<String> {
        self.inner.schema_name(params)
    }

    fn human_display(&self, params: &AggregateFunctionParams) -> PlanResult<String> {
        self.inner.human_display(params)
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> PlanResult<String> {
        self.inner.window_function_schema_name(params)
    }

    fn display_name(&self, params: &AggregateFunctionParams) -> PlanResult<String> {
        self.inner.display_name(params)
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> PlanResult<String> {
        self.inner.window_function_display_name(params)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> PlanResult<DataType> {
        self.inner.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> PlanResult<FieldRef> {
        self.inner.return_field(fields)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> PlanResult<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn simplify_expr_op_literal(
        &self,
        function: &AggregateFunction,
        arg: &Expr,
        operator: Operator,
        literal: &Expr,
        arg_is_left: bool,
    ) -> PlanResult<Option<Expr>> {
        // `sum` of an expression becomes one of plain aggregates, which would stand beside wrapped ones of the statement.
        let simplified = self.inner.simplify_expr_op_literal(function, arg, operator, literal, arg_is_left)?;
        let wrapped = simplified.map(|simplified| simplified.transform_up(|part| Ok(wrapped(part))).data());
        wrapped.transpose()
    }

    fn coerce_types(&self, types: &[DataType]) -> PlanResult<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn value_from_stats(&self, statistics: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.inner.value_from_stats(statistics)
    }

    fn default_value(&self, data_type: &DataType) -> PlanResult<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.set_monotonicity(data_type)
    }
}
