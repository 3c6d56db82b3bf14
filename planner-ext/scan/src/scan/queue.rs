//! The work of one execution: chunks still to read, reads in flight, chunks that are ready.
//!
//! A `stealing` scan has one lane that all partitions take chunks from: ready chunks first, then resident ones, at the
//! end slices of chunks that other partitions still work on. An `ordered` scan has a lane per partition and takes
//! chunks strictly in order. Reads start at the first poll and run ahead of use, up to a bound and as far as the I/O
//! budget admits; the read of a partition that has nothing else to do is always admitted, so scans cannot wait for each
//! other.
//!
//! Every finished read wakes every waiting partition: the one that polled last may not be the one that is polled next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use futures::StreamExt;
use parking_lot::Mutex;
use terrace_tier_store::heat::{Pattern, Sample};
use terrace_tier_store::io::{OperatorLevel, ReadShare, StatementId};
use terrace_tier_store::placement::ExpectedRead;
use terrace_tier_store::table::Chunk;
use terrace_tier_store::tier::reader::Admission;

use super::cold::{Arrived, ColdPart};
use super::emitted_texts::EmittedTexts;
use super::expected_reads::StatementScans;
use super::filter::{Conjunct, SliceFilter};
use super::lane::{Lane, LookAhead};
use super::late::{self, LateMaterialization};
use super::metrics::ScanMetrics;
use super::observer::ScanObserver;
use super::open::{OpenChunk, Opening};
use super::pruning::{DynamicPruner, Verdict};
use super::source::ScanSource;
use super::tally::ScanTally;
use super::trace::ScanTrace;

/// Most chunks that wait for their filters only, because the columns of the filters are resident.
const MOST_TO_FILTER: usize = 8;

/// A scan that has asked the home for less is a short one.
pub(super) const SHORT_SCAN_BYTES: u64 = 1 << 20;

/// The parts of an execution that do not change.
pub(super) struct ScanSpec {
    /// The scanned table version.
    pub source: Arc<ScanSource>,
    /// The statement whose reads these are.
    pub statement: StatementId,
    /// The level at which it reads at random; counted until the execution ends, fails or is dropped.
    pub level: OperatorLevel,
    /// Bytes that it has asked the home for, as they are charged.
    pub asked_bytes: AtomicU64,
    /// Table columns to read: those of the output first.
    pub columns: Vec<usize>,
    /// Positions in `columns` of the output's columns.
    pub output: Vec<usize>,
    /// The schema of scanned rows, with views.
    pub schema: SchemaRef,
    /// The schema of emitted batches, with `texts`.
    pub emitted_schema: SchemaRef,
    /// The form in which texts and bytes are emitted.
    pub texts: EmittedTexts,
    /// Filters over `columns`.
    pub conjuncts: Arc<[Conjunct]>,
    /// Rows of a slice and of an output batch.
    pub slice_rows: usize,
    /// Rows after which the scan may stop.
    pub fetch: Option<usize>,
    /// Counts of the execution for `EXPLAIN ANALYZE`.
    pub metrics: ScanMetrics,
    /// Counts of the execution for the advisor.
    pub tally: Arc<ScanTally>,
    /// Its span, for traces.
    pub trace: ScanTrace,
    /// Takes the outcome of each chunk.
    pub observer: ScanObserver,
}

impl ScanSpec {
    /// Whether the scan has asked for little so far, as one that looks a few rows up.
    pub(super) fn is_short(&self) -> bool {
        self.asked_bytes.load(Ordering::Relaxed) < SHORT_SCAN_BYTES
    }

    /// True when a filter reads the column at this position.
    pub(super) fn filters_on(&self, slot: usize) -> bool {
        self.conjuncts.iter().any(|c| c.slots().contains(&slot))
    }
}

/// The shared state of one execution.
pub(super) struct ScanQueue {
    pub(super) spec: Arc<ScanSpec>,
    /// Also kept alive so that epochs can ask for the expected reads of this queue.
    pub(super) scans: Arc<StatementScans>,
    /// What the statement reads ahead.
    share: Arc<ReadShare>,
    lanes: Vec<Mutex<Lane>>,
    wakers: Arc<Wakers>,
    pruner: Mutex<DynamicPruner>,
    late: LateMaterialization,
    look_ahead: LookAhead,
    ordered: bool,
    live: AtomicUsize,
    collected: AtomicUsize,
    closed: AtomicBool,
}

