//! Records of epochs and moves, as they are logged, listed and explained: with names, not ids.

use serde::{Deserialize, Serialize};
use terrace_storage::tier::codec::Form;

use super::solver::CERTIFIER;

/// The status of a move. planned: decided, not carried out; done: carried out; skipped: not carried out, `why` says
/// why; proposed: decided where the loop only advises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum MoveStatus {
    /// Decided, not carried out (a dry run, or the epoch still runs).
    Planned,
    /// Carried out.
    Done,
    /// Not carried out; [`MoveRecord::why`] says why.
    Skipped,
    /// Proposed only, as the table or the server is in mode `advise`; the loop does not carry it out.
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
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Move))]
pub struct MoveRecord {
    /// The epoch that decided the move.
    pub epoch: u64,
    /// Position in the epoch's order of execution, from 0.
    pub number: u32,
    /// Full name that the table had.
    pub table: String,
    /// Number of the table, which no other one gets; absent in a row that sums up moves of several tables, and in records of versions
    /// that did not log it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub table_id: Option<u64>,
    /// Number of the chunk within the table.
    pub chunk: u64,
    /// Name of the column.
    pub column: String,
    /// Name of the tier it left.
    pub from: String,
    /// Name of the tier it goes to: the same one where only the form of the copy changes.
    pub to: String,
    /// The form of the copy that it had; absent at home, in rows that sum up several moves, and in records of versions that
    /// moved no forms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub from_form: Option<Form>,
    /// The form of the new copy; absent as `from_form` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub to_form: Option<Form>,
    /// Number of segments: 1, or more in a row that sums up moves made between epochs; table and column are * then.
    #[serde(default = "one")]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub segments: u64,
    /// Bytes of their images.
    pub bytes: u64,
    /// Expected change of reading time in microseconds per epoch; positive = saved, negative = the price of making room.
    pub benefit_us: f64,
    /// `benefit_us` per byte, in nanoseconds.
    pub benefit_ns_per_byte: f64,
    /// Price of a byte of the faster of the two tiers between which it was decided, in nanoseconds; in a row that sums
    /// up merges on read, the benefit that the segments lost which made room, per byte that came. Absent where no price
    /// was part of the decision: `condition` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub price_ns_per_byte: Option<f64>,
    /// Name of the second best tier; absent where none was weighed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub runner_up: Option<String>,
    /// Additional cost on the second best tier, in microseconds per epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub runner_up_us: Option<f64>,
    /// The condition under which the decision would have been another.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Reading time saved per epoch since it was carried out, measured from the counters; absent before it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub measured_us: Option<f64>,
    /// Epochs over which `measured_us` was measured.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub measured_epochs: u32,
    /// The reason, in one sentence with figures.
    pub reason: String,
    /// Its status.
    pub status: MoveStatus,
    /// The reason why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub why: Option<String>,
    /// End of the move, in microseconds since the Unix epoch; for a planned move the time of the decision.
    pub unix_us: u64,
    /// Duration, in microseconds; 0 when not carried out.
    pub took_us: u64,
}

fn one() -> u64 {
    1
}

/// Name of the table and the column in a row that sums up moves of several.
pub const SEVERAL: &str = "*";

impl MoveRecord {
    /// Makes a row that sums up moves of several segments.
    pub(super) fn for_several(epoch: u64, number: u32, from: String, to: String) -> Self {
        Self {
            epoch,
            number,
            table: SEVERAL.into(),
            table_id: None,
            chunk: 0,
            column: SEVERAL.into(),
            from,
            to,
            from_form: None,
            to_form: None,
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

/// Price and use of one tier in an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TierPrice {
    /// Name of the tier.
    pub tier: String,
    /// Its budget, in bytes.
    pub budget_bytes: u64,
    /// Bytes of segments on it before the epoch.
    pub before_bytes: u64,
    /// Bytes of segments on it after the planned moves.
    pub planned_bytes: u64,
    /// Nanoseconds per epoch that one more byte of it would save; 0 when it has room left, and under policies
    /// that know no prices.
    pub price_ns_per_byte: f64,
}

/// One epoch of the tiering loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Epoch))]
pub struct EpochRecord {
    /// Grows by one with each epoch that was carried out; a dry run shows the number it would have had.
    pub id: u64,
    /// Time of the decision, in microseconds since the Unix epoch.
    pub unix_us: u64,
    /// Its trigger: "interval", "restart", or the caller's text.
    pub trigger: String,
    /// True for a dry run, which changes nothing.
    pub dry_run: bool,
    /// Segments that were weighed.
    pub segments: u64,
    /// Moves decided.
    pub moves: u32,
    /// Moves carried out.
    pub moves_done: u32,
    /// Moves skipped.
    pub moves_skipped: u32,
    /// Moves proposed for tables that the loop only advises on; not part of `moves`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub moves_proposed: u32,
    /// Bytes of the moves decided.
    pub planned_bytes: u64,
    /// Bytes of the moves carried out.
    pub moved_bytes: u64,
    /// Expected reading time of the placement as found, in microseconds per epoch.
    pub before_us: f64,
    /// Expected reading time of the planned placement.
    pub after_us: f64,
    /// The solver's objective: `after_us` plus the amortised cost of the moves.
    pub objective_us: f64,
    /// No placement within the budgets has a lower objective than this.
    pub bound_us: f64,
    /// (objective - bound) / objective; 0 = proven optimal.
    pub gap: f64,
    /// The solver that bounded the objective besides ours: "microlp". Absent until it answers, after the moves; where it was
    /// not asked, because segments left under memory pressure or the server stopped; where it has no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub certified_by: Option<String>,
    /// The gap by its bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub certified_gap: Option<f64>,
    /// "lagrange", or "greedy" when the solver gave up; "lagrange until deadline" or "greedy at deadline" where its time
    /// was over; "ranked" under other policies than "optimal".
    pub solver: String,
    /// Name of the policy that decided.
    #[serde(default = "optimal")]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub policy: String,
    /// Time to weigh and solve, in microseconds.
    pub solve_us: u64,
    /// Time to move, in microseconds.
    pub move_us: u64,
    /// One per tier with a budget that binds placement.
    pub prices: Vec<TierPrice>,
    /// Predicted reading time per epoch that the moves carried out save.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub predicted_us: f64,
    /// Measured reading time per epoch that moves save, of those that could be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub measured_us: Option<f64>,
    /// Predicted saving of the moves that `measured_us` covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub measured_moves_predicted_us: Option<f64>,
    /// Sum of the differences between measured and predicted savings, as a part of the predicted ones; 0 = as predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub prediction_error: Option<f64>,
    /// Epochs over which `measured_us` was measured.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub measured_epochs: u32,
}

impl EpochRecord {
    /// Adds the gap by the bound of the solver that certifies.
    pub(super) fn certify(&mut self, gap: f64) {
        self.certified_by = Some(CERTIFIER.into());
        self.certified_gap = Some(gap);
    }
}

/// The policy of epochs that were stored before there was a choice.
fn optimal() -> String {
    super::PolicyKind::Optimal.name().into()
}

/// An epoch with its moves, in order of execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EpochReport {
    /// The epoch.
    pub epoch: EpochRecord,
    /// Its moves.
    pub moves: Vec<MoveRecord>,
}
