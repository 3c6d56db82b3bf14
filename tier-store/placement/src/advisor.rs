//! The budget advisor: predicts the time for every budget of the fastest tier, the knee of that curve, the gain of more
//! room, the cheapest budgets for a goal, and lists columns that no statement reads. Pure.
//!
//! A point of the curve is a plan with that budget in which moves cost nothing: the placement once all moves are done. The
//! best placement within a budget is possible within every larger one, so where the solver finds a worse one for more
//! room, the placement of the smaller budget is taken. [`super::forecast`] turns a placement into the time of statements;
//! without statements only the expected reading time of an epoch is predicted.

use terrace_model::{Error, Result, TierId};

use super::advice::{Advice, AdviceRequest, BudgetPoint, Configuration, Goal, MoreRoom, check, sentence};
use super::epoch::{EpochPlan, Inputs, SegmentInput, expected_us, plan_by};
use super::explain::Explainer;
use super::forecast::{Device, Forecast};
use super::format::{bytes, time};
use super::place::Place;
use super::policy::Policy;
use super::solver::Effort;
use super::workload::Workload;

/// Approximate number of combinations of budgets tried for the cheapest one.
const MOST_COMBINATIONS: f64 = 500.0;
/// A curve that falls by less than this share has no knee.
const FLAT: f64 = 0.02;
/// How far below the straight line between its ends a curve must bend, as a share of its fall.
const BEND: f64 = 0.1;

/// The state that advice is computed from.
pub(super) struct AdvisorInput<'a> {
    pub(super) inputs: Inputs,
    /// Bytes in the file of each segment.
    pub(super) stored_bytes: &'a [u64],
    pub(super) device: Device,
    pub(super) workload: &'a Workload,
    pub(super) policy: &'a dyn Policy,
    pub(super) effort: Effort,
}

/// Makes plans with changed budgets and predicts their times.
struct Advisor<'a> {
    inputs: Inputs,
    forecast: Forecast,
    policy: &'a dyn Policy,
    effort: Effort,
    /// Budget of the fastest tier that holds everything.
    total_bytes: u64,
    /// Budget of the fastest tier as it is.
    budget_bytes: u64,
    all_fast: AllFast,
}

/// Predicted times with everything on the fastest tier.
#[derive(Debug, Clone, Copy)]
struct AllFast {
    mean_us: Option<f64>,
    read_us: f64,
}

/// Answers a request; the caller fills in unread columns and notes.
pub(super) fn advise(input: AdvisorInput<'_>, request: &AdviceRequest) -> Result<Advice> {
    check(&input.inputs, request)?;
    let measured: Vec<f64> = input.workload.statements.iter().map(|statement| statement.elapsed_us).collect();
    let mut advisor = Advisor::new(input);
    let total = advisor.total_bytes;
    let share = |at: usize| at as f64 / (request.points - 1) as f64;
    let budget = |share: f64| (total as f64 * share).round() as u64;
    let curve: Vec<u64> = (0..request.points).map(|at| budget(share(at))).collect();
    let asked: Vec<u64> = request.shares.iter().map(|share| budget(*share)).collect();
    let now = advisor.budget_bytes;
    let more = request.more_bytes.map(|bytes| now.saturating_add(bytes));
    // Each budget is planned once, by rising budget, whatever it is asked for.
    let mut all: Vec<u64> = curve.iter().chain(&asked).copied().chain([now]).chain(more).collect();
    all.sort_unstable();
    all.dedup();
    let points = advisor.points(&all)?;
    let point = |budget: u64| all.binary_search(&budget).ok().and_then(|at| points.get(at)).cloned();
    let missing = || Error::Invalid("a budget was not planned".into());
    let points_for =
        |budgets: &[u64]| budgets.iter().map(|b| point(*b).ok_or_else(missing)).collect::<Result<Vec<_>>>();
    let curve = points_for(&curve)?;
    let asked = points_for(&asked)?;
    let now = point(now).ok_or_else(missing)?;
    let more = request.more_bytes.zip(more.and_then(point)).map(|(more_bytes, point)| MoreRoom {
        more_bytes,
        saved_us: now.mean_us.zip(point.mean_us).map(|(now, then)| now - then),
        saved_read_us: now.read_us - point.read_us,
        point,
    });
    let cheapest = match request.goal {
        Some(goal) => advisor.cheapest(goal, request, &curve)?,
        None => None,
    };
    let statements = advisor.forecast.statements() as u64;
    let mut advice = Advice {
        tier: advisor.name(0).to_owned(),
        total_bytes: total,
        pinned_bytes: advisor.pinned_bytes(),
        statements,
        measured_us: mean(&measured),
        knee: knee(&curve),
        now,
        curve,
        asked,
        more,
        cheapest,
        never_read: Vec::new(),
        notes: Vec::new(),
        why: String::new(),
    };
    advice.why = sentence(&advice, request.goal);
    Ok(advice)
}

