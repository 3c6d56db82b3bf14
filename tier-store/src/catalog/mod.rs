//! Durable truth in an embedded ACID store (redb): tables, chunks, statistics, delta, objects, decisions, heat.
//!
//! One thread writes; concurrent commits are grouped into one transaction (group commit). A [`Commit`] is a list of puts
//! and deletes that become durable together or not at all. After an I/O error the catalog refuses writes until it is
//! reopened and keeps reading. Keys are big-endian, so a prefix is a range.
//!
//! ```text
//! meta        name                      -> bytes
//! tables      table id                  -> TableRecord (postcard)
//! chunks      table id, chunk id        -> ChunkRecord (postcard)
//! statistics  table id, group of 256    -> bounds (Arrow IPC stream)
//! sketches    table id, column id, place -> distinct values (sketch)
//! deletions   table id, chunk id        -> deleted rows (roaring)
//! delta       table id, sequence        -> rows (Arrow IPC stream)
//! delta_deletions  table id, sequence   -> deleted rows (roaring)
//! objects     kind, name                -> JSON (views, external tables, schemas)
//! epochs      epoch                     -> JSON
//! moves       epoch, number             -> JSON
//! heat        table id                  -> bytes
//! rules       table id                  -> placement rules (postcard)
//! placements  epoch                     -> where everything lay after it (postcard)
//! ```

mod frozen;
pub mod records;
mod snapshot;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, TableDefinition};

pub use records::{ChunkRecord, TableRecord};
pub use snapshot::Snapshot;
pub(crate) use writer::PendingCommit;

use crate::error::{Error, Result};
use crate::io::FileSystem;
use frozen::Frozen;
use snapshot::guarded;
use writer::Writer;

/// Version of the catalog's layout.
pub const FORMAT_VERSION: u32 = 3;
const FORMAT_KEY: &[u8] = b"format_version";

/// A key space of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Space {
    Meta,
    Tables,
    Chunks,
    Statistics,
    Sketches,
    Deletions,
    Delta,
    DeltaDeletions,
    Objects,
    Epochs,
    Moves,
    Heat,
    Rules,
    Placements,
}

type Bytes = TableDefinition<'static, &'static [u8], &'static [u8]>;

impl Space {
    const ALL: [Self; 14] = [
        Self::Meta,
        Self::Tables,
        Self::Chunks,
        Self::Statistics,
        Self::Sketches,
        Self::Deletions,
        Self::Delta,
        Self::DeltaDeletions,
        Self::Objects,
        Self::Epochs,
        Self::Moves,
        Self::Heat,
        Self::Rules,
        Self::Placements,
    ];

    /// The spaces whose keys begin with the number of a table.
    pub const OF_TABLES: [Self; 9] = [
        Self::Tables,
        Self::Chunks,
        Self::Statistics,
        Self::Sketches,
        Self::Deletions,
        Self::Delta,
        Self::DeltaDeletions,
        Self::Heat,
        Self::Rules,
    ];

    /// Those of them with entries for what is in a table.
    pub const OF_CONTENT: [Self; 6] =
        [Self::Chunks, Self::Statistics, Self::Sketches, Self::Deletions, Self::Delta, Self::DeltaDeletions];

    fn definition(self) -> Bytes {
        TableDefinition::new(match self {
            Self::Meta => "meta",
            Self::Tables => "tables",
            Self::Chunks => "chunks",
            Self::Statistics => "statistics",
            Self::Sketches => "sketches",
            Self::Deletions => "deletions",
            Self::Delta => "delta",
            Self::DeltaDeletions => "delta_deletions",
            Self::Objects => "objects",
            Self::Epochs => "epochs",
            Self::Moves => "moves",
            Self::Heat => "heat",
            Self::Rules => "rules",
            Self::Placements => "placements",
        })
    }
}

/// Changes that become durable together.
#[derive(Debug, Default)]
pub struct Commit {
    changes: Vec<(Space, Vec<u8>, Change)>,
}

/// What becomes of a key.
#[derive(Debug)]
enum Change {
    Put(Vec<u8>),
    Delete,
    /// Of all keys that start with it.
    DeletePrefix,
}