/// The next task of a partition.
pub(super) enum Work {
    /// Emit slices of the chunk.
    Slices(Arc<OpenChunk>),
    /// Evaluate the filters by [`ScanQueue::apply_filters`]; the reads of the other columns depend on it.
    Filters(Box<OpenChunk>),
}

/// A chunk that a partition has taken from its lane.
enum Taken {
    /// A chunk that no partition works on yet, with all columns loaded.
    Opened(Arc<OpenChunk>),
    /// A chunk that no partition works on yet, whose bytes were just read.
    Arrived(Arrived),
    /// A chunk whose filters can be evaluated, while its other columns are not read.
    ToFilter(ColdPart),
    /// A chunk that another partition works on, too.
    Shared(Arc<OpenChunk>),
}

/// The wakers of waiting partitions, by partition; waking it wakes all of them.
#[derive(Default)]
struct Wakers(Mutex<Vec<Option<Waker>>>);

impl Wakers {
    fn register(&self, partition: usize, waker: &Waker) {
        let mut wakers = self.0.lock();
        if wakers.len() <= partition {
            wakers.resize(partition + 1, None);
        }
        if let Some(slot) = wakers.get_mut(partition) {
            *slot = Some(waker.clone());
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let waiting: Vec<Waker> = self.0.lock().iter_mut().filter_map(Option::take).collect();
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl ScanQueue {
    /// A queue over `lanes` of items: one lane shared by all partitions, or one for each.
    pub(super) fn new(
        spec: Arc<ScanSpec>,
        scans: Arc<StatementScans>,
        lanes: Vec<Vec<u32>>,
        ordered: bool,
        pruner: DynamicPruner,
    ) -> Self {
        let late = LateMaterialization::new(&spec, ordered);
        let look_ahead = LookAhead::new(spec.source.store.io().depth().bytes(), spec.fetch.is_some());
        let share = Arc::clone(scans.share(&spec.source.store));
        Self {
            spec,
            scans,
            share,
            lanes: lanes.into_iter().map(Lane::new).map(Mutex::new).collect(),
            wakers: Arc::default(),
            pruner: Mutex::new(pruner),
            late,
            look_ahead,
            ordered,
            live: AtomicUsize::new(0),
            collected: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Counts a stream of the execution that begins.
    pub(super) fn enter(&self) {
        self.live.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a stream that ends. The last one cancels all reads and gives their bytes back; partitions that start
    /// later can still read the chunks that were not taken.
    pub(super) fn leave(&self) {
        if self.live.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        for lane in &self.lanes {
            lane.lock().withdraw();
        }
    }

    /// Notes rows that the scan will emit; true when these are enough for its limit. Only an unordered scan may stop a
    /// partition because other partitions have emitted enough.
    pub(super) fn collect(&self, rows: usize) -> bool {
        let (Some(fetch), false) = (self.spec.fetch, self.ordered) else { return false };
        let enough = self.collected.fetch_add(rows, Ordering::SeqCst) + rows >= fetch;
        if enough {
            self.close();
        }
        enough
    }

    /// Reports the reads that have not begun: those of chunks that no partition has taken. The chunks that run-time
    /// filters will exclude are not known yet. A scan with a limit reports nothing, as it may read only one chunk more.
    pub(super) fn report_expected_reads(&self, note: &mut dyn FnMut(&Chunk, usize, ExpectedRead)) {
        let spec = &self.spec;
        if spec.fetch.is_some() || self.closed.load(Ordering::SeqCst) || self.live.load(Ordering::SeqCst) == 0 {
            return;
        }
        let items: Vec<u32> = self.lanes.iter().flat_map(|lane| lane.lock().untaken()).collect();
        for entry in items.into_iter().filter_map(|item| spec.source.chunk(item)) {
            let chunk = &entry.chunk;
            let survivors = spec.observer.survival().expected_survivors(chunk.rows);
            for (slot, column) in spec.columns.iter().enumerate() {
                let (pattern, values) = match spec.filters_on(slot) {
                    true => (Pattern::Sequential, chunk.rows as usize),
                    false => (Sample::scattered(survivors).pattern(survivors, chunk.rows as usize), survivors),
                };
                if values > 0 && !spec.source.is_row_column(*column) {
                    note(chunk, *column, ExpectedRead { pattern, values: values as u64 });
                }
            }
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        Arc::clone(&self.wakers).wake();
    }

    /// Gives a partition its next chunk; `None` when there is no more.
    pub(super) fn poll_next(&self, partition: usize, cx: &mut Context<'_>) -> Poll<Result<Option<Work>>> {
        let Some(lane) = self.lane(partition) else { return Poll::Ready(Ok(None)) };
        let taken = std::task::ready!(self.poll_taken(&mut lane.lock(), partition, cx));
        let opened = match taken {
            Ok(None) => return Poll::Ready(Ok(None)),
            Ok(Some(Taken::Shared(chunk) | Taken::Opened(chunk))) => Ok(chunk),
            Ok(Some(Taken::Arrived(arrived))) => match arrived.open() {
                Ok(chunk) if chunk.has_deferred() => return Poll::Ready(Ok(Some(Work::Filters(Box::new(chunk))))),
                opened => opened.map(Arc::new),
            },
            Ok(Some(Taken::ToFilter(part))) => match part.complete(None) {
                Ok(chunk) => return Poll::Ready(Ok(Some(Work::Filters(Box::new(chunk))))),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match opened {
            Ok(chunk) => {
                let lane = &mut *lane.lock();
                if !self.ordered && !lane.open.iter().any(|open| Arc::ptr_eq(open, &chunk)) {
                    lane.open.push(Arc::clone(&chunk));
                }
                Poll::Ready(Ok(Some(Work::Slices(chunk))))
            }
            Err(error) => {
                lane.lock().clear();
                self.close();
                Poll::Ready(Err(error))
            }
        }
    }

    /// Takes back a chunk of which a partition takes no more slices. The last partition to give it back finishes it,
    /// and does so without the lane's lock, as that may build a membership filter. Chunks are given back before the
    /// next one is asked for, so their charges end before a new read asks the I/O budget for room.
    pub(super) fn release(&self, partition: usize, chunk: Arc<OpenChunk>) {
        // Chunks with slices left stay open for the other partitions.
        if !self.ordered
            && !chunk.has_more()
            && let Some(lane) = self.lane(partition)
        {
            lane.lock().open.retain(|open| !Arc::ptr_eq(open, &chunk));
        }
        OpenChunk::release(chunk);
    }

    fn lane(&self, partition: usize) -> Option<&Mutex<Lane>> {
        if self.ordered { self.lanes.get(partition) } else { self.lanes.first() }
    }

    /// Evaluates the filters on a chunk and, if rows passed, queues the read of its other columns. Only for a shared
    /// lane.
    pub(super) fn apply_filters(&self, chunk: OpenChunk, filter: &mut SliceFilter) -> Result<()> {
        let selected = late::select_rows(&self.late, chunk, filter);
        let (remaining, done) = selected.map_or_else(|error| (None, Err(error)), |remaining| (remaining, Ok(())));
        if let Some(lane) = self.lanes.first() {
            let lane = &mut *lane.lock();
            lane.filtering = lane.filtering.saturating_sub(1);
            lane.filtered.extend(remaining);
        }
        // Other partitions may be waiting for nothing but this: they returned Pending while `filtering` was above 0.
        Arc::clone(&self.wakers).wake();
        done
    }

    /// Takes the next chunk from a lane; starts reads as a side effect.
    fn poll_taken(&self, lane: &mut Lane, partition: usize, cx: &mut Context<'_>) -> Poll<Result<Option<Taken>>> {
        if self.closed.load(Ordering::SeqCst) {
            lane.clear();
            return Poll::Ready(Ok(None));
        }
        // Registered before the lane is examined: a read that finishes after the examination wakes this partition
        // again.
        self.wakers.register(partition, cx.waker());
        if !lane.started {
            self.classify(lane);
        }
        loop {
            // Reads start before anything is taken, so that the device works while this partition processes the chunk.
            self.read_ahead(lane)?;
            self.gather(lane);
            let taken = if self.ordered { self.take_in_order(lane)? } else { self.take_any(lane)? };
            if let Some(chunk) = taken {
                // Taking a chunk that had arrived made room in the window: it is filled again at once.
                self.read_ahead(lane)?;
                return Poll::Ready(Ok(Some(chunk)));
            }
            // `gather` has polled the reads with the shared waker, so the next one that finishes wakes all partitions.
            if !lane.reads.is_empty() {
                return Poll::Pending;
            }
            if lane.is_done(self.ordered) {
                // A partition that evaluates filters may still queue a read; `apply_filters` wakes this one then.
                return if lane.filtering > 0 { Poll::Pending } else { Poll::Ready(Ok(None)) };
            }
            // Nothing is in flight and nothing can be taken, so no event of this scan would wake the partition. Waiting
            // for room in the I/O budget could deadlock with another scan that waits likewise: this read is admitted
            // even beyond the budget. The loop then finds it in flight and returns Pending.
            self.start_read(lane, Admission::Guaranteed)?;
        }
    }

    /// Sorts the items into resident ones and cold ones. A move may change that later; both kinds are prepared for it.
    fn classify(&self, lane: &mut Lane) {
        lane.started = true;
        lane.window_bytes = self.look_ahead.first_bytes;
        let columns = &self.spec.columns;
        for item in std::mem::take(&mut lane.pending) {
            let resident = self.spec.source.chunk(item).is_none_or(|entry| {
                columns.iter().all(|c| entry.chunk.columns().get(*c).is_none_or(|s| s.is_in_memory()))
            });
            if self.ordered {
                lane.order.push_back(item);
            }
            if !resident {
                lane.cold.push_back(item);
            } else if !self.ordered {
                lane.resident.push_back(item);
            }
        }
    }

    /// False when run-time filters exclude the item by now; counts the pruned chunk.
    fn keeps(&self, item: u32) -> bool {
        let verdict = self.pruner.lock().judge(item);
        if verdict == Verdict::NoMember {
            self.spec.metrics.chunks_pruned_membership.add(1);
            self.spec.source.store.filters().add_pruned_chunks(1);
        }
        if verdict != Verdict::Keep {
            self.spec.metrics.chunks_pruned_dynamic.add(1);
            self.spec.tally.prune_chunk();
        }
        verdict == Verdict::Keep
    }

    /// Starts the read of `part`; returns it when the share of the statement or the budget has no room.
    fn read(&self, lane: &mut Lane, part: ColdPart, admission: Admission) -> Result<Option<ColdPart>> {
        if admission == Admission::Prefetch && !self.share.has_room(self.spec.source.store.io_account()) {
            return Ok(Some(part));
        }
        lane.read(part, admission, &self.share)
    }

    /// Starts reads while the window and the I/O budget have room. A scan with a limit looks only one chunk ahead.
    fn read_ahead(&self, lane: &mut Lane) -> Result<()> {
        while !lane.filtered.is_empty() && lane.ahead_bytes < lane.window_bytes {
            if !self.start_read(lane, Admission::Prefetch)? {
                return Ok(());
            }
        }
        let has_room = |lane: &Lane| lane.ahead_bytes < lane.window_bytes && lane.to_filter.len() < MOST_TO_FILTER;
        while lane.filtered.is_empty() && !lane.cold.is_empty() && has_room(lane) {
            if !self.start_read(lane, Admission::Prefetch)? {
                break;
            }
        }
        Ok(())
    }

    /// Starts the read of the first cold chunk that is still wanted; false when the budget has no room. Chunks that
    /// were filtered come first, as they hold the charges of their filter columns.
    fn start_read(&self, lane: &mut Lane, admission: Admission) -> Result<bool> {
        if let Some(part) = lane.filtered.pop_front() {
            return match self.read(lane, part, admission)? {
                Some(part) => {
                    lane.filtered.push_front(part);
                    Ok(false)
                }
                None => Ok(true),
            };
        }
        while let Some(item) = lane.cold.pop_front() {
            if !self.keeps(item) {
                lane.skip(item);
                continue;
            }
            match OpenChunk::open(&self.spec, item)? {
                // A move made it resident since it was classified; an ordered lane reaches it by `order`.
                Opening::Now(_) if self.ordered => {}
                Opening::Now(_) => lane.resident.push_back(item),
                Opening::Cold(part) if part.is_denied() => {
                    self.spec.metrics.chunks_pruned_membership.add(1);
                    lane.skip(item);
                    continue;
                }
                Opening::Cold(part) => {
                    let (bytes, filters_ready) = part.deferrable_bytes();
                    let attempts = self.late.attempts(bytes, filters_ready);
                    let part = if attempts { part.defer_unfiltered() } else { part };
                    if part.is_complete() {
                        lane.to_filter.push_back(item);
                    } else if self.read(lane, part, admission)?.is_some() {
                        if attempts {
                            self.late.cancel_attempt();
                        }
                        lane.cold.push_front(item);
                        return Ok(false);
                    }
                }
            }
            return Ok(true);
        }
        Ok(true)
    }

    /// Moves finished reads to the ready chunks.
    fn gather(&self, lane: &mut Lane) {
        let waker = Waker::from(Arc::clone(&self.wakers));
        let mut cx = Context::from_waker(&waker);
        while let Poll::Ready(Some((item, chunk))) = lane.reads.poll_next_unpin(&mut cx) {
            lane.in_flight.remove(&item);
            lane.window_bytes = self.look_ahead.widened(lane.window_bytes);
            lane.ready.insert(item, chunk);
        }
    }

    /// Takes whichever chunk keeps the scan busiest: an arrived one, one to filter, a resident one, or a share of a
    /// chunk that another partition works on.
    fn take_any(&self, lane: &mut Lane) -> Result<Option<Taken>> {
        // Arrived chunks first: each takes room in the window until it is taken, and its I/O charge until it is finished.
        while let Some((item, chunk)) = lane.ready.pop_first() {
            lane.end_ahead(item);
            // Run-time filters may have become stricter while the chunk was read.
            if self.keeps(item) {
                lane.filtering += usize::from(chunk.has_deferred());
                return Ok(Some(Taken::Arrived(chunk)));
            }
            // No row of the chunk can match any more, and the same may hold for those behind it: read less far ahead again.
            lane.window_bytes = self.look_ahead.first_bytes;
        }
        // Evaluating filters lets a read start, resident chunks do not. So chunks to filter come before resident ones,
        // which are worked on while the device reads. With a full window such a read could not start: then resident
        // chunks come first, unless there is nothing else that can be done.
        if (lane.ahead_bytes < lane.window_bytes || (lane.resident.is_empty() && lane.reads.is_empty()))
            && let Some(taken) = self.take_to_filter(lane)?
        {
            return Ok(Some(taken));
        }
        while let Some(item) = lane.resident.pop_front() {
            if !self.keeps(item) {
                continue;
            }
            match OpenChunk::open(&self.spec, item)? {
                Opening::Now(chunk) => return Ok(Some(Taken::Opened(chunk))),
                // A move made it cold since it was classified.
                Opening::Cold(_) => lane.cold.push_back(item),
            }
        }
        // Nothing is left to open: help another partition with its chunk, so that the scan does not end with one
        // partition at work. This also happens while reads are in flight; the next poll prefers what has arrived by
        // then.
        Ok(lane.open.iter().find(|chunk| chunk.has_more()).cloned().map(Taken::Shared))
    }

    /// Takes a chunk whose filter columns are resident.
    fn take_to_filter(&self, lane: &mut Lane) -> Result<Option<Taken>> {
        while let Some(item) = lane.to_filter.pop_front() {
            if !self.keeps(item) {
                continue;
            }
            match OpenChunk::open(&self.spec, item)? {
                Opening::Now(chunk) => return Ok(Some(Taken::Opened(chunk))),
                Opening::Cold(part) => {
                    let part = part.defer_unfiltered();
                    if part.is_complete() {
                        lane.filtering += 1;
                        return Ok(Some(Taken::ToFilter(part)));
                    }
                    // A move made a filter column cold in the meantime.
                    lane.cold.push_back(item);
                }
            }
        }
        Ok(None)
    }

    /// Takes the next chunk of an ordered lane; `None` while that chunk is not read.
    fn take_in_order(&self, lane: &mut Lane) -> Result<Option<Taken>> {
        while let Some(item) = lane.order.front().copied() {
            let ready = match lane.ready.remove(&item) {
                Some(chunk) => {
                    lane.end_ahead(item);
                    Some(chunk)
                }
                // The next chunk is being read, or is the next one to be read (`cold` has the same order, so it can
                // only be at its front): later chunks have to wait, even if they are resident.
                None if lane.in_flight.contains(&item) || lane.cold.front() == Some(&item) => return Ok(None),
                // Resident when it was classified, or made resident by a move when its read was to start.
                None => None,
            };
            if !self.keeps(item) {
                lane.order.pop_front();
                // No row of the chunk can match any more: read less far ahead again, as in `take_any`.
                if ready.is_some() {
                    lane.window_bytes = self.look_ahead.first_bytes;
                }
                continue;
            }
            if let Some(chunk) = ready {
                lane.order.pop_front();
                return Ok(Some(Taken::Arrived(chunk)));
            }
            match OpenChunk::open(&self.spec, item)? {
                Opening::Now(chunk) => {
                    lane.order.pop_front();
                    return Ok(Some(Taken::Opened(chunk)));
                }
                // A move made it cold in the meantime. It goes to the front of `cold`, as it is the next to be taken;
                // the caller starts its read.
                Opening::Cold(_) => {
                    lane.cold.push_front(item);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}
