//! Computes window functions over whole partitions one partition at a time, and reserves what it keeps.
//!
//! DataFusion's `WindowAggExec` keeps all of its input, copies it into one batch, and returns one batch with all rows; it
//! reserves none of this (windows/window_agg_exec.rs `compute_aggregates`). Its input is sorted by the partition keys, so
//! this operator keeps the rows of one partition only, and returns batches of the session's size. A partition that does not fit into
//! query memory ends the statement with the error of the pool.
//!
//! - `texts`: lets windows over sorted rows free the texts of the rows that they have returned.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/22946> (Support spilling for WindowAggExec), open; can go when
//! the test `windows_keep_one_partition_and_reserve_it` passes without it.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::{concat, concat_batches};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::internal_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, Statistics};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use terrace_scan::compact;

mod texts;

pub(super) use texts::with_copied_texts;

/// Replaces each operator of DataFusion that keeps the whole input of its windows.
pub(super) fn with_partitioned_windows(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some(window) = node.downcast_ref::<WindowAggExec>() else { return Ok(Transformed::no(node)) };
        Ok(Transformed::yes(Arc::new(PartitionedWindowExec::new(window.clone())) as Arc<dyn ExecutionPlan>))
    })
    .data()
}

/// A [`WindowAggExec`] that keeps the rows of one partition.
#[derive(Debug)]
pub(super) struct PartitionedWindowExec {
    window: WindowAggExec,
    metrics: ExecutionPlanMetricsSet,
}

impl PartitionedWindowExec {
    fn new(window: WindowAggExec) -> Self {
        Self { window, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for PartitionedWindowExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => {}
            _ => f.write_str("Partitioned")?,
        }
        self.window.fmt_as(t, f)
    }
}

impl ExecutionPlan for PartitionedWindowExec {
    fn name(&self) -> &'static str {
        "PartitionedWindowAggExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.window.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.window.input()]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.window.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let window: Arc<dyn ExecutionPlan> = Arc::new(self.window.clone());
        match window.replace_children(children, options)?.downcast_ref::<WindowAggExec>() {
            Some(window) => Ok(Arc::new(Self::new(window.clone()))),
            None => internal_err!("WindowAggExec became another operator"),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = context.session_config().batch_size().max(1);
        let open = OpenPartition {
            window: self.window.window_expr().to_vec(),
            schema: self.schema(),
            batches: Vec::new(),
            last_keys: Vec::new(),
            counter: RecordBatchMemoryCounter::new(),
            memory: MemoryConsumer::new(format!("{}[{partition}]", self.name())).register(context.memory_pool()),
        };
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let input = self.window.input().execute(partition, context)?;
        let batches = windows(input, open, rows, metrics);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.window.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.window.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.window.cardinality_effect()
    }
}

/// The rows of `input` with the values of their windows, in batches of at most `rows` rows.
fn windows(
    input: SendableRecordBatchStream,
    open: OpenPartition,
    rows: usize,
    metrics: BaselineMetrics,
) -> impl Stream<Item = Result<RecordBatch>> {
    let elapsed = metrics.elapsed_compute().clone();
    let computed = stream::try_unfold((input, open, false), move |(mut input, mut open, has_ended)| {
        let elapsed = elapsed.clone();
        async move {
            // The rows that were returned last have been taken.
            open.settle()?;
            if has_ended {
                return Ok::<_, DataFusionError>(None);
            }
            loop {
                let batch = input.next().await.transpose()?;
                let has_ended = batch.is_none();
                let timer = elapsed.timer();
                let complete = match batch {
                    Some(batch) => open.push(batch)?,
                    None => std::mem::take(&mut open.batches),
                };
                let computed = open.compute(&complete)?;
                drop((timer, complete));
                if computed.is_some() || has_ended {
                    let even = stream::iter(computed).flat_map(move |batch| even_batches(batch, rows));
                    return Ok(Some((even, (input, open, has_ended))));
                }
            }
        }
    });
    computed.try_flatten().map_ok(move |batch| batch.record_output(&metrics))
}

/// The rows in batches of at most `rows` rows. Several have buffers of their own: operators count those of each batch whole.
fn even_batches(batch: RecordBatch, rows: usize) -> impl Stream<Item = Result<RecordBatch>> {
    let count = batch.num_rows();
    stream::iter((0..count).step_by(rows)).map(move |start| match count <= rows {
        true => Ok(batch.clone()),
        false => compact(batch.slice(start, rows.min(count - start))),
    })
}