impl Commit {
    /// Sets a key.
    pub fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) -> &mut Self {
        self.changes.push((space, key, Change::Put(value)));
        self
    }

    /// Removes a key; absent is fine.
    pub fn delete(&mut self, space: Space, key: Vec<u8>) -> &mut Self {
        self.changes.push((space, key, Change::Delete));
        self
    }

    /// Removes every key that starts with `prefix` when this is applied, those of commits queued before it included.
    pub fn delete_prefix(&mut self, space: Space, prefix: Vec<u8>) -> &mut Self {
        self.changes.push((space, prefix, Change::DeletePrefix));
        self
    }

    /// True when nothing would change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// A key of one to three numbers, in order.
pub fn key(parts: &[u64]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.to_be_bytes()).collect()
}

/// The `index`-th number of a [`key`].
pub fn key_part(bytes: &[u8], index: usize) -> u64 {
    let part = bytes.get(index * 8..index * 8 + 8).and_then(|b| b.try_into().ok());
    part.map_or(0, u64::from_be_bytes)
}

/// The open catalog.
#[derive(Debug)]
pub struct Catalog {
    path: PathBuf,
    database: Arc<Database>,
    writer: Writer,
}

impl Catalog {
    /// Opens or creates the catalog at `path`; `cache_bytes` bounds redb's cache.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open, [`Error::UnsupportedFormat`] for another version.
    pub fn open(files: &dyn FileSystem, path: &Path, cache_bytes: usize) -> Result<Self> {
        let mut settings = Database::builder();
        settings.set_cache_size(cache_bytes);
        if files.len(path)?.is_none() {
            create(files, &settings, path)?;
        }
        let database = files.open_database(&settings, path).map_err(|e| open_error(path, e))?;
        let database = Arc::new(database);
        let catalog = Self { path: path.to_owned(), writer: Writer::start(Arc::clone(&database)), database };
        catalog.check_format()?;
        Ok(catalog)
    }

    /// Opens the catalog at `path` for looking at it: the file is never written, what opening it repairs and what is
    /// committed here stays in memory.
    ///
    /// # Errors
    /// As of [`Catalog::open`]; [`Error::Io`] when there is none.
    pub fn open_frozen(path: &Path, cache_bytes: usize) -> Result<Self> {
        let database = Arc::new(frozen_database(path, cache_bytes)?);
        let catalog = Self { path: path.to_owned(), writer: Writer::start(Arc::clone(&database)), database };
        catalog.check_format()?;
        Ok(catalog)
    }

    /// Reads all of a catalog and compares its pages with their checksums, without changing the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a page is damaged, and as of [`Catalog::open_frozen`].
    pub fn verify(path: &Path, cache_bytes: usize) -> Result<()> {
        let mut database = frozen_database(path, cache_bytes)?;
        match guarded(|| database.check_integrity())?.map_err(|e| open_error(path, e))? {
            true => Ok(()),
            false => Err(Error::Corrupt { path: path.to_owned(), what: "a page is not what was written".into() }),
        }
    }

    fn check_format(&self) -> Result<()> {
        match self.get(Space::Meta, FORMAT_KEY)? {
            None => {
                let mut commit = Commit::default();
                commit.put(Space::Meta, FORMAT_KEY.to_vec(), FORMAT_VERSION.to_be_bytes().to_vec());
                self.commit(commit)
            }
            Some(bytes) => {
                let found = bytes.as_slice().try_into().map_or(0, u32::from_be_bytes);
                if found == FORMAT_VERSION {
                    return Ok(());
                }
                Err(Error::UnsupportedFormat { path: self.path.clone(), found, supported: FORMAT_VERSION })
            }
        }
    }

    /// Makes changes durable; returns after the fsync.
    pub fn commit(&self, commit: Commit) -> Result<()> {
        self.submit(commit).wait()
    }

    /// Queues changes: commits become durable in the order in which they are submitted, and none after one that failed.
    pub(crate) fn submit(&self, commit: Commit) -> PendingCommit {
        self.writer.submit(commit)
    }

