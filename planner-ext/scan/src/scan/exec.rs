//! The plan node of a scan.
//!
//! Run-time state belongs to an execution, not to the plan: the n-th execution of each partition uses the n-th queue,
//! so a plan can be executed again. The order of rows is decided at plan time (see [`ScanOrder`]).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{
    AcrossPartitions, ConstExpr, DynamicFilterTracking, EquivalenceProperties, LexOrdering, Partitioning, PhysicalExpr,
    split_conjunction,
};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::{ProjectionExec, all_alias_free_columns, new_projections_for_columns};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions};
use parking_lot::Mutex;
use terrace_tier_store::io::Level;
use terrace_tier_store::table::Chunk;

use super::emitted_texts::EmittedTexts;
use super::expected_reads::StatementScans;
use super::filter::Conjunct;
use super::hot::HotScan;
use super::keys::JoinKeys;
use super::metrics::{ScanMetrics, WaitTimer, shown_metrics};
use super::observer::{ScanCounts, ScanObserver};
use super::pruning::{DynamicPruner, Verdict, judge_chunks};
use super::queue::{ScanQueue, ScanSpec};
use super::residency::Residency;
use super::source::ScanSource;
use super::statistics::scan_statistics;
use super::stream::ScanStream;
use super::text_codes::SharedCodes;
use super::trace::Reader;
use super::volume::volume;
use crate::hot_views::{ScanRequest, ScanView, Volume};

/// With more items than this per partition, the number of partitions need not be estimated.
const FEW_ITEMS: usize = 2;

/// How partitions share the chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanOrder {
    /// Partitions take chunks from one queue as they become ready; no order is declared.
    Stealing,
    /// Each partition has a range of chunks and emits in their order.
    Ordered,
}

/// Description of a scan.
#[derive(Debug, Clone)]
pub struct ScanConfig {
    /// The table version to read.
    pub source: Arc<ScanSource>,
    /// Columns of the table in the order of the output.
    pub projection: Vec<usize>,
    /// Conjuncts over the table's schema that every emitted row fulfils.
    pub filters: Vec<Arc<dyn PhysicalExpr>>,
    /// Conjuncts that change at run time, over the table's schema: applied where they help, without a guarantee.
    pub dynamic: Vec<Arc<dyn PhysicalExpr>>,
    /// Keys of the joins that publish some of the run-time filters.
    pub keys: Vec<Arc<JoinKeys>>,
    /// Positions of the chunks that may hold matching rows, ascending.
    pub chunks: Arc<[u32]>,
    /// Items of the delta to read, ascending: all of them, or those of a share of the scan.
    pub delta: Arc<[u32]>,
    /// Number of chunks that only membership filters exclude.
    pub denied: usize,
    /// The published hot views of the table, and the chunks that they exclude.
    pub(super) hot: HotScan,
    /// The request that is logged for the mining of hot views when the scan is executed.
    pub(super) request: Option<Arc<dyn ScanRequest>>,
    /// Number of run-time filters that the scan does without, because their producers are executed elsewhere.
    pub(super) unreached: usize,
    /// Rows after which each partition may stop.
    pub fetch: Option<usize>,
    /// How partitions share the chunks.
    pub order: ScanOrder,
    /// An order of the rows within each partition, over the output schema; makes the scan `Ordered`.
    pub ordering: Option<LexOrdering>,
    /// Output partitions.
    pub partitions: usize,
    /// The form in which texts and bytes are emitted.
    pub(super) texts: EmittedTexts,
    /// Chunks of the table version that other parts of the same scan, or its shares, answer for.
    pub(super) elsewhere: usize,
    /// Whether kernels of a device could make its reads.
    pub(super) is_for_kernels: bool,
    /// The level of the scan in its plan; none before the plan is complete, and where the scan has no filters and reads whole
    /// columns.
    pub level: Level,
}

