//! One read as the engines see it: what is asked, what counts as enough, and the loop that gets it by `pread`.
//!
//! A read is cut into blocks; the last block of a file may be short. Enough is: every byte of the window.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::handle::{Completer, ReadHandle, pair};
use super::{AlignedBuffer, BLOCK_BYTES, BufferPool, IoFile, IoStats};
use crate::error::{Error, Result};

/// The largest single operation given to the kernel.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// A read that an engine has accepted and not yet answered.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) file: Arc<IoFile>,
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) completer: Completer,
}

impl Request {
    /// A request and its handle. Without a request the handle is answered already: nothing was asked, or the file ends
    /// before the window does.
    pub(crate) fn new(
        stats: &Arc<IoStats>,
        pool: &Arc<BufferPool>,
        file: &Arc<IoFile>,
        offset: u64,
        len: usize,
    ) -> (ReadHandle, Option<Self>) {
        let (handle, completer) = pair(stats);
        if len == 0 {
            completer.complete(AlignedBuffer::for_window(pool, offset, 0));
            return (handle, None);
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > file.len) {
            completer.complete(Err(file.too_short(offset, len)));
            return (handle, None);
        }
        let (file, pool) = (Arc::clone(file), Arc::clone(pool));
        (handle, Some(Self { file, pool, offset, len, completer }))
    }

    /// File offset of the first enclosing block.
    pub(crate) fn first_block(&self) -> u64 {
        self.offset - self.offset % BLOCK_BYTES as u64
    }

    /// Reads with `read_at`, which may return fewer bytes than asked, and answers the handle.
    pub(crate) fn run(
        self,
        stats: &IoStats,
        read_at: impl Fn(&IoFile, &mut [MaybeUninit<u8>], u64) -> std::io::Result<usize>,
    ) {
        if self.completer.begin() {
            let result = self.fill(stats, read_at);
            self.completer.complete(result);
        }
    }

    fn fill(
        &self,
        stats: &IoStats,
        read_at: impl Fn(&IoFile, &mut [MaybeUninit<u8>], u64) -> std::io::Result<usize>,
    ) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::for_window(&self.pool, self.offset, self.len)?;
        let (mut filled, needed) = (0, buffer.window_end());
        while filled < needed && !self.completer.is_abandoned() {
            let blocks = buffer.blocks_mut();
            let end = blocks.len().min(filled + PIECE_BYTES);
            let Some(target) = blocks.get_mut(filled..end) else { break };
            match read_at(&self.file, target, self.first_block() + filled as u64) {
                Ok(count) => {
                    stats.reads.fetch_add(1, Ordering::Relaxed);
                    stats.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    let reached = self.file.resume_at(filled + count, needed);
                    if reached <= filled {
                        return Err(self.file.too_short(self.offset, self.len));
                    }
                    filled = reached;
                }
                Err(error) if retry(&error) => {}
                Err(error) => return Err(Error::io("read", &self.file.path, &error)),
            }
        }
        if filled < needed { Err(Error::Cancelled) } else { Ok(buffer) }
    }
}

/// True for errors that say "again", not "broken".
pub(crate) fn retry(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// `pread` into memory that need not be initialised; returns the count of bytes written from its start.
pub(crate) fn pread(file: &IoFile, target: &mut [MaybeUninit<u8>], offset: u64) -> std::io::Result<usize> {
    let offset = libc::off_t::try_from(offset).map_err(|_| std::io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the kernel writes at most `target.len()` bytes into memory that `target` borrows exclusively.
    let count = unsafe { libc::pread(file.file.as_raw_fd(), target.as_mut_ptr().cast(), target.len(), offset) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}
