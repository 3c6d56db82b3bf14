//! The scans of one statement: what they read so far, and the reads that are expected of them.
//!
//! The engine puts a [`StatementScans`] into the configuration of an execution, and every scan of the execution
//! registers there: it adds a tally, shares the segments that the statement has counted, and reports at each epoch the
//! reads that it still has to do. Without an engine every scan is a statement of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use parking_lot::Mutex;
use terrace_tier_store::Store;
use terrace_tier_store::io::{Class, ReadShare, StatementId};
use terrace_tier_store::placement::{ExpectedRead, ExpectedReadSource, ScanProfile};
use terrace_tier_store::table::Chunk;
use tracing::Span;

use super::counted_segments::CountedSegments;
use super::observer::ScanCounts;
use super::queue::ScanQueue;
use super::source::ScanSource;
use super::tally::{ChunkCounts, ScanTally};
use super::trace::{Reader, ScanTrace, scan_span};
use crate::pause::Pause;

/// Most tallies that are kept of one statement; a recursive statement may execute any number of scans.
const MOST_SCANS: usize = 256;
/// Most scans of one statement that have spans.
const MOST_TRACED: usize = 64;

/// Returns an error when the statement has to stop.
type StopCheck = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// The scans of one statement.
pub struct StatementScans {
    /// Whose reads those of the scans are.
    id: StatementId,
    /// Called for every slice. A pipeline over resident chunks seldom waits, so that nothing else could stop it in time.
    stop_check: Option<StopCheck>,
    pause: Arc<Pause>,
    tallies: Mutex<Vec<Arc<ScanTally>>>,
    /// One for each table version.
    counted: Mutex<Vec<Arc<CountedSegments>>>,
    /// Queues of all executions so far; those that ended are dead references.
    queues: Mutex<Vec<Weak<ScanQueue>>>,
    /// What it reads ahead; set with its first scan.
    share: OnceLock<Arc<ReadShare>>,
    /// True once the tiering loop follows this statement.
    is_followed: AtomicBool,
    /// The span of the statement, for traces; disabled where it has none.
    span: Span,
    /// Scans that have had spans below it.
    traced: AtomicUsize,
}

impl Default for StatementScans {
    fn default() -> Self {
        Self {
            id: StatementId::next(),
            stop_check: None,
            pause: Arc::default(),
            tallies: Mutex::default(),
            counted: Mutex::default(),
            queues: Mutex::default(),
            share: OnceLock::new(),
            is_followed: AtomicBool::new(false),
            span: Span::none(),
            traced: AtomicUsize::new(0),
        }
    }
}

impl std::fmt::Debug for StatementScans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatementScans").field("scans", &self.scans()).finish_non_exhaustive()
    }
}

impl StatementScans {
    /// The scans of a statement that has to stop when `check` returns an error, and to wait during `pause`.
    pub fn with_stop_check(check: impl Fn() -> Result<()> + Send + Sync + 'static, pause: Arc<Pause>) -> Self {
        Self { stop_check: Some(Box::new(check)), pause, ..Self::default() }
    }

    /// The same scans, with spans below `span`.
    pub fn with_span(self, span: Span) -> Self {
        Self { span, ..self }
    }

    /// Whose reads those of the scans are.
    pub fn id(&self) -> StatementId {
        self.id
    }

    /// Whether the statement has to wait.
    pub(super) fn is_paused(&self) -> bool {
        self.pause.is_on()
    }

    /// The error of a statement that has to stop.
    pub(super) fn check(&self) -> Result<()> {
        self.stop_check.as_ref().map_or(Ok(()), |check| check())
    }

    /// The scans of the statement that `context` belongs to; without an engine a new set that only this scan uses.
    pub(super) fn from_context(context: &TaskContext) -> Arc<Self> {
        context.session_config().get_extension().unwrap_or_default()
    }

    /// Adds a tally for one more execution of a scan.
    pub(super) fn add_scan(&self, source: &ScanSource, columns: usize, partitions: usize) -> Arc<ScanTally> {
        let tally = Arc::new(ScanTally::new(source, columns, partitions));
        let known = &mut *self.tallies.lock();
        if known.len() < MOST_SCANS {
            known.push(Arc::clone(&tally));
        }
        tally
    }

