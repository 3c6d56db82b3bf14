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
use super::solver::{self, Bound, Instance, Method, Solution, Work, certify, gap};

/// A second bound may be above the objective by this part, for rounding errors.
const CONTRADICTION: f64 = 1e-6;

/// The decision about all segments, and what another solver says about it.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) decision: Decision,
    /// A lower bound of the whole problem by the other solver; `None` where it was not asked or has no answer.
    pub(super) certified_bound: Option<f64>,
}

/// Lets the policy choose tiers for the segments without a reserved place, within the room that the others leave.
pub(super) fn choose_residual(
    policy: &dyn Policy,
    inputs: &Inputs,
    all: &Instance,
    reserved: &Reserved,
    work: Work<'_>,
) -> Result<Judged> {
    let free: Vec<usize> =
        reserved.place.iter().zip(0..).filter(|(place, _)| place.is_none()).map(|(_, at)| at).collect();
    if free.len() == inputs.segments.len() && reserved.given_way.is_empty() && !inputs.has_rules() {
        let decision = checked(policy, &Problem { inputs, segments: &free, instance: all, work })?;
        let certified_bound = second_bound(all, &decision.solution, work);
        return Ok(Judged { decision, certified_bound });
    }
    let residual = residual_instance(inputs, all, reserved, &free);
    let decision = checked(policy, &Problem { inputs, segments: &free, instance: &residual, work })?;
    let whole = WholeProblem { inputs, all, reserved, work };
    let is_forced = whole.is_forced();
    let instance = (work.certify || !is_forced).then(|| whole.instance());
    let decision = whole.decide(&free, decision, instance.as_ref().filter(|_| !is_forced));
    let certified_bound = instance.and_then(|instance| second_bound(&instance, &decision.solution, work));
    Ok(Judged { decision, certified_bound })
}

/// The bound by the other solver, where it is asked and in time. One above the objective contradicts itself: it is logged
/// and not used.
fn second_bound(instance: &Instance, solution: &Solution, work: Work<'_>) -> Option<f64> {
    if !work.certify || work.is_over() {
        return None;
    }
    let bound = certify(instance, &solution.bound_prices)?;
    let Solution { objective, .. } = solution;
    if bound > objective + CONTRADICTION * objective.abs() {
        tracing::warn!(bound, objective, "the second bound of a placement is above its cost; it is not used");
        return None;
    }
    Some(bound)
}

/// Returns the policy's decision if it is valid: a tier for each row, no capacity exceeded, finite sums. Else logs a
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
        let constraints = effective_constraints(reserved, *at, &segment.constraints);
        residual.costs.extend(allowed_costs(all, *at, constraints));
        residual.bytes.extend(all.cells(*at));
    }
    residual
}

/// The costs of a segment by tier; infinite where its constraints forbid one.
fn allowed_costs(all: &Instance, at: usize, constraints: PlacementConstraints) -> impl Iterator<Item = f64> {
    let cost =
        move |tier: usize| if constraints.allows(TierId(tier as u8)) { all.cost(at, tier) } else { f64::INFINITY };
    (0..all.options.count()).map(cost)
}

/// Returns the constraints of a segment, without the rule that the budgets do not allow (see [`super::reserved`]).
fn effective_constraints(reserved: &Reserved, at: usize, constraints: &PlacementConstraints) -> PlacementConstraints {
    let gives_way = reserved.given_way.binary_search(&at).is_ok();
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

    /// The instance of all segments; a tier that rules forbid costs an infinite time.
    fn instance(&self) -> Instance {
        let all = self.all;
        let mut whole = Instance {
            capacities: all.capacities.clone(),
            options: all.options.clone(),
            costs: Vec::with_capacity(all.costs.len()),
            bytes: all.bytes.clone(),
        };
        for (at, segment) in self.inputs.segments.iter().enumerate() {
            let constraints = effective_constraints(self.reserved, at, &segment.constraints);
            whole.costs.extend(allowed_costs(all, at, constraints));
        }
        whole
    }

    /// Adds the reserved places to the decision about the `free` segments. With the instance of all segments the bound is
    /// the better of those at the prices of the residual problem and at the best prices of the whole one.
    fn decide(&self, free: &[usize], residual: Decision, whole: Option<&Instance>) -> Decision {
        let Decision { solution: solved, scores } = residual;
        let home = self.inputs.home();
        let places = || self.reserved.place.iter();
        let mut choice: Vec<u8> = places().map(|place| place.unwrap_or(home).0).collect();
        let mut all_scores = vec![None; choice.len()];
        let scores = scores.into_iter().chain(std::iter::repeat(None));
        for ((at, tier), score) in free.iter().zip(&solved.choice).zip(scores) {
            if let (Some(slot), Some(score_slot)) = (choice.get_mut(*at), all_scores.get_mut(*at)) {
                *slot = *tier;
                *score_slot = score;
            }
        }
        let reserved_costs =
            places().enumerate().filter_map(|(at, place)| Some(self.all.cost(at, usize::from((*place)?.0))));
        let reserved_cost: f64 = reserved_costs.sum();
        let objective = solved.objective + reserved_cost;
        let Bound { prices: bound_prices, cost } = match whole {
            None => Bound { prices: solved.bound_prices.clone(), cost: solved.bound + reserved_cost },
            Some(whole) => solver::bound(whole, &solved.bound_prices, self.work),
        };
        let bound = cost.min(objective);
        let gap = gap(objective, bound);
        Decision { solution: Solution { choice, objective, bound, gap, bound_prices, ..solved }, scores: all_scores }
    }
}
