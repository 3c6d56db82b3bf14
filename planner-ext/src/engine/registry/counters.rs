//! Counts of ended statements since the engine started.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_sql::StatementKind;
use terrace_tier_store::durations::{DurationSums, Durations};

use super::record::{Outcome, StatementRecord};

/// Monotonic counters since the engine started.
#[derive(Debug, Default)]
pub struct Counters {
    ended: [[AtomicU64; Outcome::ALL.len()]; StatementKind::ALL.len()],
    durations: [Durations; StatementKind::ALL.len()],
    queue_waits: Durations,
    rejected: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Statements of `kind` that ended with `outcome`.
    pub fn ended(&self, kind: StatementKind, outcome: Outcome) -> u64 {
        let counts = self.ended.get(kind as usize).and_then(|k| k.get(outcome as usize));
        counts.map_or(0, |c| c.load(Ordering::Relaxed))
    }

    /// Time from planning to the last row of statements of `kind` that ended.
    pub fn durations(&self, kind: StatementKind) -> Option<DurationSums> {
        self.durations.get(kind as usize).map(Durations::sums)
    }

    /// Time that statements waited for an execution slot, those included that were refused one in the end.
    pub fn queue_waits(&self) -> DurationSums {
        self.queue_waits.sums()
    }

    /// Statements refused: the queue full, the wait too long, or the server stopping.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Rows returned or stored by ended statements.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Bytes of these rows in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts the end of a statement.
    pub(super) fn count(&self, record: &StatementRecord, outcome: Outcome) {
        if let Some(c) = self.ended.get(record.kind as usize).and_then(|k| k.get(outcome as usize)) {
            c.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(durations) = self.durations.get(record.kind as usize) {
            durations.record(record.elapsed_us);
        }
        self.rows.fetch_add(record.rows, Ordering::Relaxed);
        self.bytes.fetch_add(record.bytes, Ordering::Relaxed);
    }

    /// Counts a wait for an execution slot.
    pub(super) fn count_queue_wait(&self, wait_us: u64) {
        self.queue_waits.record(wait_us);
    }

    /// Counts a statement that was refused.
    pub(super) fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_hold_every_kind_and_outcome() {
        let counters = Counters::default();
        let mut record = StatementRecord { elapsed_us: 150, ..StatementRecord::example() };
        for kind in StatementKind::ALL {
            for outcome in Outcome::ALL {
                record.kind = kind;
                counters.count(&record, outcome);
                assert_eq!(counters.ended(kind, outcome), 1, "{} {}", kind.name(), outcome.name());
            }
            // Between 100 and 200 us.
            let durations = counters.durations(kind).map(|sums| (sums.counts[1], sums.sum_us));
            assert_eq!(durations, Some((3, 450)), "{}", kind.name());
        }
    }

    #[test]
    fn waits_for_a_slot_are_counted_apart() {
        let counters = Counters::default();
        counters.count_queue_wait(1_000);
        assert_eq!((counters.queue_waits().sum_us, counters.queue_waits().counts[3]), (1_000, 1));
    }
}
