//! Format versions of the database: creates new ones, rewrites those of the previous version, refuses others.
//!
//! ```text
//!   version 4   values with checksums (`sealed.rs`); every space has its redb table
//!   version 3   values without; a space has a table once something was put there
//! ```
//!
//! A rewrite is one commit: a crash before it leaves version 3, after it version 4. Sealed values count as undamaged,
//! so the rewrite first verifies the pages of version 3 with redb's checksums. The version number is sealed like any
//! other value.

use std::path::Path;

use redb::{Database, Durability, ReadableDatabase};
use terrace_model::{Error, Result};

use super::entries::RedbEntries;
use super::{catalog_error, catch_panic, definition, write_error};
use crate::catalog::Space;
use crate::catalog::sealed::{self, CatalogFault};
use crate::catalog::snapshot::{Origin, Snapshot};

/// Version of the catalog's layout.
pub const FORMAT_VERSION: u32 = 4;
/// The previous version, which is read and rewritten.
pub(super) const UNSEALED_VERSION: u32 = 3;
pub(super) const FORMAT_KEY: &[u8] = b"format_version";

/// Reads the version of a database; `None` for an empty one.
pub(super) fn version(database: &Database, path: &Path) -> Result<Option<u32>> {
    let read = catch_panic(|| database.begin_read())?.map_err(catalog_error)?;
    if catch_panic(|| read.list_tables().map(|mut tables| tables.next().is_none()))?.map_err(catalog_error)? {
        return Ok(None);
    }
    let damaged = || CatalogFault::of_value(Space::Meta, FORMAT_KEY).error(path);
    let table = catch_panic(|| read.open_table(definition(Space::Meta)))?.map_err(|_| damaged())?;
    let stored = catch_panic(|| table.get(FORMAT_KEY))?.map_err(catalog_error)?.ok_or_else(damaged)?;
    let stored = catch_panic(|| stored.value())?;
    // Before version 4 the number had no checksum.
    let number = match <[u8; 4]>::try_from(stored) {
        Ok(number) => u32::from_be_bytes(number),
        Err(_) => {
            let payload = sealed::unseal(Space::Meta, FORMAT_KEY, stored).map_err(|fault| fault.error(path))?;
            payload.try_into().map(u32::from_be_bytes).map_err(|_| damaged())?
        }
    };
    match number {
        UNSEALED_VERSION | FORMAT_VERSION => Ok(Some(number)),
        found => Err(Error::UnsupportedFormat { path: path.to_owned(), found, supported: FORMAT_VERSION }),
    }
}

/// Creates the spaces of an empty database.
pub(super) fn initialise(database: &Database, path: &Path) -> Result<()> {
    rewrite(database, path, None)
}

/// Rewrites a catalog of version 3, in one commit.
///
/// # Errors
/// [`Error::Corrupt`] when a page is damaged; [`Error::Io`] when there is no room for it. The file is unchanged then.
pub(super) fn upgrade(database: &mut Database, path: &Path) -> Result<()> {
    let damaged = || Error::Corrupt {
        path: path.to_owned(),
        what: "the checksum of a page is wrong, so it is not converted to this version's format. Restore a backup, or \
               rebuild the catalog from the table files: `terrace rebuild-catalog`"
            .into(),
    };
    match catch_panic(|| database.check_integrity()) {
        Ok(Ok(true)) => {}
        Ok(Err(redb::DatabaseError::Storage(redb::StorageError::Io(error)))) => {
            return Err(Error::io("read", path, &error));
        }
        _ => return Err(damaged()),
    }
    let entries = RedbEntries::read(database, Origin { path: path.into(), is_sealed: false })?;
    rewrite(database, path, Some(&entries.into_snapshot()))?;
    tracing::info!(path = %path.display(), from = UNSEALED_VERSION, to = FORMAT_VERSION, "rewrote the catalog in the current format");
    Ok(())
}

/// Writes all entries of `source` into `target`, sealed, and the version; durable on return.
pub(super) fn rewrite(target: &Database, path: &Path, source: Option<&Snapshot>) -> Result<()> {
    let failed = |error: redb::Error| write_error(path, error);
    let mut write = target.begin_write().map_err(|e| failed(e.into()))?;
    write.set_durability(Durability::Immediate).map_err(catalog_error)?;
    write.set_quick_repair(true);
    for space in Space::ALL {
        let mut table = write.open_table(definition(space)).map_err(|e| failed(e.into()))?;
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
