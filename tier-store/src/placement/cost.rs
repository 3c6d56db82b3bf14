//! The cost model: how long the expected accesses of a segment take on a tier.
//!
//! Every access pays a latency and the bytes it touches at a bandwidth, both measured per tier and pattern (Dreseler
//! 2021, section 7.1 and its outlook in 7.2.2: weights of patterns taken from a cost model of the tiers). Scattered
//! accesses pay the latency once per place they touch, and a place is a granule of the tier: a cache line where bytes
//! are addressed, the whole segment where the scan reads it whole. So no access ever costs more than touching every
//! granule once, however many values it reads.

use crate::heat::Pattern;
use crate::heat::decay::SegmentHeat;
use crate::tier::TierKind;

/// Granule of byte-addressable tiers: a cache line.
pub const CACHE_LINE_BYTES: u64 = 64;

/// One line of a tier's cost profile.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PatternCost {
    /// Time before the first byte, in microseconds: per access (sequential, monotonic) or per place (random, point).
    pub latency_us: f64,
    /// Bytes per microsecond (= MB/s) afterwards; above 0.
    pub bytes_per_us: f64,
}

/// What accesses cost on one tier.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TierCost {
    /// In the order of [`Pattern::ALL`].
    pub patterns: [PatternCost; 4],
    /// The least that one access touches, in bytes; `None`: always the whole segment.
    pub granule_bytes: Option<u64>,
}

impl TierCost {
    /// A profile in which sequential and monotonic reads pay `latency_us` once and scattered ones pay `touch_us` per
    /// place.
    pub fn new(latency_us: f64, touch_us: f64, bytes_per_us: f64, granule_bytes: Option<u64>) -> Self {
        let of = |latency_us: f64| PatternCost { latency_us, bytes_per_us };
        Self { patterns: [of(latency_us), of(latency_us), of(touch_us), of(touch_us)], granule_bytes }
    }

    /// A plausible profile for a tier that cannot be measured: DDR4, Optane in App Direct mode (0.35 x the bandwidth, 5 x
    /// the latency of DRAM), an NVMe drive. Their order is what matters.
    pub fn typical(kind: TierKind) -> Self {
        match kind {
            TierKind::Dram => Self::new(0.1, 0.02, 9_000.0, Some(CACHE_LINE_BYTES)),
            TierKind::Nvm => Self::new(0.5, 0.1, 3_150.0, Some(CACHE_LINE_BYTES)),
            TierKind::Ssd => Self::new(80.0, 80.0, 1_200.0, None),
        }
    }

    /// Expected microseconds per epoch of the accesses in `heat` to a segment of `bytes` and `rows` on this tier.
    pub fn expected_us(&self, heat: &SegmentHeat, bytes: u64, rows: u32) -> f64 {
        let lines = self.patterns.iter().zip(Pattern::ALL).zip(heat.accesses.iter().zip(heat.values));
        lines
            .filter(|(_, (accesses, _))| **accesses > 0.0)
            .map(|((cost, pattern), (accesses, values))| {
                self.pattern_us(cost, pattern, f64::from(*accesses), f64::from(values), bytes as f64, f64::from(rows))
            })
            .sum()
    }

    /// Microseconds to read `bytes` in one sequential sweep.
    pub fn sweep_us(&self, bytes: u64) -> f64 {
        let [sequential, ..] = &self.patterns;
        sequential.latency_us + bytes as f64 / sequential.bytes_per_us
    }

    fn pattern_us(
        &self,
        cost: &PatternCost,
        pattern: Pattern,
        accesses: f64,
        values: f64,
        bytes: f64,
        rows: f64,
    ) -> f64 {
        let values = values.clamp(accesses, accesses * rows.max(1.0));
        let granule = self.granule_bytes.map_or(bytes, |granule| (granule as f64).min(bytes)).max(1.0);
        let touches = match pattern {
            Pattern::Sequential => return accesses * (cost.latency_us + bytes / cost.bytes_per_us),
            // A place per value, at most every granule of the segment in each access.
            _ => values.min(accesses * (bytes / granule).max(1.0)),
        };
        let latencies = if pattern == Pattern::Monotonic { accesses } else { touches };
        latencies * cost.latency_us + touches * granule / cost.bytes_per_us
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn heat(pattern: Pattern, accesses: f32, values: f32) -> SegmentHeat {
        let mut heat = SegmentHeat::default();
        (heat.accesses[pattern as usize], heat.values[pattern as usize]) = (accesses, values);
        heat
    }

    #[test]
    fn an_access_pays_its_latency_and_what_it_touches_at_most_once() {
        let dram = TierCost::new(1.0, 0.5, 1000.0, Some(64));
        let ssd = TierCost::new(100.0, 100.0, 1000.0, None);
        let (bytes, rows) = (64_000, 8_000);
        assert_eq!(dram.expected_us(&heat(Pattern::Sequential, 2.0, 16_000.0), bytes, rows), 2.0 * (1.0 + 64.0));
        assert!((dram.expected_us(&heat(Pattern::Point, 1.0, 3.0), bytes, rows) - 3.0 * (0.5 + 0.064)).abs() < 1e-9);
        // 8,000 random values lie on 1,000 lines.
        assert_eq!(dram.expected_us(&heat(Pattern::Random, 1.0, 8_000.0), bytes, rows), 1000.0 * 0.5 + 64.0);
        assert_eq!(ssd.expected_us(&heat(Pattern::Point, 1.0, 3.0), bytes, rows), 100.0 + 64.0);
        assert_eq!(ssd.expected_us(&SegmentHeat::default(), bytes, rows), 0.0);
    }

    #[test]
    fn slower_kinds_cost_more_under_every_pattern() {
        for pattern in Pattern::ALL {
            let heat = heat(pattern, 3.0, 900.0);
            let [dram, nvm, ssd] = [TierKind::Dram, TierKind::Nvm, TierKind::Ssd]
                .map(|kind| TierCost::typical(kind).expected_us(&heat, 500_000, 65_536));
            assert!(dram < nvm && nvm < ssd, "{pattern:?}: {dram} {nvm} {ssd}");
        }
    }
}
