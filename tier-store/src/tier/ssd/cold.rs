//! A cold read: several columns of one chunk on their way from disk, whole or as far as some rows need them.
//!
//! The future does the checking and decoding on the thread that polls it. Dropping it at any point withdraws what has
//! not started; what the kernel works on stays charged until the engine has freed it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use arrow::buffer::Buffer;
use arrow::datatypes::DataType;

use super::flight::{Flight, ReadColumn};
use super::{SsdCounters, enclosing_bytes};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, BufferPool};
use crate::table::{Chunk, Home};
use crate::tier::codec::{self, Part, StoredColumn};

/// Columns read from disk.
#[derive(Debug)]
pub struct ColdColumns {
    /// One per column asked, in that order; verified, over the blocks read without a copy.
    pub columns: Vec<StoredColumn>,
    /// Bytes of the blocks read; none for columns that others had read or were reading.
    pub bytes_read: u64,
    /// Time in which somebody waited, in microseconds.
    pub wait_us: u64,
    /// Whoever wants these columns now shares them. They hold the I/O account's charge, which ends here, while the columns
    /// live on.
    flights: Vec<Arc<Flight>>,
}

impl ColdColumns {
    /// The same for whoever wants to keep columns in memory, now that nobody here needs them any more.
    pub fn into_read(self) -> impl Iterator<Item = ReadColumn> {
        self.flights.into_iter().filter_map(|flight| flight.read())
    }
}

/// A future of [`ColdColumns`].
#[derive(Debug)]
pub struct ColdRead {
    flights: Vec<Arc<Flight>>,
    /// Those that are there.
    columns: Vec<StoredColumn>,
    /// Bytes of the blocks that nobody else reads.
    bytes_read: u64,
    charged_bytes: u64,
    clock: Arc<dyn Clock>,
    counters: Arc<SsdCounters>,
    /// No statement waits for it.
    for_move: bool,
    /// When somebody first found it incomplete.
    waiting_since_us: Option<u64>,
}

impl ColdRead {
    pub(super) fn new(
        flights: Vec<Arc<Flight>>,
        (bytes_read, charged_bytes): (u64, u64),
        clock: Arc<dyn Clock>,
        counters: Arc<SsdCounters>,
        for_move: bool,
    ) -> Self {
        let columns = Vec::with_capacity(flights.len());
        Self { flights, columns, bytes_read, charged_bytes, clock, counters, for_move, waiting_since_us: None }
    }

    /// Bytes charged for it; none for what others read.
    pub fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// True when polling it would not wait.
    pub fn is_ready(&self) -> bool {
        self.flights.iter().skip(self.columns.len()).all(|flight| flight.is_ready())
    }

    /// Waits for the bytes, and leaves verifying and decoding to whoever takes them.
    pub fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for flight in self.flights.iter().skip(self.columns.len()) {
            if flight.poll_arrived(context).is_pending() {
                self.waiting_since_us.get_or_insert_with(|| self.clock.now_us());
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Blocks the calling thread until all columns are there. Not for async code.
    pub fn wait(mut self) -> Result<ColdColumns> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match Pin::new(&mut self).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(columns) => return columns,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    fn finish(&mut self) -> ColdColumns {
        let wait_us = self.waiting_since_us.map_or(0, |since| self.clock.now_us().saturating_sub(since));
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let bytes_read = self.bytes_read + self.flights.iter().map(|flight| flight.bytes_again()).sum::<u64>();
        self.counters.read_bytes.fetch_add(bytes_read, Ordering::Relaxed);
        if !self.for_move {
            self.counters.wait_us.fetch_add(wait_us, Ordering::Relaxed);
        }
        let columns = std::mem::take(&mut self.columns);
        let flights = std::mem::take(&mut self.flights);
        ColdColumns { columns, bytes_read, wait_us, flights }
    }
}

/// Wakes a thread that waits.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Future for ColdRead {
    type Output = Result<ColdColumns>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        for flight in this.flights.iter().skip(this.columns.len()) {
            match flight.poll(context) {
                Poll::Pending => {
                    this.waiting_since_us.get_or_insert_with(|| this.clock.now_us());
                    return Poll::Pending;
                }
                Poll::Ready(column) => this.columns.push(column?),
            }
        }
        Poll::Ready(Ok(this.finish()))
    }
}

/// Bytes of the blocks that are read of a column.
pub(super) fn read_bytes(home: &Home, part: Option<&Part>) -> u64 {
    match part {
        None => enclosing_bytes(home.offset, home.len),
        Some(part) => part.windows(home).map(|(offset, len)| enclosing_bytes(offset, len as u64)).sum(),
    }
}

/// Home and declared type of a column whose stored bytes are what was written; names chunk, column and block when not.
pub(crate) fn verified<'a>(chunk: &'a Chunk, column: usize, stored: &[u8]) -> Result<(&'a Home, &'a DataType)> {
    let (home, declared) = described(chunk, column)?;
    codec::verify(home, stored).map_err(|block| wrong_checksum(chunk, column, block))?;
    Ok((home, declared))
}

pub(super) fn described(chunk: &Chunk, column: usize) -> Result<(&Home, &DataType)> {
    match (chunk.segments.get(column), chunk.data_type(column)) {
        (Some(segment), Some(data_type)) => Ok((&segment.home, data_type)),
        _ => Err(super::no_column(chunk, column)),
    }
}

fn wrong_checksum(chunk: &Chunk, column: usize, block: usize) -> Error {
    let start = chunk.segments.get(column).map_or(0, |segment| segment.home.offset);
    let at = start + (block * codec::CHECKSUM_BLOCK_BYTES) as u64;
    let what = format!("{}: checksum of the 16 KiB at offset {at} is wrong", chunk.place(column));
    Error::Corrupt { path: chunk.path.clone(), what }
}

/// The column that was read, from one buffer, or from one for each range of the part; of a whole one also its bytes.
pub(super) fn decoded(
    chunk: &Chunk,
    (column, part): (usize, Option<&Part>),
    mut reads: Vec<AlignedBuffer>,
    pool: &Arc<BufferPool>,
) -> Result<(StoredColumn, Option<Buffer>)> {
    let rows = chunk.rows as usize;
    let located = |error| located(error, chunk, column);
    let Some(part) = part else {
        let stored = reads.pop().ok_or(Error::Cancelled)?;
        let (home, declared) = verified(chunk, column, stored.as_slice())?;
        let bytes = codec::unpacked(home, stored.into_arrow(None), pool).map_err(located)?;
        // SAFETY: `verified` has compared the checksums.
        let decoded = unsafe { StoredColumn::decode_unpacked(home, declared, rows, &bytes).map_err(located)? };
        return Ok((decoded, Some(bytes)));
    };
    if reads.len() != part.ranges().len() {
        return Err(Error::Cancelled);
    }
    let (home, declared) = described(chunk, column)?;
    for (range, bytes) in part.ranges().iter().zip(&reads) {
        codec::verify_blocks(home, range.start, bytes.as_slice())
            .map_err(|block| wrong_checksum(chunk, column, block))?;
    }
    // SAFETY: the checksums of all that was read were compared.
    Ok((unsafe { part.column(home, (declared, rows), reads, pool).map_err(located)? }, None))
}

/// Names file, chunk and column in an error of the codec.
pub(super) fn located(error: Error, chunk: &Chunk, column: usize) -> Error {
    codec::locate(error, &chunk.path, &chunk.place(column))
}
