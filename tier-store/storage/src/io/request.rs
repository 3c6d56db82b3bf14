//! One read as the engines see it: the window, the handles that wait for it, and the loop that reads it by `pread`.
//!
//! A read covers whole blocks; the last block of a file may be short. A read is complete when every byte of the window is
//! read.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_model::{Error, Result};

use super::handle::{Completer, ReadHandle, handle_pair};
use super::{AlignedBuffer, BLOCK_BYTES, BufferPool, Class, IoFile, IoStats};

/// The largest single operation given to the kernel.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// A read that an engine has accepted and not yet answered.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) file: Arc<IoFile>,
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) waiters: Waiters,
}

/// The handles that wait for a read, each for a range of its bytes.
#[derive(Debug)]
pub(crate) struct Waiters(Vec<(Range<usize>, Completer)>);

impl Waiters {
    /// Marks the operation as running, also when it runs again. False when all handles were dropped.
    pub(crate) fn begin(&self) -> bool {
        // `count` and not `any`: every handle has to be marked.
        self.0.iter().filter(|(_, completer)| completer.begin()).count() > 0
    }

    /// True when the handle waits for this read.
    pub(crate) fn include(&self, handle: &ReadHandle) -> bool {
        self.0.iter().any(|(_, completer)| completer.is_of(handle))
    }

    /// True when no handle waits for a running operation any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.iter().all(|(_, completer)| completer.is_abandoned())
    }

    /// Splits the buffer among the waiting handles, or gives each of them the error.
    pub(crate) fn complete(mut self, result: Result<AlignedBuffer>) {
        match result {
            result if self.0.len() < 2 => {
                if let Some((_, completer)) = self.0.pop() {
                    completer.complete(result);
                }
            }
            Ok(bytes) => {
                let (ranges, completers): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
                let parts = bytes.cut(ranges);
                completers.into_iter().zip(parts).for_each(|(completer, part)| completer.complete(Ok(part)));
            }
            Err(error) => self.0.into_iter().for_each(|(_, completer)| completer.complete(Err(error.clone()))),
        }
    }
}

impl Request {
    /// Builds one request for ascending windows (offset and length), and a handle for each window. There is no request when
    /// all handles are completed already: their windows are empty, or end after the file.
    pub(crate) fn new(
        class: Class,
        stats: &Arc<IoStats>,
        pool: &Arc<BufferPool>,
        file: &Arc<IoFile>,
        windows: &[(u64, usize)],
    ) -> (Vec<ReadHandle>, Option<Self>) {
        let offset = windows.first().map_or(0, |(offset, _)| *offset);
        let mut len = 0;
        let mut waiters = Vec::new();
        let mut handles = Vec::with_capacity(windows.len());
        for (at, bytes) in windows {
            let (handle, completer) = handle_pair(stats, class);
            handles.push(handle);
            if *bytes == 0 {
                completer.complete(AlignedBuffer::for_window(pool, *at, 0));
            } else if at.saturating_add(*bytes as u64) > file.len {
                completer.complete(Err(file.too_short(*at, *bytes)));
            } else {
                let start = at.saturating_sub(offset) as usize;
                len = len.max(start + bytes);
                waiters.push((start..start + bytes, completer));
            }
        }
        let file = Arc::clone(file);
        let pool = Arc::clone(pool);
        let wanted = !waiters.is_empty();
        (handles, wanted.then_some(Self { file, pool, offset, len, waiters: Waiters(waiters) }))
    }

    /// Completes the waiting handles. When a read of several windows failed, returns a request for each of them instead: the
    /// fault may lie in one of them only.
    pub(crate) fn complete(self, result: Result<AlignedBuffer>) -> Vec<Self> {
        if self.waiters.0.len() < 2 || matches!(result, Ok(_) | Err(Error::Cancelled)) {
            self.waiters.complete(result);
            return Vec::new();
        }
        let Self { file, pool, offset, waiters, .. } = self;
        let single = |(range, completer): (Range<usize>, Completer)| {
            let file = Arc::clone(&file);
            let pool = Arc::clone(&pool);
            let offset = offset + range.start as u64;
            Self { file, pool, offset, len: range.len(), waiters: Waiters(vec![(0..range.len(), completer)]) }
        };
        waiters.0.into_iter().map(single).collect()
    }

    /// File offset of the first enclosing block.
    pub(crate) fn first_block(&self) -> u64 {
        self.offset - self.offset % BLOCK_BYTES as u64
    }

    /// Reads with `read_at`, which may return fewer bytes than requested, and completes the handles.
    pub(crate) fn run(
        self,
        stats: &IoStats,
        read_at: impl Fn(&IoFile, &mut [MaybeUninit<u8>], u64) -> std::io::Result<usize>,
    ) {
        let mut wanted = vec![self];
        while let Some(request) = wanted.pop() {
            if request.waiters.begin() {
                let result = request.read_into_buffer(stats, &read_at);
                wanted.extend(request.complete(result));
            }
        }
    }

    fn read_into_buffer(
        &self,
        stats: &IoStats,
        read_at: impl Fn(&IoFile, &mut [MaybeUninit<u8>], u64) -> std::io::Result<usize>,
    ) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::for_window(&self.pool, self.offset, self.len)?;
        let mut filled = 0;
        let needed = buffer.window_end();
        while filled < needed && !self.waiters.is_abandoned() {
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
                Err(error) if is_retryable(&error) => {}
                Err(error) => return Err(Error::io("read", &self.file.path, &error)),
            }
        }
        if filled < needed {
            return Err(Error::Cancelled);
        }
        // SAFETY: reads have written the blocks up to there, one after the other.
        unsafe { buffer.set_filled(filled) };
        Ok(buffer)
    }
}

/// True for errors after which the operation has to be repeated.
pub(crate) fn is_retryable(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// `pread` into uninitialised memory; returns the number of bytes written from its start.
pub(crate) fn pread(file: &IoFile, target: &mut [MaybeUninit<u8>], offset: u64) -> std::io::Result<usize> {
    let offset = libc::off_t::try_from(offset).map_err(|_| std::io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the kernel writes at most `target.len()` bytes into memory that `target` borrows exclusively.
    let count = unsafe { libc::pread(file.file.as_raw_fd(), target.as_mut_ptr().cast(), target.len(), offset) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}
