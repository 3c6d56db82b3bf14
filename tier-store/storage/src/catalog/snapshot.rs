//! Snapshots of the catalog: all reads through one [`Snapshot`] see the state after the same commit.
//!
//! Every read compares the value with its checksum ([`super::sealed`]). A damaged value is an error if answers of
//! statements depend on it; otherwise the read skips it with a warning, as it is measured or logged again.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use terrace_model::Result;

use super::sealed::{self, CatalogFault};
use super::store::{CatalogStore, Direction, StoredEntries};
use super::{DefaultStore, Space};

/// All spaces as of one commit. A snapshot only keeps the store from reusing old pages.
pub struct Snapshot {
    entries: Box<dyn StoredEntries>,
    origin: Origin,
}

/// The catalog that a snapshot was taken of.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) path: Arc<Path>,
    /// True when values have checksums: from format version 4 on.
    pub(super) is_sealed: bool,
}

/// The payload of a value, or its damage.
type ReadValue<'a> = std::result::Result<&'a [u8], CatalogFault>;

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

impl Snapshot {
    pub(super) fn new(entries: impl StoredEntries + 'static, origin: Origin) -> Self {
        Self { entries: Box::new(entries), origin }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`Error::Corrupt`](terrace_model::Error::Corrupt) when the value is damaged and not expendable;
    /// [`Error::Catalog`](terrace_model::Error::Catalog).
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(mut stored) = self.entries.get(space, key)? else { return Ok(None) };
        let payload = self.required(self.unseal(space, key, &stored))?.map(<[u8]>::len);
        Ok(payload.map(|bytes| {
            // The checksum follows the payload.
            stored.truncate(bytes);
            stored
        }))
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    ///
    /// # Errors
    /// Like [`Snapshot::get`].
    pub fn scan(&self, space: Space, prefix: &[u8], visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.scan_required(space, prefix, Direction::Forward, visit)
    }

    /// Like [`Snapshot::scan`], from the last key to the first.
    ///
    /// # Errors
    /// Like [`Snapshot::get`].
    pub fn scan_back(
        &self,
        space: Space,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.scan_required(space, prefix, Direction::Backward, visit)
    }

    /// Like [`Snapshot::scan`], but passes the [`CatalogFault`] of a damaged value to `visit`.
    pub fn scan_all(
        &self,
        space: Space,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], ReadValue<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.entries
            .scan(space, prefix, Direction::Forward, &mut |key, stored| visit(key, self.unseal(space, key, stored)))
    }

    /// Scans in either direction; damage is handled as by [`Snapshot::get`].
    fn scan_required(
        &self,
        space: Space,
        prefix: &[u8],
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.entries.scan(space, prefix, direction, &mut |key, stored| match self
            .required(self.unseal(space, key, stored))?
        {
            Some(payload) => visit(key, payload),
            None => Ok(true),
        })
    }

    fn unseal<'a>(&self, space: Space, key: &[u8], stored: &'a [u8]) -> ReadValue<'a> {
        if self.origin.is_sealed { sealed::unseal(space, key, stored) } else { Ok(stored) }
    }

    /// The payload; `None` for a damaged value that is expendable.
    fn required<'a>(&self, value: ReadValue<'a>) -> Result<Option<&'a [u8]>> {
        match value {
            Ok(payload) => Ok(Some(payload)),
            Err(fault) if fault.is_expendable() => {
                tracing::warn!(%fault, path = %self.origin.path.display(), "skipped a damaged value");
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
            let mut last: Option<Vec<u8>> = None;
            let checked = self.entries.check(*space, &mut |key, stored| {
                faults.extend(self.unseal(*space, key, stored).err());
                last = Some(key.to_vec());
            });
            if checked.is_err() {
                faults.push(CatalogFault::of_pages(*space, last.as_deref(), "a page after it is damaged"));
            }
        }
        faults
    }

    /// Copies everything into a new catalog at `path`, in one commit. The file is durable on return; the caller syncs
    /// the folder.
    ///
    /// # Errors
    /// Like [`Snapshot::get`], and those of the disk.
    pub fn copy_to(&self, path: &Path, cache_bytes: usize) -> Result<()> {
        DefaultStore::copy(self, path, cache_bytes)
    }
}
