//! Corrects the calibrated cost of the home by the reads of scans: by the time that its device takes, and by the share of
//! that time for which statements wait.
//!
//! ```text
//!   device_times = time in which the device had reads of scans / time that calibration gives these reads
//!   waited_share = time in which statements waited for them    / time in which the device had them
//!   cost(home)   = calibrated x device_times x waited_share + bytes x work of a core per byte
//! ```
//!
//! Both are moving averages: an epoch with many bytes read has a weight of a tenth, one with few bytes less.
//! `waited_share` accounts for overlap: reads that run while statements work on other data cost only the CPU time to
//! check them. It is above 1 where several threads wait for one device. Memory that is read in place has no reads to be
//! timed; its cost stays as measured.

use serde::{Deserialize, Serialize};
use terrace_storage::io::ReadSums;

use super::cost::TierCost;

/// Weight of an epoch in which [`MUCH_BYTES`] or more were read.
const WEIGHT: f64 = 0.1;
const MUCH_BYTES: f64 = (64 << 20) as f64;
/// Below this the correction does not change.
const LITTLE_BYTES: u64 = 1 << 20;
/// Largest factor, up or down, of the correction of the device's calibrated time.
const MOST_TIMES: f64 = 4.0;
/// Bounds of `waited_share`: statements wait for at least a part of each read, and at most so many threads wait at once.
const LEAST_WAITED: f64 = 0.1;
const MOST_WAITED: f64 = 4.0;
/// A smaller change than this share is not saved.
const WORTH: f64 = 0.01;

/// Reads of the home by scans, since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HomeReads {
    /// Sums over the reads.
    pub reads: ReadSums,
    /// Time in which statements waited, summed over their threads, in microseconds.
    pub wait_us: u64,
}

/// Time that calibration gives these reads on a device with this profile.
fn calibrated_us(reads: &ReadSums, cost: &TierCost) -> f64 {
    let [sequential, _, random, _] = &cost.patterns;
    let latencies_us = reads.small_reads as f64 * random.latency_us + reads.large_reads as f64 * sequential.latency_us;
    latencies_us + reads.bytes as f64 / sequential.bytes_per_us
}

/// Correction of the home's cost by the scans since the calibration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Correction {
    /// Time that the device takes for the reads of scans, divided by the calibrated time.
    pub device_times: f64,
    /// Share of that time for which statements wait.
    pub waited_share: f64,
    /// Bytes of the reads from which it was computed.
    pub bytes: u64,
}

impl Default for Correction {
    fn default() -> Self {
        Self { device_times: 1.0, waited_share: 1.0, bytes: 0 }
    }
}

impl Correction {
    /// The correction updated by the reads between two moments, on a home with this calibrated profile. `None` where they
    /// were too few.
    pub fn updated(&self, cost: &TierCost, before: &HomeReads, now: &HomeReads) -> Option<Self> {
        let reads = now.reads.since(&before.reads);
        let calibrated_us = calibrated_us(&reads, cost);
        if reads.bytes < LITTLE_BYTES || reads.busy_us == 0 || calibrated_us <= 0.0 {
            return None;
        }
        let weight = WEIGHT * (reads.bytes as f64 / MUCH_BYTES).min(1.0);
        let busy_us = reads.busy_us as f64;
        let times = (busy_us / calibrated_us).clamp(1.0 / MOST_TIMES, MOST_TIMES);
        let waited = (now.wait_us.saturating_sub(before.wait_us) as f64 / busy_us).clamp(LEAST_WAITED, MOST_WAITED);
        Some(Self {
            device_times: self.device_times + weight * (times - self.device_times),
            waited_share: self.waited_share + weight * (waited - self.waited_share),
            bytes: self.bytes.saturating_add(reads.bytes),
        })
    }

    /// True when it differs from `saved` by enough to be worth a write.
    pub fn differs(&self, saved: &Self) -> bool {
        let far = |a: f64, b: f64| (a - b).abs() > WORTH * b;
        far(self.device_times, saved.device_times) || far(self.waited_share, saved.waited_share)
    }

    /// The cost of the home with this correction, for planning.
    pub fn applied(&self, cost: TierCost, cores_us_per_byte: f64) -> TierCost {
        if self.bytes == 0 {
            return cost;
        }
        let mut cost = cost.slowed(self.device_times * self.waited_share);
        for pattern in &mut cost.patterns {
            pattern.bytes_per_us = 1.0 / (1.0 / pattern.bytes_per_us + cores_us_per_byte);
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, clippy::unwrap_used)]
    use super::*;
    use crate::cost::PAGE_BYTES;

    /// 1000 bytes per us, 10 us for a read.
    fn cost() -> TierCost {
        TierCost::new(10.0, 10.0, 1000.0, Some(PAGE_BYTES))
    }

    fn reads(bytes: u64, times: f64, waited: f64) -> HomeReads {
        let large_reads = bytes / 1_000_000;
        let busy_us = ((large_reads * 10) as f64 + bytes as f64 / 1000.0) * times;
        let reads = ReadSums { large_reads, bytes, busy_us: busy_us as u64, small_reads: 0 };
        HomeReads { reads, wait_us: (busy_us * waited) as u64 }
    }

    #[test]
    fn what_scans_see_is_believed_slowly_and_within_bounds() {
        let mut correction = Correction::default();
        let mut now = HomeReads::default();
        for epoch in 1..=60 {
            let before = now;
            now = reads(epoch * 100_000_000, 2.0, 0.5);
            let next = correction.updated(&cost(), &before, &now).unwrap();
            assert!((next.device_times - correction.device_times).abs() < 0.11);
            assert!(next.differs(&correction) || epoch > 20);
            correction = next;
        }
        assert!((correction.device_times - 2.0).abs() < 0.01, "{correction:?}");
        assert!((correction.waited_share - 0.5).abs() < 0.01, "{correction:?}");
        for (times, waited) in [(100.0, 1000.0), (0.001, 0.0)] {
            let mut wrong = Correction::default();
            for _ in 0..200 {
                wrong = wrong.updated(&cost(), &HomeReads::default(), &reads(100_000_000, times, waited)).unwrap();
            }
            assert!(wrong.device_times <= MOST_TIMES && wrong.device_times >= 1.0 / MOST_TIMES, "{wrong:?}");
            assert!(wrong.waited_share <= MOST_WAITED && wrong.waited_share >= LEAST_WAITED, "{wrong:?}");
        }
        // Little is no evidence, and no time at all is none either.
        let little = ReadSums { bytes: 1000, small_reads: 1, busy_us: 9_000_000, large_reads: 0 };
        let little = HomeReads { reads: little, wait_us: 0 };
        assert_eq!(correction.updated(&cost(), &HomeReads::default(), &little), None);
        assert_eq!(correction.updated(&cost(), &now, &now), None);
    }

    #[test]
    fn what_nobody_waits_for_costs_the_work_of_a_core() {
        let correction = Correction { device_times: 2.0, waited_share: 0.25, bytes: 1 };
        let cost = correction.applied(cost(), 0.0005);
        // Half of 1 ms, and half a millisecond of work.
        assert!((cost.sweep_us(1_000_000) - (5.0 + 500.0 + 500.0)).abs() < 1e-6);
        assert_eq!(Correction::default().applied(self::cost(), 0.0005), self::cost());
    }
}