/// What the memory of a device saves, as a note; `label` names the device. `None` without one. The times of statements are
/// predicted for processors alone, so only reading times are compared.
pub(super) fn device_note(inputs: &Inputs, label: &str, policy: &dyn Policy, effort: Effort) -> Result<Option<String>> {
    let Some(device) = &inputs.device else { return Ok(None) };
    let hot_bytes = inputs.hot_image_bytes();
    if hot_bytes == 0 {
        return Ok(Some(format!("the figures leave out {label}: no scan of recent epochs could have run there")));
    }
    let budget_bytes = device.budget_bytes;
    let mut inputs = inputs.clone();
    inputs.settle();
    let mut read_us = |budget_bytes: u64| {
        inputs.device.iter_mut().for_each(|device| device.budget_bytes = budget_bytes);
        plan_by(policy, &inputs, effort).map(|plan| plan.after_us)
    };
    let without_us = read_us(0)?;
    let now_us = read_us(budget_bytes)?;
    let all_us = read_us(hot_bytes)?;
    let saved = |us: f64| time((without_us - us).max(0.0));
    Ok(Some(format!(
        "the figures leave out {label}: of {} reading an epoch, second copies save {} within the budget of {} there, and {} with \
         room for all {} that scans could use",
        time(without_us),
        saved(now_us),
        bytes(budget_bytes),
        saved(all_us),
        bytes(hot_bytes)
    )))
}

impl<'a> Advisor<'a> {
    fn new(input: AdvisorInput<'a>) -> Self {
        let AdvisorInput { mut inputs, stored_bytes, device, workload, policy, effort } = input;
        // The same request has the same answer, whatever was planned or moved last.
        inputs.settle();
        let forecast = Forecast::new(&inputs, stored_bytes, device, workload);
        let at = |segment: &SegmentInput, place: Place| expected_us(&inputs, segment, place);
        let fastest = |segment: &SegmentInput| {
            let faster = |a: &Place, b: &Place| at(segment, *a).total_cmp(&at(segment, *b));
            segment.places_on(TierId(0)).min_by(faster).unwrap_or(Place::plain(TierId(0)))
        };
        let fastest: Vec<Place> = inputs.segments.iter().map(fastest).collect();
        let read_us = inputs.segments.iter().zip(&fastest).map(|(segment, place)| at(segment, *place)).sum();
        let all_fast = AllFast { mean_us: mean(&forecast.times_us(&fastest)), read_us };
        let total_bytes = inputs.segments.iter().map(|segment| segment.most_charged_on(TierId(0))).sum();
        let budget_bytes = inputs.tiers.first().and_then(|tier| tier.budget_bytes).unwrap_or(total_bytes);
        Self { inputs, forecast, policy, effort, total_bytes, budget_bytes, all_fast }
    }

    fn name(&self, tier: usize) -> &str {
        self.inputs.tiers.get(tier).map_or("?", |tier| tier.name.as_str())
    }

    fn pinned_bytes(&self) -> u64 {
        let fastest = TierId(0);
        let pinned = self.inputs.segments.iter().filter(|segment| segment.constraints.only() == Some(fastest));
        pinned.map(|segment| segment.charged_on(fastest)).sum()
    }

