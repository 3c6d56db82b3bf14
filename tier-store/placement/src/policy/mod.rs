//! Policies: choose an option, today a tier, for each segment, once room for those that must lie in memory is reserved.
//!
//! ```text
//!   Inputs -> reserve (pins, exclusions) -> policy -> moves, each with the policy's own reason
//! ```
//!
//! A policy gets the segments that are free ([`Problem`]) and answers with an option for each. The problem itself enforces
//! the rules that hold under all policies: reserved bytes are not in the capacities, and a forbidden tier costs an infinite
//! time. [`PolicyKind::Optimal`] is the one to use; the others are baselines for comparison, known from other systems:
//! caches (LRU, LFU), tools that place whole columns or whole partitions (Dreseler 2021, section 7.2.3).
//!
//! - [`cost_based`]: the policies `optimal` and `density`, which weigh benefit against bytes
//! - [`cache`]: the policies of caches, `lru` and `lfu`
//! - [`grouped`]: the policies `column` and `chunk`, which place whole columns or chunks
//! - [`fixed`]: the policies `random` and `static`, which ignore reads
//! - [`tier_filler`]: fills tiers in a given order; shared by the policies

mod cache;
mod cost_based;
mod fixed;
mod grouped;
mod tier_filler;

use serde::{Deserialize, Serialize};
use terrace_model::{Result, TierId};

use super::epoch::{Inputs, PlannedMove, SegmentInput};
use super::record::TierPrice;
use super::solver::{Instance, Solution, Work};

/// The kind of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// Least expected time under the budgets, with a proven gap.
    #[default]
    Optimal,
    /// Falling benefit per byte.
    Density,
    /// Segments that were read last lie fastest.
    Lru,
    /// Segments that are read most often lie fastest.
    Lfu,
    /// Whole columns by falling benefit per byte.
    Column,
    /// Whole chunks by falling benefit per byte.
    Chunk,
    /// Drawn at random, once per segment.
    Random,
    /// In the order of the tables; a segment in memory stays.
    Static,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Optimal, Self::Density, Self::Lru, Self::Lfu, Self::Column, Self::Chunk, Self::Random, Self::Static];

    /// Lower-case name, as in settings and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Density => "density",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Column => "column",
            Self::Chunk => "chunk",
            Self::Random => "random",
            Self::Static => "static",
        }
    }

    /// The policy of this kind; `seed` is used by [`PolicyKind::Random`].
    pub fn policy(self, seed: u64) -> Box<dyn Policy> {
        match self {
            Self::Optimal => Box::new(cost_based::Optimal),
            Self::Density => Box::new(cost_based::Density),
            Self::Lru => Box::new(cache::Lru),
            Self::Lfu => Box::new(cache::Lfu),
            Self::Column => Box::new(grouped::GroupPolicy::Columns),
            Self::Chunk => Box::new(grouped::GroupPolicy::Chunks),
            Self::Random => Box::new(fixed::Random { seed }),
            Self::Static => Box::new(fixed::Static),
        }
    }
}

/// The problem that a policy solves.
#[derive(Debug)]
pub struct Problem<'a> {
    /// All segments and tiers.
    pub inputs: &'a Inputs,
    /// Positions of the segments to choose for, one per row of `instance`.
    pub segments: &'a [usize],
    /// Costs of these segments, the amortised move included, and the room that is not reserved. A tier that is not allowed
    /// costs an infinite time; the home is always allowed.
    pub instance: &'a Instance,
    /// Limits of the solver's work.
    pub work: Work<'a>,
}

impl Problem<'_> {
    /// The segments to choose for, in the order of the rows.
    fn rows(&self) -> impl Iterator<Item = &SegmentInput> {
        self.segments.iter().filter_map(|at| self.inputs.segments.get(*at))
    }

    fn allows(&self, row: usize, tier: usize) -> bool {
        self.instance.cost(row, tier).is_finite()
    }

    fn home(&self) -> usize {
        self.instance.options.home()
    }
}

/// The answer of a policy.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The option of each row of the problem, and how good the choice is.
    pub solution: Solution,
    /// Score by which each row was ranked, in the policy's own unit; empty where a policy does not rank.
    pub scores: Vec<Option<f64>>,
}

/// A move, with all that a policy needs to give its reason.
#[derive(Debug)]
pub struct ReasonContext<'a> {
    /// The inputs of the plan.
    pub inputs: &'a Inputs,
    /// The move.
    pub planned: &'a PlannedMove,
    /// The segment that it moves.
    pub segment: &'a SegmentInput,
    /// Score by which the segment was ranked.
    pub score: Option<f64>,
    /// Use and prices of the tiers with a budget.
    pub prices: &'a [TierPrice],
}

impl ReasonContext<'_> {
    fn name(&self, tier: TierId) -> &str {
        self.inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str())
    }

    fn from(&self) -> &str {
        self.name(self.planned.from)
    }

    fn to(&self) -> &str {
        self.name(self.planned.to)
    }

    fn is_promotion(&self) -> bool {
        self.planned.to < self.planned.from
    }

    /// The reason why its tier does not keep it: "dram is 1 MiB over its budget of 2 MiB", or else the text `other`.
    fn pressure(&self, other: &str) -> String {
        let price = self.prices.get(usize::from(self.planned.from.0));
        let over = price.map(|price| (price.before_bytes.saturating_sub(price.budget_bytes), price.budget_bytes));
        match over {
            Some((over, budget)) if over > 0 => super::format::over_budget(self.from(), over, budget),
            _ => format!("{} {other}", self.from()),
        }
    }
}

/// A placement policy. Pure: the same problem gives the same answer.
pub trait Policy: std::fmt::Debug + Send + Sync {
    /// Its kind.
    fn kind(&self) -> PolicyKind;
    /// Chooses an option for each row, within the capacities. Fails with [`terrace_model::Error::Invalid`] when costs are
    /// not numbers.
    fn choose(&self, problem: &Problem<'_>) -> Result<Decision>;
    /// The reason of a move that no rule asks for, in one sentence.
    fn reason(&self, context: &ReasonContext<'_>) -> String;
}

#[cfg(test)]
mod tests;
