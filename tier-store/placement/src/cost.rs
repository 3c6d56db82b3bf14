//! The cost model: how long the expected accesses of a segment take on a tier.
//!
//! Every access pays a latency and the bytes it touches at a bandwidth, both measured per tier and pattern (Dreseler
//! 2021, section 7.1 and its outlook in 7.2.2: weights of patterns taken from a cost model of the tiers). A sequential
//! access reads the whole segment. The others touch places, and a place is a granule of the tier: a cache line where
//! bytes are addressed, a block with a checksum where the device is read in blocks; they pay the latency at each place.
//! Scattered rows touch 1 - (1 - 1/n)^k of n blocks (Cardenas 1975). A compressed segment can only be read whole;
//! a segment of which an access could skip only a few blocks is read whole too.

use terrace_model::{Pattern, TierKind};
use terrace_storage::tier::codec::CHECKSUM_BLOCK_BYTES;

use crate::heat::decay::SegmentHeat;

/// Granule of byte-addressable tiers: a cache line.
pub const CACHE_LINE_BYTES: u64 = 64;
/// Granule of a device that is read in blocks: a block with a checksum of its own.
pub const PAGE_BYTES: u64 = CHECKSUM_BLOCK_BYTES as u64;
/// A segment is read as a whole where less than this share of its blocks could be left out.
const LEAST_SKIPPED: f64 = 0.2;
/// Typical speedup of places in ascending order over single ones: they are requested together, or prefetched.
const ASCENDING_SPEEDUP: f64 = 4.0;

/// Cost of an access: its latency, and bytes at a bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatternCost {
    /// Time before the first byte, in microseconds: per access (sequential) or per place it touches (the others).
    pub latency_us: f64,
    /// Bytes per microsecond (= MB/s) afterwards; above 0.
    pub bytes_per_us: f64,
}

impl PatternCost {
    /// Microseconds for a number of accesses or places, and their bytes.
    fn us(&self, times: f64, bytes: f64) -> f64 {
        times * self.latency_us + bytes / self.bytes_per_us
    }
}

/// Cost of accesses on one tier.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TierCost {
    /// Cost by pattern: sequential, monotonic, random, point.
    #[cfg_attr(feature = "openapi", schema(min_items = 4, max_items = 4))]
    pub patterns: [PatternCost; 4],
    /// Bytes of a place, the fewest that one access touches; null: always the whole segment.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub granule_bytes: Option<u64>,
}

/// Size of a segment on a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes that a read of all of it moves.
    pub bytes: u64,
    /// Number of rows.
    pub rows: u32,
    /// True when it can only be read as a whole.
    pub whole: bool,
}

impl TierCost {
    /// A profile in which sequential reads pay `latency_us` once and scattered ones pay `touch_us` per place, or less where
    /// the places ascend.
    pub fn new(latency_us: f64, touch_us: f64, bytes_per_us: f64, granule_bytes: Option<u64>) -> Self {
        let patterns = [latency_us, touch_us / ASCENDING_SPEEDUP, touch_us, touch_us]
            .map(|latency_us| PatternCost { latency_us, bytes_per_us });
        Self { patterns, granule_bytes }
    }

    /// A plausible profile for a tier that cannot be measured: DDR4, Optane in App Direct mode (0.35 x the bandwidth, 5 x
    /// the latency of DRAM), an NVMe drive. The relative order of tiers is what matters.
    pub fn typical(kind: TierKind) -> Self {
        match kind {
            TierKind::Dram => Self::new(0.1, 0.02, 9_000.0, Some(CACHE_LINE_BYTES)),
            TierKind::Nvm => Self::new(0.5, 0.1, 3_150.0, Some(CACHE_LINE_BYTES)),
            TierKind::Ssd => Self::new(80.0, 80.0, 1_200.0, Some(PAGE_BYTES)),
            TierKind::Object => Self::new(20_000.0, 20_000.0, 80.0, Some(PAGE_BYTES)),
            // As kernels read it, all rows at once; each pays its share of a launch.
            TierKind::Hbm => Self::new(0.5, 0.5, 1_000_000.0, None),
        }
    }

