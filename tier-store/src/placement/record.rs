//! What an epoch decided and did, in a form that is logged, listed and explained: names, not ids.

use serde::{Deserialize, Serialize};

/// What happened to a planned move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveStatus {
    /// Decided, not carried out (a dry run, or the epoch still runs).
    Planned,
    /// Carried out.
    Done,
    /// Not carried out; [`MoveRecord::why`] says why.
    Skipped,
    /// Decided where the loop only advises: for a person to do.
    Proposed,
}

impl MoveStatus {
    /// Lower-case name, as in SQL and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Proposed => "proposed",
        }
    }
}

/// One change of the placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MoveRecord {
    /// The epoch that decided it.
    pub epoch: u64,
    /// Position in the epoch's order of execution, from 0.
    pub number: u32,
    /// Full name of the table.
    pub table: String,
    /// Number of the chunk within the table.
    pub chunk: u64,
    /// Name of the column.
    pub column: String,
    /// Name of the tier it left.
    pub from: String,
    /// Name of the tier it goes to.
    pub to: String,
    /// Segments it is about: 1, or more where a row sums up moves that were made between epochs.
    #[serde(default = "one")]
    pub segments: u64,
    /// Bytes of the segment's image.
    pub bytes: u64,
    /// Expected change of reading time in microseconds per epoch; positive = saved, negative = the price of making room.
    pub benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// Price of a byte of the faster of the two tiers it was decided between, in nanoseconds; of a row that sums up what was
    /// merged on read, what each byte that came took from what made room. `None` where no price was part of it:
    /// [`MoveRecord::condition`] says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_ns_per_byte: Option<f64>,
    /// Name of the second best tier; `None` where no second was weighed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_up: Option<String>,
    /// How much more it would cost there, in microseconds per epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_up_us: Option<f64>,
    /// What would have changed the decision.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Reading time saved per epoch since it was carried out, as the counters say; see [`super::measure`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_us: Option<f64>,
    /// Epochs over which that was measured.
    #[serde(default)]
    pub measured_epochs: u32,
    /// Why, in one sentence with figures.
    pub reason: String,
    /// What happened.
    pub status: MoveStatus,
    /// Why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it ended, in microseconds since the Unix epoch; for a planned one when it was decided.
    pub unix_us: u64,
    /// How long it took, in microseconds; 0 when not carried out.
    pub took_us: u64,
}

fn one() -> u64 {
    1
}

/// Stands for several tables or columns in a row that sums up moves.
pub const SEVERAL: &str = "*";

impl MoveRecord {
    /// A row that sums up moves of several segments.
    pub(super) fn of_several(epoch: u64, number: u32, (from, to): (String, String)) -> Self {
        Self {
            epoch,
            number,
            table: SEVERAL.into(),
            chunk: 0,
            column: SEVERAL.into(),
            from,
            to,
            segments: 0,
            bytes: 0,
            benefit_us: 0.0,
            benefit_ns_per_byte: 0.0,
            price_ns_per_byte: None,
            runner_up: None,
            runner_up_us: None,
            condition: String::new(),
            measured_us: None,
            measured_epochs: 0,
            reason: String::new(),
            status: MoveStatus::Done,
            why: None,
            unix_us: 0,
            took_us: 0,
        }
    }
}

/// What room on one tier was worth in an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierPrice {
    /// Name of the tier.
    pub tier: String,
    /// Its budget, in bytes.
    pub budget_bytes: u64,
    /// Bytes of segments on it before the epoch.
    pub before_bytes: u64,
    /// Bytes of segments on it as planned.
    pub planned_bytes: u64,
    /// Nanoseconds per epoch that one more byte of it would save; 0 when it has room left, and under policies
    /// that know no prices.
    pub price_ns_per_byte: f64,
}

/// One turn of the tiering loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Grows by one with each epoch that was carried out; a dry run shows the number it would have had.
    pub id: u64,
    /// When it was decided, in microseconds since the Unix epoch.
    pub unix_us: u64,
    /// What asked for it: "interval", "restart", or the caller's words.
    pub trigger: String,
    /// True when nothing was to be changed.
    pub dry_run: bool,
    /// Segments weighed.
    pub segments: u64,
    /// Moves decided.
    pub moves: u32,
    /// Moves carried out.
    pub moves_done: u32,
    /// Moves given up.
    pub moves_skipped: u32,
    /// Moves proposed for tables that the loop only advises on; not part of `moves`.
    #[serde(default)]
    pub moves_proposed: u32,
    /// Bytes of the moves decided.
    pub planned_bytes: u64,
    /// Bytes of the moves carried out.
    pub moved_bytes: u64,
    /// Expected reading time of the placement as found, in microseconds per epoch.
    pub before_us: f64,
    /// The same as planned.
    pub after_us: f64,
    /// The solver's objective: `after_us` plus the amortised cost of the moves.
    pub objective_us: f64,
    /// No placement within the budgets has a lower objective than this.
    pub bound_us: f64,
    /// (objective - bound) / objective; 0 = proven optimal.
    pub gap: f64,
    /// "lagrange", or "greedy" when the solver gave up; "lagrange until deadline" or "greedy at deadline" where its time was
    /// over; "ranked" under other policies than "optimal".
    pub solver: String,
    /// Name of the policy that decided.
    #[serde(default = "optimal")]
    pub policy: String,
    /// Time to weigh and solve, in microseconds.
    pub solve_us: u64,
    /// Time to move, in microseconds.
    pub move_us: u64,
    /// One per tier with a budget that binds placement.
    pub prices: Vec<TierPrice>,
    /// Reading time per epoch that its moves save as predicted, of those carried out.
    #[serde(default)]
    pub predicted_us: f64,
    /// The same as measured, of those that could be; see [`super::measure`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_us: Option<f64>,
    /// What these were predicted to save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_moves_predicted_us: Option<f64>,
    /// Sum of the differences between measured and predicted, in parts of the predicted; 0 = as predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_error: Option<f64>,
    /// Epochs over which that was measured.
    #[serde(default)]
    pub measured_epochs: u32,
}

/// What decided before there was a choice.
fn optimal() -> String {
    super::PolicyKind::Optimal.name().into()
}

/// An epoch with its moves, in order of execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// The epoch.
    pub epoch: EpochRecord,
    /// Its moves.
    pub moves: Vec<MoveRecord>,
}
