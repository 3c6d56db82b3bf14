//! One column of one chunk on its way from disk, for all who want it.
//!
//! Who asks for a column that somebody else reads, or has read and still works on, shares that: the bytes are read,
//! verified and charged once. With the last one who wants it a read is withdrawn.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use arrow::buffer::Buffer;
use parking_lot::Mutex;

use super::{SsdCounters, cold};
use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, BlockIo, Class, ReadHandle};
use crate::table::{Chunk, ChunkFile};
use crate::tier::Charge;
use crate::tier::codec::{Part, StoredColumn};

/// A column, whole or in part, being read or there.
#[derive(Debug)]
pub(crate) struct Flight {
    chunk: Arc<Chunk>,
    file: Arc<ChunkFile>,
    column: usize,
    state: Mutex<State>,
    /// All bytes are there, or an error is.
    arrived: AtomicBool,
    wakers: Arc<Wakers>,
    io: Arc<dyn BlockIo>,
    counters: Arc<SsdCounters>,
    charge: Arc<Charge>,
    /// What was read a second time, where it was guessed wrong which bytes have the rows: bytes and their charge.
    again: OnceLock<(u64, Arc<Charge>)>,
}

#[derive(Debug)]
enum State {
    /// One read for all of the column, or one for each range of the part.
    Reading(Option<Part>, Vec<Read>),
    Done(Result<(StoredColumn, Option<Buffer>)>),
}

