//! Policies: choose a place, a tier and a form there, for each segment, once room for those that must lie in memory is reserved.
//!
//! ```text
//!   Inputs -> reserve (pins, exclusions) -> policy -> moves, each with the policy's own reason
//! ```
//!
//! A policy gets the segments that are free ([`Problem`]) and answers with an option for each. The problem itself enforces
//! the rules that hold under all policies: reserved bytes are not in the capacities, and a forbidden tier costs an infinite
//! time. [`PolicyKind::Optimal`] is the one to use; the others are baselines for comparison, known from other systems:
//! caches (LRU, LFU), tools that place whole columns or whole partitions (Dreseler 2021, section 7.2.3), and choices of forms that
//! are not joint with that of tiers. Policies that rank segments do not weigh forms: of two that a copy may have it gets the one
//! that takes fewer bytes.
//!
//! - [`cost_based`]: the policies `optimal` and `density`, which weigh benefit against bytes
//! - [`cache`]: the policies of caches, `lru` and `lfu`
//! - [`grouped`]: the policies `column` and `chunk`, which place whole columns or chunks
//! - [`fixed`]: the policies `random` and `static`, which ignore reads
//! - [`one_form`]: the policy `one_form`, the best single form for all copies
//! - [`form_first`]: the policy `form_first`, which chooses forms before tiers
//! - [`mosaic`]: the policy `mosaic`, one place for all chunks of a column
//! - [`tier_filler`]: fills tiers in a given order; shared by the policies

mod cache;
mod cost_based;
mod fixed;
mod form_first;
mod grouped;
mod mosaic;
mod one_form;
mod tier_filler;

use serde::{Deserialize, Serialize};
use terrace_model::{Result, TierId};

use super::epoch::{self, Inputs, PlaceOptions, PlannedMove, SegmentInput};
use super::format::{figure, time};
use super::place::Place;
use super::record::TierPrice;
use super::solver::{Instance, Solution, Work};
use terrace_storage::tier::codec::Form;

/// The kind of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// Least expected time with one form for all copies.
    OneForm,
    /// Forms that are chosen first, then tiers by least expected time.
    FormFirst,
    /// Least expected time with one tier and one form for all chunks of a column.
    Mosaic,
}

