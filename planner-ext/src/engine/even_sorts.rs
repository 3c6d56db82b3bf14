//! Splits the input of sorts into batches that share no buffers, so that sorts reserve only the bytes of their rows.
//!
//! A sort of DataFusion reserves the buffers of each batch of its input, and counts them again for each batch of a sorted
//! run (sorts/sort.rs `sort_batch_stream`). Views of one chunk share their text buffers, so that a batch of 8,192 rows
//! counts the texts of 65,536: the sort spills early, or fails when a single batch does not fit. Below a sort, rows
//! with views are therefore copied into batches of even size that share no buffers.
//!
//! A sort with a limit keeps the best rows only and compacts them itself, so it is not changed.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/12136> (External sorting not working for string columns),
//! open; can go when the test `a_clustered_ingest_larger_than_query_memory_spills_and_is_sorted` and
//! `test_every_way_of_loading_sorts_more_than_its_memory` (tests/python/test_load.py) pass without it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::BatchCoalescer;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::sorts::sort::SortExec;
use futures::{Stream, StreamExt};

use super::stream_exec::StreamExec;

/// Name of the operator that copies rows, in their order, into batches of the session's size that share no buffers.
const EVEN_BATCHES: &str = "EvenBatchesExec";

/// Adds such an operator below each sort without a limit whose rows have views.
pub(super) fn with_even_sorts(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some(sort) = node.downcast_ref::<SortExec>() else { return Ok(Transformed::no(node)) };
        let input = sort.input();
        if sort.fetch().is_some() || !has_views(&input.schema()) || input.name() == EVEN_BATCHES {
            return Ok(Transformed::no(node));
        }
        let even = |batches: SendableRecordBatchStream, context: &TaskContext| {
            even_batches(batches, context.session_config().batch_size()).boxed()
        };
        let even: Arc<dyn ExecutionPlan> = Arc::new(StreamExec::new(EVEN_BATCHES, Arc::clone(input), even));
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(node.replace_children(vec![even], options)?))
    })
    .data()
}

fn has_views(schema: &SchemaRef) -> bool {
    schema.fields().iter().any(|field| matches!(field.data_type(), DataType::Utf8View | DataType::BinaryView))
}

/// Copies rows into batches of `rows` rows.
fn even_batches(batches: SendableRecordBatchStream, rows: usize) -> impl Stream<Item = Result<RecordBatch>> + use<> {
    let coalescer = Some(BatchCoalescer::new(batches.schema(), rows));
    let slices = batches.flat_map(move |batch| {
        let slices = batch.map(|batch| {
            let starts = (0..batch.num_rows()).step_by(rows);
            starts.map(move |start| batch.slice(start, rows.min(batch.num_rows() - start)))
        });
        match slices {
            Ok(slices) => futures::stream::iter(slices).map(Ok).boxed(),
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    });
    futures::stream::try_unfold((slices, coalescer), async |(mut slices, mut coalescer)| {
        loop {
            let Some(even) = &mut coalescer else { return Ok(None) };
            if let Some(batch) = even.next_completed_batch() {
                return Ok(Some((batch, (slices, coalescer))));
            }
            match slices.next().await {
                Some(slice) => even.push_batch(slice?)?,
                None => {
                    even.finish_buffered_batch()?;
                    let last = even.next_completed_batch();
                    return Ok(last.map(|batch| (batch, (slices, None))));
                }
            }
        }
    })
}
