//! The solver: every segment picks one tier, so that the sum of costs is least and no capacity is exceeded.
//!
//! A multiple-choice knapsack with several capacities. Steps: prices per byte of each tier that maximise the Lagrangian
//! bound ([`dual`]); a feasible choice near the one that these prices make ([`round`]); and
//! an exact search over the few segments that are closest to indifferent ([`exact`]). The bound proves how far from
//! optimal the answer can be. A pure function, no randomness; effort is bounded by counts, and by a [`deadline`] where there
//! is one.
//!
//! Why a bound is cheap: at the best prices only about as many segments are undecided as there are capacities, so the
//! gap of 100,000 segments is that of a handful.

mod deadline;
mod dual;
mod exact;
mod peak;
mod round;

pub use deadline::{Deadline, Work};
use round::Rounded;

use crate::error::{Error, Result};

/// A placement problem. Row `i` of a matrix is segment `i`, its columns are the tiers; the last tier is the home.
#[derive(Debug, Clone, Default)]
pub struct Instance {
    /// Capacity of each tier in bytes; infinite where nothing binds. The home's is taken as infinite.
    pub capacities: Vec<f64>,
    /// Row-major: cost of segment on tier; infinite = not allowed. The home must be allowed.
    pub costs: Vec<f64>,
    /// Row-major: whole bytes that the segment would take there.
    pub bytes: Vec<f64>,
}

/// How much work the solver may do.
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

/// Which way led to the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Prices, rounding, exact search.
    Lagrange,
    /// The same, as far as it came until the deadline.
    LagrangeUntilDeadline,
    /// By falling benefit per byte, after the first way failed.
    Greedy,
    /// The same, as the deadline left no time for anything else.
    GreedyAtDeadline,
    /// In an order that a policy gave; see [`judge`].
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
    /// Which way led here.
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

    fn row(&self, segment: usize) -> (&[f64], &[f64]) {
        let range = segment * self.tiers()..(segment + 1) * self.tiers();
        (self.costs.get(range.clone()).unwrap_or(&[]), self.bytes.get(range).unwrap_or(&[]))
    }

    pub(super) fn cost(&self, segment: usize, tier: usize) -> f64 {
        self.costs.get(segment * self.tiers() + tier).copied().unwrap_or(f64::INFINITY)
    }

    pub(super) fn weight(&self, segment: usize, tier: usize) -> f64 {
        self.bytes.get(segment * self.tiers() + tier).copied().unwrap_or(f64::INFINITY)
    }

    /// Room of each tier beside `choice`; negative where it is exceeded.
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
        // No number compares with what is none.
        let row = |(costs, bytes): (&[f64], &[f64])| {
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

/// See [`Instance::rows`]. Not a `Zip` of chunks: that is a call per row where it is compiled in another unit.
#[derive(Debug, Clone)]
struct Rows<'a> {
    costs: &'a [f64],
    bytes: &'a [f64],
    tiers: usize,
}

impl<'a> Iterator for Rows<'a> {
    type Item = (&'a [f64], &'a [f64]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.nth(0)
    }

    #[inline]
    fn nth(&mut self, skipped: usize) -> Option<Self::Item> {
        let skipped = skipped.saturating_mul(self.tiers);
        let (costs, later_costs) = self.costs.get(skipped..)?.split_at_checked(self.tiers)?;
        let (bytes, later_bytes) = self.bytes.get(skipped..)?.split_at_checked(self.tiers)?;
        (self.costs, self.bytes) = (later_costs, later_bytes);
        Some((costs, bytes))
    }
}

/// What a segment chooses at given prices.
#[derive(Debug, Clone, Copy)]
struct Choice {
    tier: usize,
    /// Cost and price of its bytes there.
    reduced: f64,
    second_tier: usize,
    /// The same on the second best tier.
    second: f64,
    /// Its bytes on the best.
    bytes: f64,
    second_bytes: f64,
}

