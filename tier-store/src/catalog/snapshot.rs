//! The catalog as one commit left it: what is read through one [`Snapshot`] fits together.

use std::fmt;
use std::path::Path;

use redb::{Database, ReadTransaction};

use super::{Space, catalog_error, open_error, successor};
use crate::error::{Error, Result};

/// All spaces as of one commit. Holding it keeps old pages of the catalog from being used again, nothing more.
pub struct Snapshot {
    transaction: ReadTransaction,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

impl Snapshot {
    pub(super) fn new(transaction: ReadTransaction) -> Self {
        Self { transaction }
    }

    /// One value.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match guarded(|| self.transaction.open_table(space.definition()))? {
            Ok(table) => Ok(guarded(|| table.get(key))?.map_err(catalog_error)?.map(|v| v.value().to_vec())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(catalog_error(error)),
        }
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    pub fn scan(&self, space: Space, prefix: &[u8], visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.walk(space, prefix, false, visit)
    }

    pub(super) fn walk(
        &self,
        space: Space,
        prefix: &[u8],
        backwards: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let table = match guarded(|| self.transaction.open_table(space.definition()))? {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(catalog_error(error)),
        };
        let range = || match successor(prefix) {
            Some(end) => table.range::<&[u8]>(prefix..end.as_slice()),
            None => table.range::<&[u8]>(prefix..),
        };
        let mut range = guarded(range)?.map_err(catalog_error)?;
        while let Some(entry) = guarded(|| if backwards { range.next_back() } else { range.next() })? {
            let (key, value) = entry.map_err(catalog_error)?;
            if !visit(key.value(), value.value())? {
                break;
            }
        }
        Ok(())
    }

    /// Writes everything into a fresh catalog at `path`, in one commit; durable on return (the folder is the caller's).
    pub fn copy_to(&self, path: &Path, cache_bytes: usize) -> Result<()> {
        let target = Database::builder().set_cache_size(cache_bytes).create(path).map_err(|e| open_error(path, e))?;
        let mut write = target.begin_write().map_err(catalog_error)?;
        write.set_quick_repair(true);
        for space in Space::ALL {
            let mut table = write.open_table(space.definition()).map_err(catalog_error)?;
            self.scan(space, &[], |key, value| table.insert(key, value).map(|_| true).map_err(catalog_error))?;
        }
        write.commit().map_err(catalog_error)
    }
}

/// redb takes its own pages on trust and panics at what it stumbles over in a damaged one; here that is an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T> {
    let stumbled = |_| Error::Catalog("a page of it is damaged; `terrace check` says what to do".into());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(stumbled)
}
