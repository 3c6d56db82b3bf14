//! The queue of columns that scans have read from home and released, and that merge rounds may promote.
//!
//! The columns hold the charge of their reads, so the queue is bounded: offers to a full queue are dropped. Columns
//! that were read together share memory and charge, and form one offer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Condvar;
use terrace_storage::tier::reader::ReadColumn;

use crate::lock_order::{OrderedMutex, Rank};

/// Maximum number of offers in the queue, whatever their size.
const MAX_OFFERS: usize = 1024;

/// Columns that were read together.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) columns: Vec<ReadColumn>,
    bytes: u64,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Offers {
    open: AtomicBool,
    limit_bytes: u64,
    queue: OrderedMutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    offers: VecDeque<Offer>,
    bytes: u64,
    stop: bool,
}

impl Offers {
    /// Makes a closed queue, which drops every offer.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let queue = OrderedMutex::new(Rank::Leaf, Queue::default());
        Self { open: AtomicBool::new(false), limit_bytes, queue, wake: Condvar::new() }
    }

    /// Opens the queue: from now on a thread runs rounds.
    pub(crate) fn open(&self) {
        self.queue.lock().stop = false;
        self.open.store(true, Ordering::Relaxed);
    }

    /// Closes the queue: drops the waiting and all further offers, and ends [`Offers::wait`].
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        *queue = Queue { stop: true, ..Queue::default() };
        self.wake.notify_all();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Adds the offers for which there is room. Returns the number of dropped columns.
    pub(crate) fn add(&self, columns: impl Iterator<Item = ReadColumn>) -> u64 {
        let at_home = |read: &ReadColumn| {
            let segment = read.chunk.segments.get(read.column);
            segment.is_some_and(|segment| segment.resident.load().is_none())
        };
        let mut forgotten = 0;
        let mut queue = self.queue.lock();
        for offer in group_by_charge(columns.filter(at_home)) {
            let room = queue.bytes + offer.bytes <= self.limit_bytes || queue.bytes == 0;
            if queue.stop || !room || queue.offers.len() >= MAX_OFFERS {
                forgotten += offer.columns.len() as u64;
                continue;
            }
            queue.bytes += offer.bytes;
            queue.offers.push_back(offer);
        }
        if !queue.offers.is_empty() {
            self.wake.notify_one();
        }
        forgotten
    }

    /// Waits until there is an offer; false once the queue is closed.
    pub(crate) fn wait(&self) -> bool {
        let mut queue = self.queue.lock();
        while queue.offers.is_empty() && !queue.stop {
            queue.wait(&self.wake);
        }
        !queue.stop
    }

    /// Takes the oldest offer.
    pub(super) fn take(&self) -> Option<Offer> {
        let mut queue = self.queue.lock();
        let offer = queue.offers.pop_front()?;
        queue.bytes -= offer.bytes;
        Some(offer)
    }

    /// Drops the waiting offers. Returns their number of columns.
    pub(super) fn forget(&self) -> u64 {
        let mut queue = self.queue.lock();
        queue.bytes = 0;
        let offers = std::mem::take(&mut queue.offers);
        drop(queue);
        offers.iter().map(|offer| offer.columns.len() as u64).sum()
    }
}

/// Groups columns into one offer for each charge.
fn group_by_charge(columns: impl Iterator<Item = ReadColumn>) -> Vec<Offer> {
    let mut offers: Vec<Offer> = Vec::new();
    for read in columns {
        let charge = |read: &ReadColumn| read.charge.as_ref().map(Arc::as_ptr);
        let first = |offer: &Offer| offer.columns.first().and_then(charge);
        match offers.iter_mut().find(|offer| charge(&read).is_some() && first(offer) == charge(&read)) {
            Some(offer) => offer.columns.push(read),
            None => {
                let bytes = read.charge.as_ref().map_or(0, |charge| charge.bytes());
                offers.push(Offer { columns: vec![read], bytes });
            }
        }
    }
    offers
}
