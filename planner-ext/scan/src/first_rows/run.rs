//! One partition that is being executed.
//!
//! All rows are read before the first are passed on. When memory is refused, or when too few rows are dropped, the first rows so far are
//! passed on, and then all rows that are left: whoever numbers them drops the rest.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::candidates::Candidates;
use super::store::Place;

/// What EXPLAIN ANALYZE shows of a partition.
pub(super) struct RunMetrics {
    pub(super) baseline: Arc<BaselineMetrics>,
    /// Rows that were among the first of their group, of those that were looked at.
    pub(super) kept: Count,
    /// Rows that were dropped.
    pub(super) dropped: Count,
    /// Partitions that passed on rows without looking at them.
    pub(super) handed_over: Count,
}

/// One partition that is being executed.
pub(super) struct Run {
    pub(super) candidates: Candidates,
    pub(super) memory: MemoryReservation,
    /// Rows of a batch that is passed on.
    pub(super) batch_rows: usize,
    /// Rows that are read before it may find that too few are dropped.
    pub(super) patience: usize,
    pub(super) input: SendableRecordBatchStream,
    pub(super) metrics: RunMetrics,
}

impl Run {
    /// The rows that are passed on.
    pub(super) fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.input.schema();
        let baseline = Arc::clone(&self.metrics.baseline);
        let batches = stream::once(self.rows()).try_flatten();
        let batches = batches.map_ok(move |batch| batch.record_output(&baseline));
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    async fn rows(mut self) -> Result<SendableRecordBatchStream> {
        let elapsed = self.metrics.baseline.elapsed_compute().clone();
        let schema = self.input.schema();
        let mut seen = 0;
        let mut is_given_up = false;
        while let Some(batch) = self.input.next().await.transpose()? {
            let _timer = elapsed.timer();
            seen += batch.num_rows();
            self.candidates.add(&batch)?;
            let is_refused = self.memory.try_resize(self.candidates.bytes()).is_err();
            if is_refused || seen >= self.patience && 2 * self.candidates.kept() > seen {
                is_given_up = true;
                break;
            }
        }
        let Self { candidates, memory, batch_rows, input, metrics, .. } = self;
        metrics.kept.add(candidates.kept());
        metrics.dropped.add(seen - candidates.kept());
        metrics.handed_over.add(usize::from(is_given_up));
        let kept = kept(candidates, memory, batch_rows);
        let rest = is_given_up.then_some(input);
        let rows = kept.chain(stream::iter(rest).flatten());
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// The first rows of all groups, in the order in which they came. Their memory stays reserved until all of them are taken.
fn kept(
    candidates: Candidates,
    memory: MemoryReservation,
    batch_rows: usize,
) -> impl Stream<Item = Result<RecordBatch>> + Send {
    let (store, places) = candidates.into_rows();
    memory.resize(store.bytes() + places.capacity() * size_of::<Place>());
    let batches = (0..places.len()).step_by(batch_rows).map(move |start| {
        let _held = &memory;
        let end = places.len().min(start + batch_rows);
        store.copied(places.get(start..end).unwrap_or_default())
    });
    stream::iter(batches)
}
