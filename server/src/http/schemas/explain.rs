//! The schemas of placement rules and explanations.

use std::collections::BTreeMap;

use utoipa::ToSchema;

use super::calibration::Pattern;

/// A tier as a choice for one segment; times in microseconds per epoch.
#[derive(ToSchema)]
pub struct TierOption {
    /// Name of the tier.
    tier: String,
    /// False when a rule keeps the segment off it, or its budget could not hold it.
    allowed: bool,
    /// Expected time of its reads there.
    read_us: f64,
    /// Worth of its room there to other segments.
    rent_us: f64,
    /// Time of the move there, spread over the epochs within which it must pay back.
    move_us: f64,
    /// Cost of preferences.
    wish_us: f64,
    /// Time that running statements would lose there because they expect to read it from its current tier.
    ahead_us: f64,
    /// The sum of these.
    total_us: f64,
}

/// How a condition was found. price: computed from the prices of the plan; planned: the plan was made again on both sides of
/// the value.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Basis {
    /// Computed from the prices of the plan.
    Price,
    /// Confirmed by new plans on both sides of it.
    Planned,
}

/// The quantity that changes.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum Lever {
    /// The segment is read more often than the value.
    ReadsAbove,
    /// It is read less often than the value.
    ReadsBelow,
    /// The budget of the tier grows by the value.
    MoreRoom,
    /// The budget of its current tier shrinks by the value.
    LessRoom,
}

/// A change after which the next epoch would place the segment elsewhere.
#[derive(ToSchema)]
pub struct Condition {
    /// The quantity that changes.
    lever: Lever,
    /// Reads per epoch, or bytes.
    value: f64,
    /// The tier whose budget changes, or that the segment goes to.
    tier: String,
    /// How it was found.
    basis: Basis,
}

/// The explanation of one segment's placement.
#[derive(ToSchema)]
pub struct Explanation {
    /// Full name of the table.
    table: String,
    /// Number of the chunk.
    chunk: u64,
    /// Name of the column.
    column: String,
    /// Bytes of its image.
    bytes: u64,
    /// Name of the tier it lies on; "none" for a segment that has no bytes.
    tier: String,
    /// Name of the tier an epoch would place it on now; "none" likewise.
    planned: String,
    /// Patterns, each with its reads per epoch, decayed.
    heat: Vec<(Pattern, f64)>,
    /// Sum of the reads in `heat`.
    reads: f64,
    /// Reading time per epoch that the faster of the planned tier and the runner-up saves against the other.
    benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    benefit_ns_per_byte: f64,
    /// The price of a byte of the faster one, in nanoseconds.
    price_ns_per_byte: f64,
    /// The second best tier; null when rules leave only one.
    #[schema(required)]
    runner_up: Option<String>,
    /// How much more it would cost there, in microseconds per epoch.
    #[schema(required)]
    runner_up_us: Option<f64>,
    /// Every tier, fastest first.
    options: Vec<TierOption>,
    /// Changes that would place it elsewhere; empty when rules leave no choice.
    conditions: Vec<Condition>,
    /// Description of the conditions.
    condition: String,
    /// Descriptions of the rules that apply to it.
    rules: Vec<String>,
    /// The explanation in one sentence.
    why: String,
}

/// Segments of one column on one tier that a statement would read.
#[derive(ToSchema)]
pub struct ReadPart {
    /// Full name of the table.
    table: String,
    /// Name of the column.
    column: String,
    /// Name of the tier they lie on.
    tier: String,
    /// Number of chunks, one segment each.
    chunks: u64,
    /// Bytes that a whole read moves.
    bytes: u64,
    /// Expected time to read each of them once, one after the other, in microseconds.
    read_us: f64,
    /// Like `read_us`, but with all of them on the fastest tier.
    fast_us: f64,
    /// Bytes by the name of the tier on which an epoch would place them now.
    planned_bytes: BTreeMap<String, u64>,
}

/// All reads of a statement and their cost.
#[derive(ToSchema)]
pub struct QueryCost {
    /// By table, column and tier.
    parts: Vec<ReadPart>,
    /// Bytes of all parts.
    bytes: u64,
    /// Bytes that lie on no memory tier.
    cold_bytes: u64,
    /// Expected reading time, in microseconds.
    read_us: f64,
    /// Like `read_us`, but with all segments on the fastest tier.
    fast_us: f64,
    /// False where there are too many segments to look for the next two figures.
    is_searched: bool,
    /// Runs per epoch from which on the next epoch would bring all segments into memory; null when no number does.
    #[schema(required)]
    runs_per_epoch: Option<f64>,
    /// Bytes that the budget of the fastest tier lacks for that, with one more run per epoch; null when no budget suffices.
    #[schema(required)]
    more_room_bytes: Option<u64>,
    /// Summary in one sentence.
    why: String,
}

/// A rule and how far it is met now.
#[derive(ToSchema)]
pub struct PlacementRule {
    /// Full name of the table.
    table: String,
    /// Number of the rule within the table.
    rule: u64,
    /// Its kind.
    kind: crate::http::placement::Kind,
    /// The tier it names.
    tier: String,
    /// Names of its columns; empty: all.
    columns: Vec<String>,
    /// The rule as SQL after ALTER TABLE name.
    definition: String,
    /// Time at which it was made, in microseconds since the Unix epoch.
    made_unix_us: u64,
    /// Segments in its scope.
    segments: u64,
    /// Bytes of these segments.
    bytes: u64,
    /// Bytes on a tier that the rule wants.
    met_bytes: u64,
    /// Bytes on a tier that the rule does not want.
    unmet_bytes: u64,
    /// Bytes for which a later rule is in force instead.
    overruled_bytes: u64,
    /// Bytes in its scope by tier, fastest first, the home last.
    bytes_by_tier: Vec<u64>,
    /// True when no segment in its scope lies on a tier that the rule does not want.
    met: bool,
}

/// The state of a statement.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum StatementState {
    /// Being planned.
    Planning,
    /// Waiting for an execution slot.
    Queued,
    /// Executing, or waiting for its client to take rows.
    Running,
    /// Ended well.
    Done,
    /// Ended with an error.
    Failed,
    /// Ended early.
    Cancelled,
}
