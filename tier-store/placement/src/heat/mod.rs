//! Heat: decayed differences of the access counters.
//!
//! - [`decay`]: the heat of all segments, as decayed means of counter differences
//! - [`views`]: the heat of hot views

pub mod decay;
pub mod views;

pub use decay::{Heat, SegmentHeat, SegmentKey};
pub use views::{ViewSource, ViewUse};
