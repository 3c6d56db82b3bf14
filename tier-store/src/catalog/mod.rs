//! Durable truth in an embedded ACID store (redb): tables, chunks, statistics, delta, objects, decisions, heat.
//!
//! One thread writes; concurrent commits are grouped into one transaction (group commit). A [`Commit`] is a list of puts
//! and deletes that become durable together or not at all. After an I/O error the catalog refuses writes until it is opened
//! again, which the store tries with back-off, and keeps reading (`connection.rs`). Keys are big-endian, so a prefix is a
//! range. Every value has a checksum (`sealed.rs`); what follows is below it.
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

mod connection;
mod format;
mod frozen;
pub mod records;
mod sealed;
mod snapshot;
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
use crate::io::files::refused;
use connection::Connection;
pub(crate) use connection::OnDisk;
use frozen::Frozen;
use sealed::ADVICE;
use snapshot::{Origin, close, guarded};
use writer::Writer;

/// Key in [`Space::Meta`] of what the devices were measured at.
pub(crate) const CALIBRATION_KEY: &[u8] = b"calibration";
/// Key in [`Space::Meta`] of what keeps segments from moving back and forth.
pub(crate) const HOLDS_KEY: &[u8] = b"tiering_holds";
/// Key in [`Space::Meta`] of how many transactions there were.
const LAST_COMMIT_KEY: &[u8] = b"last_commit";
/// Those of that space that are measured, decided or counted anew.
const SPARE_META: [&[u8]; 3] = [CALIBRATION_KEY, HOLDS_KEY, LAST_COMMIT_KEY];

/// What is said of a catalog that lost its contents.
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

    /// Those of them with entries for what is in a table.
    pub const OF_CONTENT: [Self; 6] =
        [Self::Chunks, Self::Statistics, Self::Sketches, Self::Deletions, Self::Delta, Self::DeltaDeletions];

    /// Those without which a start would lose something, or answer wrongly.
    pub(crate) const OF_ANSWERS: [Self; 9] = [
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

    /// As redb and messages call it.
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
    /// By which who submits it asks later whether it is durable; it grows from commit to commit.
    number: Option<u64>,
}

/// What becomes of a key.
#[derive(Debug)]
enum Change {
    /// The value with its checksum.
    Put(Vec<u8>),
    Delete,
    /// Of all keys that start with it.
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
    connection: Arc<Connection>,
    writer: Writer,
}

impl Catalog {
    /// Opens or creates the catalog at `path`; `cache_bytes` bounds redb's cache. One of the version before is rewritten first.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open, [`Error::UnsupportedFormat`] for another version,
    /// [`Error::Corrupt`] for a damaged one.
    pub fn open(files: &dyn FileSystem, path: &Path, cache_bytes: usize) -> Result<Self> {
        Self::open_or_fill(files, path, cache_bytes, true)
    }

    /// As [`Catalog::open`]; an empty one is damaged.
    pub(crate) fn open_existing(files: &dyn FileSystem, path: &Path, cache_bytes: usize) -> Result<Self> {
        Self::open_or_fill(files, path, cache_bytes, false)
    }

    fn open_or_fill(files: &dyn FileSystem, path: &Path, cache_bytes: usize, fill: bool) -> Result<Self> {
        let mut settings = Database::builder();
        settings.set_cache_size(cache_bytes);
        if files.len(path)?.is_none() {
            create(files, &settings, path)?;
        }
        let mut database = guarded(|| files.open_database(&settings, path))?.map_err(|e| open_error(path, e))?;
        let made = format::version(&database, path).and_then(|version| match version {
            None if fill => format::initialise(&database, path),
            None => Err(Error::Corrupt { path: path.to_owned(), what: LOST_CATALOG.into() }),
            Some(format::UNSEALED_VERSION) => format::upgrade(&mut database, path),
            Some(_) => Ok(()),
        });
        match made {
            Ok(()) => Ok(Self::of(database, path, true, cache_bytes)),
            Err(error) => {
                close(Some(database));
                Err(error)
            }
        }
    }

