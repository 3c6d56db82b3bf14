//! Joins spill files pair by pair.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext, TryEmitter, async_try_stream};
use datafusion::physical_expr_common::utils::evaluate_expressions_to_arrays;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan, SpillManager};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use super::input::{Inputs, Side, Slot, batches_stream};
use super::memory::BuildMemory;
use super::partitioner::{Partitioner, Partitions, null_keys};
use super::plans::{PairPlans, returns_rows_of_one_side};
use super::rows::BuildRows;
use super::writer::{RowFile, with_schema};

/// Where the rows of a join go.
pub(super) type Output = TryEmitter<RecordBatch, DataFusionError>;

/// A join of one output partition that has spilled.
pub(super) struct PairJoin {
    pub(super) plans: Arc<PairPlans>,
    context: Arc<TaskContext>,
    partition: usize,
    build_files: SpillManager,
    probe_files: SpillManager,
}

/// The rows of both sides of which the hash has the same number of file.
struct Pair {
    build: RowFile,
    probe: RowFile,
    /// How often they were split.
    depth: usize,
    /// Whether another split would not help.
    is_skewed: bool,
    /// Whether build rows with a NULL key are dropped.
    without_null_keys: bool,
}

impl PairJoin {
    pub(super) fn new(
        plans: Arc<PairPlans>,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
    ) -> Self {
        let metrics = SpillMetrics::new(metrics, partition);
        let manager = |schema: &SchemaRef| {
            SpillManager::new(context.runtime_env(), metrics.clone(), Arc::clone(schema))
                .with_compression_type(context.session_config().spill_compression())
        };
        let build_files = manager(&plans.build_schema);
        let probe_files = manager(&plans.probe_schema);
        Self { plans, context, partition, build_files, probe_files }
    }

    /// Rows of a build side, none yet.
    pub(super) fn build_rows(&self, memory: Arc<BuildMemory>) -> BuildRows {
        BuildRows::new(memory, self.plans.limits)
    }

    /// The memory of another build side.
    pub(super) fn build_memory(&self) -> Arc<BuildMemory> {
        BuildMemory::new(&self.context, self.partition)
    }

    /// Splits a build side that does not fit: the rows that are in memory, the batch that was refused, and the others.
    pub(super) async fn split_build(
        &self,
        rows: BuildRows,
        refused: RecordBatch,
        others: SendableRecordBatchStream,
        depth: usize,
    ) -> Result<Partitions> {
        let split = self.plans.split(Side::Build, depth);
        let mut partitioner = Partitioner::new(split, self.build_files.clone(), &self.context);
        let memory = Arc::clone(rows.memory());
        partitioner.write_all(rows.into_batches()).await?;
        memory.resize(0);
        partitioner.push(refused)?;
        partitioner.write_stream(others).await?;
        partitioner.finish()
    }

