//! The catalog as one commit left it: what is read through one [`Snapshot`] fits together.
//!
//! Every value is compared with its checksum when it is read ([`super::sealed`]). What answers depend on is an error when it
//! is damaged; what is measured or logged anew is passed over with a warning.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::sealed::{self, CatalogFault};
use super::{Space, catalog_error, format, open_error, successor};
use crate::error::{Error, Result};

/// All spaces as of one commit. Holding it keeps old pages of the catalog from being used again, nothing more.
pub struct Snapshot {
    transaction: ReadTransaction,
    origin: Origin,
}

/// What a snapshot is of.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) path: Arc<Path>,
    /// Values have checksums: all have from version 4 on.
    pub(super) is_sealed: bool,
}

/// A table of redb.
type Entries = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// A value as it was read.
type Read<'a> = std::result::Result<&'a [u8], CatalogFault>;

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

impl Snapshot {
    pub(super) fn new(transaction: ReadTransaction, origin: Origin) -> Self {
        Self { transaction, origin }
    }

    /// One value.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the value is damaged and cannot be done without; [`Error::Catalog`].
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(table) = self.table(space)? else { return Ok(None) };
        let Some(value) = guarded(|| table.get(key))?.map_err(catalog_error)? else { return Ok(None) };
        let stored = guarded(|| value.value())?;
        self.needed(self.opened(space, key, stored)).map(|payload| payload.map(<[u8]>::to_vec))
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    ///
    /// # Errors
    /// As of [`Snapshot::get`].
    pub fn scan(&self, space: Space, prefix: &[u8], visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.walk_needed(space, prefix, false, visit)
    }

    /// As [`Snapshot::scan`], with what is wrong with a value in its place.
    pub fn scan_all(
        &self,
        space: Space,
        prefix: &[u8],
        visit: impl FnMut(&[u8], Read<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.walk(space, prefix, false, visit)
    }

    pub(super) fn walk_needed(
        &self,
        space: Space,
        prefix: &[u8],
        backwards: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.walk(space, prefix, backwards, |key, value| match self.needed(value)? {
            Some(payload) => visit(key, payload),
            None => Ok(true),
        })
    }

    fn walk(
        &self,
        space: Space,
        prefix: &[u8],
        backwards: bool,
        mut visit: impl FnMut(&[u8], Read<'_>) -> Result<bool>,
    ) -> Result<()> {
        let Some(table) = self.table(space)? else { return Ok(()) };
        let range = || match successor(prefix) {
            Some(end) => table.range::<&[u8]>(prefix..end.as_slice()),
            None => table.range::<&[u8]>(prefix..),
        };
        let mut range = guarded(range)?.map_err(catalog_error)?;
        while let Some(entry) = guarded(|| if backwards { range.next_back() } else { range.next() })? {
            let (key, value) = entry.map_err(catalog_error)?;
            let (key, value) = guarded(|| (key.value(), value.value()))?;
            if !visit(key, self.opened(space, key, value))? {
                break;
            }
        }
        Ok(())
    }

    fn table(&self, space: Space) -> Result<Option<Entries>> {
        match guarded(|| self.transaction.open_table(space.definition()))? {
            Ok(table) => Ok(Some(table)),
            Err(redb::TableError::TableDoesNotExist(_)) if !self.origin.is_sealed => Ok(None),
            Err(redb::TableError::TableDoesNotExist(_)) => {
                Err(CatalogFault::of_pages(space, None, "it is missing").error(&self.origin.path))
            }
            Err(error) => Err(catalog_error(error)),
        }
    }

    fn opened<'a>(&self, space: Space, key: &[u8], stored: &'a [u8]) -> Read<'a> {
        if self.origin.is_sealed { sealed::open(space, key, stored) } else { Ok(stored) }
    }

    /// The payload; `None` for a damaged one that statements do without.
    fn needed<'a>(&self, value: Read<'a>) -> Result<Option<&'a [u8]>> {
        match value {
            Ok(payload) => Ok(Some(payload)),
            Err(fault) if fault.is_spare() => {
                tracing::warn!(%fault, path = %self.origin.path.display(), "a damaged value is passed over");
                Ok(None)
            }
            Err(fault) => Err(fault.error(&self.origin.path)),
        }
    }

    /// What is wrong in `spaces`: values against their checksums, and whether keys are in order, found where a look-up seeks
    /// them, and as many as the space says.
    pub fn faults(&self, spaces: &[Space]) -> Vec<CatalogFault> {
        let mut faults = Vec::new();
        for space in spaces {
            let mut last = None;
            let checked = self.check_space(*space, &mut last, &mut faults);
            if checked.is_err() {
                faults.push(CatalogFault::of_pages(*space, last.as_deref(), "a page behind it is damaged"));
            }
        }
        faults
    }

    /// Stops at the first page that is damaged; `last` is the key before it.
    fn check_space(&self, space: Space, last: &mut Option<Vec<u8>>, faults: &mut Vec<CatalogFault>) -> Result<()> {
        let Some(table) = self.table(space)? else { return Ok(()) };
        let damaged = || Error::Catalog("a page is damaged".into());
        let mut count = 0;
        for entry in guarded(|| table.iter())?.map_err(catalog_error)?.into_guarded() {
            let (key, value) = entry?.map_err(catalog_error)?;
            let (key, value) = guarded(|| (key.value(), value.value()))?;
            let found = guarded(|| table.get(key))?.map_err(catalog_error)?.ok_or_else(damaged)?;
            let found = guarded(|| found.value())?;
            if last.as_deref().is_some_and(|last| last >= key) || found != value {
                return Err(damaged());
            }
            faults.extend(self.opened(space, key, value).err());
            *last = Some(key.to_vec());
            count += 1;
        }
        let expected = guarded(|| table.len())?.map_err(catalog_error)?;
        if count == expected { Ok(()) } else { Err(damaged()) }
    }

    /// Writes everything into a fresh catalog at `path`, in one commit; durable on return (the folder is the caller's).
    pub fn copy_to(&self, path: &Path, cache_bytes: usize) -> Result<()> {
        let target = Database::builder().set_cache_size(cache_bytes).create(path).map_err(|e| open_error(path, e))?;
        format::rewrite(&target, path, Some(self))
    }
}

/// An iterator of redb, each step of it guarded.
trait Guarded: Iterator + Sized {
    fn into_guarded(mut self) -> impl Iterator<Item = Result<Self::Item>> {
        std::iter::from_fn(move || guarded(|| self.next()).transpose())
    }
}

impl<I: Iterator> Guarded for I {}

/// Closes a database: redb may write then, and stumble.
pub(super) fn close(database: Option<Database>) {
    // What it stumbles over is damage that was there before, or is found at the next open.
    let _ = guarded(|| drop(database));
}

/// redb takes its own pages on trust and panics at what it stumbles over in a damaged one; here that is an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T> {
    let stumbled = |_| Error::Catalog("a page of it is damaged; `terrace check` says what to do".into());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(stumbled)
}
