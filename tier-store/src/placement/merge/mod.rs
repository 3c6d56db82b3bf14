//! Merging: what a cold read brings into memory at once, between two epochs (Ma et al. 2016: how evicted data returns).
//!
//! ```text
//!   a scan lets go of a column it read -> offers (bounded; full: forgotten) -> round: worth it? room? -> copy, swap
//!                                                                               ledger: values, what may make room
//! ```
//!
//! Rounds run on a thread of their own and have the loop's turn, so never during an epoch or an order, and not while
//! placement is frozen or not in mode `auto`. Budgets, placement rules and the modes of tables hold as in epochs. No query
//! waits for a round; what it cannot take at once is forgotten, and read again another time. Rounds are logged as one row
//! per direction with the next epoch ([`tally`]).

mod ledger;
mod offers;
mod recent;
mod round;
mod tally;

use serde::{Deserialize, Serialize};

use super::policy::PolicyKind;

pub(super) use offers::Offers;
pub(super) use round::Merging;
pub(super) use tally::Until;

/// What may come into memory between epochs because it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MergeKind {
    /// Nothing: epochs decide alone.
    #[default]
    Never,
    /// All that was read as a whole, as into a cache.
    Always,
    /// What is worth more than what has to make room for it, the copy included.
    Selective,
}

impl MergeKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Never, Self::Always, Self::Selective];

    /// What is usual under a policy: those that are known from caches bring in what is read, the others leave all to epochs.
    pub fn usual(policy: PolicyKind) -> Self {
        match policy {
            PolicyKind::Lru | PolicyKind::Lfu => Self::Always,
            PolicyKind::Optimal
            | PolicyKind::Density
            | PolicyKind::Column
            | PolicyKind::Chunk
            | PolicyKind::Random
            | PolicyKind::Static => Self::Never,
        }
    }

    /// Lower-case name, as in settings and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::Selective => "selective",
        }
    }
}

/// Settings of merging.
#[derive(Debug, Clone, Copy)]
pub struct MergeOptions {
    /// What may come.
    pub kind: MergeKind,
    /// For [`MergeKind::Selective`]: the share of all segments, in percent, that it must be among.
    pub top_percent: f64,
    /// Bytes of finished reads that wait for a round at most; a single larger read may.
    pub queue_bytes: u64,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self { kind: MergeKind::default(), top_percent: 100.0, queue_bytes: 8 << 20 }
    }
}

/// What segments are ranked by; the lowest makes room first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// When it was read last.
    Recency,
    /// Reads per epoch.
    Frequency,
    /// Time saved per byte.
    Benefit,
}

impl Rank {
    fn of(kind: MergeKind, policy: PolicyKind) -> Self {
        match (kind, policy) {
            (MergeKind::Always, PolicyKind::Lru) => Self::Recency,
            (MergeKind::Always, PolicyKind::Lfu) => Self::Frequency,
            _ => Self::Benefit,
        }
    }

    /// Which makes room first, in words.
    fn first_out(self) -> &'static str {
        match self {
            Self::Recency => "the least recently read first",
            Self::Frequency => "the least often read first",
            Self::Benefit => "what saves least time per byte first",
        }
    }
}

#[cfg(test)]
mod tests;