impl ScanConfig {
    /// A scan of all rows and `projection`, on up to `target_partitions` partitions.
    pub fn new(
        source: Arc<ScanSource>,
        projection: Vec<usize>,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        fetch: Option<usize>,
        target_partitions: usize,
    ) -> Self {
        let all = (0..source.version.chunks.len() as u32).filter(|chunk| source.live_rows(*chunk) > 0);
        let dynamic = Vec::new();
        let order = ScanOrder::Stealing;
        let chunks = all.collect();
        let ordering = None;
        let keys = Vec::new();
        let delta = source.delta_items().collect();
        let mut config = Self {
            source,
            projection,
            filters: Vec::new(),
            dynamic,
            keys,
            chunks,
            delta,
            denied: 0,
            hot: HotScan::default(),
            request: None,
            unreached: 0,
            fetch,
            order,
            ordering,
            partitions: 1,
            texts: EmittedTexts::Views,
            elsewhere: 0,
            is_for_kernels: false,
            level: Level::NONE,
        };
        config.add_filters(filters);
        config.partitions = config.useful_partitions(target_partitions.max(1));
        config
    }

    /// Excludes the chunks that have no row of the views to which the scan is restricted.
    pub(crate) fn with_views(mut self, views: Vec<ScanView>, target_partitions: usize) -> Self {
        let (hot, chunks) = HotScan::new(&self.source, views, &self.chunks);
        if chunks.len() < self.chunks.len() {
            self.chunks = chunks.into();
            self.partitions = self.useful_partitions(target_partitions.max(1));
        }
        Self { hot, ..self }
    }

    /// Has executions logged for the mining of hot views.
    pub(crate) fn with_request(self, request: Option<Arc<dyn ScanRequest>>) -> Self {
        Self { request, ..self }
    }

    /// Number of partitions: no more than items, and for few items no more than pay.
    fn useful_partitions(&self, most: usize) -> usize {
        let items = self.needed_items().len();
        // With many items per partition all partitions pay, so the residency need not be estimated.
        let most = if items > FEW_ITEMS * most {
            most
        } else {
            most.min(self.residency().partitions(&self.source.store.costs()))
        };
        items.clamp(1, most)
    }

    /// Columns to read: those of the output first.
    pub(super) fn columns(&self) -> Vec<usize> {
        let mut columns: Vec<usize> = Vec::new();
        let filtered = self.filters.iter().chain(&self.dynamic).flat_map(collect_columns).map(|c| c.index());
        for column in self.projection.iter().copied().chain(filtered) {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        columns
    }

    /// Whether the scan leaves out rows, so that it may read a part of a column.
    pub(super) fn has_filters(&self) -> bool {
        !self.filters.is_empty() || !self.dynamic.is_empty()
    }

    /// The present residency of the segments to read.
    pub(super) fn residency(&self) -> Residency {
        Residency::new(self, &self.columns())
    }

    fn add_filters(&mut self, filters: Vec<Arc<dyn PhysicalExpr>>) {
        for filter in &filters {
            self.filters.extend(split_conjunction(filter).into_iter().cloned());
        }
        if let Some(verdicts) = judge_chunks(&self.source, &self.filters) {
            let verdict = |c: &u32| verdicts.get(*c as usize).copied().unwrap_or(Verdict::Keep);
            self.denied += self.chunks.iter().filter(|c| verdict(c) == Verdict::NoMember).count();
            self.chunks = self.chunks.iter().copied().filter(|c| verdict(c) == Verdict::Keep).collect();
            self.hot.retain(|c| verdict(c) == Verdict::Keep);
        }
    }

    /// Items that may hold matching rows.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        self.chunks.iter().chain(self.delta.iter()).copied()
    }

    /// Volume of `columns` that the scan would read if views excluded nothing.
    pub(super) fn volume(&self, columns: &[usize]) -> Volume {
        let chunks: Vec<u32> = self.chunks.iter().copied().chain(self.hot.pruned()).collect();
        volume(&self.source, &chunks, columns)
    }

    /// Items to be read: a limit without filters needs only the first ones.
    fn needed_items(&self) -> Vec<u32> {
        let any_will_do = self.filters.is_empty() && self.ordering.is_none();
        let Some(fetch) = self.fetch.filter(|_| any_will_do) else { return self.items().collect() };
        let mut rows = 0;
        let is_needed = |item: &u32| {
            let more = rows < fetch as u64;
            rows += self.source.live_rows(*item);
            more
        };
        self.items().take_while(is_needed).collect()
    }

    /// The schema of the output, with views.
    fn scanned_schema(&self) -> Result<Schema> {
        Ok(self.source.schema().project(&self.projection)?)
    }

    fn output_schema(&self) -> Result<SchemaRef> {
        Ok(Arc::new(self.texts.schema(self.scanned_schema()?)))
    }

