//! One column of one chunk on its way from disk, shared by all readers that wait for it.
//!
//! A reader of a column that another reader is reading, or has read and still holds, shares that read: the bytes are read,
//! verified and charged once. When the last reader drops it, the read is withdrawn.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use arrow::buffer::Buffer;
use parking_lot::Mutex;
use terrace_model::{Charge, Error, Result};

use super::{HomeCounters, cold};
use crate::io::{AlignedBuffer, BlockIo, Class, Intent, ReadHandle};
use crate::table::{Chunk, ChunkFile};
use crate::tier::codec::{Part, StoredColumn};

/// The column that a [`SharedRead`] reads.
#[derive(Debug)]
pub(super) struct ColumnSource {
    pub(super) chunk: Arc<Chunk>,
    pub(super) file: Arc<ChunkFile>,
    /// Position of the column in the chunk.
    pub(super) column: usize,
}

/// The read of a column, whole or in part: under way, arrived or decoded.
#[derive(Debug)]
pub(crate) struct SharedRead {
    source: ColumnSource,
    state: Mutex<State>,
    /// True when all bytes have arrived, or an error has.
    arrived: AtomicBool,
    wakers: Arc<Wakers>,
    io: Arc<dyn BlockIo>,
    counters: Arc<HomeCounters>,
    charge: Arc<Charge>,
    /// The bytes of a second read, which follows a wrong guess of the offsets of texts, and their charge.
    reread: OnceLock<(u64, Arc<Charge>)>,
}

#[derive(Debug)]
enum State {
    /// One read for the whole column, or one for each range of the part.
    Reading(Option<Part>, Vec<Read>),
    Done(Result<(StoredColumn, Option<Buffer>)>),
}

/// A column that was read and verified, and is to be moved to a memory tier. Its owner keeps the charge of the read.
#[derive(Debug)]
pub struct ReadColumn {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Position of the column.
    pub column: usize,
    /// Its stored bytes, decompressed, as they were decoded; `None` when only a part of the column was read.
    pub bytes: Option<Buffer>,
    /// Shared by all columns that were read together.
    pub charge: Option<Arc<Charge>>,
}

#[derive(Debug)]
enum Read {
    Pending(ReadHandle),
    Done(AlignedBuffer),
}

/// The wakers of all tasks that wait for a shared read. A separate object, because the reads keep it alive: if they kept the
/// shared read itself alive, it would never be dropped.
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

impl SharedRead {
    pub(super) fn new(
        source: ColumnSource,
        part: Option<Part>,
        reads: Vec<ReadHandle>,
        io: Arc<dyn BlockIo>,
        charge: Arc<Charge>,
        counters: Arc<HomeCounters>,
    ) -> Arc<Self> {
        let state = Mutex::new(State::reading(part, reads, &charge));
        let arrived = AtomicBool::new(false);
        let wakers = Arc::default();
        let reread = OnceLock::new();
        Arc::new(Self { source, state, arrived, wakers, io, counters, charge, reread })
    }

    /// Bytes of the second read; 0 when there was none.
    pub(super) fn reread_bytes(&self) -> u64 {
        self.reread.get().map_or(0, |(bytes, _)| *bytes)
    }

    /// Gives what has not begun the purpose of a reader that joins and waits.
    pub(super) fn raise(&self, intent: Intent) {
        // The caller must not wait for a thread that decodes. One that only polls makes this miss, which costs time only.
        let Some(state) = self.state.try_lock() else { return };
        let State::Reading(_, reads) = &*state else { return };
        for read in reads {
            if let Read::Pending(handle) = read {
                self.io.raise(intent, handle);
            }
        }
    }

    /// True when the read ended with an error: the next reader starts a new one.
    pub(super) fn failed(&self) -> bool {
        self.state.try_lock().is_some_and(|state| matches!(&*state, State::Done(Err(_))))
    }

    /// True when the column is read, verified and decoded, and no other thread has the lock.
    pub(super) fn is_decoded(&self) -> bool {
        self.state.try_lock().is_some_and(|state| matches!(&*state, State::Done(Ok(_))))
    }

