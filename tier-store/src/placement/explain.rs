//! Why a segment lies where a plan puts it, and what would have to change for it to lie elsewhere. Pure.
//!
//! A plan comes down to a price per byte on each tier with a budget: a segment goes where its reads, an unmet preference,
//! its move and the rent of its room (bytes x price) are least together. All figures here are taken from the inputs and
//! prices of one plan. Reads cost in proportion to their number, so the number at which another tier becomes the
//! cheapest is known in closed form ([`Basis::Price`]). Prices move in steps, though, as segments are whole: where there
//! is time, [`super::flip`] makes the plan again until it knows the number ([`Basis::Planned`]).

use std::cell::OnceCell;

use serde::Serialize;

use super::epoch::{EpochPlan, Inputs, SegmentInput, parts, reading_us, reads};
use super::views::ViewPart;
use super::words::{bytes, figure, time};
use crate::heat::Pattern;
use crate::tier::TierId;

/// A tier as a choice for one segment; times in microseconds per epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierOption {
    /// Name of the tier.
    pub tier: String,
    /// False when a rule keeps the segment off it, or its budget could not hold it.
    pub allowed: bool,
    /// Expected time of its reads there, those of hot views included.
    pub read_us: f64,
    /// What its room there is worth to others: bytes by the price of the tier.
    pub rent_us: f64,
    /// The move there, spread over the epochs within which it must pay back; more when it would turn back a recent one.
    pub move_us: f64,
    /// That a rule prefers another tier, and what hot views prefer.
    pub wish_us: f64,
    /// That running statements are about to read it where it lies: what they would take longer there.
    pub ahead_us: f64,
    /// All of these: the segment goes where this is least.
    pub total_us: f64,
}

/// How a condition is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// From the prices of the plan: near the truth, as prices change in steps.
    Price,
    /// The plan was made again on both sides of it.
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

/// What changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// The segment is read more often than so many times per epoch.
    ReadsAbove,
    /// It is read less often than so many times per epoch.
    ReadsBelow,
    /// The budget of the tier grows by so many bytes.
    MoreRoom,
    /// The budget of the tier it lies on shrinks by so many bytes.
    LessRoom,
}

/// A change after which the next epoch would place the segment elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Condition {
    /// What changes.
    pub lever: Lever,
    /// Reads per epoch, or bytes.
    pub value: f64,
    /// The tier whose budget changes, or that the segment goes to.
    pub tier: String,
    /// How it is known.
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

/// Why one segment lies where it lies.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Name of the tier an epoch would place it on now; as above.
    pub planned: String,
    /// Reads per epoch by pattern, decayed.
    pub heat: Vec<(Pattern, f64)>,
    /// All of them.
    pub reads: f64,
    /// Reading time per epoch that the faster of the planned tier and the runner-up saves against the other.
    pub benefit_us: f64,
    /// The same per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// The price of a byte of the faster one, in nanoseconds.
    pub price_ns_per_byte: f64,
    /// The second best tier; `None` when rules leave only one.
    pub runner_up: Option<String>,
    /// How much more it would cost there, in microseconds per epoch.
    pub runner_up_us: Option<f64>,
    /// Every tier, fastest first.
    pub options: Vec<TierOption>,
    /// What would place it elsewhere; nothing when rules leave no choice.
    pub conditions: Vec<Condition>,
    /// The same in words.
    pub condition: String,
    /// Rules that hold for it, in words.
    pub rules: Vec<String>,
    /// All of it in one sentence.
    pub why: String,
}

/// What stands for the tier of a segment that lies on none.
const NO_TIER: &str = "none";

impl Explanation {
    /// Of a segment whose rows all have the value of a column that was added after its chunk was written.
    pub(super) fn of_constant((table, chunk, column): (&str, u64, &str)) -> Self {
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
                  kept with the table and read from there at no cost; nothing is placed, and no rule moves it"
                .to_owned(),
        }
    }
}

/// Explains segments of one plan.
#[derive(Debug)]
pub(super) struct Explainer<'a> {
    pub(super) inputs: &'a Inputs,
    plan: &'a EpochPlan,
    /// Where the plan puts each segment.
    placed: Vec<TierId>,
    /// Microseconds per byte, by tier.
    prices: Vec<f64>,
    /// Bytes of the budget that the plan leaves free, by tier.
    free: Vec<u64>,
    /// By tier, by falling worth per byte: segments that others keep from it, and those it holds by choice.
    ladders: Vec<OnceCell<(Ladder, Ladder)>>,
}

/// Worth per byte, and bytes so far.
type Ladder = Vec<(f64, u64)>;

