//! Confirms the conditions of explanations: plans again with more or fewer reads, more or less room, until it is known
//! between which two numbers the segment changes its tier. Pure; bounded by a number of plans.

use terrace_model::{Result, TierId};

use super::epoch::{EpochPlan, Inputs, plan};
use super::explain::{Basis, Condition, Explainer, Explanation, Lever, UnitReads};
use super::solver::Effort;

/// The search ends when the two numbers differ by less than this share.
const CLOSE: f64 = 0.01;
/// Steps of doubling, and then of halving, in one search.
const DOUBLINGS: usize = 40;

/// A search for conditions by planning with changed inputs.
#[derive(Debug)]
pub(super) struct ConditionSearch {
    inputs: Inputs,
    effort: Effort,
    /// Number of plans that may still be made.
    plans: usize,
}

impl ConditionSearch {
    /// A search in the inputs of a plan. It may make few plans where there are many segments, so that an answer takes
    /// seconds at most.
    pub(super) fn new(inputs: &Inputs, effort: Effort) -> Self {
        const SEGMENTS_PLANNED: usize = 2_000_000;
        let plans = (SEGMENTS_PLANNED / inputs.segments.len().max(1)).min(4_000);
        Self { inputs: inputs.clone(), effort, plans }
    }

    /// Replaces the conditions of an explanation by those that planning confirms, as long as plans are left.
    pub(super) fn confirm(&mut self, explainer: &Explainer<'_>, at: usize, found: &mut Explanation) -> Result<()> {
        let mut conditions = Vec::new();
        for condition in std::mem::take(&mut found.conditions) {
            // A search makes at most about so many plans; one that might not finish is not begun.
            if self.plans < 2 * DOUBLINGS {
                conditions.push(condition);
            } else {
                conditions.extend(self.confirmed(explainer, at, &condition)?);
            }
        }
        found.conditions = conditions;
        explainer.render_text(at, found);
        Ok(())
    }

    /// The condition as planning finds it; `None` when no change of this kind moves the segment.
    fn confirmed(&mut self, explainer: &Explainer<'_>, at: usize, guess: &Condition) -> Result<Option<Condition>> {
        let planned = explainer.placed(at);
        let Some(tier) = explainer.inputs.tiers.iter().position(|tier| tier.name == guess.tier) else {
            return Ok(None);
        };
        let up = matches!(guess.lever, Lever::ReadsAbove | Lever::MoreRoom);
        let changed = |tier: TierId| if up { tier < planned } else { tier > planned };
        let mut arrived = planned;
        let mut probe = |search: &mut Self, value: f64| -> Result<bool> {
            let placed = match guess.lever {
                Lever::ReadsAbove | Lever::ReadsBelow => search.with_reads(at, value)?,
                Lever::MoreRoom | Lever::LessRoom => search.with_room(at, tier, value, up)?,
            };
            if changed(placed) {
                arrived = placed;
            }
            Ok(changed(placed))
        };
        let found = match guess.lever {
            Lever::ReadsAbove => self.search(current_reads(explainer, at), guess.value, f64::INFINITY, &mut probe)?,
            Lever::ReadsBelow => self.search(current_reads(explainer, at), guess.value, 0.0, &mut probe)?,
            Lever::MoreRoom => self.search(0.0, guess.value, f64::INFINITY, &mut probe)?,
            Lever::LessRoom => {
                let most = explainer.inputs.tiers.get(tier).and_then(|tier| tier.budget_bytes).unwrap_or(0);
                self.search(0.0, guess.value, most as f64, &mut probe)?
            }
        };
        let tier = match guess.lever {
            Lever::ReadsAbove | Lever::ReadsBelow => explainer.name(arrived).to_owned(),
            Lever::MoreRoom | Lever::LessRoom => guess.tier.clone(),
        };
        Ok(found.map(|value| Condition { value, tier, basis: Basis::Planned, lever: guess.lever }))
    }

