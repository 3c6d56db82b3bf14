//! Planning one epoch: from heat, costs and budgets to an ordered list of moves, each with its reason. Pure.
//!
//! The cost of a segment on a tier is the expected time of its accesses there ([`TierCost::expected_us`]) plus, where
//! it does not lie now, the time of the move spread over `payback_epochs`: a move that does not pay back within them is
//! not made, and a segment that is as good elsewhere stays. Segments that nobody reads gain nothing anywhere, so they
//! are the first to make room and are never promoted. One that moved a short time ago does not turn back for
//! little: see [`super::hold`]. One that a running statement is about to read does not leave for little either: see
//! [`super::agenda`].
//!
//! That is how the policy `optimal` sees it; [`super::policy`] has others. What holds for all of them is decided here.
//!
//! Rules of users come before costs: see [`super::duty`] and [`super::reserve`]. A preference that is not met costs as much
//! as one more scan of the segment from its home per epoch.

use std::cmp::Ordering;

use super::agenda::ahead_us;
use super::cost::{Extent, TierCost};
use super::duty::Duty;
use super::hold::{self, Hold};
use super::policy::{Decision, Policy, PolicyKind, Why};
use super::record::TierPrice;
use super::reserve::{Reserved, reserve};
use super::rest::choose_rest;
use super::solver::{Instance, Method, Work};
use super::views::{PREFERENCE, ViewInput, ViewPart};
use super::words::{bytes, figure, over_budget, time};
use crate::error::{Error, Result};
use crate::heat::decay::{SegmentHeat, SegmentKey};
pub use crate::tier::MAX_TIERS;
use crate::tier::TierId;

/// Taking a copy off its tier costs next to nothing, but more than leaving it.
const RELEASE_US: f64 = 1.0;

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
    /// Which one.
    pub key: SegmentKey,
    /// Rows.
    pub rows: u32,
    /// Bytes of its image.
    pub bytes: u64,
    /// Bytes read for it from home, and what decompressing them costs, in bytes of that device.
    pub home_bytes: u64,
    /// A read from home is always of all of it.
    pub whole_at_home: bool,
    /// Bytes it would be charged on each tier, in order of [`TierId`]; 0 at home.
    pub charged_bytes: [u64; MAX_TIERS],
    /// Where it lies.
    pub current: TierId,
    /// Expected accesses.
    pub heat: SegmentHeat,
    /// What rules ask of it, by their positions in [`Inputs::rules`].
    pub duty: Duty,
    /// Where it should not turn back to, because it moved a short time ago.
    pub hold: Option<Hold>,
    /// What running statements are about to read of it where it lies in memory: see [`super::agenda`].
    pub ahead: SegmentHeat,
    /// What hot views make of it.
    pub view: ViewPart,
}

impl SegmentInput {
    /// Bytes it would be charged on a tier.
    pub(super) fn charged_on(&self, tier: TierId) -> u64 {
        self.charged_bytes.get(usize::from(tier.0)).copied().unwrap_or(0)
    }
}

/// All a plan depends on.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Fastest first, the home last.
    pub tiers: Vec<TierInput>,
    /// In a stable order; ties are broken by it.
    pub segments: Vec<SegmentInput>,
    /// Epochs within which a move must pay back; above 0.
    pub payback_epochs: f64,
    /// Rules in words, in the order in which they were made.
    pub rules: Vec<String>,
    /// What a byte of each tier was worth in the last plan, in microseconds per epoch, from where the solver starts; empty:
    /// from nothing.
    pub prices: Vec<f64>,
    /// The hot views that segments are of.
    pub views: Vec<ViewInput>,
}

impl Inputs {
    /// The tier where every segment has its durable bytes.
    pub(super) fn home(&self) -> TierId {
        TierId(self.tiers.len().saturating_sub(1) as u8)
    }

    pub(super) fn has_rules(&self) -> bool {
        self.segments.iter().any(|segment| segment.duty != Duty::default())
    }

