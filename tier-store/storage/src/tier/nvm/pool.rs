//! The mapped pool: opens its backing, allocates extents and writes images.
//!
//! A pool file starts with a magic page, so that a wrong path never overwrites another file. It is locked while open. Its
//! blocks are allocated when it is opened: a full file system is an error then, not a crash at a store.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use terrace_model::{Error, Result};

use super::extents::{Extent, Extents};
use super::persist::{LineFlush, Persistence};
use crate::io::copy_past_caches;
use crate::io::device::describe_device;
use crate::io::files::revoke_access_of_others;

/// First bytes of a pool file.
const MAGIC: &[u8; 16] = b"TERRACE NVM POOL";
/// Bytes of a pool file before the first extent.
const HEADER_BYTES: u64 = 4096;
/// devdax devices are mapped in multiples of this.
const DEVDAX_BYTES: u64 = 2 << 20;

/// Mapped memory.
#[derive(Debug)]
enum Mapping {
    Shared(MmapRaw),
    /// Mapped with MAP_SYNC, which memmap2 does not offer.
    Synchronous {
        start: NonNull<u8>,
        len: usize,
    },
}

// SAFETY: a mapping has no thread affinity; a thread writes only to extents that were allocated to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn start(&self) -> *mut u8 {
        match self {
            Self::Shared(map) => map.as_mut_ptr(),
            Self::Synchronous { start, .. } => start.as_ptr(),
        }
    }

    fn shared(file: &File, len: u64, path: &Path) -> Result<Self> {
        let map = MmapOptions::new().len(usize_len(len)?).map_raw(file);
        map.map(Self::Shared).map_err(|e| Error::io("map", path, &e))
    }

    /// A mapping whose stores need no `msync`; the kernel refuses it for files that are not DAX.
    fn synchronous(file: &File, len: u64) -> std::io::Result<Self> {
        let len = usize::try_from(len).map_err(std::io::Error::other)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing existing is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self::Synchronous { start, len }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Self::Synchronous { start, len } = self {
            // SAFETY: mapped by `synchronous` with this length; every buffer over it keeps the pool alive.
            unsafe { libc::munmap(start.as_ptr().cast(), *len) };
        }
    }
}

/// A mapped pool and its free space.
#[derive(Debug)]
pub(super) struct Pool {
    mapping: Mapping,
    /// Bytes before the first extent.
    header_bytes: u64,
    capacity_bytes: u64,
    extents: Mutex<Extents>,
    persistence: Persistence,
    /// True when the memory of freed extents is returned to the system.
    release_memory: bool,
    emulated: bool,
    description: String,
    /// The open file keeps its lock.
    _file: File,
}

/// The device behind a pool.
struct Device {
    persistence: Persistence,
    /// True when ordinary memory emulates it.
    emulated: bool,
    /// One line for users.
    description: String,
}

