//! Schemas of the answers and orders whose types belong to other crates, for the OpenAPI document alone.
//!
//! Each stands for the type of the same fields in `terrace-tier-store`, which knows nothing of OpenAPI.
//! `tests/python/test_surface.py` holds real answers against the document, so a field that is missing here fails it.
// The values are never made: only their schemas are used.
#![allow(dead_code)]

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// Bytes, a size (2GiB, 512MB), or a percentage of the bytes of all sealed data (10%).
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(examples("2GiB", "10%", 1073741824))]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// A size with a unit, or a percentage.
    Text(String),
}

/// The kind of a tier.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum TierKind {
    /// Process memory.
    Dram,
    /// Byte-addressable memory behind a mapping.
    Nvm,
    /// Files; the home of every sealed segment.
    Ssd,
}

/// active: the tier takes segments; draining: it takes none and still holds some; drained: it takes none and holds none.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum TierState {
    /// The tier takes segments.
    Active,
    /// The tier takes no more segments, and still holds some.
    Draining,
    /// The tier takes no more segments, and holds none.
    Drained,
}

/// The reason for which moves to and from a tier pause.
#[derive(ToSchema)]
pub struct Failing {
    /// Start of the failure, in microseconds since the Unix epoch.
    since_unix_us: u64,
    /// Time from which one move tries the device again; in the past: the next move does.
    retry_unix_us: u64,
    /// The last error of the device.
    error: String,
}

/// A tier to add: with a path, or emulated.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TierOrder {
    /// Its name.
    #[schema(pattern = "^[a-z][a-z0-9_]{0,31}$")]
    name: String,
    /// A pool file on a DAX mount, a folder there, a file on tmpfs, or a devdax device.
    path: Option<String>,
    /// Use memory of the server process instead of a device.
    #[serde(default)]
    #[schema(default = false)]
    emulated: bool,
    /// Size of the pool.
    capacity: Size,
    /// Bytes that segments may take; all of the pool without it.
    budget: Option<Size>,
    /// Slows the tier down to the speed of a persistent memory module, for experiments.
    #[serde(default)]
    #[schema(default = false)]
    slow: bool,
}

/// auto: the loop moves segments; advise: it logs the moves as proposed; off: it does neither.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum TieringMode {
    /// The loop moves segments.
    Auto,
    /// The loop plans, and logs the moves as proposed.
    Advise,
    /// The loop does not weigh the segments.
    Off,
}

/// The pattern of accesses.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Pattern {
    /// The whole segment or a good part of it, from one row to the next.
    Sequential,
    /// Positions in order, some skipped.
    Monotonic,
    /// Positions in no order.
    Random,
    /// A few rows.
    Point,
}

/// Cost of an access: its latency, and bytes at a bandwidth.
#[derive(ToSchema)]
pub struct PatternCost {
    /// Microseconds per access (sequential) or per place it touches (monotonic, random, point).
    latency_us: f64,
    /// Bytes per microsecond, which is MB/s.
    bytes_per_us: f64,
}

/// Cost of accesses on one tier.
#[derive(ToSchema)]
pub struct TierCost {
    /// Cost by pattern: sequential, monotonic, random, point.
    #[schema(min_items = 4, max_items = 4)]
    patterns: Vec<PatternCost>,
    /// Bytes of a place; null: always the whole segment.
    #[schema(required)]
    granule_bytes: Option<u64>,
}

/// One measurement of a tier.
#[derive(ToSchema)]
pub struct MeasuredPoint {
    /// The pattern of the accesses.
    pattern: Pattern,
    /// Share of the values that was selected; absent: all values that were read.
    #[schema(nullable = false)]
    selectivity: Option<f64>,
    /// Bytes that one access read.
    bytes: u64,
    /// Places that one access touched.
    places: u64,
    /// Threads, or reads given to the device.
    at_once: u32,
    /// Microseconds per access.
    us: f64,
}

/// Performance of a device with many reads at once.
#[derive(ToSchema)]
pub struct Busy {
    /// Bytes in flight that keep it busy.
    depth_bytes: u64,
    /// Its throughput then, in bytes per microsecond.
    bytes_per_us: f64,
    /// Time of cores that a byte costs, in microseconds.
    #[schema(required)]
    cores_us_per_byte: Option<f64>,
}

/// The measured profile of one tier.
#[derive(ToSchema)]
pub struct TierProfile {
    /// Name of the tier.
    name: String,
    /// Its kind.
    kind: TierKind,
    /// Description of its device; on another device it is measured anew.
    device: String,
    /// The cost that follows from the measurements.
    cost: TierCost,
    /// The measurements; absent when the cost is only typical of the kind.
    #[schema(nullable = false)]
    points: Option<Vec<MeasuredPoint>>,
    /// Performance of the device with many reads at once; absent for memory.
    #[schema(nullable = false)]
    busy: Option<Busy>,
    /// False when the cost is only typical of the kind.
    measured: bool,
    /// True when there was no room to measure it: it is not tried again before there is.
    no_room: bool,
    /// The reason why it was not measured, or not this time.
    #[schema(nullable = false)]
    note: Option<String>,
}

/// Bytes per microsecond that a core decompresses.
#[derive(ToSchema)]
pub struct DecompressionRates {
    /// LZ4.
    lz4: f64,
    /// ZSTD.
    zstd: f64,
}

/// Correction of the home's cost by the scans since the calibration.
#[derive(ToSchema)]
pub struct Correction {
    /// Time that the device takes over the measured one.
    device_times: f64,
    /// Share of its time for which statements wait.
    waited_share: f64,
    /// Bytes that this was learned from.
    bytes: u64,
}

