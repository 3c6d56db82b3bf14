//! Explanations: why a plan puts a segment on a tier, and what would have to change for another tier. Pure.
//!
//! A plan is determined by a price per byte on each tier with a budget: a segment goes to the tier where the sum of its
//! reads, an unmet preference, its move and the rent of its room (bytes x price) is least. All figures here are taken
//! from the inputs and prices of one plan. Reads cost in proportion to their number, so the number at which another
//! tier becomes the cheapest is known in closed form ([`Basis::Price`]). Prices move in steps, though, because segments
//! are indivisible: where there is time, [`super::condition_search`] plans again until it knows the number
//! ([`Basis::Planned`]).

use std::cell::OnceCell;

use serde::Serialize;
use terrace_model::{Pattern, TierId};

use super::epoch::{EpochPlan, Inputs, SegmentInput, cost_parts, reading_us, reads_text};
use super::format::{bytes, figure, time};
use super::views::ViewInfluence;
use crate::heat::SegmentHeat;

/// A tier as a choice for one segment; times in microseconds per epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TierOption {
    /// Name of the tier.
    pub tier: String,
    /// False when a rule keeps the segment off it, or its budget could not hold it.
    pub allowed: bool,
    /// Expected time of its reads there, those of hot views included.
    pub read_us: f64,
    /// Worth of its room there to other segments: bytes by the price of the tier.
    pub rent_us: f64,
    /// Time of the move there, spread over the epochs within which it must pay back; more when it would reverse a recent
    /// move.
    pub move_us: f64,
    /// Cost of preferences: of a rule that prefers another tier, and of hot views.
    pub wish_us: f64,
    /// Time that running statements would lose there because they expect to read it from its current tier.
    pub ahead_us: f64,
    /// The sum of these: the segment goes to the tier where it is least.
    pub total_us: f64,
}

/// How a condition was found. price: computed from the prices of the plan; planned: the plan was made again on both
/// sides of the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Computed from the prices of the plan: an approximation, as prices change in steps.
    Price,
    /// Confirmed by new plans on both sides of it.
    Planned,
}

impl Basis {
    /// Lower-case name, as in SQL and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Price => "price",
            Self::Planned => "planned",
        }
    }
}

/// The quantity of a condition that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// The segment is read more often than `value` times per epoch.
    ReadsAbove,
    /// It is read less often than `value` times per epoch.
    ReadsBelow,
    /// The budget of the tier grows by `value` bytes.
    MoreRoom,
    /// The budget of its current tier shrinks by `value` bytes.
    LessRoom,
}

/// A change after which the next epoch would place the segment elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Condition {
    /// The quantity that changes.
    pub lever: Lever,
    /// Reads per epoch, or bytes.
    pub value: f64,
    /// The tier whose budget changes, or that the segment goes to.
    pub tier: String,
    /// How it was found.
    pub basis: Basis,
}

impl Condition {
    fn text(&self) -> String {
        let tier = &self.tier;
        let value = self.value;
        match self.lever {
            Lever::ReadsAbove => format!("goes to {tier} when read more than {} times an epoch", figure(value)),
            Lever::ReadsBelow => format!("goes to {tier} when read less than {} times an epoch", figure(value)),
            Lever::MoreRoom => format!("when {tier} has {} more", bytes(value as u64)),
            Lever::LessRoom if value < 4096.0 => format!("when {tier} has any less room"),
            Lever::LessRoom => format!("when {tier} has {} less", bytes(value as u64)),
        }
    }
}

