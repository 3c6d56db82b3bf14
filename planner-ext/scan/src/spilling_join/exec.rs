//! [`SpillingHashJoinExec`], the plan node.
//!
//! The node executes DataFusion's join before the build side is collected, as the join's streams are what its dynamic
//! filter counts: a partition that spills drops its stream, and DataFusion then publishes a filter that keeps all probe
//! rows of that partition (joins/hash_join/shared_bounds.rs `report_canceled_partition`). The other partitions do not wait
//! for it. A shared build side that has spilled publishes no filter, and no partition waits.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, StatisticsArgs,
};
use futures::TryStreamExt;
use parking_lot::Mutex;

use super::Limits;
use super::input::{InputExec, Inputs, Side, Slot, batches_stream};
use super::memory::BuildMemory;
use super::output::finished;
use super::pairs::PairJoin;
use super::plans::{PairPlans, returns_build_rows_once};
use super::shared::SharedBuild;

/// A hash join whose build side may be larger than query memory.
pub struct SpillingHashJoinExec {
    /// The join as it was planned; never executed.
    join: Arc<HashJoinExec>,
    /// The join over inputs that the node gives it.
    in_memory: Arc<HashJoinExec>,
    /// The one of the latest execution with a shared build side, which has a join of its own.
    latest: Mutex<Option<Arc<HashJoinExec>>>,
    pairs: Arc<PairPlans>,
    shared: Mutex<SharedExecution>,
    metrics: ExecutionPlanMetricsSet,
}

/// The build side that the partitions of one execution share.
#[derive(Default)]
struct SharedExecution {
    /// Kept until all partitions are executed, which then keep it themselves.
    build: Option<Arc<SharedBuild>>,
    executed_partitions: usize,
}

impl SpillingHashJoinExec {
    /// Wraps a join.
    pub fn try_new(join: HashJoinExec) -> Result<Self> {
        Self::with_limits(join, Limits::default())
    }

    pub(super) fn with_limits(join: HashJoinExec, limits: Limits) -> Result<Self> {
        let build = InputExec::for_plan(Side::Build, join.left());
        // A join counts the reports of all partitions before it publishes the filter of a shared build side, and waits for
        // ever if one is dropped. One report is enough, unless the count also tells when all probe rows were seen.
        let counts_probes = returns_build_rows_once(*join.join_type());
        let probe = match join.partition_mode() {
            PartitionMode::CollectLeft if !counts_probes => InputExec::for_one_of(Side::Probe, join.right()),
            _ => InputExec::for_plan(Side::Probe, join.right()),
        };
        let join = Arc::new(join);
        Ok(Self {
            in_memory: Arc::new(join.builder().with_new_children(vec![build, probe])?.build()?),
            latest: Mutex::default(),
            pairs: Arc::new(PairPlans::new(&join, limits)),
            join,
            shared: Mutex::default(),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// The join as it was planned.
    pub fn join(&self) -> &HashJoinExec {
        &self.join
    }

    fn wrap(&self, join: HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::with_limits(join, self.pairs.limits)?))
    }

    /// One partition of this node that is being executed.
    fn partition(&self, partition: usize, context: Arc<TaskContext>) -> Partition {
        let pairs = PairJoin::new(Arc::clone(&self.pairs), Arc::clone(&context), &self.metrics, partition);
        let join = Arc::clone(&self.join);
        Partition { join, metrics: self.metrics.clone(), pairs: Arc::new(pairs), context, partition }
    }

    fn execute_partitioned(&self, partition: Partition) -> Result<SendableRecordBatchStream> {
        let number = partition.partition;
        let context = &partition.context;
        let mut build = make_cooperative(self.join.left().execute(number, Arc::clone(context))?);
        let probe = Slot::new(self.join.right().execute(number, Arc::clone(context))?);
        let memory = partition.pairs.build_memory();
        let batches = Arc::<Slot>::default();
        let inputs =
            Inputs { build: Arc::clone(&batches), probe: Arc::clone(&probe), memory: Some(Arc::clone(&memory)) };
        let in_memory = self.in_memory.execute(number, inputs.context(context, pool(&memory)))?;
        let started = async move {
            let mut rows = partition.pairs.build_rows(memory);
            match rows.fill(&mut build).await? {
                None => {
                    batches.put(batches_stream(build.schema(), rows.into_batches()));
                    Ok(in_memory)
                }
                Some(refused) => {
                    drop(in_memory);
                    let files = partition.pairs.split_build(rows, refused, build, 0).await?;
                    let rows = Arc::clone(&partition.pairs).join(files, probe.take()?);
                    partition.finished(rows)
                }
            }
        };
        Ok(self.stream(started))
    }

    fn execute_shared(&self, partition: Partition) -> Result<SendableRecordBatchStream> {
        let number = partition.partition;
        let context = &partition.context;
        let shared = self.shared_build(&partition)?;
        if !shared.execute_probe(self.join.right(), number, context)? {
            return Ok(Box::pin(EmptyRecordBatchStream::new(self.schema())));
        }
        let probe = Arc::<Slot>::default();
        let build = Arc::clone(&shared.batches);
        let inputs = Inputs { build, probe: Arc::clone(&probe), memory: Some(Arc::clone(&shared.memory)) };
        let in_memory = shared.join.execute(number, inputs.context(context, pool(&shared.memory)))?;
        let started = async move {
            let files = shared.collected().await?;
            let own_probe = || shared.take_probe(number);
            let Some(files) = files else {
                own_probe().into_iter().for_each(|rows| probe.put(rows));
                return Ok(shared.keep_for(in_memory));
            };
            drop(in_memory);
            partition.complete_filters();
            let rows = match returns_build_rows_once(*partition.join.join_type()) {
                true => shared.take_all_probes(partition.join.right(), &partition.context)?,
                false => own_probe(),
            };
            match rows {
                Some(rows) => partition.finished(Arc::clone(&partition.pairs).join(files, rows)),
                None => Ok(Box::pin(EmptyRecordBatchStream::new(partition.join.schema())) as SendableRecordBatchStream),
            }
        };
        Ok(self.stream(started))
    }

    /// A join in memory that nothing has executed: a nested-loop join may execute its input twice, and a join keeps its
    /// build side.
    fn join_of_one_execution(&self) -> Result<Arc<HashJoinExec>> {
        let fresh = self.in_memory.builder().reset_state().build()?;
        #[expect(deprecated, reason = "what replaces it has another type")]
        let filter = self.join.dynamic_filter_expr();
        Ok(Arc::new(match filter {
            Some(filter) => fresh.with_dynamic_filter_expr(Arc::clone(filter))?,
            None => fresh,
        }))
    }

    /// The build side of the execution under way; the first partition begins a new one.
    fn shared_build(&self, partition: &Partition) -> Result<Arc<SharedBuild>> {
        let partitions = self.join.right().output_partitioning().partition_count();
        let mut execution = self.shared.lock();
        let shared = match &execution.build {
            Some(shared) => Arc::clone(shared),
            None => {
                let build = self.join.left().execute(0, Arc::clone(&partition.context))?;
                let pairs = Arc::clone(&partition.pairs);
                let join = self.join_of_one_execution()?;
                *self.latest.lock() = Some(Arc::clone(&join));
                Arc::new(SharedBuild::new(make_cooperative(build), pairs, partitions, join))
            }
        };
        execution.executed_partitions += 1;
        execution.build = Some(Arc::clone(&shared));
        if execution.executed_partitions >= partitions {
            *execution = SharedExecution::default();
        }
        Ok(shared)
    }

    fn stream(
        &self,
        started: impl Future<Output = Result<SendableRecordBatchStream>> + Send + 'static,
    ) -> SendableRecordBatchStream {
        let rows = futures::stream::once(started).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows))
    }
}