    /// The number beyond which `probe` is true, between `stays`, where it is false, and `end`; `guess` may be near it.
    fn search(
        &mut self,
        stays: f64,
        guess: f64,
        end: f64,
        probe: &mut dyn FnMut(&mut Self, f64) -> Result<bool>,
    ) -> Result<Option<f64>> {
        let mut stays = stays;
        let mut changes = None;
        // Just beside the guess first: mostly the guess is right, and two plans suffice.
        let (before, beyond) = match end >= stays {
            true => (guess * (1.0 - CLOSE / 2.0), guess * (1.0 + CLOSE / 2.0) + f64::MIN_POSITIVE),
            false => (guess * (1.0 + CLOSE / 2.0), guess * (1.0 - CLOSE / 2.0)),
        };
        let within = |value: f64| (stays.min(end)..=stays.max(end)).contains(&value);
        let beside: Vec<f64> = [beyond, before].into_iter().filter(|value| within(*value)).collect();
        for value in beside {
            match probe(self, value)? {
                true => changes = Some(value),
                false => stays = value,
            }
            if changes.is_none() {
                break;
            }
        }
        // Then away from the guess, in doublings or to the end of the range, until the tier changes.
        for _ in 0..DOUBLINGS {
            if changes.is_some() || stays == end {
                break;
            }
            let next = match end.is_finite() {
                true => end,
                false => (stays * 2.0).max(guess * 2.0).max(CLOSE),
            };
            match probe(self, next)? {
                true => changes = Some(next),
                false => stays = next,
            }
        }
        let Some(mut changes) = changes else { return Ok(None) };
        // Bisection between the number that changes the tier and the one that does not.
        for _ in 0..DOUBLINGS {
            if (changes - stays).abs() <= CLOSE * changes.abs().max(stays.abs()).max(CLOSE) {
                break;
            }
            let between = (stays + changes) / 2.0;
            if probe(self, between)? { changes = between } else { stays = between }
        }
        Ok(Some(changes))
    }

    /// The tier on which a plan puts a segment when it is read `reads` times per epoch.
    fn with_reads(&mut self, at: usize, reads: f64) -> Result<TierId> {
        let Some(segment) = self.inputs.segments.get_mut(at) else { return Ok(TierId(0)) };
        let original = segment.heat;
        let UnitReads { mut heat, reads: unit } = Explainer::unit_reads(segment);
        let scale = (reads / unit) as f32;
        heat.accesses.iter_mut().chain(&mut heat.values).for_each(|count| *count *= scale);
        segment.heat = heat;
        let placed = self.planned(at);
        if let Some(segment) = self.inputs.segments.get_mut(at) {
            segment.heat = original;
        }
        placed
    }

    /// The tier on which a plan puts a segment when the budget of `tier` is larger, or smaller, by so many bytes.
    fn with_room(&mut self, at: usize, tier: usize, by: f64, more: bool) -> Result<TierId> {
        let budget = self.inputs.tiers.get(tier).and_then(|tier| tier.budget_bytes).unwrap_or(0);
        let changed = if more { budget.saturating_add(by as u64) } else { budget.saturating_sub(by as u64) };
        self.set_budget(tier, changed);
        let placed = self.planned(at);
        self.set_budget(tier, budget);
        placed
    }

    fn set_budget(&mut self, tier: usize, bytes: u64) {
        if let Some(tier) = self.inputs.tiers.get_mut(tier) {
            tier.budget_bytes = Some(bytes);
        }
    }

    fn planned(&mut self, at: usize) -> Result<TierId> {
        let plan = self.plan()?;
        Ok(tier_after(&self.inputs, &plan, at))
    }

    fn plan(&mut self) -> Result<EpochPlan> {
        self.plans = self.plans.saturating_sub(1);
        plan(&self.inputs, self.effort)
    }
}

/// Reads per epoch of a segment, by the current heat.
fn current_reads(explainer: &Explainer<'_>, at: usize) -> f64 {
    explainer.inputs.segments.get(at).map_or(0.0, |segment| segment.heat.total().into())
}

/// The tier on which a plan puts one segment.
fn tier_after(inputs: &Inputs, plan: &EpochPlan, at: usize) -> TierId {
    let moved = plan.moves.iter().find(|planned| planned.segment == at).map(|planned| planned.to);
    moved.or_else(|| inputs.segments.get(at).map(|segment| segment.current)).unwrap_or(TierId(0))
}
