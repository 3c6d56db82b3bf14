//! Fetches columns of rows that are known by their positions.
//!
//! [`FetchExec`] completes the few rows that an operator below it left: it reads their wide columns, only the blocks
//! that are needed, while the scan below never read these columns. Several chunks are read at a time; the values for a
//! batch are put into the order of its rows.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat, take};
use arrow::datatypes::{DataType, SchemaRef, UInt64Type};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::ChildrenPropertiesMode;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use terrace_tier_store::heat::Sample;
use terrace_tier_store::io::Level;
use terrace_tier_store::table::{Chunk, TableVersion};
use terrace_tier_store::tier::reader::Admission;

use super::cold::ChunkRead;
use super::emitted_texts::EmittedTexts;
use super::exec::TierScanExec;
use super::expected_reads::StatementScans;
use super::late::SelectedRows;
use super::metrics::{ScanMetrics, WaitTimer, shown_metrics};
use super::observer::{ScanCounts, ScanObserver};
use super::open::{OpenChunk, Opening};
use super::queue::ScanSpec;
use super::source::ScanSource;
use super::trace::Reader;

/// Chunks read at once; one if the I/O budget has no room.
const CHUNKS_AT_ONCE: usize = 4;

/// Where a column of the output comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A column of the input.
    Input(usize),
    /// A fetched column: its position in [`FetchExec::columns`].
    Fetched(usize),
}

