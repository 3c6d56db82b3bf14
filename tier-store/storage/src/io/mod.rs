//! Block I/O: direct reads into, and writes from, owned, aligned buffers.
//!
//! An engine owns every buffer of a running operation; the caller has a [`ReadHandle`], a future that can be dropped at any
//! time: a queued operation is then withdrawn; a running one ends, and the engine frees its buffer. Every byte counted in
//! [`IoStats`] was read from the device or written to it. Small writes, and all operations on names, go through [`files`].
//!
//! - [`blocking`]: the engine of threads and `pread`, where io_uring is missing
//! - [`buffer`]: block-aligned memory
//! - [`class_stats`]: counts operations and waits by class
//! - `copy`: copies images without filling the processor's caches
//! - [`demand`]: counts the reads of statements
//! - [`depth`]: bytes that an engine submits to a device at once
//! - [`device`]: describes the machine and its devices
//! - [`file_bytes`]: a file in memory before it is written
//! - [`files`]: the file layer, real and simulated
//! - [`handle`]: the future of a read or a write
//! - [`intent`]: what a read or a write is for
//! - `levels`: the levels at which running statements read columns at random
//! - [`look_ups`]: whether statements that read single pages come
//! - [`memory_objects`]: an object store in memory, for tests
//! - [`objects`]: object stores, and the engine that reads their objects
//! - [`pool`]: reuses the memory of finished reads
//! - [`priority`]: priorities of threads
//! - `queue`: the order of what waits for the device
//! - [`request`]: a read or a write as the engines see it
//! - [`rules`]: the order in which classes are served
//! - `shares`: divides the budget of reads among statements
//! - [`simulated`]: the engine with seeded faults, for tests
//! - [`uring`]: the io_uring engine, on a thread that sleeps when idle
//! - `writing_statement`: a statement that stores rows, and its waits

pub mod blocking;
pub mod buffer;
pub mod class_stats;
mod copy;
mod demand;
mod depth;
pub mod device;
pub mod file_bytes;
pub mod files;
pub mod handle;
pub mod intent;
mod levels;
mod look_ups;
pub mod memory_objects;
pub mod objects;
pub mod pool;
mod priority;
mod queue;
mod request;
pub mod rules;
mod shares;
pub mod simulated;
pub mod uring;
mod writing_statement;

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_model::clock::SystemClock;
use terrace_model::{Error, Result};

pub use buffer::AlignedBuffer;
pub use class_stats::{ClassStats, ClassSums};
pub(crate) use copy::copy_past_caches;
pub use demand::{Demand, ReadSums};
pub use depth::Depth;
pub use file_bytes::FileBytes;
pub use files::{FileSystem, RealFiles, SimulatedFiles};
pub use handle::ReadHandle;
pub use intent::{Class, Intent, Level, StatementId};
pub use levels::{ColumnLevels, OperatorLevel};
pub use pool::BufferPool;
pub use priority::{Priority, set_priority, with_priority};
pub(crate) use priority::{QUANTUM_BYTES, let_others_run};
pub use rules::{IoRules, Turns};
pub use shares::{ReadAhead, ReadShare, ReadingStatements};
pub use writing_statement::WritingStatement;

/// Alignment of offsets, lengths and addresses of direct I/O.
pub const BLOCK_BYTES: usize = 4096;

/// A file open for direct reads or writes.
#[derive(Debug)]
pub struct IoFile {
    /// Its path, for errors.
    pub path: PathBuf,
    /// Length in bytes when opened; `u64::MAX` where the writer of the file knows it.
    pub len: u64,
    /// The file of the operating system, opened with O_DIRECT where the file system has it; `None` for an object of an object
    /// store, which has no descriptor.
    file: Option<File>,
    /// False where the file system refused O_DIRECT (tmpfs): reads go through the page cache.
    pub direct: bool,
}

