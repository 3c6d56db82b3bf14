//! The plan of one epoch: turns heat, costs and budgets into an ordered list of moves, each with its reason. Pure.
//!
//! The cost of a segment on a tier is the expected time of its accesses there ([`TierCost::expected_us`]) plus, on any
//! other tier than its current one, the time of the move spread over `payback_epochs`: the plan makes no move that does not
//! pay back within them, and on a tie the segment stays. Segments that nobody reads save no time on any tier,
//! so they are the first to be evicted and are never promoted. Hysteresis keeps a segment that moved a short time ago from
//! moving back for a small gain: see [`super::hysteresis`]. A segment that a running statement is about to read is not
//! evicted for a small gain either: see [`super::expected_reads`].
//!
//! The policy `optimal` decides by these costs; [`super::policy`] has others. This module has the steps that all share.
//!
//! A copy in memory has a form, and the choice is one of places ([`super::place`]): a tier and a form. A packed copy takes fewer
//! bytes, and its reads take the time to unpack what they touch ([`super::form_cost`]), as do reads from a home whose bytes are
//! packed. A move between two forms on one tier is a move like others, and takes the time to pack or unpack the copy.
//!
//! Where there is a device, a segment may have an image in its memory, for kernels, beside the place where processors read it.
//! Whether it has one is a part of the choice: see `images`.
//!
//! - `images`: second copies in the memory of a device
//! - `places`: the options of a plan, and what a segment takes at each place
//! - `reasons`: the reasons of moves
//!
//! Rules of users come before costs: see [`super::constraints`] and [`super::reserved`]. A preference that is not met
//! costs as much as one more scan of the segment from its home per epoch.

mod images;
mod places;
mod reasons;

use std::cmp::Ordering;

use terrace_model::{Error, Result, TierId};
use terrace_storage::tier::codec::Form;

use super::constraints::PlacementConstraints;
use super::cost::{Extent, TierCost};
use super::expected_reads::delay_us;
use super::form_cost::{FormCost, PackedValues, PlaceCost};
use super::form_tiers::FormTiers;
use super::hysteresis::{self, Hysteresis};
use super::place::Place;
use super::policy::{Decision, Policy, PolicyKind, ReasonContext};
use super::record::TierPrice;
use super::reserved::{Reserved, reserve};
use super::residual::{choose_residual, forbid_by_rules};
use super::solver::{Instance, Method, Solution, Work, certify, judge};
use super::views::{PREFERENCE, ViewInfluence, ViewInput};
use crate::heat::decay::{SegmentHeat, SegmentKey};
pub(super) use images::explanation_text;
pub use images::{DeviceInput, ImageInput, ImageRule, PlannedImage};
pub use places::PlaceOptions;
use reasons::rule_reason;
pub(super) use reasons::{packed_text, reads_text, reason};
pub use terrace_model::MAX_TIERS;

/// Cost of dropping a copy, in microseconds: small, but above 0, so that a plan does not drop copies without need.
const RELEASE_US: f64 = 1.0;

/// Payback epochs that make the time of moves negligible.
const SETTLED_EPOCHS: f64 = 1e12;

/// A second bound may be above the objective by this part, for rounding errors.
const CONTRADICTION: f64 = 1e-6;

/// A tier as the plan sees it.
#[derive(Debug, Clone)]
pub struct TierInput {
    /// Name, for reasons.
    pub name: String,
    /// Bytes that segments may take; `None` for the home.
    pub budget_bytes: Option<u64>,
    /// Its cost profile.
    pub cost: TierCost,
}

/// The packed form of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedImage {
    /// Bytes of the image; estimated for texts that are not packed yet.
    pub bytes: u64,
    /// Bytes it would be charged on each tier, in order of [`TierId`]; 0 at home.
    pub charged_bytes: [u64; MAX_TIERS],
    /// Its values.
    pub values: PackedValues,
}

