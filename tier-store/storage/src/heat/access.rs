//! Totals of accesses by tier and pattern since the start of the process, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_model::{MAX_TIERS, Pattern, TierId, TierRows};

/// Accesses to segments of one tier by one pattern, and the bytes they covered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessTotal {
    /// Number of accesses.
    pub accesses: u64,
    /// Bytes that the accesses covered.
    pub bytes: u64,
}

/// Monotone totals by tier and pattern.
#[derive(Debug, Default)]
pub struct AccessTotals {
    cells: [[Cell; 4]; MAX_TIERS],
    slots: TierRows,
}

#[derive(Debug, Default)]
struct Cell {
    accesses: AtomicU64,
    bytes: AtomicU64,
}

impl AccessTotals {
    #[inline]
    fn cell(&self, tier: TierId, pattern: Pattern) -> Option<&Cell> {
        self.cells.get(self.slots.row_of_tier(tier)?)?.get(pattern as usize)
    }

    /// Adapts to a change of the tiers: `rows` gives the row of each tier, by position; the row `reset` begins at 0.
    pub fn rearrange(&self, rows: &[u8], reset: Option<u8>) {
        for cell in reset.and_then(|row| self.cells.get(usize::from(row))).into_iter().flatten() {
            cell.accesses.store(0, Ordering::Relaxed);
            cell.bytes.store(0, Ordering::Relaxed);
        }
        self.slots.set(rows);
    }

    /// Counts one access to a segment on `tier` that covered `bytes`.
    #[inline]
    pub fn record(&self, tier: TierId, pattern: Pattern, bytes: u64) {
        if let Some(cell) = self.cell(tier, pattern) {
            cell.accesses.fetch_add(1, Ordering::Relaxed);
            cell.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The total of `tier` by `pattern`; zero for a tier that does not exist.
    pub fn get(&self, tier: TierId, pattern: Pattern) -> AccessTotal {
        self.cell(tier, pattern).map_or(AccessTotal::default(), |c| AccessTotal {
            accesses: c.accesses.load(Ordering::Relaxed),
            bytes: c.bytes.load(Ordering::Relaxed),
        })
    }
}
