//! Counts of merging since the last epoch, as rows of the log: one for each direction.

use std::collections::BTreeMap;

use terrace_model::TierId;

use super::{MergeKind, MergeOptions, Rank};
use crate::format::figure;
use crate::record::MoveRecord;

/// The tiers between which segments moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Direction {
    pub(super) from: TierId,
    pub(super) to: TierId,
}

impl Direction {
    fn is_promotion(self) -> bool {
        self.to < self.from
    }
}

/// Counts by direction.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<Direction, Count>);

#[derive(Debug, Default)]
struct Count {
    segments: u64,
    bytes: u64,
    benefit_us: f64,
    /// Sum of the tradeoffs; `None` where nothing was weighed.
    tradeoff: Option<Tradeoff>,
    /// Benefit per byte of the segment whose decision was the closest.
    edge_ns_per_byte: Option<f64>,
    took_us: u64,
    unix_us: u64,
}

/// A segment that came into memory, weighed against those that made room, in microseconds per epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tradeoff {
    /// Benefit that the segments lost which made room.
    pub(super) lost_us: f64,
    /// Benefit of the segment above `lost_us` and the cost of its copy.
    pub(super) margin_us: f64,
}

/// A segment that moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    /// Time that the move saves per epoch.
    pub(super) benefit_us: f64,
    pub(super) tradeoff: Option<Tradeoff>,
    pub(super) unix_us: u64,
    pub(super) took_us: u64,
}

/// The point at which rows are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogPoint {
    /// With this epoch, after its own moves.
    Epoch(u64),
    /// When the loop ends, after this epoch.
    Stop(u64),
}

impl Tally {
    /// Counts a segment that moved.
    pub(super) fn add(&mut self, direction: Direction, moved: Moved) {
        let count = self.0.entry(direction).or_default();
        count.segments += 1;
        count.bytes += moved.bytes;
        count.benefit_us += moved.benefit_us;
        if let Some(tradeoff) = moved.tradeoff {
            let sum = count.tradeoff.get_or_insert_default();
            sum.lost_us += tradeoff.lost_us;
            sum.margin_us += tradeoff.margin_us;
        }
        let worth = moved.benefit_us.abs() * 1e3 / moved.bytes.max(1) as f64;
        let is_promotion = direction.is_promotion();
        let edge = |known: f64| if is_promotion { known.min(worth) } else { known.max(worth) };
        count.edge_ns_per_byte = Some(count.edge_ns_per_byte.map_or(worth, edge));
        count.took_us += moved.took_us;
        count.unix_us = moved.unix_us;
    }

    /// Adapts to new positions of the tiers. The epoch that emptied a tier before it was dropped logged its counts already.
    pub(super) fn renumber(&mut self, position: impl Fn(TierId) -> Option<TierId>) {
        let counts = std::mem::take(&mut self.0).into_iter();
        let renumbered = |(Direction { from, to }, count): (Direction, Count)| {
            Some((Direction { from: position(from)?, to: position(to)? }, count))
        };
        self.0 = counts.filter_map(renumbered).collect();
    }

    /// Takes the counts as rows of the log, with numbers from `first` on.
    pub(super) fn rows(
        &mut self,
        options: &MergeOptions,
        rank: Rank,
        at: LogPoint,
        first: u32,
        name: impl Fn(TierId) -> String,
    ) -> Vec<MoveRecord> {
        let (LogPoint::Epoch(epoch) | LogPoint::Stop(epoch)) = at;
        let row = |((direction, count), number): ((Direction, Count), u32)| {
            let from = name(direction.from);
            let to = name(direction.to);
            let read_from = direction.is_promotion().then_some(from.as_str());
            MoveRecord {
                segments: count.segments,
                bytes: count.bytes,
                benefit_us: count.benefit_us,
                benefit_ns_per_byte: count.benefit_us * 1e3 / count.bytes.max(1) as f64,
                price_ns_per_byte: count.tradeoff.map(|tradeoff| tradeoff.lost_us * 1e3 / count.bytes.max(1) as f64),
                // The alternative that was weighed is to leave the segment where it was.
                runner_up: count.tradeoff.map(|_| from.clone()),
                runner_up_us: count.tradeoff.map(|tradeoff| tradeoff.margin_us),
                condition: match direction.is_promotion() {
                    true => promotion_condition(options, &count, &from, &to),
                    false => demotion_condition(rank, &count, &from),
                },
                reason: reason(options, rank, count.segments, at, read_from),
                unix_us: count.unix_us,
                took_us: count.took_us,
                ..MoveRecord::for_several(epoch, number, from.clone(), to.clone())
            }
        };
        std::mem::take(&mut self.0).into_iter().zip(first..).map(row).collect()
    }
}

/// The condition under which a promoted segment would have stayed, as far as one holds for several segments at once.
fn promotion_condition(options: &MergeOptions, count: &Count, from: &str, to: &str) -> String {
    let edge = figure(count.edge_ns_per_byte.unwrap_or(0.0));
    match options.kind {
        MergeKind::Selective => format!(
            "a segment stays on {from} when it saves no more on {to} than the evicted segments lose, plus its copy; the \
             lowest saving of these segments is {edge} ns per byte"
        ),
        MergeKind::Never | MergeKind::Always => format!(
            "a segment stays on {from} when it is not read as a whole; no price and no second tier was weighed, merge = {}",
            options.kind.name()
        ),
    }
}

/// Like [`promotion_condition`], for segments that made room.
fn demotion_condition(rank: Rank, count: &Count, from: &str) -> String {
    let edge = figure(count.edge_ns_per_byte.unwrap_or(0.0));
    match rank {
        Rank::Benefit => format!(
            "a segment stays on {from} when it saves more per byte than others there; of these the most saved {edge} ns. \
             The row of the promoted segments has the comparison"
        ),
        Rank::Recency => format!(
            "a segment stays on {from} when it is read more recently than others there; no price and no second tier was weighed"
        ),
        Rank::Frequency => format!(
            "a segment stays on {from} when it is read more often than others there; no price and no second tier was \
             weighed"
        ),
    }
}

/// The reason; `read_from` is the tier from which promoted segments were read, `None` for segments that made room.
fn reason(options: &MergeOptions, rank: Rank, segments: u64, at: LogPoint, read_from: Option<&str>) -> String {
    let since = match at {
        LogPoint::Epoch(_) => "since the previous epoch",
        LogPoint::Stop(_) => "after this epoch, until the server stopped",
    };
    let since = format!("{segments} segment{} {since}", if segments == 1 { "" } else { "s" });
    match (read_from, options.kind) {
        (None, _) => format!("made room for segments promoted on read: {since}; {}", rank.first_out()),
        (Some(from), MergeKind::Selective) => format!(
            "promoted on read: {since}, read from {from}, which save more than the evicted ones lose{}",
            match options.top_percent < 100.0 {
                true => format!("; all are among the {} % that save most time per byte", figure(options.top_percent)),
                false => String::new(),
            }
        ),
        (Some(from), _) => format!("promoted on read: {since}, read from {from}; merge = {}", options.kind.name()),
    }
}
