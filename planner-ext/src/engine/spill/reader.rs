//! Reads a spill file from its start.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use terrace_heap::HeapAccount;
use terrace_tier_store::io::ReadHandle;
use terrace_tier_store::tier::Charge;

use super::ByteStream;
use super::file::{ChargedBytes, FileState, Found};
use crate::error::store_error;

/// Pieces that are read ahead, where the budget of reads allows.
const AHEAD: usize = 3;

/// A reader of a file, at a position. Dropping it cancels the reads under way.
pub(super) struct SpillReader {
    file: Arc<FileState>,
    /// The piece and the position in it.
    piece: usize,
    from: usize,
    /// Reads of this piece and the next ones, in their order.
    reads: VecDeque<PieceRead>,
}

struct PieceRead {
    piece: usize,
    handle: ReadHandle,
    charge: Arc<Charge>,
}

impl SpillReader {
    pub(super) fn new(file: Arc<FileState>) -> Self {
        Self { file, piece: 0, from: 0, reads: VecDeque::new() }
    }

    pub(super) fn into_stream(self) -> ByteStream {
        Box::pin(stream::try_unfold(self, Self::next))
    }

    async fn next(mut self) -> datafusion::error::Result<Option<(Bytes, Self)>> {
        if let Some(read) = self.reads.pop_front() {
            return Ok(Some((self.wait(read).await?, self)));
        }
        loop {
            match self.file.find(self.piece, self.from) {
                None => return Ok(None),
                // It was read as the tail, before it became a piece.
                Some(found) if found.is_empty() => (self.piece, self.from) = (self.piece + 1, 0),
                Some(Found::Memory { bytes, ends }) => {
                    let (piece, from) = (self.piece, self.from + bytes.len());
                    (self.piece, self.from) = if ends { (piece + 1, 0) } else { (piece, from) };
                    return Ok(Some((bytes, self)));
                }
                Some(Found::Disk { offset, len }) => {
                    let account = self.file.spill.read_account();
                    let charge = account.try_charge(len as u64).unwrap_or_else(|_| account.charge_always(len as u64));
                    let read = self.start(self.piece, offset, len, charge)?;
                    return Ok(Some((self.wait(read).await?, self)));
                }
            }
        }
    }

    /// Reads further pieces ahead, waits for this one, and passes to the next.
    async fn wait(&mut self, read: PieceRead) -> datafusion::error::Result<Bytes> {
        (self.piece, self.from) = (read.piece + 1, 0);
        // So that writes that have ended keep no memory.
        HeapAccount::uncharged(|| self.file.spill.end_some());
        self.read_ahead()?;
        let clock = self.file.spill.clock();
        let since_us = clock.now_us();
        let bytes = read.handle.await.map_err(store_error)?;
        self.file.spill.count_wait(since_us);
        Ok(ChargedBytes::new(bytes, read.charge).into_bytes())
    }

    /// Submits reads of the next pieces, as far as the budget of reads allows.
    fn read_ahead(&mut self) -> datafusion::error::Result<()> {
        let next = self.reads.back().map_or(self.piece, |last| last.piece + 1);
        for piece in next..self.piece + AHEAD {
            let Some((offset, len)) = self.file.find_on_disk(piece) else { break };
            let Ok(charge) = self.file.spill.read_account().try_charge(len as u64) else { break };
            self.reads.push_back(self.start(piece, offset, len, charge)?);
        }
        Ok(())
    }

    fn start(&self, piece: usize, offset: u64, len: usize, charge: Charge) -> datafusion::error::Result<PieceRead> {
        let handle = self.file.spill.disk().map_err(store_error)?.read(offset, len);
        let charge = Arc::new(charge);
        handle.keep(Arc::clone(&charge));
        Ok(PieceRead { piece, handle, charge })
    }
}

impl Drop for SpillReader {
    fn drop(&mut self) {
        HeapAccount::uncharged(|| self.reads.clear());
    }
}