impl Choice {
    #[inline]
    fn at(prices: &[f64], (costs, bytes): (&[f64], &[f64])) -> Self {
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

/// Solves `instance`. `prices` from an earlier, similar instance speed it up. The answer is always feasible; at a deadline it
/// is the best so far, made feasible. Fails with [`Error::Invalid`] on an instance of a wrong shape or with numbers that are
/// none.
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
        return Ok(proven(&instance, choice, least(&instance), Method::GreedyAtDeadline));
    }
    let dual = dual::maximise(&instance, prices, work);
    let (prices, bound) = dual.unwrap_or_else(|| (vec![0.0; instance.tiers()], f64::NEG_INFINITY));
    let Rounded { mut choice, mut room, regrets } = round::by_prices(&instance, &prices);
    round::fill(&instance, &mut choice, &mut room);
    let end = exact::improve(&instance, &prices, &regrets, (&mut choice, room), work);
    if !bound.is_finite() || !instance.is_feasible(&choice) {
        let choice = greedy(&instance);
        return Ok(Solution { prices, ..proven(&instance, choice, least(&instance), Method::Greedy) });
    }
    let (method, bound) = match end {
        // A search that went through every choice is its own proof.
        exact::End::Proven => (Method::Lagrange, instance.objective(&choice)),
        exact::End::Effort => (Method::Lagrange, bound),
        exact::End::Deadline => (Method::LagrangeUntilDeadline, bound),
    };
    Ok(Solution { prices, ..proven(&instance, choice, bound, method) })
}

/// A feasible choice with its bound, which rounding may have lifted by the last bits; prices are 0.
fn proven(instance: &Instance, choice: Vec<u8>, bound: f64, method: Method) -> Solution {
    let objective = instance.objective(&choice);
    let bound = bound.min(objective);
    let gap = gap(objective, bound);
    let prices = vec![0.0; instance.tiers()];
    Solution { choice, objective, bound, gap, prices, method }
}

/// By falling benefit per byte, the room that is left filled up. Always feasible.
pub fn greedy(instance: &Instance) -> Vec<u8> {
    let mut choice = round::by_density(instance);
    let mut room = instance.room(&choice);
    round::fill(instance, &mut choice, &mut room);
    choice
}

/// How good a feasible choice made elsewhere is: the bound is that of [`solve`], prices are 0. Fails as [`solve`] does.
pub fn judge<'a>(instance: &Instance, choice: Vec<u8>, work: impl Into<Work<'a>>) -> Result<Solution> {
    instance.validate()?;
    let work = work.into();
    let found = if work.is_over() { None } else { dual::maximise(instance, None, work) };
    let bound = found.map(|(_, bound)| bound).filter(|bound| bound.is_finite()).unwrap_or_else(|| least(instance));
    Ok(proven(instance, choice, bound, Method::Ranked))
}

/// A lower bound for an instance whose segments may be forbidden the home, as long as they may lie somewhere: the best of
/// that without capacities, at `prices`, and at the best prices found where the home is open to all at so high a cost that
/// it is no better than other tiers. At any prices it is a bound; those only have to be good.
pub(super) fn bound(instance: &Instance, prices: &[f64], work: Work<'_>) -> f64 {
    let tiers = instance.tiers();
    let mut opened = instance.clone();
    let worth = |(costs, bytes): (&[f64], &[f64])| {
        let home = costs.last().copied().filter(|cost| cost.is_finite())?;
        let saved =
            costs.iter().zip(bytes).filter(|(_, bytes)| **bytes > 0.0).map(|(cost, bytes)| (home - cost) / bytes);
        Some(saved.fold(0.0, f64::max))
    };
    let most = instance.rows().filter_map(worth).fold(0.0, f64::max);
    for (costs, bytes) in opened.costs.chunks_exact_mut(tiers.max(1)).zip(instance.bytes.chunks_exact(tiers.max(1))) {
        let dearest = costs.iter().zip(bytes).filter(|(cost, _)| cost.is_finite());
        let dearest = dearest.map(|(cost, bytes)| cost + most * bytes).fold(0.0, f64::max);
        if let Some(home) = costs.last_mut().filter(|home| home.is_infinite()) {
            *home = 2.0 * dearest;
        }
    }
    let found = if work.is_over() { None } else { dual::maximise(&opened, None, work) };
    let at = |prices: &[f64]| dual::value(instance, prices);
    let bounds = [Some(at(prices)), found.map(|(prices, _)| at(&prices)), Some(least(instance))];
    bounds.into_iter().flatten().filter(|bound| bound.is_finite()).fold(f64::NEG_INFINITY, f64::max)
}

/// What it would cost without any capacity.
fn least(instance: &Instance) -> f64 {
    instance.rows().map(|(costs, _)| costs.iter().copied().fold(f64::INFINITY, f64::min)).sum()
}

/// (objective - bound) / objective, at least 0.
pub(super) fn gap(objective: f64, bound: f64) -> f64 {
    if objective > bound { (objective - bound) / objective.abs().max(f64::MIN_POSITIVE) } else { 0.0 }
}

#[cfg(test)]
mod tests;
