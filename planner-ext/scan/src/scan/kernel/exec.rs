//! The plan node that lets a device compute a part of the first half of an aggregate.
//!
//! Its input is that first half, as processors compute it. When it is executed it splits the chunks of the scan below: those
//! of which all columns have an image on the device go there, in one launch; all others, rows that are not sealed and chunks
//! with deleted rows go through the input. Both give rows to the same second half. Whatever fails on the device is computed by
//! processors, before a row of it was passed on.
//!
//! As in a scan, run-time state belongs to an execution: the n-th execution of each partition uses the n-th split.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{Boundedness, ChildrenPropertiesMode, EmissionType};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::{EmptyRecordBatchStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, ReplaceChildrenOptions,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use terrace_tier_store::heat::Pattern;
use terrace_tier_store::table::Chunk;
use terrace_tier_store::tier::hbm::device::program::{ChunkColumn, ChunkColumns, Program};
use terrace_tier_store::tier::hbm::device::scan::{ColumnRef, Scan};
use terrace_tier_store::tier::hbm::{DeviceImage, HbmTier};

use super::plan::{KernelPlan, scan_below};
use super::texts::Texts;
use crate::scan::counted_segments::CountedSegments;
use crate::scan::exec::TierScanExec;
use crate::scan::expected_reads::StatementScans;
use crate::scan::source::ScanSource;
use crate::session_options::Gpu;

/// Computes the first half of an aggregate, partly on a device.
#[derive(Debug)]
pub struct KernelExec {
    /// The first half, as processors compute it.
    input: Arc<dyn ExecutionPlan>,
    plan: Arc<KernelPlan>,
    source: Arc<ScanSource>,
    tier: Arc<HbmTier>,
    gpu: Gpu,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    executions: Mutex<Executions>,
}

/// How often each partition was executed, and the splits that some partition has yet to use.
#[derive(Debug, Default)]
struct Executions {
    counts: Vec<usize>,
    splits: HashMap<usize, Option<Arc<Split>>>,
}

/// The chunks of a scan, split between device and processors.
#[derive(Debug)]
struct Split {
    on_device: Arc<DeviceWork>,
    /// The first half over everything else.
    others: Arc<dyn ExecutionPlan>,
    /// The first half over what is on the device, should that fail.
    instead: Arc<dyn ExecutionPlan>,
}

/// A chunk of which the device has all columns.
#[derive(Debug)]
struct DeviceChunk {
    /// Position in the table version.
    item: u32,
    chunk: Arc<Chunk>,
    /// In the order of the columns of the plan. Kept until the kernels have ended.
    images: Vec<Arc<DeviceImage>>,
}

/// What one execution lets the device compute.
#[derive(Debug)]
struct DeviceWork {
    plan: Arc<KernelPlan>,
    tier: Arc<HbmTier>,
    chunks: Vec<DeviceChunk>,
    counted: Arc<CountedSegments>,
}

/// Expected times of the chunks that are on the device, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Prediction {
    /// On the device.
    device_us: f64,
    /// On processors.
    processors_us: f64,
}

impl KernelExec {
    /// Lets `tier` compute what it can of `input`, the first half of an aggregate whose plan for kernels is `plan`.
    pub(super) fn new(
        input: Arc<dyn ExecutionPlan>,
        plan: Arc<KernelPlan>,
        source: Arc<ScanSource>,
        tier: Arc<HbmTier>,
        gpu: Gpu,
    ) -> Self {
        // One partition more, for the device.
        let partitions = input.output_partitioning().partition_count() + 1;
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        let metrics = ExecutionPlanMetricsSet::new();
        Self { input, plan, source, tier, gpu, properties: Arc::new(properties), metrics, executions: Mutex::default() }
    }

    fn scan(&self) -> Option<&TierScanExec> {
        scan_below(self.input.downcast_ref::<AggregateExec>()?)
    }

    /// The chunks of the scan of which the device has all columns, as they are now.
    fn chunks(&self, scan: &TierScanExec) -> Vec<DeviceChunk> {
        let columns = self.plan.columns.positions();
        let on_device = |item: &u32| {
            let entry = self.source.chunk(*item).filter(|entry| entry.deletions.is_none())?;
            let chunk = Arc::clone(&entry.chunk);
            let image = |column: &usize| chunk.segments.get(*column)?.image.load_full();
            let images = columns.iter().map(image).collect::<Option<Vec<_>>>()?;
            Some(DeviceChunk { item: *item, chunk, images })
        };
        let is_lost = self.tier.lost().is_some();
        scan.config().chunks.iter().filter(|_| !is_lost).filter_map(on_device).collect()
    }

