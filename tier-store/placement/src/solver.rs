//! The solver: every segment picks one tier, so that the sum of costs is least and no capacity is exceeded.
//!
//! A multiple-choice knapsack with several capacities. Steps: prices per byte of each tier that maximise the Lagrangian
//! bound ([`dual`]); a feasible choice near the one that these prices make ([`round`]); and
//! an exact search over the few segments that are closest to indifferent ([`exact`]). The bound proves how far from
//! optimal the answer can be. A pure function, no randomness; effort is bounded by counts, and by a [`deadline`] where
//! there is one.
//!
//! The bound is tight because at the best prices only about as many segments are undecided as there are capacities, so the
//! gap of 100,000 segments is that of a handful.
//!
//! - [`dual`]: the prices and the bound, by cutting planes
//! - [`peak`]: the highest point under the cutting planes, by the simplex method
//! - [`round`]: feasible choices from prices or by density
//! - [`exact`]: branch and bound over the core
//! - [`deadline`]: limits of the solver's work

mod deadline;
mod dual;
mod exact;
mod peak;
mod round;

use terrace_model::{Error, Result};

pub use deadline::{Deadline, Work};
use round::{Placement, Rounded};

/// A placement problem. Row `i` of a matrix is segment `i`, its columns are the tiers; the last tier is the home.
#[derive(Debug, Clone, Default)]
pub struct Instance {
    /// Capacity of each tier in bytes; infinite for no limit. The home's is taken as infinite.
    pub capacities: Vec<f64>,
    /// Row-major: cost of segment on tier; infinite = not allowed. The home must be allowed.
    pub costs: Vec<f64>,
    /// Row-major: whole bytes that the segment would take there.
    pub bytes: Vec<f64>,
}

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
    /// Tier of each segment.
    pub choice: Vec<u8>,
    /// Sum of costs.
    pub objective: f64,
    /// No feasible choice costs less.
    pub bound: f64,
    /// (objective - bound) / objective, at least 0.
    pub gap: f64,
    /// Cost saved per further byte of each tier; 0 where room is left.
    pub prices: Vec<f64>,
    /// The method that found it.
    pub method: Method,
}

impl Instance {
    /// Number of tiers.
    pub fn tiers(&self) -> usize {
        self.capacities.len()
    }

    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.costs.len().checked_div(self.tiers()).unwrap_or(0)
    }

    /// Costs and bytes of each segment, one slice of all tiers each.
    fn rows(&self) -> Rows<'_> {
        Rows { costs: &self.costs, bytes: &self.bytes, tiers: self.tiers().max(1) }
    }

    fn row(&self, segment: usize) -> Row<'_> {
        let range = segment * self.tiers()..(segment + 1) * self.tiers();
        Row { costs: self.costs.get(range.clone()).unwrap_or(&[]), bytes: self.bytes.get(range).unwrap_or(&[]) }
    }

    /// Cost of a segment on a tier; infinite where it is not allowed.
    pub fn cost(&self, segment: usize, tier: usize) -> f64 {
        self.costs.get(segment * self.tiers() + tier).copied().unwrap_or(f64::INFINITY)
    }

    /// Bytes that a segment takes on a tier.
    pub fn weight(&self, segment: usize, tier: usize) -> f64 {
        self.bytes.get(segment * self.tiers() + tier).copied().unwrap_or(f64::INFINITY)
    }

    /// Room of each tier that `choice` leaves; negative where it is exceeded.
    pub fn room(&self, choice: &[u8]) -> Vec<f64> {
        let mut room = self.capacities.clone();
        for (segment, tier) in choice.iter().enumerate() {
            if let Some(room) = room.get_mut(usize::from(*tier)) {
                *room -= self.weight(segment, usize::from(*tier));
            }
        }
        if let Some(home) = room.last_mut() {
            *home = f64::INFINITY;
        }
        room
    }

    /// Sum of costs of `choice`.
    pub fn objective(&self, choice: &[u8]) -> f64 {
        choice.iter().enumerate().map(|(segment, tier)| self.cost(segment, usize::from(*tier))).sum()
    }

    /// True when every segment has an allowed tier and no capacity is exceeded: the independent check of any answer.
    pub fn is_feasible(&self, choice: &[u8]) -> bool {
        self.fits(choice) && self.objective(choice).is_finite()
    }

    fn fits(&self, choice: &[u8]) -> bool {
        choice.len() == self.segments() && self.room(choice).iter().all(|room| *room >= 0.0)
    }

    fn validate(&self) -> Result<()> {
        let tiers = self.tiers();
        let shape = (1..=usize::from(u8::MAX)).contains(&tiers)
            && self.costs.len() == self.bytes.len()
            && self.costs.len().is_multiple_of(tiers);
        // Comparisons with NaN are false, so these refuse it.
        let row = |Row { costs, bytes }: Row<'_>| {
            costs.iter().all(|cost| *cost > f64::NEG_INFINITY)
                && costs.last().is_some_and(|home| home.is_finite())
                && bytes.iter().all(|bytes| (0.0..f64::INFINITY).contains(bytes))
        };
        if shape && self.capacities.iter().all(|capacity| *capacity >= 0.0) && self.rows().all(row) {
            return Ok(());
        }
        Err(Error::Invalid("a placement problem needs finite home costs, whole bytes and no negative capacity".into()))
    }
}

