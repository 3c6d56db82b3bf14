//! Heat: counters of accesses, and their decayed differences.
//!
//! Counters are per segment and pattern, atomic, monotone and never reset; consumers take differences over their own
//! interval (Dreseler 2021, section 6.2). One statement counts a segment once, however often it reads it.
//!
//! - [`access`]: totals of accesses by tier and pattern, for metrics
//! - [`counters`]: the access counters of one segment
//! - [`decay`]: the heat of all segments, as decayed means of counter differences
//! - [`sample`]: the pattern of a read, from a sample of its selection
//! - [`views`]: the heat of hot views

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
