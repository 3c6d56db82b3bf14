//! What merging did since the last epoch, as rows of the log: one for each direction.

use std::collections::BTreeMap;

use super::{MergeKind, MergeOptions, Rank};
use crate::placement::record::MoveRecord;
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
    /// What it took from what made room, and by how much it was worth more; nothing where that was not weighed.
    weighed: Option<Weighed>,
    /// Time saved per byte by the one that it was decided for by the least.
    edge_ns_per_byte: Option<f64>,
    took_us: u64,
    unix_us: u64,
}

/// What a segment was weighed against that came into memory, in microseconds per epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Weighed {
    /// What made room for it saved before.
    pub(super) lost_us: f64,
    /// It saves so much more than that and its copy cost.
    pub(super) margin_us: f64,
}

/// A segment that moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    /// What that saves per epoch.
    pub(super) benefit_us: f64,
    pub(super) weighed: Option<Weighed>,
    pub(super) unix_us: u64,
    pub(super) took_us: u64,
}

/// When rows are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::placement) enum Until {
    /// With this epoch, and what it decided.
    Epoch(u64),
    /// When the loop ends, after this epoch.
    Stop(u64),
}

impl Tally {
    /// Counts a segment that moved.
    pub(super) fn add(&mut self, way: (TierId, TierId), moved: Moved) {
        let count = self.0.entry(way).or_default();
        count.segments += 1;
        count.bytes += moved.bytes;
        count.benefit_us += moved.benefit_us;
        if let Some(weighed) = moved.weighed {
            let sum = count.weighed.get_or_insert_default();
            sum.lost_us += weighed.lost_us;
            sum.margin_us += weighed.margin_us;
        }
        let worth = moved.benefit_us.abs() * 1e3 / moved.bytes.max(1) as f64;
        let comes = way.1 < way.0;
        let edge = |known: f64| if comes { known.min(worth) } else { known.max(worth) };
        count.edge_ns_per_byte = Some(count.edge_ns_per_byte.map_or(worth, edge));
        count.took_us += moved.took_us;
        count.unix_us = moved.unix_us;
    }

    /// Tiers stand elsewhere now. A tier is gone only after an epoch that emptied it, which logged what there was of it.
    pub(super) fn renumber(&mut self, position: impl Fn(TierId) -> Option<TierId>) {
        let counts = std::mem::take(&mut self.0).into_iter();
        self.0 = counts.filter_map(|((from, to), count)| Some(((position(from)?, position(to)?), count))).collect();
    }

    /// The rows, to be logged from number `first` on; counting begins anew.
    pub(super) fn rows(
        &mut self,
        (options, rank): (&MergeOptions, Rank),
        (until, first): (Until, u32),
        name: impl Fn(TierId) -> String,
    ) -> Vec<MoveRecord> {
        let (Until::Epoch(epoch) | Until::Stop(epoch)) = until;
        let row = |(((from, to), count), number): (((TierId, TierId), Count), u32)| MoveRecord {
            segments: count.segments,
            bytes: count.bytes,
            benefit_us: count.benefit_us,
            benefit_ns_per_byte: count.benefit_us * 1e3 / count.bytes.max(1) as f64,
            price_ns_per_byte: count.weighed.map(|weighed| weighed.lost_us * 1e3 / count.bytes.max(1) as f64),
            // What was weighed is whether it stays where it lay.
            runner_up: count.weighed.map(|_| name(from)),
            runner_up_us: count.weighed.map(|weighed| weighed.margin_us),
            condition: condition(options, rank, &count, (name(from), name(to), to < from)),
            reason: reason(options, rank, (count.segments, until), (to < from).then(|| name(from))),
            unix_us: count.unix_us,
            took_us: count.took_us,
            ..MoveRecord::of_several(epoch, number, (name(from), name(to)))
        };
        std::mem::take(&mut self.0).into_iter().zip(first..).map(row).collect()
    }
}

/// What would have changed it, as far as that can be said of several segments at once.
fn condition(options: &MergeOptions, rank: Rank, count: &Count, (from, to, comes): (String, String, bool)) -> String {
    let edge = figure(count.edge_ns_per_byte.unwrap_or(0.0));
    match (comes, options.kind, rank) {
        (true, MergeKind::Selective, _) => format!(
            "a segment stays on {from} when it saves no more on {to} than what has to make room, its copy included; the \
             least of these saves {edge} ns per byte"
        ),
        (true, ..) => format!(
            "a segment stays on {from} when it is not read as a whole; no price and no second tier was weighed, merge = {}",
            options.kind.name()
        ),
        (false, _, Rank::Benefit) => format!(
            "a segment stays on {from} when it saves more per byte than others there; of these the most saved {edge} ns. \
             It was weighed with what came, in the row of that"
        ),
        (false, _, Rank::Recency) => format!(
            "a segment stays on {from} when it is read later than others there; no price and no second tier was weighed"
        ),
        (false, _, Rank::Frequency) => format!(
            "a segment stays on {from} when it is read more often than others there; no price and no second tier was \
             weighed"
        ),
    }
}

/// Why; `read_from` is the tier that promoted segments were read from.
fn reason(options: &MergeOptions, rank: Rank, (segments, until): (u64, Until), read_from: Option<String>) -> String {
    let since = match until {
        Until::Epoch(_) => "since the epoch before",
        Until::Stop(_) => "after this epoch, until the server stopped",
    };
    let since = format!("{segments} segment{} {since}", if segments == 1 { "" } else { "s" });
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
