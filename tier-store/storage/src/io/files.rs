//! The file layer: every change that the store makes to files goes through [`FileSystem`].
//!
//! [`RealFiles`] is the operating system; [`SimulatedFiles`] is a disk in memory that tracks which bytes would survive a power
//! cut, and fails on demand (docs/design/crash-tests.md). The trait has the operations that the store needs and no others;
//! their durability is that of POSIX: a file's bytes are durable when [`FileSystem::write`] returns, its name only after
//! [`FileSystem::sync_folder`]. Cold reads, and writes of large files, go through [`super::BlockIo`]; the catalog keeps its own file open as a
//! [`RandomAccess`].
//!
//! - [`image`]: live and durable contents of a simulated disk
//! - [`simulated`]: a simulated disk

mod image;
mod simulated;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_model::{Error, Result};

pub use simulated::{DiskFaults, Outage, SimulatedFiles};

use super::{AlignedBuffer, BLOCK_BYTES, Intent, IoFile, ReadHandle};

/// Files from this size are written around the page cache.
const DIRECT_FROM_BYTES: usize = 256 << 10;
/// Bytes of a single direct write.
const DIRECT_PART_BYTES: usize = 1 << 20;
/// Direct writes of one file that wait or run at once.
const PARTS_AT_ONCE: usize = 4;

/// A file or folder inside a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its path.
    pub path: PathBuf,
    /// True for a folder.
    pub is_folder: bool,
}

/// A file that is open for reads and writes at any position.
#[derive(Debug)]
pub enum RandomAccess {
    /// A file of the operating system, which can be locked against other processes.
    System(File),
    /// A file that no other process can open.
    Private(Box<dyn RandomAccessFile>),
}

/// Reads and writes at any position of a file. Errors are those of the operating system, as users of such a file handle
/// them themselves.
pub trait RandomAccessFile: Debug + Send + Sync {
    /// Length of the file in bytes.
    fn len_bytes(&self) -> std::io::Result<u64>;
    /// Fills `out` with the bytes at `offset`; fails beyond the end of the file.
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()>;
    /// Replaces the bytes at `offset`.
    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()>;
    /// Cuts the file, or fills it up with zeros, to `len` bytes.
    fn set_len(&self, len: u64) -> std::io::Result<()>;
    /// Makes all bytes and the length durable.
    fn sync(&self) -> std::io::Result<()>;
}

/// The file operations of the store. Errors are [`Error::Io`] with the path and the operation; the message for a full disk says
/// what to do.
pub trait FileSystem: Send + Sync + Debug {
    /// True when there is a folder of that name.
    fn is_folder(&self, path: &Path) -> bool;
    /// Makes a folder; an existing one is no error.
    fn create_folder(&self, folder: &Path) -> Result<()>;
    /// Creates or replaces a file; its bytes are durable on return, its name after [`FileSystem::sync_folder`].
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()>;
    /// Like [`FileSystem::write`], for a file of any size: where there is a device, its bytes take their turn in the queue of
    /// `io` and go around the page cache, which takes less time (docs/benchmarks.md, `ingest`).
    fn write_through(&self, io: &dyn super::BlockIo, intent: Intent, path: &Path, bytes: &AlignedBuffer) -> Result<()> {
        let _ = (io, intent);
        self.write(path, bytes.as_slice())
    }
    /// True where the files lie on no device, so that measuring their speed is meaningless.
    fn is_simulated(&self) -> bool {
        false
    }
    /// Gives a file another name in its folder, and replaces a file that has that name.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> Result<()>;
    /// Deletes a file; a missing one is no error.
    fn remove_file(&self, path: &Path) -> Result<()>;
    /// Deletes an empty folder; fails for others.
    fn remove_folder(&self, folder: &Path) -> Result<()>;
    /// The entries of a folder, in no order.
    fn list(&self, folder: &Path) -> Result<Vec<FolderEntry>>;
    /// Bytes of a file; `None` when there is none.
    fn len(&self, path: &Path) -> Result<Option<u64>>;
    /// All bytes of a file.
    fn read(&self, path: &Path) -> Result<Vec<u8>>;
    /// Opens the file at `path` for reads and writes at any position, or makes an empty one.
    ///
    /// # Errors
    /// Those of the operating system.
    fn open_random_access(&self, path: &Path) -> std::io::Result<RandomAccess>;
}

/// Raises the limit of open files to the most that the system allows: every chunk that is read from disk keeps a file open.
pub fn raise_open_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on a structure of ours; a refusal leaves the limit as it was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Makes a folder and those above it that are missing, with durable names.
pub fn create_folders(files: &dyn FileSystem, folder: &Path) -> Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|f| !is_current_folder(f) && !files.is_folder(f)).collect();
    for folder in missing.into_iter().rev() {
        files.create_folder(folder)?;
        files.sync_folder(parent(folder))?;
    }
    Ok(())
}

/// The folder that contains a path.
pub fn parent(path: &Path) -> &Path {
    path.parent().map_or(path, |parent| if is_current_folder(parent) { Path::new(".") } else { parent })
}

/// True for the empty path, which is the parent of a relative path of one name.
fn is_current_folder(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Makes a folder that no other user of the machine may read.
pub fn create_private_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(folder)
}

