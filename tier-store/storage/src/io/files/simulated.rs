//! A disk in memory that loses unsynced changes in a power cut, and fails on demand; a seed decides both.
//!
//! One disk serves files ([`FileSystem`]), cold reads ([`BlockIo`]) and the file of the catalog
//! ([`RandomAccessFile`]), so that all of them fail and lose power together. The calling thread serves its reads, so one
//! thread with the same seed repeats the same run. The disk counts operations that change something;
//! [`SimulatedFiles::cut_power_after`] cuts the power at one of them, and then every operation fails until
//! [`SimulatedFiles::restart`] returns the disk that a machine would find when the power is back.

use std::io::Error as IoError;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::Result;
use terrace_model::clock::Clock;

use super::image::{DiskImage, Entry, Node};
use super::{FileSystem, FolderEntry, RandomAccess, RandomAccessFile, file_error};
use crate::io::blocking::Device;
use crate::io::request::{Request, pread};
use crate::io::simulated::memory_file;
use crate::io::{AlignedBuffer, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle};

/// Rates of faults (each from 0 to 1), and the paths that they affect.
#[derive(Debug, Clone, Default)]
pub struct DiskFaults {
    /// Share of operations that fail with EIO; a write or a sync may have been done in part.
    pub error_rate: f64,
    /// Share of operations that need room and fail with ENOSPC; a write may have been done in part.
    pub full_rate: f64,
    /// Share of cold reads that return fewer bytes than requested.
    pub short_rate: f64,
    /// Time that each operation takes.
    pub latency: Duration,
    /// Only files and folders below this path fail; `None`: all.
    pub below: Option<PathBuf>,
}

/// The kind of failure that a restart follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// The process (`kill -9`): the system keeps what was written, synced or not, and may lose it later.
    Process,
    /// The machine: what was not synced is lost or torn.
    Machine,
}

/// The kind of operation, as far as faults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Grow,
    Change,
}

#[derive(Debug)]
struct Disk {
    image: DiskImage,
    random: StdRng,
    faults: DiskFaults,
    operations: u64,
    cut_at: Option<u64>,
    dead: bool,
    trace: u32,
}

/// Whether an operation takes place.
#[derive(Debug, Clone, Copy)]
enum Decision {
    Done,
    /// The operation fails with this `errno`, after this share of it was done.
    Fails(i32, f64),
    /// The operation is done but not synced, and the caller gets an error, because the power was cut.
    PowerCut,
}

impl Disk {
    /// Decides whether the next operation takes place; `Err` when it cannot even start.
    fn begin(&mut self, kind: Kind, path: &Path, detail: u64) -> Result<Decision, i32> {
        if self.dead {
            return Err(libc::ENODEV);
        }
        if kind != Kind::Read {
            self.operations += 1;
            self.trace = crc32c::crc32c_append(self.trace, path.as_os_str().as_encoded_bytes());
            self.trace = crc32c::crc32c_append(self.trace, &detail.to_le_bytes());
            if self.cut_at == Some(self.operations) {
                self.dead = true;
                return Ok(Decision::PowerCut);
            }
        }
        if self.faults.below.as_ref().is_some_and(|below| !path.starts_with(below)) {
            return Ok(Decision::Done);
        }
        let part = self.random.random_range(0.0..1.0);
        if self.faults.error_rate > 0.0 && self.random.random_bool(self.faults.error_rate) {
            return Ok(Decision::Fails(libc::EIO, part));
        }
        if kind == Kind::Grow && self.faults.full_rate > 0.0 && self.random.random_bool(self.faults.full_rate) {
            return Ok(Decision::Fails(libc::ENOSPC, part));
        }
        Ok(Decision::Done)
    }

    /// Carries out an operation that is done completely or not at all.
    fn change(
        &mut self,
        kind: Kind,
        path: &Path,
        detail: u64,
        change: impl FnOnce(&mut DiskImage) -> Result<(), i32>,
    ) -> Result<(), i32> {
        match self.begin(kind, path, detail)? {
            Decision::Done => change(&mut self.image),
            Decision::Fails(errno, _) => Err(errno),
            Decision::PowerCut => change(&mut self.image).and(Err(libc::ENODEV)),
        }
    }

    fn write_at(&mut self, path: &Path, node: Node, offset: u64, bytes: &[u8]) -> Result<(), i32> {
        let detail = offset ^ (u64::from(crc32c::crc32c(bytes)) << 32);
        let decision = self.begin(Kind::Grow, path, detail)?;
        let done = match decision {
            Decision::Fails(_, share) => (bytes.len() as f64 * share) as usize,
            Decision::Done | Decision::PowerCut => bytes.len(),
        };
        let offset = usize::try_from(offset).map_err(|_| libc::EFBIG)?;
        self.image.image(node)?.write(offset, bytes.get(..done).unwrap_or_default());
        result_of(decision)
    }

    fn sync_file(&mut self, path: &Path, node: Node) -> Result<(), i32> {
        let decision = self.begin(Kind::Change, path, 0)?;
        let file = self.image.image(node)?;
        match decision {
            Decision::Done => file.sync(),
            Decision::Fails(..) => file.sync_badly(&mut self.random),
            Decision::PowerCut => {}
        }
        result_of(decision)
    }

