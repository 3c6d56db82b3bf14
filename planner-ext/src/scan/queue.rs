//! The work of one execution: what is still to read, reads in flight, chunks that are ready.
//!
//! A `stealing` scan has one lane that all partitions take from: ready chunks first, then resident ones, at the end
//! slices of chunks that others still work on. An `ordered` scan has a lane per partition and takes strictly in order.
//! Reads start at the first poll and go ahead of use up to a bound and as far as the I/O budget admits; a partition that
//! has nothing else to do is admitted always, so scans cannot wait for each other.
//!
//! Every read wakes every waiting partition: the one that polled last may not be the one that is polled next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use terrace_tier_store::heat::{Pattern, Sample};
use terrace_tier_store::placement::ExpectedRead;
use terrace_tier_store::table::Chunk;
use terrace_tier_store::tier::ssd::Admission;

use super::asked::Asked;
use super::counted::Counted;
use super::filter::{Conjunct, SliceFilter};
use super::journal::Journal;
use super::late::{self, Late};
use super::metrics::ScanMetrics;
use super::open::{Arrived, ChunkRead, ColdPart, OpenChunk, Opening};
use super::pruning::{DynamicPruner, Verdict, as_of_now};
use super::source::ScanSource;
use super::tally::ScanTally;

/// Chunks set aside for their filters, which are in reach, before others are looked at.
const MOST_TO_FILTER: usize = 8;

/// What does not change during an execution.
pub(super) struct ScanSpec {
    /// What is read.
    pub source: Arc<ScanSource>,
    /// Table columns read: those of the output first.
    pub columns: Vec<usize>,
    /// Positions in `columns` of the output's columns.
    pub output: Vec<usize>,
    /// Output schema.
    pub schema: SchemaRef,
    /// Filters over `columns`.
    pub conjuncts: Arc<[Conjunct]>,
    /// Rows of a slice and of an output batch.
    pub slice_rows: usize,
    /// Rows after which the scan may stop.
    pub fetch: Option<usize>,
    /// The filters over the table's schema.
    pub filters: Vec<Arc<dyn PhysicalExpr>>,
    /// What they ask columns for, once a chunk was read in vain: the keys of joins are known by then.
    pub asked: OnceLock<Vec<Asked>>,
    /// Counts of the execution.
    pub metrics: ScanMetrics,
    /// The same for the advisor.
    pub tally: Arc<ScanTally>,
    /// What its statement has counted.
    pub counted: Arc<Counted>,
    /// What became of the rows so far.
    pub passed: Passed,
}

/// Rows of the chunks that an execution is done with, and those of them that left the scan.
#[derive(Debug, Default)]
pub(super) struct Passed {
    rows: AtomicU64,
    survivors: AtomicU64,
}

impl Passed {
    pub(super) fn add(&self, rows: usize, survivors: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.survivors.fetch_add(survivors as u64, Ordering::Relaxed);
    }

    /// Of so many rows, those that are expected to leave the scan; all as long as nothing is known.
    fn of(&self, rows: u32) -> usize {
        let seen = self.rows.load(Ordering::Relaxed);
        let survivors = self.survivors.load(Ordering::Relaxed);
        let share = if seen > 0 { (survivors as f64 / seen as f64).min(1.0) } else { 1.0 };
        (f64::from(rows) * share).ceil() as usize
    }
}

impl ScanSpec {
    /// True when a filter reads the column at this position.
    pub(super) fn filters_on(&self, slot: usize) -> bool {
        self.conjuncts.iter().any(|c| c.slots().contains(&slot))
    }

    /// The single values that the filters ask columns for.
    pub(super) fn asked(&self) -> &[Asked] {
        self.asked.get_or_init(|| match as_of_now(&self.filters) {
            Ok(predicate) => Asked::of(&predicate, self.source.schema()),
            Err(_) => Vec::new(),
        })
    }
}

