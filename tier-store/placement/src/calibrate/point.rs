//! Measurements of a tier, and the cost profile that follows from them.

use serde::{Deserialize, Serialize};
use terrace_model::{Error, Pattern, Result};

use super::timing::{ReadTime, fit_line};
use crate::cost::{PatternCost, TierCost};

/// One measurement of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MeasuredPoint))]
pub struct Point {
    /// Access pattern.
    pub pattern: Pattern,
    /// Share of the values that was selected; absent: all values that were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub selectivity: Option<f64>,
    /// Bytes that one access read.
    pub bytes: u64,
    /// Places that one access touched: granules of the tier, for a sequential access 1.
    pub places: u64,
    /// Number of accesses at once: threads in memory, reads given to a device.
    pub at_once: u32,
    /// Microseconds per access: of each thread, or of the device while it serves so many of them.
    pub us: f64,
}

impl Point {
    /// Bytes per microsecond (= MB/s).
    pub fn bytes_per_us(&self) -> f64 {
        self.bytes as f64 / self.us.max(1e-6)
    }
}

/// The profile of a tier with places of `granule_bytes`. Scans read many segments at once, so the measurements with most
/// accesses at once count: they include the latency that hides behind other accesses. A point access is measured alone.
pub(super) fn profile(points: &[Point], granule_bytes: u64) -> Result<TierCost> {
    let with_pattern = |pattern: Pattern| points.iter().filter(move |point| point.pattern == pattern);
    let counted = |pattern: Pattern| {
        let at_once = with_pattern(pattern).map(|point| point.at_once);
        let at_once = if pattern == Pattern::Point { at_once.min() } else { at_once.max() };
        with_pattern(pattern).filter(move |point| Some(point.at_once) == at_once)
    };
    let by_bytes = |point: &&Point| point.bytes;
    // Fewer of the larger reads at once keep the device as busy, so each size has its own largest number.
    let busiest = |bytes: u64| {
        with_pattern(Pattern::Sequential).filter(|point| point.bytes == bytes).max_by_key(|point| point.at_once)
    };
    let small = with_pattern(Pattern::Sequential).min_by_key(by_bytes);
    let large = with_pattern(Pattern::Sequential).max_by_key(by_bytes);
    let nothing = || Error::Invalid("nothing was measured".into());
    let small = small.and_then(|point| busiest(point.bytes)).ok_or_else(nothing)?;
    let large = large.and_then(|point| busiest(point.bytes)).ok_or_else(nothing)?;
    let small = ReadTime { bytes: small.bytes, us: small.us };
    let large = ReadTime { bytes: large.bytes, us: large.us };
    let (latency_us, bytes_per_us) = fit_line(small, large)?;
    let mut cost = TierCost::new(latency_us, 0.0, bytes_per_us, Some(granule_bytes));
    for (pattern, slot) in Pattern::ALL.into_iter().zip(&mut cost.patterns).skip(1) {
        let (us, places) = counted(pattern).fold((0.0, 0), |sum, point| (sum.0 + point.us, sum.1 + point.places));
        let place_us = us / places.max(1) as f64 - granule_bytes as f64 / bytes_per_us;
        *slot = PatternCost { latency_us: place_us.max(0.0), bytes_per_us };
    }
    Ok(cost)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn point(pattern: Pattern, bytes: u64, places: u64, at_once: u32, us: f64) -> Point {
        Point { pattern, selectivity: None, bytes, places, at_once, us }
    }

    #[test]
    fn a_profile_is_what_was_measured_of_a_busy_tier_and_of_a_point_alone() {
        use Pattern::{Monotonic, Random, Sequential};
        let points = [
            point(Sequential, 1000, 1, 1, 100.0),
            point(Sequential, 1000, 1, 8, 3.0),
            point(Sequential, 10_000, 1, 1, 200.0),
            // 10 us and 1000 bytes per us, with 2 at once.
            point(Sequential, 10_000, 1, 2, 12.0),
            point(Monotonic, 6400, 100, 1, 999.0),
            point(Monotonic, 6400, 100, 4, 56.4),
            point(Monotonic, 64, 1, 4, 0.2),
            point(Random, 6400, 100, 4, 1.0),
            point(Pattern::Point, 64, 1, 1, 90.064),
            point(Pattern::Point, 64, 1, 4, 5.0),
        ];
        let cost = profile(&points, 64).unwrap();
        let [sequential, monotonic, random, alone] = cost.patterns;
        assert_eq!((sequential.latency_us, sequential.bytes_per_us), (2.0, 1000.0));
        assert!((monotonic.latency_us - (56.6 / 101.0 - 0.064)).abs() < 1e-9, "{monotonic:?}");
        assert_eq!(random.latency_us, 0.0, "not less than nothing");
        assert!((alone.latency_us - 90.0).abs() < 1e-9);
        // A point is priced as it was measured, what it touches included.
        let one = crate::heat::SegmentHeat {
            accesses: [0.0, 0.0, 0.0, 1.0],
            values: [0.0, 0.0, 0.0, 1.0],
            ..crate::heat::SegmentHeat::default()
        };
        for granule_bytes in [64, crate::cost::PAGE_BYTES] {
            let mut points = points.to_vec();
            points[8].bytes = granule_bytes;
            let cost = profile(&points, granule_bytes).unwrap();
            let extent = crate::cost::Extent { bytes: 1 << 20, rows: 65_536, whole: false };
            assert!((cost.expected_us(&one, extent) - 90.064).abs() < 1e-9, "{granule_bytes}");
        }
        assert!(profile(&points[4..], 64).is_err() && profile(&points[..1], 64).is_err());
    }
}