impl IoFile {
    /// Opens `path` with O_DIRECT, or without where the file system refuses it.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => Self::from_file(path, file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Self::open_buffered(path),
            Err(error) => Err(Error::io("open", path, &error)),
        }
    }

    /// Opens `path` for reads through the page cache.
    pub fn open_buffered(path: &Path) -> Result<Arc<Self>> {
        let file = File::open(path).map_err(|e| Error::io("open", path, &e))?;
        Self::from_file(path, file, false)
    }

    /// Opens an existing file for direct writes; `None` where that is refused.
    pub fn open_for_writing(path: &Path) -> Option<Arc<Self>> {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        Self::from_file(path, file, true).ok()
    }

    /// Makes an empty file for reads and writes, direct ones where the file system has them. It has no name any more when
    /// this returns, so its bytes go with its descriptor; `path` names it in errors. Whoever writes it knows its length.
    pub fn create_nameless(path: &Path) -> Result<Arc<Self>> {
        let create = |flags| {
            let mut options = OpenOptions::new();
            // A process that was killed before it deleted the name may have left it.
            options.read(true).write(true).create(true).truncate(true).mode(0o600);
            options.custom_flags(flags | libc::O_NOFOLLOW).open(path)
        };
        let refused = |error: &std::io::Error| error.raw_os_error() == Some(libc::EINVAL);
        let (created, direct) = match create(libc::O_DIRECT) {
            Err(error) if refused(&error) => (create(0), false),
            done => (done, true),
        };
        let file = created.map_err(|e| files::file_error("create", path, &e))?;
        std::fs::remove_file(path).map_err(|e| Error::io("delete", path, &e))?;
        Ok(Arc::new(Self { path: path.to_path_buf(), len: u64::MAX, file: Some(file), direct }))
    }

    /// An object of an object store, of a known length.
    pub fn object(path: &Path, len: u64) -> Arc<Self> {
        Arc::new(Self { path: path.to_path_buf(), len, file: None, direct: false })
    }

    /// A file that is open for reads through the page cache.
    pub(crate) fn buffered(path: &Path, len: u64, file: File) -> Self {
        Self { path: path.to_path_buf(), len, file: Some(file), direct: false }
    }

    /// The file of the operating system.
    ///
    /// # Errors
    /// `EBADF` for an object.
    pub(crate) fn system_file(&self) -> std::io::Result<&File> {
        self.file.as_ref().ok_or_else(|| std::io::Error::from_raw_os_error(libc::EBADF))
    }

    /// The descriptor; -1, which the kernel refuses, for an object.
    #[inline]
    pub fn descriptor(&self) -> RawFd {
        self.file.as_ref().map_or(-1, File::as_raw_fd)
    }

    /// Makes a file longer, with a hole at its end.
    pub fn extend(&self, len: u64) -> Result<()> {
        let extended = self.system_file().and_then(|file| file.set_len(len));
        extended.map_err(|e| files::file_error("extend", &self.path, &e))
    }

    /// Gives the space of a range of bytes back to the file system, where it can do that.
    pub fn free(&self, range: Range<u64>) {
        let (Ok(start), Ok(len)) = (range.start.try_into(), (range.end - range.start).try_into()) else { return };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call on an open descriptor; a refusal changes nothing.
        unsafe { libc::fallocate(self.descriptor(), mode, start, len) };
    }

    fn from_file(path: &Path, file: File, direct: bool) -> Result<Arc<Self>> {
        let len = file.metadata().map_err(|e| Error::io("open", path, &e))?.len();
        Ok(Arc::new(Self { path: path.to_path_buf(), len, file: Some(file), direct }))
    }

    /// Reads the first `len` bytes, blocking and without an engine: for headers.
    pub fn read_start(&self, len: usize) -> Result<AlignedBuffer> {
        if len as u64 > self.len {
            return Err(self.too_short(0, len));
        }
        let mut start = AlignedBuffer::for_window(&Arc::default(), 0, len)?;
        let mut filled = 0;
        while filled < len {
            match request::pread(self, start.blocks_mut().get_mut(filled..).unwrap_or_default(), filled as u64) {
                Ok(0) => return Err(self.too_short(0, len)),
                Ok(count) => filled = self.resume_at(filled + count, len),
                Err(error) if request::is_retryable(&error) => {}
                Err(error) => return Err(Error::io("read", &self.path, &error)),
            }
        }
        // SAFETY: the reads have written all blocks up to `filled`.
        unsafe { start.set_filled(filled) };
        Ok(start)
    }

    /// The error for a window that the file does not hold.
    pub(crate) fn too_short(&self, offset: u64, len: usize) -> Error {
        let what = format!("it ends before offset {}: probably truncated", offset.saturating_add(len as u64));
        Error::Corrupt { path: self.path.clone(), what }
    }

    /// The position at which a read continues after `filled` bytes: direct reads start at whole blocks.
    pub(crate) fn resume_at(&self, filled: usize, needed: usize) -> usize {
        match self.direct && filled < needed {
            true => filled - filled % BLOCK_BYTES,
            false => filled,
        }
    }
}

