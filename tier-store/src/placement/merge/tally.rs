//! What merging did since the last epoch, as rows of the log: one for each direction.

use std::collections::BTreeMap;

use super::{MergeKind, MergeOptions, Rank};
use crate::placement::record::{EpochRecord, MoveRecord};
use crate::placement::words::figure;
use crate::tier::TierId;

/// Counts by direction.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<(TierId, TierId), Count>);

#[derive(Debug, Default)]
struct Count {
    segments: u64,
    bytes: u64,
    benefit_us: f64,
    took_us: u64,
    unix_us: u64,
}

impl Tally {
    /// Counts a segment that moved; `benefit_us` is what that saves per epoch.
    pub(super) fn add(&mut self, way: (TierId, TierId), bytes: u64, benefit_us: f64, (unix_us, took_us): (u64, u64)) {
        let count = self.0.entry(way).or_default();
        count.segments += 1;
        count.bytes += bytes;
        count.benefit_us += benefit_us;
        count.took_us += took_us;
        count.unix_us = unix_us;
    }

    /// Tiers stand elsewhere now. A tier is gone only after an epoch that emptied it, which logged what there was of it.
    pub(super) fn renumber(&mut self, position: impl Fn(TierId) -> Option<TierId>) {
        let counts = std::mem::take(&mut self.0).into_iter();
        self.0 = counts.filter_map(|((from, to), count)| Some(((position(from)?, position(to)?), count))).collect();
    }

    /// The rows, to be logged with an epoch from number `first` on; counting begins anew.
    pub(super) fn rows(
        &mut self,
        (options, rank): (&MergeOptions, Rank),
        (epoch, first): (&EpochRecord, u32),
        name: impl Fn(TierId) -> String,
    ) -> Vec<MoveRecord> {
        let row = |(((from, to), count), number): (((TierId, TierId), Count), u32)| MoveRecord {
            segments: count.segments,
            bytes: count.bytes,
            benefit_us: count.benefit_us,
            benefit_ns_per_byte: count.benefit_us * 1e3 / count.bytes.max(1) as f64,
            reason: reason(options, rank, count.segments, (to < from).then(|| name(from))),
            unix_us: count.unix_us,
            took_us: count.took_us,
            ..MoveRecord::of_several(epoch.id, number, (name(from), name(to)))
        };
        std::mem::take(&mut self.0).into_iter().zip(first..).map(row).collect()
    }
}

/// Why; `read_from` is the tier that promoted segments were read from.
fn reason(options: &MergeOptions, rank: Rank, segments: u64, read_from: Option<String>) -> String {
    let since = format!("{segments} segment{} since the epoch before", if segments == 1 { "" } else { "s" });
    match (read_from, options.kind) {
        (None, _) => format!("made room for what was promoted on read: {since}; {}", rank.first_out()),
        (Some(from), MergeKind::Selective) => format!(
            "promoted on read: {since}, read from {from} and worth their room{}",
            match options.top_percent < 100.0 {
                true => format!(", among the {} % of all that save most time per byte", figure(options.top_percent)),
                false => String::new(),
            }
        ),
        (Some(from), _) => format!("promoted on read: {since}, read from {from}; merge = {}", options.kind.name()),
    }
}
