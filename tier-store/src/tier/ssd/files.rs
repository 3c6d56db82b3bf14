//! Files of the SSD tier: writing them so that they are whole or absent, and listing them.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::io::FileSystem;
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
pub(super) fn write_durably(files: &dyn FileSystem, path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    let temporary = path.with_extension("arrow.tmp");
    let written = files
        .write(&temporary, bytes)
        .and_then(|()| files.rename(&temporary, path))
        .and_then(|()| files.sync_folder(folder));
    if written.is_err() {
        // The first error is the one to report; what cannot be deleted is swept at the next start.
        let _ = files.remove_file(&temporary);
        let _ = files.remove_file(path);
    }
    written
}

/// All files below `root`.
pub(super) fn list(files: &dyn FileSystem, root: &Path) -> Result<Vec<StoredFile>> {
    let mut found = Vec::new();
    for entry in files.list(root)? {
        match entry.is_folder {
            true => {
                for entry in files.list(&entry.path)?.into_iter().filter(|entry| !entry.is_folder) {
                    found.extend(stored_file(files, entry.path)?);
                }
            }
            false => found.extend(stored_file(files, entry.path)?),
        }
    }
    Ok(found)
}

/// `None` when the file has gone since it was listed.
fn stored_file(files: &dyn FileSystem, path: PathBuf) -> Result<Option<StoredFile>> {
    let Some(bytes) = files.len(&path)? else { return Ok(None) };
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
