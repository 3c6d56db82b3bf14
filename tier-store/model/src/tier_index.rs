//! The index of a tier in the list of tiers. A resident copy refers to its tier, not to a position: when tiers come and go,
//! the positions of the others change, and every copy sees the new position of its tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{MAX_TIERS, TierId};

/// The mutable index of one tier in the list, shared by the tier and all copies on it.
///
/// It changes only while the epoch mutex of the tiering loop is locked. A caller that reads it without that lock may compare
/// it with an outdated list: good enough for a count, not for a decision.
#[derive(Debug, Clone)]
pub struct TierIndex(Arc<AtomicU8>);

impl TierIndex {
    /// The index of a new tier at position `id`.
    pub fn new(id: TierId) -> Self {
        Self(Arc::new(AtomicU8::new(id.0)))
    }

    /// The position of the tier now; past the end of the list when the tier was dropped.
    #[inline]
    pub fn id(&self) -> TierId {
        TierId(self.0.load(Ordering::Relaxed))
    }

    /// Moves the tier to a position; `None`: it was removed from the list.
    pub fn set(&self, id: Option<TierId>) {
        self.0.store(id.map_or(u8::MAX, |id| id.0), Ordering::Relaxed);
    }
}

/// Two indexes are equal when they belong to the same tier.
impl PartialEq for TierIndex {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TierIndex {}

/// Maps tiers to rows of a table of counters, so that counts stay with their tier when positions change.
#[derive(Debug)]
pub struct TierRows([AtomicU8; MAX_TIERS]);

impl Default for TierRows {
    fn default() -> Self {
        Self(std::array::from_fn(|id| AtomicU8::new(id as u8)))
    }
}

impl TierRows {
    /// The row of the tier at position `id`.
    #[inline]
    pub fn row_of_tier(&self, id: TierId) -> Option<usize> {
        self.0.get(usize::from(id.0)).map(|row| usize::from(row.load(Ordering::Relaxed)))
    }

    /// Replaces the rows, which are ordered by position.
    pub fn set(&self, rows: &[u8]) {
        for (target, row) in self.0.iter().zip(rows) {
            target.store(*row, Ordering::Relaxed);
        }
    }
}