    /// An expression over the output, rewritten to the table's schema.
    pub(super) fn to_table(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let rewrite = |e: Arc<dyn PhysicalExpr>| match e.downcast_ref::<Column>() {
            Some(column) => match self.projection.get(column.index()) {
                Some(index) => Ok(Transformed::yes(Arc::new(Column::new(column.name(), *index)) as _)),
                None => internal_err!("column {column} is not emitted by the scan"),
            },
            None => Ok(Transformed::no(e)),
        };
        Arc::clone(expr).transform_down(rewrite).data()
    }

    fn properties(&self, schema: &SchemaRef) -> Result<PlanProperties> {
        let mut equivalence = match &self.ordering {
            Some(ordering) => EquivalenceProperties::new_with_orderings(Arc::clone(schema), [ordering.clone()]),
            None => EquivalenceProperties::new(Arc::clone(schema)),
        };
        // Whoever takes texts in another form asks for no constants, which are views.
        if self.texts == EmittedTexts::Views {
            equivalence.add_constants(self.filters.iter().filter_map(|f| self.constant(f)))?;
        }
        let partitioning = Partitioning::UnknownPartitioning(self.partitions);
        Ok(PlanProperties::new(equivalence, partitioning, EmissionType::Incremental, Boundedness::Bounded)
            .with_scheduling_type(SchedulingType::Cooperative))
    }

    /// `column = literal` makes an emitted column constant.
    fn constant(&self, filter: &Arc<dyn PhysicalExpr>) -> Option<ConstExpr> {
        let equal = filter.downcast_ref::<BinaryExpr>().filter(|b| *b.op() == Operator::Eq)?;
        let (column, value) = match (equal.left().downcast_ref::<Column>(), equal.right().downcast_ref::<Literal>()) {
            (Some(column), Some(value)) => (column, value),
            _ => (equal.right().downcast_ref::<Column>()?, equal.left().downcast_ref::<Literal>()?),
        };
        let position = self.projection.iter().position(|p| *p == column.index())?;
        let column = Arc::new(Column::new(column.name(), position));
        Some(ConstExpr::new(column, AcrossPartitions::Uniform(Some(value.value().clone()))))
    }
}

/// Reads a table version. `EXPLAIN ANALYZE` shows chunks, segments and bytes by tier, and the time waiting for reads.
#[derive(Debug)]
pub struct TierScanExec {
    config: ScanConfig,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    statistics: OnceLock<Arc<Statistics>>,
    executions: Mutex<Executions>,
}

/// How often each partition was executed, and the queues that some partition has yet to use.
#[derive(Default)]
struct Executions {
    counts: Vec<usize>,
    queues: HashMap<usize, Arc<ScanQueue>>,
}