impl Pool {
    /// A pool in anonymous memory. The system allocates memory when an extent is written and gets it back when the extent is
    /// freed, so the address range can be larger than the capacity: holes between extents do not count against the budget.
    pub(super) fn in_memory(capacity_bytes: u64) -> Result<Self> {
        let range_bytes = check_capacity(capacity_bytes)?.saturating_mul(2);
        let path = Path::new("memfd");
        // SAFETY: the name is a C string; the call has no other precondition.
        let descriptor = unsafe { libc::memfd_create(c"terrace-nvm".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(Error::io("create", path, &std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is open and has no other owner.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(range_bytes).map_err(|e| Error::io("extend", path, &e))?;
        Ok(Self {
            mapping: Mapping::shared(&file, range_bytes, path)?,
            header_bytes: 0,
            capacity_bytes: range_bytes,
            extents: Mutex::new(Extents::new(range_bytes)),
            persistence: Persistence::Volatile,
            release_memory: true,
            emulated: true,
            description: format!("emulated in process memory (memfd), {capacity_bytes} bytes"),
            _file: file,
        })
    }

    /// A pool in a file or devdax device.
    pub(super) fn at(path: &Path, capacity_bytes: u64, allow_non_dax: bool) -> Result<Self> {
        let capacity_bytes = check_capacity(capacity_bytes)?;
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_char_device() => Self::on_device(path, found.rdev(), capacity_bytes),
            Ok(found) if found.is_dir() => Self::in_file(&path.join("terrace.pool"), capacity_bytes, allow_non_dax),
            _ => Self::in_file(path, capacity_bytes, allow_non_dax),
        }
    }

    fn on_device(path: &Path, rdev: u64, capacity_bytes: u64) -> Result<Self> {
        let file = open_locked(path, false)?;
        let major = libc::major(rdev);
        let minor = libc::minor(rdev);
        let size = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"));
        let size: u64 = size.ok().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
            Error::Invalid(format!("NVM path {} is a character device, but not a devdax device", path.display()))
        })?;
        if capacity_bytes > size {
            return Err(too_large(path, capacity_bytes, size));
        }
        let len = (capacity_bytes - capacity_bytes % DEVDAX_BYTES).max(DEVDAX_BYTES);
        let (mapping, persistence) = match Mapping::synchronous(&file, len) {
            Ok(mapping) => (mapping, synchronous_persistence()),
            Err(_) => (Mapping::shared(&file, len, path)?, synchronous_persistence()),
        };
        let device = format!("device {major}:{minor} {} GB", size / 1_000_000_000);
        let description = format!("devdax {} on {device}, {}", path.display(), describe_persistence(persistence));
        Ok(Self::mapped(mapping, file, 0, len, Device { persistence, emulated: false, description }))
    }

    fn in_file(path: &Path, capacity_bytes: u64, allow_non_dax: bool) -> Result<Self> {
        let new = !path.exists();
        let made = Self::in_opened_file(open_locked(path, true)?, path, capacity_bytes, allow_non_dax);
        if made.is_err() && new {
            // The caller gets the first error; an empty file must not remain.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn in_opened_file(file: File, path: &Path, capacity_bytes: u64, allow_non_dax: bool) -> Result<Self> {
        let file_bytes = capacity_bytes.saturating_add(HEADER_BYTES);
        let old_bytes = file.metadata().map_err(|e| Error::io("inspect", path, &e))?.len();
        let mut magic = [0u8; MAGIC.len()];
        if old_bytes > 0 && (file.read_exact_at(&mut magic, 0).is_err() || magic != *MAGIC) {
            let advice = "is not a Terrace pool and was not changed; name another file";
            return Err(Error::Invalid(format!("NVM path {} {advice}", path.display())));
        }
        revoke_access_of_others(path);
        check_room(&file, path, file_bytes)?;
        if old_bytes < file_bytes {
            file.set_len(file_bytes).map_err(|e| Error::io("extend", path, &e))?;
        }
        let memory = is_tmpfs(&file);
        let (mapping, persistence) = match Mapping::synchronous(&file, file_bytes) {
            Ok(mapping) => (mapping, synchronous_persistence()),
            Err(_) if memory => (Mapping::shared(&file, file_bytes, path)?, Persistence::Volatile),
            Err(_) if allow_non_dax || is_dax(&file) => (Mapping::shared(&file, file_bytes, path)?, Persistence::Msync),
            Err(error) => return Err(not_dax(path, &error)),
        };
        reserve_blocks(&file, path, file_bytes)?;
        file.write_all_at(MAGIC, 0).map_err(|e| Error::io("write", path, &e))?;
        let emulated = memory || !(matches!(mapping, Mapping::Synchronous { .. }) || is_dax(&file));
        let place = match (memory, emulated) {
            (true, _) => "emulated on tmpfs",
            (_, true) => "emulated on an ordinary file system",
            _ => "DAX file",
        };
        let sync = if matches!(mapping, Mapping::Synchronous { .. }) { "granted" } else { "refused" };
        let durable = describe_persistence(persistence);
        let device = if memory { String::new() } else { format!(" on {}", describe_device(path)) };
        let description = format!("{place} {}{device}, MAP_SYNC {sync}, {durable}", path.display());
        let device = Device { persistence, emulated, description };
        Ok(Self::mapped(mapping, file, HEADER_BYTES, capacity_bytes, device))
    }

    fn mapped(mapping: Mapping, file: File, header_bytes: u64, capacity_bytes: u64, device: Device) -> Self {
        let Device { persistence, emulated, description } = device;
        Self {
            mapping,
            header_bytes,
            capacity_bytes,
            extents: Mutex::new(Extents::new(capacity_bytes)),
            persistence,
            release_memory: false,
            emulated,
            description,
            _file: file,
        }
    }

    pub(super) fn map_sync(&self) -> bool {
        matches!(self.mapping, Mapping::Synchronous { .. })
    }

    pub(super) fn emulated(&self) -> bool {
        self.emulated
    }

    pub(super) fn describe(&self) -> &str {
        &self.description
    }

    /// Bytes of all extents together, at most.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(super) fn free_bytes(&self) -> (u64, u64) {
        self.extents.lock().free_bytes()
    }

    /// Bytes of memory that an anonymous pool takes now.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> u64 {
        self._file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    pub(super) fn allocate(&self, bytes: u64) -> Option<Extent> {
        self.extents.lock().allocate(bytes)
    }

    /// Frees an extent.
    ///
    /// # Safety
    /// [`Pool::allocate`] of this pool returned the extent, it was not freed since, and it has no reader any more.
    pub(super) unsafe fn free(&self, extent: Extent) {
        if self.release_memory {
            // SAFETY: the extent lies inside the mapping and has no reader left; its bytes become zeros.
            unsafe { libc::madvise(self.address(extent).cast(), extent.len as usize, libc::MADV_REMOVE) };
        }
        self.extents.lock().free(extent);
    }

    /// Copies an image into an extent, makes it durable, and returns where it starts.
    ///
    /// # Safety
    /// [`Pool::allocate`] of this pool returned the extent, it was not freed since, and no other code reads or writes it.
    pub(super) unsafe fn write(&self, extent: Extent, image: &[u8]) -> Result<NonNull<u8>> {
        let start = NonNull::new(self.address(extent)).filter(|_| image.len() as u64 <= extent.len);
        let start = start.ok_or_else(|| Error::Invalid("an image is larger than its extent".into()))?;
        // SAFETY: the extent holds the image (checked), lies inside the mapping, and belongs to the caller alone.
        let target = unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), image.len()) };
        copy_past_caches(image, target);
        // SAFETY: as above.
        unsafe { self.persistence.persist(start, image.len())? };
        Ok(start)
    }

    fn address(&self, extent: Extent) -> *mut u8 {
        self.mapping.start().wrapping_add((self.header_bytes + extent.offset) as usize)
    }
}

