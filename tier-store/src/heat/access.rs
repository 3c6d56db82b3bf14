//! Totals of accesses by tier and pattern since the start of the process, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Pattern;
use crate::tier::TierId;

/// Most tiers a store can have.
const MAX_TIERS: usize = 8;

/// Accesses to segments of one tier by one pattern, and the bytes they covered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessTotal {
    /// Scans of a segment.
    pub accesses: u64,
    /// Bytes of the segments they touched.
    pub bytes: u64,
}

/// Monotone totals by tier and pattern.
#[derive(Debug, Default)]
pub struct AccessTotals {
    cells: [[Cell; 4]; MAX_TIERS],
}

#[derive(Debug, Default)]
struct Cell {
    accesses: AtomicU64,
    bytes: AtomicU64,
}

impl AccessTotals {
    /// Counts one access to a segment on `tier` that covered `bytes`.
    pub fn record(&self, tier: TierId, pattern: Pattern, bytes: u64) {
        if let Some(cell) = self.cells.get(usize::from(tier.0)).and_then(|t| t.get(pattern as usize)) {
            cell.accesses.fetch_add(1, Ordering::Relaxed);
            cell.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The total of `tier` by `pattern`; zero for a tier that is not there.
    pub fn get(&self, tier: TierId, pattern: Pattern) -> AccessTotal {
        let cell = self.cells.get(usize::from(tier.0)).and_then(|t| t.get(pattern as usize));
        cell.map_or(AccessTotal::default(), |c| AccessTotal {
            accesses: c.accesses.load(Ordering::Relaxed),
            bytes: c.bytes.load(Ordering::Relaxed),
        })
    }
}
