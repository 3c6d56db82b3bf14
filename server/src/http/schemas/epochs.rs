//! The schemas of epochs, their moves, and orders.

use utoipa::ToSchema;

/// Price and use of one tier in an epoch.
#[derive(ToSchema)]
pub struct TierPrice {
    /// Name of the tier.
    tier: String,
    /// Its budget.
    budget_bytes: u64,
    /// Bytes of segments on it before the epoch.
    before_bytes: u64,
    /// Bytes of segments on it after the planned moves.
    planned_bytes: u64,
    /// Nanoseconds per epoch that one more byte of it would save; 0 when it has room left, and under policies without
    /// prices.
    price_ns_per_byte: f64,
}

/// One epoch of the tiering loop.
#[derive(ToSchema)]
pub struct Epoch {
    /// Grows by one with each epoch that was carried out; a dry run shows the number it would have had.
    id: u64,
    /// Time of the decision, in microseconds since the Unix epoch.
    unix_us: u64,
    /// Its trigger.
    trigger: String,
    /// True for a dry run, which changes nothing.
    dry_run: bool,
    /// Segments that were weighed.
    segments: u64,
    /// Moves decided.
    moves: u32,
    /// Moves carried out.
    moves_done: u32,
    /// Moves given up.
    moves_skipped: u32,
    /// Moves proposed for tables in mode advise; not part of `moves`.
    moves_proposed: u32,
    /// Bytes of the moves decided.
    planned_bytes: u64,
    /// Bytes of the moves carried out.
    moved_bytes: u64,
    /// Expected reading time of the placement as found, in microseconds per epoch.
    before_us: f64,
    /// Expected reading time of the planned placement.
    after_us: f64,
    /// `after_us` plus the amortised cost of the moves.
    objective_us: f64,
    /// No placement within the budgets has a lower objective than this.
    bound_us: f64,
    /// (objective - bound) / objective; 0: proven optimal.
    gap: f64,
    /// The method that found the plan.
    solver: String,
    /// Name of the policy that decided.
    policy: String,
    /// Time to weigh and solve, in microseconds.
    solve_us: u64,
    /// Time to move, in microseconds.
    move_us: u64,
    /// One per tier with a budget that binds placement.
    prices: Vec<TierPrice>,
    /// Predicted reading time per epoch that the moves carried out save.
    predicted_us: f64,
    /// Measured reading time per epoch that moves save, of those that could be measured.
    #[schema(nullable = false)]
    measured_us: Option<f64>,
    /// Predicted saving of the moves that `measured_us` covers.
    #[schema(nullable = false)]
    measured_moves_predicted_us: Option<f64>,
    /// Sum of the differences between measured and predicted savings, in parts of the predicted ones.
    #[schema(nullable = false)]
    prediction_error: Option<f64>,
    /// Epochs over which `measured_us` was measured.
    measured_epochs: u32,
}

/// planned: decided, not carried out; done: carried out; skipped: not carried out, `why` says why; proposed: decided where
/// the loop only advises.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum MoveStatus {
    /// Decided, not carried out.
    Planned,
    /// Carried out.
    Done,
    /// Not carried out.
    Skipped,
    /// Decided where the loop only advises.
    Proposed,
}

/// One change of the placement.
#[derive(ToSchema)]
pub struct Move {
    /// The epoch that decided the move.
    epoch: u64,
    /// Position in the epoch's order of execution, from 0.
    number: u32,
    /// Full name of the table.
    table: String,
    /// Number of the chunk within the table.
    chunk: u64,
    /// Name of the column.
    column: String,
    /// Name of the tier it left.
    from: String,
    /// Name of the tier it goes to.
    to: String,
    /// Number of segments: 1, or more in a row that sums up moves made between epochs; table and column are * then.
    segments: u64,
    /// Their bytes.
    bytes: u64,
    /// Expected change of reading time in microseconds per epoch: positive is saved, negative the price of making room.
    benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    benefit_ns_per_byte: f64,
    /// Price of a byte of the faster of the two tiers between which it was decided; absent where no price was weighed, which
    /// `condition` says.
    #[schema(nullable = false)]
    price_ns_per_byte: Option<f64>,
    /// The second best tier; absent where none was weighed.
    #[schema(nullable = false)]
    runner_up: Option<String>,
    /// Additional cost on the second best tier, in microseconds per epoch.
    #[schema(nullable = false)]
    runner_up_us: Option<f64>,
    /// The condition under which the decision would have been another.
    #[schema(nullable = false)]
    condition: Option<String>,
    /// Reading time saved per epoch since, by the counters; absent before it is known.
    #[schema(nullable = false)]
    measured_us: Option<f64>,
    /// Epochs over which `measured_us` was measured.
    measured_epochs: u32,
    /// The reason, in one sentence with figures.
    reason: String,
    /// Its status.
    status: MoveStatus,
    /// The reason why it was skipped.
    #[schema(nullable = false)]
    why: Option<String>,
    /// End of the move, in microseconds since the Unix epoch; for a planned move the time of the decision.
    unix_us: u64,
    /// Duration, in microseconds; 0 when not carried out.
    took_us: u64,
}

/// An epoch with its moves.
#[derive(ToSchema)]
pub struct EpochReport {
    /// The epoch.
    epoch: Epoch,
    /// Its moves, in order of execution.
    moves: Vec<Move>,
}

/// The outcome of an order for some of its segments.
#[derive(ToSchema)]
pub struct OrderOutcome {
    /// Description of the outcome.
    what: String,
    /// Number of segments.
    segments: u64,
    /// Their bytes; 0 for segments that no longer exist.
    bytes: u64,
}

/// The result of an order.
#[derive(ToSchema)]
pub struct OrderReport {
    /// The record of the order, logged as an epoch.
    epoch: Epoch,
    /// Outcomes of the segments that it names, and of those that made room.
    outcome: Vec<OrderOutcome>,
    /// All its moves.
    moves: Vec<Move>,
}
