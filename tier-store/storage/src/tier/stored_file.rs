//! The files of a home: how a chunk's file is called, and what a listing finds.
//!
//! A name is relative to the home, with `/` between its parts, in a folder as in an object store.

use std::path::{Path, PathBuf};

use terrace_model::{ChunkId, FileFormat, TableId};

/// The file that says whose home it is. It belongs to no chunk, and listings leave it out.
pub const MARKER_NAME: &str = "terrace-home.json";
/// The file that is read for measurements, and deleted after them.
pub const SAMPLE_NAME: &str = "calibration.tmp";
/// What the name of a file ends with while it is written.
pub(super) const TEMPORARY: &str = ".tmp";

/// A file found at a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The chunk, from the file's name; `None` for a file that was never finished or that Terrace did not write.
    pub chunk: Option<(TableId, ChunkId)>,
    /// True for a file that an interrupted write of Terrace left; it is safe to delete.
    pub unfinished: bool,
    /// True for one that is so young that another process may still be about to name it: a sweep leaves it alone.
    pub is_fresh: bool,
}

impl StoredFile {
    /// A file at `path` of the home at `home`, that is not fresh. Only its whole name below the home says that it is one of
    /// ours: what lies deeper may be that of a home there.
    pub fn new(home: &Path, path: PathBuf, bytes: u64) -> Self {
        let name = path.strip_prefix(home).ok().and_then(Path::to_str).unwrap_or_default();
        let (chunk, unfinished) = (chunk_of(name), is_unfinished(name));
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

/// True for a name that a file of a home has while it is written, and for that of the sample.
fn is_unfinished(name: &str) -> bool {
    let whole = name.strip_suffix(TEMPORARY);
    name == SAMPLE_NAME || whole.is_some_and(|whole| whole == MARKER_NAME || chunk_of(whole).is_some())
}

/// Table and chunk from `t<table>/c<chunk>.<format>`, or `t<table>/c<chunk>-<run>.<format>`.
fn chunk_of(name: &str) -> Option<(TableId, ChunkId)> {
    let (folder, file) = name.split_once('/')?;
    let table = folder.strip_prefix('t')?.parse().ok()?;
    let (chunk, format) = file.strip_prefix('c')?.split_once('.')?;
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
        let home = Path::new("/srv/t9");
        let at = |name: &str| StoredFile::new(home, home.join(name), 5);
        let names =
            |format| [file_name(TableId(7), ChunkId(12), format), run_file_name(TableId(7), ChunkId(12), 0xa7, format)];
        for name in FileFormat::ALL.into_iter().flat_map(names) {
            let found = at(&name);
            assert_eq!((found.chunk, found.unfinished, found.bytes), (Some((TableId(7), ChunkId(12))), false, 5));
            let found = at(&format!("{name}.tmp"));
            assert_eq!((found.chunk, found.unfinished), (None, true), "{name}");
        }
        for ours in [SAMPLE_NAME, "terrace-home.json.tmp"] {
            assert!(at(ours).unfinished && at(ours).chunk.is_none(), "{ours}");
        }
        let others = ["t7", "t7/c12", "t7/x12.arrow", "c12.arrow", "t7/c12.txt", "t7/c12-x.arrow", "table/c12.arrow"];
        // A home below this one, and files of other programs.
        let others = others.into_iter().chain(["in/t7/c12.arrow", "t7/t7/c12.arrow", "in/t7/c12.arrow.tmp"]);
        for other in others.chain(["upload.tmp", "t7/upload.tmp", "t7/calibration.tmp", MARKER_NAME]) {
            assert!(at(other).chunk.is_none() && !at(other).unfinished, "{other}");
        }
        assert_eq!(StoredFile::new(home, "/srv/t7/c12.arrow".into(), 5).chunk, None, "elsewhere");
    }
}
