//! What the scans of a statement did and have yet to do.
//!
//! The engine puts a [`Journal`] into the configuration of an execution, and every scan of it joins: it adds a tally, shares
//! what the statement has counted, and says at each epoch what it still has to read. Without an engine every scan is a
//! statement of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use datafusion::execution::TaskContext;
use parking_lot::Mutex;
use terrace_tier_store::placement::{Agenda, ExpectedRead, ScanProfile};
use terrace_tier_store::table::Chunk;

use super::counted::Counted;
use super::queue::ScanQueue;
use super::source::ScanSource;
use super::tally::ScanTally;

/// Executions of scans that are kept of a statement; a recursive one may have any number.
const MOST_SCANS: usize = 256;

/// The scans of one statement.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    tallies: Mutex<Vec<Arc<ScanTally>>>,
    /// By table version.
    counted: Mutex<Vec<Arc<Counted>>>,
    /// What runs now, among what ran.
    queues: Mutex<Vec<Weak<ScanQueue>>>,
    is_known: AtomicBool,
}

impl Journal {
    /// The journal of an execution; one that nobody reads where the engine gave none.
    pub(super) fn of(context: &TaskContext) -> Arc<Self> {
        context.session_config().get_extension().unwrap_or_default()
    }

    /// A tally for one more execution of a scan.
    pub(super) fn scan(&self, source: &ScanSource, columns: usize, partitions: usize) -> Arc<ScanTally> {
        let tally = Arc::new(ScanTally::new(source.table.id(), columns, partitions));
        let known = &mut *self.tallies.lock();
        if known.len() < MOST_SCANS {
            known.push(Arc::clone(&tally));
        }
        tally
    }

    /// What all scans of this version count together.
    pub(super) fn counted(&self, source: &ScanSource) -> Arc<Counted> {
        let version = &source.version;
        let known = &mut *self.counted.lock();
        let found = known.iter().find(|counted| counted.is_of(version)).cloned();
        found.unwrap_or_else(|| {
            let new = Arc::new(Counted::new(version, source.table.schema().fields().len()));
            known.push(Arc::clone(&new));
            new
        })
    }

    /// An execution of a scan begins: epochs ask it from now on, as long as it lives.
    pub(super) fn begin(self: &Arc<Self>, queue: &Arc<ScanQueue>) {
        let running = &mut *self.queues.lock();
        // Seldom enough that each costs next to nothing, however many there were.
        if running.len() >= MOST_SCANS && running.len().is_power_of_two() {
            running.retain(|queue| queue.strong_count() > 0);
        }
        running.push(Arc::downgrade(queue));
        if !self.is_known.swap(true, Ordering::Relaxed) {
            let agenda: Weak<Self> = Arc::downgrade(self);
            queue.spec.source.store.tiering().follow(agenda);
        }
    }

    /// What they did so far; scans that read no segment are left out.
    pub(crate) fn scans(&self) -> Vec<ScanProfile> {
        let profiles = self.tallies.lock().iter().map(|tally| tally.profile()).collect::<Vec<_>>();
        profiles.into_iter().filter(|scan| !scan.reads.is_empty()).collect()
    }
}

impl Agenda for Journal {
    fn tell(&self, note: &mut dyn FnMut(&Chunk, usize, ExpectedRead)) {
        let running: Vec<Arc<ScanQueue>> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        running.iter().for_each(|queue| queue.tell(note));
    }
}
