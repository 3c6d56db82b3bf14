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
//! Rules of users come before costs: see [`super::constraints`] and [`super::reserved`]. A preference that is not met
//! costs as much as one more scan of the segment from its home per epoch.

use std::cmp::Ordering;

use terrace_model::{Error, Result, TierId};
use terrace_storage::tier::codec::Form;

use super::constraints::PlacementConstraints;
use super::cost::{Extent, TierCost};
use super::expected_reads::delay_us;
use super::format::{bytes, figure, over_budget, time};
use super::hysteresis::{self, Hysteresis};
use super::policy::{Decision, Policy, PolicyKind, ReasonContext};
use super::record::TierPrice;
use super::reserved::{Reserved, reserve};
use super::residual::{choose_residual, forbid_by_rules};
use super::solver::{Instance, Method, Work, certify};
use super::views::{PREFERENCE, ViewInfluence, ViewInput};
use crate::heat::decay::{SegmentHeat, SegmentKey};
pub use terrace_model::MAX_TIERS;

/// Cost of dropping a copy, in microseconds: small, but above 0, so that a plan does not drop copies without need.
const RELEASE_US: f64 = 1.0;

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

/// A segment as the plan sees it.
#[derive(Debug, Clone)]
pub struct SegmentInput {
    /// The key of the segment.
    pub key: SegmentKey,
    /// Rows.
    pub rows: u32,
    /// Bytes of its image in memory.
    pub bytes: u64,
    /// The form of this image.
    pub form: Form,
    /// Bytes stored at home.
    pub stored_bytes: u64,
    /// Bytes that a read from home takes; the cost of decompression is included, in bytes of the home device.
    pub home_bytes: u64,
    /// True when every read from home reads the whole segment.
    pub whole_at_home: bool,
    /// Bytes it would be charged on each tier, in order of [`TierId`]; 0 at home.
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
}

impl SegmentInput {
    /// Bytes it would be charged on a tier.
    pub(super) fn charged_on(&self, tier: TierId) -> u64 {
        self.charged_bytes.get(usize::from(tier.0)).copied().unwrap_or(0)
    }
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
}

impl Inputs {
    /// The tier where every segment has its durable bytes.
    pub(super) fn home(&self) -> TierId {
        TierId(self.tiers.len().saturating_sub(1) as u8)
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
    /// Its new tier.
    pub to: TierId,
    /// Bytes of its image.
    pub bytes: u64,
    /// Reading time saved, in microseconds per epoch; negative when it makes room for others.
    pub benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// The reason, in one sentence.
    pub reason: String,
}

/// The plan of one epoch.
#[derive(Debug, Clone)]
pub struct EpochPlan {
    /// First the moves that make room (slowest target first, least loss first), then promotions by falling benefit per
    /// byte.
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
    let (instance, times) = instance(inputs);
    let reserved = reserve(inputs, |segment, tier| instance.cost(segment, usize::from(tier.0)));
    let Decision { solution, scores } = choose_residual(policy, inputs, &instance, &reserved, work)?;
    let time_on = |row: &[f64], tier: usize| row.get(tier).copied().unwrap_or(0.0);
    let mut before_us = 0.0;
    let mut after_us = 0.0;
    let mut moves = Vec::new();
    let mut used = vec![(0_u64, 0_u64); tiers];
    for (index, ((segment, choice), row)) in
        inputs.segments.iter().zip(&solution.choice).zip(times.chunks_exact(tiers)).enumerate()
    {
        let from = usize::from(segment.current.0);
        let to = usize::from(*choice);
        before_us += time_on(row, from);
        after_us += time_on(row, to);
        let charged = |tier: usize| segment.charged_bytes.get(tier).copied().unwrap_or(0);
        if let Some((before, _)) = used.get_mut(from) {
            *before += charged(from);
        }
        if let Some((_, planned)) = used.get_mut(to) {
            *planned += charged(to);
        }
        if from != to {
            let benefit_us = time_on(row, from) - time_on(row, to);
            moves.push(PlannedMove {
                segment: index,
                from: segment.current,
                to: TierId(*choice),
                bytes: segment.bytes,
                benefit_us,
                benefit_ns_per_byte: benefit_us * 1e3 / segment.bytes.max(1) as f64,
                reason: String::new(),
            });
        }
    }
    let prices: Vec<TierPrice> = inputs
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
                policy.reason(&context) + &inputs.view_text(segment)
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
    })
}

/// Finds a lower bound of the objective of a plan of `inputs` by a solver that is not ours. `None` where that has no answer,
/// or one above the objective, which contradicts itself and is logged. Builds the problem anew, so that a plan need not keep
/// it until its moves have ended.
pub(super) fn certified_bound_us(inputs: &Inputs, plan: &EpochPlan) -> Option<f64> {
    let (mut whole, _) = instance(inputs);
    forbid_by_rules(&mut whole, inputs, &plan.given_way);
    let bound_us = certify(&whole, &plan.bound_prices)?;
    let objective_us = plan.objective_us;
    if bound_us > objective_us + CONTRADICTION * objective_us.abs() {
        tracing::warn!(bound_us, objective_us, "the second bound of a placement is above its cost; it is not used");
        return None;
    }
    Some(bound_us)
}

