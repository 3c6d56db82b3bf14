//! The two ends of a read or a write: what the caller awaits and what the engine completes.
//!
//! ```text
//!   queued --begin--> running --complete--> done --poll/wait--> gone
//!     |                  |
//!     | handle dropped   | handle dropped
//!     v                  v
//!   gone (withdrawn)   abandoned --complete--> gone, buffer freed by the engine
//! ```
//!
//! `in_flight` counts handles that are queued, running or abandoned. What [`ReadHandle::keep`] was given lives until
//! the engine has given up the buffer, even when the handle was dropped.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};
use terrace_model::clock::Clock;
use terrace_model::{Error, Result};

use super::request::Direction;
use super::{AlignedBuffer, Class, IoStats};

#[derive(Debug)]
enum Phase {
    Queued,
    Running,
    Abandoned,
    Done(Result<AlignedBuffer>),
    Gone,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    waker: Option<Waker>,
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Debug)]
struct Slot {
    inner: Mutex<Inner>,
    ready: Condvar,
    class: Class,
    direction: Direction,
    /// When the caller asked for the operation.
    since_us: u64,
    stats: Arc<IoStats>,
}

/// A read or a write under way: a future of its bytes, also awaitable from a plain thread. Dropping it withdraws the
/// operation; a write that has begun may then have written some of them.
#[derive(Debug)]
pub struct ReadHandle {
    slot: Arc<Slot>,
}

/// The engine's end. Dropped without [`Completer::complete`], it answers [`Error::Cancelled`].
#[derive(Debug)]
pub(crate) struct Completer {
    slot: Arc<Slot>,
}

/// The two ends of a new queued operation.
pub(crate) fn handle_pair(stats: &Arc<IoStats>, class: Class, direction: Direction) -> (ReadHandle, Completer) {
    stats.in_flight.fetch_add(1, Ordering::SeqCst);
    if is_demand(class, direction) {
        stats.demand.begin();
    }
    let slot = Arc::new(Slot {
        inner: Mutex::new(Inner { phase: Phase::Queued, waker: None, kept: None }),
        ready: Condvar::new(),
        class,
        direction,
        since_us: stats.clock.now_us(),
        stats: Arc::clone(stats),
    });
    (ReadHandle { slot: Arc::clone(&slot) }, Completer { slot })
}

/// Whether a statement waits for what is read; what is written for it, such as a repaired chunk, says nothing of how fast its
/// home is read.
fn is_demand(class: Class, direction: Direction) -> bool {
    direction == Direction::Read && class.is_demand()
}

