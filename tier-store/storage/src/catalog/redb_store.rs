//! The catalog's store in redb: one file, one writer thread, group commit. Nothing outside of this module names redb.
//!
//! Every space is a table of redb. redb trusts its pages, and panics when one is damaged; all calls that read pages
//! catch that.
//!
//! - [`connection`]: the connection to the database, and recovery after the disk refused a write
//! - [`entries`]: reads through a read transaction
//! - [`format`]: format versions
//! - [`overlay_file`]: opens a file without writing it
//! - [`storage`]: opens databases in files of a [`FileSystem`]
//! - [`writer`]: the writer thread

mod connection;
mod entries;
mod format;
mod overlay_file;
mod storage;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::Arc;

use redb::{Database, TableDefinition};
use terrace_model::{Error, Result};

use super::sealed::ADVICE;
use super::snapshot::Origin;
use super::store::{CatalogStore, WhenEmpty};
use super::{Commit, LOST_CATALOG, PendingCommit, Snapshot, Space};
use crate::io::FileSystem;
use crate::io::files::file_error;
use connection::Connection;
pub use format::FORMAT_VERSION;
use overlay_file::OverlayFile;
use storage::{open_database, open_database_in};
use writer::Writer;

/// A store in an open database.
#[derive(Debug)]
pub(super) struct RedbStore {
    connection: Arc<Connection>,
    writer: Writer,
}

impl RedbStore {
    fn from_database(database: Database, path: &Path, is_sealed: bool, cache_bytes: usize) -> Self {
        let connection = Arc::new(Connection::new(database, Origin { path: path.into(), is_sealed }, cache_bytes));
        Self { writer: Writer::start(Arc::clone(&connection)), connection }
    }
}

impl CatalogStore for RedbStore {
    fn open(files: &dyn FileSystem, path: &Path, cache_bytes: usize, when_empty: WhenEmpty) -> Result<Self> {
        let mut settings = Database::builder();
        settings.set_cache_size(cache_bytes);
        if files.len(path)?.is_none() {
            create(files, &settings, path)?;
        }
        let mut database = catch_panic(|| open_database(files, &settings, path))?.map_err(|e| open_error(path, e))?;
        let prepared = format::version(&database, path).and_then(|version| match version {
            None if when_empty == WhenEmpty::Initialise => format::initialise(&database, path),
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

    fn open_read_only(path: &Path, cache_bytes: usize) -> Result<Self> {
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

    fn verify(path: &Path, cache_bytes: usize) -> Result<()> {
        let mut database = read_only_database(OverlayFile::open(path)?, path, cache_bytes)?;
        let checked = catch_panic(|| database.check_integrity());
        close(Some(database));
        match checked?.map_err(|e| open_error(path, e))? {
            true => Ok(()),
            false => Err(Error::Corrupt { path: path.to_owned(), what: "the checksum of a page is wrong".into() }),
        }
    }

    fn copy(snapshot: &Snapshot, path: &Path, cache_bytes: usize) -> Result<()> {
        let target = Database::builder().set_cache_size(cache_bytes).create(path).map_err(|e| open_error(path, e))?;
        format::rewrite(&target, path, Some(snapshot))
    }

    fn path(&self) -> &Path {
        self.connection.path()
    }

    fn is_sealed(&self) -> bool {
        self.connection.origin().is_sealed
    }

    fn snapshot(&self) -> Result<Snapshot> {
        self.connection.snapshot()
    }

    fn snapshot_on_disk(&self) -> Result<Snapshot> {
        self.connection.snapshot_on_disk()
    }

    fn submit(&self, commit: Commit) -> PendingCommit {
        self.writer.submit(commit)
    }

    fn durable(&self) -> Option<u64> {
        self.connection.durable()
    }

    fn failure(&self) -> Option<Error> {
        self.connection.failure()
    }

    fn reopen(&self, files: &dyn FileSystem) -> Result<()> {
        self.connection.reopen(files)
    }

    fn resume(&self) {
        self.connection.resume();
    }

    fn damage(&self, space: Space, key: &[u8], bit: usize) -> Result<()> {
        self.connection.damage(space, key, bit)
    }

    fn fail_closed(&self, error: &Error) {
        self.connection.fail_closed(error);
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

/// Converts an error of a write and keeps the `errno` of the disk.
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

/// The table of redb that has the entries of a space.
fn definition(space: Space) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(space.name())
}

/// Closes a database. redb may write then, and panic at damaged pages.
fn close(database: Option<Database>) {
    // Ignores damage: it was reported before, or the next open finds it.
    let _ = catch_panic(|| drop(database));
}

/// Turns panics of redb into errors: it trusts its pages, and panics when one is damaged.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    let damaged = |_| Error::Catalog("one of its pages is damaged; `terrace check` says what to do".into());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(damaged)
}
