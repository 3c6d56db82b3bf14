//! Counts of mining since the server started, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use super::proposal::{Proposal, State};

/// Counts of scans and of views, and the present number of proposals by state.
#[derive(Debug, Default)]
pub struct MiningCounters {
    noted: AtomicU64,
    missed: AtomicU64,
    created: AtomicU64,
    retired: AtomicU64,
    proposals: [AtomicU64; State::ALL.len()],
}

impl MiningCounters {
    /// Executions of scans that were logged, and those for which the log had no room.
    pub fn scans(&self) -> [(&'static str, u64); 2] {
        [("noted", self.noted.load(Ordering::Relaxed)), ("missed", self.missed.load(Ordering::Relaxed))]
    }

    /// Views that the server made (new ones and replacements of its own views), and those that it dropped.
    pub fn views(&self) -> [(&'static str, u64); 2] {
        [("created", self.created.load(Ordering::Relaxed)), ("retired", self.retired.load(Ordering::Relaxed))]
    }

    /// Proposals that are shown, by state.
    pub fn proposals(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self.proposals.iter().map(|count| count.load(Ordering::Relaxed));
        State::ALL.into_iter().map(State::name).zip(counts)
    }

    pub(super) fn noted(&self) {
        self.noted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn retired(&self) {
        self.retired.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn show(&self, proposals: &[Proposal]) {
        for (state, count) in State::ALL.into_iter().zip(&self.proposals) {
            let now = proposals.iter().filter(|proposal| proposal.state == state).count();
            count.store(now as u64, Ordering::Relaxed);
        }
    }
}
