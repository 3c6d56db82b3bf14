//! The mark of the spans and events that belong to traces.
//!
//! Crates make them with `tracing`, under this target and of the level TRACE, and know of no collector. While nobody asks
//! for traces, the level is off and a span costs one comparison. Where the server sends traces, it tells them from the
//! spans of the log by the target.

/// Target of the spans and events that belong to traces.
pub const TRACE_TARGET: &str = "terrace::trace";

/// A number as attributes of spans have it. Attributes are signed: an unsigned number would become a text.
pub fn attribute(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
