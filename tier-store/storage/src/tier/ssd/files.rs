//! Writes the files of the SSD tier, so that they are complete or absent, and lists them.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use terrace_model::Result;

use crate::io::FileSystem;
use crate::tier::stored_file::{MARKER_NAME, StoredFile, TEMPORARY};

/// Writes `bytes` to `path`, which may exist. On return the new contents are durable; after a failure or a crash the file has
/// either the old contents or the new ones.
pub fn replace_durably(files: &dyn FileSystem, path: &Path, bytes: &[u8]) -> Result<()> {
    replace(files, path, |temporary| files.write(temporary, bytes))?;
    files.sync_folder(path.parent().unwrap_or(path))
}

/// Replaces a file by the one that `write` writes to the path that it gets. The name is durable after a sync of its folder.
pub(super) fn replace(files: &dyn FileSystem, path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let temporary = PathBuf::from(temporary);
    let renamed = write(&temporary).and_then(|()| files.rename(&temporary, path));
    // The first error is the one to report; what cannot be deleted is swept at the next start.
    renamed.inspect_err(|_| drop(files.remove_file(&temporary)))
}

/// The room of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// What may still be written.
    pub free_bytes: u64,
    /// All of it.
    pub size_bytes: u64,
}

/// The room of the file system of `folder`; `None` where it does not tell.
pub fn disk_space(folder: &Path) -> Option<DiskSpace> {
    let name = CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut stat = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `name` ends with a zero, `stat` has room for the answer, and zeros are a valid one.
    let (status, stat) = unsafe { (libc::statvfs(name.as_ptr(), stat.as_mut_ptr()), stat.assume_init()) };
    (status == 0).then(|| DiskSpace {
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        size_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
    })
}

/// All files below `root`, without the marker of the home.
pub fn list(files: &dyn FileSystem, root: &Path) -> Result<Vec<StoredFile>> {
    let mut found = Vec::new();
    for entry in files.list(root)? {
        match entry.is_folder {
            true => {
                for entry in files.list(&entry.path)?.into_iter().filter(|entry| !entry.is_folder) {
                    found.extend(stored_file(files, root, entry.path)?);
                }
            }
            false if entry.path.file_name().is_some_and(|name| name == MARKER_NAME) => {}
            false => found.extend(stored_file(files, root, entry.path)?),
        }
    }
    Ok(found)
}

/// `None` when the file was deleted since it was listed.
fn stored_file(files: &dyn FileSystem, root: &Path, path: PathBuf) -> Result<Option<StoredFile>> {
    let Some(bytes) = files.len(&path)? else { return Ok(None) };
    Ok(Some(StoredFile::new(root, path, bytes)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_disk_tells_its_room() {
        let folder = tempfile::tempdir().unwrap();
        let space = disk_space(folder.path()).unwrap();
        assert!(space.free_bytes <= space.size_bytes && space.size_bytes > 0, "{space:?}");
        assert_eq!(disk_space(&folder.path().join("none")), None);
    }
}
