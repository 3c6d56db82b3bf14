//! Policies that ignore reads: baselines for the others.

use terrace_model::{Result, TierId};

use super::tier_filler::fill_by_score;
use super::{Decision, Policy, PolicyKind, Problem, ReasonContext};
use crate::heat::SegmentKey;

/// Every segment draws its rank once: the same seed gives the same placement in every epoch.
#[derive(Debug)]
pub(super) struct Random {
    /// Seed of the draws.
    pub(super) seed: u64,
}

impl Random {
    /// A number from 0 to 1 (splitmix64 over the parts of the key).
    fn draw(&self, key: &SegmentKey) -> f64 {
        let parts = [key.table.0, key.chunk.0, u64::from(key.column.0)];
        let mixed = parts.into_iter().fold(self.seed, |state, part| {
            let state = state.wrapping_add(part).wrapping_add(0x9E37_79B9_7F4A_7C15);
            let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            state ^ (state >> 31)
        });
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Policy for Random {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Random
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        fill_by_score(problem, problem.rows().map(|segment| Some(self.draw(&segment.key))).collect())
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        let drawn = context.score.unwrap_or(0.0);
        match context.is_promotion() {
            true => format!("random: its draw {drawn:.3} is high enough for {}", context.to()),
            false => {
                format!("random: its draw is {drawn:.3}; {}", context.pressure("holds segments with higher draws"))
            }
        }
    }
}

/// Segments in memory stay; room that is left is filled in the order of the tables.
#[derive(Debug)]
pub(super) struct Static;

impl Policy for Static {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Static
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let home = problem.inputs.home();
        let mut filler = super::tier_filler::TierFiller::new(problem);
        // A tier over its budget keeps as many segments as fit, the earliest first.
        let (resident, others): (Vec<_>, Vec<_>) =
            problem.rows().map(|segment| segment.current).enumerate().partition(|(_, current)| *current < home);
        resident.into_iter().for_each(|(row, _)| filler.stay(row));
        others.into_iter().for_each(|(row, _)| filler.place(row, TierId(0)));
        filler.decide(Vec::new())
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        match context.is_promotion() {
            true => format!("first fill: {} has room", context.to()),
            false => format!("static: {}", context.pressure("has no room for it")),
        }
    }
}
