//! A cold read: several columns of one chunk on their way from disk.
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
use crate::io::{AlignedBuffer, ReadHandle};
use crate::table::{Chunk, ChunkFile, Home};
use crate::tier::Charge;
use crate::tier::codec::{self, StoredColumn};

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

#[derive(Debug)]
enum Column {
    Reading(usize, ReadHandle),
    Ready(usize, AlignedBuffer),
    Taken,
}

/// A future of [`ColdColumns`].
#[derive(Debug)]
pub struct ColdRead {
    chunk: Arc<Chunk>,
    file: Arc<ChunkFile>,
    columns: Vec<Column>,
    charge: Arc<Charge>,
    clock: Arc<dyn Clock>,
    counters: Arc<SsdCounters>,
    /// When somebody first found it incomplete.
    waiting_since_us: Option<u64>,
}

impl ColdRead {
    pub(super) fn new(
        chunk: Arc<Chunk>,
        file: Arc<ChunkFile>,
        reads: Vec<(usize, ReadHandle)>,
        charge: Arc<Charge>,
        clock: Arc<dyn Clock>,
        counters: Arc<SsdCounters>,
    ) -> Self {
        let columns = reads.into_iter().map(|(column, handle)| Column::Reading(column, handle)).collect();
        Self { chunk, file, columns, charge, clock, counters, waiting_since_us: None }
    }

    /// Bytes charged for it.
    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// True when polling it would not wait.
    pub fn is_ready(&self) -> bool {
        self.columns.iter().all(|column| !matches!(column, Column::Reading(_, handle) if !handle.is_ready()))
    }

    /// Blocks the calling thread until all columns are there. Not for async code.
    pub fn wait(mut self) -> Result<ColdColumns> {
        if !self.is_ready() {
            self.waiting_since_us = Some(self.clock.now_us());
        }
        for column in &mut self.columns {
            // Some may have been polled to their end before.
            *column = match std::mem::replace(column, Column::Taken) {
                Column::Reading(index, handle) => Column::Ready(index, handle.wait()?),
                there => there,
            };
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<ColdColumns> {
        let wait_us = self.waiting_since_us.map_or(0, |since| self.clock.now_us().saturating_sub(since));
        let mut columns = Vec::with_capacity(self.columns.len());
        let mut bytes_read = 0;
        for column in &mut self.columns {
            let Column::Ready(index, image) = std::mem::replace(column, Column::Taken) else {
                return Err(Error::Cancelled);
            };
            let home = &self.chunk.segments.get(index).ok_or(Error::Cancelled)?.home;
            bytes_read += enclosing_bytes(home.offset, home.len);
            columns.push(decoded(&self.chunk, index, image).inspect_err(|error| {
                self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
                if let Some(segment) = self.chunk.segments.get(index) {
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
        for column in &mut this.columns {
            // In order: the first column not there yet has the waker. Those behind it run all the same.
            let Column::Reading(index, handle) = column else { continue };
            match Pin::new(handle).poll(context) {
                Poll::Pending => {
                    this.waiting_since_us.get_or_insert_with(|| this.clock.now_us());
                    return Poll::Pending;
                }
                Poll::Ready(Ok(image)) => *column = Column::Ready(*index, image),
                Poll::Ready(Err(error)) => {
                    this.columns.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(this.finish())
    }
}

/// Home and declared type of a column whose stored bytes are what was written; names chunk, column and block when not.
pub(crate) fn verified<'a>(chunk: &'a Chunk, column: usize, stored: &[u8]) -> Result<(&'a Home, &'a DataType)> {
    let (Some(segment), Some(field)) = (chunk.segments.get(column), chunk.schema.fields().get(column)) else {
        return Err(super::no_column(chunk, column));
    };
    match codec::verify(&segment.home, stored) {
        Ok(()) => Ok((&segment.home, field.data_type())),
        Err(block) => {
            let at = segment.home.offset + (block * codec::CHECKSUM_BLOCK_BYTES) as u64;
            let what = format!("{}: checksum of the 16 KiB at offset {at} is wrong", chunk.place(column));
            Err(Error::Corrupt { path: chunk.path.clone(), what })
        }
    }
}

fn decoded(chunk: &Chunk, column: usize, stored: AlignedBuffer) -> Result<StoredColumn> {
    let (home, declared) = verified(chunk, column, stored.as_slice())?;
    StoredColumn::decode(home, declared, chunk.rows as usize, &stored.into_arrow(None))
        .map_err(|error| located(error, chunk, column))
}

/// Names file, chunk and column in an error of the codec.
pub(super) fn located(error: Error, chunk: &Chunk, column: usize) -> Error {
    codec::locate(error, &chunk.path, &chunk.place(column))
}