    /// True when the bytes have arrived, or an error has.
    pub(super) fn is_ready(&self) -> bool {
        let pending = |read: &Read| matches!(read, Read::Pending(handle) if !handle.is_ready());
        let arrived = || match &*self.state.try_lock()? {
            State::Done(_) => Some(true),
            State::Reading(_, reads) => Some(!reads.iter().any(pending)),
        };
        self.arrived.load(Ordering::Acquire) || arrived().unwrap_or(false)
    }

    /// Polls until the bytes have arrived; does not decode them.
    pub(super) fn poll_arrived(&self, context: &mut Context<'_>) -> Poll<()> {
        // Do not wait for the lock then: another reader may hold it while it verifies the bytes.
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
            match self.part_to_reread(part.as_ref(), reads) {
                Some(part) => *state = self.start_reread(part),
                None => break,
            }
        }
        self.arrived.store(true, Ordering::Release);
        Arc::clone(&self.wakers).wake();
        Poll::Ready(())
    }

    /// The part to read instead, when the bytes that were read lack texts of wanted rows.
    fn part_to_reread(&self, part: Option<&Part>, reads: &[Read]) -> Option<Part> {
        let read: Option<Vec<&[u8]>> = reads.iter().map(Read::bytes).collect();
        part?.with_whole_pages(&self.source.chunk.segments.get(self.source.column)?.home, &read?)
    }

    fn start_reread(&self, part: Part) -> State {
        let Some(segment) = self.source.chunk.segments.get(self.source.column) else {
            return State::Done(Err(Error::Cancelled));
        };
        segment.is_uneven.store(true, Ordering::Relaxed);
        let windows: Vec<(u64, usize)> = part.windows(&segment.home).collect();
        let bytes = cold::read_bytes(&segment.home, Some(&part));
        let charge = Arc::new(self.charge.charge_more(bytes + part.image_bytes(&segment.home) as u64));
        let requests: Vec<&[(u64, usize)]> = windows.chunks(1).collect();
        let reads = self.io.read_all(Class::Needed.into(), &self.source.file.io, &requests);
        let state = State::reading(Some(part), reads, &charge);
        // The second read has whole pages, so there is never a third one.
        let _ = self.reread.set((bytes, charge));
        state
    }

    /// Polls until the column is decoded. The first reader after the bytes have arrived verifies and decodes them.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<StoredColumn>> {
        std::task::ready!(self.poll_arrived(context));
        let state = &mut *self.state.lock();
        if let State::Reading(part, reads) = state {
            let arrived = |read| if let Read::Done(bytes) = read { Some(bytes) } else { None };
            let read = std::mem::take(reads).into_iter().filter_map(arrived).collect();
            *state = State::Done(self.decode(part.as_ref(), read));
        }
        Poll::Ready(match state {
            State::Done(done) => done.as_ref().map(|(column, _)| column.clone()).map_err(Error::clone),
            State::Reading(..) => Err(Error::Cancelled),
        })
    }

    /// The column that was read; `None` when it was not. For a part, the result has no bytes and no charge.
    pub(super) fn read_column(&self) -> Option<ReadColumn> {
        let bytes = match &*self.state.lock() {
            State::Done(Ok((_, bytes))) => bytes.clone(),
            _ => return None,
        };
        let charge = bytes.is_some().then(|| Arc::clone(&self.charge));
        Some(ReadColumn { chunk: Arc::clone(&self.source.chunk), column: self.source.column, bytes, charge })
    }

    fn decode(&self, part: Option<&Part>, read: Vec<AlignedBuffer>) -> Result<(StoredColumn, Option<Buffer>)> {
        cold::decode(&self.source.chunk, self.source.column, part, read, self.io.pool()).inspect_err(|error| {
            self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
            if let Some(segment) = self.source.chunk.segments.get(self.source.column) {
                self.source.file.mark(segment.column, error);
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
        reads.iter().for_each(|handle| handle.keep(Arc::clone(charge)));
        Self::Reading(part, reads.into_iter().map(Read::Pending).collect())
    }
}

/// Polls the reads in order: the first one that has not arrived keeps the waker. The later ones still run.
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
