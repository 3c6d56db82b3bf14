//! The schemas of advice.

use utoipa::ToSchema;

/// The prediction for one budget of the fastest tier, with the other budgets as they are.
#[derive(ToSchema)]
pub struct BudgetPoint {
    /// The budget.
    budget_bytes: u64,
    /// Its share of the budget that holds everything.
    share: f64,
    /// Bytes that the plan places on the fastest tier.
    used_bytes: u64,
    /// Bytes that the plan leaves without a copy in memory.
    cold_bytes: u64,
    /// Expected reading time of an epoch, in microseconds.
    read_us: f64,
    /// Part of `read_us` that one more byte would save, in nanoseconds.
    price_ns_per_byte: f64,
    /// Predicted mean time of a statement, in microseconds; null without statements to go by.
    #[schema(required)]
    mean_us: Option<f64>,
    /// Predicted 95th percentile of the time of a statement, in microseconds.
    #[schema(required)]
    p95_us: Option<f64>,
    /// `mean_us` over that with everything on the fastest tier.
    #[schema(required)]
    slowdown: Option<f64>,
    /// Bytes that rules want in memory and for which there is no room: such a budget is refused.
    unmet_bytes: u64,
}

/// The effect of a larger budget of the fastest tier.
#[derive(ToSchema)]
pub struct MoreRoom {
    /// Further bytes.
    more_bytes: u64,
    /// The prediction with them.
    point: BudgetPoint,
    /// Mean time of a statement saved, in microseconds.
    #[schema(required)]
    saved_us: Option<f64>,
    /// Reading time of an epoch saved, in microseconds.
    saved_read_us: f64,
}

/// A budget for each tier of memory.
#[derive(ToSchema)]
pub struct Configuration {
    /// Names of the tiers, each with its budget in bytes.
    budgets: Vec<(String, u64)>,
    /// Cost of the budgets and of all bytes at home; null without prices.
    #[schema(required)]
    cost: Option<f64>,
    /// Predicted mean time of a statement, in microseconds.
    #[schema(required)]
    mean_us: Option<f64>,
    /// Mean time over that with everything on the fastest tier; reading time instead where there are no statements.
    slowdown: f64,
}

/// A column that no statement has read since counting began.
#[derive(ToSchema)]
pub struct UnreadColumn {
    /// Full name of the table.
    table: String,
    /// Name of the column.
    column: String,
    /// Bytes of all its segments.
    bytes: u64,
    /// Bytes of its segments that lie in memory now.
    memory_bytes: u64,
}

/// The advisor's answer.
#[derive(ToSchema)]
pub struct Advice {
    /// The tier whose budget varies.
    tier: String,
    /// The budget of this tier that holds all segments.
    total_bytes: u64,
    /// Bytes that rules pin to it: no budget may be smaller.
    pinned_bytes: u64,
    /// Number of statements that the predicted times refer to.
    statements: u64,
    /// Their mean time as measured, in microseconds.
    #[schema(required)]
    measured_us: Option<f64>,
    /// The prediction with the budgets as they are, once all moves are done.
    now: BudgetPoint,
    /// Predictions by rising budget.
    curve: Vec<BudgetPoint>,
    /// Predictions for the shares in `at`, in that order.
    asked: Vec<BudgetPoint>,
    /// The budget beyond which more of it gains much less; null where the curve has no such place.
    #[schema(required)]
    knee: Option<BudgetPoint>,
    /// The effect of the further bytes in `more`.
    #[schema(required)]
    more: Option<MoreRoom>,
    /// The cheapest budgets that meet the goal; without prices those with least of the fastest tier.
    #[schema(required)]
    cheapest: Option<Configuration>,
    /// Columns that no statement reads, largest first.
    never_read: Vec<UnreadColumn>,
    /// Limits of these figures, as sentences.
    notes: Vec<String>,
    /// Summary in one sentence.
    why: String,
}
