//! The catalog: durable metadata in an embedded ACID store (redb), such as tables, chunks, statistics, delta, objects,
//! placement decisions and heat.
//!
//! One thread writes; it groups concurrent commits into one transaction (group commit). A [`Commit`] is a list of puts
//! and deletes that become durable together or not at all. After an I/O error the catalog refuses writes until it is
//! reopened, which the store tries with back-off; reads go on meanwhile. Keys are big-endian, so a prefix is a range.
//! Every value is stored with a checksum. Spaces, keys and values:
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
//! placements  epoch                     -> placement of all segments after it (postcard)
//! ```
//!
//! - `connection`: the connection to the database, and recovery after the disk refused a write
//! - `format`: format versions
//! - `overlay_file`: opens a catalog file without writing it
//! - [`records`]: records of tables and chunks, and their encoding
//! - `sealed`: values with checksums, and faults
//! - `snapshot`: consistent reads
//! - `storage`: opens databases of redb in files
//! - `writer`: the writer thread

mod connection;
mod format;
mod overlay_file;
pub mod records;
mod sealed;
mod snapshot;
mod storage;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use std::path::Path;
use std::sync::Arc;

use redb::{Database, TableDefinition};

pub use format::FORMAT_VERSION;
pub use records::{ChunkRecord, TableRecord};
pub use sealed::CatalogFault;
pub use snapshot::Snapshot;
pub(crate) use writer::PendingCommit;

use crate::error::{Error, Result};
use crate::io::FileSystem;
use crate::io::files::file_error;
use connection::Connection;
pub(crate) use connection::OnDisk;
use overlay_file::OverlayFile;
use sealed::ADVICE;
use snapshot::{Origin, catch_panic, close};
use storage::{open_database, open_database_in};
use writer::Writer;

/// Key in [`Space::Meta`] of the measured cost profiles of the devices.
pub(crate) const CALIBRATION_KEY: &[u8] = b"calibration";
/// Key in [`Space::Meta`] of the hysteresis state, which keeps segments from moving back and forth.
pub(crate) const HYSTERESIS_KEY: &[u8] = b"tiering_holds";
/// Key in [`Space::Meta`] of the number of the last transaction.
const LAST_COMMIT_KEY: &[u8] = b"last_commit";
/// Keys in [`Space::Meta`] of values that are measured, decided or counted anew when they are damaged.
const EXPENDABLE_META: [&[u8]; 3] = [CALIBRATION_KEY, HYSTERESIS_KEY, LAST_COMMIT_KEY];

/// The message about a catalog that lost its contents.
pub(crate) const LOST_CATALOG: &str = "it is missing or empty, and there are files of tables. Restore a backup, or make a \
                                       catalog of the files: `terrace rebuild-catalog`";

/// A key space of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// All of them.
    pub const ALL: [Self; 14] = [
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

    /// The spaces of tables that describe the rows of a table.
    pub const OF_CONTENT: [Self; 6] =
        [Self::Chunks, Self::Statistics, Self::Sketches, Self::Deletions, Self::Delta, Self::DeltaDeletions];

    /// The spaces without which a start would lose data, or statements would return wrong answers.
    pub(crate) const ESSENTIAL: [Self; 9] = [
        Self::Meta,
        Self::Tables,
        Self::Chunks,
        Self::Statistics,
        Self::Deletions,
        Self::Delta,
        Self::DeltaDeletions,
        Self::Objects,
        Self::Rules,
    ];

    fn definition(self) -> Bytes {
        TableDefinition::new(self.name())
    }

    /// Its name in redb and in messages.
    pub fn name(self) -> &'static str {
        match self {
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
        }
    }
}

/// Changes that become durable together.
#[derive(Debug, Default)]
pub struct Commit {
    changes: Vec<(Space, Vec<u8>, Change)>,
    /// The number by which the submitter asks later whether the commit is durable; it grows from commit to commit.
    number: Option<u64>,
}

/// A change of a key.
#[derive(Debug)]
enum Change {
    /// Sets the value, which has its checksum.
    Put(Vec<u8>),
    Delete,
    /// Deletes all keys that start with it.
    DeletePrefix,
}

