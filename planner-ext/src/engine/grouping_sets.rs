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
use futures::{StreamExt, TryStreamExt, stream};

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
            let interrupt = interrupt.clone();
            let cut = move |batch: RecordBatch| {
                let starts = (0..batch.num_rows()).step_by(rows);
                stream::iter(starts.map(move |start| Ok(batch.slice(start, rows.min(batch.num_rows() - start)))))
            };
            let take_turn = move |batch| {
                let interrupt = interrupt.clone();
                async move {
                    tokio::task::yield_now().await;
                    interrupt.passed().await?;
                    Ok(batch)
                }
            };
            batches.map_ok(cut).try_flatten().and_then(take_turn).boxed()
        };
        let small: Arc<dyn ExecutionPlan> =
            Arc::new(StreamExec::new("CutBatchesExec", Arc::clone(aggregate.input()), cut));
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(node.replace_children(vec![small], options)?))
    })
    .data()
}
