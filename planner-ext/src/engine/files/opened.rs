//! Open folders and files, examined through their descriptors and not by a path.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, openat, openat2, statat};
use rustix::io::Errno;

use super::ResolvedPath;
use crate::error::{Error, ErrorKind, Result};

/// Flags to examine a folder and to open its entries.
const OPEN_FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Flags to read a file without waiting for the other end of a pipe.
const OPEN_FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Most ancestors that are visited; more than a path can have.
const MOST_ANCESTORS: usize = 4096;

/// Device and inode of a file or folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    has_links: bool,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl Identity {
    /// Identity of the file or folder that a path leads to, links followed.
    pub(super) fn from_path(path: impl AsRef<Path>) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        let has_links = !found.is_dir() && found.nlink() > 1;
        Some(Self { device: found.dev(), inode: found.ino(), has_links })
    }

    fn from_stat(found: &Stat) -> Self {
        let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        Self { device: found.st_dev, inode: found.st_ino, has_links: !is_folder && found.st_nlink > 1 }
    }

    /// Whether the file has another hard link.
    pub(super) fn has_links(self) -> bool {
        self.has_links
    }

    /// Whether `file` is below the folder `path`, whose identity this is.
    pub(super) fn contains_file(self, path: &Path, file: Self) -> bool {
        self.device == file.device && contains_inode(path, file.inode)
    }
}

fn contains_inode(folder: &Path, inode: u64) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        entry.ino() == inode || (is_folder && contains_inode(&entry.path(), inode))
    })
}

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

/// The entry of a name in a folder.
pub(super) struct Entry {
    pub(super) identity: Identity,
    pub(super) is_file: bool,
    pub(super) is_folder: bool,
}

impl Folder {
    /// Opens the existing folder of a path without following links: the path had none when it was resolved.
    pub(super) fn open_below(root: &Path, found: &ResolvedPath) -> Result<Self> {
        let rest = found.folder.strip_prefix(root).unwrap_or(Path::new(""));
        let opened =
            openat(rustix::fs::CWD, root, OPEN_FOLDER, Mode::empty()).and_then(|root| open_beneath(&root, rest));
        opened.map(Self).map_err(|error| errno_error("open", &found.folder, error))
    }

    /// The folder itself, its parent, and so on up to `/`.
    pub(super) fn ancestors(&self) -> impl Iterator<Item = std::result::Result<(Self, Identity), Errno>> {
        let mut next = Some(self.open_folder("."));
        let mut left = MOST_ANCESTORS;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let here = match next.take()? {
                Ok((folder, identity)) => (folder, identity),
                Err(error) => return Some(Err(error)),
            };
            let parent = here.0.open_folder("..");
            if !matches!(&parent, Ok((_, identity)) if *identity == here.1) {
                next = Some(parent);
            }
            Some(Ok(here))
        })
    }

    fn open_folder(&self, name: &str) -> std::result::Result<(Self, Identity), Errno> {
        let folder = openat(&self.0, name, OPEN_FOLDER, Mode::empty())?;
        let identity = Identity::from_stat(&fstat(&folder)?);
        Ok((Self(folder), identity))
    }

    /// Whether it has an entry of that name.
    pub(super) fn contains(&self, name: &str) -> bool {
        statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The entry of a name; `shown` is the path for messages.
    pub(super) fn entry(&self, name: &OsStr, shown: &Path) -> Result<Option<Entry>> {
        let found = match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(errno_error("look at", shown, error)),
        };
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::Symlink {
            return Err(Error::invalid(format!(
                "{} is a symbolic link that was not there when the path was checked",
                shown.display()
            )));
        }
        let is_file = kind == FileType::RegularFile;
        let is_folder = kind == FileType::Directory;
        Ok(Some(Entry { identity: Identity::from_stat(&found), is_file, is_folder }))
    }

    /// Opens a regular file in it.
    pub(super) fn open_file(&self, name: &OsStr, shown: &Path) -> Result<(File, Identity)> {
        let file =
            openat(&self.0, name, OPEN_FILE, Mode::empty()).map_err(|error| errno_error("open", shown, error))?;
        let status = fstat(&file).map_err(|error| errno_error("look at", shown, error))?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => Ok((File::from(file), Identity::from_stat(&status))),
            FileType::Directory => Err(Error::new(ErrorKind::NotFound, format!("{} is a folder", shown.display()))),
            _ => Err(Error::invalid(format!("{} is neither a file nor a folder", shown.display()))),
        }
    }

    /// Opens a folder in it, creating it if it is missing.
    pub(super) fn make(&self, name: &OsString, found: &ResolvedPath) -> Result<Self> {
        let made = match mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => openat(&self.0, name, OPEN_FOLDER | OFlags::NOFOLLOW, Mode::empty()),
            Err(error) => Err(error),
        };
        made.map(Self).map_err(|error| errno_error("make a folder for", &found.path(), error))
    }

    /// The path by which this process reaches the folder itself.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The error of a failed operation on a path.
pub(super) fn errno_error(action: &str, path: &Path, error: Errno) -> Error {
    let kind = match error {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::PermissionDenied,
        Errno::NOSPC | Errno::DQUOT => ErrorKind::ResourceExhausted,
        Errno::EXIST => ErrorKind::AlreadyExists,
        _ => ErrorKind::InvalidArgument,
    };
    let error = std::io::Error::from(error);
    Error::new(kind, format!("cannot {action} {}: {error}", path.display()))
}

/// Opens a folder below another one and refuses links on the way.
fn open_beneath(root: &OwnedFd, rest: &Path) -> std::result::Result<OwnedFd, Errno> {
    if rest.as_os_str().is_empty() {
        return openat(root, ".", OPEN_FOLDER, Mode::empty());
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(root, rest, OPEN_FOLDER, Mode::empty(), resolve) {
        // Linux before 5.6, and containers that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_component_by_component(root, rest),
        opened => opened,
    }
}

fn open_component_by_component(root: &OwnedFd, rest: &Path) -> std::result::Result<OwnedFd, Errno> {
    let mut at = openat(root, ".", OPEN_FOLDER, Mode::empty())?;
    for part in rest.components() {
        let Component::Normal(name) = part else { return Err(Errno::XDEV) };
        at = openat(&at, name, OPEN_FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_ways_to_a_folder_follow_no_link() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink(top.path().join("a"), top.path().join("link")).unwrap();
        let root = openat(rustix::fs::CWD, top.path(), OPEN_FOLDER, Mode::empty()).unwrap();
        let inode = |opened: OwnedFd| fstat(opened).unwrap().st_ino;
        let wanted = std::fs::metadata(top.path().join("a/b")).unwrap().ino();
        assert_eq!(inode(open_beneath(&root, Path::new("a/b")).unwrap()), wanted);
        assert_eq!(inode(open_component_by_component(&root, Path::new("a/b")).unwrap()), wanted);
        for path in ["link", "link/b", "../x", "missing"] {
            assert!(
                open_beneath(&root, Path::new(path)).is_err()
                    && open_component_by_component(&root, Path::new(path)).is_err(),
                "{path}"
            );
        }
    }
}