/// A segment as the plan sees it.
#[derive(Debug, Clone)]
pub struct SegmentInput {
    /// The key of the segment.
    pub key: SegmentKey,
    /// Rows.
    pub rows: u32,
    /// Bytes of its image in memory, in the plain form.
    pub bytes: u64,
    /// Its packed form; `None` where it has none that is worth it. Most segments have none to choose, so it lies apart.
    pub packed: Option<Box<PackedImage>>,
    /// The form of its copy; plain at home.
    pub form: Form,
    /// The tiers on which its copy may have each form; without effect where it has no packed form.
    pub forms: FormTiers,
    /// Bytes stored at home.
    pub stored_bytes: u64,
    /// Bytes that a read from home takes; the cost of decompression is included, in bytes of the home device.
    pub home_bytes: u64,
    /// True when every read from home reads the whole segment.
    pub whole_at_home: bool,
    /// Its values where the stored bytes are an image in the packed form, which reads from home unpack; `None` where they are
    /// plain.
    pub packed_at_home: Option<PackedValues>,
    /// Bytes that a plain copy would be charged on each tier, in order of [`TierId`]; 0 at home.
    pub charged_bytes: [u64; MAX_TIERS],
    /// Its current tier.
    pub current: TierId,
    /// Expected accesses.
    pub heat: SegmentHeat,
    /// Constraints of its placement; rules are named by their positions in [`Inputs::rules`].
    pub constraints: PlacementConstraints,
    /// Its last move, if it was a short time ago: the segment should not reverse it.
    pub hysteresis: Option<Hysteresis>,
    /// Reads that running statements expect of its copy in memory: see [`super::expected_reads`].
    pub expected_reads: SegmentHeat,
    /// The influence of hot views on it.
    pub view: ViewInfluence,
    /// The image that it may have on a device; `None` where it has none, or there is no device. It lies apart, as most segments
    /// have none.
    pub image: Option<Box<ImageInput>>,
}

/// All inputs of a plan.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Fastest first, the home last.
    pub tiers: Vec<TierInput>,
    /// In a stable order, which breaks ties.
    pub segments: Vec<SegmentInput>,
    /// Epochs within which a move must pay back; above 0.
    pub payback_epochs: f64,
    /// Descriptions of the rules, in the order in which they were made.
    pub rules: Vec<String>,
    /// Price of a byte of each tier but the home in the last plan, in microseconds per epoch, from which the solver starts;
    /// empty: it starts without prices.
    pub prices: Vec<f64>,
    /// The hot views to which segments belong.
    pub views: Vec<ViewInput>,
    /// What packing and unpacking cost.
    pub form_cost: FormCost,
    /// The device whose memory may have images; `None`: there is none, or it does not work.
    pub device: Option<DeviceInput>,
}

impl Inputs {
    /// The tier where every segment has its durable bytes.
    pub(super) fn home(&self) -> TierId {
        TierId(self.tiers.len().saturating_sub(1) as u8)
    }

    /// Makes plans independent of earlier plans and moves: moves take no time, and none is held back.
    pub(super) fn settle(&mut self) {
        self.payback_epochs = SETTLED_EPOCHS;
        self.prices.clear();
        self.segments.iter_mut().for_each(|segment| segment.hysteresis = None);
    }

    pub(super) fn has_rules(&self) -> bool {
        self.segments.iter().any(|segment| segment.constraints != PlacementConstraints::default())
    }

    /// Description of a rule.
    pub(super) fn rule(&self, position: Option<u32>) -> &str {
        position.and_then(|position| self.rules.get(position as usize)).map_or("a rule", String::as_str)
    }
}

/// One move of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedMove {
    /// Position in [`Inputs::segments`].
    pub segment: usize,
    /// Its current tier.
    pub from: TierId,
    /// Its new tier; the current one where only the form changes.
    pub to: TierId,
    /// The form of its copy; plain at home.
    pub from_form: Form,
    /// The form of the new copy; plain at home.
    pub to_form: Form,
    /// Bytes of the new copy; of the one that is dropped where it goes home.
    pub bytes: u64,
    /// Reading time saved, in microseconds per epoch; negative when it makes room for others.
    pub benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// The reason, in one sentence.
    pub reason: String,
}

impl PlannedMove {
    /// Where the segment lies.
    pub fn from_place(&self) -> Place {
        Place { tier: self.from, form: self.from_form }
    }

    /// Where it goes.
    pub fn to_place(&self) -> Place {
        Place { tier: self.to, form: self.to_form }
    }