impl fmt::Debug for Executions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executions").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl TierScanExec {
    /// A scan as configured.
    pub fn try_new(mut config: ScanConfig) -> Result<Self> {
        if config.ordering.is_some() {
            config.order = ScanOrder::Ordered;
        }
        let schema = config.output_schema()?;
        let properties = Arc::new(config.properties(&schema)?);
        let metrics = ExecutionPlanMetricsSet::new();
        let statistics = OnceLock::new();
        Ok(Self { config, schema, properties, metrics, statistics, executions: Mutex::default() })
    }

    /// The description of the scan.
    pub fn config(&self) -> &ScanConfig {
        &self.config
    }

    /// Rows of the chunks and of the delta that it reads: no more pass its filters.
    pub fn most_rows(&self) -> u64 {
        self.config.items().map(|item| self.config.source.live_rows(item)).sum()
    }

    /// The segments to read unless run-time filters exclude them: chunks, each with the position of a column.
    pub fn segments(&self) -> Vec<(Arc<Chunk>, usize)> {
        self.segments_of(&self.config.columns())
    }

    /// Like `segments()`, but for an explicit list of table columns.
    pub(super) fn segments_of(&self, columns: &[usize]) -> Vec<(Arc<Chunk>, usize)> {
        let config = &self.config;
        let chunks = config.needed_items().into_iter().filter_map(|item| config.source.chunk(item));
        let stored_columns = |chunk: &Arc<Chunk>| {
            let chunk = Arc::clone(chunk);
            let stored = columns.iter().copied().filter(|column| !config.source.is_row_column(*column));
            stored.map(move |column| (Arc::clone(&chunk), column)).collect::<Vec<_>>()
        };
        chunks.flat_map(|entry| stored_columns(&entry.chunk)).collect()
    }

    /// A copy of the node with a changed description.
    pub(super) fn changed(&self, change: impl FnOnce(&mut ScanConfig)) -> Result<Arc<dyn ExecutionPlan>> {
        let mut config = self.config.clone();
        change(&mut config);
        Ok(Arc::new(Self::try_new(config)?))
    }

    /// Like this scan, but at a level of its plan, which changes none of its properties.
    pub(super) fn at_level(&self, level: Level) -> Self {
        Self {
            config: ScanConfig { level, ..self.config.clone() },
            schema: Arc::clone(&self.schema),
            properties: Arc::clone(&self.properties),
            metrics: ExecutionPlanMetricsSet::new(),
            statistics: self.statistics.clone(),
            executions: Mutex::default(),
        }
    }

    /// Like this scan, but it counts that kernels of a device could make its reads.
    pub(super) fn counting_for_kernels(&self) -> Self {
        let counting = ScanConfig { is_for_kernels: true, ..self.config.clone() };
        Self { config: counting, ..self.at_level(self.config.level) }
    }

    /// A part of this scan: those chunks only for which `keeps` is true, and rows that are not sealed if `has_delta`. Its metrics
    /// are those of this scan; the part with the delta counts the chunks that filters exclude.
    pub(super) fn with_items(&self, keeps: &dyn Fn(u32) -> bool, has_delta: bool) -> Result<Arc<dyn ExecutionPlan>> {
        let mut config = self.config.clone();
        let all = config.source.version.chunks.len();
        let others = if has_delta { config.elsewhere + config.chunks.len() } else { all };
        config.chunks = config.chunks.iter().copied().filter(|chunk| keeps(*chunk)).collect();
        config.elsewhere = others - config.chunks.len();
        // Each is logged and counted once.
        if !has_delta {
            config.delta = Arc::default();
            config.request = None;
            config.denied = 0;
        }
        Ok(Arc::new(Self { metrics: self.metrics.clone(), ..Self::try_new(config)? }))
    }

    /// Like this scan, as a plan of its own: at the level that the rule of levels gives to one.
    pub(crate) fn into_whole_plan(self) -> Self {
        if self.config.has_filters() { self.at_level(Level::new(0)) } else { self }
    }

    /// Like this scan, but with texts and bytes in another form: for one that is the whole plan of rows which leave the server so.
    ///
    /// # Errors
    /// Those of Arrow's schemas.
    pub fn with_texts(&self, texts: EmittedTexts) -> Result<Self> {
        let changed = Self::try_new(ScanConfig { texts, ..self.config.clone() })?;
        Ok(Self { statistics: self.statistics.clone(), ..changed })
    }

    /// Like this scan, but for other columns of a source with the same rows.
    pub(super) fn narrowed(&self, source: Arc<ScanSource>, projection: Vec<usize>) -> Result<Self> {
        Self::try_new(ScanConfig { source, projection, ..self.config.clone() })
    }

    /// Like this scan, but with `keys`, of type `data_type`, for the filter of their join; `None` when the scan does
    /// not have that filter, or has it on something else than a plain column of that type.
    pub(super) fn with_keys(
        &self,
        keys: &Arc<JoinKeys>,
        data_type: &DataType,
    ) -> Option<Result<Arc<dyn ExecutionPlan>>> {
        let filter = self.config.dynamic.iter().find(|filter| filter.expression_id() == Some(keys.filter()))?;
        let [column] = filter.children().try_into().ok()?;
        let column = column.downcast_ref::<Column>()?;
        let field = self.config.source.schema().fields().get(column.index())?;
        (field.data_type() == data_type).then(|| self.changed(|config| config.keys.push(Arc::clone(keys))))
    }

    /// Executes a partition, and gives out the columns of texts at `positions` of the output as codes. Batches have the codes, of type
    /// UInt16, until these are given up, by the scan or by whoever reads them, and texts from then on.
    ///
    /// # Errors
    /// Those of `execute`.
    pub(crate) fn execute_coded(
        &self,
        partition: usize,
        context: &TaskContext,
        positions: &[usize],
    ) -> Result<(SendableRecordBatchStream, SharedCodes)> {
        let (stream, codes) = self.stream(partition, context)?.with_codes(positions);
        Ok((Box::pin(cooperative(stream)), codes))
    }

    /// Begins a partition of an execution.
    fn stream(&self, partition: usize, context: &TaskContext) -> Result<ScanStream> {
        let partitions = self.config.partitions;
        if partition >= partitions {
            return internal_err!("partition {partition} of a scan with {partitions}");
        }
        let queue = {
            let Executions { counts, queues } = &mut *self.executions.lock();
            counts.resize(partitions, 0);
            let execution = counts.get(partition).copied().unwrap_or(0);
            let queue = match queues.get(&execution) {
                Some(queue) => Arc::clone(queue),
                None => self.queue(context)?,
            };
            queues.insert(execution, Arc::clone(&queue));
            if let Some(count) = counts.get_mut(partition) {
                *count += 1;
            }
            if counts.iter().all(|c| *c > execution) {
                queues.remove(&execution);
            }
            queue
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let wait = WaitTimer::new(&self.metrics, partition, Arc::clone(&queue.spec.tally));
        Ok(ScanStream::new(queue, partition, baseline, wait))
    }

    /// Makes the queue of a new execution and counts the execution.
    fn queue(&self, context: &TaskContext) -> Result<Arc<ScanQueue>> {
        let config = &self.config;
        let conjuncts: Vec<_> = config.filters.iter().chain(&config.dynamic).cloned().collect();
        let columns = config.columns();
        let metrics = ScanMetrics::new(&self.metrics, &config.source);
        let items = if config.dynamic.is_empty() { config.needed_items() } else { config.items().collect() };
        let chunks = config.source.version.chunks.len();
        let remaining = items.iter().filter(|i| (**i as usize) < chunks).count();
        let total = chunks - config.elsewhere;
        metrics.chunks_total.add(total);
        metrics.chunks_pruned.add(total - remaining);
        metrics.chunks_pruned_membership.add(config.denied);
        metrics.chunks_pruned_views.add(config.hot.pruned_chunks());
        self.note_execution();
        let scans = StatementScans::from_context(context);
        let tally = scans.add_scan(&config.source, columns.len(), config.partitions);
        tally.add_chunks(total, total - remaining);
        let counts = ScanCounts {
            metrics: metrics.clone(),
            tally: Arc::clone(&tally),
            counted_segments: scans.counted_segments(&config.source),
            is_for_kernels: config.is_for_kernels,
        };
        let trace = scans.trace_scan(Reader::Scan, &config.source, &counts);
        let slice_rows = context.session_config().batch_size().clamp(1, super::SLICE_ROWS);
        let bound = Conjunct::bind_all(&conjuncts, &config.keys, config.source.schema(), &columns)?;
        let observer = ScanObserver::new(&config.source, &columns, slice_rows, counts);
        let observer = observer.with_filters(&bound, conjuncts.clone());
        let position = |p: &usize| columns.iter().position(|c| c == p);
        let spec = ScanSpec {
            output: config.projection.iter().filter_map(position).collect(),
            source: Arc::clone(&config.source),
            statement: scans.id(),
            level: config.source.begin_reads(config.level, &columns),
            asked_bytes: AtomicU64::new(0),
            columns,
            schema: match config.texts {
                EmittedTexts::Views => Arc::clone(&self.schema),
                _ => Arc::new(config.scanned_schema()?),
            },
            emitted_schema: Arc::clone(&self.schema),
            texts: config.texts,
            conjuncts: bound.into(),
            slice_rows,
            fetch: config.fetch,
            metrics,
            tally,
            trace,
            observer,
        };
        // Static filters alone exclude nothing more; combined with run-time filters they may.
        let pruning = if config.dynamic.is_empty() { Vec::new() } else { conjuncts };
        let pruner = DynamicPruner::new(Arc::clone(&config.source), pruning, &config.keys);
        let ordered = config.order == ScanOrder::Ordered;
        let lanes = if ordered { self.ranges(&items, config.partitions) } else { vec![items] };
        let queue = ScanQueue::new(Arc::new(spec), Arc::clone(&scans), lanes, ordered, pruner);
        let queue = Arc::new(queue);
        scans.begin_scan(&queue);
        Ok(queue)
    }
}

