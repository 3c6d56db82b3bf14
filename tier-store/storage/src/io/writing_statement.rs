//! A statement that stores rows: whose turn its writes and its checks of keys take, and how long it waits for them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::intent::StatementId;

/// A statement that stores rows, or a seal.
#[derive(Debug)]
pub struct WritingStatement {
    id: StatementId,
    write_wait_us: AtomicU64,
    key_wait_us: AtomicU64,
}

impl Default for WritingStatement {
    /// One that takes turns of its own.
    fn default() -> Self {
        Self::new(StatementId::next())
    }
}

impl WritingStatement {
    /// The statement with this id, which has not waited so far.
    pub fn new(id: StatementId) -> Self {
        Self { id, write_wait_us: AtomicU64::new(0), key_wait_us: AtomicU64::new(0) }
    }

    /// Whose reads and writes they are.
    pub fn id(&self) -> StatementId {
        self.id
    }

    /// Microseconds until its chunk files were durable, summed over the threads that write them.
    pub fn write_wait_us(&self) -> u64 {
        self.write_wait_us.load(Ordering::Relaxed)
    }

    /// Microseconds for which it waited for keys that the home tier has, to compare its own with them.
    pub fn key_wait_us(&self) -> u64 {
        self.key_wait_us.load(Ordering::Relaxed)
    }

    /// Adds to [`Self::write_wait_us`].
    pub fn add_write_wait(&self, us: u64) {
        self.write_wait_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Adds to [`Self::key_wait_us`].
    pub fn add_key_wait(&self, us: u64) {
        self.key_wait_us.fetch_add(us, Ordering::Relaxed);
    }
}
