//! Merging: cold reads bring segments into memory at once, between two epochs (Ma et al. 2016: how evicted data returns).
//!
//! ```text
//!   a scan releases a column it read -> offers (bounded; full: dropped) -> round: worth it? room? -> copy, swap
//!                                                                           ledger: values, eviction order
//! ```
//!
//! Rounds run on a thread of their own and hold the epoch mutex, so never during an epoch or an order, and not while
//! placement is frozen or not in mode `auto`. Budgets, placement rules and the modes of tables hold as in epochs. No query
//! waits for a round: the queue drops the offers for which it has no room. Rounds are logged as one row per direction
//! with the next epoch ([`tally`]). What was read once only is brought in idle time of the processors ([`round`]).
//!
//! - [`merger`]: the state of merging, behind its locks
//! - [`offers`]: the queue of columns that scans release
//! - [`round`]: decides on offers and moves segments
//! - [`ledger`]: the value of each segment in memory, and the order in which they are evicted
//! - [`recent`]: heat between epochs
//! - [`tally`]: counts of a round's moves, as rows of the log

mod ledger;
mod merger;
mod offers;
mod recent;
mod round;
mod tally;

use serde::{Deserialize, Serialize};

use super::policy::PolicyKind;

pub(super) use merger::Merger;
pub(super) use round::FirstReads;
pub(super) use tally::LogPoint;

/// Which segments may come into memory between epochs because they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MergeKind {
    /// None: epochs decide alone.
    #[default]
    Never,
    /// Every segment that was read as a whole, as into a cache.
    Always,
    /// Segments for which there is free room, and segments that are worth more than those that make room for them, by their
    /// reads before the one that offers them; both if they are worth the cost of the copy.
    Selective,
}

impl MergeKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Never, Self::Always, Self::Selective];

    /// The default under a policy: policies of caches bring in every segment that is read, the others leave all to epochs.
    pub fn default_for(policy: PolicyKind) -> Self {
        match policy {
            PolicyKind::Lru | PolicyKind::Lfu => Self::Always,
            PolicyKind::Optimal
            | PolicyKind::Density
            | PolicyKind::Column
            | PolicyKind::Chunk
            | PolicyKind::Random
            | PolicyKind::Static
            | PolicyKind::OneForm
            | PolicyKind::FormFirst
            | PolicyKind::Mosaic => Self::Never,
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
    /// Which segments may come.
    pub kind: MergeKind,
    /// For [`MergeKind::Selective`]: a segment must be among the best of all by this share, in percent.
    pub top_percent: f64,
    /// Bytes of finished reads that wait for a round at most; a single larger read may.
    pub queue_bytes: u64,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self { kind: MergeKind::default(), top_percent: 100.0, queue_bytes: 8 << 20 }
    }
}

/// The value by which segments are ranked; the lowest makes room first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// The time of the last read.
    Recency,
    /// Reads per epoch.
    Frequency,
    /// Time saved per byte.
    Benefit,
}

impl Rank {
    fn for_options(kind: MergeKind, policy: PolicyKind) -> Self {
        match (kind, policy) {
            (MergeKind::Always, PolicyKind::Lru) => Self::Recency,
            (MergeKind::Always, PolicyKind::Lfu) => Self::Frequency,
            _ => Self::Benefit,
        }
    }

    /// Description of the segments that make room first.
    fn first_out(self) -> &'static str {
        match self {
            Self::Recency => "the least recently read first",
            Self::Frequency => "the least often read first",
            Self::Benefit => "those that save least time per byte first",
        }
    }
}

#[cfg(test)]
mod tests;
