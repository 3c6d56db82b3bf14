//! What a policy is left to choose: segments that are free, tiers that are open to them, room that nobody has yet.
//!
//! A forbidden tier costs an infinite time. The home is always open, as the last resort of every policy.
//!
//! The bound that a policy's answer comes with is one of the rest: room that was reserved for a segment which might as well
//! lie on another tier of memory is given there. So where there are such segments, another bound is found: at any prices
//! every segment, on the cheapest tier that its rules leave it, costs at least so much (as in [`super::solver`]), whoever has
//! room reserved.

use super::duty::Duty;
use super::epoch::Inputs;
use super::policy::{Decision, Policy, Problem};
use super::reserve::Reserved;
use super::solver::{self, Instance, Method, Solution, Work, gap};
use crate::error::Result;
use crate::tier::TierId;

/// Chooses for the segments that are free to be at home, with what the others leave of the budgets. The answer is about
/// all segments.
pub(super) fn choose_rest(
    policy: &dyn Policy,
    inputs: &Inputs,
    all: &Instance,
    reserved: &Reserved,
    work: Work<'_>,
) -> Result<Decision> {
    let free: Vec<usize> =
        reserved.place.iter().zip(0..).filter(|(place, _)| place.is_none()).map(|(_, at)| at).collect();
    if free.len() == inputs.segments.len() && reserved.given_way.is_empty() && !inputs.has_rules() {
        return checked(policy, &Problem { inputs, segments: &free, instance: all, work });
    }
    let rest = rest(inputs, all, reserved, &free);
    let decision = checked(policy, &Problem { inputs, segments: &free, instance: &rest, work })?;
    Ok(over_all((inputs, all, work), reserved, &free, decision))
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
    let solution = solver::judge(problem.instance, solver::greedy(problem.instance), problem.work)?;
    Ok(Decision { solution: Solution { method: Method::Greedy, ..solution }, scores: Vec::new() })
}

fn rest(inputs: &Inputs, all: &Instance, reserved: &Reserved, free: &[usize]) -> Instance {
    let mut rest = Instance { capacities: all.capacities.clone(), costs: Vec::new(), bytes: Vec::new() };
    for (capacity, bytes) in rest.capacities.iter_mut().zip(&reserved.bytes) {
        *capacity -= *bytes as f64;
    }
    for at in free {
        let Some(segment) = inputs.segments.get(*at) else { continue };
        let duty = open(reserved, *at, &segment.duty);
        for tier in 0..all.tiers() {
            let cost = if duty.allows(TierId(tier as u8)) { all.cost(*at, tier) } else { f64::INFINITY };
            rest.costs.push(cost);
            rest.bytes.push(all.weight(*at, tier));
        }
    }
    rest
}

/// Where a segment may lie, now that it is known whether its rule gives way.
fn open(reserved: &Reserved, at: usize, duty: &Duty) -> Duty {
    let gives_way = reserved.given_way.binary_search(&at).is_ok();
    Duty { allowed: if gives_way { duty.spare } else { duty.allowed }, ..Duty::default() }
}

/// True when every segment that has room reserved could lie nowhere else.
fn is_forced(inputs: &Inputs, reserved: &Reserved) -> bool {
    let mut places = inputs.segments.iter().zip(&reserved.place).filter(|(_, place)| place.is_some());
    places.all(|(segment, _)| segment.duty.only().is_some())
}

/// A bound of the whole problem: the best at the prices that the rest was solved with, and at those that are best for all.
fn bound_of_all(inputs: &Inputs, all: &Instance, reserved: &Reserved, (of_rest, work): (&[f64], Work<'_>)) -> f64 {
    let mut whole = Instance { costs: Vec::with_capacity(all.costs.len()), ..all.clone() };
    for (at, segment) in inputs.segments.iter().enumerate() {
        let duty = open(reserved, at, &segment.duty);
        let cost = |tier: usize| if duty.allows(TierId(tier as u8)) { all.cost(at, tier) } else { f64::INFINITY };
        whole.costs.extend((0..all.tiers()).map(cost));
    }
    solver::bound(&whole, of_rest, work)
}

/// The decision about the rest, with the places that were reserved.
fn over_all(
    (inputs, all, work): (&Inputs, &Instance, Work<'_>),
    reserved: &Reserved,
    free: &[usize],
    of_rest: Decision,
) -> Decision {
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
    let objective = solved.objective + fixed;
    let bound = match is_forced(inputs, reserved) {
        true => solved.bound + fixed,
        false => bound_of_all(inputs, all, reserved, (&solved.prices, work)).min(objective),
    };
    let gap = gap(objective, bound);
    Decision { solution: Solution { choice, objective, bound, gap, ..solved }, scores: all_scores }
}