/// The shared state of one execution.
pub(super) struct ScanQueue {
    pub(super) spec: Arc<ScanSpec>,
    /// It is asked as long as this lives.
    _journal: Arc<Journal>,
    lanes: Vec<Mutex<Lane>>,
    wakers: Arc<Wakers>,
    pruner: Mutex<DynamicPruner>,
    late: Late,
    look_ahead: LookAhead,
    ordered: bool,
    live: AtomicUsize,
    collected: AtomicUsize,
    closed: AtomicBool,
}

/// How many bytes of a lane may be in flight or ready.
struct LookAhead {
    /// When a scan begins; it doubles with every chunk that arrives, and begins again when a chunk was read that is not
    /// wanted any more. A device that answers all it was asked at once would otherwise let the first chunk wait for the
    /// last.
    first_bytes: u64,
    /// What keeps the device busy while a chunk is worked on.
    most_bytes: u64,
}

impl LookAhead {
    /// For a device that is kept busy by `depth_bytes`; a scan with a limit looks only one chunk ahead.
    fn new(depth_bytes: u64, limited: bool) -> Self {
        match limited {
            true => Self { first_bytes: 1, most_bytes: 1 },
            false => Self { first_bytes: depth_bytes / 2, most_bytes: depth_bytes * 4 },
        }
    }

    /// How far to look once a chunk has arrived, after so far.
    fn farther(&self, window_bytes: u64) -> u64 {
        self.most_bytes.min(window_bytes * 2)
    }
}

#[derive(Default)]
struct Lane {
    started: bool,
    /// Not yet classified, in order.
    pending: VecDeque<u32>,
    /// In an ordered scan: what is to be taken, in order.
    order: VecDeque<u32>,
    resident: VecDeque<u32>,
    cold: VecDeque<u32>,
    /// Cold but for the columns of filters, which are in reach: to be asked before anything is read.
    to_filter: VecDeque<u32>,
    /// Filtered; the rest is to be read for the rows that passed.
    chosen: VecDeque<ColdPart>,
    reads: FuturesUnordered<ChunkRead>,
    in_flight: BTreeSet<u32>,
    ready: BTreeMap<u32, Arrived>,
    /// Bytes in flight or ready, by item.
    ahead: BTreeMap<u32, u64>,
    ahead_bytes: u64,
    /// How far to look ahead.
    window_bytes: u64,
    /// Chunks whose filters are being evaluated; the rest of them may come.
    choosing: usize,
    /// Chunks being worked on.
    open: Vec<Arc<OpenChunk>>,
}

/// What a partition is to do.
pub(super) enum Work {
    /// Give out slices.
    Slices(Arc<OpenChunk>),
    /// Evaluate the filters, as [`ScanQueue::choose`] does: the other columns wait for that.
    Filters(Box<OpenChunk>),
}

