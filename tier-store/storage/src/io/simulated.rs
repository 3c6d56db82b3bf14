//! The engine of tests: seeded faults over real or in-memory files.
//!
//! One thread serves requests in an order drawn from the seed, so the same requests and the same seed fail in the same
//! way once they are queued together: [`SimulatedEngine::pause`], submit, [`SimulatedEngine::resume`]. Reads go through
//! the page cache, so that short ones may have any length.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::clock::{Clock, SystemClock};
use terrace_model::{Error, Result};

use super::blocking::{Device, Workers};
use super::request::{pread, pwrite};
use super::{AlignedBuffer, BLOCK_BYTES, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle};

/// Rates of faults, each from 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Share of operations that fail with EIO.
    pub error_rate: f64,
    /// Share of operations that return fewer bytes than requested.
    pub short_rate: f64,
    /// Share of operations that are interrupted (EINTR) and have to be repeated.
    pub interrupt_rate: f64,
    /// Offsets, from and up to, where every operation fails with EIO.
    pub bad_bytes: Option<(u64, u64)>,
    /// So many operations succeed; all later ones fail with EIO.
    pub fails_after: Option<u32>,
    /// Serve queued requests in random order instead of the order of submission.
    pub reorder: bool,
    /// Time that every operation takes beyond that of the file.
    pub latency: Duration,
}

#[derive(Debug)]
struct FaultyDevice {
    random: Mutex<StdRng>,
    faults: Mutex<Faults>,
}

impl Device for FaultyDevice {
    fn pick(&self, waiting: usize) -> Option<usize> {
        self.faults.lock().reorder.then(|| self.random.lock().random_range(0..waiting.max(1)))
    }

    fn read_at(&self, file: &IoFile, target: &mut [MaybeUninit<u8>], offset: u64) -> std::io::Result<usize> {
        let len = self.draw(target.len(), offset)?;
        pread(file, target.get_mut(..len).unwrap_or_default(), offset)
    }

    fn write_at(&self, file: &IoFile, bytes: &[u8], offset: u64) -> std::io::Result<usize> {
        let drawn = self.draw(bytes.len(), offset)?;
        let len = if file.direct { drawn.next_multiple_of(BLOCK_BYTES) } else { drawn }.min(bytes.len());
        pwrite(file, bytes.get(..len).unwrap_or_default(), offset)
    }
}

impl FaultyDevice {
    /// Draws what becomes of an operation on `len` bytes at `offset`: an error, or the number of bytes that it covers.
    fn draw(&self, len: usize, offset: u64) -> std::io::Result<usize> {
        let faults = *self.faults.lock();
        if !faults.latency.is_zero() {
            SystemClock::default().sleep(faults.latency);
        }
        let (errno, drawn) = {
            let mut random = self.random.lock();
            let mut draw = |rate: f64| random.random_bool(rate.clamp(0.0, 1.0));
            let errno = match (draw(faults.error_rate), draw(faults.interrupt_rate)) {
                (true, _) => Some(libc::EIO),
                (_, true) => Some(libc::EINTR),
                _ => None,
            };
            let short = draw(faults.short_rate);
            (errno, if short { random.random_range(1..=len) } else { len })
        };
        let bad = |(from, to): (u64, u64)| offset < to && from < offset + len as u64;
        let is_broken = faults.fails_after == Some(0);
        if let Some(left) = &mut self.faults.lock().fails_after {
            *left = left.saturating_sub(1);
        }
        match errno.or_else(|| (is_broken || faults.bad_bytes.is_some_and(bad)).then_some(libc::EIO)) {
            Some(errno) => Err(std::io::Error::from_raw_os_error(errno)),
            None => Ok(drawn),
        }
    }
}

/// An engine with seeded faults.
#[derive(Debug)]
pub struct SimulatedEngine {
    workers: Workers<FaultyDevice>,
    files: Mutex<HashMap<PathBuf, Arc<IoFile>>>,
}

impl SimulatedEngine {
    /// Starts the engine; equal seeds draw equal faults.
    pub fn start(seed: u64, faults: Faults) -> Self {
        let device = FaultyDevice { random: Mutex::new(StdRng::seed_from_u64(seed)), faults: Mutex::new(faults) };
        Self { workers: Workers::start(device, 1), files: Mutex::new(HashMap::new()) }
    }

    /// Sets the faults for all operations from the next one on.
    pub fn set_faults(&self, faults: Faults) {
        *self.workers.device().faults.lock() = faults;
    }

    /// Holds all queued requests back.
    pub fn pause(&self) {
        self.workers.set_paused(true);
    }

    /// Serves requests again.
    pub fn resume(&self) {
        self.workers.set_paused(false);
    }

    /// Adds a file that exists in this engine only.
    pub fn add_file(&self, path: impl Into<PathBuf>, bytes: &[u8]) -> Result<()> {
        let path = path.into();
        let file = memory_file(&path, bytes)?;
        self.files.lock().insert(path, Arc::new(file));
        Ok(())
    }
}

/// A file in memory with the name `path`.
pub(super) fn memory_file(path: &Path, bytes: &[u8]) -> Result<IoFile> {
    // SAFETY: the name is a C string; the call has no other precondition.
    let descriptor = unsafe { libc::memfd_create(c"terrace-simulated".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(Error::io("create", path, &std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is open and has no other owner.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all_at(bytes, 0).map_err(|e| Error::io("write", path, &e))?;
    Ok(IoFile::buffered(path, bytes.len() as u64, file))
}

impl BlockIo for SimulatedEngine {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        match self.files.lock().get(path) {
            Some(file) => Ok(Arc::clone(file)),
            None => IoFile::open_buffered(path),
        }
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        self.workers.submit(intent, file, windows)
    }

    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
        self.workers.submit_write(intent, file, offset, bytes)
    }

    fn raise(&self, intent: Intent, handle: &ReadHandle) {
        self.workers.raise(intent, handle);
    }

    fn rules(&self) -> IoRules {
        self.workers.rules()
    }

    fn set_rules(&self, rules: IoRules) {
        self.workers.set_rules(rules);
    }

    fn stats(&self) -> &IoStats {
        self.workers.stats()
    }

    fn pool(&self) -> &Arc<BufferPool> {
        self.workers.pool()
    }

    fn depth(&self) -> &Depth {
        self.workers.depth()
    }
}
