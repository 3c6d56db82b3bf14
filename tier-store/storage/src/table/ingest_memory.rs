//! Limits the memory of the rows of bulk ingests: those that are written into chunk files, and those that wait until their
//! chunk is full. All ingests share one limit.
//!
//! Ingests wait for each other when they write ([`WaitingRows::take_share`]). Requests are served in order, and the holder of a
//! share finishes without requesting another, so every wait ends. Nobody waits to keep rows: an ingest that may not keep
//! more ([`WaitingRows::keep`]) writes a smaller chunk.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Bytes of waiting rows that each ingest may keep, whatever others keep.
const FREE_BYTES: u64 = 4 << 20;

/// The limit, and the bytes in use.
#[derive(Debug)]
pub struct IngestMemory {
    limit_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of all shares.
    shared_bytes: u64,
    /// Bytes of the rows that wait, and the number of ingests that have such.
    waiting_bytes: u64,
    waiting_ingests: u64,
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

    /// Bytes in use now; above the limit only while one share is larger than that, or by what each ingest may keep.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.shared_bytes.saturating_add(state.waiting_bytes)
    }

    /// The rows of an ingest that wait: none yet.
    pub fn waiting_rows(self: &Arc<Self>) -> WaitingRows {
        WaitingRows { memory: Arc::clone(self), bytes: 0 }
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        state.shared_bytes = state.shared_bytes.saturating_sub(self.bytes);
        drop(state);
        self.memory.changed.notify_all();
    }
}

/// Rows of an ingest that wait until their chunk is full.
#[derive(Debug)]
pub struct WaitingRows {
    memory: Arc<IngestMemory>,
    bytes: u64,
}

impl WaitingRows {
    /// Keeps `bytes` of rows in all from now on. It returns false and keeps as many as before when all ingests would keep
    /// more than half of the limit, and this one more than an equal part of that and [`FREE_BYTES`].
    pub fn keep(&mut self, bytes: u64) -> bool {
        let memory = Arc::clone(&self.memory);
        let most = memory.limit_bytes / 2;
        let mut state = memory.state.lock();
        let all = state.waiting_bytes.saturating_sub(self.bytes).saturating_add(bytes);
        let ingests = state.waiting_ingests + u64::from(self.bytes == 0);
        if bytes > self.bytes && all > most && bytes > FREE_BYTES.max(most / ingests) {
            return false;
        }
        self.set(&mut state, bytes);
        true
    }

    /// Waits until there is room for `bytes`, or nobody has a share. From then on the share counts, and no waiting rows.
    pub fn take_share(&mut self, bytes: u64) -> MemoryShare {
        let memory = Arc::clone(&self.memory);
        let mut state = memory.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        memory.changed.wait_while(&mut state, |state| {
            let others = state.waiting_bytes.saturating_sub(self.bytes).min(memory.limit_bytes / 2);
            let wanted = state.shared_bytes.saturating_add(others).saturating_add(bytes);
            state.now_serving != ticket || (state.shared_bytes > 0 && wanted > memory.limit_bytes)
        });
        state.now_serving += 1;
        state.shared_bytes = state.shared_bytes.saturating_add(bytes);
        self.set(&mut state, 0);
        drop(state);
        memory.changed.notify_all();
        MemoryShare { memory, bytes }
    }

    fn set(&mut self, state: &mut State, bytes: u64) {
        state.waiting_bytes = state.waiting_bytes.saturating_sub(self.bytes).saturating_add(bytes);
        state.waiting_ingests = state.waiting_ingests.saturating_sub(u64::from(self.bytes > 0)) + u64::from(bytes > 0);
        self.bytes = bytes;
    }
}

impl Drop for WaitingRows {
    fn drop(&mut self) {
        self.keep(0);
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
                    let mut rows = memory.waiting_rows();
                    for _ in 0..50 {
                        let share = rows.take_share(bytes);
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

    #[test]
    fn waiting_rows_keep_half_of_the_limit_or_an_equal_part_of_it() {
        let limit = 20 * FREE_BYTES;
        let memory = IngestMemory::new(limit);
        let [mut first, mut second, mut third] = [(); 3].map(|()| memory.waiting_rows());
        assert!(first.keep(limit / 2) && !first.keep(limit / 2 + 1));
        // One that keeps much and is slow does not make the others write small chunks.
        assert!(second.keep(limit / 4) && !second.keep(limit / 4 + 1));
        assert_eq!(memory.used_bytes(), limit / 2 + limit / 4);
        assert!(first.keep(limit / 8) && second.keep(limit / 2 - limit / 8));
        // A chunk is written beside them, and the next one waits until they keep less.
        let share = third.take_share(limit / 2);
        thread::scope(|scope| {
            let memory = &memory;
            let next = scope.spawn(move || memory.waiting_rows().take_share(limit / 4).bytes);
            while memory.state.lock().next_ticket < 2 {
                thread::yield_now();
            }
            assert!(!next.is_finished() && third.keep(FREE_BYTES));
            drop((first, second));
            assert_eq!(next.join().unwrap(), limit / 4);
        });
        drop((share, third));
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn rows_that_become_a_chunk_count_once() {
        let memory = IngestMemory::new(100);
        let [mut first, mut second] = [(); 2].map(|()| memory.waiting_rows());
        assert!(first.keep(50) && second.keep(50));
        let shares = [second.take_share(50), first.take_share(50)];
        assert_eq!(memory.used_bytes(), 100);
        drop((shares, first, second));
        assert_eq!((memory.used_bytes(), memory.state.lock().waiting_ingests), (0, 0));
    }
}
