//! Reads through a read transaction of redb.

use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use terrace_model::{Error, Result};

use super::{catalog_error, catch_panic, close, definition, successor};
use crate::catalog::Space;
use crate::catalog::sealed::CatalogFault;
use crate::catalog::snapshot::{Origin, Snapshot};
use crate::catalog::store::{Direction, EntryVisitor, StoredEntries};

/// All entries as of one commit.
pub(super) struct RedbEntries {
    transaction: ReadTransaction,
    origin: Origin,
}

/// A table of redb.
type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

impl RedbEntries {
    /// The entries after the last commit of a database.
    pub(super) fn read(database: &Database, origin: Origin) -> Result<Self> {
        let transaction = catch_panic(|| database.begin_read())?.map_err(catalog_error)?;
        Ok(Self { transaction, origin })
    }

    /// Turns the entries into a snapshot of the catalog.
    pub(super) fn into_snapshot(self) -> Snapshot {
        let origin = self.origin.clone();
        Snapshot::new(self, origin)
    }

    fn table(&self, space: Space) -> Result<Option<Table>> {
        match catch_panic(|| self.transaction.open_table(definition(space)))? {
            Ok(table) => Ok(Some(table)),
            Err(redb::TableError::TableDoesNotExist(_)) if !self.origin.is_sealed => Ok(None),
            Err(redb::TableError::TableDoesNotExist(_)) => {
                Err(CatalogFault::of_pages(space, None, "the space is missing").error(&self.origin.path))
            }
            Err(error) => Err(catalog_error(error)),
        }
    }
}

impl StoredEntries for RedbEntries {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(table) = self.table(space)? else { return Ok(None) };
        let Some(value) = catch_panic(|| table.get(key))?.map_err(catalog_error)? else { return Ok(None) };
        catch_panic(|| value.value().to_vec()).map(Some)
    }

    fn scan(&self, space: Space, prefix: &[u8], direction: Direction, visit: EntryVisitor<'_>) -> Result<()> {
        let Some(table) = self.table(space)? else { return Ok(()) };
        let range = || match successor(prefix) {
            Some(end) => table.range::<&[u8]>(prefix..end.as_slice()),
            None => table.range::<&[u8]>(prefix..),
        };
        let mut range = catch_panic(range)?.map_err(catalog_error)?;
        let mut next = || match direction {
            Direction::Forward => range.next(),
            Direction::Backward => range.next_back(),
        };
        while let Some(entry) = catch_panic(&mut next)? {
            let (key, value) = entry.map_err(catalog_error)?;
            let (key, value) = catch_panic(|| (key.value(), value.value()))?;
            if !visit(key, value)? {
                break;
            }
        }
        Ok(())
    }

    fn check(&self, space: Space, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let Some(table) = self.table(space)? else { return Ok(()) };
        let damaged = || Error::Catalog("a page is damaged".into());
        let mut last: Option<Vec<u8>> = None;
        let mut count = 0;
        for entry in catch_panic(|| table.iter())?.map_err(catalog_error)?.into_caught() {
            let (key, value) = entry?.map_err(catalog_error)?;
            let (key, value) = catch_panic(|| (key.value(), value.value()))?;
            let found = catch_panic(|| table.get(key))?.map_err(catalog_error)?.ok_or_else(damaged)?;
            let found = catch_panic(|| found.value())?;
            if last.as_deref().is_some_and(|last| last >= key) || found != value {
                return Err(damaged());
            }
            visit(key, value);
            last = Some(key.to_vec());
            count += 1;
        }
        let expected = catch_panic(|| table.len())?.map_err(catalog_error)?;
        if count == expected { Ok(()) } else { Err(damaged()) }
    }
}

/// The entries after the last commit as stored on the disk, read through a second database.
pub(super) struct EntriesOnDisk {
    pub(super) entries: RedbEntries,
    pub(super) database: Option<Database>,
    /// Keeps the database of the server from reusing the pages of the commit.
    pub(super) _pinned: RedbEntries,
}

impl Drop for EntriesOnDisk {
    fn drop(&mut self) {
        close(self.database.take());
    }
}

impl StoredEntries for EntriesOnDisk {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.entries.get(space, key)
    }

    fn scan(&self, space: Space, prefix: &[u8], direction: Direction, visit: EntryVisitor<'_>) -> Result<()> {
        self.entries.scan(space, prefix, direction, visit)
    }

    fn check(&self, space: Space, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        self.entries.check(space, visit)
    }
}

/// Turns panics of an iterator of redb into errors.
trait CatchPanics: Iterator + Sized {
    fn into_caught(mut self) -> impl Iterator<Item = Result<Self::Item>> {
        std::iter::from_fn(move || catch_panic(|| self.next()).transpose())
    }
}

impl<I: Iterator> CatchPanics for I {}