/// Adds columns of a table to rows whose positions the input has.
#[derive(Debug)]
pub struct FetchExec {
    input: Arc<dyn ExecutionPlan>,
    source: Arc<ScanSource>,
    /// The input's column of row positions.
    position: usize,
    /// Columns of the table to fetch.
    columns: Vec<usize>,
    outputs: Vec<Origin>,
    /// Its level in its plan; none before the plan is complete.
    level: Level,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl FetchExec {
    /// `position` is the input's column of row positions, `columns` are those of the table to fetch. `properties` are
    /// those of the plan that this node replaces: the same rows in the same order.
    pub(super) fn new(
        input: Arc<dyn ExecutionPlan>,
        source: Arc<ScanSource>,
        columns: Vec<usize>,
        position: usize,
        outputs: Vec<Origin>,
        properties: Arc<PlanProperties>,
    ) -> Self {
        let metrics = ExecutionPlanMetricsSet::new();
        Self { input, source, position, columns, outputs, level: Level::NONE, properties, metrics }
    }

    /// Like this node, but at a level of its plan.
    pub(super) fn at_level(&self, level: Level) -> Self {
        Self {
            input: Arc::clone(&self.input),
            source: Arc::clone(&self.source),
            position: self.position,
            columns: self.columns.clone(),
            outputs: self.outputs.clone(),
            level,
            properties: Arc::clone(&self.properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The segments that rows may be fetched from: chunks, each with the position of a column.
    pub fn segments(&self) -> Result<Vec<(Arc<Chunk>, usize)>> {
        let mut found = Vec::new();
        self.input.apply(|node| {
            if let Some(scan) = node.downcast_ref::<TierScanExec>() {
                found.extend(scan.segments_of(&self.columns));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(found)
    }

    /// The table that it fetches from.
    pub fn source(&self) -> &Arc<ScanSource> {
        &self.source
    }

    fn names(&self) -> Vec<&str> {
        let fields = self.source.schema().fields();
        self.columns.iter().filter_map(|column| Some(fields.get(*column)?.name().as_str())).collect()
    }

    fn spec(&self, context: &TaskContext) -> ScanSpec {
        let scans = StatementScans::from_context(context);
        let tally = scans.add_scan(&self.source, self.columns.len(), 1);
        let metrics = ScanMetrics::new(&self.metrics, &self.source);
        let counts = ScanCounts {
            metrics: metrics.clone(),
            tally: Arc::clone(&tally),
            counted_segments: scans.counted_segments(&self.source),
            is_for_kernels: false,
        };
        let trace = scans.trace_scan(Reader::Fetch, &self.source, &counts);
        ScanSpec {
            source: Arc::clone(&self.source),
            statement: scans.id(),
            level: self.source.begin_reads(self.level, &self.columns),
            asked_bytes: AtomicU64::new(0),
            columns: self.columns.clone(),
            output: (0..self.columns.len()).collect(),
            schema: self.schema(),
            emitted_schema: self.schema(),
            texts: EmittedTexts::Views,
            conjuncts: Vec::new().into(),
            slice_rows: super::SLICE_ROWS,
            fetch: None,
            metrics,
            tally,
            trace,
            observer: ScanObserver::new(&self.source, &self.columns, super::SLICE_ROWS, counts),
        }
    }
}

impl DisplayAs for FetchExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.source.table.name();
        let columns = self.names().join(", ");
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "table={table}\ncolumns={columns}"),
            _ => write!(f, "FetchExec: table={table}, columns=[{columns}], by position at {}", self.level),
        }
    }
}

impl ExecutionPlan for FetchExec {
    fn name(&self) -> &str {
        "FetchExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
            .or_else(|children| internal_err!("FetchExec with {} children", children.len()))?;
        Ok(Arc::new(Self { input, ..self.at_level(self.level) }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let memory = MemoryConsumer::new("Fetch").register(context.memory_pool());
        let spec = Arc::new(self.spec(&context));
        let schema = self.schema();
        let position = self.position;
        let outputs = self.outputs.clone();
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let wait = Mutex::new(WaitTimer::new(&self.metrics, partition, Arc::clone(&spec.tally)));
        let fetcher = Arc::new(Fetcher {
            spec,
            schema: Arc::clone(&schema),
            position,
            outputs,
            memory,
            baseline,
            wait,
            beyond_budget: Default::default(),
        });
        let rows = input.and_then(move |batch| Arc::clone(&fetcher).complete(batch));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(shown_metrics(&self.source, &self.metrics))
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        if let Some(input) = inputs.first() {
            statistics.num_rows = input.num_rows;
        }
        Ok(Arc::new(statistics))
    }
}

/// One execution of a partition.
struct Fetcher {
    spec: Arc<ScanSpec>,
    schema: SchemaRef,
    position: usize,
    outputs: Vec<Origin>,
    memory: MemoryReservation,
    baseline: BaselineMetrics,
    /// Waits of the partition for all reads of a batch together.
    wait: Mutex<WaitTimer>,
    /// Held by the one read that is admitted although the I/O budget has no room.
    beyond_budget: futures::lock::Mutex<()>,
}

/// Rows to fetch of one item.
struct WantedRows {
    item: u32,
    /// Ascending.
    rows: Vec<u32>,
    /// Sample of the rows in the order of the batch.
    sample: Sample,
}

impl Fetcher {
    /// Adds the fetched columns to a batch of the input.
    async fn complete(self: Arc<Self>, batch: RecordBatch) -> Result<RecordBatch> {
        self.spec.tally.begin();
        let Some(positions) = batch.columns().get(self.position).and_then(|c| c.as_primitive_opt::<UInt64Type>())
        else {
            return internal_err!("the input of FetchExec has no row positions");
        };
        let mut order: Vec<(u64, u32)> = positions.values().iter().copied().zip(0..).collect();
        order.sort_unstable();
        let same_item =
            |a: &(u64, u32), b: &(u64, u32)| TableVersion::item_and_row(a.0).0 == TableVersion::item_and_row(b.0).0;
        let wanted = order.chunk_by(same_item).filter_map(|sorted| {
            let rows = sorted.iter().map(|(position, _)| TableVersion::item_and_row(*position).1).collect();
            let (item, _) = TableVersion::item_and_row(sorted.first()?.0);
            Some(WantedRows { item, rows, sample: Sample::from_positions(sorted) })
        });
        let wanted: Vec<WantedRows> = wanted.collect();
        let parts = stream::iter(wanted).map(|wanted| self.fetch_item(wanted)).buffered(CHUNKS_AT_ONCE);
        let mut parts = std::pin::pin!(parts.try_collect());
        let parts: Vec<Vec<ArrayRef>> = std::future::poll_fn(|cx| {
            self.wait.lock().stop();
            let parts = parts.as_mut().poll(cx);
            if parts.is_pending() {
                self.wait.lock().start();
            }
            parts
        })
        .await?;
        // For each row of the batch its place among the fetched rows, which are in the order of positions.
        let mut places = vec![0; order.len()];
        for ((_, row), place) in order.iter().zip(0_u32..) {
            if let Some(slot) = places.get_mut(*row as usize) {
                *slot = place;
            }
        }
        let places = UInt32Array::from(places);
        let fetched = |slot: usize| -> Result<ArrayRef> {
            let parts: Vec<&dyn Array> = parts.iter().filter_map(|part| Some(part.get(slot)?.as_ref())).collect();
            Ok(take(&concat(&parts)?, &places, None)?)
        };
        let columns = self.outputs.iter().map(|origin| match origin {
            Origin::Input(column) => Ok(Arc::clone(batch.column(*column))),
            Origin::Fetched(slot) if batch.num_rows() > 0 => fetched(*slot),
            Origin::Fetched(slot) => Ok(arrow::array::new_empty_array(self.type_of(*slot))),
        });
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let completed = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        self.memory.free();
        self.spec.tally.end();
        self.spec.trace.end();
        self.baseline.record_output(completed.num_rows());
        Ok(completed)
    }

    fn type_of(&self, slot: usize) -> &DataType {
        let column = self.spec.columns.get(slot).copied().unwrap_or(0);
        self.spec.source.schema().field(column).data_type()
    }

    /// Waits for a read and opens its chunk.
    async fn arrived(&self, read: ChunkRead) -> Result<Arc<OpenChunk>> {
        let chunk = read.await.1.open()?;
        self.wait.lock().ended_by(chunk.read_class());
        Ok(Arc::new(chunk))
    }

    /// Fetches the columns of an item's rows.
    async fn fetch_item(&self, wanted: WantedRows) -> Result<Vec<ArrayRef>> {
        let selected = SelectedRows::from_rows(&wanted.rows, self.spec.slice_rows);
        let ranges: Vec<Range<usize>> = selected.ranges().to_vec();
        let mut beyond = None;
        let chunk = match OpenChunk::open(&self.spec, wanted.item)? {
            Opening::Now(chunk) => chunk,
            Opening::Cold(part) => match part.for_rows(selected).read(Admission::Prefetch)? {
                Ok(read) => self.arrived(read).await?,
                Err(part) => {
                    beyond = Some(self.beyond_budget.lock().await);
                    match part.read(Admission::Guaranteed)? {
                        Ok(read) => self.arrived(read).await?,
                        Err(_) => return internal_err!("the store refused a read with guaranteed admission"),
                    }
                }
            },
        };
        chunk.note(chunk.rows(), wanted.rows.len(), || wanted.sample);
        let columns = (0..self.spec.columns.len()).map(|slot| {
            let mut rows = wanted.rows.iter().map(|row| *row as usize).peekable();
            let mut parts = Vec::with_capacity(ranges.len());
            for range in &ranges {
                let within = std::iter::from_fn(|| rows.next_if(|row| *row < range.end));
                let within: UInt32Array = within.map(|row| Some((row - range.start) as u32)).collect();
                parts.push(take(&chunk.slice(slot, range)?, &within, None)?);
                chunk.touch(slot, range.len());
            }
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            let column = compact(concat(&parts)?);
            self.memory.try_grow(column.get_array_memory_size())?;
            Ok(column)
        });
        let columns = columns.collect();
        OpenChunk::release(chunk);
        drop(beyond);
        columns
    }
}

/// Copies the bytes that the values need: a view of one text would keep the texts beside it in memory.
fn compact(column: ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()),
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => column,
    }
}