/// Costs and bytes of one segment, by tier.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    costs: &'a [f64],
    bytes: &'a [f64],
}

/// See [`Instance::rows`]. Not a `Zip` of chunks, which costs a call per row where it is compiled in another codegen unit.
#[derive(Debug, Clone)]
struct Rows<'a> {
    costs: &'a [f64],
    bytes: &'a [f64],
    tiers: usize,
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.nth(0)
    }

    #[inline]
    fn nth(&mut self, skipped: usize) -> Option<Self::Item> {
        let skipped = skipped.saturating_mul(self.tiers);
        let (costs, later_costs) = self.costs.get(skipped..)?.split_at_checked(self.tiers)?;
        let (bytes, later_bytes) = self.bytes.get(skipped..)?.split_at_checked(self.tiers)?;
        self.costs = later_costs;
        self.bytes = later_bytes;
        Some(Row { costs, bytes })
    }
}

/// The two best tiers of a segment at given prices.
#[derive(Debug, Clone, Copy)]
struct Choice {
    tier: usize,
    /// Cost and price of its bytes there.
    reduced: f64,
    second_tier: usize,
    /// Cost and price of its bytes on the second best tier.
    second: f64,
    /// Its bytes on the best.
    bytes: f64,
    second_bytes: f64,
}

impl Choice {
    #[inline]
    fn at(prices: &[f64], Row { costs, bytes }: Row<'_>) -> Self {
        let mut best = Self {
            tier: 0,
            reduced: f64::INFINITY,
            second_tier: 0,
            second: f64::INFINITY,
            bytes: 0.0,
            second_bytes: 0.0,
        };
        let mut bytes = bytes.iter();
        let mut prices = prices.iter();
        for (tier, cost) in costs.iter().enumerate() {
            let (Some(bytes), Some(price)) = (bytes.next(), prices.next()) else { break };
            let reduced = cost + price * bytes;
            if reduced < best.reduced {
                let Self { tier: second_tier, reduced: second, bytes: second_bytes, .. } = best;
                best = Self { tier, reduced, second_tier, second, bytes: *bytes, second_bytes };
            } else if reduced < best.second {
                (best.second_tier, best.second, best.second_bytes) = (tier, reduced, *bytes);
            }
        }
        best
    }

    /// How much worse the second best is.
    #[inline]
    fn regret(&self) -> f64 {
        self.second - self.reduced
    }
}

/// Solves `instance`. `prices` from an earlier, similar instance speed it up. The answer is always feasible; at a
/// deadline it is the best so far, made feasible. Fails with [`Error::Invalid`] on an instance of a wrong shape or with
/// values that are not numbers.
pub fn solve<'a>(instance: &Instance, prices: Option<&[f64]>, work: impl Into<Work<'a>>) -> Result<Solution> {
    solve_within(instance, prices, work.into())
}