    /// Decides whether a read takes place.
    fn read(&mut self, path: &Path) -> Result<(), i32> {
        result_of(self.begin(Kind::Read, path, 0)?)
    }
}

fn result_of(decision: Decision) -> Result<(), i32> {
    match decision {
        Decision::Done => Ok(()),
        Decision::Fails(errno, _) => Err(errno),
        Decision::PowerCut => Err(libc::ENODEV),
    }
}

/// A simulated disk. Clones refer to the same disk.
#[derive(Debug, Clone)]
pub struct SimulatedFiles {
    disk: Arc<Mutex<Disk>>,
    clock: Arc<dyn Clock>,
    stats: Arc<IoStats>,
    pool: Arc<BufferPool>,
    depth: Arc<Depth>,
}

impl SimulatedFiles {
    /// An empty disk; `clock` advances by the latency of each operation.
    pub fn new(seed: u64, clock: Arc<dyn Clock>) -> Self {
        Self::with_image(DiskImage::default(), seed, clock)
    }

    fn with_image(image: DiskImage, seed: u64, clock: Arc<dyn Clock>) -> Self {
        let disk = Disk {
            image,
            random: StdRng::seed_from_u64(seed),
            faults: DiskFaults::default(),
            operations: 0,
            cut_at: None,
            dead: false,
            trace: 0,
        };
        Self {
            disk: Arc::new(Mutex::new(disk)),
            clock,
            stats: Arc::default(),
            pool: Arc::default(),
            depth: Arc::default(),
        }
    }

    /// Sets the faults for all operations from the next one on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.disk.lock().faults = faults;
    }

    /// Cuts the power at the `operations`-th operation from now that changes something: that operation is done but not
    /// synced, and fails for its caller.
    pub fn cut_power_after(&self, operations: u64) {
        let mut disk = self.disk.lock();
        disk.cut_at = Some(disk.operations + operations.max(1));
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.disk.lock().dead = true;
    }

    /// True after the power was cut.
    pub fn is_dead(&self) -> bool {
        self.disk.lock().dead
    }

    /// Number of operations so far that changed something.
    pub fn operations(&self) -> u64 {
        self.disk.lock().operations
    }

    /// A digest of all operations so far and their bytes: equal runs have equal ones.
    pub fn trace(&self) -> u32 {
        self.disk.lock().trace
    }

    /// The disk that the next start finds. This disk stays dead.
    pub fn restart(&self, outage: Outage, seed: u64) -> Self {
        let mut disk = self.disk.lock();
        disk.dead = true;
        let mut image = std::mem::take(&mut disk.image);
        if outage == Outage::Machine {
            image.cut_power(&mut disk.random);
        }
        Self::with_image(image, seed, Arc::clone(&self.clock))
    }

    /// A disk with the same contents and a seed of its own.
    pub fn copy(&self, seed: u64, clock: Arc<dyn Clock>) -> Self {
        Self::with_image(self.disk.lock().image.clone(), seed, clock)
    }

    /// Removes a file or folder, like an `rm -r` by another process.
    pub fn vanish(&self, path: &Path) -> Result<()> {
        self.with(path, "delete", |disk| disk.image.vanish(path))
    }

    fn with<T>(&self, path: &Path, action: &'static str, work: impl FnOnce(&mut Disk) -> Result<T, i32>) -> Result<T> {
        self.work(work).map_err(|e| file_error(action, path, &e))
    }

    fn work<T>(&self, work: impl FnOnce(&mut Disk) -> Result<T, i32>) -> Result<T, IoError> {
        let mut disk = self.disk.lock();
        if !disk.faults.latency.is_zero() {
            self.clock.sleep(disk.faults.latency);
        }
        work(&mut disk).map_err(IoError::from_raw_os_error)
    }
}

impl FileSystem for SimulatedFiles {
    fn is_simulated(&self) -> bool {
        true
    }

    fn is_folder(&self, path: &Path) -> bool {
        matches!(self.disk.lock().image.find(path), Some(Entry::Folder(_)))
    }

    fn create_folder(&self, folder: &Path) -> Result<()> {
        self.with(folder, "create", |disk| disk.change(Kind::Grow, folder, 1, |image| image.create_folder(folder)))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let create = |disk: &mut Disk| {
            disk.change(Kind::Grow, path, 2, |image| image.create_file(path).map(drop))?;
            disk.image.file(path)
        };
        let node = self.with(path, "create", create)?;
        self.with(path, "write", |disk| disk.write_at(path, node, 0, bytes))?;
        self.with(path, "sync", |disk| disk.sync_file(path, node))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.with(to, "rename", |disk| disk.change(Kind::Change, to, 3, |image| image.rename(from, to)))
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        self.with(folder, "sync", |disk| match disk.begin(Kind::Change, folder, 4)? {
            Decision::Done => disk.image.sync_folder(folder),
            decision => result_of(decision),
        })
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.with(path, "delete", |disk| match disk.image.file(path) {
            Err(libc::ENOENT) if !disk.dead => Ok(()),
            _ => disk.change(Kind::Change, path, 5, |image| image.remove_file(path)),
        })
    }

