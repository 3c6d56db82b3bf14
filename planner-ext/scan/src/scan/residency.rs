//! The residency of a scan's segments when it is planned: on which tiers they lie, how the scan reads them, and how
//! many partitions that keeps busy.
//!
//! For each tier the planner could evaluate where the data lies (push), or copy it to DRAM first and evaluate there
//! (pull); the model is that of Tinnefeld et al. (EDBT 2013, section 5), with the tier's bandwidth in place of a
//! network's. In place, a slice comes from its tier once and from the processor's cache whenever it is looked at again;
//! a copy reads the same bytes and writes them too. So on byte-addressable tiers evaluating in place is never dearer,
//! and a copy pays only for later statements: that is a move, which the epochs decide. Nothing can be evaluated in
//! place on a block device: there the choice is which columns to read first and which pages after that, learned as the
//! scan runs ([`super::late`]).

use std::fmt;

use datafusion::execution::memory_pool::human_readable_size;
use terrace_tier_store::io::{Class, Level};
use terrace_tier_store::placement::TierCost;
use terrace_tier_store::tier::TierKind;

use super::exec::{ScanConfig, ScanOrder};
use super::queue::SHORT_SCAN_BYTES;

/// Cost of one more partition in microseconds: a task, and above it a share of every exchange and hash table.
const PARTITION_US: f64 = 60.0;
/// Least time that operators spend on a row, in microseconds.
const ROW_US: f64 = 0.005;

/// Segments and bytes of a scan by tier, the home last.
pub(super) struct Residency {
    tiers: Vec<TierShare>,
    rows: u64,
    filters_first: bool,
    level: Level,
    /// Chunks of which some columns lie at home only.
    cold_chunks: u64,
}

/// Segments and bytes of the scan on one tier.
struct TierShare {
    name: String,
    segments: u64,
    bytes: u64,
}

impl Residency {
    /// The present residency of `columns` of the table.
    pub(super) fn new(config: &ScanConfig, columns: &[usize]) -> Self {
        let source = &config.source;
        let empty = |name: &String| TierShare { name: name.clone(), segments: 0, bytes: 0 };
        let mut tiers: Vec<TierShare> = source.tiers().iter().map(empty).collect();
        let mut cold_chunks = 0;
        for entry in config.chunks.iter().filter_map(|chunk| source.chunk(*chunk)) {
            let segments = entry.chunk.columns();
            let mut is_cold = false;
            for segment in columns.iter().filter_map(|column| segments.get(*column)) {
                let resident = segment.resident.load();
                let (tier, bytes) = match resident.as_ref() {
                    _ if segment.constant.is_some() => continue,
                    Some(resident) => (resident.tier.id(), segment.bytes()),
                    None => (source.home_tier(), segment.home.len),
                };
                is_cold |= tier == source.home_tier();
                if let Some(share) = tiers.get_mut(usize::from(tier.0)) {
                    share.segments += 1;
                    share.bytes += bytes;
                }
            }
            cold_chunks += u64::from(is_cold);
        }
        let rows = config.items().map(|item| source.live_rows(item)).sum();
        let filters_first = config.has_filters() && config.order == ScanOrder::Stealing;
        Self { tiers, rows, filters_first, level: config.level, cold_chunks }
    }

    /// The class that most reads from the home will have, which hold so many bytes in all: those of a scan that needs few bytes
    /// are points, and a longer one reads ahead. Filters may leave fewer.
    fn read_class(&self, home_bytes: u64) -> Class {
        let is_short = home_bytes < SHORT_SCAN_BYTES && home_bytes <= self.cold_chunks * Class::POINT_BYTES;
        if is_short { Class::Point } else { Class::Prefetch }
    }

    /// Number of partitions beyond which a scan takes longer (A27): more partitions divide the work but multiply the
    /// cost per partition, so the optimum is the square root of their ratio.
    pub(super) fn partitions(&self, costs: &[TierCost]) -> usize {
        let home = TierCost::typical(TierKind::Ssd);
        let read_us = |(number, share): (usize, &TierShare)| costs.get(number).unwrap_or(&home).sweep_us(share.bytes);
        let used = self.tiers.iter().enumerate().filter(|(_, share)| share.segments > 0);
        let work_us = used.map(read_us).sum::<f64>() + self.rows as f64 * ROW_US;
        ((work_us / PARTITION_US).sqrt() as usize).max(1)
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for (number, share) in self.tiers.iter().enumerate().filter(|(_, share)| share.segments > 0) {
            let size = human_readable_size(share.bytes as usize);
            write!(f, "{before}{}: {} segments, {size}, ", share.name, share.segments)?;
            if number + 1 == self.tiers.len() {
                write!(f, "fetched as {}", self.read_class(share.bytes).name())?;
                if self.level != Level::NONE {
                    write!(f, ", at random at {}", self.level)?;
                }
                f.write_str(if self.filters_first { ", filters first" } else { "" })?;
            } else {
                f.write_str("in place")?;
            }
            before = "; ";
        }
        if before.is_empty() { f.write_str("nothing stored") } else { Ok(()) }
    }
}
