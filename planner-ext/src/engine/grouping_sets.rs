//! Cuts the input of aggregations with many grouping sets into small batches.
//!
//! An aggregation makes one row per grouping set of each row of its input, for a whole batch at once: 8,192 rows under
//! `CUBE` of 12 columns are 33 million groups before it asks for memory, may spill, or can be stopped. With fewer rows in
//! a batch it does so after each, and before each one it lets other tasks go on, waits while memory is short, and stops if
//! it has to: some hundred rows take seconds.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::interrupt::Interrupt;
use super::stream_exec::StreamExec;

/// Most groups that an aggregation makes of one batch.
const GROUPS_PER_BATCH: usize = 65_536;

/// Adds an operator that cuts batches below each aggregation with many grouping sets.
pub(super) fn with_small_batches(
    plan: Arc<dyn ExecutionPlan>,
    interrupt: &Interrupt,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(Transformed::no(node)) };
        let sets = aggregate.group_expr().groups().len();
        // Later stages of an aggregation have the sets among their columns.
        if sets < 2 || aggregate.mode().input_mode() != AggregateInputMode::Raw {
            return Ok(Transformed::no(node));
        }
        let rows = (GROUPS_PER_BATCH / sets).max(1);
        let interrupt = interrupt.clone();
        let cut = move |batches: SendableRecordBatchStream, _: &TaskContext| {
            small_batches(batches, rows, interrupt.clone()).boxed()
        };
        let small: Arc<dyn ExecutionPlan> =
            Arc::new(StreamExec::new("CutBatchesExec", Arc::clone(aggregate.input()), cut));
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(node.replace_children(vec![small], options)?))
    })
    .data()
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