    /// True for a move to a place where it is read faster: to a faster tier, or from the packed form to the plain one.
    pub(super) fn rises(&self) -> bool {
        self.to_place() < self.from_place()
    }
}

/// The plan of one epoch.
#[derive(Debug, Clone)]
pub struct EpochPlan {
    /// First the moves that make room (slowest target first, least loss first; copies that are packed where they lie are
    /// among them), then promotions by falling benefit per byte.
    pub moves: Vec<PlannedMove>,
    /// Expected reading time before the moves, in microseconds per epoch.
    pub before_us: f64,
    /// Expected reading time after the moves.
    pub after_us: f64,
    /// `after_us` and the amortised time of the moves.
    pub objective_us: f64,
    /// Lower bound of the objective.
    pub bound_us: f64,
    /// (objective - bound) / objective.
    pub gap: f64,
    /// Prices at which the bound was found, of a byte of each tier but the home, in microseconds per epoch; empty where no
    /// bound is proven.
    pub bound_prices: Vec<f64>,
    /// The method that found it.
    pub method: Method,
    /// Price of each tier with a budget.
    pub prices: Vec<TierPrice>,
    /// Positions of the segments whose rule (a pin, or an exclusion from home) is not met because budgets are too small.
    pub given_way: Vec<usize>,
    /// By segment, whether it is to have an image on the device; empty where no image is weighed.
    pub has_image: Vec<bool>,
    /// Changes of images: first those that make room, then copies by falling benefit per byte.
    pub images: Vec<PlannedImage>,
}

impl EpochPlan {
    /// Prices from which the next plan may start: see [`Inputs::prices`].
    pub(super) fn next_prices(&self) -> Vec<f64> {
        let prices: Vec<f64> = self.prices.iter().map(|price| price.price_ns_per_byte / 1e3).collect();
        if prices.iter().any(|price| *price > 0.0) { prices } else { Vec::new() }
    }
}

/// Plans one epoch with the policy `optimal`; see [`plan_by`].
pub fn plan<'a>(inputs: &Inputs, work: impl Into<Work<'a>>) -> Result<EpochPlan> {
    plan_by(PolicyKind::Optimal.policy(0).as_ref(), inputs, work)
}

/// Plans one epoch. Fails with [`Error::Invalid`] without tiers, with too many, or when costs are not numbers.
pub fn plan_by<'a>(policy: &dyn Policy, inputs: &Inputs, work: impl Into<Work<'a>>) -> Result<EpochPlan> {
    plan_within(policy, inputs, work.into())
}

fn plan_within(policy: &dyn Policy, inputs: &Inputs, work: Work<'_>) -> Result<EpochPlan> {
    let tiers = inputs.tiers.len();
    if tiers == 0 || tiers > MAX_TIERS {
        return Err(Error::Invalid(format!("placement works on 1 to {MAX_TIERS} tiers, not on {tiers}")));
    }
    let places = PlaceOptions::for_inputs(inputs);
    let Choice { solution, scores, placed, has_image, reserved } = choose(policy, inputs, places, work)?;
    let Effects { mut moves, before_us, after_us, used } = effects(inputs, &placed, &has_image);
    let mut prices: Vec<TierPrice> = inputs
        .tiers
        .iter()
        .zip(&used)
        .zip(&solution.prices)
        .filter_map(|((tier, (before, planned)), price)| {
            let budget_bytes = tier.budget_bytes?;
            let before_bytes = *before;
            let planned_bytes = *planned;
            Some(TierPrice {
                tier: tier.name.clone(),
                budget_bytes,
                before_bytes,
                planned_bytes,
                price_ns_per_byte: price * 1e3,
            })
        })
        .collect();
    let mut images = images::changes(inputs, &has_image);
    if let Some(price) = images::price(inputs, &has_image, &solution.prices) {
        images.iter_mut().for_each(|planned| planned.reason = images::reason(policy.kind(), inputs, planned, &price));
        prices.push(price);
    }
    for planned in &mut moves {
        let by_rule = rule_reason(policy.kind(), inputs, planned, &reserved);
        planned.reason = match (by_rule, inputs.segments.get(planned.segment)) {
            (Some(reason), _) => reason,
            (None, Some(segment)) if segment.view.kept_off_by.is_some() && planned.to > planned.from => {
                format!("leaves DRAM{}", inputs.view_text(segment))
            }
            (None, Some(segment)) => {
                let score = scores.get(planned.segment).copied().flatten();
                let context = ReasonContext { inputs, planned, segment, score, prices: &prices };
                let form = packed_text(inputs, segment, planned.to_place());
                policy.reason(&context) + &form + &inputs.view_text(segment)
            }
            (None, None) => continue,
        };
    }
    moves.sort_by(|a, b| move_order(inputs, a, b));
    let objective_us = solution.objective;
    let bound_us = solution.bound;
    Ok(EpochPlan {
        moves,
        before_us,
        after_us,
        objective_us,
        bound_us,
        gap: solution.gap,
        bound_prices: solution.bound_prices,
        method: solution.method,
        prices,
        given_way: reserved.given_way,
        has_image,
        images,
    })
}