/// Revokes the rights of other users of the machine to a folder or a file, which an older version may have granted; the group
/// keeps its rights.
pub fn revoke_access_of_others(folder: &Path) {
    let Ok(found) = std::fs::metadata(folder) else { return };
    let mode = found.permissions().mode();
    if mode & 0o007 != 0
        && let Err(error) = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode & !0o007))
    {
        tracing::warn!(%error, path = %folder.display(), "cannot restrict access: other users of this machine may read the stored data");
    }
}

/// The files of the operating system.
#[derive(Debug, Default)]
pub struct RealFiles;

impl FileSystem for RealFiles {
    fn is_folder(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn create_folder(&self, folder: &Path) -> Result<()> {
        match create_private_folder(folder) {
            Err(error) if !folder.is_dir() => Err(file_error("create", folder, &error)),
            _ => Ok(()),
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let file = File::create(path).map_err(|e| file_error("create", path, &e))?;
        write_rest(file, path, bytes, 0)
    }

    fn write_through(&self, io: &dyn super::BlockIo, intent: Intent, path: &Path, bytes: &AlignedBuffer) -> Result<()> {
        let file = File::create(path).map_err(|e| file_error("create", path, &e))?;
        let len = bytes.as_slice().len();
        let direct = (len >= DIRECT_FROM_BYTES).then(|| IoFile::open_for_writing(path)).flatten();
        let done = match direct {
            Some(direct) => {
                reserve(&file, path, len)?;
                // The device takes whole blocks.
                match write_parts(io, intent, &direct, bytes, len - len % BLOCK_BYTES) {
                    Err(Error::Io { errno: Some(libc::EINVAL), .. }) => 0,
                    done => done?,
                }
            }
            None => 0,
        };
        write_rest(file, path, bytes.as_slice(), done)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to).map_err(|e| file_error("rename", to, &e))
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        File::open(folder).and_then(|file| file.sync_all()).map_err(|e| file_error("sync", folder, &e))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file_error("delete", path, &error)),
            _ => Ok(()),
        }
    }

    fn remove_folder(&self, folder: &Path) -> Result<()> {
        std::fs::remove_dir(folder).map_err(|e| file_error("delete", folder, &e))
    }

    fn list(&self, folder: &Path) -> Result<Vec<FolderEntry>> {
        let failed = |e: std::io::Error| file_error("list", folder, &e);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            found.push(FolderEntry { path: entry.path(), is_folder: entry.file_type().map_err(failed)?.is_dir() });
        }
        Ok(found)
    }

    fn len(&self, path: &Path) -> Result<Option<u64>> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file_error("inspect", path, &error)),
        }
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        std::fs::read(path).map_err(|e| file_error("read", path, &e))
    }

    fn open_random_access(&self, path: &Path) -> std::io::Result<RandomAccess> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).map(RandomAccess::System)
    }
}

/// Reserves the space of a file that is written in parts, so that it lies in one piece, or in few. Otherwise a file system finds
/// space for each part; it also lets only one part at a time make a file longer, and a deletion gives each piece back to the
/// device by itself. A file system that cannot reserve space finds it later.
fn reserve(file: &File, path: &Path, len: usize) -> Result<()> {
    let Ok(len) = libc::off_t::try_from(len) else { return Ok(()) };
    // SAFETY: plain system call on an open descriptor; a refusal leaves a file that is written as before.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Err(file_error("write", path, &error)),
        _ => Ok(()),
    }
}

/// Writes the first `len` bytes of a file. No write runs any more when it returns.
fn write_parts(
    io: &dyn super::BlockIo,
    intent: Intent,
    file: &Arc<IoFile>,
    bytes: &AlignedBuffer,
    len: usize,
) -> Result<usize> {
    let mut running = VecDeque::new();
    let mut result = Ok(len);
    for start in (0..len).step_by(DIRECT_PART_BYTES) {
        if running.len() == PARTS_AT_ONCE
            && let Some(Err(error)) = running.pop_front().map(ReadHandle::wait)
        {
            result = Err(error);
            break;
        }
        let part = bytes.part(start..len.min(start + DIRECT_PART_BYTES));
        running.push_back(io.write_as(intent, file, start as u64, part));
    }
    running.into_iter().fold(result, |result, part| part.wait().and(result))
}

/// Writes the bytes of a file from `done` on, and makes all of them durable.
fn write_rest(mut file: File, path: &Path, bytes: &[u8], done: usize) -> Result<()> {
    let failed = |e: std::io::Error| file_error("write", path, &e);
    file.seek(SeekFrom::Start(done as u64)).map_err(failed)?;
    file.write_all(bytes.get(done..).unwrap_or_default()).map_err(failed)?;
    file.sync_all().map_err(|e| file_error("sync", path, &e))?;
    // Drop the bytes from the page cache: reads go around it.
    // SAFETY: plain system call on an open descriptor; a refusal changes nothing.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// The error of a file operation; for a full disk, its message says what to do.
pub(crate) fn file_error(action: &'static str, path: &Path, error: &std::io::Error) -> Error {
    match Error::io(action, path, error) {
        Error::Io { action, path, errno: errno @ Some(libc::ENOSPC | libc::EDQUOT), .. } => {
            let message = "the disk is full: free space, or move the data directory to a larger disk".into();
            Error::Io { action, path, errno, message }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
