//! Memory of rows on their way into chunk files: all bulk ingests share one limit and wait for each other.
//!
//! Whoever holds a share finishes without asking for another, so waiting always ends.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The limit and what is in use.
#[derive(Debug)]
pub struct IngestMemory {
    limit_bytes: u64,
    used_bytes: Mutex<u64>,
    freed: Condvar,
}

/// Bytes in use; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<IngestMemory>,
    bytes: u64,
}

impl IngestMemory {
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, used_bytes: Mutex::default(), freed: Condvar::new() })
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes in use now; above the limit only while one share is larger than that.
    pub fn used_bytes(&self) -> u64 {
        *self.used_bytes.lock()
    }

    /// Waits until there is room for `bytes`, or nothing is in use.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Share {
        let mut used_bytes = self.used_bytes.lock();
        self.freed.wait_while(&mut used_bytes, |used| *used > 0 && used.saturating_add(bytes) > self.limit_bytes);
        *used_bytes = used_bytes.saturating_add(bytes);
        Share { memory: Arc::clone(self), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used_bytes = self.memory.used_bytes.lock();
        *used_bytes = used_bytes.saturating_sub(self.bytes);
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn shares_wait_for_room_and_one_too_large_goes_alone() {
        let memory = IngestMemory::new(100);
        let (most, done) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for bytes in [60, 40, 30, 150, 90, 20, 10, 99] {
                let (memory, most, done) = (&memory, &most, &done);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let share = memory.take(bytes);
                        if bytes <= 100 {
                            most.fetch_max(memory.used_bytes(), Ordering::Relaxed);
                        } else {
                            assert_eq!(memory.used_bytes(), bytes, "alone");
                        }
                        thread::yield_now();
                        drop(share);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!((done.into_inner(), memory.used_bytes()), (400, 0));
        assert!(most.into_inner() <= 100);
    }
}