    fn remove_folder(&self, folder: &Path) -> Result<()> {
        self.with(folder, "delete", |disk| disk.change(Kind::Change, folder, 6, |image| image.remove_folder(folder)))
    }

    fn list(&self, folder: &Path) -> Result<Vec<FolderEntry>> {
        let names = self.with(folder, "list", |disk| {
            disk.read(folder)?;
            disk.image.names(folder)
        })?;
        let entry =
            |(name, entry)| FolderEntry { path: folder.join(name), is_folder: matches!(entry, Entry::Folder(_)) };
        Ok(names.into_iter().map(entry).collect())
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        self.with(path, "inspect", |disk| {
            disk.read(path)?;
            match disk.image.file(path) {
                Ok(node) => Ok(Some(disk.image.image(node)?.bytes().len() as u64)),
                Err(libc::ENOENT) => Ok(None),
                Err(errno) => Err(errno),
            }
        })
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        self.with(path, "read", |disk| {
            disk.read(path)?;
            let node = disk.image.file(path)?;
            Ok(disk.image.image(node)?.bytes().to_vec())
        })
    }

    fn open_random_access(&self, path: &Path) -> Result<RandomAccess, IoError> {
        let node = self.work(|disk| {
            if disk.image.find(path).is_none() {
                disk.change(Kind::Grow, path, 2, |image| image.create_file(path).map(drop))?;
            }
            disk.image.file(path)
        })?;
        Ok(RandomAccess::Private(Box::new(SimulatedFile { files: self.clone(), path: path.to_owned(), node })))
    }
}

impl BlockIo for SimulatedFiles {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        let bytes = self.with(path, "open", |disk| {
            disk.read(path)?;
            let node = disk.image.file(path)?;
            Ok(disk.image.image(node)?.bytes().to_vec())
        })?;
        // A chunk's file never changes, so the copy is as good as the file.
        Ok(Arc::new(memory_file(path, &bytes)?))
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        let (handles, request) = Request::new(intent, &self.stats, &self.pool, file, windows);
        if let Some(request) = request {
            request.run(&self.stats, self);
        }
        handles
    }

    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
        let (handle, request) = Request::to_write(intent, &self.stats, file, offset, bytes);
        if let Some(request) = request {
            request.run(&self.stats, self);
        }
        handle
    }

    /// Nothing waits here: reads end before their handles are returned.
    fn raise(&self, _intent: Intent, _handle: &ReadHandle) {}

    fn rules(&self) -> IoRules {
        IoRules::default()
    }

    /// No read waits for another one here.
    fn set_rules(&self, _rules: IoRules) {}

    fn stats(&self) -> &IoStats {
        &self.stats
    }

    fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    fn depth(&self) -> &Depth {
        &self.depth
    }
}

impl Device for SimulatedFiles {
    fn read_at(&self, file: &IoFile, target: &mut [MaybeUninit<u8>], offset: u64) -> Result<usize, IoError> {
        let len = self.work(|disk| {
            disk.read(&file.path)?;
            let short = disk.faults.short_rate > 0.0 && disk.random.random_bool(disk.faults.short_rate);
            Ok(if short { disk.random.random_range(1..=target.len()) } else { target.len() })
        })?;
        pread(file, target.get_mut(..len).unwrap_or_default(), offset)
    }

    /// The files of the store are written by [`FileSystem::write`] here; a file that is open for reads is a copy.
    fn write_at(&self, _file: &IoFile, _bytes: &[u8], _offset: u64) -> Result<usize, IoError> {
        Err(IoError::from_raw_os_error(libc::EBADF))
    }
}

/// An open file on a simulated disk.
#[derive(Debug)]
struct SimulatedFile {
    files: SimulatedFiles,
    path: PathBuf,
    node: Node,
}

impl RandomAccessFile for SimulatedFile {
    fn len_bytes(&self) -> Result<u64, IoError> {
        self.files.work(|disk| {
            disk.read(&self.path)?;
            Ok(disk.image.image(self.node)?.bytes().len() as u64)
        })
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        self.files.work(|disk| {
            disk.read(&self.path)?;
            let start = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
            let file = disk.image.image(self.node)?.bytes();
            out.copy_from_slice(file.get(start..start + out.len()).ok_or(libc::EINVAL)?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> Result<(), IoError> {
        let len = usize::try_from(len).map_err(|_| IoError::from_raw_os_error(libc::EFBIG))?;
        self.files.work(|disk| {
            disk.change(Kind::Grow, &self.path, len as u64, |image| {
                image.image(self.node)?.set_len(len);
                Ok(())
            })
        })
    }

    fn sync(&self) -> Result<(), IoError> {
        self.files.work(|disk| disk.sync_file(&self.path, self.node))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.files.work(|disk| disk.write_at(&self.path, self.node, offset, bytes))
    }
}