/// The explanation of one segment's placement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Full name of the table.
    pub table: String,
    /// Number of the chunk.
    pub chunk: u64,
    /// Name of the column.
    pub column: String,
    /// Bytes of its image.
    pub bytes: u64,
    /// Name of the tier it lies on; "none" for a segment that has no bytes.
    pub tier: String,
    /// Name of the tier an epoch would place it on now; "none" for a segment without bytes.
    pub planned: String,
    /// Reads per epoch by pattern, decayed.
    pub heat: Vec<(Pattern, f64)>,
    /// Sum of the reads in `heat`.
    pub reads: f64,
    /// Reading time per epoch that the faster of the planned tier and the runner-up saves against the other.
    pub benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// The price of a byte of the faster one, in nanoseconds.
    pub price_ns_per_byte: f64,
    /// The second best tier; null when rules leave only one.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub runner_up: Option<String>,
    /// How much more it would cost there, in microseconds per epoch.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub runner_up_us: Option<f64>,
    /// Every tier, fastest first.
    pub options: Vec<TierOption>,
    /// Changes that would place it elsewhere; empty when rules leave no choice.
    pub conditions: Vec<Condition>,
    /// Description of the conditions.
    pub condition: String,
    /// Descriptions of the rules that apply to it.
    pub rules: Vec<String>,
    /// The explanation in one sentence.
    pub why: String,
}

/// Name of the tier of a segment that lies on none.
const NO_TIER: &str = "none";

impl Explanation {
    /// Explains a segment without bytes: its column was added after its chunk was written, so all rows have one value.
    pub(super) fn for_constant(table: &str, chunk: u64, column: &str) -> Self {
        Self {
            table: table.to_owned(),
            chunk,
            column: column.to_owned(),
            bytes: 0,
            tier: NO_TIER.to_owned(),
            planned: NO_TIER.to_owned(),
            heat: Pattern::ALL.into_iter().map(|pattern| (pattern, 0.0)).collect(),
            reads: 0.0,
            benefit_us: 0.0,
            benefit_ns_per_byte: 0.0,
            price_ns_per_byte: 0.0,
            runner_up: None,
            runner_up_us: None,
            options: Vec::new(),
            conditions: Vec::new(),
            condition: String::new(),
            rules: Vec::new(),
            why: "lies on no tier: the column was added after this chunk was written, so all rows have one value, which is \
                  kept with the table and read from there at no cost; it has no segment to place, and rules do not affect it"
                .to_owned(),
        }
    }
}

/// Explains segments of one plan.
#[derive(Debug)]
pub(super) struct Explainer<'a> {
    pub(super) inputs: &'a Inputs,
    plan: &'a EpochPlan,
    /// The planned tier of each segment.
    placed: Vec<TierId>,
    /// Microseconds per byte, by tier.
    prices: Vec<f64>,
    /// Bytes of the budget that the plan leaves free, by tier.
    free: Vec<u64>,
    /// By tier, computed on first use: the demand for its room.
    demand: Vec<OnceCell<TierDemand>>,
}

/// The segments that compete for the room of a tier and that rules allow on other tiers.
#[derive(Debug)]
struct TierDemand {
    /// Segments that the plan puts on slower tiers.
    wanting: DemandCurve,
    /// Segments that the plan puts on the tier.
    holding: DemandCurve,
}

/// Segments by falling worth per byte: the worth of a byte of each, in microseconds per epoch, and the sum of bytes up to
/// and with it.
type DemandCurve = Vec<(f64, u64)>;

/// Reads of a segment by which conditions scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitReads {
    pub(super) heat: SegmentHeat,
    /// Sum of the reads in `heat`.
    pub(super) reads: f64,
}

impl<'a> Explainer<'a> {
    /// Explains a plan that was made from `inputs`.
    pub(super) fn new(inputs: &'a Inputs, plan: &'a EpochPlan) -> Self {
        let mut placed: Vec<TierId> = inputs.segments.iter().map(|segment| segment.current).collect();
        for planned in &plan.moves {
            if let Some(slot) = placed.get_mut(planned.segment) {
                *slot = planned.to;
            }
        }
        let mut prices = vec![0.0; inputs.tiers.len()];
        let mut free = vec![u64::MAX; inputs.tiers.len()];
        let limited = inputs.tiers.iter().enumerate().filter(|(_, tier)| tier.budget_bytes.is_some());
        for ((id, _), price) in limited.zip(&plan.prices) {
            if let (Some(slot), Some(room)) = (prices.get_mut(id), free.get_mut(id)) {
                *slot = price.price_ns_per_byte / 1e3;
                *room = price.budget_bytes.saturating_sub(price.planned_bytes);
            }
        }
        let demand = inputs.tiers.iter().map(|_| OnceCell::new()).collect();
        Self { inputs, plan, placed, prices, free, demand }
    }