    /// Expected microseconds per epoch of the accesses in `heat` to a segment on this tier.
    pub fn expected_us(&self, heat: &SegmentHeat, extent: Extent) -> f64 {
        let lines = self.patterns.iter().zip(Pattern::ALL).zip(heat.accesses.iter().zip(heat.values));
        lines
            .filter(|(_, (accesses, _))| **accesses > 0.0)
            .map(|((cost, pattern), (accesses, values))| {
                self.pattern_us(cost, pattern, f64::from(*accesses), f64::from(values), extent)
            })
            .sum()
    }

    /// Microseconds to read `bytes` in one sequential sweep.
    pub fn sweep_us(&self, bytes: u64) -> f64 {
        let [sequential, ..] = &self.patterns;
        sequential.us(1.0, bytes as f64)
    }

    /// This profile on a device that takes `factor` times as long.
    pub(super) fn slowed(mut self, factor: f64) -> Self {
        for pattern in &mut self.patterns {
            pattern.latency_us *= factor;
            pattern.bytes_per_us /= factor;
        }
        self
    }

    /// This profile for a copy of which a read cannot touch less than so many bytes.
    pub(super) fn with_granules_of(mut self, bytes: u64) -> Self {
        self.granule_bytes = self.granule_bytes.map(|granule| granule.max(bytes));
        self
    }

    /// Microseconds of `accesses` of one pattern that read `values` in all.
    fn pattern_us(&self, cost: &PatternCost, pattern: Pattern, accesses: f64, values: f64, extent: Extent) -> f64 {
        let [sequential, ..] = &self.patterns;
        let bytes = extent.bytes as f64;
        let values = values / accesses;
        // Places that one access touches, and their bytes; `None` where it reads the whole segment.
        let places = match (pattern, self.granule_bytes.filter(|_| !extent.whole)) {
            (Pattern::Sequential, _) | (_, None) => None,
            (_, Some(granule)) if granule < PAGE_BYTES => {
                let granule = granule.min(extent.bytes).max(1) as f64;
                let values = values.clamp(1.0, f64::from(extent.rows.max(1)));
                // One place per value, at most all places.
                let places = values.min((bytes / granule).max(1.0));
                Some((places, places * granule))
            }
            (_, Some(granule)) => {
                let blocks = (bytes / granule as f64).max(1.0);
                let share = share_of_blocks(blocks, values.min(f64::from(extent.rows)));
                (share < 1.0).then_some((share * blocks, share * bytes))
            }
        };
        match places {
            None => accesses * sequential.us(1.0, bytes),
            Some((places, bytes)) => accesses * cost.us(places, bytes),
        }
    }
}

/// Share of a segment that a read of so many of its values takes from a device with blocks; 1 where all of it is read.
pub(super) fn share_read(pattern: Pattern, extent: Extent, values: f64) -> f64 {
    match pattern {
        Pattern::Sequential => 1.0,
        _ if extent.whole => 1.0,
        _ => share_of_blocks((extent.bytes as f64 / PAGE_BYTES as f64).max(1.0), values),
    }
}

