//! Requests to the advisor and its answers.

use serde::Serialize;
use terrace_model::{Error, Result};

use super::epoch::Inputs;
use super::format::{bytes, figure, time};

/// Largest number of points of a curve.
pub const MOST_POINTS: usize = 201;

/// A limit on the time of statements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Their mean time over that with everything on the fastest tier; at least 1.
    Slowdown(f64),
    /// Their mean time, in microseconds.
    MeanUs(f64),
}

/// A request to the advisor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdviceRequest {
    /// Number of points of the curve, 2 to [`MOST_POINTS`], evenly from nothing to a budget that holds everything.
    pub points: usize,
    /// Shares of that budget to predict as well, 0 to 1.
    pub shares: Vec<f64>,
    /// Further bytes of the fastest tier whose effect to predict.
    pub more_bytes: Option<u64>,
    /// The goal for which to find the cheapest budgets.
    pub goal: Option<Goal>,
    /// Price of 10^9 bytes of a tier, by its name.
    pub prices_per_gb: Vec<(String, f64)>,
}

/// The prediction for one budget of the fastest tier, with the other budgets as they are.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetPoint {
    /// The budget.
    pub budget_bytes: u64,
    /// Its share of the budget that holds everything.
    pub share: f64,
    /// Bytes that the plan places on the fastest tier.
    pub used_bytes: u64,
    /// Bytes that the plan leaves without a copy in memory.
    pub cold_bytes: u64,
    /// Expected reading time of an epoch, in microseconds; one segment after the other.
    pub read_us: f64,
    /// Part of `read_us` that one more byte would save, in nanoseconds.
    pub price_ns_per_byte: f64,
    /// Predicted mean time of a statement, in microseconds; null without statements to go by.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub mean_us: Option<f64>,
    /// Predicted 95th percentile of the time of a statement, in microseconds.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub p95_us: Option<f64>,
    /// `mean_us` over that with everything on the fastest tier.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub slowdown: Option<f64>,
    /// Bytes that rules want in memory and for which there is no room: such a budget is refused.
    pub unmet_bytes: u64,
}

/// The effect of a larger budget of the fastest tier.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoreRoom {
    /// Further bytes.
    pub more_bytes: u64,
    /// The prediction with them.
    pub point: BudgetPoint,
    /// Mean time of a statement saved, in microseconds.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub saved_us: Option<f64>,
    /// Reading time of an epoch saved, in microseconds.
    pub saved_read_us: f64,
}

/// A budget for each tier of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Configuration {
    /// Names of the tiers, each with its budget in bytes.
    pub budgets: Vec<(String, u64)>,
    /// Cost of the budgets and of all bytes at home; null without prices.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub cost: Option<f64>,
    /// Predicted mean time of a statement, in microseconds.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub mean_us: Option<f64>,
    /// Mean time over that with everything on the fastest tier; reading time instead where there are no statements.
    pub slowdown: f64,
}

/// A column that no statement has read since counting began.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnreadColumn {
    /// Full name of the table.
    pub table: String,
    /// Name of the column.
    pub column: String,
    /// Bytes of all its segments.
    pub bytes: u64,
    /// Bytes of its segments that lie in memory now.
    pub memory_bytes: u64,
}

/// The advisor's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Advice {
    /// Name of the tier whose budget varies.
    pub tier: String,
    /// The budget of this tier that holds all segments.
    pub total_bytes: u64,
    /// Bytes that rules pin to it: no budget may be smaller.
    pub pinned_bytes: u64,
    /// Number of statements that the predicted times refer to.
    pub statements: u64,
    /// Their mean time as measured, in microseconds.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub measured_us: Option<f64>,
    /// The prediction with the budgets as they are, once all moves are done.
    pub now: BudgetPoint,
    /// Predictions by rising budget.
    pub curve: Vec<BudgetPoint>,
    /// Predictions for the shares in `at` of the request, in that order.
    pub asked: Vec<BudgetPoint>,
    /// The budget beyond which more of it gains much less; null where the curve has no such place.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub knee: Option<BudgetPoint>,
    /// The effect of the further bytes in `more` of the request.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub more: Option<MoreRoom>,
    /// The cheapest budgets that meet the goal; without prices those with least of the fastest tier.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub cheapest: Option<Configuration>,
    /// Columns that no statement reads, largest first.
    pub never_read: Vec<UnreadColumn>,
    /// Limits of these figures, as sentences.
    pub notes: Vec<String>,
    /// Summary in one sentence.
    pub why: String,
}

/// Refuses a request that cannot be answered.
pub(super) fn check(inputs: &Inputs, request: &AdviceRequest) -> Result<()> {
    let invalid = |text: String| Err(Error::Invalid(text));
    if inputs.tiers.len() < 2 {
        return invalid("there is no memory tier to advise on".into());
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
                "the goal {most} is below 1, but no budget makes statements faster than with all in memory"
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
            return invalid(format!("there is no tier '{name}' to set a price for; tiers are {}", known.join(", ")));
        }
        if !(price.is_finite() && *price >= 0.0) {
            return invalid(format!("a price is a number of at least 0, not {price}, for {name}"));
        }
    }
    let priced = |name: &str| request.prices_per_gb.iter().any(|(known, _)| known == name);
    let memory = inputs.tiers.iter().filter(|tier| tier.budget_bytes.is_some());
    if let Some(tier) = memory.clone().find(|tier| !priced(&tier.name)).filter(|_| !request.prices_per_gb.is_empty()) {
        return invalid(format!("{} has no price; give a price for every memory tier, or for none", tier.name));
    }
    Ok(())
}

/// The answer in one sentence.
pub(super) fn sentence(advice: &Advice, goal: Option<Goal>) -> String {
    let tier = &advice.tier;
    if advice.total_bytes == 0 {
        return "no sealed segment is stored: there is nothing to advise on".to_owned();
    }
    let predicted = |point: &BudgetPoint| match point.mean_us {
        Some(mean) => format!("{} per statement", time(mean)),
        None => format!("{} of reading per epoch", time(point.read_us)),
    };
    let mut parts = vec![format!(
        "{} of {tier} hold everything; the budget of {} gives {}",
        bytes(advice.total_bytes),
        bytes(advice.now.budget_bytes),
        predicted(&advice.now)
    )];
    if advice.now.unmet_bytes > 0 {
        parts.push(format!("rules want {} more in memory than fits", bytes(advice.now.unmet_bytes)));
    }
    match &advice.knee {
        Some(knee) => parts.push(format!(
            "the knee is at {} ({} %) with {}",
            bytes(knee.budget_bytes),
            figure(knee.share * 100.0),
            predicted(knee)
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
