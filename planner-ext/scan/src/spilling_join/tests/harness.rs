//! Runs a join with little memory and checks that it leaves nothing.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::common::{JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, MemoryReservation, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, collect_partitioned};
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;
use tempfile::TempDir;

use crate::spilling_join::{Limits, SpillingHashJoinExec};

/// Limits with which small tables spill, several times over.
pub(super) const TINY: Limits = Limits { small_build_bytes: 0, files: 3, splits: 3, buffer_bytes: 8 << 10 };

/// A pool of limited size that refuses exchanges nothing. One that is refused writes to disk, and DataFusion 55 then may
/// wait for ever (<https://github.com/apache/datafusion/issues/24883>).
#[derive(Debug)]
pub(super) struct ExchangesFirst(GreedyMemoryPool);

impl ExchangesFirst {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self(GreedyMemoryPool::new(limit_bytes))
    }
}

impl fmt::Display for ExchangesFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl MemoryPool for ExchangesFirst {
    fn name(&self) -> &str {
        "exchanges first"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.0.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.0.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if reservation.consumer().name().starts_with("RepartitionExec[") {
            self.0.grow(reservation, additional);
            return Ok(());
        }
        self.0.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }
}

/// A context with a memory limit, and the folder of its spill files.
pub(super) struct Room {
    pub(super) context: Arc<TaskContext>,
    pub(super) pool: Arc<dyn MemoryPool>,
    folder: TempDir,
}

impl Room {
    pub(super) fn new(limit_bytes: usize, batch_rows: usize) -> Self {
        Self::with_pool(Arc::new(GreedyMemoryPool::new(limit_bytes)), batch_rows)
    }

    pub(super) fn unlimited() -> Self {
        Self::with_pool(Arc::new(UnboundedMemoryPool::default()), 8192)
    }

    pub(super) fn with_pool(pool: Arc<dyn MemoryPool>, batch_rows: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool)).with_temp_file_path(folder.path());
        let mut config = SessionConfig::new().with_batch_size(batch_rows);
        config.options_mut().execution.sort_spill_reservation_bytes = 1 << 10;
        let context = TaskContext::default().with_session_config(config).with_runtime(runtime.build_arc().unwrap());
        Self { context: Arc::new(context), pool, folder }
    }

    /// Spill files that exist.
    pub(super) fn files(&self) -> usize {
        files_below(self.folder.path())
    }

    /// Checks that no memory and no file is left.
    pub(super) fn assert_empty(&self) {
        assert_eq!((self.pool.reserved(), self.files()), (0, 0), "bytes and files are left");
    }
}

fn files_below(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}

/// A join to be made.
#[derive(Clone)]
pub(super) struct JoinSpec {
    pub(super) build: Vec<Vec<RecordBatch>>,
    pub(super) probe: Vec<Vec<RecordBatch>>,
    pub(super) build_schema: SchemaRef,
    pub(super) probe_schema: SchemaRef,
    /// Columns of the keys, of either side.
    pub(super) keys: Vec<usize>,
    pub(super) join_type: JoinType,
    pub(super) mode: PartitionMode,
    pub(super) null_equality: NullEquality,
    pub(super) null_aware: bool,
    pub(super) filter: Option<JoinFilter>,
    pub(super) projection: Option<Vec<usize>>,
}

impl JoinSpec {
    fn key_columns(schema: &SchemaRef, keys: &[usize]) -> Vec<PhysicalExprRef> {
        let column = |key: &usize| Arc::new(Column::new(schema.field(*key).name(), *key)) as PhysicalExprRef;
        keys.iter().map(column).collect()
    }

    /// Distributes both sides over `partitions` by their keys.
    pub(super) async fn partitioned(mut self, partitions: usize) -> Self {
        self.build = distributed(&self.build, &self.build_schema, &self.keys, partitions).await;
        self.probe = distributed(&self.probe, &self.probe_schema, &self.keys, partitions).await;
        self.mode = PartitionMode::Partitioned;
        self
    }

    pub(super) fn plan(&self) -> HashJoinExec {
        let source = |rows: &[Vec<RecordBatch>], schema: &SchemaRef| {
            MemorySourceConfig::try_new_exec(rows, Arc::clone(schema), None).unwrap() as Arc<dyn ExecutionPlan>
        };
        self.plan_over(source(&self.build, &self.build_schema), source(&self.probe, &self.probe_schema))
    }

    pub(super) fn plan_over(&self, build: Arc<dyn ExecutionPlan>, probe: Arc<dyn ExecutionPlan>) -> HashJoinExec {
        let build_keys = Self::key_columns(&self.build_schema, &self.keys);
        let on = build_keys.into_iter().zip(Self::key_columns(&self.probe_schema, &self.keys)).collect();
        HashJoinExecBuilder::new(build, probe, on, self.join_type)
            .with_filter(self.filter.clone())
            .with_projection(self.projection.clone())
            .with_partition_mode(self.mode)
            .with_null_equality(self.null_equality)
            .with_null_aware(self.null_aware)
            .build()
            .unwrap()
    }

    /// Rows that DataFusion's join returns with unlimited memory.
    pub(super) async fn expected(&self) -> Vec<String> {
        let room = Room::unlimited();
        let batches = collect_partitioned(Arc::new(self.plan()), Arc::clone(&room.context)).await.unwrap();
        sorted_rows(&batches.concat())
    }

    pub(super) fn spilling(&self, limits: Limits) -> Arc<SpillingHashJoinExec> {
        Arc::new(SpillingHashJoinExec::with_limits(self.plan(), limits).unwrap())
    }
}

async fn distributed(
    rows: &[Vec<RecordBatch>],
    schema: &SchemaRef,
    keys: &[usize],
    partitions: usize,
) -> Vec<Vec<RecordBatch>> {
    let source = MemorySourceConfig::try_new_exec(rows, Arc::clone(schema), None).unwrap();
    let by_keys = Partitioning::Hash(JoinSpec::key_columns(schema, keys), partitions);
    let exchange = RepartitionExec::try_new(source, by_keys).unwrap();
    collect_partitioned(Arc::new(exchange), Room::unlimited().context).await.unwrap()
}

/// The rows of batches as texts, in an order that follows from the rows.
pub(super) fn sorted_rows(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows: Vec<String> = batches.iter().flat_map(rows_of_batch).collect();
    rows.sort();
    rows
}

fn rows_of_batch(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap()).collect();
    let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(" | ");
    (0..batch.num_rows()).map(row).collect()
}

/// Executes all partitions side by side.
pub(super) async fn run(plan: Arc<SpillingHashJoinExec>, room: &Room) -> Vec<RecordBatch> {
    let schema = plan.schema();
    let batches = collect_partitioned(plan, Arc::clone(&room.context)).await.unwrap().concat();
    assert!(batches.iter().all(|batch| batch.schema() == schema), "batches have the schema of the plan");
    batches
}

/// Executes one partition after the other.
pub(super) async fn run_in_turn(plan: Arc<SpillingHashJoinExec>, room: &Room) -> Vec<RecordBatch> {
    let partitions = plan.properties().output_partitioning().partition_count();
    let mut batches = Vec::new();
    for partition in 0..partitions {
        let rows = plan.execute(partition, Arc::clone(&room.context)).unwrap();
        batches.extend(rows.try_collect::<Vec<_>>().await.unwrap());
    }
    batches
}

/// Rows that a plan has written to spill files.
pub(super) fn spilled_rows(plan: &SpillingHashJoinExec) -> usize {
    plan.metrics().unwrap().spilled_rows().unwrap()
}
