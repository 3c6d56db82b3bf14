//! What a node was asked to do, for tests and for people who look how evenly work is spread.
//!
//! The counts only grow. They are those of plans: a task that is cancelled has been counted, and so has a chunk that a
//! run-time filter excludes later.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a node was asked to do since it started.
#[derive(Debug, Default)]
pub struct NodeCounts {
    tasks: AtomicU64,
    items: AtomicU64,
}

impl NodeCounts {
    pub(crate) fn add_task(&self) {
        self.tasks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_items(&self, items: usize) {
        self.items.fetch_add(items as u64, Ordering::Relaxed);
    }

    /// Tasks: parts of a stage of a statement.
    pub fn tasks(&self) -> u64 {
        self.tasks.load(Ordering::Relaxed)
    }

    /// Chunks and entries of the delta in the scans of its tasks, those included that run-time filters exclude.
    pub fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }
}