/// The measurements of all tiers.
#[derive(ToSchema)]
pub struct Measurements {
    /// Version of the measuring method.
    method: u32,
    /// Time of the calibration, in microseconds since the Unix epoch.
    unix_us: u64,
    /// Duration of the calibration, in microseconds.
    took_us: u64,
    /// The processor and its cores; on another machine all is measured anew.
    machine: String,
    /// Profiles, fastest tier first, the home last.
    tiers: Vec<TierProfile>,
    /// Rates of decompression.
    #[schema(required)]
    decompression: Option<DecompressionRates>,
    /// Correction of the home's cost by scans.
    correction: Correction,
}

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
    /// Their bytes; 0 for those that are no longer there.
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

/// A rule and how far it is met now.
#[derive(ToSchema)]
pub struct PlacementRule {
    /// Full name of the table.
    table: String,
    /// Number of the rule within the table.
    rule: u64,
    /// Its kind.
    kind: super::placement::Kind,
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

/// damage: stored data is lost, or would be without action; healed: damage that was healed; notice: nothing is lost.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Severity {
    /// Stored data is lost, or would be without action.
    Damage,
    /// Damage that was healed.
    Healed,
    /// Worth knowing; nothing is lost.
    Notice,
}

/// A finding of a check.
#[derive(ToSchema)]
pub struct Finding {
    /// Its severity.
    severity: Severity,
    /// The file.
    path: String,
    /// The table that it concerns, if any.
    #[schema(required)]
    table: Option<String>,
    /// The chunk that it concerns, if any.
    #[schema(required)]
    chunk: Option<u64>,
    /// The column that it concerns, if any.
    #[schema(required)]
    column: Option<String>,
    /// The problem.
    what: String,
    /// Advice how to solve the problem.
    advice: String,
}

/// Totals of a checked table.
#[derive(ToSchema)]
pub struct CheckedTable {
    /// Schema and name.
    table: String,
    /// Rows that a full scan returns.
    rows: u64,
    /// Sealed chunks.
    chunks: u64,
    /// Bytes of their files.
    file_bytes: u64,
    /// Findings that are damage.
    damaged: u64,
}

/// Result of a check.
#[derive(ToSchema)]
pub struct CheckReport {
    /// True when the contents of files were not read.
    quick: bool,
    /// Checked tables, by name.
    tables: Vec<CheckedTable>,
    /// Findings in the order of the tables, those of no table last.
    findings: Vec<Finding>,
    /// Bytes of files that were read and verified.
    verified_bytes: u64,
}

/// Result of a backup.
#[derive(ToSchema)]
pub struct BackupReport {
    /// Layout of the backup.
    format_version: u32,
    /// Time at which it was made, in microseconds since the Unix epoch.
    created_unix_us: u64,
    /// Tables.
    tables: u64,
    /// Sealed chunks.
    chunks: u64,
    /// Rows of these chunks.
    rows: u64,
    /// Bytes of all files.
    bytes: u64,
}

/// Disk usage of one table.
#[derive(ToSchema)]
pub struct TableUsage {
    /// Schema and name.
    table: String,
    /// Rows that a full scan returns.
    rows: u64,
    /// Sealed chunks.
    chunks: u64,
    /// Bytes of their files.
    file_bytes: u64,
    /// Rows not yet sealed.
    delta_rows: u64,
    /// Bytes of these rows in the catalog.
    delta_bytes: u64,
    /// Bytes of all other catalog records of the table.
    catalog_bytes: u64,
}

/// Disk usage of a data directory.
#[derive(ToSchema)]
pub struct Usage {
    /// Usage of each table, by name.
    tables: Vec<TableUsage>,
    /// Size of the catalog's file, free pages included.
    catalog_file_bytes: u64,
    /// Files that no table has: of interrupted writes, of loads under way, of tables dropped while they are read.
    unowned_files: u64,
    /// Bytes of these files.
    unowned_bytes: u64,
    /// Tables that cannot be loaded; `terrace check` says why.
    broken_tables: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use serde::Serialize;
    use serde_json::{Value, to_value};
    use terrace_tier_store::{heat, migrate, placement, store};
    use utoipa::PartialSchema;

    use super::*;

    fn keys(value: &Value) -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    }

    fn schema<T: PartialSchema>() -> Value {
        to_value(T::schema()).unwrap()
    }

    fn texts(values: &[impl Serialize]) -> Value {
        to_value(values).unwrap()
    }

    /// The records that no answer of `tests/python/test_surface.py` has.
    #[test]
    fn records_of_failures_have_the_fields_of_the_store() {
        let failing = migrate::Failing { since_unix_us: 1, retry_unix_us: 2, error: String::new() };
        assert_eq!(keys(&to_value(failing).unwrap()), keys(&schema::<Failing>()["properties"]));
        let finding = store::Finding {
            severity: store::Severity::Damage,
            path: "/data".into(),
            table: None,
            chunk: None,
            column: None,
            what: String::new(),
            advice: String::new(),
        };
        assert_eq!(keys(&to_value(finding).unwrap()), keys(&schema::<Finding>()["properties"]));
    }

    #[test]
    fn enumerations_have_the_values_of_the_store() {
        assert_eq!(schema::<TieringMode>()["enum"], texts(&placement::TieringMode::ALL));
        assert_eq!(schema::<TierState>()["enum"], texts(&placement::TierState::ALL));
        assert_eq!(schema::<Pattern>()["enum"], texts(&heat::Pattern::ALL));
    }
}