impl Commit {
    /// Sets a key.
    pub fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) -> &mut Self {
        let sealed = sealed::seal(space, &key, value);
        self.changes.push((space, key, Change::Put(sealed)));
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

/// Makes a key of one to three numbers, in order.
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
    connection: Arc<Connection>,
    writer: Writer,
}

impl Catalog {
    /// Opens or creates the catalog at `path`; `cache_bytes` limits redb's cache. A catalog of the
    /// previous format version is rewritten first.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open, [`Error::UnsupportedFormat`] for another version,
    /// [`Error::Corrupt`] for a damaged one.
    pub fn open(files: &dyn FileSystem, path: &Path, cache_bytes: usize) -> Result<Self> {
        Self::open_or_create(files, path, cache_bytes, true)
    }

    /// Like [`Catalog::open`], but an empty catalog counts as damaged.
    pub(crate) fn open_existing(files: &dyn FileSystem, path: &Path, cache_bytes: usize) -> Result<Self> {
        Self::open_or_create(files, path, cache_bytes, false)
    }

    fn open_or_create(files: &dyn FileSystem, path: &Path, cache_bytes: usize, create_if_empty: bool) -> Result<Self> {
        let mut settings = Database::builder();
        settings.set_cache_size(cache_bytes);
        if files.len(path)?.is_none() {
            create(files, &settings, path)?;
        }
        let mut database = catch_panic(|| open_database(files, &settings, path))?.map_err(|e| open_error(path, e))?;
        let prepared = format::version(&database, path).and_then(|version| match version {
            None if create_if_empty => format::initialise(&database, path),
            None => Err(Error::Corrupt { path: path.to_owned(), what: LOST_CATALOG.into() }),
            Some(format::UNSEALED_VERSION) => format::upgrade(&mut database, path),
            Some(_) => Ok(()),
        });
        match prepared {
            Ok(()) => Ok(Self::from_database(database, path, true, cache_bytes)),
            Err(error) => {
                close(Some(database));
                Err(error)
            }
        }
    }

    /// Opens the catalog at `path` without ever writing the file: repairs made while opening it, and commits, stay in
    /// memory. A catalog of the previous format version is read without rewriting it.
    ///
    /// # Errors
    /// Like [`Catalog::open`]; [`Error::Io`] when there is no catalog.
    pub fn open_read_only(path: &Path, cache_bytes: usize) -> Result<Self> {
        let database = read_only_database(OverlayFile::open(path)?, path, cache_bytes)?;
        let version = format::version(&database, path).and_then(|version| match version {
            None => format::initialise(&database, path).map(|()| FORMAT_VERSION),
            Some(version) => Ok(version),
        });
        match version {
            Ok(version) => Ok(Self::from_database(database, path, version == FORMAT_VERSION, cache_bytes)),
            Err(error) => {
                close(Some(database));
                Err(error)
            }
        }
    }

    fn from_database(database: Database, path: &Path, is_sealed: bool, cache_bytes: usize) -> Self {
        let connection = Arc::new(Connection::new(database, Origin { path: path.into(), is_sealed }, cache_bytes));
        Self { writer: Writer::start(Arc::clone(&connection)), connection }
    }

    /// False for a catalog of the previous format version, whose values have no checksums.
    pub fn is_sealed(&self) -> bool {
        self.connection.origin().is_sealed
    }

    /// Path of its file.
    pub fn path(&self) -> &Path {
        self.connection.path()
    }

    /// Reads all of a catalog and compares its pages with their checksums, without changing the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a page is damaged; otherwise like [`Catalog::open_read_only`].
    pub fn verify(path: &Path, cache_bytes: usize) -> Result<()> {
        let mut database = read_only_database(OverlayFile::open(path)?, path, cache_bytes)?;
        let checked = catch_panic(|| database.check_integrity());
        close(Some(database));
        match checked?.map_err(|e| open_error(path, e))? {
            true => Ok(()),
            false => Err(Error::Corrupt { path: path.to_owned(), what: "a page is not what was written".into() }),
        }
    }

