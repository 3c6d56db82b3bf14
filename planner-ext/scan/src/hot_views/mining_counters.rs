//! Counts of mining since the server started, for metrics, and the states of proposals.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// State of a proposal of a hot view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProposalState {
    /// The view would pay.
    Proposed,
    /// A user made the view.
    Taken,
    /// The view would no longer pay.
    Withdrawn,
    /// The server made the view.
    Created,
    /// The server made the view, and it was dropped or replaced by a user since.
    Retired,
    /// A user rejected the view.
    Rejected,
}

impl ProposalState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Proposed, Self::Taken, Self::Withdrawn, Self::Created, Self::Retired, Self::Rejected];

    /// Name of the state, as users see it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Taken => "taken",
            Self::Withdrawn => "withdrawn",
            Self::Created => "created",
            Self::Retired => "retired",
            Self::Rejected => "rejected",
        }
    }

    /// True in a state that is final.
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Taken | Self::Withdrawn | Self::Retired | Self::Rejected)
    }
}

/// Counts of scans and of views, and the present number of proposals by state.
#[derive(Debug, Default)]
pub struct MiningCounters {
    noted: AtomicU64,
    missed: AtomicU64,
    created: AtomicU64,
    retired: AtomicU64,
    proposals: [AtomicU64; ProposalState::ALL.len()],
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
        ProposalState::ALL.into_iter().map(ProposalState::name).zip(counts)
    }

    /// Counts an execution of a scan that was logged.
    pub fn noted(&self) {
        self.noted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an execution of a scan for which the log had no room.
    pub fn missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a view that the server made.
    pub fn created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a view that the server dropped.
    pub fn retired(&self) {
        self.retired.fetch_add(1, Ordering::Relaxed);
    }

    /// Shows the present proposals, given by their states.
    pub fn show(&self, states: impl Iterator<Item = ProposalState> + Clone) {
        for (state, count) in ProposalState::ALL.into_iter().zip(&self.proposals) {
            let now = states.clone().filter(|shown| *shown == state).count();
            count.store(now as u64, Ordering::Relaxed);
        }
    }
}
