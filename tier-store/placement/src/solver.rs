//! The solver: every segment picks one option, so that the sum of costs is least and no capacity is exceeded.
//!
//! An option is a tier, a form on a tier, or two tiers at once: a cost, and bytes of one or more capacities. This is a
//! multiple-choice knapsack with several capacities. Steps: prices per byte of each capacity that maximise the Lagrangian
//! bound ([`dual`]); a feasible choice near the one that these prices make ([`round`]); and
//! an exact search over the few segments that are closest to indifferent ([`exact`]). The bound proves how far from
//! optimal the answer can be. A pure function, no randomness; effort is bounded by counts, and by a [`deadline`] where
//! there is one.
//!
//! The bound is tight because at the best prices only about as many segments are undecided as there are capacities, so the
//! gap of 100,000 segments is that of a handful.
//!
//! - [`instance`]: the problem
//! - [`options`]: the options of a segment, and the capacities of which they take bytes
//! - [`prices`]: what segments would choose at given prices
//! - [`dual`]: the prices and the bound, by cutting planes
//! - [`peak`]: the highest point under the cutting planes, by the simplex method
//! - [`round`]: feasible choices from prices or by density
//! - [`exact`]: branch and bound over the core
//! - [`certificate`]: a second bound, by a general solver
//! - [`deadline`]: limits of the solver's work

mod certificate;
mod deadline;
mod dual;
mod exact;
mod instance;
mod options;
mod peak;
mod prices;
mod round;

use terrace_model::Result;

pub use certificate::{CERTIFIER, certify};
pub use deadline::{Deadline, Work};
pub use instance::Instance;
use instance::Row;
pub use options::Options;
use round::{Placement, Rounded};

/// Limits of the solver's work, in counts.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Evaluations of the Lagrangian over all segments.
    pub evaluations: usize,
    /// Nodes of the exact search.
    pub nodes: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { evaluations: 60, nodes: 40_000 }
    }
}

/// The method that found the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Prices, rounding, exact search.
    Lagrange,
    /// Like `Lagrange`, interrupted by the deadline.
    LagrangeUntilDeadline,
    /// By falling benefit per byte, because `Lagrange` failed.
    Greedy,
    /// By falling benefit per byte, because the deadline left no time for anything else.
    GreedyAtDeadline,
    /// In an order that a policy chose; see [`judge`].
    Ranked,
}

impl Method {
    /// Lower-case name, as in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lagrange => "lagrange",
            Self::LagrangeUntilDeadline => "lagrange until deadline",
            Self::Greedy => "greedy",
            Self::GreedyAtDeadline => "greedy at deadline",
            Self::Ranked => "ranked",
        }
    }
}

/// A feasible placement, with a proof of its quality.
#[derive(Debug, Clone)]
pub struct Solution {
    /// Option of each segment.
    pub choice: Vec<u8>,
    /// Sum of costs.
    pub objective: f64,
    /// No feasible choice costs less.
    pub bound: f64,
    /// (objective - bound) / objective, at least 0.
    pub gap: f64,
    /// Cost saved per further byte of each capacity; 0 where room is left.
    pub prices: Vec<f64>,
    /// The best prices that were found for a bound, also where the choice was made without prices.
    pub bound_prices: Vec<f64>,
    /// The method that found it.
    pub method: Method,
}

/// Solves `instance`. `prices` from an earlier, similar instance speed it up. The answer is always feasible; at a
/// deadline it is the best so far, made feasible. Fails with [`terrace_model::Error::Invalid`] on an instance of a wrong shape
/// or with values that are not numbers.
pub fn solve<'a>(instance: &Instance, prices: Option<&[f64]>, work: impl Into<Work<'a>>) -> Result<Solution> {
    solve_within(instance, prices, work.into())
}

fn solve_within(instance: &Instance, prices: Option<&[f64]>, work: Work<'_>) -> Result<Solution> {
    instance.validate()?;
    if work.is_over() {
        let choice = greedy(instance);
        return Ok(with_bound(instance, choice, Bound::unlimited(instance), Method::GreedyAtDeadline));
    }
    let found = dual::maximise(instance, prices, work).map(|(prices, cost)| Bound { prices, cost });
    let bound = found.unwrap_or_else(|| Bound { cost: f64::NEG_INFINITY, ..Bound::unlimited(instance) });
    let Rounded { mut placement, regrets } = round::by_prices(instance, &bound.prices);
    round::fill(instance, &mut placement);
    let Placement { mut choice, room } = placement;
    let end = exact::improve(instance, &bound.prices, &regrets, &mut choice, room, work);
    let prices = bound.prices.clone();
    if !bound.cost.is_finite() || !instance.is_feasible(&choice) {
        let choice = greedy(instance);
        let greedy = with_bound(instance, choice, Bound::unlimited(instance), Method::Greedy);
        return Ok(Solution { prices, ..greedy });
    }
    let (method, cost) = match end {
        // The search went through every choice, so the objective itself is the bound.
        exact::End::Proven => (Method::Lagrange, instance.objective(&choice)),
        exact::End::Effort => (Method::Lagrange, bound.cost),
        exact::End::Deadline => (Method::LagrangeUntilDeadline, bound.cost),
    };
    Ok(Solution { prices, ..with_bound(instance, choice, Bound { cost, ..bound }, method) })
}

