//! One read or write as the engines see it: the window, the handles that wait for it, and the loop that carries it out by
//! `pread` or `pwrite`.
//!
//! A read covers whole blocks; the last block of a file may be short. A read is complete when every byte of the window is
//! read. A write has the alignment that its caller gave it.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_model::{Error, Result};

use super::blocking::Device;
use super::files::file_error;
use super::handle::{Completer, ReadHandle, handle_pair};
use super::{AlignedBuffer, BLOCK_BYTES, BufferPool, Intent, IoFile, IoStats};

/// The largest single operation given to the kernel.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Whether bytes go from the device or to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A read or a write that an engine has accepted and not yet answered.
#[derive(Debug)]
pub(crate) struct Request {
    /// What it is for: also its windows, when each is read again by itself.
    pub(crate) intent: Intent,
    pub(crate) direction: Direction,
    pub(crate) file: Arc<IoFile>,
    pool: Arc<BufferPool>,
    /// The bytes to write.
    source: Option<AlignedBuffer>,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) waiters: Waiters,
}

/// The handles that wait for an operation, each for a range of its bytes.
#[derive(Debug)]
pub(crate) struct Waiters(Vec<(Range<usize>, Completer)>);

impl Waiters {
    /// Marks the operation as running, also when it runs again. False when all handles were dropped.
    pub(crate) fn begin(&self) -> bool {
        // `count` and not `any`: every handle has to be marked.
        self.0.iter().filter(|(_, completer)| completer.begin()).count() > 0
    }

