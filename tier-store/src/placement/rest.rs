//! What a policy is left to choose: segments that are free, tiers that are open to them, room that nobody has yet.
//!
//! A forbidden tier costs an infinite time. The home is always open, as the last resort of every policy.

use super::duty::Duty;
use super::epoch::Inputs;
use super::policy::{Decision, Policy, Problem};
use super::reserve::Reserved;
use super::solver::{self, Effort, Instance, Method, Solution, gap};
use crate::error::Result;
use crate::tier::TierId;

/// Chooses for the segments that are free to be at home, with what the others leave of the budgets. The answer is about
/// all segments.
pub(super) fn choose_rest(
    policy: &dyn Policy,
    inputs: &Inputs,
    all: &Instance,
    reserved: &Reserved,
    effort: Effort,
) -> Result<Decision> {
    let free: Vec<usize> =
        reserved.place.iter().zip(0..).filter(|(place, _)| place.is_none()).map(|(_, at)| at).collect();
    if free.len() == inputs.segments.len() && reserved.given_way.is_empty() && !inputs.has_rules() {
        return checked(policy, &Problem { inputs, segments: &free, instance: all, effort });
    }
    let rest = rest(inputs, all, reserved, &free);
    let decision = checked(policy, &Problem { inputs, segments: &free, instance: &rest, effort })?;
    Ok(over_all(inputs, all, reserved, &free, decision))
}

/// What a policy chooses, if that is an answer, by the problem alone: a tier for each row, none over its capacity, sums that are
/// numbers. One that is none is not followed, whatever went wrong; the greedy answer is.
fn checked(policy: &dyn Policy, problem: &Problem<'_>) -> Result<Decision> {
    let decision = policy.choose(problem)?;
    let Solution { choice, objective, bound, gap, .. } = &decision.solution;
    if problem.instance.is_feasible(choice) && objective.is_finite() && !bound.is_nan() && !gap.is_nan() {
        return Ok(decision);
    }
    tracing::warn!(policy = policy.kind().name(), objective, bound, "an answer that is none; greedily instead");
    let solution = solver::judge(problem.instance, solver::greedy(problem.instance), problem.effort)?;
    Ok(Decision { solution: Solution { method: Method::Greedy, ..solution }, scores: Vec::new() })
}

fn rest(inputs: &Inputs, all: &Instance, reserved: &Reserved, free: &[usize]) -> Instance {
    let mut rest = Instance { capacities: all.capacities.clone(), costs: Vec::new(), bytes: Vec::new() };
    for (capacity, bytes) in rest.capacities.iter_mut().zip(&reserved.bytes) {
        *capacity -= *bytes as f64;
    }
    for at in free {
        let Some(segment) = inputs.segments.get(*at) else { continue };
        let open = if reserved.given_way.binary_search(at).is_ok() { segment.duty.spare } else { segment.duty.allowed };
        let duty = Duty { allowed: open, ..Duty::default() };
        for tier in 0..all.tiers() {
            let cost = if duty.allows(TierId(tier as u8)) { all.cost(*at, tier) } else { f64::INFINITY };
            rest.costs.push(cost);
            rest.bytes.push(all.weight(*at, tier));
        }
    }
    rest
}

/// The decision about the rest, with the places that were reserved.
fn over_all(inputs: &Inputs, all: &Instance, reserved: &Reserved, free: &[usize], of_rest: Decision) -> Decision {
    let Decision { solution: solved, scores } = of_rest;
    let home = inputs.home();
    let mut choice: Vec<u8> = reserved.place.iter().map(|place| place.unwrap_or(home).0).collect();
    let mut all_scores = vec![None; choice.len()];
    let scores = scores.into_iter().chain(std::iter::repeat(None));
    for ((at, tier), score) in free.iter().zip(&solved.choice).zip(scores) {
        if let (Some(slot), Some(of_all)) = (choice.get_mut(*at), all_scores.get_mut(*at)) {
            (*slot, *of_all) = (*tier, score);
        }
    }
    let fixed =
        reserved.place.iter().enumerate().filter_map(|(at, place)| Some(all.cost(at, usize::from((*place)?.0))));
    let fixed: f64 = fixed.sum();
    let (objective, bound) = (solved.objective + fixed, solved.bound + fixed);
    let gap = gap(objective, bound);
    Decision { solution: Solution { choice, objective, bound, gap, ..solved }, scores: all_scores }
}
