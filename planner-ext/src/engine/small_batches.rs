//! Cuts batches below operators that need much memory per row, before they ask for it.
//!
//! An aggregation with many grouping sets makes one row per grouping set of each row of its input, for a whole batch at once: 8,192 rows under
//! `CUBE` of 12 columns are 33 million groups before it asks for memory, may spill, or can be stopped. With fewer rows in
//! a batch it does so after each, and before each one it lets other tasks go on, waits while memory is short, and stops if
//! it has to: some hundred rows take seconds.
//!
//! A large literal, which may be a folded call such as `repeat('x', 200000)`, becomes an array with a copy for each row where it is a value of a
//! column, condition or sort key, or an argument of a function: 1.6 GB of 8,192 rows, in one allocation. Joins and scans of files choose the
//! rows of their batches themselves, so they get a smaller batch size, also beside large texts in `VALUES`. Windows over partitions, and scans
//! of the store, refuse such literals.
//!
//! Sorts, merges, groups and functions copy texts, also where many rows refer to one large text (a join with a row of 600 KB: 4.9 GB). They get
//! batches whose texts take at most 16 MiB more than what they lie in, or one row.
//!
//! Not covered: texts within lists, and large texts that functions make below a join.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::catalog::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{CaseExpr, Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use terrace_scan::FirstRowsPerGroupExec;
use terrace_scan::scan::TierScanExec;
use terrace_tier_store::units::human_bytes;

use super::functions::array_bytes;
use super::interrupt::Interrupt;
use super::stream_exec::StreamExec;
use crate::error::Error;

/// Most groups that an aggregation makes of one batch.
const GROUPS_PER_BATCH: usize = 65_536;

/// Literals from this size on count; a batch of 8,192 copies has 64 MiB.
const LARGE_LITERAL_BYTES: usize = 8 << 10;
/// Most bytes that the copies of large literals, or of texts that many rows refer to, take in one batch, if one row of them
/// does not take more.
const COPIED_BYTES_PER_BATCH: usize = 16 << 20;
/// Most bytes of literals that an operator copies whose batches cannot be cut: a scan of the store takes a thousand rows at once
/// and more, a window all of its partition.
const UNCUT_LITERAL_BYTES: usize = 32 << 10;

/// How to cut batches.
#[derive(Debug, Default, Clone)]
struct Cut {
    /// Most rows of a batch, if that is limited.
    rows: Option<usize>,
    /// The columns whose values are copied.
    copied: Vec<usize>,
}

impl Cut {
    /// The cut for an operator that computes `expressions` of `input`; `None` where no batch needs one.
    fn new<'a>(
        rows: Option<usize>,
        input: &dyn ExecutionPlan,
        expressions: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>,
    ) -> Option<Self> {
        let schema = input.schema();
        let columns = expressions.flat_map(collect_columns).map(|column| column.index());
        let is_shared = |index: &usize| schema.fields().get(*index).is_some_and(|field| is_view(field.data_type()));
        let mut copied: Vec<usize> = columns.filter(is_shared).collect();
        copied.sort_unstable();
        copied.dedup();
        (rows.is_some() || !copied.is_empty()).then_some(Self { rows, copied })
    }

    /// The parts of a batch.
    fn parts(&self, batch: &RecordBatch) -> Vec<Range<usize>> {
        let count = batch.num_rows();
        let rows = self.rows.unwrap_or(usize::MAX);
        let columns: Vec<&ArrayRef> = self.copied.iter().filter_map(|index| batch.columns().get(*index)).collect();
        let held: u64 = columns.iter().map(|column| column.get_buffer_memory_size() as u64).sum();
        let copied: u64 = columns.iter().map(|column| array_bytes(column)).sum();
        if copied <= held + COPIED_BYTES_PER_BATCH as u64 {
            return (0..count).step_by(rows).map(|start| start..count.min(start.saturating_add(rows))).collect();
        }
        let mut parts = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for row in 0..count {
            let more: u64 = columns.iter().map(|column| array_bytes(&column.slice(row, 1))).sum();
            if row > start && (bytes + more > COPIED_BYTES_PER_BATCH as u64 || row - start >= rows) {
                parts.push(start..row);
                (start, bytes) = (row, 0);
            }
            bytes += more;
        }
        parts.push(start..count);
        parts
    }
}

