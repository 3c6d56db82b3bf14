//! Versions of the catalog: new ones are made, the one before is rewritten, others are refused.
//!
//! ```text
//!   version 4   values with checksums (`sealed.rs`); every space has its redb table
//!   version 3   values without; a space has a table once something was put there
//! ```
//!
//! A rewrite is one commit: a crash before it leaves version 3, after it version 4. What is sealed counts as good from then on,
//! so the pages of version 3 are proven by redb's checksums first. The version's own value is sealed like any other.

use std::path::Path;

use redb::{Database, Durability, ReadableDatabase};

use super::sealed::{self, CatalogFault};
use super::snapshot::{Origin, Snapshot, guarded};
use super::{Space, catalog_error, write_error};
use crate::error::{Error, Result};

/// Version of the catalog's layout.
pub const FORMAT_VERSION: u32 = 4;
/// The one before, which is read and rewritten.
pub(super) const UNSEALED_VERSION: u32 = 3;
pub(super) const FORMAT_KEY: &[u8] = b"format_version";

/// The version of a database; `None` for one in which there is nothing.
pub(super) fn version(database: &Database, path: &Path) -> Result<Option<u32>> {
    let read = guarded(|| database.begin_read())?.map_err(catalog_error)?;
    if guarded(|| read.list_tables().map(|mut tables| tables.next().is_none()))?.map_err(catalog_error)? {
        return Ok(None);
    }
    let damaged = || CatalogFault::of_value(Space::Meta, FORMAT_KEY).error(path);
    let table = guarded(|| read.open_table(Space::Meta.definition()))?.map_err(|_| damaged())?;
    let stored = guarded(|| table.get(FORMAT_KEY))?.map_err(catalog_error)?.ok_or_else(damaged)?;
    let stored = guarded(|| stored.value())?;
    // Before version 4 it had no checksum.
    let number = match <[u8; 4]>::try_from(stored) {
        Ok(number) => u32::from_be_bytes(number),
        Err(_) => {
            let payload = sealed::open(Space::Meta, FORMAT_KEY, stored).map_err(|fault| fault.error(path))?;
            payload.try_into().map(u32::from_be_bytes).map_err(|_| damaged())?
        }
    };
    match number {
        UNSEALED_VERSION | FORMAT_VERSION => Ok(Some(number)),
        found => Err(Error::UnsupportedFormat { path: path.to_owned(), found, supported: FORMAT_VERSION }),
    }
}

/// Makes the spaces of a database in which there is nothing.
pub(super) fn initialise(database: &Database, path: &Path) -> Result<()> {
    rewrite(database, path, None)
}

/// Rewrites a catalog of version 3, in one commit.
///
/// # Errors
/// [`Error::Corrupt`] when a page is damaged; [`Error::Io`] when there is no room for it. The file is as it was then.
pub(super) fn upgrade(database: &mut Database, path: &Path) -> Result<()> {
    let damaged = || Error::Corrupt {
        path: path.to_owned(),
        what:
            "a page is not what was written, so it is not brought to this version's format. Restore a backup, or make \
               a catalog of the table files: `terrace rebuild-catalog`"
                .into(),
    };
    match guarded(|| database.check_integrity()) {
        Ok(Ok(true)) => {}
        Ok(Err(redb::DatabaseError::Storage(redb::StorageError::Io(error)))) => {
            return Err(Error::io("read", path, &error));
        }
        _ => return Err(damaged()),
    }
    let read = guarded(|| database.begin_read())?.map_err(catalog_error)?;
    let source = Snapshot::new(read, Origin { path: path.into(), is_sealed: false });
    rewrite(database, path, Some(&source))?;
    tracing::info!(path = %path.display(), from = UNSEALED_VERSION, to = FORMAT_VERSION, "the catalog was rewritten");
    Ok(())
}

/// Puts everything of `source` into all spaces of `target`, sealed, and the version; durable on return.
pub(super) fn rewrite(target: &Database, path: &Path, source: Option<&Snapshot>) -> Result<()> {
    let failed = |error: redb::Error| write_error(path, error);
    let mut write = target.begin_write().map_err(|e| failed(e.into()))?;
    write.set_durability(Durability::Immediate).map_err(catalog_error)?;
    write.set_quick_repair(true);
    for space in Space::ALL {
        let mut table = write.open_table(space.definition()).map_err(|e| failed(e.into()))?;
        let mut put = |key: &[u8], payload: &[u8]| {
            let stored = sealed::seal(space, key, payload.to_vec());
            table.insert(key, stored.as_slice()).map(|_| true).map_err(|e| failed(e.into()))
        };
        source.map_or(Ok(()), |source| source.scan(space, &[], &mut put))?;
        if space == Space::Meta {
            put(FORMAT_KEY, &FORMAT_VERSION.to_be_bytes())?;
        }
    }
    write.commit().map_err(|e| failed(e.into()))
}
