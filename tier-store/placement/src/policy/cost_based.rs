//! Policies that weigh benefit against bytes, segment by segment.

use terrace_model::Result;

use super::tier_filler::TierFiller;
use super::{Decision, Policy, PolicyKind, Problem, ReasonContext};
use crate::epoch;
use crate::solver::{self, greedy};

/// Decides by the solver: see [`crate::solver`].
#[derive(Debug)]
pub(super) struct Optimal;

impl Policy for Optimal {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Optimal
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let start = &problem.inputs.prices;
        let solution = solver::solve(problem.instance, (!start.is_empty()).then_some(start), problem.work)?;
        Ok(Decision { solution, scores: Vec::new() })
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        epoch::reason(context.inputs, context.planned, context.prices)
    }
}

/// Pairs of segment and option by falling time saved per byte, each taken while it fits: greedy knapsack (Dreseler 2021,
/// section 7.1.1), with the same costs as the solver.
#[derive(Debug)]
pub(super) struct Density;

impl Policy for Density {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Density
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let mut filler = TierFiller::new(problem);
        for (row, option) in greedy(problem.instance).into_iter().enumerate() {
            filler.put(row, usize::from(option));
        }
        filler.decide(Vec::new())
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        let saving = context.saving_text();
        match context.is_promotion() {
            true => format!("dense: {saving}: among the highest that fit there"),
            false if context.segment.heat_with_views().total() <= 0.0 => {
                format!(
                    "cold: not read in recent epochs, and {}",
                    context.pressure("is full of segments that save more per byte")
                )
            }
            false => {
                format!("less dense: {saving}; {}", context.pressure("is full of segments that save more per byte"))
            }
        }
    }
}
