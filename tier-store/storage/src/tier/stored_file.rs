//! The files of a home: how a chunk's file is called, and what a listing finds.
//!
//! A name is relative to the home, with `/` between its parts, in a folder as in an object store.

use std::path::{Path, PathBuf};

use terrace_model::{ChunkId, FileFormat, TableId};

/// The file that says whose home it is. It belongs to no chunk, and listings leave it out.
pub const MARKER_NAME: &str = "terrace-home.json";

/// A file found at a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The chunk, from the file's name; `None` for a file that was never finished or is not of this store.
    pub chunk: Option<(TableId, ChunkId)>,
    /// True for a file that an interrupted write left; it is safe to delete.
    pub unfinished: bool,
    /// True for one that is so young that another process may still be about to name it: a sweep leaves it alone.
    pub is_fresh: bool,
}

impl StoredFile {
    /// A file by its path, that is not fresh.
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        let chunk = chunk_from_path(&path);
        let unfinished = path.extension().is_some_and(|extension| extension == "tmp");
        Self { path, bytes, chunk, unfinished, is_fresh: false }
    }
}

/// The folder of a table's files.
pub fn table_folder(table: TableId) -> String {
    format!("t{}", table.0)
}

/// The name of a chunk's file.
pub fn file_name(table: TableId, chunk: ChunkId, format: FileFormat) -> String {
    format!("{}/c{}.{format}", table_folder(table), chunk.0)
}

/// The name of a chunk's file where no name is used twice: with the time at which the home was opened.
pub fn run_file_name(table: TableId, chunk: ChunkId, run: u64, format: FileFormat) -> String {
    format!("{}/c{}-{run:x}.{format}", table_folder(table), chunk.0)
}

/// Table and chunk from `.../t<table>/c<chunk>.<format>`, or `c<chunk>-<run>.<format>`.
fn chunk_from_path(path: &Path) -> Option<(TableId, ChunkId)> {
    let table = path.parent()?.file_name()?.to_str()?.strip_prefix('t')?.parse().ok()?;
    let (chunk, format) = path.file_name()?.to_str()?.strip_prefix('c')?.split_once('.')?;
    FileFormat::ALL.iter().find(|known| known.name() == format)?;
    let chunk = match chunk.split_once('-') {
        Some((chunk, run)) => u64::from_str_radix(run, 16).ok().map(|_| chunk)?,
        None => chunk,
    };
    Some((TableId(table), ChunkId(chunk.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_tells_its_chunk_by_its_name() {
        let names =
            |format| [file_name(TableId(7), ChunkId(12), format), run_file_name(TableId(7), ChunkId(12), 0xa7, format)];
        for name in FileFormat::ALL.into_iter().flat_map(names) {
            let found = StoredFile::new(Path::new("/home").join(&name), 5);
            assert_eq!((found.chunk, found.unfinished, found.bytes), (Some((TableId(7), ChunkId(12))), false, 5));
            let found = StoredFile::new(format!("/home/{name}.tmp").into(), 5);
            assert_eq!((found.chunk, found.unfinished), (None, true), "{name}");
        }
        for other in ["t7", "t7/c12", "t7/x12.arrow", "c12.arrow", "t7/c12.txt", "t7/c12-x.arrow", "table/c12.arrow"] {
            assert_eq!(StoredFile::new(other.into(), 1).chunk, None, "{other}");
        }
    }
}