/// Counters of an engine since it started.
#[derive(Debug, Default)]
pub struct IoStats {
    /// Read operations completed.
    pub reads: AtomicU64,
    /// Bytes that they returned.
    pub read_bytes: AtomicU64,
    /// Write operations completed.
    pub writes: AtomicU64,
    /// Bytes that they wrote.
    pub written_bytes: AtomicU64,
    /// Operations that failed.
    pub errors: AtomicU64,
    /// Operations that are queued or running now.
    pub in_flight: AtomicU64,
    /// The reads of statements; without upkeep and spilled bytes.
    pub demand: Demand,
    class_reads: [ClassStats; Class::ALL.len()],
    class_writes: [ClassStats; Class::ALL.len()],
    clock: SystemClock,
}

impl IoStats {
    /// Bytes read from the device so far.
    #[inline]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// The reads of a class. One that was raised counts in its first class.
    pub fn class_reads(&self, class: Class) -> &ClassStats {
        class.entry_in(self.class_reads.each_ref())
    }

    /// The writes of a class.
    pub fn class_writes(&self, class: Class) -> &ClassStats {
        class.entry_in(self.class_writes.each_ref())
    }
}

/// An engine that reads and writes blocks.
pub trait BlockIo: Send + Sync + std::fmt::Debug {
    /// "io_uring", "blocking" or "simulated".
    fn name(&self) -> &'static str;
    /// Opens a file for reading with O_DIRECT, or without where the file system refuses it.
    fn open(&self, path: &Path) -> Result<Arc<IoFile>>;
    /// Starts a read of the blocks that enclose `offset .. offset + len`. The result holds exactly these bytes at
    /// [`AlignedBuffer::as_slice`] and starts 64-byte aligned when `offset` is a multiple of 64. A short file gives
    /// [`terrace_model::Error::Corrupt`], a device error [`terrace_model::Error::Io`].
    fn read(&self, file: &Arc<IoFile>, offset: u64, len: usize) -> ReadHandle {
        self.read_as(Class::Needed.into(), file, offset, len)
    }

    /// Like [`BlockIo::read`], but for a purpose: when reads wait for the device, more urgent ones go first, those of
    /// different statements take turns, and in a statement those of lower operators go first.
    fn read_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, len: usize) -> ReadHandle {
        self.read_windows(intent, file, &[(offset, len)]).pop().unwrap_or_else(ReadHandle::cancelled)
    }

    /// Reads ascending windows (offset and length) of a file, and the holes between them, as one read. Returns a handle for
    /// each window; the results share their memory. If the read fails, the engine reads each window by itself.
    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle>;

    /// Like [`BlockIo::read_windows`], but for several reads, which an engine may submit to the device together. The handles
    /// are in the order of the reads.
    fn read_all(&self, intent: Intent, file: &Arc<IoFile>, reads: &[&[(u64, usize)]]) -> Vec<ReadHandle> {
        reads.iter().flat_map(|windows| self.read_windows(intent, file, windows)).collect()
    }

    /// Starts a write of the bytes of a buffer, which the handle returns when the device has them; they are durable after a
    /// sync of the file. Where the file is open for direct I/O, `offset` and the buffer are whole blocks. A device error
    /// gives [`terrace_model::Error::Io`].
    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle;

    /// Gives a read that waits for the device a more urgent purpose, with the windows that were read together with it. A
    /// read that has begun goes on as it is.
    fn raise(&self, intent: Intent, handle: &ReadHandle);

    /// The rules of its queue.
    fn rules(&self) -> IoRules;
    /// Sets the rules for reads to come.
    fn set_rules(&self, rules: IoRules);
    /// The counters.
    fn stats(&self) -> &IoStats;
    /// The pool that the memory of reads comes from.
    fn pool(&self) -> &Arc<BufferPool>;
    /// Bytes that the engine submits to the device at once.
    fn depth(&self) -> &Depth;
    /// Whether look-ups come: statements that read a few single pages and nothing else, and wait for these. An engine that
    /// does not know says no.
    fn look_ups_come(&self) -> bool {
        false
    }
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