/// What follows from the places and images that a plan chooses.
struct Effects {
    /// The moves, without their reasons.
    moves: Vec<PlannedMove>,
    /// Expected reading time before them, in microseconds per epoch.
    before_us: f64,
    /// The same after them.
    after_us: f64,
    /// By tier, bytes before and after.
    used: Vec<(u64, u64)>,
}

fn effects(inputs: &Inputs, placed: &[Place], has_image: &[bool]) -> Effects {
    let mut before_us = 0.0;
    let mut after_us = 0.0;
    let mut moves = Vec::new();
    let mut used = vec![(0_u64, 0_u64); inputs.tiers.len()];
    for (index, (segment, to)) in inputs.segments.iter().zip(placed).enumerate() {
        let from = segment.place();
        let to = *to;
        let mut from_us = expected_us(inputs, segment, from);
        let mut to_us = if to == from { from_us } else { expected_us(inputs, segment, to) };
        before_us += from_us;
        if !has_image.is_empty() {
            let from_saved_us = images::saved_us(inputs, segment, from);
            before_us -= if segment.has_image() { from_saved_us } else { 0.0 };
            // A move of a segment that will have an image saves time of those reads alone that kernels do not make.
            if has_image.get(index).copied().unwrap_or(false) {
                from_us -= from_saved_us;
                to_us -= images::saved_us(inputs, segment, to);
            }
        }
        after_us += to_us;
        if let Some((before, _)) = used.get_mut(usize::from(from.tier.0)) {
            *before += segment.charged_at(from);
        }
        if let Some((_, planned)) = used.get_mut(usize::from(to.tier.0)) {
            *planned += segment.charged_at(to);
        }
        if from != to {
            moves.push(planned_move(inputs, index, segment, [from, to], from_us - to_us));
        }
    }
    Effects { moves, before_us, after_us, used }
}

/// What a plan chooses.
struct Choice {
    /// The solution; its bound is that of places and images together.
    solution: Solution,
    /// Scores by which a policy ranked.
    scores: Vec<Option<f64>>,
    /// By segment: its place.
    placed: Vec<Place>,
    /// By segment: whether it has an image; empty where no image is weighed.
    has_image: Vec<bool>,
    reserved: Reserved,
}

/// Lets the policy choose a place for each segment and, where images are weighed, whether it has one. The policy `optimal`
/// weighs both together.
fn choose(policy: &dyn Policy, inputs: &Inputs, places: PlaceOptions, work: Work<'_>) -> Result<Choice> {
    let is_joint = policy.kind() == PolicyKind::Optimal;
    let weighed = if is_joint { places } else { places.without_images() };
    let problem = instance(inputs, weighed);
    let reserved = reserve(inputs, |segment, place| problem.cost(segment, weighed.option(place)));
    let Decision { solution, scores } = choose_residual(policy, inputs, weighed, &problem, &reserved, work)?;
    let chosen = inputs.segments.iter().zip(&solution.choice);
    let placed: Vec<Place> = chosen.map(|(segment, option)| weighed.place(segment, usize::from(*option))).collect();
    let Some(room) = images::ImageRoom::for_options(inputs, places) else {
        return Ok(Choice { solution, scores, placed, has_image: Vec::new(), reserved });
    };
    if is_joint {
        let options = solution.choice.iter().enumerate();
        let has_image = |(at, option): (usize, &u8)| room.is_pinned(at) || places.has_image(usize::from(*option));
        let has_image = options.map(has_image).collect();
        return Ok(Choice { solution, scores, placed, has_image, reserved });
    }
    let has_image = images::choose_apart(policy, inputs, &room, &placed, work)?;
    // A pinned image is given, so it is no part of the option.
    let with_image = has_image.iter().enumerate().map(|(at, has_image)| *has_image && !room.is_pinned(at));
    let choice = placed.iter().zip(with_image).map(|(place, with)| places.option_with(*place, with) as u8).collect();
    let Solution { objective, bound, gap, bound_prices, .. } = judge(&instance(inputs, places), choice, work)?;
    let solution = Solution { objective, bound, gap, bound_prices, ..solution };
    Ok(Choice { solution, scores, placed, has_image, reserved })
}