    pub(super) fn rule(&self, position: Option<u32>) -> &str {
        position.and_then(|position| self.rules.get(position as usize)).map_or("a rule", String::as_str)
    }
}

/// One move of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedMove {
    /// Position in [`Inputs::segments`].
    pub segment: usize,
    /// Where it lies.
    pub from: TierId,
    /// Where it goes.
    pub to: TierId,
    /// Bytes of its image.
    pub bytes: u64,
    /// Reading time saved, in microseconds per epoch; negative when it makes room for others.
    pub benefit_us: f64,
    /// The same per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// Why, in one sentence.
    pub reason: String,
}

/// What an epoch would do.
#[derive(Debug, Clone)]
pub struct EpochPlan {
    /// Those that make room first (slowest target first, least loss first), then promotions by falling benefit per byte.
    pub moves: Vec<PlannedMove>,
    /// Expected reading time as found, in microseconds per epoch.
    pub before_us: f64,
    /// The same after the moves.
    pub after_us: f64,
    /// `after_us` and the amortised time of the moves.
    pub objective_us: f64,
    /// Lower bound of the objective.
    pub bound_us: f64,
    /// (objective - bound) / objective.
    pub gap: f64,
    /// How it was solved.
    pub method: Method,
    /// Price of each tier with a budget.
    pub prices: Vec<TierPrice>,
    /// Positions of the segments whose pin, or that they must not lie at home, gives way for want of room.
    pub given_way: Vec<usize>,
}

impl EpochPlan {
    /// What the next plan may start from: see [`Inputs::prices`].
    pub(super) fn next_prices(&self) -> Vec<f64> {
        let prices: Vec<f64> = self.prices.iter().map(|price| price.price_ns_per_byte / 1e3).chain([0.0]).collect();
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
    let Decision { solution, scores } = choose_rest(policy, inputs, &instance, &reserved, work)?;
    let pick = |row: &[f64], tier: usize| row.get(tier).copied().unwrap_or(0.0);
    let mut before_us = 0.0;
    let mut after_us = 0.0;
    let mut moves = Vec::new();
    let mut used = vec![(0_u64, 0_u64); tiers];
    for (index, ((segment, choice), row)) in
        inputs.segments.iter().zip(&solution.choice).zip(times.chunks_exact(tiers)).enumerate()
    {
        let from = usize::from(segment.current.0);
        let to = usize::from(*choice);
        before_us += pick(row, from);
        after_us += pick(row, to);
        let charged = |tier: usize| segment.charged_bytes.get(tier).copied().unwrap_or(0);
        if let Some((before, _)) = used.get_mut(from) {
            *before += charged(from);
        }
        if let Some((_, planned)) = used.get_mut(to) {
            *planned += charged(to);
        }
        if from != to {
            let benefit_us = pick(row, from) - pick(row, to);
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
            (None, Some(segment)) if segment.view.over.is_some() && planned.to > planned.from => {
                format!("leaves DRAM{}", inputs.view_words(segment))
            }
            (None, Some(segment)) => {
                let score = scores.get(planned.segment).copied().flatten();
                policy.reason(&Why { inputs, planned, segment, score, prices: &prices }) + &inputs.view_words(segment)
            }
            (None, None) => continue,
        };
    }
    moves.sort_by(|a, b| order(inputs, a, b));
    let objective_us = solution.objective;
    let bound_us = solution.bound;
    Ok(EpochPlan {
        moves,
        before_us,
        after_us,
        objective_us,
        bound_us,
        gap: solution.gap,
        method: solution.method,
        prices,
        given_way: reserved.given_way,
    })
}

/// The problem to solve, and beside it the reading times alone (row-major, microseconds per epoch).
fn instance(inputs: &Inputs) -> (Instance, Vec<f64>) {
    let tiers = inputs.tiers.len();
    let capacities =
        inputs.tiers.iter().map(|tier| tier.budget_bytes.map_or(f64::INFINITY, |bytes| bytes as f64)).collect();
    let cells = inputs.segments.len() * tiers;
    let mut costs = Vec::with_capacity(cells);
    let mut bytes = Vec::with_capacity(cells);
    let mut times = Vec::with_capacity(cells);
    for segment in &inputs.segments {
        for (id, charged) in (0..tiers).zip(segment.charged_bytes) {
            let parts = parts(inputs, segment, id);
            times.push(parts.read_us);
            costs.push(parts.sum_us());
            bytes.push(charged as f64);
        }
    }
    (Instance { capacities, costs, bytes }, times)
}

/// What it costs to have a segment on a tier, in microseconds per epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct CostParts {
    /// Its reads, those of hot views included.
    pub(super) read_us: f64,
    /// That a user prefers another tier; and what the reads of a hot view's columns weigh more than others.
    pub(super) wish_us: f64,
    /// The move there, spread over the epochs within which it must pay back.
    pub(super) move_us: f64,
    /// That running statements are about to read it where it lies, which is faster.
    pub(super) ahead_us: f64,
}

