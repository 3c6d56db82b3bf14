//! Counters of accesses, as readers of segments count them.
//!
//! Counters are per segment and pattern, atomic, monotone and never reset; consumers take differences over their own
//! interval (Dreseler 2021, section 6.2). One statement counts a segment once, however often it reads it.
//!
//! - [`access`]: totals of accesses by tier and pattern, for metrics
//! - [`counters`]: the access counters of one segment
//! - [`heritage`]: the heat that a chunk inherits from the chunks that it replaces
//! - [`sample`]: the pattern of a read, from a sample of its selection

pub mod access;
pub mod counters;
pub mod heritage;
pub mod sample;

pub use access::AccessTotals;
pub use counters::{PatternCounts, SegmentCounters};
pub use heritage::Heritage;
pub use sample::Sample;