/// A column that was read and verified, on its way into memory: whoever has it holds the charge of the read.
#[derive(Debug)]
pub struct ReadColumn {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Position of the column.
    pub column: usize,
    /// Its stored bytes, decompressed, as they were decoded; `None`: only a part of it was read.
    pub(crate) bytes: Option<Buffer>,
    /// Shared by all columns that were read together.
    pub(crate) charge: Option<Arc<Charge>>,
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
        (io, charge): (Arc<dyn BlockIo>, Arc<Charge>),
        counters: Arc<SsdCounters>,
    ) -> Arc<Self> {
        let state = Mutex::new(State::reading(part, reads, &charge));
        let arrived = AtomicBool::new(false);
        let wakers = Arc::default();
        let again = OnceLock::new();
        Arc::new(Self { chunk, file, column, state, arrived, wakers, io, counters, charge, again })
    }

    /// Bytes that were read a second time.
    pub(super) fn bytes_again(&self) -> u64 {
        self.again.get().map_or(0, |(bytes, _)| *bytes)
    }

    /// True when it ended with an error: who comes now tries again.
    pub(super) fn failed(&self) -> bool {
        self.state.try_lock().is_some_and(|state| matches!(&*state, State::Done(Err(_))))
    }

    /// True when it is read, verified and decoded, and nobody is at it now.
    pub(super) fn is_there(&self) -> bool {
        self.state.try_lock().is_some_and(|state| matches!(&*state, State::Done(Ok(_))))
    }

    /// True when its bytes are there, or will never be.
    pub(super) fn is_ready(&self) -> bool {
        let pending = |read: &Read| matches!(read, Read::Pending(handle) if !handle.is_ready());
        let arrived = || match &*self.state.try_lock()? {
            State::Done(_) => Some(true),
            State::Reading(_, reads) => Some(!reads.iter().any(pending)),
        };
        self.arrived.load(Ordering::Acquire) || arrived().unwrap_or(false)
    }

    /// Waits for the bytes, and does nothing with them.
    pub(super) fn poll_arrived(&self, context: &mut Context<'_>) -> Poll<()> {
        // Somebody may be verifying them now, and holds the lock.
        if self.arrived.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let state = &mut *self.state.lock();
        self.wakers.add(context.waker());
        let waker = Waker::from(Arc::clone(&self.wakers));
        let context = &mut Context::from_waker(&waker);
        while let State::Reading(part, reads) = state {
            if let Err(error) = std::task::ready!(all_arrived(reads, context)) {
                *state = State::Done(Err(error));
                break;
            }
            match self.guessed_wrong(part.as_ref(), reads) {
                Some(part) => *state = self.read_again(part),
                None => break,
            }
        }
        self.arrived.store(true, Ordering::Release);
        Arc::clone(&self.wakers).wake();
        Poll::Ready(())
    }

    /// The part to be read instead, where what was read lacks values of rows that were asked for.
    fn guessed_wrong(&self, part: Option<&Part>, reads: &[Read]) -> Option<Part> {
        let read: Option<Vec<&[u8]>> = reads.iter().map(Read::bytes).collect();
        part?.whole_pages(&self.chunk.segments.get(self.column)?.home, &read?)
    }

    fn read_again(&self, part: Part) -> State {
        let Some(segment) = self.chunk.segments.get(self.column) else { return State::Done(Err(Error::Cancelled)) };
        segment.is_uneven.store(true, Ordering::Relaxed);
        let windows: Vec<(u64, usize)> = part.windows(&segment.home).collect();
        let bytes = cold::read_bytes(&segment.home, Some(&part));
        let charge = Arc::new(self.charge.further(bytes + part.image_bytes(&segment.home) as u64));
        let requests: Vec<&[(u64, usize)]> = windows.chunks(1).collect();
        let reads = self.io.read_all(Class::Needed, &self.file.io, &requests);
        let state = State::reading(Some(part), reads, &charge);
        // What is read again is read whole, so there is no third time.
        let _ = self.again.set((bytes, charge));
        state
    }

    /// The column; verified and decoded by whoever comes first.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<StoredColumn>> {
        std::task::ready!(self.poll_arrived(context));
        let state = &mut *self.state.lock();
        if let State::Reading(part, reads) = state {
            let there = |read| if let Read::Done(bytes) = read { Some(bytes) } else { None };
            let read = std::mem::take(reads).into_iter().filter_map(there).collect();
            *state = State::Done(self.decoded(part.as_ref(), read));
        }
        Poll::Ready(match state {
            State::Done(done) => done.as_ref().map(|(column, _)| column.clone()).map_err(Error::clone),
            State::Reading(..) => Err(Error::Cancelled),
        })
    }

    /// What was read; `None` when nothing was. Of a part nothing is held but its place.
    pub(super) fn read(&self) -> Option<ReadColumn> {
        let bytes = match &*self.state.lock() {
            State::Done(Ok((_, bytes))) => bytes.clone(),
            _ => return None,
        };
        let charge = bytes.is_some().then(|| Arc::clone(&self.charge));
        Some(ReadColumn { chunk: Arc::clone(&self.chunk), column: self.column, bytes, charge })
    }

    fn decoded(&self, part: Option<&Part>, read: Vec<AlignedBuffer>) -> Result<(StoredColumn, Option<Buffer>)> {
        cold::decoded(&self.chunk, (self.column, part), read, self.io.pool()).inspect_err(|error| {
            self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
            if let Some(segment) = self.chunk.segments.get(self.column) {
                self.file.mark(segment.column, error);
            }
        })
    }
}

impl Read {
    fn bytes(&self) -> Option<&[u8]> {
        if let Self::Done(bytes) = self { Some(bytes.as_slice()) } else { None }
    }
}

impl State {
    fn reading(part: Option<Part>, reads: Vec<ReadHandle>, charge: &Arc<Charge>) -> Self {
        reads.iter().for_each(|handle| handle.hold(Arc::clone(charge)));
        Self::Reading(part, reads.into_iter().map(Read::Pending).collect())
    }
}

/// Polls in order: the first read not there yet has the waker. Those behind it run all the same.
fn all_arrived(reads: &mut [Read], context: &mut Context<'_>) -> Poll<Result<()>> {
    for read in reads {
        let Read::Pending(handle) = read else { continue };
        match std::task::ready!(Pin::new(handle).poll(context)) {
            Ok(bytes) => *read = Read::Done(bytes),
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
    Poll::Ready(Ok(()))
}
