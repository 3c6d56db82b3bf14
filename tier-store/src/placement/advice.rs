//! What the advisor is asked and what it answers.

use serde::Serialize;

use super::epoch::Inputs;
use super::words::{bytes, figure, time};
use crate::error::{Error, Result};

/// Points of a curve at most.
pub const MOST_POINTS: usize = 201;

/// What statements may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// So many times what they would with everything on the fastest tier.
    Slowdown(f64),
    /// So many microseconds in the mean.
    MeanUs(f64),
}

/// A question to the advisor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdviceRequest {
    /// Points of the curve, 2 to [`MOST_POINTS`], evenly from nothing to a budget that holds all.
    pub points: usize,
    /// Shares of that budget to predict as well, 0 to 1.
    pub shares: Vec<f64>,
    /// What so many further bytes would bring.
    pub more_bytes: Option<u64>,
    /// What the cheapest budgets are wanted for.
    pub goal: Option<Goal>,
    /// Price of 10^9 bytes of a tier, by its name.
    pub prices_per_gb: Vec<(String, f64)>,
}

/// One budget of the fastest tier, the others as they are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BudgetPoint {
    /// The budget.
    pub budget_bytes: u64,
    /// Its share of the budget that holds all.
    pub share: f64,
    /// Bytes that the plan places there.
    pub used_bytes: u64,
    /// Bytes that it leaves at home alone.
    pub cold_bytes: u64,
    /// Expected reading time of an epoch, in microseconds; one segment after the other.
    pub read_us: f64,
    /// What one more byte would save of that, in nanoseconds.
    pub price_ns_per_byte: f64,
    /// Predicted mean time of a statement, in microseconds; `None` without statements to go by.
    pub mean_us: Option<f64>,
    /// The same of the slowest in twenty.
    pub p95_us: Option<f64>,
    /// `mean_us` over that with everything on the fastest tier.
    pub slowdown: Option<f64>,
    /// Bytes that rules want in memory and that find no room: such a budget is refused.
    pub unmet_bytes: u64,
}

/// What more room would bring.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoreRoom {
    /// So many further bytes.
    pub more_bytes: u64,
    /// With them.
    pub point: BudgetPoint,
    /// Mean time of a statement saved, in microseconds.
    pub saved_us: Option<f64>,
    /// Reading time of an epoch saved, in microseconds.
    pub saved_read_us: f64,
}

/// A budget for each tier of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Configuration {
    /// Name of the tier, and its budget in bytes.
    pub budgets: Vec<(String, u64)>,
    /// What they cost, the bytes at home included; `None` without prices.
    pub cost: Option<f64>,
    /// Predicted mean time of a statement, in microseconds.
    pub mean_us: Option<f64>,
    /// Over that with everything on the fastest tier; of reading times where there are no statements.
    pub slowdown: f64,
}

/// A column that no statement has read since its reads are counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnreadColumn {
    /// Full name of the table.
    pub table: String,
    /// Name of the column.
    pub column: String,
    /// Its bytes.
    pub bytes: u64,
    /// Those of them that lie in memory now.
    pub memory_bytes: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Name of the tier whose budget varies.
    pub tier: String,
    /// The budget that holds all segments there.
    pub total_bytes: u64,
    /// Bytes that rules pin to it: no budget may be smaller.
    pub pinned_bytes: u64,
    /// Statements that the times are about.
    pub statements: u64,
    /// Their mean time as measured, in microseconds.
    pub measured_us: Option<f64>,
    /// With the budgets as they are, once all has settled.
    pub now: BudgetPoint,
    /// By rising budget.
    pub curve: Vec<BudgetPoint>,
    /// For the shares that were asked for, in that order.
    pub asked: Vec<BudgetPoint>,
    /// The budget beyond which more of it gains much less; `None` where the curve has no such place.
    pub knee: Option<BudgetPoint>,
    /// What more room would bring.
    pub more: Option<MoreRoom>,
    /// The cheapest budgets that meet the goal; without prices those with least of the fastest tier.
    pub cheapest: Option<Configuration>,
    /// Largest first.
    pub never_read: Vec<UnreadColumn>,
    /// What to know about these figures.
    pub notes: Vec<String>,
    /// All of it in one sentence.
    pub why: String,
}