fn solve_within(instance: &Instance, prices: Option<&[f64]>, work: Work<'_>) -> Result<Solution> {
    instance.validate()?;
    let mut instance = std::borrow::Cow::Borrowed(instance);
    if instance.capacities.last().is_some_and(|home| *home != f64::INFINITY)
        && let Some(home) = instance.to_mut().capacities.last_mut()
    {
        *home = f64::INFINITY;
    }
    if work.is_over() {
        let choice = greedy(&instance);
        return Ok(with_bound(&instance, choice, unlimited_cost(&instance), Method::GreedyAtDeadline));
    }
    let dual = dual::maximise(&instance, prices, work);
    let (prices, bound) = dual.unwrap_or_else(|| (vec![0.0; instance.tiers()], f64::NEG_INFINITY));
    let Rounded { mut placement, regrets } = round::by_prices(&instance, &prices);
    round::fill(&instance, &mut placement);
    let Placement { mut choice, room } = placement;
    let end = exact::improve(&instance, &prices, &regrets, &mut choice, room, work);
    if !bound.is_finite() || !instance.is_feasible(&choice) {
        let choice = greedy(&instance);
        return Ok(Solution { prices, ..with_bound(&instance, choice, unlimited_cost(&instance), Method::Greedy) });
    }
    let (method, bound) = match end {
        // The search went through every choice, so the objective itself is the bound.
        exact::End::Proven => (Method::Lagrange, instance.objective(&choice)),
        exact::End::Effort => (Method::Lagrange, bound),
        exact::End::Deadline => (Method::LagrangeUntilDeadline, bound),
    };
    Ok(Solution { prices, ..with_bound(&instance, choice, bound, method) })
}

/// Makes a solution of a feasible choice and its bound, with prices of 0. Rounding errors may lift the bound above the
/// objective by the last bits, so it is cut off there.
fn with_bound(instance: &Instance, choice: Vec<u8>, bound: f64, method: Method) -> Solution {
    let objective = instance.objective(&choice);
    let bound = bound.min(objective);
    let gap = gap(objective, bound);
    let prices = vec![0.0; instance.tiers()];
    Solution { choice, objective, bound, gap, prices, method }
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
    let bound =
        found.map(|(_, bound)| bound).filter(|bound| bound.is_finite()).unwrap_or_else(|| unlimited_cost(instance));
    Ok(with_bound(instance, choice, bound, Method::Ranked))
}

/// A lower bound for an instance whose segments may be forbidden the home, as long as each may lie on some tier: the best
/// of the cost without capacities, the bound at `prices`, and the bound at prices that are found for a changed instance.
/// There the home is open to all segments, at so high a cost that it is no better than other tiers. Every vector of
/// prices gives a bound; good prices only make it tighter.
pub(super) fn bound(instance: &Instance, prices: &[f64], work: Work<'_>) -> f64 {
    let tiers = instance.tiers();
    let mut opened = instance.clone();
    let worth = |Row { costs, bytes }: Row<'_>| {
        let home = costs.last().copied().filter(|cost| cost.is_finite())?;
        let saved =
            costs.iter().zip(bytes).filter(|(_, bytes)| **bytes > 0.0).map(|(cost, bytes)| (home - cost) / bytes);
        Some(saved.fold(0.0, f64::max))
    };
    let max_worth = instance.rows().filter_map(worth).fold(0.0, f64::max);
    for (costs, bytes) in opened.costs.chunks_exact_mut(tiers.max(1)).zip(instance.bytes.chunks_exact(tiers.max(1))) {
        let dearest = costs.iter().zip(bytes).filter(|(cost, _)| cost.is_finite());
        let dearest = dearest.map(|(cost, bytes)| cost + max_worth * bytes).fold(0.0, f64::max);
        if let Some(home) = costs.last_mut().filter(|home| home.is_infinite()) {
            *home = 2.0 * dearest;
        }
    }
    let found = if work.is_over() { None } else { dual::maximise(&opened, None, work) };
    let at = |prices: &[f64]| dual::value(instance, prices);
    let bounds = [Some(at(prices)), found.map(|(prices, _)| at(&prices)), Some(unlimited_cost(instance))];
    bounds.into_iter().flatten().filter(|bound| bound.is_finite()).fold(f64::NEG_INFINITY, f64::max)
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