    /// The expected times of these chunks.
    fn prediction(&self, scan: &TierScanExec, chunks: &[DeviceChunk]) -> Prediction {
        let rates = self.tier.last_rates();
        let costs = self.source.store.costs();
        let home = self.source.home_tier();
        let mut device_us = rates.launch_us;
        let mut processors_us = 0.0;
        for DeviceChunk { chunk, images, .. } in chunks {
            let bytes: u64 = images.iter().map(|image| image.charged_bytes()).sum();
            device_us += bytes as f64 / rates.scan_bytes_per_us;
            for segment in self.plan.columns.positions().iter().filter_map(|column| chunk.segments.get(*column)) {
                let copy = segment.resident.load_full();
                let tier = copy.as_ref().map_or(home, |copy| copy.tier.id());
                let bytes = if copy.is_some() { segment.bytes() } else { segment.home.len };
                processors_us += costs.get(usize::from(tier.0)).map_or(0.0, |cost| cost.sweep_us(bytes));
            }
        }
        Prediction { device_us, processors_us: processors_us / scan.config().partitions.max(1) as f64 }
    }

    /// Splits the chunks of the scan; `None` when all of them go to processors.
    fn split(&self, context: &TaskContext) -> Result<Option<Split>> {
        let Some(scan) = self.scan() else { return Ok(None) };
        let chunks = self.chunks(scan);
        let Prediction { device_us, processors_us } = self.prediction(scan, &chunks);
        if chunks.is_empty() || self.gpu == Gpu::Auto && device_us > processors_us {
            return Ok(None);
        }
        let items: HashSet<u32> = chunks.iter().map(|chunk| chunk.item).collect();
        let others = restricted(&self.input, &|item| !items.contains(&item), true)?;
        let instead = restricted(&self.input, &|item| items.contains(&item), false)?;
        let plan = Arc::clone(&self.plan);
        let tier = Arc::clone(&self.tier);
        let counted = StatementScans::from_context(context).counted_segments(&self.source);
        let on_device = Arc::new(DeviceWork { plan, tier, chunks, counted });
        Ok(Some(Split { on_device, others, instead }))
    }

    /// The split of the next execution of a partition.
    fn next_split(&self, partition: usize, context: &TaskContext) -> Result<Option<Arc<Split>>> {
        let partitions = self.properties.output_partitioning().partition_count();
        let Executions { counts, splits } = &mut *self.executions.lock();
        counts.resize(partitions, 0);
        let execution = counts.get(partition).copied().unwrap_or(0);
        let split = match splits.get(&execution) {
            Some(split) => split.clone(),
            None => self.split(context)?.map(Arc::new),
        };
        splits.insert(execution, split.clone());
        if let Some(count) = counts.get_mut(partition) {
            *count += 1;
        }
        if counts.iter().all(|count| *count > execution) {
            splits.remove(&execution);
        }
        Ok(split)
    }

    /// Runs the part of a split that is on the device, or else the same on processors.
    fn device_stream(&self, partition: usize, split: &Split, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let counters = DeviceCounters::new(&self.metrics, partition);
        counters.chunks.add(split.on_device.chunks.len());
        let work = Arc::clone(&split.on_device);
        let rows = stream::once(device_rows(work, Arc::clone(&split.instead), context, counters));
        Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows.try_flatten()))
    }
}

