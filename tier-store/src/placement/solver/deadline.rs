//! How much work one answer may take: counts, and a moment after which an answer is made of what is known.
//!
//! Looked at between evaluations and once in many nodes of the search, so an answer comes later than its deadline by about one
//! look at all segments and the rounding after it. On a clock that stands still nothing is ever late.

use std::time::Duration;

use super::Effort;
use crate::clock::Clock;

/// A moment on a clock.
#[derive(Debug, Clone, Copy)]
pub struct Deadline<'a> {
    clock: &'a dyn Clock,
    at_us: u64,
}

impl<'a> Deadline<'a> {
    /// So long from now.
    pub fn after(clock: &'a dyn Clock, time: Duration) -> Self {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self { clock, at_us: clock.now_us().saturating_add(time_us) }
    }
}

/// What one answer may take.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work<'a> {
    /// In counts.
    pub effort: Effort,
    /// In time, where that is limited.
    pub deadline: Option<Deadline<'a>>,
}

impl From<Effort> for Work<'_> {
    fn from(effort: Effort) -> Self {
        Self { effort, deadline: None }
    }
}

impl Work<'_> {
    /// True when the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline.clock.now_us() >= deadline.at_us)
    }
}
