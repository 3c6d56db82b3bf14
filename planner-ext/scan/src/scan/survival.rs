//! The share of rows that pass the filters of a scan.

use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of the chunks that an execution has finished, and how many of them passed the filters.
#[derive(Debug, Default)]
pub(super) struct SurvivalRate {
    rows: AtomicU64,
    survivors: AtomicU64,
}

impl SurvivalRate {
    /// Adds the rows of a finished chunk.
    pub(super) fn add(&self, rows: usize, survivors: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.survivors.fetch_add(survivors as u64, Ordering::Relaxed);
    }

    /// How many of `rows` rows are expected to pass the filters; all of them before the first chunk is finished.
    pub(super) fn expected_survivors(&self, rows: u32) -> usize {
        let seen = self.rows.load(Ordering::Relaxed);
        let survivors = self.survivors.load(Ordering::Relaxed);
        let share = if seen > 0 { (survivors as f64 / seen as f64).min(1.0) } else { 1.0 };
        (f64::from(rows) * share).ceil() as usize
    }
}