    /// Reads all values that answers of statements depend on, and compares them with their checksums.
    ///
    /// # Errors
    /// [`Error::Corrupt`] that names the first damaged value, and what to do; the log has the others.
    pub(crate) fn refuse_damage(&self) -> Result<()> {
        let faults = self.snapshot()?.faults(&Space::ESSENTIAL);
        let needed: Vec<&CatalogFault> = faults.iter().filter(|fault| !fault.is_expendable()).collect();
        for fault in faults.iter().skip(1) {
            tracing::error!(%fault, path = %self.path().display(), "the catalog is damaged");
        }
        needed.first().map_or(Ok(()), |fault| Err(fault.error(self.path())))
    }

    /// Makes changes durable; returns after the fsync.
    pub fn commit(&self, commit: Commit) -> Result<()> {
        self.submit(commit).wait()
    }

    /// Queues changes: commits become durable in the order in which they are submitted, and none after one that failed.
    pub(crate) fn submit(&self, commit: Commit) -> PendingCommit {
        self.writer.submit(commit)
    }

    /// Like [`Catalog::submit`], with a number for [`Catalog::durable`].
    pub(crate) fn submit_numbered(&self, mut commit: Commit, number: u64) -> PendingCommit {
        commit.number = Some(number);
        self.writer.submit(commit)
    }

    /// The number of the last numbered commit that is durable.
    pub(crate) fn durable(&self) -> Option<u64> {
        self.connection.durable()
    }

    /// The reason why writes are refused; `None` while they are not.
    pub fn failure(&self) -> Option<Error> {
        self.connection.failure()
    }

    /// Reopens the database after a write failed; writes stay refused until [`Catalog::resume`].
    ///
    /// # Errors
    /// The reason why it cannot be written yet.
    pub(crate) fn reopen(&self, files: &dyn FileSystem) -> Result<()> {
        self.connection.reopen(files)
    }

    /// Accepts writes again. Commits submitted before are refused, as they build on the failed one.
    pub(crate) fn resume(&self) {
        self.connection.resume();
    }

    /// A snapshot of the state after the last commit.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.connection.snapshot()
    }

    /// Like [`Catalog::snapshot`], but read from the disk only, not from pages that the server has in memory.
    ///
    /// # Errors
    /// Like [`Catalog::open_read_only`].
    pub(crate) fn on_disk(&self) -> Result<OnDisk> {
        self.connection.on_disk()
    }

    /// Reads a value.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot()?.get(space, key)
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    pub fn scan(&self, space: Space, prefix: &[u8], visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.snapshot()?.scan(space, prefix, visit)
    }

    /// Like [`Catalog::scan`], from the last key to the first.
    pub fn scan_back(
        &self,
        space: Space,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.snapshot()?.walk_required(space, prefix, true, visit)
    }
}

fn read_only_database(file: OverlayFile, path: &Path, cache_bytes: usize) -> Result<Database> {
    if file.is_empty() {
        return Err(Error::Corrupt { path: path.to_owned(), what: "it is empty".into() });
    }
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    catch_panic(|| open_database_in(&builder, Box::new(file)))?.map_err(|e| open_error(path, e))
}

/// Creates an empty database under a temporary name and renames it: a start may stop half way, and half a database
/// cannot be opened. The lock is held until the rename, so that two concurrent first starts do not replace each other's
/// database.
fn create(files: &dyn FileSystem, settings: &redb::Builder, path: &Path) -> Result<()> {
    let draft = path.with_extension("redb.new");
    let database = match open_database(files, settings, &draft) {
        Err(redb::DatabaseError::DatabaseAlreadyOpen) => Err(redb::DatabaseError::DatabaseAlreadyOpen),
        Err(_) => {
            files.remove_file(&draft)?;
            open_database(files, settings, &draft)
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

/// Converts an error of a write, with the error of the disk.
fn write_error(path: &Path, error: redb::Error) -> Error {
    match error {
        redb::Error::Io(source) => file_error("write", path, &source),
        redb::Error::Corrupted(what) => Error::Corrupt { path: path.to_owned(), what: format!("{what}. {ADVICE}") },
        other => catalog_error(other),
    }
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