fn pool(memory: &Arc<BuildMemory>) -> Arc<dyn MemoryPool> {
    Arc::clone(memory) as Arc<dyn MemoryPool>
}

/// One partition that is being executed.
struct Partition {
    join: Arc<HashJoinExec>,
    metrics: ExecutionPlanMetricsSet,
    pairs: Arc<PairJoin>,
    context: Arc<TaskContext>,
    partition: usize,
}

impl Partition {
    fn finished(&self, rows: SendableRecordBatchStream) -> Result<SendableRecordBatchStream> {
        finished(rows, &self.join, &self.context, &self.metrics, self.partition)
    }

    /// Tells those who wait for the dynamic filter that it stays as it is.
    fn complete_filters(&self) {
        for filter in self.join.dynamic_expressions_produced() {
            if let Some(filter) = filter.downcast_ref::<DynamicFilterPhysicalExpr>() {
                filter.mark_complete();
            }
        }
    }
}

impl fmt::Debug for SpillingHashJoinExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillingHashJoinExec").field("join", &self.join).finish_non_exhaustive()
    }
}

impl DisplayAs for SpillingHashJoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.join.fmt_as(t, f)
    }
}

impl ExecutionPlan for SpillingHashJoinExec {
    fn name(&self) -> &str {
        "SpillingHashJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.join.properties()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.join.input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.join.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.join.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.join.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.join.dynamic_expressions_produced()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let builder = match options.children_properties {
            ChildrenPropertiesMode::Keep => self.join.builder(),
            ChildrenPropertiesMode::Recompute => self.join.builder().recompute_properties(),
        };
        self.wrap(builder.with_new_children(children)?.build()?)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        self.wrap(self.join.builder().reset_state().build()?)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let running = self.partition(partition, context);
        match self.join.partition_mode() {
            PartitionMode::CollectLeft => self.execute_shared(running),
            PartitionMode::Partitioned | PartitionMode::Auto => self.execute_partitioned(running),
        }
    }

    /// The metrics of the join in memory, and of spilling.
    fn metrics(&self) -> Option<MetricsSet> {
        let latest = self.latest.lock().clone();
        let mut all = latest.as_ref().unwrap_or(&self.in_memory).metrics().unwrap_or_default();
        self.metrics.clone_inner().iter().for_each(|metric| all.push(Arc::clone(metric)));
        Some(all)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.join.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.join.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.join.cardinality_effect()
    }

    fn fetch(&self) -> Option<usize> {
        self.join.fetch()
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        self.wrap(self.join.builder().with_fetch(limit).build().ok()?).ok()
    }
}
