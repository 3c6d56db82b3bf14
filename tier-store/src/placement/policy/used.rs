//! Policies of caches: what was used last, or most often, lies fastest.
//!
//! Both know whole epochs only, so that segments read within the same epoch are equals (LRU) and those that already lie
//! faster stay. A segment that was never read has no claim on any tier.

use super::fill::by_score;
use super::{Decision, Policy, PolicyKind, Problem, Why};
use crate::error::Result;
use crate::heat::SegmentHeat;
use crate::placement::words::figure;

/// The least recently read leaves first.
#[derive(Debug)]
pub(super) struct Lru;

impl Policy for Lru {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lru
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let score = |heat: &SegmentHeat| heat.idle_epochs.map(|epochs| -f64::from(epochs));
        by_score(problem, problem.rows().map(|segment| score(&segment.heat)).collect())
    }

    fn reason(&self, why: &Why<'_>) -> String {
        let last = match why.segment.heat.idle_epochs {
            None => "not read as far as is known".to_owned(),
            Some(0) => "last read in this epoch".to_owned(),
            Some(1) => "last read one epoch ago".to_owned(),
            Some(epochs) => format!("last read {epochs} epochs ago"),
        };
        match why.is_promotion() {
            true => format!("recent: {last}; {} holds what was read last", why.to()),
            false => format!("least recent: {last}; {}", why.pressure("holds what was read later")),
        }
    }
}

/// The least often read leaves first; reads count less with every epoch, as heat does.
#[derive(Debug)]
pub(super) struct Lfu;

impl Policy for Lfu {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lfu
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let score = |heat: &SegmentHeat| Some(f64::from(heat.total())).filter(|reads| *reads > 0.0);
        by_score(problem, problem.rows().map(|segment| score(&segment.heat)).collect())
    }

    fn reason(&self, why: &Why<'_>) -> String {
        let reads = format!("{} reads per epoch", figure(f64::from(why.segment.heat.total())));
        match why.is_promotion() {
            true => format!("frequent: {reads}; {} holds what is read most often", why.to()),
            false => format!("least frequent: {reads}; {}", why.pressure("holds what is read more often")),
        }
    }
}
