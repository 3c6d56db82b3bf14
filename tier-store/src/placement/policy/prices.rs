//! Policies that weigh benefit against bytes, segment by segment.

use super::fill::Filling;
use super::{Decision, Policy, PolicyKind, Problem, Why};
use crate::error::Result;
use crate::placement::epoch;
use crate::placement::solver::{self, greedy};
use crate::placement::words::{figure, time};

/// The solver: see [`crate::placement::solver`].
#[derive(Debug)]
pub(super) struct Optimal;

impl Policy for Optimal {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Optimal
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let solution = {
            let start = &problem.inputs.prices;
            solver::solve(problem.instance, (!start.is_empty()).then_some(start), problem.work)?
        };
        Ok(Decision { solution, scores: Vec::new() })
    }

    fn reason(&self, why: &Why<'_>) -> String {
        epoch::reason(why.inputs, why.planned, why.prices)
    }
}

/// Pairs of segment and tier by falling time saved per byte, each taken while it fits: greedy knapsack (Dreseler 2021,
/// section 7.1.1), with the same costs as the solver.
#[derive(Debug)]
pub(super) struct Density;

impl Policy for Density {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Density
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let mut filling = Filling::new(problem);
        for (row, tier) in greedy(problem.instance).into_iter().enumerate() {
            filling.put(row, usize::from(tier));
        }
        filling.decide(Vec::new())
    }

    fn reason(&self, why: &Why<'_>) -> String {
        let from = why.from();
        let to = why.to();
        let reads = epoch::reads(&why.segment.expected());
        let worth = figure(why.planned.benefit_ns_per_byte.abs());
        let saved = time(why.planned.benefit_us.abs());
        match why.is_promotion() {
            true => format!(
                "dense: {reads}; {to} saves {saved} an epoch against {from}, worth {worth} ns per byte: among the most \
                 that find room there"
            ),
            false if why.segment.expected().total() <= 0.0 => {
                format!(
                    "cold: never read in recent epochs, and {}",
                    why.pressure("is taken by what saves more per byte")
                )
            }
            false => format!(
                "less dense: {reads}; {from} saves {saved} an epoch against {to}, worth {worth} ns per byte; {}",
                why.pressure("is taken by what saves more per byte")
            ),
        }
    }
}
