//! Admission: how many statements execute at once, and how many may wait for how long.
//!
//! Refusing early keeps the server alive and tells the client to try again; a queue without a bound only delays both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, ErrorKind, Result};

/// Limits the statements that execute at once and those that wait.
#[derive(Debug)]
pub(super) struct Admission {
    slots: Arc<Semaphore>,
    max_running: usize,
    queued: AtomicUsize,
    max_queued: usize,
    timeout: Duration,
}

/// The right of one statement to execute; dropping it frees the slot.
pub(super) type ExecutionSlot = OwnedSemaphorePermit;

/// Decrements the count of waiting statements when it is dropped, also with a cancelled future.
struct QueuedStatement<'a>(&'a AtomicUsize);

impl Drop for QueuedStatement<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Admission {
    pub(super) fn new(max_running: usize, max_queued: usize, timeout: Duration) -> Arc<Self> {
        let max_running = max_running.clamp(1, Semaphore::MAX_PERMITS);
        let slots = Arc::new(Semaphore::new(max_running));
        Arc::new(Self { slots, max_running, queued: AtomicUsize::new(0), max_queued, timeout })
    }

    /// Statements waiting now.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Waits for a slot. [`ErrorKind::ResourceExhausted`] when the queue is full or the wait too long.
    pub(super) async fn acquire_slot(&self) -> Result<ExecutionSlot> {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(slot);
        }
        let ahead = self.queued.fetch_add(1, Ordering::SeqCst);
        let _waiting = QueuedStatement(&self.queued);
        if ahead >= self.max_queued {
            return Err(Error::new(
                ErrorKind::ResourceExhausted,
                format!("the server is busy: {} statements run and {ahead} wait; try again", self.max_running),
            ));
        }
        match tokio::time::timeout(self.timeout, Arc::clone(&self.slots).acquire_owned()).await {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "the server is stopping; try again")),
            Err(_) => Err(Error::new(
                ErrorKind::ResourceExhausted,
                format!(
                    "the statement waited {:?} for one of {} execution slots; the server is busy, try again",
                    self.timeout, self.max_running
                ),
            )),
        }
    }
}
