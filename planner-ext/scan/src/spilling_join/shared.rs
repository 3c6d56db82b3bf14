//! A build side that all partitions of the probe side share.
//!
//! It is collected once, by the partition that is polled first. When it spills and the join returns build rows by whether
//! they have a match, one partition joins the probe rows of all partitions: the first that finds the build side spilled.
//! The others return no rows.

use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;

use super::input::{Slot, batches_stream};
use super::memory::BuildMemory;
use super::pairs::PairJoin;
use super::partitioner::Partitions;

/// `None` if the build side is in memory.
type Collected = std::result::Result<Option<Partitions>, Arc<DataFusionError>>;

/// The build side, and the probe sides of all partitions.
pub(super) struct SharedBuild {
    /// The join in memory of this execution.
    pub(super) join: Arc<HashJoinExec>,
    collected: Shared<BoxFuture<'static, Collected>>,
    pub(super) memory: Arc<BuildMemory>,
    /// The batches of the build side, once they are collected and fit.
    pub(super) batches: Arc<Slot>,
    probes: Mutex<Vec<ProbeSide>>,
}

/// The plan of the join keeps its inputs and the pool, though nobody may ever run it.
impl Drop for SharedBuild {
    fn drop(&mut self) {
        drop(self.batches.take());
        self.memory.settle();
    }
}

/// The probe side of one partition.
enum ProbeSide {
    NotExecuted,
    Executed(SendableRecordBatchStream),
    Taken,
}

impl SharedBuild {
    pub(super) fn new(
        mut build: SendableRecordBatchStream,
        spilled: Arc<PairJoin>,
        partitions: usize,
        join: Arc<HashJoinExec>,
    ) -> Self {
        let memory = spilled.build_memory();
        let batches = Arc::<Slot>::default();
        let slot = Arc::clone(&batches);
        let mut rows = spilled.build_rows(Arc::clone(&memory));
        let collect = async move {
            match rows.fill(&mut build).await? {
                None => {
                    slot.put(batches_stream(build.schema(), rows.into_batches()));
                    Ok(None)
                }
                Some(refused) => spilled.split_build(rows, refused, build, 0).await.map(Some),
            }
        };
        let collected = collect.map(|collected| collected.map_err(Arc::new)).boxed().shared();
        let probes = std::iter::repeat_with(|| ProbeSide::NotExecuted).take(partitions).collect();
        Self { join, collected, memory, batches, probes: Mutex::new(probes) }
    }

    /// Returns the rows of the join in memory. They keep what the join takes when it is first polled.
    pub(super) fn keep_for(self: Arc<Self>, rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = rows.schema();
        Box::pin(RecordBatchStreamAdapter::new(schema, rows.inspect(move |_| _ = &self)))
    }

    /// Waits for the build side. Returns its files if it has spilled.
    pub(super) async fn collected(&self) -> Result<Option<Partitions>> {
        self.collected.clone().await.map_err(DataFusionError::Shared)
    }

    /// Executes the probe side of a partition. Returns false if another partition has joined its rows.
    pub(super) fn execute_probe(
        &self,
        probe: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<bool> {
        match self.probes.lock().get_mut(partition) {
            Some(side @ ProbeSide::NotExecuted) => {
                *side = ProbeSide::Executed(probe.execute(partition, Arc::clone(context))?);
                Ok(true)
            }
            Some(ProbeSide::Executed(_)) => Ok(true),
            Some(ProbeSide::Taken) | None => Ok(false),
        }
    }

    /// Takes the probe side of a partition. `None` if it was taken.
    pub(super) fn take_probe(&self, partition: usize) -> Option<SendableRecordBatchStream> {
        let mut probes = self.probes.lock();
        match std::mem::replace(probes.get_mut(partition)?, ProbeSide::Taken) {
            ProbeSide::Executed(rows) => Some(rows),
            ProbeSide::NotExecuted | ProbeSide::Taken => None,
        }
    }

    /// Takes the probe sides of all partitions as one stream. `None` if another partition has them.
    pub(super) fn take_all_probes(
        &self,
        probe: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Result<Option<SendableRecordBatchStream>> {
        let mut streams = Vec::new();
        for (partition, side) in self.probes.lock().iter_mut().enumerate() {
            match std::mem::replace(side, ProbeSide::Taken) {
                ProbeSide::Executed(rows) => streams.push(rows),
                ProbeSide::NotExecuted => streams.push(probe.execute(partition, Arc::clone(context))?),
                ProbeSide::Taken => return Ok(None),
            }
        }
        // Polled side by side: an exchange below waits until all of its outputs are read.
        let rows = futures::stream::select_all(streams);
        Ok(Some(Box::pin(RecordBatchStreamAdapter::new(probe.schema(), rows))))
    }
}
