//! Gives sorts batches that keep no more memory than their rows need, so that sorts reserve the bytes of their rows.
//!
//! A sort of DataFusion reserves the buffers of each batch of its input whole, twice, and counts them again for each batch
//! of a sorted run (sorts/sort.rs `get_reserved_bytes_for_record_batch`, `sort_batch_stream`). Batches that a scan cut from
//! a chunk share the chunk's pages, those that an aggregation returns are slices of all its groups, and those that Arrow's
//! coalescer made have text buffers of 1 MiB that may be nearly empty: the sort spills early, or fails when a single batch
//! does not fit. Below a sort, large batches are therefore cut, small ones are joined, and those that keep much more than
//! their rows need are copied ([`compact`]). Most batches of numbers pass as they are.
//!
//! The rows of a sort refer to the texts of all batches that were merged into them, and a merge of sorted partitions counts
//! these, and keeps them, for each batch. Below such a merge, texts are therefore copied.
//!
//! A sort with a limit keeps the best rows only and compacts them itself, so it is not changed. Nested-loop and cross joins
//! keep and count the batches of their left side in the same way, and get the same operator there. A hash join's build
//! side counts a shared page once and copies what keeps too much (`terrace_scan`'s `spilling_join`).
//!
//! Upstream: <https://github.com/apache/datafusion/issues/12136> (External sorting not working for string columns),
//! open; can go when the tests `a_clustered_ingest_larger_than_query_memory_spills_and_is_sorted`,
//! `a_sort_of_texts_reserves_the_bytes_of_its_rows` and
//! `test_every_way_of_loading_sorts_more_than_its_memory` (tests/python/test_load.py) pass without it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{Stream, StreamExt, TryStreamExt};
use terrace_scan::compact;

use super::stream_exec::StreamExec;

/// Name of the operator that passes on rows, in their order, in batches of the session's size with buffers of their own.
const EVEN_BATCHES: &str = "EvenBatchesExec";

/// Name of the operator that copies the texts of batches.
const OWN_TEXTS: &str = "OwnTextsExec";

/// Adds such operators below those that keep the batches of their input and count them whole.
pub(super) fn with_even_sorts(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        if is_merge_of_texts(node.as_ref()) {
            let texts = node.children().into_iter().map(|input| {
                let own =
                    |batches: SendableRecordBatchStream, _: &TaskContext| batches.map(|batch| compact(batch?)).boxed();
                Arc::new(StreamExec::new(OWN_TEXTS, Arc::clone(input), own)) as Arc<dyn ExecutionPlan>
            });
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            return Ok(Transformed::yes(Arc::clone(&node).replace_children(texts.collect(), options)?));
        }
        let Some(input) = kept_input(node.as_ref()).filter(|input| input.name() != EVEN_BATCHES) else {
            return Ok(Transformed::no(node));
        };
        let even = |batches: SendableRecordBatchStream, context: &TaskContext| {
            even_batches(batches, context.session_config().batch_size()).boxed()
        };
        let even: Arc<dyn ExecutionPlan> = Arc::new(StreamExec::new(EVEN_BATCHES, Arc::clone(input), even));
        let others = node.children().into_iter().skip(1).cloned();
        let children = std::iter::once(even).chain(others).collect();
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(node.replace_children(children, options)?))
    })
    .data()
}

/// Whether a merge of several partitions has columns of values of no fixed width.
fn is_merge_of_texts(node: &dyn ExecutionPlan) -> bool {
    let is_fixed = |data_type: &DataType| data_type.is_primitive() || data_type == &DataType::Boolean;
    node.downcast_ref::<SortPreservingMergeExec>().is_some_and(|merge| {
        let partitions = merge.input().output_partitioning().partition_count();
        partitions > 1 && !node.schema().fields().iter().all(|field| is_fixed(field.data_type()))
    })
}

/// The first input of an operator, if the operator keeps its batches and counts them whole.
fn kept_input(node: &dyn ExecutionPlan) -> Option<&Arc<dyn ExecutionPlan>> {
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        return sort.fetch().is_none().then(|| sort.input());
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        return Some(join.left());
    }
    Some(node.downcast_ref::<CrossJoinExec>()?.left())
}

/// Passes on rows in batches of at most `rows` rows, of which no two in turn would fit into one.
fn even_batches(batches: SendableRecordBatchStream, rows: usize) -> impl Stream<Item = Result<RecordBatch>> + use<> {
    let small = SmallBatches { schema: batches.schema(), most_rows: rows.max(1), waiting: Vec::new(), waiting_rows: 0 };
    futures::stream::try_unfold((batches, Some(small)), async |(mut batches, mut small)| {
        loop {
            let Some(waiting) = &mut small else { return Ok::<_, DataFusionError>(None) };
            let even = match batches.next().await {
                Some(batch) => waiting.push(batch?)?,
                None => {
                    let last = waiting.take()?;
                    small = None;
                    last.into_iter().collect()
                }
            };
            if !even.is_empty() {
                let even = futures::stream::iter(even).map(compact);
                return Ok(Some((even, (batches, small))));
            }
        }
    })
    .try_flatten()
}

/// Batches that wait for more rows.
struct SmallBatches {
    schema: SchemaRef,
    /// Most rows of a batch that is passed on.
    most_rows: usize,
    waiting: Vec<RecordBatch>,
    waiting_rows: usize,
}

impl SmallBatches {
    /// Adds a batch; returns those that are complete.
    fn push(&mut self, batch: RecordBatch) -> Result<Vec<RecordBatch>> {
        let mut complete = Vec::new();
        for start in (0..batch.num_rows()).step_by(self.most_rows) {
            let part = batch.slice(start, self.most_rows.min(batch.num_rows() - start));
            if self.waiting_rows + part.num_rows() > self.most_rows {
                complete.extend(self.take()?);
            }
            self.waiting_rows += part.num_rows();
            self.waiting.push(part);
            if self.waiting_rows == self.most_rows {
                complete.extend(self.take()?);
            }
        }
        Ok(complete)
    }

    /// The rows that wait, as one batch.
    fn take(&mut self) -> Result<Option<RecordBatch>> {
        self.waiting_rows = 0;
        let waiting = std::mem::take(&mut self.waiting);
        Ok(match waiting.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            several => Some(concat_batches(&self.schema, several)?),
        })
    }
}
