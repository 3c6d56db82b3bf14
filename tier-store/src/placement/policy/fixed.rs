//! Policies that ask nobody: the floor that others are held against.

use super::fill::by_score;
use super::{Decision, Policy, PolicyKind, Problem, Why};
use crate::error::Result;
use crate::heat::SegmentKey;

/// Every segment draws its rank once: the same seed gives the same placement in every epoch.
#[derive(Debug)]
pub(super) struct Random {
    /// What is drawn from.
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
        by_score(problem, problem.rows().map(|segment| Some(self.draw(&segment.key))).collect())
    }

    fn reason(&self, why: &Why<'_>) -> String {
        let drawn = why.score.unwrap_or(0.0);
        match why.is_promotion() {
            true => format!("random: it drew {drawn:.3}, enough for room on {}", why.to()),
            false => format!("random: it drew {drawn:.3}; {}", why.pressure("is for higher ones")),
        }
    }
}

/// What lies in memory stays; room that is left is filled in the order of the tables.
#[derive(Debug)]
pub(super) struct Static;

impl Policy for Static {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Static
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let home = problem.home();
        let mut filling = super::fill::Filling::new(problem);
        // A tier over its budget keeps what it can, the earliest first.
        let (lie, fill): (Vec<_>, Vec<_>) = problem
            .rows()
            .map(|segment| usize::from(segment.current.0))
            .enumerate()
            .partition(|(_, current)| *current < home);
        lie.into_iter().for_each(|(row, current)| filling.place(row, current));
        fill.into_iter().for_each(|(row, _)| filling.place(row, 0));
        filling.decide(Vec::new())
    }

    fn reason(&self, why: &Why<'_>) -> String {
        match why.is_promotion() {
            true => format!("first fill: {} has room", why.to()),
            false => format!("static: {}", why.pressure("has no room for it")),
        }
    }
}