    /// Joins a split build side with a probe side.
    pub(super) fn join(
        self: Arc<Self>,
        build: Partitions,
        probe: SendableRecordBatchStream,
    ) -> SendableRecordBatchStream {
        let schema = self.plans.schema();
        let rows = async_try_stream(|mut output| async move { self.join_split(build, probe, 0, &mut output).await });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    async fn join_split(
        &self,
        build: Partitions,
        probe: SendableRecordBatchStream,
        depth: usize,
        output: &mut Output,
    ) -> Result<()> {
        let join_type = self.plans.join_type;
        let split = self.plans.split(Side::Probe, depth);
        let mut partitioner = Partitioner::new(split, self.probe_files.clone(), &self.context);
        if !returns_rows_of_one_side(join_type, Side::Probe) {
            partitioner.skip_empty(&build);
        }
        partitioner.write_stream(make_cooperative(probe)).await?;
        let probe = partitioner.finish()?;
        // NOT IN: a NULL among the probe rows leaves nothing; otherwise a NULL of the build side is returned only if there
        // are no probe rows at all.
        let is_not_in = self.plans.null_aware && depth == 0;
        if is_not_in && probe.null_rows > 0 {
            return Ok(());
        }
        let skewed: Vec<bool> = build.files.iter().map(|file| build.is_skewed(file.rows)).collect();
        for ((build, probe_file), is_skewed) in build.files.into_iter().zip(probe.files).zip(skewed) {
            let without_null_keys = is_not_in && probe.rows > 0;
            let pair = Pair { build, probe: probe_file, depth: depth + 1, is_skewed, without_null_keys };
            self.join_pair(pair, output).await?;
        }
        Ok(())
    }

    /// Boxed, as a pair that does not fit is split again.
    fn join_pair<'a>(&'a self, pair: Pair, output: &'a mut Output) -> BoxFuture<'a, Result<()>> {
        async move {
            let join_type = self.plans.join_type;
            let lone = |side, other: &RowFile| other.file.is_none() && !returns_rows_of_one_side(join_type, side);
            if lone(Side::Build, &pair.probe) || lone(Side::Probe, &pair.build) {
                return Ok(());
            }
            let mut build = self.read(Side::Build, pair.build)?;
            if pair.without_null_keys {
                build = self.without_null_keys(build);
            }
            if pair.is_skewed || pair.depth >= self.plans.limits.splits {
                return self.join_blocks(build, pair.probe, output).await;
            }
            let mut rows = self.build_rows(self.build_memory());
            match rows.fill(&mut build).await? {
                None => {
                    let memory = Arc::clone(rows.memory());
                    let probe = self.read(Side::Probe, pair.probe)?;
                    let joined = self.hash_join(
                        &self.plans.joins()?.pair,
                        rows.into_batches(),
                        probe,
                        BlockMemory::Last(memory),
                    )?;
                    self.emit_all(joined, output).await
                }
                Some(refused) => {
                    let build = self.split_build(rows, refused, build, pair.depth).await?;
                    let probe = self.read(Side::Probe, pair.probe)?;
                    self.join_split(build, probe, pair.depth, output).await
                }
            }
        }
        .boxed()
    }

    /// Reads a file. The stream keeps it.
    pub(super) fn read(&self, side: Side, file: RowFile) -> Result<SendableRecordBatchStream> {
        let manager = self.files(side);
        match file.file {
            Some(file) => manager.read_spill_as_stream_unbuffered(file, None),
            None => Ok(Box::pin(EmptyRecordBatchStream::new(Arc::clone(manager.schema())))),
        }
    }

    /// Writes and reads the files of a side.
    pub(super) fn files(&self, side: Side) -> &SpillManager {
        match side {
            Side::Build => &self.build_files,
            Side::Probe => &self.probe_files,
        }
    }

    /// Runs DataFusion's join over rows in memory.
    pub(super) fn hash_join(
        &self,
        plan: &HashJoinExec,
        build: Vec<RecordBatch>,
        probe: SendableRecordBatchStream,
        memory: BlockMemory,
    ) -> Result<SendableRecordBatchStream> {
        let build = Slot::new(batches_stream(Arc::clone(&self.plans.build_schema), build));
        let (pool, settled) = match memory {
            BlockMemory::Last(memory) => (Arc::clone(&memory), Some(memory)),
            BlockMemory::Kept(memory) => (memory, None),
        };
        let inputs = Inputs { build, probe: Slot::new(probe), memory: settled };
        // A plan of its own: metrics of one that runs for each block would grow without end.
        plan.builder().reset_state().build()?.execute(0, inputs.context(&self.context, pool))
    }

    pub(super) async fn emit_all(&self, mut rows: SendableRecordBatchStream, output: &mut Output) -> Result<()> {
        let schema = self.plans.schema();
        while let Some(batch) = rows.next().await {
            output.emit(with_schema(batch?, &schema)?).await;
        }
        Ok(())
    }

    fn without_null_keys(&self, rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let plans = Arc::clone(&self.plans);
        let schema = rows.schema();
        let kept = rows.map(move |batch| {
            let batch = batch?;
            let keys = evaluate_expressions_to_arrays(plans.build_keys(), &batch)?;
            Ok(match null_keys(&keys) {
                Some(nulls) => filter_record_batch(&batch, &nulls.into_inner().into())?,
                None => batch,
            })
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, kept))
    }
}

/// The memory of the rows that a join takes.
pub(super) enum BlockMemory {
    /// No other join takes the rows.
    Last(Arc<BuildMemory>),
    /// Another join takes the rows too.
    Kept(Arc<BuildMemory>),
}