/// The move of a segment from one place to another, without its reason.
pub(super) fn planned_move(
    inputs: &Inputs,
    index: usize,
    segment: &SegmentInput,
    [from, to]: [Place; 2],
    benefit_us: f64,
) -> PlannedMove {
    let copy = if to.tier == inputs.home() { from } else { to };
    let bytes = segment.image_bytes(copy.form);
    PlannedMove {
        segment: index,
        from: from.tier,
        to: to.tier,
        from_form: from.form,
        to_form: to.form,
        bytes,
        benefit_us,
        benefit_ns_per_byte: benefit_us * 1e3 / worth_bytes(segment, from, to) as f64,
        reason: String::new(),
    }
}

/// The bytes by which a benefit is divided: those of the copy or, where it only changes its form, those by which the forms differ.
pub(super) fn worth_bytes(segment: &SegmentInput, from: Place, to: Place) -> u64 {
    let faster = from.min(to);
    let bytes = segment.image_bytes(faster.form);
    let differs = bytes.abs_diff(segment.image_bytes(from.max(to).form));
    if from.tier == to.tier { differs.max(1) } else { bytes.max(1) }
}

/// Finds a lower bound of the objective of a plan of `inputs` by a solver that is not ours. `None` where that has no answer,
/// or one above the objective, which contradicts itself and is logged. Builds the problem anew, so that a plan need not keep
/// it until its moves have ended.
pub(super) fn certified_bound_us(inputs: &Inputs, plan: &EpochPlan) -> Option<f64> {
    let places = PlaceOptions::for_inputs(inputs);
    let mut whole = instance(inputs, places);
    forbid_by_rules(&mut whole, inputs, places, &plan.given_way);
    let bound_us = certify(&whole, &plan.bound_prices)?;
    let objective_us = plan.objective_us;
    if bound_us > objective_us + CONTRADICTION * objective_us.abs() {
        tracing::warn!(bound_us, objective_us, "the second bound of a placement is above its cost; it is not used");
        return None;
    }
    Some(bound_us)
}

/// Builds the problem to solve: a place that the forms of a segment do not allow costs an infinite time, as does an image that
/// it cannot have.
fn instance(inputs: &Inputs, places: PlaceOptions) -> Instance {
    let home = inputs.home();
    let memory = inputs.tiers.iter().take(usize::from(home.0));
    let room = images::ImageRoom::for_options(inputs, places);
    let budgets = memory.map(|tier| tier.budget_bytes.map_or(f64::INFINITY, |bytes| bytes as f64));
    let capacities = budgets.chain(room.as_ref().map(|room| room.free_bytes as f64)).collect();
    let options = places.for_solver();
    let mut instance = Instance {
        capacities,
        costs: Vec::with_capacity(inputs.segments.len() * options.count()),
        bytes: Vec::with_capacity(inputs.segments.len() * options.cells()),
        options,
    };
    for (at, segment) in inputs.segments.iter().enumerate() {
        for option in 0..places.count() {
            let place = places.place(segment, option);
            let has_image = places.has_image(option);
            let image_us = match &room {
                Some(room) => room.cost_us(inputs, at, place, has_image),
                None => Some(0.0),
            };
            let cost_us = |image_us: f64| cost_parts(inputs, segment, place).sum_us() + image_us;
            let open = image_us.filter(|_| segment.allows_form(place));
            instance.costs.push(open.map_or(f64::INFINITY, cost_us));
            if place.tier < home {
                instance.bytes.push(segment.charged_at(place) as f64);
            }
            if has_image {
                instance.bytes.push(segment.image_charged_bytes() as f64);
            }
        }
    }
    instance
}