impl CostParts {
    /// All of them.
    pub(super) fn sum_us(&self) -> f64 {
        self.read_us + self.wish_us + self.move_us + self.ahead_us
    }
}

/// The cost of `segment` on tier `id`, but for its room.
pub(super) fn parts(inputs: &Inputs, segment: &SegmentInput, id: usize) -> CostParts {
    let tier = TierId(id as u8);
    let read_us = expected_us(inputs, segment, tier);
    let turn = |_| hold::turn_us(segment, tier, read_us - expected_us(inputs, segment, segment.current));
    let preference = if segment.view.of.is_some() { PREFERENCE } else { 0.0 };
    CostParts {
        read_us,
        wish_us: unmet_wish_us(inputs, segment, tier) + read_us * preference,
        move_us: move_us(inputs, segment, id) / inputs.payback_epochs.max(1e-3) + segment.hold.map_or(0.0, turn),
        ahead_us: ahead_us(inputs, segment, tier),
    }
}

/// What it weighs, in microseconds per epoch, that `segment` does not lie where a user prefers it.
fn unmet_wish_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    match (segment.duty.preferred, inputs.tiers.last()) {
        (Some(preferred), Some(home)) if preferred != tier => home.cost.sweep_us(segment.home_bytes),
        _ => 0.0,
    }
}

/// Time of the reads that its heat says on a tier, in microseconds per epoch.
pub(super) fn reading_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    reads_us(inputs, segment, &segment.heat, tier)
}

/// Expected time of the segment's reads on a tier, in microseconds per epoch: by its heat, and by what hot views add.
pub(super) fn expected_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    let more = match segment.view.more.total() > 0.0 {
        true => reads_us(inputs, segment, &segment.view.more, tier),
        false => 0.0,
    };
    reading_us(inputs, segment, tier) + more
}

/// The time of such reads of the segment on a tier, in microseconds per epoch.
pub(super) fn reads_us(inputs: &Inputs, segment: &SegmentInput, heat: &SegmentHeat, tier: TierId) -> f64 {
    let at = usize::from(tier.0);
    let known = inputs.tiers.get(at);
    known.map_or(0.0, |tier| tier.cost.expected_us(heat, extent(inputs, segment, at)))
}

/// What `tier` saves against the home, in microseconds per epoch: reading time, and the wishes of users.
pub(super) fn benefit_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    let cost_us = |tier: TierId| reading_us(inputs, segment, tier) + unmet_wish_us(inputs, segment, tier);
    cost_us(inputs.home()) - cost_us(tier)
}

/// Microseconds to bring `segment` to tier `to`: read where it lies, write there; releasing to the home is nearly free.
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

/// The segment as this tier has it.
pub(super) fn extent(inputs: &Inputs, segment: &SegmentInput, tier: usize) -> Extent {
    let whole = tier + 1 == inputs.tiers.len() && segment.whole_at_home;
    Extent { bytes: read_bytes(inputs, segment, tier), rows: segment.rows, whole }
}