impl Slot {
    fn finish(&self, result: Result<AlignedBuffer>) {
        let bytes = result.as_ref().ok().map(|bytes| bytes.as_slice().len());
        let mut inner = self.inner.lock();
        let leftover = match std::mem::replace(&mut inner.phase, Phase::Gone) {
            Phase::Queued | Phase::Running => {
                // Who sees the result, or that nothing is in flight, must find it recorded.
                self.record(bytes.unwrap_or_default());
                inner.phase = Phase::Done(result);
                None
            }
            Phase::Abandoned => Some(result),
            finished @ (Phase::Done(_) | Phase::Gone) => {
                inner.phase = finished;
                return;
            }
        };
        let waker = inner.waker.take();
        let kept = inner.kept.take();
        drop(inner);
        // Free the memory first, then its charge. Count the end last: a thread that sees the count must find both freed.
        drop(leftover);
        drop(kept);
        self.count_finished(bytes);
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records the bytes that a handle gets, and how long it waited for them.
    fn record(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let wait_us = self.stats.clock.now_us().saturating_sub(self.since_us);
        let sums = match self.direction {
            Direction::Read => self.stats.class_reads(self.class),
            Direction::Write => self.stats.class_writes(self.class),
        };
        sums.record(bytes as u64, wait_us);
    }

    /// Counts the end of the operation: with its number of bytes, or `None` when it was withdrawn or failed.
    fn count_finished(&self, bytes: Option<usize>) {
        if is_demand(self.class, self.direction) {
            self.stats.demand.end(bytes);
        }
        self.stats.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Completer {
    /// Marks the operation as running, for the first time or again. False when it was withdrawn: the engine then drops it.
    pub(crate) fn begin(&self) -> bool {
        let mut inner = self.slot.inner.lock();
        let wanted = matches!(inner.phase, Phase::Queued | Phase::Running);
        if wanted {
            inner.phase = Phase::Running;
        }
        wanted
    }

    /// True when this is the engine's end of the handle's read.
    pub(crate) fn is_of(&self, handle: &ReadHandle) -> bool {
        Arc::ptr_eq(&self.slot, &handle.slot)
    }

    /// True when the handle of the operation was dropped, or the operation is complete.
    pub(crate) fn is_abandoned(&self) -> bool {
        !matches!(self.slot.inner.lock().phase, Phase::Queued | Phase::Running)
    }

    /// Gives the result to the handle, or frees it when the handle was dropped.
    pub(crate) fn complete(self, result: Result<AlignedBuffer>) {
        if result.as_ref().is_err_and(|error| !matches!(error, Error::Cancelled)) {
            self.slot.stats.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.slot.finish(result);
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.slot.finish(Err(Error::Cancelled));
    }
}

impl ReadHandle {
    /// A read that is cancelled already.
    pub(crate) fn cancelled() -> Self {
        handle_pair(&Arc::default(), Class::Upkeep, Direction::Read).0
    }

    /// Keeps a charge, or something else that the operation needs, until the engine has given up its buffer.
    pub fn keep(&self, kept: Arc<impl Any + Send + Sync>) {
        let mut inner = self.slot.inner.lock();
        if matches!(inner.phase, Phase::Queued | Phase::Running) {
            inner.kept = Some(kept);
        }
    }

    /// True when [`ReadHandle::wait`] would not block.
    pub fn is_ready(&self) -> bool {
        matches!(self.slot.inner.lock().phase, Phase::Done(_))
    }

    /// Blocks the calling thread until the read is complete. Not for async code.
    pub fn wait(self) -> Result<AlignedBuffer> {
        let mut inner = self.slot.inner.lock();
        loop {
            match std::mem::replace(&mut inner.phase, Phase::Gone) {
                Phase::Done(result) => return result,
                Phase::Gone => return Err(Error::Cancelled),
                pending => inner.phase = pending,
            }
            self.slot.ready.wait(&mut inner);
        }
    }
}

impl Future for ReadHandle {
    type Output = Result<AlignedBuffer>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.slot.inner.lock();
        match std::mem::replace(&mut inner.phase, Phase::Gone) {
            Phase::Done(result) => Poll::Ready(result),
            Phase::Gone => Poll::Ready(Err(Error::Cancelled)),
            pending => {
                inner.phase = pending;
                match &mut inner.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for ReadHandle {
    fn drop(&mut self) {
        let mut inner = self.slot.inner.lock();
        inner.waker = None;
        match std::mem::replace(&mut inner.phase, Phase::Gone) {
            Phase::Queued => {
                let kept = inner.kept.take();
                drop(inner);
                drop(kept);
                self.slot.count_finished(None);
            }
            Phase::Running => inner.phase = Phase::Abandoned,
            finished => {
                drop(inner);
                drop(finished);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    #![allow(clippy::unwrap_used)]
    use terrace_model::Account;

    use super::*;

    fn in_flight(stats: &Arc<IoStats>) -> u64 {
        stats.in_flight.load(Ordering::SeqCst)
    }

    #[test]
    fn a_queued_read_is_withdrawn_by_dropping_its_handle() {
        let stats = Arc::new(IoStats::default());
        let (handle, completer) = handle_pair(&stats, Class::Needed, Direction::Read);
        let account = Account::new("io", 10);
        handle.keep(Arc::new(account.try_charge(10).unwrap()));
        drop(handle);
        assert_eq!((in_flight(&stats), account.used_bytes()), (0, 0));
        assert!(!completer.begin());
        drop(completer);
        assert_eq!(in_flight(&stats), 0);
    }

    #[test]
    fn a_running_read_keeps_its_charge_until_the_engine_is_done() {
        let stats = Arc::new(IoStats::default());
        let (handle, completer) = handle_pair(&stats, Class::Needed, Direction::Read);
        let account = Account::new("io", 10);
        handle.keep(Arc::new(account.try_charge(10).unwrap()));
        assert!(completer.begin());
        drop(handle);
        assert!(completer.is_abandoned());
        assert_eq!((in_flight(&stats), account.used_bytes()), (1, 10));
        completer.complete(AlignedBuffer::copy_of(&[1], 64));
        assert_eq!((in_flight(&stats), account.used_bytes()), (0, 0));
    }

    #[test]
    fn only_reads_are_what_statements_ask_for() {
        let stats = Arc::new(IoStats::default());
        for (direction, bytes) in [(Direction::Write, 0), (Direction::Read, 1)] {
            let (_handle, completer) = handle_pair(&stats, Class::Needed, direction);
            completer.complete(AlignedBuffer::copy_of(&[1], 64));
            assert_eq!(stats.demand.sums().bytes, bytes, "{direction:?}");
        }
    }

    /// Looks at the statistics when it is dropped: after the result is there, before the end is counted.
    struct Look(Arc<IoStats>, Arc<Mutex<u64>>);

    impl Drop for Look {
        fn drop(&mut self) {
            *self.1.lock() = self.0.class_writes(Class::Spill).sums().bytes;
        }
    }

    #[test]
    fn bytes_are_recorded_before_anybody_sees_the_end() {
        let (stats, seen) = (Arc::new(IoStats::default()), Arc::default());
        let (handle, completer) = handle_pair(&stats, Class::Spill, Direction::Write);
        handle.keep(Arc::new(Look(Arc::clone(&stats), Arc::clone(&seen))));
        completer.complete(AlignedBuffer::copy_of(&[1], 64));
        assert_eq!(*seen.lock(), 1);
        assert!(handle.is_ready());
    }

    #[test]
    fn a_lost_engine_cancels() {
        let stats = Arc::new(IoStats::default());
        let (handle, completer) = handle_pair(&stats, Class::Needed, Direction::Read);
        std::thread::spawn(move || drop(completer));
        assert!(matches!(handle.wait(), Err(Error::Cancelled)));
    }
}
