//! Histograms of durations, as plain atomics that any thread may read.
//!
//! All have the same bounds: round numbers, each two or two and a half times the one before, from 100 microseconds to five
//! minutes. A percentile that is estimated between two bounds is right within this factor, and thresholds of alerts (0.1 s, 1 s)
//! are bounds themselves.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets, in microseconds; one more bucket holds what takes longer.
pub const BOUNDS_US: [u64; 21] = [
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
];

/// Counts durations by [`BOUNDS_US`].
#[derive(Debug, Default)]
pub struct Durations {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// A copy of [`Durations`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurationSums {
    /// How many there were in each bucket: one count for each of [`BOUNDS_US`], then that of the longer ones.
    pub counts: Vec<u64>,
    /// Sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Durations {
    /// Counts one duration, in microseconds.
    pub fn record(&self, duration_us: u64) {
        let bucket = BOUNDS_US.partition_point(|bound| *bound < duration_us);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(duration_us, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn sums(&self) -> DurationSums {
        DurationSums {
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }

    /// Begins again at 0.
    pub fn reset(&self) {
        self.counts.iter().chain([&self.sum_us]).for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let durations = Durations::default();
        for duration_us in [0, 100, 101, 300_000_000, 300_000_001] {
            durations.record(duration_us);
        }
        let sums = durations.sums();
        let mut expected = vec![0; BOUNDS_US.len() + 1];
        (expected[0], expected[1], expected[20], expected[21]) = (2, 1, 1, 1);
        assert_eq!((sums.counts, sums.sum_us), (expected, 600_000_202));
        durations.reset();
        assert_eq!(durations.sums(), Durations::default().sums());
    }

    #[test]
    fn bounds_grow_by_a_factor_of_about_two() {
        for pair in BOUNDS_US.windows(2) {
            let factor = pair[1] as f64 / pair[0] as f64;
            assert!((1.5..=2.5).contains(&factor), "{pair:?}");
        }
    }
}
