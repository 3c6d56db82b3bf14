//! Counts the reads or writes of a class, and how long their callers waited for them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Waits of up to `FIRST_BOUND_US << n` are in bucket `n`.
const FIRST_BOUND_US: u64 = 64;
/// Buckets with a bound, the longest of four minutes and a half; one more holds the rest.
const BOUNDS: usize = 23;

/// Reads, or writes, of a class since the engine started.
#[derive(Debug, Default)]
pub struct ClassStats {
    bytes: AtomicU64,
    wait_us: AtomicU64,
    /// Operations by their wait.
    waits: [AtomicU64; BOUNDS + 1],
}

/// A copy of [`ClassStats`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassSums {
    /// Bytes of completed operations.
    pub bytes: u64,
    /// Sum of all waits, in microseconds.
    pub wait_us: u64,
    /// Completed operations by their wait: one count for each of [`ClassSums::bounds_us`], and one for longer ones.
    pub waits: Vec<u64>,
}

impl ClassStats {
    /// Counts an operation on `bytes` that was complete `wait_us` after it was asked for.
    pub(super) fn record(&self, bytes: u64, wait_us: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.wait_us.fetch_add(wait_us, Ordering::Relaxed);
        let bucket = ClassSums::bounds_us().take_while(|bound| wait_us > *bound).count();
        if let Some(count) = self.waits.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The sums so far.
    pub fn sums(&self) -> ClassSums {
        ClassSums {
            bytes: self.bytes.load(Ordering::Relaxed),
            wait_us: self.wait_us.load(Ordering::Relaxed),
            waits: self.waits.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
        }
    }
}

impl ClassSums {
    /// Upper bounds of the waits that are counted together, in microseconds.
    pub fn bounds_us() -> impl Iterator<Item = u64> {
        (0..BOUNDS).map(|bucket| FIRST_BOUND_US << bucket)
    }

    /// Completed operations.
    pub fn operations(&self) -> u64 {
        self.waits.iter().sum()
    }

    /// The wait that this share of the operations did not exceed, in microseconds; estimated between the bounds that it lies
    /// between, and the greatest bound if it is longer. `None` without any.
    pub fn wait_us_at(&self, share: f64) -> Option<f64> {
        let operations = self.operations();
        if operations == 0 {
            return None;
        }
        let wanted = share * operations as f64;
        let (mut before, mut lower) = (0.0, 0.0);
        for (count, bound) in self.waits.iter().zip(Self::bounds_us()) {
            let (count, bound) = (*count as f64, bound as f64);
            if before + count >= wanted && count > 0.0 {
                return Some(lower + (bound - lower) * ((wanted - before) / count).max(0.0));
            }
            (before, lower) = (before + count, bound);
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn waits_are_estimated_between_bounds() {
        let stats = ClassStats::default();
        assert_eq!(stats.sums().wait_us_at(0.5), None);
        // 98 of up to 64 us, one of up to 8,192 us, one that lasted too long for all bounds.
        (0..98).for_each(|_| stats.record(4096, 50));
        stats.record(1 << 20, 8_000);
        stats.record(1 << 20, 600_000_000);
        let sums = stats.sums();
        assert_eq!((sums.operations(), sums.bytes, sums.wait_us), (100, 98 * 4096 + (2 << 20), 98 * 50 + 600_008_000));
        assert_eq!(sums.wait_us_at(0.49), Some(32.0));
        assert_eq!(sums.wait_us_at(0.99), Some(8_192.0));
        assert_eq!(sums.wait_us_at(1.0), Some((64 << 22) as f64));
        assert_eq!((sums.waits.len(), ClassSums::bounds_us().last()), (24, Some(64 << 22)));
    }
}