    /// One point per budget of the fastest tier; `budgets` ascend. The budget in the inputs is restored afterwards.
    fn points(&mut self, budgets: &[u64]) -> Result<Vec<BudgetPoint>> {
        let mut points: Vec<BudgetPoint> = Vec::with_capacity(budgets.len());
        for budget in budgets {
            let mut found = self.settled(&[*budget])?;
            if let Some(best) = points.last().filter(|best| best.unmet_bytes == found.unmet_bytes) {
                if best.read_us < found.read_us {
                    let budget_bytes = found.budget_bytes;
                    let share = found.share;
                    found = BudgetPoint { budget_bytes, share, ..best.clone() };
                }
                // The solver minimises reading times, not those of statements: more room must not predict slower ones.
                let least = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.min(b));
                found.mean_us = least(found.mean_us, best.mean_us);
                found.p95_us = least(found.p95_us, best.p95_us);
                found.slowdown = least(found.slowdown, best.slowdown);
            }
            points.push(found);
        }
        Ok(points)
    }

    /// The prediction with these budgets of the first tiers, the others as they are.
    fn settled(&mut self, budgets: &[u64]) -> Result<BudgetPoint> {
        let before: Vec<Option<u64>> = self.inputs.tiers.iter().map(|tier| tier.budget_bytes).collect();
        for (tier, budget) in self.inputs.tiers.iter_mut().zip(budgets) {
            tier.budget_bytes = tier.budget_bytes.map(|_| *budget);
        }
        let plan = plan_by(self.policy, &self.inputs, self.effort);
        let settled = plan.map(|plan| self.predict(&plan));
        for (tier, budget) in self.inputs.tiers.iter_mut().zip(before) {
            tier.budget_bytes = budget;
        }
        settled
    }

    /// The prediction for the placement of a plan.
    fn predict(&self, plan: &EpochPlan) -> BudgetPoint {
        let explainer = Explainer::new(&self.inputs, plan);
        let placed: Vec<Place> = (0..self.inputs.segments.len()).map(|at| explainer.place(at)).collect();
        let segments_on =
            |wanted: TierId| self.inputs.segments.iter().zip(&placed).filter(move |(_, place)| place.tier == wanted);
        let times_us = self.forecast.times_us(&placed);
        let budget_bytes = self.inputs.tiers.first().and_then(|tier| tier.budget_bytes).unwrap_or(0);
        let mean_us = mean(&times_us);
        let unmet = plan.given_way.iter().filter_map(|at| self.inputs.segments.get(*at));
        BudgetPoint {
            budget_bytes,
            share: if self.total_bytes > 0 { budget_bytes as f64 / self.total_bytes as f64 } else { 1.0 },
            used_bytes: segments_on(TierId(0)).map(|(segment, place)| segment.charged_at(*place)).sum(),
            cold_bytes: segments_on(self.inputs.home()).map(|(segment, _)| segment.stored_bytes).sum(),
            read_us: plan.after_us,
            price_ns_per_byte: plan.prices.first().map_or(0.0, |price| price.price_ns_per_byte),
            mean_us,
            p95_us: p95(times_us),
            slowdown: ratio(mean_us, self.all_fast.mean_us),
            unmet_bytes: unmet.map(SegmentInput::least_bytes).sum(),
        }
    }

    /// The cheapest budgets of all memory tiers that meet the goal: budgets of the curve for the fastest tier, evenly
    /// spaced shares (tenths, or fewer where there are many tiers) for the others.
    fn cheapest(
        &mut self,
        goal: Goal,
        request: &AdviceRequest,
        curve: &[BudgetPoint],
    ) -> Result<Option<Configuration>> {
        let memory = self.inputs.tiers.len() - 1;
        let others = memory.saturating_sub(1) as i32;
        let steps = match others {
            0 => 1.0,
            others => (MOST_COMBINATIONS / curve.len() as f64).powf(1.0 / f64::from(others)).clamp(2.0, 11.0).floor(),
        };
        let mut best: Option<(f64, Configuration)> = None;
        for number in 0..(steps.powi(others) as usize) {
            let mut budgets = vec![0];
            // The digits of the number in base `steps` are the shares of the tiers.
            let mut digits = number;
            for tier in 1..memory {
                let share = (digits % steps as usize) as f64 / (steps - 1.0).max(1.0);
                digits /= steps as usize;
                let all: u64 = self.inputs.segments.iter().map(|s| s.most_charged_on(TierId(tier as u8))).sum();
                budgets.push((all as f64 * share).round() as u64);
            }
            for point in curve {
                if let Some(first) = budgets.first_mut() {
                    *first = point.budget_bytes;
                }
                let weight = self.cost(&budgets, request).unwrap_or(point.budget_bytes as f64);
                if best.as_ref().is_some_and(|(least, _)| *least <= weight) {
                    // Larger budgets cost no less.
                    break;
                }
                let found = self.settled(&budgets)?;
                if found.unmet_bytes == 0 && self.meets(goal, &found) {
                    best = Some((weight, self.configuration(&budgets, request, &found)));
                    break;
                }
            }
        }
        Ok(best.map(|(_, configuration)| configuration))
    }

    fn meets(&self, goal: Goal, point: &BudgetPoint) -> bool {
        match goal {
            Goal::Slowdown(most) => self.slowdown(point) <= most,
            Goal::MeanUs(most) => point.mean_us.is_some_and(|mean| mean <= most),
        }
    }

    /// Slowdown against everything on the fastest tier, by the time of statements, else by that of reads.
    fn slowdown(&self, point: &BudgetPoint) -> f64 {
        let read = ratio(Some(point.read_us), Some(self.all_fast.read_us));
        point.slowdown.or(read).unwrap_or(1.0)
    }

    fn configuration(&self, budgets: &[u64], request: &AdviceRequest, point: &BudgetPoint) -> Configuration {
        Configuration {
            budgets: budgets.iter().enumerate().map(|(id, budget)| (self.name(id).to_owned(), *budget)).collect(),
            cost: self.cost(budgets, request),
            mean_us: point.mean_us,
            slowdown: self.slowdown(point),
        }
    }

    /// Cost of these budgets and of all bytes at home; `None` without prices.
    fn cost(&self, budgets: &[u64], request: &AdviceRequest) -> Option<f64> {
        if request.prices_per_gb.is_empty() {
            return None;
        }
        let price = |name: &str| request.prices_per_gb.iter().find(|(known, _)| known == name).map_or(0.0, |p| p.1);
        let memory = budgets.iter().enumerate().map(|(id, bytes)| price(self.name(id)) * *bytes as f64 / 1e9);
        let stored: u64 = self.inputs.segments.iter().map(|segment| segment.stored_bytes).sum();
        Some(memory.sum::<f64>() + price(self.name(self.inputs.tiers.len() - 1)) * stored as f64 / 1e9)
    }
}

