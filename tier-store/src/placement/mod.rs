//! Placement: which tier each segment should lie on, and the loop that brings it there.
//!
//! ```text
//!   counters -> heat -> epoch::plan (cost x heat, solver) -> moves with reasons -> migrate -> report and log
//! ```
//!
//! What running statements still have to read ([`agenda`]) stays in memory for them. [`explain`] says why, and what would change it; [`mode`], [`control`] and [`order`] are the user's hand on the loop;
//! [`measure`] says afterwards what moves brought, [`advisor`] beforehand what other budgets would.
//!
//! What users want of the placement ([`duty`]) comes first: room for what must lie on a tier is reserved, what must not is
//! not offered. A [`policy`] shares out the rest. [`epoch`], [`policy`] and [`solver`] are pure: the same inputs give the same plan, no clock and no I/O. [`tiering`] is
//! the loop around them; it sees tables and tiers through the small trait [`TieringHost`].

pub mod advice;
mod advisor;
mod agenda;
mod ask;
pub mod calibrate;
mod control;
pub mod correction;
pub mod cost;
pub mod duty;
pub mod epoch;
pub mod explain;
mod flip;
mod forecast;
mod gauge;
pub mod hold;
mod kept;
mod measure;
pub mod merge;
pub mod metrics;
pub mod mode;
pub(crate) mod needs;
pub mod order;
pub mod outlook;
pub mod picture;
pub mod policy;
pub mod pressure;
pub mod record;
mod reserve;
mod rest;
pub mod solver;
pub(crate) mod survey;
mod tier_set;
pub mod tiering;
mod turn;
pub mod views;
mod words;
pub mod workload;

pub use advice::{Advice, AdviceRequest, BudgetPoint, Configuration, Goal, MoreRoom, UnreadColumn};
pub use agenda::{Agenda, ExpectedRead};
pub use calibrate::{Calibration, Point, TierProfile};
pub use control::Control;
pub use correction::{Correction, HomeReads};
pub use cost::{Extent, PatternCost, TierCost};
pub use duty::{Duty, TierMask};
pub use explain::{Basis, Condition, Explanation, Lever, TierOption};
pub use hold::HoldOptions;
pub use merge::{MergeKind, MergeOptions};
pub use metrics::TieringMetrics;
pub use mode::TieringMode;
pub use order::{Order, OrderOutcome, OrderReport, Scope};
pub use outlook::{Outlook, ReadPart};
pub use picture::Picture;
pub use policy::PolicyKind;
pub use pressure::Pressure;
pub use record::{EpochRecord, EpochReport, MoveRecord, MoveStatus, SEVERAL, TierPrice};
pub use tier_set::TierState;
pub(crate) use tier_set::check_name;
pub use tiering::{EpochRequest, TableSnapshot, Tiering, TieringHost, TieringOptions};
pub use views::{ViewInput, ViewPart};
pub use workload::{ColumnReads, ScanProfile, StatementProfile, Workload};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