/// A lower bound of the cost, and the prices at which it was found.
pub(super) struct Bound {
    pub(super) prices: Vec<f64>,
    pub(super) cost: f64,
}

impl Bound {
    /// The cost if capacities were unlimited.
    fn unlimited(instance: &Instance) -> Self {
        Self { prices: vec![0.0; instance.capacities.len()], cost: unlimited_cost(instance) }
    }
}

/// Makes a solution of a feasible choice and its bound, with prices of 0. Rounding errors may lift the bound above the
/// objective by the last bits, so it is cut off there.
fn with_bound(instance: &Instance, choice: Vec<u8>, bound: Bound, method: Method) -> Solution {
    let objective = instance.objective(&choice);
    let Bound { prices: bound_prices, cost } = bound;
    let bound = cost.min(objective);
    let prices = vec![0.0; bound_prices.len()];
    Solution { choice, objective, bound, gap: gap(objective, bound), prices, bound_prices, method }
}

/// Places segments by falling benefit per byte, then fills the room that is left. Always feasible.
pub fn greedy(instance: &Instance) -> Vec<u8> {
    let choice = round::by_density(instance);
    let room = instance.room(&choice);
    let mut placement = Placement { choice, room };
    round::fill(instance, &mut placement);
    placement.choice
}

/// Rates a feasible choice that was made elsewhere: the bound is that of [`solve`], prices are 0. Fails as [`solve`] does.
pub fn judge<'a>(instance: &Instance, choice: Vec<u8>, work: impl Into<Work<'a>>) -> Result<Solution> {
    instance.validate()?;
    let work = work.into();
    let found = if work.is_over() { None } else { dual::maximise(instance, None, work) };
    let found = found.map(|(prices, cost)| Bound { prices, cost }).filter(|bound| bound.cost.is_finite());
    Ok(with_bound(instance, choice, found.unwrap_or_else(|| Bound::unlimited(instance)), Method::Ranked))
}

/// A lower bound for an instance whose segments may be forbidden the home, as long as each may lie on some tier: the best
/// of the cost without capacities, the bound at `prices`, and the bound at prices that are found for a changed instance.
/// There the home is open to all segments, at so high a cost that it is no better than other tiers. Every vector of
/// prices gives a bound; good prices only make it tighter.
pub(super) fn bound(instance: &Instance, prices: &[f64], work: Work<'_>) -> Bound {
    let options = &instance.options;
    let mut opened = instance.clone();
    let size = |row: Row<'_>, option: usize| row.cells(options, option).iter().sum::<f64>();
    let worth = |row: Row<'_>| {
        let home = row.costs.last().copied().filter(|cost| cost.is_finite())?;
        let sized = row.costs.iter().enumerate().map(|(option, cost)| (cost, size(row, option)));
        let saved = sized.filter(|(_, bytes)| *bytes > 0.0).map(|(cost, bytes)| (home - cost) / bytes);
        Some(saved.fold(0.0, f64::max))
    };
    let max_worth = instance.rows().filter_map(worth).fold(0.0, f64::max);
    for (costs, row) in opened.costs.chunks_exact_mut(options.count().max(1)).zip(instance.rows()) {
        let allowed = row.costs.iter().enumerate().filter(|(_, cost)| cost.is_finite());
        let dearest = allowed.map(|(option, cost)| cost + max_worth * size(row, option)).fold(0.0, f64::max);
        if let Some(home) = costs.last_mut().filter(|home| home.is_infinite()) {
            *home = 2.0 * dearest;
        }
    }
    let found = if work.is_over() { None } else { dual::maximise(&opened, None, work) };
    let at = |prices: Vec<f64>| Bound { cost: dual::value(instance, &prices), prices };
    let bounds = [Some(at(prices.to_vec())), found.map(|(prices, _)| at(prices)), Some(Bound::unlimited(instance))];
    let found = bounds.into_iter().flatten().filter(|bound| bound.cost.is_finite());
    let none = || Bound { cost: f64::NEG_INFINITY, ..Bound::unlimited(instance) };
    found.max_by(|a, b| a.cost.total_cmp(&b.cost)).unwrap_or_else(none)
}

/// The cost if capacities were unlimited.
fn unlimited_cost(instance: &Instance) -> f64 {
    instance.rows().map(|row| row.costs.iter().copied().fold(f64::INFINITY, f64::min)).sum()
}

/// (objective - bound) / objective, at least 0.
pub(super) fn gap(objective: f64, bound: f64) -> f64 {
    if objective > bound { (objective - bound) / objective.abs().max(f64::MIN_POSITIVE) } else { 0.0 }
}

#[cfg(test)]
mod tests;