/// The point where a falling curve bends most: farthest below the straight line between its ends (Satopaa 2011).
pub(super) fn knee(curve: &[BudgetPoint]) -> Option<BudgetPoint> {
    let allowed: Vec<&BudgetPoint> = curve.iter().filter(|point| point.unmet_bytes == 0).collect();
    let height = |point: &BudgetPoint| point.mean_us.unwrap_or(point.read_us);
    let first = allowed.first()?;
    let last = allowed.last()?;
    let fall = height(first) - height(last);
    let width = (last.budget_bytes - first.budget_bytes) as f64;
    if fall <= FLAT * height(first) || width <= 0.0 {
        return None;
    }
    let below = |point: &BudgetPoint| {
        let along = (point.budget_bytes - first.budget_bytes) as f64 / width;
        1.0 - along - (height(point) - height(last)) / fall
    };
    let deepest = allowed.iter().max_by(|a, b| below(a).total_cmp(&below(b)))?;
    (below(deepest) >= BEND).then(|| (*deepest).clone())
}

fn mean(times_us: &[f64]) -> Option<f64> {
    (!times_us.is_empty()).then(|| times_us.iter().sum::<f64>() / times_us.len() as f64)
}

fn p95(mut times_us: Vec<f64>) -> Option<f64> {
    times_us.sort_unstable_by(f64::total_cmp);
    times_us.get((times_us.len() * 95 / 100).min(times_us.len().saturating_sub(1))).copied()
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b)
}

#[cfg(test)]
mod tests;