impl DisplayAs for TierScanExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        let shows_figures = config.source.shows_figures();
        let join = |parts: Vec<String>, by: &str| parts.join(by);
        let columns = join(self.schema.fields().iter().map(|f| f.name().clone()).collect(), ", ");
        let chunks = format!("{} of {}", config.chunks.len(), config.source.version.chunks.len());
        // Those of run time have values of the other side of a join.
        let dynamic = config
            .dynamic
            .iter()
            .map(|filter| if shows_figures { filter.to_string() } else { "run-time filter".into() });
        let filters: Vec<String> = config.filters.iter().map(ToString::to_string).chain(dynamic).collect();
        if t == DisplayFormatType::TreeRender {
            writeln!(f, "table={}", config.source.table.name())?;
            if shows_figures {
                writeln!(f, "chunks={chunks}")?;
            }
            return if filters.is_empty() { Ok(()) } else { writeln!(f, "filters={}", join(filters, " AND ")) };
        }
        let order = if config.order == ScanOrder::Ordered { "ordered" } else { "stealing" };
        write!(f, "TierScanExec: table={}, columns=[{columns}]", config.source.table.name())?;
        if shows_figures {
            write!(f, ", chunks={chunks}{}", config.hot)?;
        }
        write!(f, ", partitions={}, {order}", config.partitions)?;
        if shows_figures {
            write!(f, ", reads=[{}]", config.residency())?;
        }
        if let Some(fetch) = config.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        if let Some(ordering) = &config.ordering {
            write!(f, ", output_ordering=[{ordering}]")?;
        }
        if config.unreached > 0 {
            write!(f, ", no filter: shuffle")?;
        }
        if filters.is_empty() { Ok(()) } else { write!(f, ", filters=[{}]", join(filters, " AND ")) }
    }
}