    /// The catalog as the last commit left it.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot::new(self.database.begin_read().map_err(catalog_error)?))
    }

    /// One value.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot()?.get(space, key)
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    pub fn scan(&self, space: Space, prefix: &[u8], visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.snapshot()?.walk(space, prefix, false, visit)
    }

    /// As [`Catalog::scan`], from the last key to the first.
    pub fn scan_back(
        &self,
        space: Space,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.snapshot()?.walk(space, prefix, true, visit)
    }
}

fn frozen_database(path: &Path, cache_bytes: usize) -> Result<Database> {
    let file = Frozen::open(path)?;
    if file.is_empty() {
        return Err(Error::Corrupt { path: path.to_owned(), what: "it is empty".into() });
    }
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    guarded(|| builder.create_with_backend(file))?.map_err(|e| open_error(path, e))
}

/// Makes an empty database under another name first: a start may stop half way, and nobody can open half a database.
/// Its lock is held until it has its name, so that two first starts do not replace each other's.
fn create(files: &dyn FileSystem, settings: &redb::Builder, path: &Path) -> Result<()> {
    let draft = path.with_extension("redb.new");
    let database = match files.open_database(settings, &draft) {
        Err(redb::DatabaseError::DatabaseAlreadyOpen) => Err(redb::DatabaseError::DatabaseAlreadyOpen),
        Err(_) => {
            files.remove_file(&draft)?;
            files.open_database(settings, &draft)
        }
        opened => opened,
    };
    let database = database.map_err(|e| open_error(&draft, e))?;
    let named = if files.len(path)?.is_none() { files.rename(&draft, path) } else { files.remove_file(&draft) };
    drop(database);
    named
}

/// The smallest key above all keys that start with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

fn catalog_error(error: impl std::fmt::Display) -> Error {
    Error::Catalog(error.to_string())
}

fn open_error(path: &Path, error: redb::DatabaseError) -> Error {
    match error {
        redb::DatabaseError::DatabaseAlreadyOpen => {
            Error::Locked { path: path.parent().unwrap_or(path).to_owned(), holder: "unknown".into() }
        }
        redb::DatabaseError::Storage(redb::StorageError::Io(source)) if source.raw_os_error().is_some() => {
            Error::io("open", path, &source)
        }
        other => Error::Corrupt { path: path.to_owned(), what: format!("not a Terrace catalog: {other}") },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::io::RealFiles;

    #[test]
    fn commits_survive_a_reopen_and_prefixes_are_ranges() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        {
            let catalog = Catalog::open(&RealFiles, &path, 1 << 20).unwrap();
            let mut commit = Commit::default();
            for n in 0..3 {
                commit.put(Space::Chunks, key(&[7, n]), vec![n as u8]);
            }
            commit.put(Space::Chunks, key(&[8, 0]), vec![9]);
            catalog.commit(commit).unwrap();
        }
        let catalog = Catalog::open(&RealFiles, &path, 1 << 20).unwrap();
        let mut seen = Vec::new();
        let visit = |k: &[u8], v: &[u8]| {
            seen.push((key_part(k, 1), v[0]));
            Ok(true)
        };
        catalog.scan_back(Space::Chunks, &key(&[7]), visit).unwrap();
        assert_eq!(seen, [(2, 2), (1, 1), (0, 0)]);
        assert!(matches!(Catalog::open(&RealFiles, &path, 1 << 20), Err(Error::Locked { .. })));
    }

    #[test]
    fn other_versions_and_foreign_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        let catalog = Catalog::open(&RealFiles, &path, 1 << 20).unwrap();
        let mut commit = Commit::default();
        commit.put(Space::Meta, FORMAT_KEY.to_vec(), 99u32.to_be_bytes().to_vec());
        catalog.commit(commit).unwrap();
        drop(catalog);
        assert!(matches!(Catalog::open(&RealFiles, &path, 1 << 20), Err(Error::UnsupportedFormat { found: 99, .. })));
        let foreign = dir.path().join("foreign");
        std::fs::write(&foreign, b"PAR1 not a catalog at all, but long enough to be read as one").unwrap();
        assert!(matches!(Catalog::open(&RealFiles, &foreign, 1 << 20), Err(Error::Corrupt { .. })));
    }
}