/// The rows that were read of a partition whose end was not.
struct OpenPartition {
    window: Vec<Arc<dyn WindowExpr>>,
    /// With the columns of the windows.
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// The partition keys of the last row.
    last_keys: Vec<ArrayRef>,
    /// What the batches keep.
    counter: RecordBatchMemoryCounter,
    memory: MemoryReservation,
}

impl OpenPartition {
    /// Adds rows. Returns those of the partitions that are complete.
    fn push(&mut self, batch: RecordBatch) -> Result<Vec<RecordBatch>> {
        if batch.num_rows() == 0 {
            return Ok(Vec::new());
        }
        let keys = self.keys(&batch)?;
        let start = ranges(&keys, batch.num_rows())?.last().map_or(0, |last| last.start);
        let is_other = start > 0 || !self.continues(&keys)?;
        self.last_keys = keys.iter().map(|key| key.slice(key.len() - 1, 1)).collect();
        self.memory.try_grow(self.counter.count_batch(&batch))?;
        if !is_other {
            self.batches.push(batch);
            return Ok(Vec::new());
        }
        let mut complete = std::mem::take(&mut self.batches);
        if start > 0 {
            complete.push(batch.slice(0, start));
        }
        self.batches.push(batch.slice(start, batch.num_rows() - start));
        Ok(complete)
    }

    /// The partition keys of all rows.
    fn keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        // All windows of an operator have the same partitions.
        let keys = self.window.first().map_or(&[][..], |window| window.partition_by());
        keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows())).collect()
    }

    /// Whether the first row of `keys` belongs to the partition of the last one that was read.
    fn continues(&self, keys: &[ArrayRef]) -> Result<bool> {
        if self.batches.is_empty() {
            return Ok(true);
        }
        let both = self.last_keys.iter().zip(keys).map(|(last, key)| concat(&[last.as_ref(), &key.slice(0, 1)]));
        let both = both.collect::<Result<Vec<_>, _>>()?;
        Ok(ranges(&both, 2)?.len() == 1)
    }

    /// Computes the windows of whole partitions.
    fn compute(&mut self, batches: &[RecordBatch]) -> Result<Option<RecordBatch>> {
        let Some(first) = batches.first() else { return Ok(None) };
        if batches.len() > 1 {
            self.memory.try_grow(batches.iter().map(copied_bytes).sum())?;
        }
        let batch = concat_batches(&first.schema(), batches)?;
        let mut partitions = Vec::with_capacity(self.window.len());
        let ranges = ranges(&self.keys(&batch)?, batch.num_rows())?;
        for window in &self.window {
            let values = ranges.iter().map(|range| window.evaluate(&batch.slice(range.start, range.len())));
            partitions.push(values.collect::<Result<Vec<_>>>()?);
        }
        let mut columns = batch.columns().to_vec();
        for partitions in partitions {
            columns.push(concat(&partitions.iter().map(AsRef::as_ref).collect::<Vec<_>>())?);
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.count(Some(&batch))?;
        Ok(Some(batch))
    }

    /// Reserves what is kept now, and not what was returned.
    fn settle(&mut self) -> Result<()> {
        self.count(None)
    }

    /// Reserves what is kept now, and `returned` besides.
    fn count(&mut self, returned: Option<&RecordBatch>) -> Result<()> {
        self.counter = RecordBatchMemoryCounter::new();
        for batch in self.batches.iter().chain(returned) {
            self.counter.count_batch(batch);
        }
        self.memory.try_resize(self.counter.memory_usage())
    }
}

/// Places of the rows of each partition.
fn ranges(keys: &[ArrayRef], rows: usize) -> Result<Vec<std::ops::Range<usize>>> {
    let keys: Vec<_> =
        keys.iter().map(|key| arrow::compute::SortColumn { values: Arc::clone(key), options: None }).collect();
    evaluate_partition_ranges(rows, &keys)
}

/// What a copy of a batch takes: texts stay where they are.
fn copied_bytes(batch: &RecordBatch) -> usize {
    let bytes = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8View | DataType::BinaryView => column.len() * size_of::<u128>(),
        // Values are shared or merged.
        DataType::Dictionary(keys, _) => column.len() * keys.primitive_width().unwrap_or(size_of::<u64>()),
        _ => column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_buffer_memory_size()),
    };
    batch.columns().iter().map(bytes).sum()
}