/// The parts of the cost of a segment on a tier, in microseconds per epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct CostParts {
    /// Time of its reads, those of hot views included.
    pub(super) read_us: f64,
    /// Cost of a rule that prefers another tier, and the extra weight of the reads of a hot view's columns.
    pub(super) preference_us: f64,
    /// Time of the move there, spread over the epochs within which it must pay back.
    pub(super) move_us: f64,
    /// Time that running statements would lose because they expect to read it from its current, faster tier.
    pub(super) delay_us: f64,
}

impl CostParts {
    /// The sum of all parts.
    pub(super) fn sum_us(&self) -> f64 {
        self.read_us + self.preference_us + self.move_us + self.delay_us
    }
}

/// Computes the cost of `segment` at a place, without the price of its bytes there.
pub(super) fn cost_parts(inputs: &Inputs, segment: &SegmentInput, place: Place) -> CostParts {
    let read_us = expected_us(inputs, segment, place);
    let reversal_us =
        |_| hysteresis::reversal_us(segment, place, read_us - expected_us(inputs, segment, segment.place()));
    let preference = if segment.view.read_by.is_some() { PREFERENCE } else { 0.0 };
    CostParts {
        read_us,
        preference_us: unmet_preference_us(inputs, segment, place) + read_us * preference,
        move_us: move_us(inputs, segment, place) / inputs.payback_epochs.max(1e-3)
            + segment.hysteresis.map_or(0.0, reversal_us),
        delay_us: delay_us(inputs, segment, place),
    }
}

/// Cost of an unmet preference, in microseconds per epoch: `segment` lies on another tier than the preferred one, or there in
/// another form than the preferred one.
fn unmet_preference_us(inputs: &Inputs, segment: &SegmentInput, place: Place) -> f64 {
    let form = segment.constraints.preferred_form;
    let is_met = |preferred: TierId| preferred == place.tier && form.is_none_or(|form| form == place.form);
    match (segment.constraints.preferred, inputs.tiers.last()) {
        (Some(preferred), Some(home)) if !is_met(preferred) => home.cost.sweep_us(segment.home_bytes),
        _ => 0.0,
    }
}

/// Time of the segment's reads at a place, by its heat alone, in microseconds per epoch.
pub(super) fn reading_us(inputs: &Inputs, segment: &SegmentInput, place: Place) -> f64 {
    reads_us(inputs, segment, &segment.heat, place)
}

/// Expected time of the segment's reads at a place, in microseconds per epoch: by its heat and the extra reads of hot views.
pub(super) fn expected_us(inputs: &Inputs, segment: &SegmentInput, place: Place) -> f64 {
    let extra_us = match segment.view.extra_reads.total() > 0.0 {
        true => reads_us(inputs, segment, &segment.view.extra_reads, place),
        false => 0.0,
    };
    reading_us(inputs, segment, place) + extra_us
}

/// Time of the reads in `heat` of the segment at a place, in microseconds per epoch.
pub(super) fn reads_us(inputs: &Inputs, segment: &SegmentInput, heat: &SegmentHeat, place: Place) -> f64 {
    let Some(tier) = inputs.tiers.get(usize::from(place.tier.0)) else { return 0.0 };
    // Plans ask this of every place of every segment: the profile of a tier is not copied for a plain one.
    match packed_values(inputs, segment, place) {
        Some(_) => place_cost(inputs, segment, place).map_or(0.0, |cost| cost.reads_us(heat)),
        None => tier.cost.expected_us(heat, extent(inputs, segment, place)),
    }
}