impl PolicyKind {
    /// Those that differ where every segment has one form: [`PolicyKind::OneForm`] and [`PolicyKind::FormFirst`] are `optimal`
    /// then, without hysteresis.
    pub const BY_TIER: [Self; 8] =
        [Self::Optimal, Self::Density, Self::Lru, Self::Lfu, Self::Column, Self::Chunk, Self::Random, Self::Static];
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Optimal,
        Self::Density,
        Self::Lru,
        Self::Lfu,
        Self::Column,
        Self::Chunk,
        Self::Random,
        Self::Static,
        Self::OneForm,
        Self::FormFirst,
        Self::Mosaic,
    ];

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
            Self::OneForm => "one_form",
            Self::FormFirst => "form_first",
            Self::Mosaic => "mosaic",
        }
    }

    /// True for a policy that decides by expected times: it weighs preferences, and the forms that a copy may have.
    pub fn uses_costs(self) -> bool {
        match self {
            Self::Optimal | Self::Density | Self::OneForm | Self::FormFirst | Self::Mosaic => true,
            Self::Lru | Self::Lfu | Self::Column | Self::Chunk | Self::Random | Self::Static => false,
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
            Self::OneForm => Box::new(one_form::OneForm),
            Self::FormFirst => Box::new(form_first::FormFirst),
            Self::Mosaic => Box::new(mosaic::Mosaic),
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
    /// The tiers and forms of the options of `instance`.
    pub places: PlaceOptions,
    /// Costs of these segments, the amortised move included, and the room that is not reserved. A place that is not allowed
    /// costs an infinite time; the home is always allowed. For a segment that rules keep on a memory tier, its home stands for
    /// the smaller of its forms there.
    pub instance: &'a Instance,
    /// Limits of the solver's work.
    pub work: Work<'a>,
}

impl Problem<'_> {
    /// The segments to choose for, in the order of the rows.
    fn rows(&self) -> impl Iterator<Item = &SegmentInput> {
        self.segments.iter().filter_map(|at| self.inputs.segments.get(*at))
    }

    /// True when a row may lie on a tier, the home included.
    fn allows(&self, row: usize, tier: TierId) -> bool {
        self.option_on(row, tier).is_some()
    }

    /// The option of a row on a tier; of two that it may have, the one that takes fewer bytes.
    fn option_on(&self, row: usize, tier: TierId) -> Option<usize> {
        let open = self.places.on_tier(tier).filter(|option| self.instance.cost(row, *option).is_finite());
        let bytes = |option: &usize| self.instance.taken(row, *option).map(|(_, bytes)| bytes).sum::<f64>();
        open.min_by(|a, b| bytes(a).total_cmp(&bytes(b)))
    }

    /// The option of the place where the segment of a row lies.
    fn current_option(&self, row: usize) -> usize {
        let segment = self.segments.get(row).and_then(|at| self.inputs.segments.get(*at));
        segment.map_or(self.home(), |segment| self.places.option(segment.place()))
    }

    /// The memory tiers, fastest first.
    fn memory_tiers(&self) -> impl Iterator<Item = TierId> + use<> {
        (0..self.inputs.home().0).map(TierId)
    }

    /// Position of the home among the options.
    fn home(&self) -> usize {
        self.instance.options.home()
    }

    /// The instance with one form for each row that may have either: `form` says which, by row. Where a tier has only another
    /// form of it, that one remains.
    fn with_forms(&self, form: impl Fn(usize) -> Form) -> Instance {
        let mut instance = self.instance.clone();
        let options = self.places.count();
        let rows = instance.costs.chunks_exact_mut(options).zip(self.rows()).enumerate();
        for (row, (costs, segment)) in rows {
            let wanted = form(row);
            for (option, cost) in costs.iter_mut().enumerate().take(self.home()) {
                let place: Place = self.places.place(segment, option);
                if place.form != wanted && segment.has_choice_on(place.tier) {
                    *cost = f64::INFINITY;
                }
            }
        }
        instance
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

    /// Reads of the segment and what the faster place saves: "9.0 point reads per epoch; dram saves 2.0 ms an epoch against
    /// ssd, worth 1.9 ns per byte".
    fn saving_text(&self) -> String {
        let PlannedMove { benefit_us, benefit_ns_per_byte, .. } = self.planned;
        let reads = epoch::reads_text(&self.segment.heat_with_views());
        let saved = time(benefit_us.abs());
        let worth = figure(benefit_ns_per_byte.abs());
        let [from, to] = [self.planned.from_place(), self.planned.to_place()].map(|place| self.place_name(place));
        // On a slow tier a packed copy may be the faster one.
        let is_faster = self.is_promotion() || self.planned.from == self.planned.to && *benefit_us > 0.0;
        let (faster, slower) = if is_faster { (to, from) } else { (from, to) };
        format!("{reads}; {faster} saves {saved} an epoch against {slower}, worth {worth} ns per byte")
    }

    /// The name of a tier or, where only the form changes, of the form there.
    fn place_name(&self, place: Place) -> String {
        match self.planned.from == self.planned.to {
            true => format!("{} on {}", place.form, self.name(place.tier)),
            false => self.name(place.tier).to_owned(),
        }
    }

    /// The reason of a policy that decides by expected times; `how` says what is chosen, `full` why a tier keeps others.
    fn reason_by_costs(&self, how: &str, full: &str) -> String {
        match self.is_promotion() {
            true => format!("{how}: {}", self.saving_text()),
            false if self.segment.heat_with_views().total() <= 0.0 => {
                format!("{how}: not read in recent epochs, and {}", self.pressure(full))
            }
            false => format!("{how}: {}; {}", self.saving_text(), self.pressure(full)),
        }
    }

    fn from(&self) -> &str {
        self.name(self.planned.from)
    }

    fn to(&self) -> &str {
        self.name(self.planned.to)
    }

    fn is_promotion(&self) -> bool {
        self.planned.rises()
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