fn order(inputs: &Inputs, a: &PlannedMove, b: &PlannedMove) -> Ordering {
    let demotion = |m: &PlannedMove| m.to > m.from;
    let key = |m: &PlannedMove| inputs.segments.get(m.segment).map(|segment| segment.key);
    let rank = demotion(b).cmp(&demotion(a));
    let target = if demotion(a) && demotion(b) { b.to.cmp(&a.to) } else { Ordering::Equal };
    rank.then(target).then(b.benefit_ns_per_byte.total_cmp(&a.benefit_ns_per_byte)).then_with(|| key(a).cmp(&key(b)))
}

/// The sentence, for a move that a rule wants.
fn rule_reason(policy: PolicyKind, inputs: &Inputs, planned: &PlannedMove, reserved: &Reserved) -> Option<String> {
    let segment = inputs.segments.get(planned.segment)?;
    let duty = &segment.duty;
    let home = inputs.home();
    let name = |tier: TierId| inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str());
    if reserved.given_way.binary_search(&planned.segment).is_ok() {
        let rule = inputs.rule(duty.hard());
        return Some(format!("gives way: the budgets do not hold all that must lie in memory; {rule} is not met here"));
    }
    if duty.pin.is_some() && duty.only() == Some(planned.to) {
        return Some(format!("pinned: {}", inputs.rule(duty.pin)));
    }
    if duty.is_closed(planned.from) {
        return Some(format!("{} is drained", name(planned.from)));
    }
    if !duty.allows(planned.from) && segment.view.over.is_none() {
        let from = name(planned.from);
        let rule = inputs.rule(duty.hard());
        return Some(match planned.from == home {
            true => format!("not to lie on {from} alone: {rule}"),
            false => format!("not to lie on {from}: {rule}"),
        });
    }
    // What costs would not have done, the wish did.
    let wished = duty.preferred == Some(planned.to);
    let paid = planned.benefit_us * inputs.payback_epochs <= move_us(inputs, segment, usize::from(planned.to.0));
    let weighed = matches!(policy, PolicyKind::Optimal | PolicyKind::Density);
    (wished && (paid || !weighed)).then(|| format!("preferred: {}", inputs.rule(duty.preference)))
}

/// The sentence, for a move that costs and prices want.
pub(super) fn reason(inputs: &Inputs, planned: &PlannedMove, prices: &[TierPrice]) -> String {
    let name = |tier: TierId| inputs.tiers.get(usize::from(tier.0)).map_or("?", |tier| tier.name.as_str());
    let price = |tier: TierId| prices.get(usize::from(tier.0));
    let Some(segment) = inputs.segments.get(planned.segment) else { return String::new() };
    let from = name(planned.from);
    let to = name(planned.to);
    let expected = segment.expected();
    let reads = reads(&expected);
    if planned.to < planned.from {
        let room = match price(planned.to) {
            // The price is of the last byte shared out; a move that it comes from may be worth less.
            Some(price) if price.price_ns_per_byte > planned.benefit_ns_per_byte => {
                format!("where room is at {} ns", figure(price.price_ns_per_byte))
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
            0 => format!("{from} has a better use for its {}", bytes(segment.bytes)),
            over => over_budget(from, over, price.budget_bytes),
        }
    });
    if expected.total() <= 0.0 {
        return format!("cold: never read in recent epochs, and {full}");
    }
    let loss = -planned.benefit_us;
    if loss <= 0.0 {
        return format!("{reads}; {to} serves them {} an epoch faster than {from}", time(planned.benefit_us));
    }
    let worth = figure(-planned.benefit_ns_per_byte);
    let price = price(planned.from).map_or(0.0, |price| price.price_ns_per_byte);
    let against = if price > 0.0 { format!(", against a price of {} ns", figure(price)) } else { String::new() };
    format!(
        "cooler: {reads}; {from} saves {} an epoch against {to}, worth {worth} ns per byte{against}; {full}",
        time(loss)
    )
}

/// The accesses in words.
pub(super) fn reads(heat: &SegmentHeat) -> String {
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
