//! Limits the memory of rows that bulk ingests write into chunk files. All ingests share one limit and wait for each
//! other.
//!
//! Requests are served in order, and the holder of a share finishes without requesting another, so every wait ends.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The limit, and the bytes in use.
#[derive(Debug)]
pub struct IngestMemory {
    limit_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    used_bytes: u64,
    /// Ticket of the next request.
    next_ticket: u64,
    /// Ticket of the request that is served next.
    now_serving: u64,
}

/// Bytes that an ingest uses; dropping it releases them.
#[derive(Debug)]
pub struct MemoryShare {
    memory: Arc<IngestMemory>,
    bytes: u64,
}

impl IngestMemory {
    /// Creates an account of `limit_bytes`, all of it free.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, state: Mutex::default(), changed: Condvar::new() })
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes in use now; above the limit only while one share is larger than that.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes
    }

    /// Waits until there is room for `bytes`, or no bytes are in use.
    pub fn take(self: &Arc<Self>, bytes: u64) -> MemoryShare {
        let mut state = self.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        self.changed.wait_while(&mut state, |state| {
            let full = state.used_bytes > 0 && state.used_bytes.saturating_add(bytes) > self.limit_bytes;
            state.now_serving != ticket || full
        });
        state.now_serving += 1;
        state.used_bytes = state.used_bytes.saturating_add(bytes);
        drop(state);
        self.changed.notify_all();
        MemoryShare { memory: Arc::clone(self), bytes }
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        state.used_bytes = state.used_bytes.saturating_sub(self.bytes);
        drop(state);
        self.memory.changed.notify_all();
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
        let most = AtomicU64::new(0);
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            for bytes in [60, 40, 30, 150, 90, 20, 10, 99] {
                let memory = &memory;
                let most = &most;
                let done = &done;
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