/// What a partition works on next.
enum Taken {
    /// A chunk that nobody works on yet.
    Opened(Arc<OpenChunk>),
    /// The same, its bytes just read.
    Arrived(Arrived),
    /// A chunk whose filters can be evaluated, while the rest of it is not read.
    ToFilter(ColdPart),
    /// A chunk of another partition, to help with.
    Shared(Arc<OpenChunk>),
}

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
        (spec, journal): (Arc<ScanSpec>, Arc<Journal>),
        lanes: Vec<Vec<u32>>,
        ordered: bool,
        pruner: DynamicPruner,
    ) -> Self {
        let lane = |items: Vec<u32>| Mutex::new(Lane { pending: items.into(), ..Lane::default() });
        let late = Late::new(&spec, ordered);
        let look_ahead = LookAhead::new(spec.source.store.ssd().io().depth().bytes(), spec.fetch.is_some());
        Self {
            spec,
            _journal: journal,
            lanes: lanes.into_iter().map(lane).collect(),
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

    /// A stream of the execution begins.
    pub(super) fn enter(&self) {
        self.live.fetch_add(1, Ordering::SeqCst);
    }

    /// A stream ends. With the last one, reads are withdrawn and bytes given back; what was not taken may still be read
    /// by partitions that start later.
    pub(super) fn leave(&self) {
        if self.live.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        for lane in &self.lanes {
            lane.lock().withdraw();
        }
    }

    /// Notes rows that will leave the scan; true when there are enough. Only an unordered scan may stop a partition
    /// because others delivered.
    pub(super) fn collect(&self, rows: usize) -> bool {
        let (Some(fetch), false) = (self.spec.fetch, self.ordered) else { return false };
        let enough = self.collected.fetch_add(rows, Ordering::SeqCst) + rows >= fetch;
        if enough {
            self.close();
        }
        enough
    }

    /// Tells the reads that nobody has begun: chunks that no partition has taken. What run-time filters will exclude of them
    /// is not known yet. A scan with a limit reads one chunk more, perhaps: it tells nothing.
    pub(super) fn tell(&self, note: &mut dyn FnMut(&Chunk, usize, ExpectedRead)) {
        let spec = &self.spec;
        if spec.fetch.is_some() || self.closed.load(Ordering::SeqCst) || self.live.load(Ordering::SeqCst) == 0 {
            return;
        }
        let items: Vec<u32> = self.lanes.iter().flat_map(|lane| lane.lock().untaken()).collect();
        for entry in items.into_iter().filter_map(|item| spec.source.chunk(item)) {
            let chunk = &entry.chunk;
            let survivors = spec.passed.of(chunk.rows);
            for (slot, column) in spec.columns.iter().enumerate() {
                let (pattern, values) = match spec.filters_on(slot) {
                    true => (Pattern::Sequential, chunk.rows as usize),
                    false => (Sample::apart(survivors).pattern(survivors, chunk.rows as usize), survivors),
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

    /// The next chunk for a partition; `None` when there is no more.
    pub(super) fn poll_next(&self, partition: usize, cx: &mut Context<'_>) -> Poll<Result<Option<Work>>> {
        let Some(lane) = self.lane(partition) else { return Poll::Ready(Ok(None)) };
        let taken = std::task::ready!(self.poll_taken(&mut lane.lock(), partition, cx));
        let opened = match taken {
            Ok(None) => return Poll::Ready(Ok(None)),
            Ok(Some(Taken::Shared(chunk) | Taken::Opened(chunk))) => Ok(chunk),
            Ok(Some(Taken::Arrived(arrived))) => match arrived.open() {
                Ok(chunk) if chunk.waits() => return Poll::Ready(Ok(Some(Work::Filters(Box::new(chunk))))),
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

    fn lane(&self, partition: usize) -> Option<&Mutex<Lane>> {
        if self.ordered { self.lanes.get(partition) } else { self.lanes.first() }
    }

    /// Evaluates the filters on a chunk and leaves the rest of it to be read, if rows passed. Only in a shared lane.
    pub(super) fn choose(&self, chunk: OpenChunk, filter: &mut SliceFilter) -> Result<()> {
        let chosen = late::choose(&self.late, chunk, filter);
        let (rest, done) = chosen.map_or_else(|error| (None, Err(error)), |rest| (rest, Ok(())));
        if let Some(lane) = self.lanes.first() {
            let lane = &mut *lane.lock();
            lane.choosing = lane.choosing.saturating_sub(1);
            lane.chosen.extend(rest);
        }
        // Others may have nothing left to do but this.
        Arc::clone(&self.wakers).wake();
        done
    }

    fn poll_taken(&self, lane: &mut Lane, partition: usize, cx: &mut Context<'_>) -> Poll<Result<Option<Taken>>> {
        if self.closed.load(Ordering::SeqCst) {
            lane.clear();
            return Poll::Ready(Ok(None));
        }
        // Registered before anything is looked at: a read that ends from now on wakes this partition again.
        self.wakers.register(partition, cx.waker());
        if !lane.started {
            self.classify(lane);
        }
        // Exhausted chunks give their charge back before anything new asks for room.
        lane.open.retain(|chunk| chunk.has_more());
        loop {
            self.read_ahead(lane)?;
            self.gather(lane);
            let taken = if self.ordered { self.take_in_order(lane)? } else { self.take_any(lane)? };
            if let Some(chunk) = taken {
                self.read_ahead(lane)?;
                return Poll::Ready(Ok(Some(chunk)));
            }
            if !lane.reads.is_empty() {
                return Poll::Pending;
            }
            if lane.is_done(self.ordered) {
                return if lane.choosing > 0 { Poll::Pending } else { Poll::Ready(Ok(None)) };
            }
            // Nothing in flight, nothing to work on: this partition must not depend on the budget of others.
            self.start_read(lane, Admission::Guaranteed)?;
        }
    }

    /// Sorts the items into those in reach and those to be read. A move may change that; both ways are prepared for it.
    fn classify(&self, lane: &mut Lane) {
        lane.started = true;
        lane.window_bytes = self.look_ahead.first_bytes;
        let columns = &self.spec.columns;
        for item in std::mem::take(&mut lane.pending) {
            let in_reach = self.spec.source.chunk(item).is_none_or(|entry| {
                columns.iter().all(|c| entry.chunk.columns().get(*c).is_none_or(|s| s.is_in_reach()))
            });
            if self.ordered {
                lane.order.push_back(item);
            }
            if !in_reach {
                lane.cold.push_back(item);
            } else if !self.ordered {
                lane.resident.push_back(item);
            }
        }
    }

    /// False when run-time filters exclude the item now; counted.
    fn keeps(&self, item: u32) -> bool {
        let verdict = self.pruner.lock().judge(item);
        if verdict == Verdict::NoMember {
            self.spec.metrics.chunks_pruned_membership.add(1);
            self.spec.source.store.filters().add_pruned_chunks(1);
        }
        if verdict != Verdict::Keep {
            self.spec.metrics.chunks_pruned_dynamic.add(1);
        }
        verdict == Verdict::Keep
    }

    /// Queues reads while there is room. A scan with a limit looks only one chunk ahead.
    fn read_ahead(&self, lane: &mut Lane) -> Result<()> {
        while !lane.chosen.is_empty() && lane.ahead_bytes < lane.window_bytes {
            if !self.start_read(lane, Admission::Prefetch)? {
                return Ok(());
            }
        }
        let has_room = |lane: &Lane| lane.ahead_bytes < lane.window_bytes && lane.to_filter.len() < MOST_TO_FILTER;
        while lane.chosen.is_empty() && !lane.cold.is_empty() && has_room(lane) {
            if !self.start_read(lane, Admission::Prefetch)? {
                break;
            }
        }
        Ok(())
    }

    /// Starts the read of the first cold chunk that is still wanted; false when the budget has no room. Rows that passed
    /// the filters come first.
    fn start_read(&self, lane: &mut Lane, admission: Admission) -> Result<bool> {
        if let Some(rest) = lane.chosen.pop_front() {
            return match lane.read(rest, admission)? {
                Some(rest) => {
                    lane.chosen.push_front(rest);
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
                // Moved here since it was classified; an ordered lane comes to it by its order.
                Opening::Now(_) if self.ordered => {}
                Opening::Now(_) => lane.resident.push_back(item),
                Opening::Cold(part) if part.is_denied() => {
                    self.spec.metrics.chunks_pruned_membership.add(1);
                    lane.skip(item);
                    continue;
                }
                Opening::Cold(part) => {
                    let (bytes, there) = part.waitable_bytes();
                    let tries = self.late.tries(bytes, there);
                    let part = if tries { part.filters_first() } else { part };
                    if part.is_complete() {
                        lane.to_filter.push_back(item);
                    } else if lane.read(part, admission)?.is_some() {
                        if tries {
                            self.late.put_off();
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
            lane.window_bytes = self.look_ahead.farther(lane.window_bytes);
            lane.ready.insert(item, chunk);
        }
    }

    fn take_any(&self, lane: &mut Lane) -> Result<Option<Taken>> {
        while let Some((item, chunk)) = lane.ready.pop_first() {
            lane.end_ahead(item);
            if self.keeps(item) {
                lane.choosing += usize::from(chunk.waits());
                return Ok(Some(Taken::Arrived(chunk)));
            }
            lane.window_bytes = self.look_ahead.first_bytes;
        }
        // What may cause reads comes before what does not, as far as the reads have room.
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
                // Moved away since it was classified.
                Opening::Cold(_) => lane.cold.push_back(item),
            }
        }
        Ok(lane.open.iter().find(|chunk| chunk.has_more()).cloned().map(Taken::Shared))
    }

    fn take_to_filter(&self, lane: &mut Lane) -> Result<Option<Taken>> {
        while let Some(item) = lane.to_filter.pop_front() {
            if !self.keeps(item) {
                continue;
            }
            match OpenChunk::open(&self.spec, item)? {
                Opening::Now(chunk) => return Ok(Some(Taken::Opened(chunk))),
                Opening::Cold(part) => {
                    let part = part.filters_first();
                    if part.is_complete() {
                        lane.choosing += 1;
                        return Ok(Some(Taken::ToFilter(part)));
                    }
                    // A column of the filters moved away since.
                    lane.cold.push_back(item);
                }
            }
        }
        Ok(None)
    }

    fn take_in_order(&self, lane: &mut Lane) -> Result<Option<Taken>> {
        while let Some(item) = lane.order.front().copied() {
            let ready = match lane.ready.remove(&item) {
                Some(chunk) => {
                    lane.end_ahead(item);
                    Some(chunk)
                }
                None if lane.in_flight.contains(&item) || lane.cold.front() == Some(&item) => return Ok(None),
                None => None,
            };
            if !self.keeps(item) {
                lane.order.pop_front();
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
                Opening::Cold(_) => {
                    lane.cold.push_front(item);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}

impl Lane {
    fn is_done(&self, ordered: bool) -> bool {
        if ordered {
            self.order.is_empty()
        } else {
            let asked = self.to_filter.is_empty() && self.chosen.is_empty();
            asked && self.cold.is_empty() && self.ready.is_empty() && self.resident.is_empty()
        }
    }

    /// Items that no partition has taken.
    fn untaken(&self) -> BTreeSet<u32> {
        let sorted = [&self.pending, &self.order, &self.resident, &self.cold, &self.to_filter];
        let read = self.in_flight.iter().chain(self.ready.keys()).copied();
        let chosen = self.chosen.iter().map(ColdPart::item);
        sorted.into_iter().flatten().copied().chain(read).chain(chosen).collect()
    }

    /// Starts a read; gives the part back when the budget has no room for it.
    fn read(&mut self, part: ColdPart, admission: Admission) -> Result<Option<ColdPart>> {
        let item = part.item();
        let bytes = part.missing_bytes();
        let read = match part.read(admission)? {
            Ok(read) => read,
            Err(part) => return Ok(Some(part)),
        };
        self.reads.push(read);
        self.in_flight.insert(item);
        self.ahead.insert(item, bytes);
        self.ahead_bytes += bytes;
        Ok(None)
    }

    /// A pruned item is not waited for.
    fn skip(&mut self, item: u32) {
        self.order.retain(|o| *o != item);
    }

    fn end_ahead(&mut self, item: u32) {
        self.ahead_bytes -= self.ahead.remove(&item).unwrap_or(0);
    }

    fn clear(&mut self) {
        *self = Self { started: true, ..Self::default() };
    }

    fn withdraw(&mut self) {
        self.reads = FuturesUnordered::new();
        let mut back: Vec<u32> = std::mem::take(&mut self.in_flight).into_iter().collect();
        back.extend(std::mem::take(&mut self.ready).into_keys());
        back.extend(std::mem::take(&mut self.to_filter));
        back.extend(std::mem::take(&mut self.chosen).iter().map(ColdPart::item));
        back.sort_unstable();
        back.into_iter().rev().for_each(|item| self.cold.push_front(item));
        self.ahead.clear();
        self.ahead_bytes = 0;
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_doubles_up_to_a_bound_and_a_limit_looks_at_one_chunk() {
        let course = |look_ahead: &LookAhead| {
            let next = |window_bytes: &u64| Some(look_ahead.farther(*window_bytes));
            std::iter::successors(Some(look_ahead.first_bytes), next).take(6).collect::<Vec<_>>()
        };
        assert_eq!(course(&LookAhead::new(16, false)), [8, 16, 32, 64, 64, 64]);
        assert_eq!(course(&LookAhead::new(16, true)), [1; 6]);
    }
}
