//! Heat: counters of accesses, their decayed differences, and snapshots.
//!
//! Counters are per segment and pattern, atomic, monotone and never reset; consumers take differences over their own
//! interval (Dreseler 2021, section 6.2). One scan of a segment counts once.

pub mod access;
pub mod counters;
pub mod decay;

pub use access::AccessTotals;
pub use counters::{Pattern, PatternCounts, SegmentCounters};
pub use decay::{Heat, Heritage, SegmentHeat, SegmentKey};
