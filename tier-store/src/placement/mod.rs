//! Placement: which tier each segment should lie on, and the loop that brings it there.
//!
//! ```text
//!   counters -> heat -> epoch::plan (cost x heat, solver) -> moves with reasons -> migrate -> report and log
//! ```
//!
//! What users want of the placement ([`duty`]) comes first: room for what must lie on a tier is reserved, what must not is
//! not offered. A [`policy`] shares out the rest. [`epoch`], [`policy`] and [`solver`] are pure: the same inputs give the same plan, no clock and no I/O. [`tiering`] is
//! the loop around them; it sees tables and tiers through the small trait [`TieringHost`].

pub mod calibrate;
pub mod cost;
pub mod duty;
pub mod epoch;
pub mod hold;
pub mod metrics;
pub(crate) mod needs;
pub mod policy;
pub mod record;
mod reserve;
mod rest;
pub mod solver;
pub(crate) mod survey;
pub mod tiering;
mod words;

pub use calibrate::{Calibration, TierProfile};
pub use cost::{PatternCost, TierCost};
pub use duty::{Duty, TierMask};
pub use metrics::TieringMetrics;
pub use policy::PolicyKind;
pub use record::{EpochRecord, EpochReport, MoveRecord, MoveStatus, TierPrice};
pub use tiering::{EpochRequest, TableSnapshot, Tiering, TieringHost, TieringOptions};

#[cfg(test)]
mod tests;
