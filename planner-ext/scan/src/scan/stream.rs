//! One partition of a scan: takes chunks from the queue, filters their slices, emits batches.
//!
//! Without filters and deletions a batch is a slice of the chunk and is not copied. Otherwise the surviving rows are
//! copied into batches of the session's size, as in `FilterExec`.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::RecordBatchStream;
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::Stream;
use terrace_tier_store::tier::codec::Dictionary;

use super::filter::{Columns, DynamicFilterUse, Selection, SliceFilter};
use super::metrics::WaitTimer;
use super::open::OpenChunk;
use super::packed_test::PackedTest;
use super::plain_texts::{plain_array, plain_batch};
use super::queue::{ScanQueue, Work};
use crate::pause;

/// Slices processed in one poll before the stream yields to other tasks.
const SLICES_PER_POLL: usize = 64;

/// The stream of one partition.
pub(super) struct ScanStream {
    queue: Arc<ScanQueue>,
    partition: usize,
    filter: SliceFilter,
    coalescer: Option<BatchCoalescer>,
    current: Option<Arc<OpenChunk>>,
    /// Slices of the current columns, by position in the scan's list.
    slices: Vec<Option<ArrayRef>>,
    /// Rows this partition may still collect.
    remaining: usize,
    done: bool,
    ended: bool,
    baseline: BaselineMetrics,
    wait: WaitTimer,
    /// Set while it waits for memory.
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl ScanStream {
    pub(super) fn new(queue: Arc<ScanQueue>, partition: usize, baseline: BaselineMetrics, wait: WaitTimer) -> Self {
        queue.enter();
        let spec = &queue.spec;
        let filter = SliceFilter::new(Arc::clone(&spec.conjuncts));
        let slices = vec![None; spec.columns.len()];
        let remaining = spec.fetch.unwrap_or(usize::MAX);
        Self {
            filter,
            slices,
            partition,
            coalescer: None,
            current: None,
            remaining,
            done: remaining == 0,
            ended: false,
            baseline,
            wait,
            pause: None,
            queue,
        }
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        for _ in 0..SLICES_PER_POLL {
            self.queue.scans.check()?;
            ready!(self.poll_pause(cx));
            if let Some(batch) = self.coalescer.as_mut().and_then(BatchCoalescer::next_completed_batch) {
                return Poll::Ready(Some(self.as_wanted(batch)));
            }
            if self.done {
                return Poll::Ready(self.flush().transpose());
            }
            let Some(range) = self.current.as_ref().and_then(|chunk| chunk.take()) else {
                self.release_current();
                match self.queue.poll_next(self.partition, cx)? {
                    Poll::Ready(Some(Work::Slices(chunk))) => {
                        self.wait.ended_by(chunk.read_class());
                        self.current = Some(chunk);
                    }
                    Poll::Ready(Some(Work::Filters(chunk))) => {
                        self.wait.ended_by(chunk.read_class());
                        self.queue.apply_filters(*chunk, &mut self.filter)?;
                        // That was the work of a whole chunk, so the stream yields to other tasks.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Ready(None) => self.done = true,
                    Poll::Pending => {
                        self.wait.start();
                        return Poll::Pending;
                    }
                }
                continue;
            };
            if let Some(batch) = self.scan_slice(&range)? {
                return Poll::Ready(Some(Ok(batch)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits while the statement has to.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.queue.scans.is_paused() {
            let step = self.pause.get_or_insert_with(|| Box::pin(pause::step()));
            ready!(step.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// Filters one slice; a batch that needs no coalescing is returned at once.
    fn scan_slice(&mut self, range: &Range<usize>) -> Result<Option<RecordBatch>> {
        let Some(chunk) = self.current.as_ref() else { return Ok(None) };
        self.slices.fill(None);
        let mut slices = Slices { chunk, range, known: &mut self.slices, touched: Vec::new() };
        let selection = match chunk.selected(range) {
            Some(selected) => selected,
            None => {
                let live = chunk.live(range);
                self.filter.apply(range.len(), live, &mut slices, DynamicFilterUse::WhenUseful)?
            }
        };
        let survivors = match &selection {
            Selection::All => range.len(),
            Selection::Nothing => 0,
            Selection::Some(mask) => mask.true_count(),
        };
        chunk.note(range.len(), survivors, || selection.sample());
        if survivors == 0 {
            return Ok(None);
        }
        let spec = &self.queue.spec;
        if spec.output.is_empty() {
            let rows = survivors.min(self.remaining);
            self.collected(survivors);
            return new_batch(&self.queue.spec.schema, Vec::new(), rows).map(Some);
        }
        let is_whole = matches!(selection, Selection::All) && self.coalescer.is_none();
        let plain_schema = spec.plain_schema.as_ref().filter(|_| is_whole);
        let columns = spec.output.iter().map(|slot| match plain_schema {
            Some(_) => slices.plain(*slot),
            None => slices.selected(*slot, &selection, survivors),
        });
        let columns = columns.collect::<Result<_>>()?;
        let mut batch = new_batch(plain_schema.unwrap_or(&spec.schema), columns, range.len())?;
        if survivors > self.remaining {
            batch = batch.slice(0, selection.length_with(self.remaining));
        }
        self.collected(survivors);
        if is_whole {
            return Ok(Some(batch));
        }
        let size = self.queue.spec.slice_rows;
        let new = || {
            BatchCoalescer::new(Arc::clone(&self.queue.spec.schema), size)
                .with_biggest_coalesce_batch_size(Some(size / 2))
        };
        let coalescer = self.coalescer.get_or_insert_with(new);
        match selection {
            Selection::Some(mask) => {
                let mask = mask.slice(0, batch.num_rows());
                coalescer.push_batch_with_filter(batch, &mask)?;
            }
            _ => coalescer.push_batch(batch)?,
        }
        Ok(None)
    }

    /// A batch that was coalesced, in plain arrays where these are wanted.
    fn as_wanted(&self, batch: RecordBatch) -> Result<RecordBatch> {
        match &self.queue.spec.plain_schema {
            Some(schema) => plain_batch(&batch, schema),
            None => Ok(batch),
        }
    }

    /// Accounts for rows that are emitted and stops reading when there are enough.
    fn collected(&mut self, rows: usize) {
        let enough = self.queue.collect(rows);
        self.remaining = self.remaining.saturating_sub(rows);
        if enough || self.remaining == 0 {
            self.stop();
        }
    }

    /// Gives back the chunk that the partition works on, with or without slices left.
    fn release_current(&mut self) {
        if let Some(chunk) = self.current.take() {
            self.queue.release(self.partition, chunk);
        }
    }

    fn stop(&mut self) {
        self.done = true;
        self.release_current();
        self.slices.fill(None);
    }

    /// Ends the tally when the last row was emitted, even if the stream is dropped later.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.queue.spec.tally.end();
        }
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>> {
        self.stop();
        let Some(mut coalescer) = self.coalescer.take() else { return Ok(None) };
        coalescer.finish_buffered_batch()?;
        coalescer.next_completed_batch().map(|batch| self.as_wanted(batch)).transpose()
    }
}

fn new_batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// When one in so many rows of a slice is selected, or fewer, the others are left out where that saves work.
pub(super) const FEW_SELECTED: usize = 2;

/// The columns of one slice of a chunk.
pub(super) struct Slices<'a> {
    pub(super) chunk: &'a OpenChunk,
    pub(super) range: &'a Range<usize>,
    /// Columns sliced already, by position; may be shorter than the list of columns.
    pub(super) known: &'a mut [Option<ArrayRef>],
    /// Positions of the columns that were read.
    pub(super) touched: Vec<usize>,
}

impl Slices<'_> {
    /// The values of a column, of which `selection` has selected so many rows: others may be empty where few are selected.
    fn selected(&mut self, slot: usize, selection: &Selection, survivors: usize) -> Result<ArrayRef> {
        let is_known = matches!(self.known.get(slot), Some(Some(_)));
        match selection {
            Selection::Some(mask) if !is_known && survivors * FEW_SELECTED < self.range.len() => {
                self.touch(slot);
                self.chunk.slice_selected(slot, self.range, mask.values())
            }
            _ => self.values(slot),
        }
    }

    /// The values of a column as plain arrays.
    fn plain(&mut self, slot: usize) -> Result<ArrayRef> {
        self.touch(slot);
        match self.known.get(slot) {
            Some(Some(known)) => plain_array(known),
            _ => self.chunk.plain_slice(slot, self.range),
        }
    }

    fn touch(&mut self, slot: usize) {
        if !self.touched.contains(&slot) {
            self.touched.push(slot);
            self.chunk.touch(slot, self.range.len());
        }
    }
}

impl Columns for Slices<'_> {
    fn values(&mut self, slot: usize) -> Result<ArrayRef> {
        self.touch(slot);
        match self.known.get_mut(slot) {
            Some(Some(known)) => Ok(Arc::clone(known)),
            Some(empty) => Ok(Arc::clone(empty.insert(self.chunk.slice(slot, self.range)?))),
            None => self.chunk.slice(slot, self.range),
        }
    }

    fn keys(&mut self, slot: usize) -> Option<(Dictionary, ArrayRef)> {
        let keys = self.chunk.keys(slot, self.range)?;
        self.touch(slot);
        Some(keys)
    }

    fn stored(&mut self, slot: usize) -> Option<ArrayRef> {
        // Values that were widened already serve as well.
        if let Some(Some(known)) = self.known.get(slot) {
            return Some(Arc::clone(known));
        }
        let values = self.chunk.stored(slot, self.range)?;
        self.touch(slot);
        Some(values)
    }

    fn packed(&mut self, slot: usize, test: PackedTest<'_>) -> Option<BooleanArray> {
        let passed = self.chunk.packed(slot, self.range, test)?;
        self.touch(slot);
        Some(passed)
    }

    fn is_null(&mut self, slot: usize) -> Option<BooleanArray> {
        let nulls = self.chunk.is_null(slot, self.range)?;
        self.touch(slot);
        Some(nulls)
    }

    fn is_packed(&self, slot: usize) -> bool {
        // Values that were unpacked already are not tested a second time.
        !matches!(self.known.get(slot), Some(Some(_))) && self.chunk.is_packed(slot)
    }

    fn dictionary(&self, slot: usize) -> Option<Dictionary> {
        self.chunk.dictionary(slot).cloned()
    }

    fn selected_values(&mut self, slot: usize, selected: &BooleanArray) -> Result<ArrayRef> {
        match self.known.get(slot) {
            Some(None) | None if self.chunk.has_packed_texts(slot) => {
                self.touch(slot);
                self.chunk.slice_selected(slot, self.range, selected.values())
            }
            _ => self.values(slot),
        }
    }
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.wait.stop();
        self.queue.spec.tally.begin();
        let compute = self.baseline.elapsed_compute().clone();
        let poll = {
            let _timer = compute.timer();
            self.poll_batch(cx)
        };
        match &poll {
            // Rows only: `record_poll` also walks all buffers of every batch to count its bytes.
            Poll::Ready(Some(Ok(batch))) => self.baseline.record_output(batch.num_rows()),
            Poll::Ready(Some(Err(_))) => {
                self.stop();
                self.end();
            }
            Poll::Ready(None) => {
                self.baseline.done();
                self.end();
            }
            Poll::Pending => {}
        }
        poll
    }
}

impl RecordBatchStream for ScanStream {
    fn schema(&self) -> SchemaRef {
        let spec = &self.queue.spec;
        Arc::clone(spec.plain_schema.as_ref().unwrap_or(&spec.schema))
    }
}

impl Drop for ScanStream {
    fn drop(&mut self) {
        self.stop();
        self.end();
        self.queue.leave();
    }
}