/// The cost of the segment's reads at a place; `None` for a tier that does not exist.
pub(super) fn place_cost(inputs: &Inputs, segment: &SegmentInput, place: Place) -> Option<PlaceCost> {
    let tier = inputs.tiers.get(usize::from(place.tier.0))?;
    let extent = extent(inputs, segment, place);
    Some(match packed_values(inputs, segment, place) {
        Some(values) => PlaceCost::packed(tier.cost, extent, inputs.form_cost, values),
        None => PlaceCost::plain(tier.cost, extent),
    })
}

/// The values that reads unpack at a place; `None` where its bytes are plain.
fn packed_values(inputs: &Inputs, segment: &SegmentInput, place: Place) -> Option<PackedValues> {
    match (place.tier == inputs.home(), &segment.packed) {
        (true, _) => segment.packed_at_home,
        (false, Some(packed)) if place.form == Form::Packed => Some(packed.values),
        (false, _) => None,
    }
}

/// The form of the bytes that are read at a place: that of the copy, or at home that of the stored bytes.
pub(super) fn form_at(inputs: &Inputs, segment: &SegmentInput, place: Place) -> Form {
    let is_home = place.tier == inputs.home();
    if is_home && segment.packed_at_home.is_some() { Form::Packed } else { place.form }
}

/// Benefit of `place` against the home, in microseconds per epoch: reading time and preferences of users.
pub(super) fn benefit_us(inputs: &Inputs, segment: &SegmentInput, place: Place) -> f64 {
    let cost_us = |place: Place| reading_us(inputs, segment, place) + unmet_preference_us(inputs, segment, place);
    cost_us(Place::plain(inputs.home())) - cost_us(place)
}

/// Microseconds to move `segment` to a place: read it where it lies, change its form where that differs, and write it there; a
/// release to the home is nearly free.
fn move_us(inputs: &Inputs, segment: &SegmentInput, to: Place) -> f64 {
    let from = segment.place();
    if from == to {
        return 0.0;
    }
    if to.tier == inputs.home() {
        return RELEASE_US;
    }
    let sweep = |place: Place| {
        let tier = inputs.tiers.get(usize::from(place.tier.0));
        tier.map_or(0.0, |tier| tier.cost.sweep_us(read_bytes(inputs, segment, place)))
    };
    RELEASE_US + sweep(from) + change_of_form_us(inputs, segment, to.form) + sweep(to)
}

/// Microseconds of a core to make an image in a form of the bytes where `segment` lies; nothing where they are in this form: a
/// packed copy of a home that is packed is a copy of its bytes.
pub(super) fn change_of_form_us(inputs: &Inputs, segment: &SegmentInput, to: Form) -> f64 {
    let Some(values) = segment.values() else { return 0.0 };
    match (form_at(inputs, segment, segment.place()), to) {
        (Form::Plain, Form::Packed) => inputs.form_cost.packing_us(segment.rows, values),
        (Form::Packed, Form::Plain) => inputs.form_cost.plain_again_us(segment.rows, values),
        (Form::Plain, Form::Plain) | (Form::Packed, Form::Packed) => 0.0,
    }
}

/// Bytes that a whole read of the segment moves at this place.
pub(super) fn read_bytes(inputs: &Inputs, segment: &SegmentInput, place: Place) -> u64 {
    if place.tier == inputs.home() { segment.home_bytes } else { segment.image_bytes(place.form) }
}

/// Size of the segment at this place, for the cost profile of its tier.
pub(super) fn extent(inputs: &Inputs, segment: &SegmentInput, place: Place) -> Extent {
    let whole = place.tier == inputs.home() && segment.whole_at_home;
    Extent { bytes: read_bytes(inputs, segment, place), rows: segment.rows, whole }
}

/// Orders moves as in [`EpochPlan::moves`].
fn move_order(inputs: &Inputs, a: &PlannedMove, b: &PlannedMove) -> Ordering {
    let demotion = |m: &PlannedMove| !m.rises();
    let key = |m: &PlannedMove| inputs.segments.get(m.segment).map(|segment| segment.key);
    let rank = demotion(b).cmp(&demotion(a));
    let target = if demotion(a) && demotion(b) { b.to.cmp(&a.to) } else { Ordering::Equal };
    rank.then(target).then(b.benefit_ns_per_byte.total_cmp(&a.benefit_ns_per_byte)).then_with(|| key(a).cmp(&key(b)))
}

#[cfg(test)]
mod tests;