/// Adds an operator that cuts batches below each aggregation with many grouping sets, and below each operator that may copy
/// large texts.
pub(super) fn with_small_batches(
    plan: Arc<dyn ExecutionPlan>,
    interrupt: &Interrupt,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some((input, cut)) = needed_cut(&node)? else { return Ok(Transformed::no(node)) };
        let interrupt = interrupt.clone();
        let cut = move |batches: SendableRecordBatchStream, _: &TaskContext| {
            small_batches(batches, cut.clone(), interrupt.clone()).boxed()
        };
        let small: Arc<dyn ExecutionPlan> = Arc::new(StreamExec::new("CutBatchesExec", input, cut));
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(node.replace_children(vec![small], options)?))
    })
    .data()
}

/// The input of an operator, and how to cut its batches; `None` where that does not matter.
fn needed_cut(node: &Arc<dyn ExecutionPlan>) -> Result<Option<(Arc<dyn ExecutionPlan>, Cut)>> {
    // The expressions that may copy literals, and those that may copy texts of columns.
    let (input, expressions, mut copying, rows_by_sets);
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        input = projection.input();
        expressions = projection.expr().iter().map(|output| Arc::clone(&output.expr)).collect::<Vec<_>>();
        // Columns pass as they are.
        copying = expressions.iter().filter(|output| !output.is::<Column>()).cloned().collect::<Vec<_>>();
        rows_by_sets = None;
    } else if let Some(filter) = node.downcast_ref::<FilterExec>() {
        input = filter.input();
        expressions = vec![Arc::clone(filter.predicate())];
        copying = expressions.clone();
        rows_by_sets = None;
    } else if let Some((keys, sorted)) = sort_keys(node) {
        input = sorted;
        expressions = keys.iter().map(|key| Arc::clone(&key.expr)).collect();
        copying = expressions.clone();
        rows_by_sets = None;
    } else if let Some(first) = node.downcast_ref::<FirstRowsPerGroupExec>() {
        input = first.input();
        expressions = first.keys().cloned().collect();
        copying = expressions.clone();
        rows_by_sets = None;
    } else if let Some(aggregate) = node.downcast_ref::<AggregateExec>()
        // Later stages have the sets, and the values of arguments, among their columns.
        && aggregate.mode().input_mode() == AggregateInputMode::Raw
    {
        let sets = aggregate.group_expr().groups().len();
        let arguments: Vec<_> = aggregate.aggr_expr().iter().flat_map(|function| function.expressions()).collect();
        let keys: Vec<_> = aggregate.group_expr().expr().iter().map(|(key, _)| Arc::clone(key)).collect();
        input = aggregate.input();
        // Accumulators count what the columns of each batch lie in.
        let computed = arguments.iter().filter(|argument| !argument.is::<Column>());
        copying = keys.iter().chain(computed).cloned().collect();
        expressions = arguments.into_iter().chain(keys).collect();
        rows_by_sets = (sets > 1).then(|| (GROUPS_PER_BATCH / sets).max(1));
    } else {
        return Ok(None);
    }
    // Sorts copy the keys of all rows, others the texts of few that a scan returns.
    if sort_keys(node).is_none() && !node.is::<FirstRowsPerGroupExec>() && !has_join(input)? {
        copying.clear();
    }
    let rows = rows_by_sets.into_iter().chain(rows_beside_literals(&expressions)?).min();
    Ok(Cut::new(rows, input.as_ref(), copying.iter()).map(|cut| (Arc::clone(input), cut)))
}

