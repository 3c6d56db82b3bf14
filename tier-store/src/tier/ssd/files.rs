//! Files of the SSD tier: writing them so that they are whole or absent, and listing them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::table::{ChunkId, TableId};

/// A file found in the tier's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The chunk its name says; `None` for a file that was never finished or is not of this tier.
    pub chunk: Option<(TableId, ChunkId)>,
    /// True for what an interrupted write left behind: safe to delete.
    pub unfinished: bool,
}

/// Writes `bytes` to `path` by way of a temporary name; durable and visible on return, or nothing is left.
pub(super) fn write_durably(root: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(root);
    if !folder.is_dir() {
        std::fs::create_dir_all(folder).map_err(|e| refused("create", folder, &e))?;
        sync_folder(root)?;
    }
    let temporary = path.with_extension("arrow.tmp");
    let written = write_file(&temporary, bytes)
        .and_then(|()| std::fs::rename(&temporary, path).map_err(|e| refused("rename", path, &e)))
        .and_then(|()| sync_folder(folder));
    if written.is_err() {
        // The first error is the one to report; what cannot be deleted is swept at the next start.
        let _ = std::fs::remove_file(&temporary);
        let _ = std::fs::remove_file(path);
    }
    written
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(|e| refused("create", path, &e))?;
    file.write_all(bytes).map_err(|e| refused("write", path, &e))?;
    file.sync_all().map_err(|e| refused("sync", path, &e))?;
    // The page cache would hold the bytes a second time; reads go around it.
    // SAFETY: plain system call on an open descriptor; a refusal changes nothing.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

fn sync_folder(folder: &Path) -> Result<()> {
    let file = File::open(folder).map_err(|e| refused("open", folder, &e))?;
    file.sync_all().map_err(|e| refused("sync", folder, &e))
}

pub(super) fn refused(action: &'static str, path: &Path, error: &std::io::Error) -> Error {
    match Error::io(action, path, error) {
        Error::Io { action, path, errno: errno @ Some(libc::ENOSPC | libc::EDQUOT), .. } => {
            let message = "the disk is full: free space, or move the data directory to a larger disk".into();
            Error::Io { action, path, errno, message }
        }
        other => other,
    }
}

/// All files below `root`.
pub(super) fn list(root: &Path) -> Result<Vec<StoredFile>> {
    let mut found = Vec::new();
    for (path, is_folder) in entries(root)? {
        match is_folder {
            true => {
                for (path, is_folder) in entries(&path)? {
                    if !is_folder {
                        found.extend(stored_file(path)?);
                    }
                }
            }
            false => found.extend(stored_file(path)?),
        }
    }
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<(PathBuf, bool)>> {
    let failed = |e: std::io::Error| Error::io("list", folder, &e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        found.push((entry.path(), entry.file_type().map_err(failed)?.is_dir()));
    }
    Ok(found)
}

/// `None` when the file has gone since it was listed.
fn stored_file(path: PathBuf) -> Result<Option<StoredFile>> {
    let bytes = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("inspect", path, &error)),
    };
    let chunk = chunk_of(&path);
    let unfinished = path.extension().is_some_and(|extension| extension == "tmp");
    Ok(Some(StoredFile { path, bytes, chunk, unfinished }))
}

/// Table and chunk from `.../t<table>/c<chunk>.arrow`.
fn chunk_of(path: &Path) -> Option<(TableId, ChunkId)> {
    let table = path.parent()?.file_name()?.to_str()?.strip_prefix('t')?.parse().ok()?;
    let chunk = path.file_name()?.to_str()?.strip_prefix('c')?.strip_suffix(".arrow")?.parse().ok()?;
    Some((TableId(table), ChunkId(chunk)))
}
