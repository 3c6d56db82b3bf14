//! How far a statement is that counts its work: `OPTIMIZE` knows which chunks it has still to rewrite.
//!
//! The task that works notes what is left; records of the statement have it, for `system.queries`, the admin API, the prompt
//! and the cockpit. Statements that do not count their work leave all of it at 0.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counted work of a statement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatementWork {
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all, as far as they are known; 0 where the statement does not count its work.
    pub total_bytes: u64,
}

/// The counted work of a running statement.
#[derive(Debug, Default)]
pub(in crate::engine) struct WorkProgress {
    left_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl WorkProgress {
    /// Notes how much is left. The most that ever was left counts as the whole: work may come up while the statement runs.
    pub(in crate::engine) fn note_left(&self, left_bytes: u64) {
        self.total_bytes.fetch_max(left_bytes, Ordering::Relaxed);
        self.left_bytes.store(left_bytes, Ordering::Relaxed);
    }

    /// The work as it is now.
    pub(super) fn work(&self) -> StatementWork {
        let total_bytes = self.total_bytes.load(Ordering::Relaxed);
        StatementWork { done_bytes: total_bytes.saturating_sub(self.left_bytes.load(Ordering::Relaxed)), total_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_comes_up_counts_into_the_whole() {
        let progress = WorkProgress::default();
        assert_eq!(progress.work(), StatementWork::default());
        let noted = [100, 60, 120, 0].map(|left| {
            progress.note_left(left);
            let StatementWork { done_bytes, total_bytes } = progress.work();
            [done_bytes, total_bytes]
        });
        assert_eq!(noted, [[0, 100], [40, 100], [0, 120], [120, 120]]);
    }
}
