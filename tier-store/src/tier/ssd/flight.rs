//! One column of one chunk on its way from disk, for all who want it.
//!
//! Who asks for a column that somebody else reads, or has read and still works on, shares that: the bytes are read,
//! verified and charged once. With the last one who wants it a read is withdrawn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use super::{SsdCounters, cold};
use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, BufferPool, ReadHandle};
use crate::table::{Chunk, ChunkFile};
use crate::tier::Charge;
use crate::tier::codec::{Part, StoredColumn};

/// A column, whole or in part, being read or there.
#[derive(Debug)]
pub(crate) struct Flight {
    chunk: Arc<Chunk>,
    file: Arc<ChunkFile>,
    column: usize,
    /// What is read of it; `None`: all.
    part: Option<Part>,
    state: Mutex<State>,
    wakers: Arc<Wakers>,
    pool: Arc<BufferPool>,
    counters: Arc<SsdCounters>,
    /// Of the read that it belongs to.
    _charge: Arc<Charge>,
}

#[derive(Debug)]
enum State {
    /// One read for all of the column, or one for each range of the part.
    Reading(Vec<Read>),
    Done(Result<StoredColumn>),
}

#[derive(Debug)]
enum Read {
    Pending(ReadHandle),
    Done(AlignedBuffer),
}

/// Everybody who waits for a flight. Not the flight itself: its reads hold this, and must not hold it.
#[derive(Debug, Default)]
struct Wakers(Mutex<Vec<Waker>>);

impl Wakers {
    fn add(&self, waker: &Waker) {
        let mut wakers = self.0.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Flight {
    pub(super) fn new(
        (chunk, file): (Arc<Chunk>, Arc<ChunkFile>),
        (column, part): (usize, Option<Part>),
        reads: Vec<ReadHandle>,
        (pool, charge): (Arc<BufferPool>, Arc<Charge>),
        counters: Arc<SsdCounters>,
    ) -> Arc<Self> {
        reads.iter().for_each(|handle| handle.hold(Arc::clone(&charge)));
        let state = Mutex::new(State::Reading(reads.into_iter().map(Read::Pending).collect()));
        let wakers = Arc::default();
        Arc::new(Self { chunk, file, column, part, state, wakers, pool, counters, _charge: charge })
    }

    /// True when it ended with an error: who comes now tries again.
    pub(super) fn failed(&self) -> bool {
        self.state.try_lock().is_some_and(|state| matches!(&*state, State::Done(Err(_))))
    }

    /// True when polling it would not wait for the disk.
    pub(super) fn is_ready(&self) -> bool {
        // Somebody else is verifying it.
        let Some(state) = self.state.try_lock() else { return true };
        match &*state {
            State::Done(_) => true,
            State::Reading(reads) => reads.iter().all(|r| !matches!(r, Read::Pending(handle) if !handle.is_ready())),
        }
    }

    /// The column; verified and decoded by whoever comes first.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<StoredColumn>> {
        let state = &mut *self.state.lock();
        let State::Reading(reads) = state else { return Poll::Ready(done(state)) };
        self.wakers.add(context.waker());
        let waker = Waker::from(Arc::clone(&self.wakers));
        let mut failed = None;
        for read in reads.iter_mut() {
            // In order: the first read not there yet has the waker. Those behind it run all the same.
            let Read::Pending(handle) = read else { continue };
            match Pin::new(handle).poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(bytes)) => *read = Read::Done(bytes),
                Poll::Ready(Err(error)) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let there = |read| if let Read::Done(bytes) = read { Some(bytes) } else { None };
        let read = std::mem::take(reads).into_iter().filter_map(there).collect();
        *state = State::Done(failed.map_or_else(|| self.decoded(read), Err));
        Arc::clone(&self.wakers).wake();
        Poll::Ready(done(state))
    }

    fn decoded(&self, read: Vec<AlignedBuffer>) -> Result<StoredColumn> {
        if let Some(segment) = self.chunk.segments.get(self.column) {
            self.counters.read_bytes.fetch_add(cold::read_bytes(&segment.home, self.part.as_ref()), Ordering::Relaxed);
        }
        cold::decoded(&self.chunk, (self.column, self.part.as_ref()), read, &self.pool).inspect_err(|error| {
            self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
            if let Some(segment) = self.chunk.segments.get(self.column) {
                self.file.mark(segment.column, error);
            }
        })
    }
}

fn done(state: &State) -> Result<StoredColumn> {
    match state {
        State::Done(column) => column.clone(),
        State::Reading(_) => Err(Error::Cancelled),
    }
}