/// The rows that the device computes; where it fails, those of `instead`.
async fn device_rows(
    work: Arc<DeviceWork>,
    instead: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    counters: DeviceCounters,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let time = counters.time.clone();
    let computed = tokio::task::spawn_blocking(move || {
        let _timer = time.timer();
        work.run()
    });
    let failed = match computed.await {
        Ok(Ok(batch)) => {
            counters.rows.add(batch.num_rows());
            return Ok(stream::iter([Ok(batch)]).boxed());
        }
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::debug!(why = failed, "a scan on the device failed; processors compute the same");
    counters.failures.add(1);
    on_processors(instead, context)
}

/// All rows of a plan, from whichever partition.
fn on_processors(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    Ok(CoalescePartitionsExec::new(plan).execute(0, context)?.boxed())
}

/// A plan over those chunks of its scan for which `keeps` is true, and over the delta if `has_delta`.
fn restricted(
    plan: &Arc<dyn ExecutionPlan>,
    keeps: &dyn Fn(u32) -> bool,
    has_delta: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let restrict = |node: Arc<dyn ExecutionPlan>| {
        Ok(match node.downcast_ref::<TierScanExec>() {
            Some(scan) => Transformed::yes(scan.with_items(keeps, has_delta)?),
            None => Transformed::no(node),
        })
    };
    Arc::clone(plan).transform_up(restrict).data()
}

impl DeviceWork {
    /// Computes the rows, and counts what was read. Blocks.
    fn run(&self) -> Result<RecordBatch> {
        let batch = self.compute()?;
        for DeviceChunk { item, chunk, .. } in &self.chunks {
            for column in self.plan.columns.positions() {
                let Some(segment) = chunk.segments.get(*column) else { continue };
                let values = u64::from(chunk.rows);
                if self.counted.count(*item, *column, segment, Pattern::Sequential, values) {
                    segment.counters.record_kernel();
                }
            }
        }
        Ok(batch)
    }

    fn compute(&self) -> Result<RecordBatch> {
        let mut texts: HashMap<u32, Texts> =
            self.plan.text_columns().map(|column| (column, Texts::default())).collect();
        let chunks = self.chunks.iter().map(|chunk| self.columns(chunk, &mut texts)).collect::<Option<Vec<_>>>();
        let Some(chunks) = chunks else { return internal_err!("an image of texts without a dictionary") };
        let filter = self.plan.filter.filter(&texts)?;
        let (Some(filter), Some(measures)) = (filter, self.plan.measures.with_codes(&texts)?) else {
            return Err(DataFusionError::NotImplemented("a condition that is unknown for a text, on a device".into()));
        };
        let keys = self.plan.keys.iter().map(|key| ColumnRef::Chunk(*key)).collect();
        let scan = Scan { filter, keys, measures };
        let device = self.tier.device().as_ref();
        let computed = Program::new(device, &scan, &chunks, &[]).and_then(|mut program| {
            program.launch(device)?;
            program.groups(device)
        });
        let groups = computed.map_err(|error| DataFusionError::External(Box::new(self.tier.noted(error))))?;
        self.plan.rows(&groups, &texts)
    }

    /// The columns of a chunk as kernels read them; `None` where keys of texts have no dictionary.
    fn columns(&self, chunk: &DeviceChunk, texts: &mut HashMap<u32, Texts>) -> Option<ChunkColumns> {
        let positions = self.plan.columns.positions();
        let column = |((image, position), number): ((&Arc<DeviceImage>, &usize), u32)| {
            let codes = match texts.get_mut(&number) {
                Some(texts) => {
                    let encoding = &chunk.chunk.segments.get(*position)?.home.encoding;
                    Some(texts.codes(encoding.dictionary()?.values()))
                }
                None => None,
            };
            Some(ChunkColumn { column: Arc::clone(&image.column), codes })
        };
        let columns = chunk.images.iter().zip(positions).zip(0..).map(column).collect::<Option<Vec<_>>>()?;
        Some(ChunkColumns { rows: chunk.chunk.rows, columns })
    }
}

/// Counters of the partition of the device.
struct DeviceCounters {
    chunks: Count,
    rows: Count,
    failures: Count,
    time: Time,
}

impl DeviceCounters {
    fn new(set: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self {
            chunks: MetricBuilder::new(set).counter("chunks_on_device", partition),
            rows: MetricBuilder::new(set).counter("groups_of_device", partition),
            failures: MetricBuilder::new(set).counter("device_failures", partition),
            time: MetricBuilder::new(set).subset_time("device_time", partition),
        }
    }
}

impl DisplayAs for KernelExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let emulated = if self.tier.emulated() { " (emulated)" } else { "" };
        let name = self.tier.name();
        let fields = self.source.schema().fields();
        let columns = self.plan.columns.positions().iter().filter_map(|column| fields.get(*column));
        let columns: Vec<&str> = columns.map(|field| field.name().as_str()).collect();
        if t == DisplayFormatType::TreeRender {
            return writeln!(f, "device={name}{emulated}");
        }
        write!(f, "KernelExec: device={name}{emulated}, gpu={}, columns=[{}]", self.gpu, columns.join(", "))?;
        let Some(scan) = self.scan().filter(|_| self.source.shows_figures()) else { return Ok(()) };
        let chunks = self.chunks(scan);
        write!(f, ", chunks={} of {}", chunks.len(), scan.config().chunks.len())?;
        if chunks.is_empty() {
            return Ok(());
        }
        let Prediction { device_us, processors_us } = self.prediction(scan, &chunks);
        let runs = self.gpu == Gpu::Force || device_us <= processors_us;
        let chosen = if runs { "device" } else { "processors" };
        write!(f, ", expected: device {device_us:.0} us, processors {processors_us:.0} us, chosen: {chosen}")
    }
}

impl ExecutionPlan for KernelExec {
    fn name(&self) -> &str {
        "KernelExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .or_else(|children| internal_err!("KernelExec with {} children", children.len()))?;
        let plan = Arc::clone(&self.plan);
        let source = Arc::clone(&self.source);
        Ok(Arc::new(Self::new(input, plan, source, Arc::clone(&self.tier), self.gpu)))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let device = self.input.output_partitioning().partition_count();
        if partition > device {
            return internal_err!("partition {partition} of KernelExec with {}", device + 1);
        }
        let split = self.next_split(partition, &context)?;
        match split {
            Some(split) if partition == device => Ok(self.device_stream(partition, &split, context)),
            Some(split) => split.others.execute(partition, context),
            None if partition == device => Ok(Box::pin(EmptyRecordBatchStream::new(self.schema()))),
            None => self.input.execute(partition, context),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        // The last partition is none of the input.
        vec![if partition.is_none() { ChildStats::At(None) } else { ChildStats::Skip }]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let whole = inputs.first().filter(|_| args.partition().is_none());
        // A group that the device finds may be one of the input, too.
        let statistics = whole.map(|whole| Statistics::clone(whole).to_inexact());
        Ok(Arc::new(statistics.unwrap_or_else(|| Statistics::new_unknown(&self.schema()))))
    }
}