    /// True when the handle waits for this operation.
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
        intent: Intent,
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
            let (handle, completer) = handle_pair(stats, intent.class, Direction::Read);
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
        let waiters = Waiters(waiters);
        let direction = Direction::Read;
        (handles, wanted.then_some(Self { intent, direction, file, pool, source: None, offset, len, waiters }))
    }

    /// Builds a request that writes `bytes` at `offset`, and its handle. There is no request when there are no bytes.
    pub(crate) fn to_write(
        intent: Intent,
        stats: &Arc<IoStats>,
        file: &Arc<IoFile>,
        offset: u64,
        bytes: AlignedBuffer,
    ) -> (ReadHandle, Option<Self>) {
        let (handle, completer) = handle_pair(stats, intent.class, Direction::Write);
        let len = bytes.as_slice().len();
        if len == 0 {
            completer.complete(Ok(bytes));
            return (handle, None);
        }
        let request = Self {
            intent,
            direction: Direction::Write,
            file: Arc::clone(file),
            pool: Arc::default(),
            source: Some(bytes),
            offset,
            len,
            waiters: Waiters(vec![(0..len, completer)]),
        };
        (handle, Some(request))
    }

    /// Takes a more urgent purpose if the handle waits for this operation; false if it does not.
    pub(crate) fn raise(&mut self, intent: Intent, handle: &ReadHandle) -> bool {
        let is_it = self.waiters.include(handle);
        if is_it {
            self.intent = intent;
        }
        is_it
    }

    /// The buffer of the operation: blocks to read into, or the bytes to write.
    pub(crate) fn take_buffer(&mut self) -> Result<AlignedBuffer> {
        match self.source.take() {
            Some(source) => Ok(source),
            None => AlignedBuffer::for_window(&self.pool, self.offset, self.len),
        }
    }

    /// Counts an operation on the device.
    pub(crate) fn count(&self, stats: &IoStats, bytes: usize) {
        let (operations, sum) = match self.direction {
            Direction::Read => (&stats.reads, &stats.read_bytes),
            Direction::Write => (&stats.writes, &stats.written_bytes),
        };
        operations.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The error of an operation that the device refused.
    pub(crate) fn failed(&self, error: &std::io::Error) -> Error {
        // A device that is no file of the system has errors of its own.
        if let Some(known) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return known.clone();
        }
        match self.direction {
            Direction::Read => Error::io("read", &self.file.path, error),
            Direction::Write => file_error("write", &self.file.path, error),
        }
    }

    /// The error of an operation that does not get on.
    pub(crate) fn stuck(&self) -> Error {
        match self.direction {
            Direction::Read => self.file.too_short(self.offset, self.len),
            Direction::Write => self.failed(&std::io::ErrorKind::WriteZero.into()),
        }
    }

    /// Completes the waiting handles. When a read of several windows failed, returns a request for each of them instead: the
    /// fault may lie in one of them only.
    pub(crate) fn complete(self, result: Result<AlignedBuffer>) -> Vec<Self> {
        if self.waiters.0.len() < 2 || matches!(result, Ok(_) | Err(Error::Cancelled)) {
            self.waiters.complete(result);
            return Vec::new();
        }
        let Self { intent, direction, file, pool, offset, waiters, .. } = self;
        let single = |(range, completer): (Range<usize>, Completer)| {
            let file = Arc::clone(&file);
            let pool = Arc::clone(&pool);
            let offset = offset + range.start as u64;
            let waiters = Waiters(vec![(0..range.len(), completer)]);
            Self { intent, direction, file, pool, source: None, offset, len: range.len(), waiters }
        };
        waiters.0.into_iter().map(single).collect()
    }

    /// File offset from which positions are counted: of a read that of the first enclosing block.
    pub(crate) fn first_byte(&self) -> u64 {
        match self.direction {
            Direction::Read => self.offset - self.offset % BLOCK_BYTES as u64,
            Direction::Write => self.offset,
        }
    }

    /// Carries it out on a device, and completes the handles.
    pub(crate) fn run(self, stats: &IoStats, device: &impl Device) {
        let mut wanted = vec![self];
        while let Some(mut request) = wanted.pop() {
            if request.waiters.begin() {
                let buffer = request.take_buffer();
                let result = buffer.and_then(|buffer| match request.direction {
                    Direction::Read => request.read_into(buffer, stats, device),
                    Direction::Write => request.write_from(buffer, stats, device),
                });
                wanted.extend(request.complete(result));
            }
        }
    }

    fn write_from(&self, buffer: AlignedBuffer, stats: &IoStats, device: &impl Device) -> Result<AlignedBuffer> {
        let mut done = 0;
        while let Some(rest) = buffer.as_slice().get(done..).filter(|rest| !rest.is_empty()) {
            if self.waiters.is_abandoned() {
                return Err(Error::Cancelled);
            }
            let piece = rest.get(..PIECE_BYTES).unwrap_or(rest);
            match device.write_at(&self.file, piece, self.offset + done as u64) {
                Ok(count) => {
                    self.count(stats, count);
                    let reached = self.file.resume_at(done + count, self.len);
                    if reached <= done {
                        return Err(self.stuck());
                    }
                    done = reached;
                }
                Err(error) if is_retryable(&error) => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(buffer)
    }

    fn read_into(&self, mut buffer: AlignedBuffer, stats: &IoStats, device: &impl Device) -> Result<AlignedBuffer> {
        let mut filled = 0;
        let needed = buffer.window_end();
        while filled < needed && !self.waiters.is_abandoned() {
            let blocks = buffer.blocks_mut();
            let end = blocks.len().min(filled.saturating_add(device.piece_bytes()));
            let Some(target) = blocks.get_mut(filled..end) else { break };
            match device.read_at(&self.file, target, self.first_byte() + filled as u64) {
                Ok(count) => {
                    self.count(stats, count);
                    let reached = self.file.resume_at(filled + count, needed);
                    if reached <= filled {
                        return Err(self.stuck());
                    }
                    filled = reached;
                }
                Err(error) if is_retryable(&error) => {}
                Err(error) => return Err(self.failed(&error)),
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
    let count = unsafe { libc::pread(file.descriptor(), target.as_mut_ptr().cast(), target.len(), offset) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}

/// `pwrite`; returns the number of bytes that it wrote.
pub(crate) fn pwrite(file: &IoFile, bytes: &[u8], offset: u64) -> std::io::Result<usize> {
    file.system_file()?.write_at(bytes, offset)
}
