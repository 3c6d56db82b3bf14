//! The residual problem: the policy chooses tiers for the free segments within the room that is not reserved.
//!
//! A forbidden tier has infinite cost. The home is always allowed, so that every policy finds a feasible placement.
//!
//! The policy's bound holds for the residual problem alone: it takes the reserved places as given, even where a segment
//! could lie on another memory tier. If there are such segments, this module computes a bound of the
//! whole problem: at any prices every segment costs at least as much as on the cheapest tier that its rules allow (as in
//! [`super::solver`]), whatever room is reserved.

use terrace_model::{Result, TierId};

use super::constraints::PlacementConstraints;
use super::epoch::Inputs;
use super::policy::{Decision, Policy, Problem};
use super::reserved::Reserved;
use super::solver::{self, Bound, Instance, Method, Solution, Work, gap};

/// Lets the policy choose options for the segments without a reserved place, within the room that the others leave. The
/// decision covers all segments.
pub(super) fn choose_residual(
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
    let residual = residual_instance(inputs, all, reserved, &free);
    let decision = checked(policy, &Problem { inputs, segments: &free, instance: &residual, work })?;
    let whole = WholeProblem { inputs, all, reserved, work };
    Ok(whole.decide(&free, decision))
}

/// Returns the policy's decision if it is valid: an option for each row, no capacity exceeded, finite sums. Else logs a
/// warning and returns the greedy decision.
fn checked(policy: &dyn Policy, problem: &Problem<'_>) -> Result<Decision> {
    let decision = policy.choose(problem)?;
    let Solution { choice, objective, bound, gap, .. } = &decision.solution;
    if problem.instance.is_feasible(choice) && objective.is_finite() && !bound.is_nan() && !gap.is_nan() {
        return Ok(decision);
    }
    let policy = policy.kind().name();
    tracing::warn!(policy, objective, bound, "the policy returned an invalid placement; using the greedy one");
    let solution = solver::judge(problem.instance, solver::greedy(problem.instance), problem.work)?;
    Ok(Decision { solution: Solution { method: Method::Greedy, ..solution }, scores: Vec::new() })
}

/// Builds the instance of the free segments, with the room that is not reserved.
fn residual_instance(inputs: &Inputs, all: &Instance, reserved: &Reserved, free: &[usize]) -> Instance {
    let mut residual = Instance {
        capacities: all.capacities.clone(),
        options: all.options.clone(),
        costs: Vec::with_capacity(free.len() * all.options.count()),
        bytes: Vec::with_capacity(free.len() * all.options.cells()),
    };
    for (capacity, bytes) in residual.capacities.iter_mut().zip(&reserved.bytes) {
        *capacity -= *bytes as f64;
    }
    for at in free {
        let Some(segment) = inputs.segments.get(*at) else { continue };
        let constraints = effective_constraints(&reserved.given_way, *at, &segment.constraints);
        let cost =
            |tier: usize| if constraints.allows(TierId(tier as u8)) { all.cost(*at, tier) } else { f64::INFINITY };
        residual.costs.extend((0..all.options.count()).map(cost));
        residual.bytes.extend(all.cells(*at));
    }
    residual
}

/// Makes options infinitely dear whose tiers rules forbid to a segment. The rules of segments in `given_way` do not count
/// (see [`super::reserved`]).
pub(super) fn forbid_by_rules(whole: &mut Instance, inputs: &Inputs, given_way: &[usize]) {
    let options = whole.options.count().max(1);
    for (at, (costs, segment)) in whole.costs.chunks_exact_mut(options).zip(&inputs.segments).enumerate() {
        let constraints = effective_constraints(given_way, at, &segment.constraints);
        for (cost, tier) in costs.iter_mut().zip(0..) {
            if !constraints.allows(TierId(tier)) {
                *cost = f64::INFINITY;
            }
        }
    }
}

/// Returns the constraints of a segment, without the rule that the budgets do not allow (see [`super::reserved`]).
fn effective_constraints(given_way: &[usize], at: usize, constraints: &PlacementConstraints) -> PlacementConstraints {
    let gives_way = given_way.binary_search(&at).is_ok();
    PlacementConstraints {
        allowed: if gives_way { constraints.fallback } else { constraints.allowed },
        ..PlacementConstraints::default()
    }
}

/// The problem of all segments, with the places that are reserved.
struct WholeProblem<'a> {
    inputs: &'a Inputs,
    all: &'a Instance,
    reserved: &'a Reserved,
    work: Work<'a>,
}

impl WholeProblem<'_> {
    /// True when every segment with a reserved place could lie nowhere else.
    fn is_forced(&self) -> bool {
        let segments = self.inputs.segments.iter().zip(&self.reserved.place);
        let mut reserved = segments.filter(|(_, place)| place.is_some());
        reserved.all(|(segment, _)| segment.constraints.only().is_some())
    }

    /// The bound of the whole problem: the better of those at the prices of the residual problem and at the best prices of
    /// the whole one.
    fn bound(&self, residual_prices: &[f64]) -> Bound {
        let mut whole = self.all.clone();
        forbid_by_rules(&mut whole, self.inputs, &self.reserved.given_way);
        solver::bound(&whole, residual_prices, self.work)
    }

    /// Adds the reserved places to the decision about the `free` segments.
    fn decide(&self, free: &[usize], residual: Decision) -> Decision {
        let Decision { solution: solved, scores } = residual;
        let home = self.inputs.home();
        let places = || self.reserved.place.iter();
        let mut choice: Vec<u8> = places().map(|place| place.unwrap_or(home).0).collect();
        let mut all_scores = vec![None; choice.len()];
        let scores = scores.into_iter().chain(std::iter::repeat(None));
        for ((at, option), score) in free.iter().zip(&solved.choice).zip(scores) {
            if let (Some(slot), Some(score_slot)) = (choice.get_mut(*at), all_scores.get_mut(*at)) {
                *slot = *option;
                *score_slot = score;
            }
        }
        let reserved_costs =
            places().enumerate().filter_map(|(at, place)| Some(self.all.cost(at, usize::from((*place)?.0))));
        let reserved_cost: f64 = reserved_costs.sum();
        let objective = solved.objective + reserved_cost;
        let Bound { prices: bound_prices, cost } = match self.is_forced() {
            true => Bound { prices: solved.bound_prices.clone(), cost: solved.bound + reserved_cost },
            false => self.bound(&solved.bound_prices),
        };
        let bound = cost.min(objective);
        let gap = gap(objective, bound);
        Decision { solution: Solution { choice, objective, bound, gap, bound_prices, ..solved }, scores: all_scores }
    }
}
