//! Limits of the solver's work for one answer: counts, and a deadline after which the best choice so far is the answer.
//!
//! The solver checks the deadline between evaluations and once in many nodes of the search, so an answer comes later than
//! its deadline by about one evaluation of all segments and the rounding after it. On a simulated clock that does not
//! advance, the deadline never passes.

use std::time::Duration;

use terrace_model::clock::Clock;

use super::Effort;

/// A point in time of a clock.
#[derive(Debug, Clone, Copy)]
pub struct Deadline<'a> {
    clock: &'a dyn Clock,
    at_us: u64,
}

impl<'a> Deadline<'a> {
    /// The deadline at `time` from now.
    pub fn after(clock: &'a dyn Clock, time: Duration) -> Self {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self { clock, at_us: clock.now_us().saturating_add(time_us) }
    }
}

/// Limits of the work for one answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work<'a> {
    /// Limits of counts.
    pub effort: Effort,
    /// Limit of time; `None`: no limit.
    pub deadline: Option<Deadline<'a>>,
}

impl From<Effort> for Work<'_> {
    fn from(effort: Effort) -> Self {
        Self { effort, deadline: None }
    }
}

impl Work<'_> {
    /// True when the time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline.clock.now_us() >= deadline.at_us)
    }
}
