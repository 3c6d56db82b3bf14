//! Cuts batches below operators that need much memory per row, before they ask for it.
//!
//! An aggregation with many grouping sets makes one row per grouping set of each row of its input, for a whole batch at once: 8,192 rows under
//! `CUBE` of 12 columns are 33 million groups before it asks for memory, may spill, or can be stopped. With fewer rows in
//! a batch it does so after each, and before each one it lets other tasks go on, waits while memory is short, and stops if
//! it has to: some hundred rows take seconds.
//!
//! A large literal, which may be a folded call such as `repeat('x', 200000)`, becomes an array with a copy for each row where it is an output
//! column: 1.6 GB of 8,192 rows, in one allocation. Not covered: columns that DataFusion computes within the scan of a file, and literals in
//! conditions and sort keys.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{CaseExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::projection::ProjectionExec;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::interrupt::Interrupt;
use super::stream_exec::StreamExec;

/// Most groups that an aggregation makes of one batch.
const GROUPS_PER_BATCH: usize = 65_536;

/// Literals from this size on count; a batch of 8,192 copies has 64 MiB.
const LARGE_LITERAL_BYTES: usize = 8 << 10;
/// Most bytes that the copies of large literals take in one batch, if one row of them does not take more.
const LITERAL_BYTES_PER_BATCH: usize = 16 << 20;

/// Adds an operator that cuts batches below each aggregation with many grouping sets, and below each operator that copies
/// large literals.
pub(super) fn with_small_batches(
    plan: Arc<dyn ExecutionPlan>,
    interrupt: &Interrupt,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some((input, rows)) = rows_per_batch(&node)? else { return Ok(Transformed::no(node)) };
        let interrupt = interrupt.clone();
        let cut = move |batches: SendableRecordBatchStream, _: &TaskContext| {
            small_batches(batches, rows, interrupt.clone()).boxed()
        };
        let small: Arc<dyn ExecutionPlan> = Arc::new(StreamExec::new("CutBatchesExec", input, cut));
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(node.replace_children(vec![small], options)?))
    })
    .data()
}

/// The input of an operator, and how many of its rows it should get at once; `None` where that does not matter.
fn rows_per_batch(node: &Arc<dyn ExecutionPlan>) -> Result<Option<(Arc<dyn ExecutionPlan>, usize)>> {
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        let rows = rows_beside_literals(projection.expr().iter().map(|output| &output.expr))?;
        return Ok(rows.map(|rows| (Arc::clone(projection.input()), rows)));
    }
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    // Later stages of an aggregation have the sets, and the values of arguments, among their columns.
    if aggregate.mode().input_mode() != AggregateInputMode::Raw {
        return Ok(None);
    }
    let sets = aggregate.group_expr().groups().len();
    let rows_by_sets = (sets > 1).then(|| (GROUPS_PER_BATCH / sets).max(1));
    let arguments = aggregate.aggr_expr().iter().flat_map(|function| function.expressions());
    let keys = aggregate.group_expr().expr().iter().map(|(key, _)| Arc::clone(key));
    let expressions: Vec<_> = arguments.chain(keys).collect();
    let rows_by_literals = rows_beside_literals(expressions.iter())?;
    let rows = rows_by_sets.into_iter().chain(rows_by_literals).min();
    Ok(rows.map(|rows| (Arc::clone(aggregate.input()), rows)))
}

/// How many copies of the large literals that are values of `outputs` a batch may have; `None` where there are none.
fn rows_beside_literals<'a>(outputs: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>) -> Result<Option<usize>> {
    let mut bytes = 0;
    for output in outputs {
        bytes += large_literal_bytes(output);
        output.apply(|part| {
            bytes += branches(part).into_iter().map(large_literal_bytes).sum::<usize>();
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(LITERAL_BYTES_PER_BATCH.checked_div(bytes).map(|rows| rows.max(1)))
}

/// The expressions of which an expression takes one as its value. Other functions take a literal once for all rows.
fn branches(expression: &Arc<dyn PhysicalExpr>) -> Vec<&Arc<dyn PhysicalExpr>> {
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

fn large_literal_bytes(expression: &Arc<dyn PhysicalExpr>) -> usize {
    let bytes = expression.downcast_ref::<Literal>().map_or(0, |literal| literal.value().size());
    if bytes >= LARGE_LITERAL_BYTES { bytes } else { 0 }
}

/// Passes on rows in batches of at most `rows` rows, each when its statement may go on.
fn small_batches(
    batches: SendableRecordBatchStream,
    rows: usize,
    interrupt: Interrupt,
) -> impl Stream<Item = Result<RecordBatch>> {
    let cut = move |batch: RecordBatch| {
        let starts = (0..batch.num_rows()).step_by(rows);
        stream::iter(starts.map(move |start| Ok(batch.slice(start, rows.min(batch.num_rows() - start)))))
    };
    batches.map_ok(cut).try_flatten().and_then(move |batch| {
        let interrupt = interrupt.clone();
        async move {
            tokio::task::yield_now().await;
            interrupt.passed().await?;
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
        let mut small = std::pin::pin!(small_batches(Box::pin(input), 4, interrupt.clone()));
        assert_eq!(small.next().await.unwrap().unwrap().num_rows(), 4);
        pause.set(true);
        assert!(tokio::time::timeout(Duration::from_millis(50), small.next()).await.is_err(), "it waits");
        pause.set(false);
        assert_eq!(small.next().await.unwrap().unwrap().num_rows(), 4);
        interrupt.cancel();
        assert!(small.next().await.unwrap().is_err());
    }
}