fn usize_len(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::Invalid(format!("a pool of {len} bytes exceeds the address space")))
}

fn check_capacity(bytes: u64) -> Result<u64> {
    match super::extents::rounded(1) {
        unit if bytes < unit => Err(Error::Invalid(format!("an NVM pool of {bytes} bytes is too small; give it more"))),
        unit => Ok(bytes - bytes % unit),
    }
}

fn synchronous_persistence() -> Persistence {
    LineFlush::detect().map_or(Persistence::Msync, Persistence::CacheLines)
}

fn describe_persistence(persistence: Persistence) -> String {
    match persistence {
        Persistence::Volatile => "not durable".into(),
        Persistence::CacheLines(flush) => format!("flushed with {}", flush.name()),
        Persistence::Msync => "flushed with msync".into(),
    }
}

fn open_locked(path: &Path, create: bool) -> Result<File> {
    // Other users of the machine must not read the rows of tables, wherever the pool lies.
    let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path);
    let file = file.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::Invalid(format!(
            "NVM path {} does not exist: create the folder, mount the DAX file system there, or leave the path out for \
             an emulated pool",
            path.display()
        )),
        _ => Error::io("open", path, &error),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked { path: PathBuf::from(path), holder: "unknown".into() }),
        Err(TryLockError::Error(error)) => Err(Error::io("lock", path, &error)),
    }
}

/// Fails when the file system cannot hold the capacity, before any block is allocated.
fn check_room(file: &File, path: &Path, bytes: u64) -> Result<()> {
    let Some(found) = statfs(file).filter(|found| found.f_blocks > 0) else { return Ok(()) };
    let taken = file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
    let room = found.f_bavail.saturating_mul(found.f_bsize as u64).saturating_add(taken);
    if bytes > room { Err(too_large(path, bytes, room)) } else { Ok(()) }
}

fn reserve_blocks(file: &File, path: &Path, bytes: u64) -> Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(|_| too_large(path, bytes, i64::MAX as u64))?;
    // SAFETY: plain system call on an open descriptor.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        // The file system has no preallocation (some network and memory ones).
        Some(libc::EOPNOTSUPP) => Ok(()),
        Some(libc::ENOSPC | libc::EFBIG) => check_room(file, path, u64::MAX),
        _ => Err(Error::io("reserve blocks of", path, &error)),
    }
}

fn too_large(path: &Path, requested: u64, available: u64) -> Error {
    let path = path.display();
    Error::Invalid(format!(
        "NVM path {path} has room for {available} bytes, but {requested} were requested; lower the NVM capacity"
    ))
}

fn not_dax(path: &Path, error: &std::io::Error) -> Error {
    Error::Invalid(format!(
        "NVM path {} is not on a DAX file system (MAP_SYNC: {error}): mount persistent memory with -o dax, use tmpfs or no \
         path for an emulated pool, or allow an ordinary file system explicitly",
        path.display()
    ))
}

fn statfs(file: &File) -> Option<libc::statfs> {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure, which is read only after success.
    unsafe { (libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
}

/// True for a path on a file system in memory, whether the file exists or not.
pub(super) fn on_tmpfs(path: &Path) -> bool {
    let place = if path.exists() { Some(path) } else { path.parent() };
    place.and_then(|place| File::open(place).ok()).is_some_and(|file| is_tmpfs(&file))
}

fn is_tmpfs(file: &File) -> bool {
    statfs(file).is_some_and(|found| found.f_type == libc::TMPFS_MAGIC)
}

/// True when the kernel reports that the file bypasses the page cache.
fn is_dax(file: &File) -> bool {
    const STATX_ATTR_DAX: u64 = 0x0020_0000;
    let mut found = std::mem::MaybeUninit::<libc::statx>::uninit();
    let descriptor = file.as_raw_fd();
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: an empty path names the descriptor; the kernel fills the structure, which is read only after success.
    unsafe {
        libc::statx(descriptor, c"".as_ptr(), flags, libc::STATX_BASIC_STATS, found.as_mut_ptr()) == 0
            && found.assume_init().stx_attributes & STATX_ATTR_DAX != 0
    }
}