    /// Opens the catalog at `path` for looking at it: the file is never written, what opening it repairs and what is
    /// committed here stays in memory. One of the version before is read as it is.
    ///
    /// # Errors
    /// As of [`Catalog::open`]; [`Error::Io`] when there is none.
    pub fn open_frozen(path: &Path, cache_bytes: usize) -> Result<Self> {
        let database = frozen_database(Frozen::open(path)?, path, cache_bytes)?;
        let version = format::version(&database, path).and_then(|version| match version {
            None => format::initialise(&database, path).map(|()| FORMAT_VERSION),
            Some(version) => Ok(version),
        });
        match version {
            Ok(version) => Ok(Self::of(database, path, version == FORMAT_VERSION, cache_bytes)),
            Err(error) => {
                close(Some(database));
                Err(error)
            }
        }
    }

    fn of(database: Database, path: &Path, is_sealed: bool, cache_bytes: usize) -> Self {
        let connection = Arc::new(Connection::new(database, Origin { path: path.into(), is_sealed }, cache_bytes));
        Self { writer: Writer::start(Arc::clone(&connection)), connection }
    }

    /// False for one of the version before, whose values have no checksums.
    pub fn is_sealed(&self) -> bool {
        self.connection.origin().is_sealed
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        self.connection.path()
    }

    /// Reads all of a catalog and compares its pages with their checksums, without changing the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a page is damaged, and as of [`Catalog::open_frozen`].
    pub fn verify(path: &Path, cache_bytes: usize) -> Result<()> {
        let mut database = frozen_database(Frozen::open(path)?, path, cache_bytes)?;
        let checked = guarded(|| database.check_integrity());
        close(Some(database));
        match checked?.map_err(|e| open_error(path, e))? {
            true => Ok(()),
            false => Err(Error::Corrupt { path: path.to_owned(), what: "a page is not what was written".into() }),
        }
    }

    /// Reads what answers depend on, and compares it with its checksums.
    ///
    /// # Errors
    /// [`Error::Corrupt`] that names the first damaged value, how many there are, and what to do.
    pub(crate) fn refuse_damage(&self) -> Result<()> {
        let faults = self.snapshot()?.faults(&Space::OF_ANSWERS);
        let needed: Vec<&CatalogFault> = faults.iter().filter(|fault| !fault.is_spare()).collect();
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

    /// As [`Catalog::submit`], with a number for [`Catalog::durable`].
    pub(crate) fn submit_numbered(&self, mut commit: Commit, number: u64) -> PendingCommit {
        commit.number = Some(number);
        self.writer.submit(commit)
    }

    /// The number of the last numbered commit that is durable.
    pub(crate) fn durable(&self) -> Option<u64> {
        self.connection.durable()
    }

    /// Why writes are refused; `None` while they are not.
    pub fn failure(&self) -> Option<Error> {
        self.connection.failure()
    }

    /// Opens the database again after a write failed; writes stay refused until [`Catalog::resume`].
    ///
    /// # Errors
    /// Why it cannot be written yet.
    pub(crate) fn reopen(&self, files: &dyn FileSystem) -> Result<()> {
        self.connection.reopen(files)
    }

    /// Takes writes again. What was submitted before is refused: it builds on what failed.
    pub(crate) fn resume(&self) {
        self.connection.resume();
    }

    /// The catalog as the last commit left it.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.connection.snapshot()
    }

    /// The same as the disk has it: nothing that the server keeps of it in memory is read.
    ///
    /// # Errors
    /// As of [`Catalog::open_frozen`].
    pub(crate) fn on_disk(&self) -> Result<OnDisk> {
        self.connection.on_disk()
    }

    /// One value.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot()?.get(space, key)
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    pub fn scan(&self, space: Space, prefix: &[u8], visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.snapshot()?.scan(space, prefix, visit)
    }

    /// As [`Catalog::scan`], from the last key to the first.
    pub fn scan_back(
        &self,
        space: Space,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.snapshot()?.walk_needed(space, prefix, true, visit)
    }
}

fn frozen_database(file: Frozen, path: &Path, cache_bytes: usize) -> Result<Database> {
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

/// The error of a write, with what the disk said.
fn write_error(path: &Path, error: redb::Error) -> Error {
    match error {
        redb::Error::Io(source) => refused("write", path, &source),
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
