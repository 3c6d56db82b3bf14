//! All membership filters of a store: when one is built, what they take together, which one goes.
//!
//! A scan that read a cold column for a list of values and found none of them in the chunk says so here. The second time
//! the segment gets a filter, made of the values at hand: no read is done for it, and a column that nobody asks for single
//! values costs nothing. A filter that would not have spared that read is not built; after each try the next one waits for
//! twice as many reads in vain, so that what does not work is not tried for ever.
//!
//! Filters live in DRAM under a limit of their own and end with their chunk. When the limit is reached, those go that were
//! of no use for a minute; while there are none, no new ones come, so that a working set that is too large does not push
//! itself out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Segment;
use super::filter::{HashedValues, NewFilter};
use crate::clock::Clock;
use crate::tier::codec::StoredColumn;
use crate::tier::{Account, Charge};

/// Most values that a filter is asked for: with more, too often one passes that is not there.
const MOST_ASKED: usize = 256;
/// Reads in vain before the first try.
const FIRST_TRY: u32 = 2;
/// After so long without use a filter makes room for others.
const IDLE_US: u64 = 60_000_000;
/// Filters looked at to make room for one.
const MOST_LOOKED_AT: usize = 64;

/// The membership filters of a store.
#[derive(Debug)]
pub struct FilterPool {
    account: Arc<Account>,
    clock: Arc<dyn Clock>,
    /// Segments with filters; those in front are looked at first. Some have lost theirs, or are no more.
    segments: Mutex<VecDeque<Weak<Segment>>>,
    /// Held by each filter.
    alive: Arc<()>,
    pruned_chunks: AtomicU64,
}

impl FilterPool {
    /// No filters yet; `limit_bytes` 0: there never will be.
    pub fn new(limit_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        let account = Account::new("membership filters", limit_bytes);
        Self { account, clock, segments: Mutex::default(), alive: Arc::default(), pruned_chunks: AtomicU64::new(0) }
    }

    /// What they take, and the limit.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Filters there are.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    /// Chunks that scans did not read because of a filter.
    pub fn pruned_chunks(&self) -> u64 {
        self.pruned_chunks.load(Ordering::Relaxed)
    }

    /// Notes that a scan does not read so many chunks because of filters.
    pub fn add_pruned_chunks(&self, chunks: usize) {
        self.pruned_chunks.fetch_add(chunks as u64, Ordering::Relaxed);
    }

    /// True when the segment has a filter and none of `asked` is in it.
    pub fn excludes(&self, segment: &Segment, asked: &HashedValues) -> bool {
        let filter = segment.filter.get();
        let Some(filter) = filter.as_ref().filter(|_| asked.len() <= MOST_ASKED) else { return false };
        let excludes = !filter.may_contain(asked);
        if excludes {
            filter.touch(self.clock.now_us());
        }
        excludes
    }

    /// The segment was read from its home for rows with one of the `asked` values, and no row was wanted. Takes 2.5 ms at
    /// most, for 65,536 different values, where it builds a filter.
    pub fn read_in_vain(&self, segment: &Arc<Segment>, values: &StoredColumn, asked: &HashedValues) {
        let possible = self.account.limit_bytes() > 0 && asked.len() <= MOST_ASKED;
        if !possible || segment.filter.get().is_some() {
            return;
        }
        let times = segment.filter.read_in_vain();
        if times < FIRST_TRY || !times.is_power_of_two() {
            return;
        }
        let Some(held) = values.widened().ok().and_then(|values| HashedValues::of(&values)) else { return };
        let Some(filter) = (!held.meets(asked)).then(|| NewFilter::of(&held)).flatten() else { return };
        let now_us = self.clock.now_us();
        let Some(charge) = self.room(filter.bytes(), now_us) else { return };
        segment.filter.set(Some(filter.charged(charge, Arc::clone(&self.alive), now_us)));
        self.segments.lock().push_back(Arc::downgrade(segment));
    }

    /// Room for one more; filters that are idle make it.
    fn room(&self, bytes: u64, now_us: u64) -> Option<Charge> {
        let segments = &mut *self.segments.lock();
        for looked_at in 0..MOST_LOOKED_AT.min(segments.len()) {
            // Two are looked at in any case, so that chunks that are no more leave no trace.
            if looked_at >= 2 && self.fits(bytes) {
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
