//! A cold read: several columns of one chunk on their way from disk, whole or only for some rows.
//!
//! The future verifies and decodes on the thread that polls it. Dropping it withdraws the reads that have not started; the
//! buffers of running reads stay charged until the engine has freed them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use terrace_model::clock::Clock;
use terrace_model::{Error, Result};

use super::shared_read::{ReadColumn, SharedRead};
use super::{HomeCounters, enclosing_bytes};
use crate::io::{AlignedBuffer, BufferPool, Class};
use crate::table::{Chunk, SegmentHome};
use crate::tier::codec::{self, Part, StoredColumn};

/// Columns read from disk.
#[derive(Debug)]
pub struct ColdColumns {
    /// One per requested column, in that order; verified, and decoded in place over the blocks that were read.
    pub columns: Vec<StoredColumn>,
    /// Bytes of the blocks read; 0 for columns that other readers had read or were reading.
    pub bytes_read: u64,
    /// Time that the reader waited, in microseconds.
    pub wait_us: u64,
    /// The class of the read when it began.
    pub class: Class,
    /// Other readers can share these columns as long as this value exists. It keeps the charge of the I/O account, which ends
    /// with it, while the columns live on.
    shared_reads: Vec<Arc<SharedRead>>,
}

impl ColdColumns {
    /// The columns as candidates for a memory tier, when the reader has finished with them.
    pub fn into_read_columns(self) -> impl Iterator<Item = ReadColumn> {
        self.shared_reads.into_iter().filter_map(|read| read.read_column())
    }
}

/// A future of [`ColdColumns`].
#[derive(Debug)]
pub struct ColdRead {
    shared_reads: Vec<Arc<SharedRead>>,
    /// The columns that are decoded so far.
    columns: Vec<StoredColumn>,
    /// Bytes of the blocks that this read started to read.
    bytes_read: u64,
    charged_bytes: u64,
    clock: Arc<dyn Clock>,
    counters: Arc<HomeCounters>,
    class: Class,
    /// Time of the first poll that found the read incomplete.
    waiting_since_us: Option<u64>,
}

impl ColdRead {
    pub(super) fn new(
        shared_reads: Vec<Arc<SharedRead>>,
        bytes_read: u64,
        charged_bytes: u64,
        clock: Arc<dyn Clock>,
        counters: Arc<HomeCounters>,
        class: Class,
    ) -> Self {
        let columns = Vec::with_capacity(shared_reads.len());
        Self { shared_reads, columns, bytes_read, charged_bytes, clock, counters, class, waiting_since_us: None }
    }

    /// Its class when it began.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Bytes charged for the read; 0 for columns that other readers read.
    #[inline]
    pub fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// True when polling the read would not wait.
    pub fn is_ready(&self) -> bool {
        self.shared_reads.iter().skip(self.columns.len()).all(|read| read.is_ready())
    }

    /// Polls until the bytes have arrived; does not verify or decode them.
    pub fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for read in self.shared_reads.iter().skip(self.columns.len()) {
            if read.poll_arrived(context).is_pending() {
                self.waiting_since_us.get_or_insert_with(|| self.clock.now_us());
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Blocks the calling thread until all columns are decoded. Not for async code.
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
        let bytes_read = self.bytes_read + self.shared_reads.iter().map(|read| read.reread_bytes()).sum::<u64>();
        self.counters.read_bytes.fetch_add(bytes_read, Ordering::Relaxed);
        if self.class != Class::Upkeep {
            self.counters.wait_us.fetch_add(wait_us, Ordering::Relaxed);
        }
        let columns = std::mem::take(&mut self.columns);
        let shared_reads = std::mem::take(&mut self.shared_reads);
        ColdColumns { columns, bytes_read, wait_us, class: self.class, shared_reads }
    }
}

/// Wakes a waiting thread.
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
        for read in this.shared_reads.iter().skip(this.columns.len()) {
            match read.poll(context) {
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
pub(super) fn read_bytes(home: &SegmentHome, part: Option<&Part>) -> u64 {
    match part {
        None => enclosing_bytes(home.offset, home.len),
        Some(part) => part.windows(home).map(|(offset, len)| enclosing_bytes(offset, len as u64)).sum(),
    }
}

/// Verifies the stored bytes of a column by their checksums and returns its home and declared type. The error names chunk,
/// column and block.
pub fn verify_column<'a>(chunk: &'a Chunk, column: usize, stored: &[u8]) -> Result<(&'a SegmentHome, &'a DataType)> {
    let (home, declared) = home_and_type(chunk, column)?;
    codec::verify(home, stored).map_err(|block| wrong_checksum(chunk, column, block))?;
    Ok((home, declared))
}

pub(super) fn home_and_type(chunk: &Chunk, column: usize) -> Result<(&SegmentHome, &DataType)> {
    match (chunk.segments.get(column), chunk.data_type(column)) {
        (Some(segment), Some(data_type)) => Ok((&segment.home, data_type)),
        _ => Err(super::no_column(chunk, column)),
    }
}

fn wrong_checksum(chunk: &Chunk, column: usize, block: usize) -> Error {
    let start = chunk.segments.get(column).map_or(0, |segment| segment.home.offset);
    let at = start + (block * codec::CHECKSUM_BLOCK_BYTES) as u64;
    let what = format!("{}: checksum of the 16 KiB at offset {at} is wrong", chunk.column_label(column));
    Error::Corrupt { path: chunk.path.clone(), what }
}

/// Verifies and decodes a column from one buffer, or from a buffer for each range of the part. For a whole column it returns
/// the decompressed bytes too.
pub(super) fn decode(
    chunk: &Chunk,
    column: usize,
    part: Option<&Part>,
    mut reads: Vec<AlignedBuffer>,
    pool: &Arc<BufferPool>,
) -> Result<(StoredColumn, Option<Buffer>)> {
    let rows = chunk.rows as usize;
    let located = |error| locate(error, chunk, column);
    let Some(part) = part else {
        let stored = reads.pop().ok_or(Error::Cancelled)?;
        let (home, declared) = verify_column(chunk, column, stored.as_slice())?;
        let bytes = codec::decompressed(home, stored.into_arrow(None), pool).map_err(located)?;
        // SAFETY: `verify_column` has compared the checksums.
        let decoded = unsafe { StoredColumn::decode_image(home, declared, rows, &bytes).map_err(located)? };
        return Ok((decoded, Some(bytes)));
    };
    if reads.len() != part.ranges().len() {
        return Err(Error::Cancelled);
    }
    let (home, declared) = home_and_type(chunk, column)?;
    for (range, bytes) in part.ranges().iter().zip(&reads) {
        codec::verify_blocks(home, range.start, bytes.as_slice())
            .map_err(|block| wrong_checksum(chunk, column, block))?;
    }
    // SAFETY: the loop has compared the checksums of all buffers.
    Ok((unsafe { part.decode(home, declared, rows, reads, pool).map_err(located)? }, None))
}

/// Adds file, chunk and column to an error of the codec.
pub(super) fn locate(error: Error, chunk: &Chunk, column: usize) -> Error {
    codec::locate(error, &chunk.path, &chunk.column_label(column))
}
