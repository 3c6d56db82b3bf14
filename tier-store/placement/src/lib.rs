//! Placement: decides on which tier each segment should lie, in which form, and runs the loop that moves it there.
//!
//! ```text
//!   counters -> heat -> epoch::plan (cost x heat, solver) -> moves with reasons -> migrate -> report and log
//! ```
//!
//! The constraints of users come first: room for segments that must lie on a tier is reserved, and a forbidden tier has
//! infinite cost. A policy places the other segments. Planning (`epoch`, `policy`, `solver`) is pure: the same inputs
//! give the same plan, without a clock and without I/O. The loop reads tables and tiers through the trait
//! [`TieringHost`]. The crate depends on the model and the storage crates only; it opens no store.
//!
//! Inputs:
//!
//! - [`heat`]: decayed differences of the access counters
//! - [`survey`]: collects the segments and tiers that a plan weighs
//! - [`cost`]: the cost model, expected time of accesses on a tier
//! - [`form_cost`]: the cost of the packed form of a copy
//! - [`place`]: the tier and the form of a copy
//! - [`form_tiers`]: the tiers on which a segment may have each form
//! - [`calibrate`]: measures the cost profiles of tiers
//! - [`active_calibration`]: the calibration in use, saved and corrected
//! - [`correction`]: corrects the cost of the home by the reads of scans
//! - [`constraints`]: the tiers that placement rules leave to a segment
//! - [`expected_reads`]: segments that running statements still have to read
//! - [`views`]: the effect of hot views on their segments
//! - [`hysteresis`]: holds back segments that moved a short time ago
//!
//! Planning:
//!
//! - [`epoch`]: plans an epoch, the moves and their reasons
//! - [`feasibility`]: tests whether the rules fit the budgets
//! - [`reserved`]: room of pinned segments, taken before the policy chooses
//! - [`frozen`]: segments that a plan leaves where they are, and the prepared plan
//! - [`residual`]: the problem that is left for the policy
//! - [`policy`]: the policies that place free segments
//! - [`solver`]: finds the cheapest placement under the budgets
//!
//! The loop:
//!
//! - [`tiering`]: the loop as its users see it, its settings and its host
//! - [`shared`]: the four parts of the loop, and the epochs that its threads run
//! - [`planner`]: heat, costs and history of segments, and the inputs of plans
//! - [`mover`]: carries out moves, at the rates of devices that work
//! - [`controller`]: lets epochs, orders and changes of tiers take turns; settings of users
//! - [`lock_order`]: the order of the locks of these parts, checked in debug builds and tests
//! - [`epoch_steps`]: the steps of an epoch that concern several parts: inputs, plans, proposals, saving
//! - [`epoch_draft`]: the moves of an epoch until its report is saved
//! - [`control`]: mode and freeze, as users set them
//! - [`order`]: moves that users order
//! - [`pressure`]: drops copies at once where room is lacking
//! - [`merge`]: promotes columns that scans have read from home
//! - [`tier_set`]: adds, drains and drops tiers
//! - [`record`]: records of epochs and moves
//! - [`snapshot`]: the placement after an epoch, for rolling back
//! - [`measure`]: measures the benefit of moves
//! - [`metrics`]: counters of the loop
//!
//! Queries:
//!
//! - [`queries`]: the read-only queries to the loop
//! - [`explain`]: explains the place of a segment, and what would change it
//! - [`condition_search`]: confirms these conditions by planning again
//! - [`query_cost`]: the cost of a statement's reads
//! - [`comparison`]: compares policies and forms by the times they are expected to make
//! - [`advice`]: requests to the advisor and its answers
//! - [`advisor`]: predicts the effect of other budgets
//! - [`forecast`]: forecasts the time of statements with another placement
//! - [`workload`]: profiles of statements that ran
//! - [`format`](mod@format): number formatting for sentences

mod active_calibration;
pub mod advice;
mod advisor;
pub mod calibrate;
pub mod comparison;
mod condition_search;
pub mod constraints;
mod control;
mod controller;
pub mod correction;
pub mod cost;
pub mod epoch;
mod epoch_draft;
mod epoch_steps;
mod expected_reads;
pub mod explain;
pub mod feasibility;
mod forecast;
mod form_cost;
mod form_tiers;
mod format;
mod frozen;
pub mod heat;
pub mod hysteresis;
mod lock_order;
mod measure;
pub mod merge;
pub mod metrics;
mod mover;
pub mod order;
mod place;
mod planner;
pub mod policy;
pub mod pressure;
mod queries;
pub mod query_cost;
pub mod record;
mod reserved;
mod residual;
mod shared;
pub mod snapshot;
pub mod solver;
pub mod survey;
mod tier_set;
pub mod tiering;
pub mod views;
pub mod workload;

pub use advice::{Advice, AdviceRequest, BudgetPoint, Configuration, Goal, MoreRoom, UnreadColumn};
pub use calibrate::{Calibration, Point, TierProfile};
pub use constraints::{PlacementConstraints, TierMask};
pub use control::Control;
pub use correction::{Correction, HomeReads};
pub use cost::{Extent, PatternCost, TierCost};
pub use epoch::{DeviceInput, ImageInput, ImageRule, PlannedImage};
pub use expected_reads::{ExpectedRead, ExpectedReadSource};
pub use explain::{Basis, Condition, Explanation, Lever, TierOption};
pub use form_cost::{FormCost, PackedValues};
pub use form_tiers::FormTiers;
pub use hysteresis::HysteresisOptions;
pub use merge::{MergeKind, MergeOptions};
pub use metrics::TieringMetrics;
pub use order::{Order, OrderOutcome, OrderReport, Scope};
pub use place::Place;
pub use policy::PolicyKind;
pub use pressure::Pressure;
pub use query_cost::{QueryCost, ReadPart};
pub use record::{EpochRecord, EpochReport, MoveRecord, MoveStatus, SEVERAL, TierPrice};
pub use snapshot::PlacementSnapshot;
pub use tier_set::{TierState, check_name};
pub use tiering::{EpochRequest, TableSnapshot, Tiering, TieringHost, TieringOptions};
pub use views::{ViewInfluence, ViewInput};
pub use workload::{ColumnReads, ScanProfile, StatementProfile, Workload};

#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