    /// The span of one more execution of a scan, for traces: the first of a statement have some.
    pub(super) fn trace_scan(&self, operator: Reader, source: &ScanSource, counts: &ScanCounts) -> ScanTrace {
        let has_span = !self.span.is_disabled() && self.traced.fetch_add(1, Ordering::Relaxed) < MOST_TRACED;
        let span = if has_span { scan_span(&self.span, operator, source) } else { Span::none() };
        ScanTrace::new(span, &counts.metrics, &counts.tally)
    }

    /// The segments that all scans of this table version have counted together.
    pub(super) fn counted_segments(&self, source: &ScanSource) -> Arc<CountedSegments> {
        let version = &source.version;
        let known = &mut *self.counted.lock();
        let found = known.iter().find(|counted| counted.is_for(version)).cloned();
        found.unwrap_or_else(|| {
            let new = Arc::new(CountedSegments::new(version, source.table.schema().fields().len()));
            known.push(Arc::clone(&new));
            new
        })
    }

    /// Registers an execution of a scan: epochs ask it for its expected reads as long as `queue` lives.
    pub(super) fn begin_scan(self: &Arc<Self>, queue: &Arc<ScanQueue>) {
        let running = &mut *self.queues.lock();
        // Only at powers of two, so that the cost per registration stays constant however many executions there were.
        if running.len() >= MOST_SCANS && running.len().is_power_of_two() {
            running.retain(|queue| queue.strong_count() > 0);
        }
        running.push(Arc::downgrade(queue));
        if !self.is_followed.swap(true, Ordering::Relaxed) {
            let source: Weak<Self> = Arc::downgrade(self);
            queue.spec.source.store.tiering().add_expected_read_source(source);
        }
    }

    /// What the statement reads ahead in a store; a statement has one.
    pub(super) fn share(&self, store: &Store) -> &Arc<ReadShare> {
        self.share.get_or_init(|| ReadShare::new(Arc::clone(store.reading_statements())))
    }

    /// Bytes that the scans read from the home tier so far.
    pub fn cold_bytes(&self) -> u64 {
        self.tallies.lock().iter().map(|tally| tally.cold_bytes()).sum()
    }

    /// Bytes that the scans read so far on each tier, by its name, those included of segments in memory.
    pub fn tier_bytes(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for tally in self.tallies.lock().iter() {
            for (tier, bytes) in tally.tier_bytes().filter(|(_, bytes)| *bytes > 0) {
                match sums.get_mut(tier) {
                    Some(sum) => *sum += bytes,
                    None => _ = sums.insert(tier.to_owned(), bytes),
                }
            }
        }
        sums
    }

    /// Chunks of the scanned tables, and those of them that were excluded so far.
    pub fn chunks(&self) -> ChunkCounts {
        let mut sums = ChunkCounts::default();
        for counts in self.tallies.lock().iter().map(|tally| tally.chunks()) {
            sums.chunks += counts.chunks;
            sums.pruned += counts.pruned;
        }
        sums
    }

    /// Time that the scans waited for reads so far, summed over partitions.
    pub fn read_wait(&self) -> Duration {
        self.tallies.lock().iter().map(|tally| tally.wait()).sum()
    }

    /// The part of [`Self::read_wait`] that a read of `class` has ended.
    pub fn read_wait_for(&self, class: Class) -> Duration {
        self.tallies.lock().iter().map(|tally| tally.wait_for(class)).sum()
    }

    /// Profiles of the scans so far, without those that read no segment.
    pub fn scans(&self) -> Vec<ScanProfile> {
        let profiles = self.tallies.lock().iter().map(|tally| tally.profile()).collect::<Vec<_>>();
        profiles.into_iter().filter(|scan| !scan.reads.is_empty()).collect()
    }
}

impl ExpectedReadSource for StatementScans {
    fn report(&self, note: &mut dyn FnMut(&Chunk, usize, ExpectedRead)) {
        let running: Vec<Arc<ScanQueue>> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        running.iter().for_each(|queue| queue.report_expected_reads(note));
    }
}
