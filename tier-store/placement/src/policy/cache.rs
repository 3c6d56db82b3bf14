//! Policies of caches: segments that were read last, or most often, lie fastest.
//!
//! Both count in whole epochs, so that segments read within the same epoch are equals (LRU) and those on faster tiers stay
//! there. A segment that was never read keeps its place only while room is left.

use terrace_model::Result;

use super::tier_filler::fill_by_score;
use super::{Decision, Policy, PolicyKind, Problem, ReasonContext};
use crate::format::figure;
use crate::heat::SegmentHeat;

/// The least recently read segment leaves first.
#[derive(Debug)]
pub(super) struct Lru;

impl Policy for Lru {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lru
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let score = |heat: &SegmentHeat| heat.idle_epochs.map(|epochs| -f64::from(epochs));
        fill_by_score(problem, problem.rows().map(|segment| score(&segment.heat)).collect())
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        let last = match context.segment.heat.idle_epochs {
            None => "no read is recorded".to_owned(),
            Some(0) => "last read in this epoch".to_owned(),
            Some(1) => "last read one epoch ago".to_owned(),
            Some(epochs) => format!("last read {epochs} epochs ago"),
        };
        match context.is_promotion() {
            true => format!("recent: {last}; {} holds the segments read last", context.to()),
            false => format!("least recent: {last}; {}", context.pressure("holds segments read later")),
        }
    }
}

/// The least often read segment leaves first; reads count less with every epoch, as heat does.
#[derive(Debug)]
pub(super) struct Lfu;

impl Policy for Lfu {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lfu
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let score = |heat: &SegmentHeat| Some(f64::from(heat.total())).filter(|reads| *reads > 0.0);
        fill_by_score(problem, problem.rows().map(|segment| score(&segment.heat)).collect())
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        let reads = format!("{} reads per epoch", figure(f64::from(context.segment.heat.total())));
        match context.is_promotion() {
            true => format!("frequent: {reads}; {} holds the segments read most often", context.to()),
            false => format!("least frequent: {reads}; {}", context.pressure("holds segments read more often")),
        }
    }
}
