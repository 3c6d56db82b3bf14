//! Placement: which tier each segment should lie on, and the loop that brings it there.
//!
//! ```text
//!   counters -> heat -> epoch::plan (cost x heat, solver) -> moves with reasons -> migrate -> report and log
//! ```
//!
//! [`epoch`] and [`solver`] are pure: the same inputs give the same plan, no clock and no I/O. [`tiering`] is the loop
//! around them; it sees tables and tiers through the small trait [`TieringHost`].

pub mod calibrate;
pub mod cost;
pub mod epoch;
pub mod metrics;
pub mod record;
pub mod solver;
pub mod tiering;

pub use calibrate::{Calibration, TierProfile};
pub use cost::{PatternCost, TierCost};
pub use metrics::TieringMetrics;
pub use record::{EpochRecord, EpochReport, MoveRecord, MoveStatus, TierPrice};
pub use tiering::{EpochRequest, TableSnapshot, Tiering, TieringHost, TieringOptions};
