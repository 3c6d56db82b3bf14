//! A cold read: several columns of one chunk on their way from disk, whole or as far as some rows need them.
//!
//! The future does the checking and decoding on the thread that polls it. Dropping it at any point withdraws what has
//! not started; what the kernel works on stays charged until the engine has freed it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use arrow::datatypes::DataType;

use super::{SsdCounters, enclosing_bytes};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, BufferPool, ReadHandle};
use crate::table::{Chunk, ChunkFile, Home};
use crate::tier::Charge;
use crate::tier::codec::{self, Part, StoredColumn};

/// Columns read from disk.
#[derive(Debug)]
pub struct ColdColumns {
    /// One per column asked, in that order; verified, over the blocks read without a copy.
    pub columns: Vec<StoredColumn>,
    /// Bytes of the blocks read.
    pub bytes_read: u64,
    /// Time in which somebody waited, in microseconds.
    pub wait_us: u64,
    /// The I/O account's charge; ends here, while the columns live on.
    _charge: Arc<Charge>,
}

/// One column on its way.
#[derive(Debug)]
pub(super) struct ColumnRead {
    column: usize,
    /// What is read of it; `None`: all.
    part: Option<Part>,
    /// One for all of it, or one for each range of the part.
    reads: Vec<Read>,
}

#[derive(Debug)]
enum Read {
    Pending(ReadHandle),
    Done(AlignedBuffer),
    Taken,
}

impl ColumnRead {
    pub(super) fn new(column: usize, part: Option<Part>, reads: Vec<ReadHandle>) -> Self {
        Self { column, part, reads: reads.into_iter().map(Read::Pending).collect() }
    }
}

/// A future of [`ColdColumns`].
#[derive(Debug)]
pub struct ColdRead {
    chunk: Arc<Chunk>,
    file: Arc<ChunkFile>,
    columns: Vec<ColumnRead>,
    pool: Arc<BufferPool>,
    charge: Arc<Charge>,
    clock: Arc<dyn Clock>,
    counters: Arc<SsdCounters>,
    /// When somebody first found it incomplete.
    waiting_since_us: Option<u64>,
}

impl ColdRead {
    pub(super) fn new(
        (chunk, file): (Arc<Chunk>, Arc<ChunkFile>),
        columns: Vec<ColumnRead>,
        (pool, charge): (Arc<BufferPool>, Arc<Charge>),
        clock: Arc<dyn Clock>,
        counters: Arc<SsdCounters>,
    ) -> Self {
        Self { chunk, file, columns, pool, charge, clock, counters, waiting_since_us: None }
    }

    fn reads(&self) -> impl Iterator<Item = &Read> {
        self.columns.iter().flat_map(|column| &column.reads)
    }

    fn reads_mut(&mut self) -> impl Iterator<Item = &mut Read> {
        self.columns.iter_mut().flat_map(|column| &mut column.reads)
    }

    /// Bytes charged for it.
    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// True when polling it would not wait.
    pub fn is_ready(&self) -> bool {
        self.reads().all(|read| !matches!(read, Read::Pending(handle) if !handle.is_ready()))
    }

