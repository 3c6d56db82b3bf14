//! Heat: counters of accesses, their decayed differences, and snapshots.
//!
//! Counters are per segment and pattern, atomic, monotone and never reset; consumers take differences over their own
//! interval (Dreseler 2021, section 6.2). One statement counts a segment once, however often it reads it.

pub mod access;
pub mod counters;
pub mod decay;
pub mod sample;
pub mod views;

pub use access::AccessTotals;
pub use counters::{Pattern, PatternCounts, SegmentCounters};
pub use decay::{Heat, Heritage, SegmentHeat, SegmentKey};
pub use sample::Sample;
pub use views::{ViewSource, ViewUse};