/// The keys and the input of a sort, or of a merge of sorted partitions.
fn sort_keys(node: &Arc<dyn ExecutionPlan>) -> Option<(&LexOrdering, &Arc<dyn ExecutionPlan>)> {
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        return Some((sort.expr(), sort.input()));
    }
    let merge = node.downcast_ref::<SortPreservingMergeExec>()?;
    Some((merge.expr(), merge.input()))
}

/// Whether rows come from a join, of which many refer to one text.
fn has_join(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|node| Ok(is_join(node)))
}

fn is_join(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.is::<HashJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>()
        || node.is::<SortMergeJoinExec>()
}

/// How many rows the batches may have that joins and scans make of large literals and `VALUES`; `None` where that does not
/// matter. `plan` has the operators of DataFusion. Fails where a window or a scan of the store copies large literals.
pub(super) fn rows_of_large_values(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<usize>> {
    let mut most_bytes = 0;
    plan.apply(|node| {
        let mut literals = LiteralBytes::default();
        let is_cut = node.is::<ProjectionExec>() || node.is::<FilterExec>() || node.is::<AggregateExec>();
        let is_sort = node.is::<SortExec>() || node.is::<SortPreservingMergeExec>();
        if !is_cut && !is_sort && !node.is::<FirstRowsPerGroupExec>() {
            node.apply_expressions(&mut |expression| {
                literals.add(expression, false)?;
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        let LiteralBytes { values, all } = literals;
        let is_window = node.is::<WindowAggExec>() || node.is::<BoundedWindowAggExec>();
        let refused = match is_window {
            true => values > 0 || all > UNCUT_LITERAL_BYTES,
            false => values > UNCUT_LITERAL_BYTES && node.is::<TierScanExec>(),
        };
        if refused {
            let problem = format!(
                "{} would copy literals of {} for each of many rows; put them into a table, or compute the value in a subquery",
                if is_window { "a window function" } else { "a condition of a scan" },
                human_bytes(all as u64),
            );
            return Err(Error::invalid(problem).into());
        }
        let bytes = all + if is_join(node) { largest_values(node)? } else { 0 };
        most_bytes = most_bytes.max(bytes);
        Ok(TreeNodeRecursion::Continue)
    })?;
    let is_large = most_bytes >= LARGE_LITERAL_BYTES;
    Ok(is_large.then(|| (COPIED_BYTES_PER_BATCH / most_bytes).max(1)))
}

/// Bytes of the largest texts in the `VALUES` below a node, as far as a join copies them.
fn largest_values(node: &Arc<dyn ExecutionPlan>) -> Result<usize> {
    let mut bytes = 0;
    node.apply(|node| {
        let source = node.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source);
        if let Some(values) = source.and_then(|source| source.downcast_ref::<MemorySourceConfig>()) {
            let columns = values.partitions().iter().flatten().flat_map(RecordBatch::columns);
            let is_copied = |data_type: &DataType| !data_type.is_primitive() && !is_view(data_type);
            let copied = columns.filter(|column| is_copied(column.data_type()));
            bytes += copied.map(largest_value).sum::<u64>();
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn largest_value(column: &ArrayRef) -> u64 {
    (0..column.len()).map(|row| array_bytes(&column.slice(row, 1))).max().unwrap_or(0)
}

/// Whether values of a type lie where several rows may refer to them.
fn is_view(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::BinaryView)
}

/// How many copies of the large literals in `expressions` a batch may have; `None` where there are none.
fn rows_beside_literals(expressions: &[Arc<dyn PhysicalExpr>]) -> Result<Option<usize>> {
    let mut bytes = LiteralBytes::default();
    for expression in expressions {
        bytes.add(expression, true)?;
    }
    Ok(COPIED_BYTES_PER_BATCH.checked_div(bytes.all).map(|rows| rows.max(1)))
}

/// Bytes of large literals in an expression.
#[derive(Debug, Default, Clone, Copy)]
struct LiteralBytes {
    /// Of those that are values of it, or of a part of it.
    values: usize,
    /// Of those that are arguments of its functions, or values.
    all: usize,
}

impl LiteralBytes {
    /// Adds those of `expression`; literals of views only `with_views`, as others make copies of them.
    fn add(&mut self, expression: &Arc<dyn PhysicalExpr>, with_views: bool) -> Result<()> {
        let large = |part| large_literal_bytes(part, with_views);
        let own = large(expression);
        self.values += own;
        self.all += own;
        expression.apply(|part| {
            let values: usize = values(part).into_iter().map(large).sum();
            self.values += values;
            self.all += values.max(arguments(part).into_iter().map(large).sum());
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(())
    }
}

/// The parts of an expression of which it takes one as its value.
fn values(expression: &Arc<dyn PhysicalExpr>) -> Vec<&Arc<dyn PhysicalExpr>> {
    if let Some(case) = expression.downcast_ref::<CaseExpr>() {
        return case.when_then_expr().iter().map(|(_, then)| then).chain(case.else_expr()).collect();
    }
    match expression.downcast_ref::<ScalarFunctionExpr>() {
        Some(call) if matches!(call.name(), "coalesce" | "nvl" | "nvl2" | "greatest" | "least") => {
            call.args().iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The arguments of a function: many make an array of a literal, with a copy for each row.
fn arguments(expression: &Arc<dyn PhysicalExpr>) -> Vec<&Arc<dyn PhysicalExpr>> {
    expression.downcast_ref::<ScalarFunctionExpr>().map_or_else(Vec::new, |call| call.args().iter().collect())
}

fn large_literal_bytes(expression: &Arc<dyn PhysicalExpr>, with_views: bool) -> usize {
    let value = expression.downcast_ref::<Literal>().map(Literal::value);
    let value = value.filter(|value| with_views || !is_view(&value.data_type()));
    value.map_or(0, ScalarValue::size).checked_sub(LARGE_LITERAL_BYTES).map_or(0, |more| LARGE_LITERAL_BYTES + more)
}

/// Passes on rows in small batches, each part of one when its statement may go on.
fn small_batches(
    batches: SendableRecordBatchStream,
    cut: Cut,
    interrupt: Interrupt,
) -> impl Stream<Item = Result<RecordBatch>> {
    let cut = move |batch: RecordBatch| {
        let parts = cut.parts(&batch);
        let is_cut = parts.len() > 1;
        stream::iter(parts.into_iter().map(move |part| Ok((batch.slice(part.start, part.len()), is_cut))))
    };
    batches.map_ok(cut).try_flatten().and_then(move |(batch, is_cut)| {
        let interrupt = interrupt.clone();
        async move {
            if is_cut {
                tokio::task::yield_now().await;
                interrupt.passed().await?;
            }
            Ok(batch)
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use arrow::array::Int64Array;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use terrace_scan::pause::Pause;

    use super::*;

    #[tokio::test]
    async fn a_statement_waits_and_stops_within_a_batch_of_its_input() {
        let column = Int64Array::from_iter_values(0..10);
        let batch = RecordBatch::try_from_iter([("k", Arc::new(column) as _)]).unwrap();
        let input = RecordBatchStreamAdapter::new(batch.schema(), stream::iter([Ok(batch)]));
        let pause = Arc::new(Pause::default());
        let interrupt = Interrupt::new(None, Arc::clone(&pause));
        let mut small = std::pin::pin!(small_batches(
            Box::pin(input),
            Cut { rows: Some(4), copied: Vec::new() },
            interrupt.clone()
        ));
        assert_eq!(small.next().await.unwrap().unwrap().num_rows(), 4);
        pause.set(true);
        assert!(tokio::time::timeout(Duration::from_millis(50), small.next()).await.is_err(), "it waits");
        pause.set(false);
        assert_eq!(small.next().await.unwrap().unwrap().num_rows(), 4);
        interrupt.cancel();
        assert!(small.next().await.unwrap().is_err());
    }
}