/// Builds the problem to solve. Also returns the reading times alone (row-major, microseconds per epoch).
fn instance(inputs: &Inputs) -> (Instance, Vec<f64>) {
    let tiers = inputs.tiers.len();
    let memory = inputs.tiers.iter().take(usize::from(inputs.home().0));
    let capacities = memory.map(|tier| tier.budget_bytes.map_or(f64::INFINITY, |bytes| bytes as f64)).collect();
    let mut instance = Instance::by_tier(capacities);
    instance.costs.reserve(inputs.segments.len() * tiers);
    instance.bytes.reserve(inputs.segments.len() * instance.options.cells());
    let mut times = Vec::with_capacity(inputs.segments.len() * tiers);
    for segment in &inputs.segments {
        for id in 0..tiers {
            let parts = cost_parts(inputs, segment, id);
            times.push(parts.read_us);
            instance.costs.push(parts.sum_us());
        }
        let charged = segment.charged_bytes.iter().take(instance.options.cells());
        instance.bytes.extend(charged.map(|bytes| *bytes as f64));
    }
    (instance, times)
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

/// Computes the cost of `segment` on tier `id`, without the price of its bytes there.
pub(super) fn cost_parts(inputs: &Inputs, segment: &SegmentInput, id: usize) -> CostParts {
    let tier = TierId(id as u8);
    let read_us = expected_us(inputs, segment, tier);
    let reversal_us =
        |_| hysteresis::reversal_us(segment, tier, read_us - expected_us(inputs, segment, segment.current));
    let preference = if segment.view.read_by.is_some() { PREFERENCE } else { 0.0 };
    CostParts {
        read_us,
        preference_us: unmet_preference_us(inputs, segment, tier) + read_us * preference,
        move_us: move_us(inputs, segment, id) / inputs.payback_epochs.max(1e-3)
            + segment.hysteresis.map_or(0.0, reversal_us),
        delay_us: delay_us(inputs, segment, tier),
    }
}

/// Cost of an unmet preference, in microseconds per epoch: `segment` lies on another tier than the preferred one.
fn unmet_preference_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    match (segment.constraints.preferred, inputs.tiers.last()) {
        (Some(preferred), Some(home)) if preferred != tier => home.cost.sweep_us(segment.home_bytes),
        _ => 0.0,
    }
}

/// Time of the segment's reads on a tier, by its heat alone, in microseconds per epoch.
pub(super) fn reading_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    reads_us(inputs, segment, &segment.heat, tier)
}

/// Expected time of the segment's reads on a tier, in microseconds per epoch: by its heat and the extra reads of hot views.
pub(super) fn expected_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    let extra_us = match segment.view.extra_reads.total() > 0.0 {
        true => reads_us(inputs, segment, &segment.view.extra_reads, tier),
        false => 0.0,
    };
    reading_us(inputs, segment, tier) + extra_us
}

/// Time of the reads in `heat` of the segment on a tier, in microseconds per epoch.
pub(super) fn reads_us(inputs: &Inputs, segment: &SegmentInput, heat: &SegmentHeat, tier: TierId) -> f64 {
    let at = usize::from(tier.0);
    let known = inputs.tiers.get(at);
    known.map_or(0.0, |tier| tier.cost.expected_us(heat, extent(inputs, segment, at)))
}

/// Benefit of `tier` against the home, in microseconds per epoch: reading time and preferences of users.
pub(super) fn benefit_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    let cost_us = |tier: TierId| reading_us(inputs, segment, tier) + unmet_preference_us(inputs, segment, tier);
    cost_us(inputs.home()) - cost_us(tier)
}

/// Microseconds to move `segment` to tier `to`: read it from its tier and write it there; a release to the home is nearly
/// free.
fn move_us(inputs: &Inputs, segment: &SegmentInput, to: usize) -> f64 {
    let from = usize::from(segment.current.0);
    if from == to {
        return 0.0;
    }
    if to + 1 == inputs.tiers.len() {
        return RELEASE_US;
    }
    let sweep =
        |id: usize| inputs.tiers.get(id).map_or(0.0, |tier| tier.cost.sweep_us(read_bytes(inputs, segment, id)));
    RELEASE_US + sweep(from) + sweep(to)
}

/// Bytes that a whole read of the segment moves on this tier.
pub(super) fn read_bytes(inputs: &Inputs, segment: &SegmentInput, tier: usize) -> u64 {
    if tier + 1 == inputs.tiers.len() { segment.home_bytes } else { segment.bytes }
}

/// Size of the segment on this tier, for its cost profile.
pub(super) fn extent(inputs: &Inputs, segment: &SegmentInput, tier: usize) -> Extent {
    let whole = tier + 1 == inputs.tiers.len() && segment.whole_at_home;
    Extent { bytes: read_bytes(inputs, segment, tier), rows: segment.rows, whole }
}

