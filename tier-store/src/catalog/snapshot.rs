//! Snapshots of the catalog: all reads through one [`Snapshot`] see the state after the same commit.
//!
//! Every read compares the value with its checksum ([`super::sealed`]). A damaged value is an error if answers of
//! statements depend on it; otherwise the read skips it with a warning, as it is measured or logged anew.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::sealed::{self, CatalogFault};
use super::{Space, catalog_error, format, open_error, successor};
use crate::error::{Error, Result};

/// All spaces as of one commit. A snapshot only keeps the database from reusing old pages.
pub struct Snapshot {
    transaction: ReadTransaction,
    origin: Origin,
}

/// The catalog that a snapshot was taken of.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) path: Arc<Path>,
    /// Values have checksums, as all have from version 4 on.
    pub(super) is_sealed: bool,
}

/// A table of redb.
type Entries = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// The payload of a value, or its damage.
type ReadValue<'a> = std::result::Result<&'a [u8], CatalogFault>;

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

impl Snapshot {
    pub(super) fn new(transaction: ReadTransaction, origin: Origin) -> Self {
        Self { transaction, origin }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the value is damaged and not expendable; [`Error::Catalog`].
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(table) = self.table(space)? else { return Ok(None) };
        let Some(value) = catch_panic(|| table.get(key))?.map_err(catalog_error)? else { return Ok(None) };
        let stored = catch_panic(|| value.value())?;
        self.required(self.unseal(space, key, stored)).map(|payload| payload.map(<[u8]>::to_vec))
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    ///
    /// # Errors
    /// Like [`Snapshot::get`].
    pub fn scan(&self, space: Space, prefix: &[u8], visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.walk_required(space, prefix, false, visit)
    }

    /// Like [`Snapshot::scan`], but passes the fault of a damaged value to `visit`.
    pub fn scan_all(
        &self,
        space: Space,
        prefix: &[u8],
        visit: impl FnMut(&[u8], ReadValue<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.walk(space, prefix, false, visit)
    }

    /// Scans in either direction; damage is handled as by [`Snapshot::get`].
    pub(super) fn walk_required(
        &self,
        space: Space,
        prefix: &[u8],
        backwards: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.walk(space, prefix, backwards, |key, value| match self.required(value)? {
            Some(payload) => visit(key, payload),
            None => Ok(true),
        })
    }

    fn walk(
        &self,
        space: Space,
        prefix: &[u8],
        backwards: bool,
        mut visit: impl FnMut(&[u8], ReadValue<'_>) -> Result<bool>,
    ) -> Result<()> {
        let Some(table) = self.table(space)? else { return Ok(()) };
        let range = || match successor(prefix) {
            Some(end) => table.range::<&[u8]>(prefix..end.as_slice()),
            None => table.range::<&[u8]>(prefix..),
        };
        let mut range = catch_panic(range)?.map_err(catalog_error)?;
        while let Some(entry) = catch_panic(|| if backwards { range.next_back() } else { range.next() })? {
            let (key, value) = entry.map_err(catalog_error)?;
            let (key, value) = catch_panic(|| (key.value(), value.value()))?;
            if !visit(key, self.unseal(space, key, value))? {
                break;
            }
        }
        Ok(())
    }

    fn table(&self, space: Space) -> Result<Option<Entries>> {
        match catch_panic(|| self.transaction.open_table(space.definition()))? {
            Ok(table) => Ok(Some(table)),
            Err(redb::TableError::TableDoesNotExist(_)) if !self.origin.is_sealed => Ok(None),
            Err(redb::TableError::TableDoesNotExist(_)) => {
                Err(CatalogFault::of_pages(space, None, "it is missing").error(&self.origin.path))
            }
            Err(error) => Err(catalog_error(error)),
        }
    }

    fn unseal<'a>(&self, space: Space, key: &[u8], stored: &'a [u8]) -> ReadValue<'a> {
        if self.origin.is_sealed { sealed::unseal(space, key, stored) } else { Ok(stored) }
    }

    /// The payload; `None` for a damaged value that is expendable.
    fn required<'a>(&self, value: ReadValue<'a>) -> Result<Option<&'a [u8]>> {
        match value {
            Ok(payload) => Ok(Some(payload)),
            Err(fault) if fault.is_expendable() => {
                tracing::warn!(%fault, path = %self.origin.path.display(), "a damaged value is passed over");
                Ok(None)
            }
            Err(fault) => Err(fault.error(&self.origin.path)),
        }
    }

    /// Finds the damage in `spaces`: compares values with their checksums, and checks that keys are in order, that a
    /// look-up finds each of them, and that their number is that of the space.
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

    /// Checks one space up to the first damaged page; `last` becomes the key before it.
    fn check_space(&self, space: Space, last: &mut Option<Vec<u8>>, faults: &mut Vec<CatalogFault>) -> Result<()> {
        let Some(table) = self.table(space)? else { return Ok(()) };
        let damaged = || Error::Catalog("a page is damaged".into());
        let mut count = 0;
        for entry in catch_panic(|| table.iter())?.map_err(catalog_error)?.into_caught() {
            let (key, value) = entry?.map_err(catalog_error)?;
            let (key, value) = catch_panic(|| (key.value(), value.value()))?;
            let found = catch_panic(|| table.get(key))?.map_err(catalog_error)?.ok_or_else(damaged)?;
            let found = catch_panic(|| found.value())?;
            if last.as_deref().is_some_and(|last| last >= key) || found != value {
                return Err(damaged());
            }
            faults.extend(self.unseal(space, key, value).err());
            *last = Some(key.to_vec());
            count += 1;
        }
        let expected = catch_panic(|| table.len())?.map_err(catalog_error)?;
        if count == expected { Ok(()) } else { Err(damaged()) }
    }

    /// Copies everything into a new catalog at `path`, in one commit. The file is durable on return; the caller syncs
    /// the folder.
    pub fn copy_to(&self, path: &Path, cache_bytes: usize) -> Result<()> {
        let target = Database::builder().set_cache_size(cache_bytes).create(path).map_err(|e| open_error(path, e))?;
        format::rewrite(&target, path, Some(self))
    }
}

/// Turns panics of an iterator of redb into errors.
trait CatchPanics: Iterator + Sized {
    fn into_caught(mut self) -> impl Iterator<Item = Result<Self::Item>> {
        std::iter::from_fn(move || catch_panic(|| self.next()).transpose())
    }
}

impl<I: Iterator> CatchPanics for I {}

/// Closes a database. redb may write then, and panic at damaged pages.
pub(super) fn close(database: Option<Database>) {
    // The damage was known before, or the next open finds it.
    let _ = catch_panic(|| drop(database));
}

/// Turns panics of redb into errors: it trusts its pages, and panics when one is damaged.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    let damaged = |_| Error::Catalog("a page of it is damaged; `terrace check` says what to do".into());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(damaged)
}