/// Share of the blocks that a read of scattered values touches (Cardenas 1975); 1 where it could leave out only a few.
fn share_of_blocks(blocks: f64, values: f64) -> f64 {
    let share = match values <= 1.0 {
        true => 1.0 / blocks,
        false => 1.0 - (1.0 - 1.0 / blocks).powf(values),
    };
    if share > 1.0 - LEAST_SKIPPED { 1.0 } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::builders::reads;

    #[test]
    fn an_access_pays_its_latency_and_what_it_touches_at_most_once() {
        let dram = TierCost::new(1.0, 0.5, 1000.0, Some(64));
        let extent = Extent { bytes: 64_000, rows: 8_000, whole: false };
        assert_eq!(dram.expected_us(&reads(Pattern::Sequential, 2.0, 16_000.0), extent), 2.0 * (1.0 + 64.0));
        assert!((dram.expected_us(&reads(Pattern::Point, 1.0, 3.0), extent) - 3.0 * (0.5 + 0.064)).abs() < 1e-9);
        // 8,000 random values lie on 1,000 lines.
        assert_eq!(dram.expected_us(&reads(Pattern::Random, 1.0, 8_000.0), extent), 1000.0 * 0.5 + 64.0);
        assert_eq!(dram.expected_us(&reads(Pattern::Monotonic, 1.0, 8_000.0), extent), 1000.0 * 0.125 + 64.0);
        assert_eq!(dram.expected_us(&SegmentHeat::default(), extent), 0.0);
    }

    #[test]
    fn a_device_of_blocks_is_read_by_blocks_where_that_leaves_out_enough() {
        let ssd = TierCost::new(100.0, 100.0, 1000.0, Some(PAGE_BYTES));
        let cut = Extent { bytes: 64 * PAGE_BYTES, rows: 65_536, whole: false };
        let page_us = PAGE_BYTES as f64 / 1000.0;
        let all_us = 64.0 * PAGE_BYTES as f64 / 1000.0;
        let point_us = |accesses, extent| ssd.expected_us(&reads(Pattern::Point, accesses, accesses), extent);
        assert!((point_us(1.0, cut) - (100.0 + page_us)).abs() < 1e-9);
        assert!((point_us(7.0, cut) - 7.0 * (100.0 + page_us)).abs() < 1e-9);
        // A compressed column is read whole, as is one of which a read wants nearly all.
        assert_eq!(point_us(1.0, Extent { whole: true, ..cut }), 100.0 + all_us);
        let monotonic_us = |values| ssd.expected_us(&reads(Pattern::Monotonic, 1.0, values), cut);
        assert_eq!(monotonic_us(1000.0), 100.0 + all_us);
        let pages = 64.0 * (1.0 - (63.0_f64 / 64.0).powi(30));
        assert!((monotonic_us(30.0) - pages * (25.0 + page_us)).abs() < 1e-6, "{}", monotonic_us(30.0));
        let rounded = TierCost::new(100.0, 100.0, 1000.0, None);
        assert_eq!(rounded.expected_us(&reads(Pattern::Point, 1.0, 1.0), cut), 100.0 + all_us);
    }

    #[test]
    fn blocks_touched_are_counted_as_by_cardenas() {
        let extent = Extent { bytes: 64 * PAGE_BYTES, rows: 65_536, whole: false };
        assert_eq!(share_read(Pattern::Sequential, extent, 1.0), 1.0);
        assert!((share_read(Pattern::Point, extent, 1.0) - 1.0 / 64.0).abs() < 1e-9);
        let share = share_read(Pattern::Monotonic, extent, 30.0);
        assert!(share > 0.3 && share < 30.0 / 64.0, "{share}");
        assert_eq!(share_read(Pattern::Monotonic, extent, 1000.0), 1.0);
        assert_eq!(share_read(Pattern::Random, Extent { bytes: 100, ..extent }, 1.0), 1.0);
        assert_eq!(share_read(Pattern::Random, Extent { whole: true, ..extent }, 1.0), 1.0);
    }

    #[test]
    fn slower_kinds_cost_more_under_every_pattern() {
        let extent = Extent { bytes: 500_000, rows: 65_536, whole: false };
        for pattern in Pattern::ALL {
            let heat = reads(pattern, 3.0, 900.0);
            let [dram, nvm, ssd] = [TierKind::Dram, TierKind::Nvm, TierKind::Ssd]
                .map(|kind| TierCost::typical(kind).expected_us(&heat, extent));
            assert!(dram < nvm && nvm < ssd, "{pattern:?}: {dram} {nvm} {ssd}");
        }
    }
}
