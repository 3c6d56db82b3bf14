//! Explanations: why a plan puts a segment on a tier, and what would have to change for another tier. Pure.
//!
//! A plan is determined by a price per byte on each tier with a budget: a segment goes to the tier where the sum of its
//! reads, an unmet preference, its move and the rent of its room (bytes x price) is least. All figures here are taken
//! from the inputs and prices of one plan. Reads cost in proportion to their number, so the number at which another
//! tier becomes the cheapest is known in closed form ([`Basis::Price`]). Prices move in steps, though, because segments
//! are indivisible: where there is time, [`super::condition_search`] plans again until it knows the number
//! ([`Basis::Planned`]).

use std::borrow::Cow;
use std::cell::OnceCell;

use serde::Serialize;
use terrace_model::{Pattern, TierId};
use terrace_storage::tier::codec::Form;

use super::epoch::{
    EpochPlan, Inputs, SegmentInput, cost_parts, explanation_text, form_at, packed_text, read_bytes, reading_us,
    reads_text, worth_bytes,
};
use super::format::{bytes, figure, time};
use super::place::Place;
use super::views::ViewInfluence;
use crate::heat::SegmentHeat;

/// A tier, and a form there, as a choice for one segment; times in microseconds per epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TierOption {
    /// Name of the tier.
    pub tier: String,
    /// The form of the bytes that are read there: of the copy, or at home of the column in its file.
    pub form: Form,
    /// Bytes that a read of all of it moves there.
    pub bytes: u64,
    /// False when a rule keeps the segment off it, or its budget could not hold it.
    pub allowed: bool,
    /// Expected time of its reads there, those of hot views and the time to unpack included.
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
    /// Bytes of its image in memory, in the planned form.
    pub bytes: u64,
    /// Name of the tier it lies on; "none" for a segment that has no bytes.
    pub tier: String,
    /// The form of its copy; null where it has none.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub form: Option<Form>,
    /// Name of the tier an epoch would place it on now; "none" for a segment without bytes.
    pub planned: String,
    /// The form that its copy would have there; null at home.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub planned_form: Option<Form>,
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
    /// The second best tier, with the form there if it may have either; null when rules leave only one.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub runner_up: Option<String>,
    /// How much more it would cost there, in microseconds per epoch.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub runner_up_us: Option<f64>,
    /// Every tier, fastest first; one that may have either form of it twice.
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
            form: None,
            planned: NO_TIER.to_owned(),
            planned_form: None,
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
    /// Those of the inputs: without the reads that kernels make, for one that is to have an image on a device.
    segments: Cow<'a, [SegmentInput]>,
    plan: &'a EpochPlan,
    /// The planned place of each segment.
    placed: Vec<Place>,
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
        let mut placed: Vec<Place> = inputs.segments.iter().map(SegmentInput::place).collect();
        for planned in &plan.moves {
            if let Some(slot) = placed.get_mut(planned.segment) {
                *slot = planned.to_place();
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
        let mut segments = Cow::Borrowed(inputs.segments.as_slice());
        if plan.has_image.contains(&true) {
            for (segment, _) in segments.to_mut().iter_mut().zip(&plan.has_image).filter(|(_, has_image)| **has_image) {
                segment.heat = segment.heat.without_kernel_reads();
            }
        }
        Self { inputs, segments, plan, placed, prices, free, demand }
    }

    /// The planned tier of the segment at a position.
    pub(super) fn placed(&self, at: usize) -> TierId {
        self.place(at).tier
    }

    /// The planned place of the segment at a position.
    pub(super) fn place(&self, at: usize) -> Place {
        self.placed.get(at).copied().unwrap_or_else(|| Place::plain(self.inputs.home()))
    }

    /// The name of a tier.
    pub(super) fn name(&self, tier: TierId) -> &'a str {
        self.inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str())
    }

    /// The name of a place for a segment: that of the tier and, where it may have either form, the form.
    fn place_name(&self, segment: &SegmentInput, place: Place) -> String {
        let tier = self.name(place.tier);
        if segment.has_choice_on(place.tier) { format!("{tier} {}", place.form) } else { tier.to_owned() }
    }

    /// The places that are weighed for a segment, by tier: those that its forms allow, and the one where it lies.
    fn places(&self, segment: &SegmentInput) -> Vec<Place> {
        let tiers = (0..self.inputs.tiers.len()).map(|id| TierId(id as u8));
        let mut places: Vec<Place> = tiers.flat_map(|tier| segment.places_on(tier)).collect();
        if !places.contains(&segment.place()) {
            places.push(segment.place());
            places.sort_unstable();
        }
        places
    }

    /// The cost of a segment at a place and the worth of its room there, in microseconds per epoch.
    fn total_us(&self, segment: &SegmentInput, place: Place) -> f64 {
        cost_parts(self.inputs, segment, place).sum_us() + self.rent_us(segment, place)
    }

    fn rent_us(&self, segment: &SegmentInput, place: Place) -> f64 {
        segment.charged_at(place) as f64 * self.price(place.tier)
    }

    /// The cheapest place of a segment on a tier.
    fn best_place(&self, segment: &SegmentInput, tier: TierId) -> Place {
        let cheaper = |a: &Place, b: &Place| self.total_us(segment, *a).total_cmp(&self.total_us(segment, *b));
        segment.places_on(tier).min_by(cheaper).unwrap_or(Place::plain(tier))
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

    /// The places that are weighed for a segment, and what each costs.
    fn options(&self, at: usize, segment: &SegmentInput) -> Vec<(Place, TierOption)> {
        let constraints = &segment.constraints;
        let open = if self.gives_way(at) { constraints.fallback } else { constraints.allowed };
        let option = |place: Place| {
            let id = usize::from(place.tier.0);
            let parts = cost_parts(self.inputs, segment, place);
            let rent_us = self.rent_us(segment, place);
            let budget = self.inputs.tiers.get(id).and_then(|tier| tier.budget_bytes);
            let fits = budget.is_none_or(|budget| segment.charged_at(place) <= budget);
            let option = TierOption {
                tier: self.name(place.tier).to_owned(),
                form: form_at(self.inputs, segment, place),
                bytes: read_bytes(self.inputs, segment, place),
                allowed: fits && segment.allows_form(place) && open.checked_shr(id as u32).unwrap_or(0) & 1 == 1,
                read_us: parts.read_us,
                rent_us,
                move_us: parts.move_us,
                wish_us: parts.preference_us,
                ahead_us: parts.delay_us,
                total_us: parts.sum_us() + rent_us,
            };
            (place, option)
        };
        self.places(segment).into_iter().map(option).collect()
    }

    /// Explains the segment at a position, with conditions by price; the caller fills in the names of table and column.
    pub(super) fn explain(&self, at: usize) -> Option<Explanation> {
        let segment = self.segments.get(at)?;
        let heat = self.inputs.segments.get(at)?.heat;
        let options = self.options(at, segment);
        let planned = self.place(at);
        let (_, chosen) = options.iter().find(|(place, _)| *place == planned)?;
        let others = options.iter().filter(|(place, option)| option.allowed && *place != planned);
        let second = others.min_by(|a, b| a.1.total_us.total_cmp(&b.1.total_us));
        let second_place = second.map(|(place, _)| *place);
        let home = self.inputs.home();
        // Where rules leave no choice, the benefit is computed against the home.
        let against = second_place.unwrap_or(Place::plain(home));
        let upper = planned.min(against);
        let lower = planned.max(against);
        let read = |wanted: Place| {
            let option = options.iter().find(|(place, _)| *place == wanted);
            option.map_or(0.0, |(_, option)| option.read_us)
        };
        let benefit_us = read(lower) - read(upper);
        let in_memory = |place: Place| (place.tier < home).then_some(place.form);
        let constraints = &segment.constraints;
        let form = constraints.form.filter(|rule| ![constraints.pin, constraints.exclusion].contains(&Some(*rule)));
        let rules = [constraints.pin, constraints.exclusion, form, constraints.preference];
        let has_choice = options.iter().any(|(place, option)| option.allowed && place.tier != planned.tier);
        let conditions = self.conditions(at, &options, has_choice);
        let mut explanation = Explanation {
            table: String::new(),
            chunk: segment.key.chunk.0,
            column: String::new(),
            bytes: segment.image_bytes(in_memory(planned).unwrap_or_else(|| segment.usual_place(TierId(0)).form)),
            tier: self.name(segment.current).to_owned(),
            form: in_memory(segment.place()),
            planned: self.name(planned.tier).to_owned(),
            planned_form: in_memory(planned),
            heat: Pattern::ALL.into_iter().zip(heat.accesses.map(f64::from)).collect(),
            reads: heat.total().into(),
            benefit_us,
            benefit_ns_per_byte: benefit_us * 1e3 / worth_bytes(segment, planned, against) as f64,
            price_ns_per_byte: self.price(upper.tier) * 1e3,
            runner_up: second_place.map(|place| self.place_name(segment, place)),
            runner_up_us: second.map(|(_, option)| (option.total_us - chosen.total_us).max(0.0)),
            conditions,
            condition: String::new(),
            rules: rules.iter().flatten().map(|rule| self.inputs.rule(Some(*rule)).to_owned()).collect(),
            options: options.into_iter().map(|(_, option)| option).collect(),
            why: String::new(),
        };
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
        let has_image = self.plan.has_image.get(at).copied().unwrap_or(false);
        let segment = self.inputs.segments.get(at);
        let image = segment.map(|segment| explanation_text(self.inputs, segment, segment.place(), has_image));
        explanation.why = self.sentence(at, explanation).unwrap_or_default() + &image.unwrap_or_default();
    }

    /// The changes after which another tier would be the cheapest, by the prices of the plan.
    fn conditions(&self, at: usize, options: &[(Place, TierOption)], has_choice: bool) -> Vec<Condition> {
        let mut conditions = Vec::new();
        if !has_choice {
            return conditions;
        }
        let known =
            |lever, value, tier| Condition { lever, value, tier: self.name(tier).to_owned(), basis: Basis::Price };
        if let Some((tier, reads)) = self.reads_to_flip(at, options, true) {
            conditions.push(known(Lever::ReadsAbove, reads, tier));
            let room = self.room_to_flip(at, tier, true);
            conditions.extend(room.map(|room| known(Lever::MoreRoom, room as f64, tier)));
        }
        if let Some((tier, reads)) = self.reads_to_flip(at, options, false) {
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
    fn reads_to_flip(&self, at: usize, options: &[(Place, TierOption)], up: bool) -> Option<(TierId, f64)> {
        let segment = self.segments.get(at)?;
        let now = f64::from(segment.heat.total());
        let planned = self.place(at);
        let UnitReads { heat, reads: unit } = Self::unit_reads(segment);
        let scaled = SegmentInput { heat, view: ViewInfluence::default(), ..segment.clone() };
        let cost = |place: Place, option: &TierOption| {
            // Only the segment's own reads scale; the extra reads of hot views are part of the fixed cost.
            let fixed = option.total_us - reading_us(self.inputs, segment, place);
            (cost_parts(self.inputs, &scaled, place).read_us / unit, fixed)
        };
        let (_, chosen) = options.iter().find(|(place, _)| *place == planned)?;
        let (slope, fixed) = cost(planned, chosen);
        let mut best: Option<(TierId, f64)> = None;
        for (place, option) in options {
            let tier = place.tier;
            if !option.allowed || tier == planned.tier || (tier < planned.tier) != up {
                continue;
            }
            let (other_slope, mut other_fixed) = cost(*place, option);
            if up {
                other_fixed += (self.displacement_us(segment, *place) - option.rent_us).max(0.0);
            }
            let reads = (other_fixed - fixed) / (slope - other_slope);
            let closer = |known: f64| if up { reads < known } else { reads > known };
            if reads.is_finite() && reads >= 0.0 && best.is_none_or(|(_, known)| closer(known)) {
                best = Some((tier, reads));
            }
        }
        // The current number of reads belongs to the current tier, even where rounded prices say otherwise.
        best.map(|(tier, reads)| (tier, if up { reads.max(now) } else { reads.min(now) }))
    }

    /// Computes the time that the segments lose which `segment` displaces at a place: the actual cost of its room. The
    /// price is only a lower bound of this cost, and a loose one where few bytes compete.
    fn displacement_us(&self, segment: &SegmentInput, place: Place) -> f64 {
        let tier = place.tier;
        let Some(cell) = self.demand.get(usize::from(tier.0)) else { return 0.0 };
        let TierDemand { holding, .. } = cell.get_or_init(|| self.tier_demand(tier));
        let mut need = segment.charged_at(place).saturating_sub(self.free_bytes(tier));
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
        let segment = self.segments.get(at)?;
        let planned = self.place(at);
        let place = if planned.tier == tier { planned } else { self.best_place(segment, tier) };
        let worth = self.worth(segment, place);
        let TierDemand { wanting, holding } =
            self.demand.get(usize::from(tier.0))?.get_or_init(|| self.tier_demand(tier));
        let own = segment.charged_at(place);
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

    /// Time that a byte at `place` saves against the cheapest place on another tier, its rent included, in microseconds per
    /// epoch.
    fn worth(&self, segment: &SegmentInput, place: Place) -> f64 {
        let others = (0..self.inputs.tiers.len()).map(|id| TierId(id as u8)).filter(|tier| *tier != place.tier);
        let others = others.filter(|tier| segment.constraints.allows(*tier)).flat_map(|tier| segment.places_on(tier));
        let least = others.map(|other| self.total_us(segment, other)).fold(f64::INFINITY, f64::min);
        (least - cost_parts(self.inputs, segment, place).sum_us()) / segment.charged_at(place).max(1) as f64
    }

    fn tier_demand(&self, tier: TierId) -> TierDemand {
        let mut wanting = Vec::new();
        let mut holding = Vec::new();
        let home = self.inputs.home();
        for (at, segment) in self.segments.iter().enumerate() {
            let placed = self.place(at);
            if segment.constraints.needs_memory(home) || !segment.constraints.allows(tier) {
                continue;
            }
            if placed.tier == tier {
                holding.push((self.worth(segment, placed), segment.charged_at(placed)));
            } else if placed.tier > tier {
                let place = self.best_place(segment, tier);
                wanting.push((self.worth(segment, place), segment.charged_at(place)));
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
        let segment = self.segments.get(at)?;
        let planned_place = self.place(at);
        let planned = planned_place.tier;
        let current = segment.current;
        let place = match planned == current {
            true if planned_place == segment.place() => format!("stays on {}", self.name(planned)),
            true => format!("becomes {} on {} with the next epoch", planned_place.form, self.name(planned)),
            false => format!("goes from {} to {} with the next epoch", self.name(current), self.name(planned)),
        };
        let constraints = &segment.constraints;
        let views = packed_text(self.inputs, segment, planned_place) + &self.inputs.view_text(segment);
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
        let expected = self.inputs.segments.get(at)?.heat_with_views();
        let is_read = expected.total() > 0.0;
        if !is_read && !ahead.is_empty() {
            return Some(format!("{place}: not read in recent epochs{ahead}{views}{hard}{condition}"));
        }
        if !is_read {
            return Some(format!("{place}: not read in recent epochs, so no tier saves time{views}{hard}{condition}"));
        }
        let reads = reads_text(&expected);
        let is_runner_up = |place: &Place| self.place_name(segment, *place) == *runner_up;
        let other = self.places(segment).into_iter().find(is_runner_up).unwrap_or(Place::plain(self.inputs.home()));
        let up = other < planned_place;
        let upper = other.min(planned_place);
        let faster = self.place_name(segment, upper);
        let slower = self.place_name(segment, other.max(planned_place));
        let price = match explanation.price_ns_per_byte {
            price if price > 0.0 => format!("its room costs {} ns per byte", figure(price)),
            _ if up && self.free_bytes(upper.tier) < segment.charged_at(upper) => {
                format!("{} is full", self.name(upper.tier))
            }
            _ => format!("{} has room", self.name(upper.tier)),
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