impl ExecutionPlan for TierScanExec {
    fn name(&self) -> &str {
        "TierScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn replace_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for filter in self.config.filters.iter().chain(&self.config.dynamic) {
            if f(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        self.changed(|_| ())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Ok(Box::pin(cooperative(self.stream(partition, &context)?)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(shown_metrics(&self.config.source, &self.metrics))
    }

    fn statistics_from_inputs(&self, _inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let all = match self.statistics.get() {
            Some(statistics) => Arc::clone(statistics),
            None => Arc::clone(self.statistics.get_or_init(|| {
                // Unknown statistics only cost plan quality; a damaged catalog will be reported by whoever needs it.
                scan_statistics(&self.config).map_or_else(|_| Arc::new(Statistics::new_unknown(&self.schema)), Arc::new)
            })),
        };
        if args.partition().is_none() || self.config.partitions == 1 {
            return Ok(all);
        }
        // The rows of a partition are not known before it runs.
        let mut part = Statistics::clone(&all).to_inexact();
        let share = 1.0 / self.config.partitions as f64;
        part.num_rows = part.num_rows.with_estimated_selectivity(share);
        part.total_byte_size = part.total_byte_size.with_estimated_selectivity(share);
        Ok(Arc::new(part))
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        self.changed(|config| config.fetch = limit).ok()
    }

    fn fetch(&self) -> Option<usize> {
        self.config.fetch
    }

    fn with_preserve_order(&self, preserve_order: bool) -> Option<Arc<dyn ExecutionPlan>> {
        let change = preserve_order && self.config.order == ScanOrder::Stealing;
        if change { self.changed(|config| config.order = ScanOrder::Ordered).ok() } else { None }
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !all_alias_free_columns(projection.expr()) || self.config.ordering.is_some() {
            return Ok(None);
        }
        let columns = new_projections_for_columns(projection.expr(), &self.config.projection);
        self.changed(|config| config.projection = columns).map(Some)
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut fixed = Vec::new();
        let mut dynamic = Vec::new();
        let mut answers = Vec::new();
        for parent in &result.parent_filters {
            // A limit below a filter is not a limit above it.
            let usable = self.config.fetch.is_none() && !is_volatile(&parent.filter);
            let changes = DynamicFilterTracking::classify(&parent.filter).contains_dynamic_filter();
            let mut answer = PushedDown::No;
            if usable && changes && phase == FilterPushdownPhase::Post {
                // Answered with No, because rows are let through when the filter does not pay.
                dynamic.push(self.config.to_table(&parent.filter)?);
            } else if usable && !changes {
                fixed.push(self.config.to_table(&parent.filter)?);
                answer = PushedDown::Yes;
            }
            answers.push(answer);
        }
        let propagation = FilterPushdownPropagation::with_parent_pushdown_result(answers);
        if fixed.is_empty() && dynamic.is_empty() {
            return Ok(propagation);
        }
        let updated = self.changed(|config| {
            config.add_filters(fixed);
            config.dynamic.extend(dynamic);
        })?;
        Ok(propagation.with_updated_node(updated))
    }
}