impl<'a> Explainer<'a> {
    /// Of a plan made from `inputs`.
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
        let ladders = inputs.tiers.iter().map(|_| OnceCell::new()).collect();
        Self { inputs, plan, placed, prices, free, ladders }
    }

    pub(super) fn placed(&self, at: usize) -> TierId {
        self.placed.get(at).copied().unwrap_or_else(|| self.inputs.home())
    }

    pub(super) fn name(&self, tier: TierId) -> &'a str {
        self.inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str())
    }

    fn tier_named(&self, name: &str) -> TierId {
        let found = self.inputs.tiers.iter().position(|tier| tier.name == name);
        found.map_or(self.inputs.home(), |id| TierId(id as u8))
    }

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
        let duty = &segment.duty;
        let open = if self.gives_way(at) { duty.spare } else { duty.allowed };
        let option = |(id, tier): (usize, &super::epoch::TierInput)| {
            let parts = parts(self.inputs, segment, id);
            let charged = segment.charged_on(TierId(id as u8));
            let rent_us = charged as f64 * self.prices.get(id).copied().unwrap_or(0.0);
            let fits = tier.budget_bytes.is_none_or(|budget| charged <= budget);
            TierOption {
                tier: tier.name.clone(),
                allowed: fits && open.checked_shr(id as u32).unwrap_or(0) & 1 == 1,
                read_us: parts.read_us,
                rent_us,
                move_us: parts.move_us,
                wish_us: parts.wish_us,
                ahead_us: parts.ahead_us,
                total_us: parts.sum_us() + rent_us,
            }
        };
        self.inputs.tiers.iter().enumerate().map(option).collect()
    }

    /// What the plan says of the segment at a position, conditions by price; the names of table and column are the
    /// caller's to fill in.
    pub(super) fn explain(&self, at: usize) -> Option<Explanation> {
        let segment = self.inputs.segments.get(at)?;
        let options = self.options(at, segment);
        let planned = self.placed(at);
        let chosen = options.get(usize::from(planned.0))?;
        let others = options.iter().enumerate().filter(|(id, option)| option.allowed && *id != usize::from(planned.0));
        let second = others.min_by(|a, b| a.1.total_us.total_cmp(&b.1.total_us));
        let second_id = second.map(|(id, _)| TierId(id as u8));
        // Where rules leave no choice, the home is what it is weighed against.
        let against = second_id.unwrap_or_else(|| self.inputs.home());
        let upper = planned.min(against);
        let lower = planned.max(against);
        let read = |tier: TierId| options.get(usize::from(tier.0)).map_or(0.0, |option| option.read_us);
        let benefit_us = read(lower) - read(upper);
        let rules = [segment.duty.pin, segment.duty.exclusion, segment.duty.preference];
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
        self.put_in_words(at, &mut explanation);
        Some(explanation)
    }

    /// Fills in the sentences; once more after the conditions changed.
    pub(super) fn put_in_words(&self, at: usize, explanation: &mut Explanation) {
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

    /// One read of all values for a segment that nobody reads, else its own reads: what is made more or less.
    pub(super) fn unit(segment: &SegmentInput) -> (crate::heat::decay::SegmentHeat, f64) {
        let reads = f64::from(segment.heat.total());
        if reads > 0.0 {
            return (segment.heat, reads);
        }
        let mut heat = crate::heat::decay::SegmentHeat::default();
        (heat.accesses, heat.values) = ([1.0, 0.0, 0.0, 0.0], [segment.rows as f32, 0.0, 0.0, 0.0]);
        (heat, 1.0)
    }

    /// Reads per epoch at which a faster tier (`up`) or a slower one would be the cheapest, and which.
    fn reads_to_flip(&self, at: usize, explanation: &Explanation, up: bool) -> Option<(TierId, f64)> {
        let segment = self.inputs.segments.get(at)?;
        let planned = self.placed(at);
        let (heat, unit) = Self::unit(segment);
        let scaled = SegmentInput { heat, view: ViewPart::default(), ..segment.clone() };
        let cost = |id: usize| {
            let option = explanation.options.get(id)?;
            // What hot views add stays as it is.
            let own_us = reading_us(self.inputs, segment, TierId(id as u8));
            let fixed = option.total_us - own_us;
            Some((parts(self.inputs, &scaled, id).read_us / unit, fixed))
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
                other_fixed += (self.entry_us(segment, tier) - option.rent_us).max(0.0);
            }
            let reads = (other_fixed - fixed) / (slope - other_slope);
            let closer = |known: f64| if up { reads < known } else { reads > known };
            if reads.is_finite() && reads >= 0.0 && best.is_none_or(|(_, known)| closer(known)) {
                best = Some((tier, reads));
            }
        }
        // The plan as it stands is on this side, whatever rounding did to its prices.
        best.map(|(tier, reads)| (tier, if up { reads.max(explanation.reads) } else { reads.min(explanation.reads) }))
    }

    /// What the segments would lose that have to make room for another on a tier: the rent that it pays in fact. The price
    /// is the least of what it may come to, and loose where little is at stake.
    fn entry_us(&self, segment: &SegmentInput, tier: TierId) -> f64 {
        let Some(cell) = self.ladders.get(usize::from(tier.0)) else { return 0.0 };
        let (_, holding) = cell.get_or_init(|| self.ladder(tier));
        let mut need = segment.charged_on(tier).saturating_sub(self.free_bytes(tier));
        let mut lost_us = 0.0;
        for (at, (worth, sum)) in holding.iter().enumerate().rev() {
            let before = at.checked_sub(1).and_then(|before| holding.get(before)).map_or(0, |(_, sum)| *sum);
            if need == 0 {
                break;
            }
            // A part of a segment makes no room, but room that is left is of use to others.
            let bytes = (sum - before).min(need);
            lost_us += worth.max(0.0) * bytes as f64;
            need -= bytes;
        }
        lost_us
    }

    /// Bytes that the budget of a tier has to grow or shrink by.
    fn room_to_flip(&self, at: usize, tier: TierId, more: bool) -> Option<u64> {
        let segment = self.inputs.segments.get(at)?;
        let worth = self.worth(segment, tier);
        let (wanting, holding) = self.ladders.get(usize::from(tier.0))?.get_or_init(|| self.ladder(tier));
        let own = segment.charged_on(tier);
        let free = self.free_bytes(tier);
        if free == u64::MAX {
            return None;
        }
        if more {
            // Without reads worth the move no room brings it.
            let before = wanting.partition_point(|(other, _)| *other > worth);
            let ahead = before.checked_sub(1).and_then(|i| wanting.get(i)).map_or(0, |(_, sum)| *sum);
            return (worth > 0.0).then(|| (ahead + own).saturating_sub(free).max(1));
        }
        let kept = holding.partition_point(|(other, _)| *other >= worth);
        let upto = kept.checked_sub(1).and_then(|i| holding.get(i)).map_or(0, |(_, sum)| *sum);
        let all = holding.last().map_or(0, |(_, sum)| *sum);
        Some(free + all.saturating_sub(upto) + 1)
    }

    /// What a byte on `tier` saves against the cheapest other tier, its rent included, in microseconds per epoch.
    fn worth(&self, segment: &SegmentInput, tier: TierId) -> f64 {
        let cost = |id: usize| parts(self.inputs, segment, id).sum_us();
        let others = (0..self.inputs.tiers.len()).filter(|id| *id != usize::from(tier.0));
        let others = others.filter(|id| segment.duty.allows(TierId(*id as u8)));
        let rent = |id: usize| segment.charged_on(TierId(id as u8)) as f64 * self.price(TierId(id as u8));
        let least = others.map(|id| cost(id) + rent(id)).fold(f64::INFINITY, f64::min);
        (least - cost(usize::from(tier.0))) / segment.charged_on(tier).max(1) as f64
    }

    fn ladder(&self, tier: TierId) -> (Ladder, Ladder) {
        let mut wanting = Vec::new();
        let mut holding = Vec::new();
        let home = self.inputs.home();
        for (at, segment) in self.inputs.segments.iter().enumerate() {
            let placed = self.placed(at);
            let charged = segment.charged_on(tier);
            if segment.duty.needs_memory(home) || !segment.duty.allows(tier) {
                continue;
            }
            if placed == tier {
                holding.push((self.worth(segment, tier), charged));
            } else if placed > tier {
                wanting.push((self.worth(segment, tier), charged));
            }
        }
        let summed = |mut list: Ladder| {
            list.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            let mut sum = 0;
            list.iter_mut().for_each(|(_, bytes)| {
                sum += *bytes;
                *bytes = sum;
            });
            list
        };
        (summed(wanting), summed(holding))
    }

    fn sentence(&self, at: usize, explanation: &Explanation) -> Option<String> {
        let segment = self.inputs.segments.get(at)?;
        let planned = self.placed(at);
        let current = segment.current;
        let place = match planned == current {
            true => format!("stays on {}", self.name(planned)),
            false => format!("goes from {} to {} with the next epoch", self.name(current), self.name(planned)),
        };
        let duty = &segment.duty;
        let views = self.inputs.view_words(segment);
        if self.gives_way(at) {
            let rule = self.inputs.rule(duty.hard());
            return Some(format!(
                "{place}: the budgets do not hold all that must lie in memory; {rule} gives way here"
            ));
        }
        if duty.is_closed(current) && planned != current {
            return Some(format!("{place}: {} is drained", self.name(current)));
        }
        if duty.pin.is_some() && duty.only() == Some(planned) {
            return Some(format!("{place}: pinned by {}{views}", self.inputs.rule(duty.pin)));
        }
        let Some(runner_up) = &explanation.runner_up else {
            return Some(match duty.hard() {
                Some(rule) => format!("{place}: {} leaves no other tier{views}", self.inputs.rule(Some(rule))),
                None => format!("{place}: no other tier has a budget that could hold it{views}"),
            });
        };
        let hard = duty.hard().map_or_else(String::new, |rule| format!("; {} holds", self.inputs.rule(Some(rule))));
        let condition = match explanation.condition.as_str() {
            "" => String::new(),
            text => format!("; {text}"),
        };
        let ahead = if segment.ahead.total() > 0.0 { "; running statements are about to read it" } else { "" };
        let expected = segment.expected();
        let is_read = expected.total() > 0.0;
        if !is_read && !ahead.is_empty() {
            return Some(format!("{place}: not read in recent epochs{ahead}{views}{hard}{condition}"));
        }
        if !is_read {
            return Some(format!(
                "{place}: not read in recent epochs, so no tier saves anything{views}{hard}{condition}"
            ));
        }
        let reads = reads(&expected);
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