    /// Blocks the calling thread until all columns are there. Not for async code.
    pub fn wait(mut self) -> Result<ColdColumns> {
        if !self.is_ready() {
            self.waiting_since_us = Some(self.clock.now_us());
        }
        for read in self.reads_mut() {
            // Some may have been polled to their end before.
            *read = match std::mem::replace(read, Read::Taken) {
                Read::Pending(handle) => Read::Done(handle.wait()?),
                there => there,
            };
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<ColdColumns> {
        let wait_us = self.waiting_since_us.map_or(0, |since| self.clock.now_us().saturating_sub(since));
        let mut columns = Vec::with_capacity(self.columns.len());
        let mut bytes_read = 0;
        for read in std::mem::take(&mut self.columns) {
            let home = &self.chunk.segments.get(read.column).ok_or(Error::Cancelled)?.home;
            bytes_read += read_bytes(home, read.part.as_ref());
            let column = read.column;
            columns.push(decoded(&self.chunk, read, &self.pool).inspect_err(|error| {
                self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
                if let Some(segment) = self.chunk.segments.get(column) {
                    self.file.mark(segment.column, error);
                }
            })?);
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(bytes_read, Ordering::Relaxed);
        self.counters.wait_us.fetch_add(wait_us, Ordering::Relaxed);
        Ok(ColdColumns { columns, bytes_read, wait_us, _charge: Arc::clone(&self.charge) })
    }
}

impl Future for ColdRead {
    type Output = Result<ColdColumns>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        for read in this.columns.iter_mut().flat_map(|column| &mut column.reads) {
            // In order: the first read not there yet has the waker. Those behind it run all the same.
            let Read::Pending(handle) = read else { continue };
            match Pin::new(handle).poll(context) {
                Poll::Pending => {
                    this.waiting_since_us.get_or_insert_with(|| this.clock.now_us());
                    return Poll::Pending;
                }
                Poll::Ready(Ok(bytes)) => *read = Read::Done(bytes),
                Poll::Ready(Err(error)) => {
                    this.columns.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(this.finish())
    }
}

/// Bytes of the blocks that are read of a column.
pub(super) fn read_bytes(home: &Home, part: Option<&Part>) -> u64 {
    match part {
        None => enclosing_bytes(home.offset, home.len),
        Some(part) => part.ranges().iter().map(|r| enclosing_bytes(home.offset + r.start as u64, r.len() as u64)).sum(),
    }
}

/// Home and declared type of a column whose stored bytes are what was written; names chunk, column and block when not.
pub(crate) fn verified<'a>(chunk: &'a Chunk, column: usize, stored: &[u8]) -> Result<(&'a Home, &'a DataType)> {
    let (home, declared) = described(chunk, column)?;
    codec::verify(home, stored).map_err(|block| wrong_checksum(chunk, column, block))?;
    Ok((home, declared))
}

pub(super) fn described(chunk: &Chunk, column: usize) -> Result<(&Home, &DataType)> {
    match (chunk.segments.get(column), chunk.schema.fields().get(column)) {
        (Some(segment), Some(field)) => Ok((&segment.home, field.data_type())),
        _ => Err(super::no_column(chunk, column)),
    }
}

fn wrong_checksum(chunk: &Chunk, column: usize, block: usize) -> Error {
    let start = chunk.segments.get(column).map_or(0, |segment| segment.home.offset);
    let at = start + (block * codec::CHECKSUM_BLOCK_BYTES) as u64;
    let what = format!("{}: checksum of the 16 KiB at offset {at} is wrong", chunk.place(column));
    Error::Corrupt { path: chunk.path.clone(), what }
}

fn decoded(chunk: &Chunk, read: ColumnRead, pool: &Arc<BufferPool>) -> Result<StoredColumn> {
    let ColumnRead { column, part, reads } = read;
    let done = |read| if let Read::Done(bytes) = read { Ok(bytes) } else { Err(Error::Cancelled) };
    let mut reads = reads.into_iter().map(done).collect::<Result<Vec<_>>>()?;
    let (rows, located) = (chunk.rows as usize, |error| located(error, chunk, column));
    let Some(part) = part else {
        let stored = reads.pop().ok_or(Error::Cancelled)?;
        let (home, declared) = verified(chunk, column, stored.as_slice())?;
        return StoredColumn::decode(home, declared, rows, &stored.into_arrow(None)).map_err(located);
    };
    let (home, declared) = described(chunk, column)?;
    for (range, bytes) in part.ranges().iter().zip(&reads) {
        codec::verify_blocks(home, range.start, bytes.as_slice())
            .map_err(|block| wrong_checksum(chunk, column, block))?;
    }
    let mut image = AlignedBuffer::zeroed(pool, part.image_bytes(home))?;
    let read: Vec<&[u8]> = reads.iter().map(AlignedBuffer::as_slice).collect();
    part.place(home, &read, image.window_mut());
    part.decode(home, declared, rows, &image.into_arrow(None)).map_err(located)
}

/// Names file, chunk and column in an error of the codec.
pub(super) fn located(error: Error, chunk: &Chunk, column: usize) -> Error {
    codec::locate(error, &chunk.path, &chunk.place(column))
}