/// Refuses what no answer can be given to.
pub(super) fn check(inputs: &Inputs, request: &AdviceRequest) -> Result<()> {
    let invalid = |text: String| Err(Error::Invalid(text));
    if inputs.tiers.len() < 2 {
        return invalid("there is no tier of memory to advise on".into());
    }
    if !(2..=MOST_POINTS).contains(&request.points) {
        return invalid(format!("a curve has 2 to {MOST_POINTS} points, not {}", request.points));
    }
    if request.shares.len() > MOST_POINTS {
        return invalid(format!("{} shares are too many; ask for {MOST_POINTS} at most", request.shares.len()));
    }
    if let Some(share) = request.shares.iter().find(|share| !(0.0..=1.0).contains(*share)) {
        return invalid(format!("a share of all bytes lies between 0 and 1, not at {share}"));
    }
    match request.goal {
        Some(Goal::Slowdown(most)) if !(most.is_finite() && most >= 1.0) => {
            return invalid(format!(
                "no budget makes statements faster than all in memory: a goal of {most} is below 1"
            ));
        }
        Some(Goal::MeanUs(most)) if !(most.is_finite() && most > 0.0) => {
            return invalid(format!("a goal is a time above 0, not {most} us"));
        }
        _ => {}
    }
    for (name, price) in &request.prices_per_gb {
        if !inputs.tiers.iter().any(|tier| tier.name == *name) {
            let known: Vec<&str> = inputs.tiers.iter().map(|tier| tier.name.as_str()).collect();
            return invalid(format!("there is no tier '{name}' to have a price; tiers are {}", known.join(", ")));
        }
        if !(price.is_finite() && *price >= 0.0) {
            return invalid(format!("a price is a number from 0, not {price} for {name}"));
        }
    }
    let priced = |name: &str| request.prices_per_gb.iter().any(|(known, _)| known == name);
    let memory = inputs.tiers.iter().filter(|tier| tier.budget_bytes.is_some());
    if let Some(tier) = memory.clone().find(|tier| !priced(&tier.name)).filter(|_| !request.prices_per_gb.is_empty()) {
        return invalid(format!("{} has no price; give all tiers of memory one, or none", tier.name));
    }
    Ok(())
}

/// The answer in one sentence.
pub(super) fn sentence(advice: &Advice, goal: Option<Goal>) -> String {
    let tier = &advice.tier;
    if advice.total_bytes == 0 {
        return "no sealed segment is stored: there is nothing to advise on".to_owned();
    }
    let told = |point: &BudgetPoint| match point.mean_us {
        Some(mean) => format!("{} per statement", time(mean)),
        None => format!("{} of reading per epoch", time(point.read_us)),
    };
    let mut parts = vec![format!(
        "{} of {tier} hold everything; the budget of {} gives {}",
        bytes(advice.total_bytes),
        bytes(advice.now.budget_bytes),
        told(&advice.now)
    )];
    if advice.now.unmet_bytes > 0 {
        parts.push(format!("rules want {} more in memory than fits", bytes(advice.now.unmet_bytes)));
    }
    match &advice.knee {
        Some(knee) => parts.push(format!(
            "the knee is at {} ({} %) with {}",
            bytes(knee.budget_bytes),
            figure(knee.share * 100.0),
            told(knee)
        )),
        None => parts.push("the curve has no knee".to_owned()),
    }
    if let Some(more) = &advice.more {
        let saved = match more.saved_us {
            Some(saved) => format!("{} per statement", time(saved)),
            None => format!("{} of reading per epoch", time(more.saved_read_us)),
        };
        parts.push(format!("{} more save {saved}", bytes(more.more_bytes)));
    }
    match (goal, &advice.cheapest) {
        (Some(_), Some(found)) => {
            let budgets: Vec<String> =
                found.budgets.iter().map(|(name, budget)| format!("{} of {name}", bytes(*budget))).collect();
            let cost = found.cost.map_or_else(String::new, |cost| format!(", at a cost of {}", figure(cost)));
            parts.push(format!("the goal is met with {}{cost}", budgets.join(" and ")));
        }
        (Some(_), None) => parts.push("no budget meets the goal".to_owned()),
        (None, _) => {}
    }
    parts.join("; ")
}
