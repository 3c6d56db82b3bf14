//! Block I/O: direct reads into owned, aligned buffers.
//!
//! An engine owns every buffer of a running operation; what a caller holds is a [`ReadHandle`], a future that can be
//! dropped at any time: a queued operation is withdrawn, a running one is finished and its buffer freed by the engine.
//! Engines: [`uring`] (its own thread, parked when idle), [`blocking`] (threads and `pread`, where io_uring is
//! missing), [`simulated`] (seeded faults, for tests). Every byte counted in [`IoStats`] was read from the device.
//! Writing, and all that has to do with names, goes through [`files`].

pub mod blocking;
pub mod buffer;
pub mod class;
mod demand;
mod depth;
pub mod device;
pub mod file_bytes;
pub mod files;
pub mod handle;
pub mod pool;
mod priority;
mod request;
pub mod simulated;
pub mod uring;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use buffer::AlignedBuffer;
pub use class::Class;
pub use demand::{Demand, ReadSums};
pub use depth::Depth;
pub use file_bytes::FileBytes;
pub use files::{FileSystem, RealFiles, SimulatedFiles};
pub use handle::ReadHandle;
pub use pool::BufferPool;
pub(crate) use priority::{Priority, TURN_BYTES, give_way, let_others_run};

use crate::error::{Error, Result};

/// Alignment of offsets, lengths and addresses of direct I/O.
pub const BLOCK_BYTES: usize = 4096;

/// A file open for direct reads.
#[derive(Debug)]
pub struct IoFile {
    /// Its path, for errors.
    pub path: PathBuf,
    /// Length in bytes when opened.
    pub len: u64,
    /// The descriptor, opened with O_DIRECT where the file system has it.
    pub file: File,
    /// False where the file system refused O_DIRECT (tmpfs): reads go through the page cache.
    pub direct: bool,
}

impl IoFile {
    /// Opens `path` with O_DIRECT, or without where the file system refuses it.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => Self::of(path, file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Self::open_buffered(path),
            Err(error) => Err(Error::io("open", path, &error)),
        }
    }

    /// Opens `path` for reads through the page cache.
    pub fn open_buffered(path: &Path) -> Result<Arc<Self>> {
        let file = File::open(path).map_err(|e| Error::io("open", path, &e))?;
        Self::of(path, file, false)
    }

    fn of(path: &Path, file: File, direct: bool) -> Result<Arc<Self>> {
        let len = file.metadata().map_err(|e| Error::io("open", path, &e))?.len();
        Ok(Arc::new(Self { path: path.to_path_buf(), len, file, direct }))
    }

    /// The first `len` bytes, blocking and past any engine: for a look at a header.
    pub(crate) fn read_start(&self, len: usize) -> Result<AlignedBuffer> {
        if len as u64 > self.len {
            return Err(self.too_short(0, len));
        }
        let mut start = AlignedBuffer::for_window(&Arc::default(), 0, len)?;
        let mut filled = 0;
        while filled < len {
            match request::pread(self, start.blocks_mut().get_mut(filled..).unwrap_or_default(), filled as u64) {
                Ok(0) => return Err(self.too_short(0, len)),
                Ok(count) => filled = self.resume_at(filled + count, len),
                Err(error) if request::retry(&error) => {}
                Err(error) => return Err(Error::io("read", &self.path, &error)),
            }
        }
        // SAFETY: reads have written the blocks up to there, one after the other.
        unsafe { start.set_filled(filled) };
        Ok(start)
    }

    /// The error for a window that the file does not hold.
    pub(crate) fn too_short(&self, offset: u64, len: usize) -> Error {
        let what = format!("it ends before offset {}: truncated?", offset.saturating_add(len as u64));
        Error::Corrupt { path: self.path.clone(), what }
    }

    /// Where a read that got as far as `filled` goes on: direct reads start at whole blocks.
    pub(crate) fn resume_at(&self, filled: usize, needed: usize) -> usize {
        match self.direct && filled < needed {
            true => filled - filled % BLOCK_BYTES,
            false => filled,
        }
    }
}

/// What an engine did since it started.
#[derive(Debug, Default)]
pub struct IoStats {
    /// Read operations completed.
    pub reads: AtomicU64,
    /// Bytes those returned.
    pub read_bytes: AtomicU64,
    /// Operations that failed.
    pub errors: AtomicU64,
    /// Operations queued or running now.
    pub in_flight: AtomicU64,
    /// What statements asked for; moves, checks and what was spilled are not among it.
    pub demand: Demand,
}

impl IoStats {
    /// Bytes read from the device so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

/// An engine that reads blocks.
pub trait BlockIo: Send + Sync + std::fmt::Debug {
    /// "io_uring", "blocking" or "simulated".
    fn name(&self) -> &'static str;
    /// Opens a file for reading with O_DIRECT, or without where refused.
    fn open(&self, path: &Path) -> Result<Arc<IoFile>>;
    /// Starts a read of the blocks that enclose `offset .. offset + len`. The result holds exactly these bytes at
    /// [`AlignedBuffer::as_slice`] and starts 64-byte aligned when `offset` is a multiple of 64. A short file gives
    /// [`crate::Error::Corrupt`], a device error [`crate::Error::Io`].
    fn read(&self, file: &Arc<IoFile>, offset: u64, len: usize) -> ReadHandle {
        self.read_as(Class::Needed, file, offset, len)
    }

    /// The same, of a class: where more is asked than a device can do at once, higher classes go first.
    fn read_as(&self, class: Class, file: &Arc<IoFile>, offset: u64, len: usize) -> ReadHandle {
        self.read_windows(class, file, &[(offset, len)]).pop().unwrap_or_else(ReadHandle::cancelled)
    }

    /// Reads windows (offset and length) of a file at once, what lies between them too; they ascend. A handle for each: the
    /// results share their memory. Where that fails, each window is read by itself.
    fn read_windows(&self, class: Class, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle>;

    /// Several such reads, which an engine may give to the device in one go; the handles of each follow those of the one before.
    fn read_all(&self, class: Class, file: &Arc<IoFile>, reads: &[&[(u64, usize)]]) -> Vec<ReadHandle> {
        reads.iter().flat_map(|windows| self.read_windows(class, file, windows)).collect()
    }

    /// Counts.
    fn stats(&self) -> &IoStats;
    /// Where the memory of reads comes from.
    fn pool(&self) -> &Arc<BufferPool>;
    /// How much is given to the device at once.
    fn depth(&self) -> &Depth;
}

/// The best engine this machine offers: io_uring, else blocking (with the reason in the log).
pub fn best_engine() -> Arc<dyn BlockIo> {
    match uring::UringEngine::start() {
        Ok(engine) => Arc::new(engine),
        Err(error) => {
            tracing::warn!(%error, "io_uring is not available; cold reads use blocking threads");
            Arc::new(blocking::BlockingEngine::start())
        }
    }
}

#[cfg(test)]
mod tests;
