//! Builds, counts and evicts the membership filters of a store.
//!
//! A scan reports here when it read a cold column for a list of values and found none of them in the chunk. The second
//! such read builds the segment's filter from the values just read: no extra read is done, and a column that is never
//! probed for single values costs nothing. A filter that would not have avoided the read is not built. The pool tries
//! again only after twice as many useless reads, so the cost of filters that do not help stays small.
//!
//! Filters live in DRAM under a limit of their own and end with their chunk. When the limit is reached, the pool evicts
//! filters that excluded nothing for a minute. While there are none, it builds no new ones, so that a working set that
//! is too large does not evict itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_model::clock::Clock;
use terrace_model::{Account, Charge};

use super::Segment;
use super::filter::{HashedValues, NewFilter};
use crate::tier::codec::StoredColumn;

/// Maximum number of values that a filter is probed for: with more of them, false positives are too frequent.
const MAX_PROBE_VALUES: usize = 256;
/// Number of useless reads at which the pool first tries to build a filter.
const FIRST_TRY: u32 = 2;
/// A filter that excluded nothing for this long may be evicted.
const IDLE_US: u64 = 60_000_000;
/// Maximum number of segments that are checked to make room for one filter.
const MAX_CANDIDATES: usize = 64;

/// The membership filters of a store.
#[derive(Debug)]
pub struct FilterPool {
    account: Arc<Account>,
    clock: Arc<dyn Clock>,
    /// Segments with filters; eviction checks those in front first. Some have lost their filter, or were dropped.
    segments: Mutex<VecDeque<Weak<Segment>>>,
    /// Each filter holds a reference, so the reference count counts them.
    counter: Arc<()>,
    pruned_chunks: AtomicU64,
}

impl FilterPool {
    /// Makes an empty pool; with a limit of 0 bytes it never builds a filter.
    pub fn new(limit_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        let account = Account::new("membership filters", limit_bytes);
        Self { account, clock, segments: Mutex::default(), counter: Arc::default(), pruned_chunks: AtomicU64::new(0) }
    }

    /// The memory of the filters, and its limit.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Number of filters.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.counter) - 1
    }

    /// Number of chunks that scans did not read because of a filter.
    pub fn pruned_chunks(&self) -> u64 {
        self.pruned_chunks.load(Ordering::Relaxed)
    }

    /// Counts chunks that a scan does not read because of filters.
    pub fn add_pruned_chunks(&self, chunks: usize) {
        self.pruned_chunks.fetch_add(chunks as u64, Ordering::Relaxed);
    }

    /// True when the segment has a filter and it excludes all `probe` values.
    pub fn excludes(&self, segment: &Segment, probe: &HashedValues) -> bool {
        let filter = segment.filter.get();
        let Some(filter) = filter.as_ref().filter(|_| probe.len() <= MAX_PROBE_VALUES) else { return false };
        let excludes = !filter.may_contain(probe);
        if excludes {
            filter.touch(self.clock.now_us());
        }
        excludes
    }

    /// Records that a scan read the segment from its home for one of the `probe` values and needed none of its rows.
    /// Takes at most 2.5 ms, for 65,536 distinct values, when it builds a filter.
    pub fn record_useless_read(&self, segment: &Arc<Segment>, values: &StoredColumn, probe: &HashedValues) {
        let possible = self.account.limit_bytes() > 0 && probe.len() <= MAX_PROBE_VALUES;
        if !possible || segment.filter.get().is_some() {
            return;
        }
        let reads = segment.filter.count_useless_read();
        // The distance between tries doubles: the second read, the fourth, the eighth.
        if reads < FIRST_TRY || !reads.is_power_of_two() {
            return;
        }
        let Some(held) = values.widened().ok().and_then(|values| HashedValues::from_array(&values)) else { return };
        let Some(filter) = (!held.intersects(probe)).then(|| NewFilter::from_values(&held)).flatten() else { return };
        let now_us = self.clock.now_us();
        let Some(charge) = self.charge(filter.bytes(), now_us) else { return };
        segment.filter.set(Some(filter.with_charge(charge, Arc::clone(&self.counter), now_us)));
        self.segments.lock().push_back(Arc::downgrade(segment));
    }

    /// Charges the bytes of a new filter, and evicts idle filters to make room for it; `None` without room.
    fn charge(&self, bytes: u64, now_us: u64) -> Option<Charge> {
        let segments = &mut *self.segments.lock();
        for checked in 0..MAX_CANDIDATES.min(segments.len()) {
            // Two are checked even if there is room, so that entries of dropped segments do not accumulate.
            if checked >= 2 && self.fits(bytes) {
                break;
            }
            let Some(weak) = segments.pop_front() else { break };
            let Some(segment) = weak.upgrade() else { continue };
            let last_use_us = segment.filter.get().as_ref().map(|filter| filter.last_use_us());
            match last_use_us {
                Some(last) if now_us.saturating_sub(last) >= IDLE_US && !self.fits(bytes) => segment.filter.set(None),
                Some(_) => segments.push_back(weak),
                None => {}
            }
        }
        self.account.try_charge(bytes).ok()
    }

    fn fits(&self, bytes: u64) -> bool {
        self.account.used_bytes().saturating_add(bytes) <= self.account.limit_bytes()
    }
}

#[cfg(test)]
mod tests;
