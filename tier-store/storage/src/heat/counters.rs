//! Access counters of one segment.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use terrace_model::Pattern;

/// Accesses and values read by pattern, in the order of [`Pattern::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PatternCounts {
    /// Number of statements that read the segment.
    pub accesses: [u64; 4],
    /// Values that they looked up; of neighbours that are selected, one in eight counts (see [`super::Sample::values`]).
    pub values: [u64; 4],
    /// Those of the accesses that a kernel of a device could have made, whether it did or not.
    pub kernel: u64,
}

/// The counters of one segment: 56 bytes.
#[derive(Debug, Default)]
pub struct SegmentCounters {
    accesses: [AtomicU32; 4],
    values: [AtomicU64; 4],
    kernel: AtomicU32,
}

impl SegmentCounters {
    /// Counts one access that read `values` values. Call once per statement that reads the segment.
    #[inline]
    pub fn record(&self, pattern: Pattern, values: u64) {
        if cfg!(feature = "no-counters") {
            return;
        }
        let i = pattern as usize;
        if let (Some(accesses), Some(total)) = (self.accesses.get(i), self.values.get(i)) {
            accesses.fetch_add(1, Ordering::Relaxed);
            total.fetch_add(values, Ordering::Relaxed);
        }
    }

    /// Counts `values` more of an access that is counted already.
    #[inline]
    pub fn record_more(&self, pattern: Pattern, values: u64) {
        if cfg!(feature = "no-counters") {
            return;
        }
        if let Some(total) = self.values.get(pattern as usize) {
            total.fetch_add(values, Ordering::Relaxed);
        }
    }

    /// Counts that a kernel of a device could have made an access that is counted already. Call once per statement, only where
    /// there is a device.
    #[inline]
    pub fn record_kernel(&self) {
        if !cfg!(feature = "no-counters") {
            self.kernel.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the counters to `counts`; for a new segment that no statement reads yet.
    pub fn start_at(&self, counts: &PatternCounts) {
        let pairs = self.accesses.iter().zip(counts.accesses);
        pairs.for_each(|(counter, count)| counter.store(count as u32, Ordering::Relaxed));
        self.values.iter().zip(counts.values).for_each(|(counter, count)| counter.store(count, Ordering::Relaxed));
        self.kernel.store(counts.kernel as u32, Ordering::Relaxed);
    }

    /// A copy of all counters (not atomic across patterns).
    #[inline]
    pub fn snapshot(&self) -> PatternCounts {
        PatternCounts {
            accesses: std::array::from_fn(|i| self.accesses.get(i).map_or(0, |c| c.load(Ordering::Relaxed).into())),
            values: std::array::from_fn(|i| self.values.get(i).map_or(0, |c| c.load(Ordering::Relaxed))),
            kernel: self.kernel.load(Ordering::Relaxed).into(),
        }
    }
}