/// Orders moves as in [`EpochPlan::moves`].
fn move_order(inputs: &Inputs, a: &PlannedMove, b: &PlannedMove) -> Ordering {
    let demotion = |m: &PlannedMove| m.to > m.from;
    let key = |m: &PlannedMove| inputs.segments.get(m.segment).map(|segment| segment.key);
    let rank = demotion(b).cmp(&demotion(a));
    let target = if demotion(a) && demotion(b) { b.to.cmp(&a.to) } else { Ordering::Equal };
    rank.then(target).then(b.benefit_ns_per_byte.total_cmp(&a.benefit_ns_per_byte)).then_with(|| key(a).cmp(&key(b)))
}

/// The reason of a move that a rule demands; `None` for other moves.
fn rule_reason(policy: PolicyKind, inputs: &Inputs, planned: &PlannedMove, reserved: &Reserved) -> Option<String> {
    let segment = inputs.segments.get(planned.segment)?;
    let constraints = &segment.constraints;
    let home = inputs.home();
    let name = |tier: TierId| inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str());
    if reserved.given_way.binary_search(&planned.segment).is_ok() {
        let rule = inputs.rule(constraints.binding_rule());
        return Some(format!(
            "the budgets cannot hold all that rules keep in memory; {rule} is not met for this segment"
        ));
    }
    if constraints.pin.is_some() && constraints.only() == Some(planned.to) {
        return Some(format!("pinned: {}", inputs.rule(constraints.pin)));
    }
    if constraints.is_closed(planned.from) {
        return Some(format!("{} is drained", name(planned.from)));
    }
    if !constraints.allows(planned.from) && segment.view.kept_off_by.is_none() {
        let from = name(planned.from);
        let rule = inputs.rule(constraints.binding_rule());
        return Some(match planned.from == home {
            true => format!("needs a copy in memory besides {from}: {rule}"),
            false => format!("excluded from {from}: {rule}"),
        });
    }
    // The preference is the reason of a move that would not have paid back by itself.
    let is_preferred = constraints.preferred == Some(planned.to);
    let does_not_pay =
        planned.benefit_us * inputs.payback_epochs <= move_us(inputs, segment, usize::from(planned.to.0));
    let uses_costs = matches!(policy, PolicyKind::Optimal | PolicyKind::Density);
    (is_preferred && (does_not_pay || !uses_costs))
        .then(|| format!("preferred: {}", inputs.rule(constraints.preference)))
}

/// The reason of a move that follows from costs and prices.
pub(super) fn reason(inputs: &Inputs, planned: &PlannedMove, prices: &[TierPrice]) -> String {
    let name = |tier: TierId| inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str());
    let price = |tier: TierId| prices.get(usize::from(tier.0));
    let Some(segment) = inputs.segments.get(planned.segment) else { return String::new() };
    let from = name(planned.from);
    let to = name(planned.to);
    let expected = segment.heat_with_views();
    let reads = reads_text(&expected);
    if planned.to < planned.from {
        let room = match price(planned.to) {
            // The price is the worth of the last byte that the tier takes: a move that sets the price may be worth less.
            Some(price) if price.price_ns_per_byte > planned.benefit_ns_per_byte => {
                format!("at a price of {} ns", figure(price.price_ns_per_byte))
            }
            Some(price) if price.price_ns_per_byte > 0.0 => {
                format!("above the price of {} ns", figure(price.price_ns_per_byte))
            }
            _ => format!("and {to} has room"),
        };
        let saved = time(planned.benefit_us);
        let worth = figure(planned.benefit_ns_per_byte);
        return format!("hot: {reads}; {to} saves {saved} an epoch against {from}, worth {worth} ns per byte, {room}");
    }
    let full = price(planned.from).map_or_else(String::new, |price| {
        let over = price.before_bytes.saturating_sub(price.budget_bytes);
        match over {
            0 => format!("other segments make better use of its {} on {from}", bytes(segment.bytes)),
            over => over_budget(from, over, price.budget_bytes),
        }
    });
    if expected.total() <= 0.0 {
        return format!("cold: not read in recent epochs, and {full}");
    }
    let loss = -planned.benefit_us;
    if loss <= 0.0 {
        return format!("{reads}; {to} serves them faster than {from}, by {} an epoch", time(planned.benefit_us));
    }
    let worth = figure(-planned.benefit_ns_per_byte);
    let price = price(planned.from).map_or(0.0, |price| price.price_ns_per_byte);
    let against = if price > 0.0 { format!(", against a price of {} ns", figure(price)) } else { String::new() };
    format!(
        "cooler: {reads}; {from} saves {} an epoch against {to}, worth {worth} ns per byte{against}; {full}",
        time(loss)
    )
}

/// Describes the accesses, such as "9.0 sequential reads per epoch".
pub(super) fn reads_text(heat: &SegmentHeat) -> String {
    match heat.dominant() {
        None => "no reads per epoch".into(),
        Some((pattern, accesses)) => {
            let others = heat.total() - accesses;
            let more = if others > accesses * 0.01 {
                format!(" and {} others", figure(f64::from(others)))
            } else {
                String::new()
            };
            format!("{} {} reads{more} per epoch", figure(f64::from(accesses)), pattern.name())
        }
    }
}

#[cfg(test)]
mod tests;
