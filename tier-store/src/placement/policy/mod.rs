//! Policies: which tier each segment takes, once room for what must lie in memory is reserved.
//!
//! ```text
//!   Inputs -> reserve (pins, exclusions) -> policy -> moves, each with the policy's own reason
//! ```
//!
//! A policy sees what is free to choose ([`Problem`]) and answers with a tier for each. What holds under all of them is kept
//! by the shape of the problem: bytes that are reserved are not in the capacities, and a forbidden tier costs an infinite
//! time. [`PolicyKind::Optimal`] is the one to use; the others are what it is held against, and what their users know from
//! elsewhere: caches (LRU, LFU), tools that place whole columns or whole partitions (Dreseler 2021, section 7.2.3).

mod fill;
mod fixed;
mod prices;
mod used;
mod whole;

use serde::{Deserialize, Serialize};

use super::epoch::{Inputs, PlannedMove, SegmentInput};
use super::record::TierPrice;
use super::solver::{Instance, Solution, Work};
use crate::error::Result;
use crate::tier::TierId;

/// Which policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// Least expected time under the budgets, with a proven gap.
    #[default]
    Optimal,
    /// Falling benefit per byte.
    Density,
    /// What was read last.
    Lru,
    /// What is read most often.
    Lfu,
    /// Whole columns by falling benefit per byte.
    Column,
    /// Whole chunks by falling benefit per byte.
    Chunk,
    /// Drawn at random, once per segment.
    Random,
    /// In the order of the tables, and what lies somewhere stays.
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

    /// The policy; `seed` is what [`PolicyKind::Random`] draws from.
    pub fn policy(self, seed: u64) -> Box<dyn Policy> {
        match self {
            Self::Optimal => Box::new(prices::Optimal),
            Self::Density => Box::new(prices::Density),
            Self::Lru => Box::new(used::Lru),
            Self::Lfu => Box::new(used::Lfu),
            Self::Column => Box::new(whole::Whole::Columns),
            Self::Chunk => Box::new(whole::Whole::Chunks),
            Self::Random => Box::new(fixed::Random { seed }),
            Self::Static => Box::new(fixed::Static),
        }
    }
}

/// What a policy chooses for.
#[derive(Debug)]
pub struct Problem<'a> {
    /// All segments and tiers.
    pub inputs: &'a Inputs,
    /// Positions of the segments to choose for, one per row of `instance`.
    pub segments: &'a [usize],
    /// Costs of these, the amortised move included, and what is left of the budgets. A tier that is not allowed costs
    /// infinitely; the home is always allowed.
    pub instance: &'a Instance,
    /// What the solver may take.
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
        self.instance.tiers().saturating_sub(1)
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The tiers, by row of the problem, and how good they are.
    pub solution: Solution,
    /// What a row was ranked by, in the policy's own unit; empty where a policy does not rank.
    pub scores: Vec<Option<f64>>,
}

/// A move to give a reason for.
#[derive(Debug)]
pub struct Why<'a> {
    /// What the plan was made from.
    pub inputs: &'a Inputs,
    /// The move.
    pub planned: &'a PlannedMove,
    /// What it moves.
    pub segment: &'a SegmentInput,
    /// What the segment was ranked by.
    pub score: Option<f64>,
    /// Use and prices of the tiers with a budget.
    pub prices: &'a [TierPrice],
}

impl Why<'_> {
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

    /// Why the tier it lies on does not keep it: "dram is 1 MiB over its budget of 2 MiB", or what `other` says.
    fn pressure(&self, other: &str) -> String {
        let price = self.prices.get(usize::from(self.planned.from.0));
        let over = price.map(|price| (price.before_bytes.saturating_sub(price.budget_bytes), price.budget_bytes));
        match over {
            Some((over, budget)) if over > 0 => super::words::over_budget(self.from(), over, budget),
            _ => format!("{} {other}", self.from()),
        }
    }
}

/// A way to choose. Pure: the same problem gives the same answer.
pub trait Policy: std::fmt::Debug + Send + Sync {
    /// Which one.
    fn kind(&self) -> PolicyKind;
    /// A tier for each row, within the capacities. Fails with [`crate::Error::Invalid`] when costs are not numbers.
    fn choose(&self, problem: &Problem<'_>) -> Result<Decision>;
    /// Why it wants a move that no rule asks for, in one sentence.
    fn reason(&self, why: &Why<'_>) -> String;
}

#[cfg(test)]
mod tests;