    /// The planned tier of the segment at a position.
    pub(super) fn placed(&self, at: usize) -> TierId {
        self.placed.get(at).copied().unwrap_or_else(|| self.inputs.home())
    }

    /// The name of a tier.
    pub(super) fn name(&self, tier: TierId) -> &'a str {
        self.inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str())
    }

    fn tier_named(&self, name: &str) -> TierId {
        let found = self.inputs.tiers.iter().position(|tier| tier.name == name);
        found.map_or(self.inputs.home(), |id| TierId(id as u8))
    }

    /// Bytes of the budget that the plan leaves free; `u64::MAX` for a tier without a budget.
    pub(super) fn free_bytes(&self, tier: TierId) -> u64 {
        self.free.get(usize::from(tier.0)).copied().unwrap_or(u64::MAX)
    }

    fn price(&self, tier: TierId) -> f64 {
        self.prices.get(usize::from(tier.0)).copied().unwrap_or(0.0)
    }

    fn gives_way(&self, at: usize) -> bool {
        self.plan.given_way.binary_search(&at).is_ok()
    }

    fn options(&self, at: usize, segment: &SegmentInput) -> Vec<TierOption> {
        let constraints = &segment.constraints;
        let open = if self.gives_way(at) { constraints.fallback } else { constraints.allowed };
        let option = |(id, tier): (usize, &super::epoch::TierInput)| {
            let parts = cost_parts(self.inputs, segment, id);
            let charged = segment.charged_on(TierId(id as u8));
            let rent_us = charged as f64 * self.prices.get(id).copied().unwrap_or(0.0);
            let fits = tier.budget_bytes.is_none_or(|budget| charged <= budget);
            TierOption {
                tier: tier.name.clone(),
                allowed: fits && open.checked_shr(id as u32).unwrap_or(0) & 1 == 1,
                read_us: parts.read_us,
                rent_us,
                move_us: parts.move_us,
                wish_us: parts.preference_us,
                ahead_us: parts.delay_us,
                total_us: parts.sum_us() + rent_us,
            }
        };
        self.inputs.tiers.iter().enumerate().map(option).collect()
    }

    /// Explains the segment at a position, with conditions by price; the caller fills in the names of table and column.
    pub(super) fn explain(&self, at: usize) -> Option<Explanation> {
        let segment = self.inputs.segments.get(at)?;
        let options = self.options(at, segment);
        let planned = self.placed(at);
        let chosen = options.get(usize::from(planned.0))?;
        let others = options.iter().enumerate().filter(|(id, option)| option.allowed && *id != usize::from(planned.0));
        let second = others.min_by(|a, b| a.1.total_us.total_cmp(&b.1.total_us));
        let second_id = second.map(|(id, _)| TierId(id as u8));
        // Where rules leave no choice, the benefit is computed against the home.
        let against = second_id.unwrap_or_else(|| self.inputs.home());
        let upper = planned.min(against);
        let lower = planned.max(against);
        let read = |tier: TierId| options.get(usize::from(tier.0)).map_or(0.0, |option| option.read_us);
        let benefit_us = read(lower) - read(upper);
        let rules = [segment.constraints.pin, segment.constraints.exclusion, segment.constraints.preference];
        let mut explanation = Explanation {
            table: String::new(),
            chunk: segment.key.chunk.0,
            column: String::new(),
            bytes: segment.bytes,
            tier: self.name(segment.current).to_owned(),
            planned: self.name(planned).to_owned(),
            heat: Pattern::ALL.into_iter().zip(segment.heat.accesses.map(f64::from)).collect(),
            reads: segment.heat.total().into(),
            benefit_us,
            benefit_ns_per_byte: benefit_us * 1e3 / segment.bytes.max(1) as f64,
            price_ns_per_byte: self.price(upper) * 1e3,
            runner_up: second_id.map(|id| self.name(id).to_owned()),
            runner_up_us: second.map(|(_, option)| (option.total_us - chosen.total_us).max(0.0)),
            conditions: Vec::new(),
            condition: String::new(),
            rules: rules.iter().flatten().map(|rule| self.inputs.rule(Some(*rule)).to_owned()).collect(),
            options,
            why: String::new(),
        };
        explanation.conditions = self.conditions(at, &explanation);
        self.render_text(at, &mut explanation);
        Some(explanation)
    }

    /// Writes the sentences of the explanation; call it again after the conditions changed.
    pub(super) fn render_text(&self, at: usize, explanation: &mut Explanation) {
        let texts: Vec<String> = explanation.conditions.iter().map(Condition::text).collect();
        let joined = texts.join(", or ");
        explanation.condition = if joined.starts_with("when ") { format!("leaves {joined}") } else { joined };
        if let Some(larger) = self.inputs.segments.get(at).and_then(|segment| self.inputs.view_condition(segment)) {
            let before = std::mem::take(&mut explanation.condition);
            explanation.condition = if before.is_empty() { larger } else { format!("{before}, or {larger}") };
        }
        explanation.why = self.sentence(at, explanation).unwrap_or_default();
    }

    fn conditions(&self, at: usize, explanation: &Explanation) -> Vec<Condition> {
        let mut conditions = Vec::new();
        if explanation.runner_up.is_none() {
            return conditions;
        }
        let known =
            |lever, value, tier| Condition { lever, value, tier: self.name(tier).to_owned(), basis: Basis::Price };
        if let Some((tier, reads)) = self.reads_to_flip(at, explanation, true) {
            conditions.push(known(Lever::ReadsAbove, reads, tier));
            let room = self.room_to_flip(at, tier, true);
            conditions.extend(room.map(|room| known(Lever::MoreRoom, room as f64, tier)));
        }
        if let Some((tier, reads)) = self.reads_to_flip(at, explanation, false) {
            conditions.push(known(Lever::ReadsBelow, reads, tier));
        }
        let planned = self.placed(at);
        if planned < self.inputs.home() {
            let room = self.room_to_flip(at, planned, false);
            conditions.extend(room.map(|room| known(Lever::LessRoom, room as f64, planned)));
        }
        conditions
    }

    /// The segment's own reads or, for a segment that nobody reads, one read of all values.
    pub(super) fn unit_reads(segment: &SegmentInput) -> UnitReads {
        let reads = f64::from(segment.heat.total());
        if reads > 0.0 {
            return UnitReads { heat: segment.heat, reads };
        }
        let accesses = [1.0, 0.0, 0.0, 0.0];
        let values = [segment.rows as f32, 0.0, 0.0, 0.0];
        UnitReads { heat: SegmentHeat { accesses, values, ..SegmentHeat::default() }, reads: 1.0 }
    }

    /// Reads per epoch at which a faster tier (`up`) or a slower one would be the cheapest, and which.
    fn reads_to_flip(&self, at: usize, explanation: &Explanation, up: bool) -> Option<(TierId, f64)> {
        let segment = self.inputs.segments.get(at)?;
        let planned = self.placed(at);
        let UnitReads { heat, reads: unit } = Self::unit_reads(segment);
        let scaled = SegmentInput { heat, view: ViewInfluence::default(), ..segment.clone() };
        let cost = |id: usize| {
            let option = explanation.options.get(id)?;
            // Only the segment's own reads scale; the extra reads of hot views are part of the fixed cost.
            let own_us = reading_us(self.inputs, segment, TierId(id as u8));
            let fixed = option.total_us - own_us;
            Some((cost_parts(self.inputs, &scaled, id).read_us / unit, fixed))
        };
        let (slope, fixed) = cost(usize::from(planned.0))?;
        let mut best: Option<(TierId, f64)> = None;
        for (id, option) in explanation.options.iter().enumerate() {
            let tier = TierId(id as u8);
            if !option.allowed || tier == planned || (tier < planned) != up {
                continue;
            }
            let (other_slope, mut other_fixed) = cost(id)?;
            if up {
                other_fixed += (self.displacement_us(segment, tier) - option.rent_us).max(0.0);
            }
            let reads = (other_fixed - fixed) / (slope - other_slope);
            let closer = |known: f64| if up { reads < known } else { reads > known };
            if reads.is_finite() && reads >= 0.0 && best.is_none_or(|(_, known)| closer(known)) {
                best = Some((tier, reads));
            }
        }
        // The current number of reads belongs to the current tier, even where rounded prices say otherwise.
        best.map(|(tier, reads)| (tier, if up { reads.max(explanation.reads) } else { reads.min(explanation.reads) }))
    }

    /// Computes the time that the segments lose which `segment` displaces from a tier: the actual cost of its room. The
    /// price is only a lower bound of this cost, and a loose one where few bytes compete.
    fn displacement_us(&self, segment: &SegmentInput, tier: TierId) -> f64 {
        let Some(cell) = self.demand.get(usize::from(tier.0)) else { return 0.0 };
        let TierDemand { holding, .. } = cell.get_or_init(|| self.tier_demand(tier));
        let mut need = segment.charged_on(tier).saturating_sub(self.free_bytes(tier));
        let mut lost_us = 0.0;
        for (at, (worth, sum)) in holding.iter().enumerate().rev() {
            let before = at.checked_sub(1).and_then(|before| holding.get(before)).map_or(0, |(_, sum)| *sum);
            if need == 0 {
                break;
            }
            // Only a whole segment makes room, but the bytes that are left over are of use to other segments: so only the
            // needed part of it is lost.
            let bytes = (sum - before).min(need);
            lost_us += worth.max(0.0) * bytes as f64;
            need -= bytes;
        }
        lost_us
    }

    /// Bytes by which the budget of a tier has to grow (`more`) or shrink for the segment to come or leave.
    fn room_to_flip(&self, at: usize, tier: TierId, more: bool) -> Option<u64> {
        let segment = self.inputs.segments.get(at)?;
        let worth = self.worth(segment, tier);
        let TierDemand { wanting, holding } =
            self.demand.get(usize::from(tier.0))?.get_or_init(|| self.tier_demand(tier));
        let own = segment.charged_on(tier);
        let free = self.free_bytes(tier);
        if free == u64::MAX {
            return None;
        }
        if more {
            // A segment whose reads are not worth the move does not come, however much room there is.
            let before = wanting.partition_point(|(other, _)| *other > worth);
            let preceding = before.checked_sub(1).and_then(|i| wanting.get(i)).map_or(0, |(_, sum)| *sum);
            return (worth > 0.0).then(|| (preceding + own).saturating_sub(free).max(1));
        }
        let staying = holding.partition_point(|(other, _)| *other >= worth);
        let upto = staying.checked_sub(1).and_then(|i| holding.get(i)).map_or(0, |(_, sum)| *sum);
        let all = holding.last().map_or(0, |(_, sum)| *sum);
        Some(free + all.saturating_sub(upto) + 1)
    }

    /// Time that a byte on `tier` saves against the cheapest other tier, its rent included, in microseconds per epoch.
    fn worth(&self, segment: &SegmentInput, tier: TierId) -> f64 {
        let cost = |id: usize| cost_parts(self.inputs, segment, id).sum_us();
        let others = (0..self.inputs.tiers.len()).filter(|id| *id != usize::from(tier.0));
        let others = others.filter(|id| segment.constraints.allows(TierId(*id as u8)));
        let rent = |id: usize| segment.charged_on(TierId(id as u8)) as f64 * self.price(TierId(id as u8));
        let least = others.map(|id| cost(id) + rent(id)).fold(f64::INFINITY, f64::min);
        (least - cost(usize::from(tier.0))) / segment.charged_on(tier).max(1) as f64
    }

    fn tier_demand(&self, tier: TierId) -> TierDemand {
        let mut wanting = Vec::new();
        let mut holding = Vec::new();
        let home = self.inputs.home();
        for (at, segment) in self.inputs.segments.iter().enumerate() {
            let placed = self.placed(at);
            let charged = segment.charged_on(tier);
            if segment.constraints.needs_memory(home) || !segment.constraints.allows(tier) {
                continue;
            }
            if placed == tier {
                holding.push((self.worth(segment, tier), charged));
            } else if placed > tier {
                wanting.push((self.worth(segment, tier), charged));
            }
        }
        let summed = |mut list: DemandCurve| {
            list.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            let mut sum = 0;
            list.iter_mut().for_each(|(_, bytes)| {
                sum += *bytes;
                *bytes = sum;
            });
            list
        };
        TierDemand { wanting: summed(wanting), holding: summed(holding) }
    }

    fn sentence(&self, at: usize, explanation: &Explanation) -> Option<String> {
        let segment = self.inputs.segments.get(at)?;
        let planned = self.placed(at);
        let current = segment.current;
        let place = match planned == current {
            true => format!("stays on {}", self.name(planned)),
            false => format!("goes from {} to {} with the next epoch", self.name(current), self.name(planned)),
        };
        let constraints = &segment.constraints;
        let views = self.inputs.view_text(segment);
        if self.gives_way(at) {
            let rule = self.inputs.rule(constraints.binding_rule());
            return Some(format!(
                "{place}: the budgets cannot hold all that rules keep in memory; {rule} is not met for this segment"
            ));
        }
        if constraints.is_closed(current) && planned != current {
            return Some(format!("{place}: {} is drained", self.name(current)));
        }
        if constraints.pin.is_some() && constraints.only() == Some(planned) {
            return Some(format!("{place}: pinned by {}{views}", self.inputs.rule(constraints.pin)));
        }
        let Some(runner_up) = &explanation.runner_up else {
            return Some(match constraints.binding_rule() {
                Some(rule) => format!("{place}: {} allows no other tier{views}", self.inputs.rule(Some(rule))),
                None => format!("{place}: no other tier has a budget that could hold it{views}"),
            });
        };
        let hard = constraints
            .binding_rule()
            .map_or_else(String::new, |rule| format!("; {} applies", self.inputs.rule(Some(rule))));
        let condition = match explanation.condition.as_str() {
            "" => String::new(),
            text => format!("; {text}"),
        };
        let ahead = if segment.expected_reads.total() > 0.0 { "; running statements are about to read it" } else { "" };
        let expected = segment.heat_with_views();
        let is_read = expected.total() > 0.0;
        if !is_read && !ahead.is_empty() {
            return Some(format!("{place}: not read in recent epochs{ahead}{views}{hard}{condition}"));
        }
        if !is_read {
            return Some(format!("{place}: not read in recent epochs, so no tier saves time{views}{hard}{condition}"));
        }
        let reads = reads_text(&expected);
        let other = self.tier_named(runner_up);
        let up = other < planned;
        let upper = other.min(planned);
        let faster = self.name(upper);
        let slower = self.name(other.max(planned));
        let price = match explanation.price_ns_per_byte {
            price if price > 0.0 => format!("its room costs {} ns per byte", figure(price)),
            _ if up && self.free_bytes(upper) < segment.charged_on(upper) => format!("{faster} is full"),
            _ => format!("{faster} has room"),
        };
        let worth = format!(
            "{faster} {} {} an epoch against {slower}, {} ns per byte; {price}",
            if up { "would save" } else { "saves" },
            time(explanation.benefit_us),
            figure(explanation.benefit_ns_per_byte),
        );
        Some(format!("{place}: {reads}; {worth}{ahead}{views}{hard}{condition}"))
    }
}

#[cfg(test)]
mod tests;
