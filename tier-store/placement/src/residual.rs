//! The residual problem: the policy chooses places for the free segments within the room that is not reserved.
//!
//! A forbidden place has infinite cost. The home is always allowed, so that every policy finds a feasible placement. A segment
//! with a reserved place that may have another form there, or an image on a device, is free as far as that goes: its home is the
//! reserved place, for which it takes nothing more, and its other options are the larger copy, for which it takes the difference,
//! and either with an image.
//!
//! The policy's bound holds for the residual problem alone: it takes the reserved places as given, even where a segment
//! could lie on another memory tier. If there are such segments, this module computes a bound of the
//! whole problem: at any prices every segment costs at least as much as at the cheapest place that its rules allow (as in
//! [`super::solver`]), whatever room is reserved.

use terrace_model::Result;

use super::constraints::PlacementConstraints;
use super::epoch::{Inputs, PlaceOptions, SegmentInput};
use super::place::Place;
use super::policy::{Decision, Policy, Problem};
use super::reserved::Reserved;
use super::solver::{self, Bound, Instance, Method, Solution, Work, gap};

/// Lets the policy choose options for the segments without a reserved place, within the room that the others leave. The
/// decision covers all segments; `places` are the options of `all`.
pub(super) fn choose_residual(
    policy: &dyn Policy,
    inputs: &Inputs,
    places: PlaceOptions,
    all: &Instance,
    reserved: &Reserved,
    work: Work<'_>,
) -> Result<Decision> {
    let weighs_forms = policy.kind().uses_costs();
    let has_other_form = |(segment, place): (&SegmentInput, &Option<Place>)| match place {
        Some(place) => {
            weighs_forms && segment.has_choice_on(place.tier) || places.has_images() && segment.weighs_image()
        }
        None => true,
    };
    let segments = inputs.segments.iter().zip(&reserved.place).map(has_other_form);
    let free: Vec<usize> = segments.zip(0..).filter(|(is_free, _)| *is_free).map(|(_, at)| at).collect();
    let has_reserved = reserved.place.iter().any(Option::is_some);
    if !has_reserved && reserved.given_way.is_empty() && !inputs.has_rules() {
        return checked(policy, &Problem { inputs, segments: &free, places, instance: all, work });
    }
    let whole = WholeProblem { inputs, places, all, reserved, work };
    let residual = whole.residual_instance(&free);
    let decision = checked(policy, &Problem { inputs, segments: &free, places, instance: &residual, work })?;
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

/// Makes options infinitely dear whose tiers rules forbid to a segment. The rules of segments in `given_way` do not count
/// (see [`super::reserved`]).
pub(super) fn forbid_by_rules(whole: &mut Instance, inputs: &Inputs, places: PlaceOptions, given_way: &[usize]) {
    let options = whole.options.count().max(1);
    for (at, (costs, segment)) in whole.costs.chunks_exact_mut(options).zip(&inputs.segments).enumerate() {
        let constraints = effective_constraints(given_way, at, &segment.constraints);
        for (option, cost) in costs.iter_mut().enumerate() {
            if !constraints.allows(places.tier(option)) {
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
    places: PlaceOptions,
    all: &'a Instance,
    reserved: &'a Reserved,
    work: Work<'a>,
}

impl WholeProblem<'_> {
    /// The place that is reserved for a segment.
    fn reserved_place(&self, at: usize) -> Option<Place> {
        self.reserved.place.get(at).copied().flatten()
    }

    /// Builds the instance of the free segments, with the room that is not reserved.
    fn residual_instance(&self, free: &[usize]) -> Instance {
        let all = self.all;
        let mut residual = Instance {
            capacities: all.capacities.clone(),
            options: all.options.clone(),
            costs: Vec::with_capacity(free.len() * all.options.count()),
            bytes: Vec::with_capacity(free.len() * all.options.cells()),
        };
        for (capacity, bytes) in residual.capacities.iter_mut().zip(&self.reserved.bytes) {
            *capacity -= *bytes as f64;
        }
        for at in free {
            match self.reserved_place(*at) {
                Some(place) => self.add_other_forms(*at, place, &mut residual),
                None => self.add_places(*at, &mut residual),
            }
        }
        residual
    }

    /// Adds a segment without a reserved place.
    fn add_places(&self, at: usize, residual: &mut Instance) {
        let Some(segment) = self.inputs.segments.get(at) else { return };
        let constraints = effective_constraints(&self.reserved.given_way, at, &segment.constraints);
        let cost = |option: usize| match constraints.allows(self.places.tier(option)) {
            true => self.all.cost(at, option),
            false => f64::INFINITY,
        };
        residual.costs.extend((0..self.places.count()).map(cost));
        residual.bytes.extend(self.all.cells(at));
    }

    /// Adds a segment with a reserved place, as a choice between this place and the other form on its tier, and of an image
    /// beside either.
    fn add_other_forms(&self, at: usize, reserved: Place, residual: &mut Instance) {
        let Some(segment) = self.inputs.segments.get(at) else { return };
        let taken = segment.charged_at(reserved);
        for option in 0..self.places.home() {
            let place = self.places.place(segment, option);
            let has_image = self.places.has_image(option);
            let is_other = place.tier == reserved.tier && (place != reserved || has_image);
            residual.costs.push(if is_other { self.all.cost(at, option) } else { f64::INFINITY });
            if place.tier < self.inputs.home() {
                let more = segment.charged_at(place).saturating_sub(taken);
                residual.bytes.push(if is_other { more as f64 } else { 0.0 });
            }
            if has_image {
                residual.bytes.push(if is_other { segment.image_charged_bytes() as f64 } else { 0.0 });
            }
        }
        residual.costs.push(self.all.cost(at, self.places.option(reserved)));
    }

    /// True when every segment with a reserved place could lie nowhere else, but for a form that the policy has decided;
    /// `is_settled` has an entry for each segment, true where it decided nothing.
    fn is_forced(&self, is_settled: &[bool]) -> bool {
        let segments = self.inputs.segments.iter().zip(&self.reserved.place).zip(is_settled);
        let mut reserved = segments.filter_map(|((segment, place), settled)| Some((segment, (*place)?, *settled)));
        reserved.all(|(segment, place, settled)| {
            segment.constraints.only().is_some() && !(settled && segment.has_choice_on(place.tier))
        })
    }

    /// The bound of the whole problem: the better of those at the prices of the residual problem and at the best prices of
    /// the whole one.
    fn bound(&self, residual_prices: &[f64]) -> Bound {
        let mut whole = self.all.clone();
        forbid_by_rules(&mut whole, self.inputs, self.places, &self.reserved.given_way);
        solver::bound(&whole, residual_prices, self.work)
    }

    /// Adds the reserved places to the decision about the `free` segments.
    fn decide(&self, free: &[usize], residual: Decision) -> Decision {
        let Decision { solution: solved, scores } = residual;
        let home = self.places.home();
        let places = (0..self.reserved.place.len()).map(|at| self.reserved_place(at));
        let mut choice: Vec<u8> =
            places.map(|place| place.map_or(home, |place| self.places.option(place)) as u8).collect();
        // Segments of which the policy decided nothing.
        let mut is_settled = vec![true; choice.len()];
        let mut all_scores = vec![None; choice.len()];
        let scores = scores.into_iter().chain(std::iter::repeat(None));
        for ((at, option), score) in free.iter().zip(&solved.choice).zip(scores) {
            let stays = self.reserved_place(*at).is_some() && usize::from(*option) == home;
            if let (Some(slot), Some(settled), Some(score_slot)) =
                (choice.get_mut(*at), is_settled.get_mut(*at), all_scores.get_mut(*at))
            {
                *slot = if stays { *slot } else { *option };
                *settled = false;
                *score_slot = score;
            }
        }
        let settled = choice.iter().zip(&is_settled).enumerate().filter(|(_, (_, is_settled))| **is_settled);
        let reserved_cost: f64 = settled.map(|(at, (option, _))| self.all.cost(at, usize::from(*option))).sum();
        let objective = solved.objective + reserved_cost;
        let Bound { prices: bound_prices, cost } = match self.is_forced(&is_settled) {
            true => Bound { prices: solved.bound_prices.clone(), cost: solved.bound + reserved_cost },
            false => self.bound(&solved.bound_prices),
        };
        let bound = cost.min(objective);
        let gap = gap(objective, bound);
        Decision { solution: Solution { choice, objective, bound, gap, bound_prices, ..solved }, scores: all_scores }
    }
}
