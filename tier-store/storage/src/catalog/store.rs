//! The seam below the catalog: a [`CatalogStore`] keeps entries durably. `redb_store` is the only implementation.
//!
//! A store takes keys and values as bytes. The layer above adds checksums and decides what damage means for readers
//! ([`Snapshot`]). Every store guarantees what the callers of the catalog rely on:
//!
//! ```text
//!   submit    queues a commit. Commits become durable in the order in which they are submitted, each of them whole or
//!             not at all, and none after one that failed
//!   failure   after a commit failed all others are refused, reads continue: the caller repeats reopen() until it
//!             succeeds, returns its memory to the last durable commit, and calls resume(). Commits submitted before
//!             that stay refused
//!   snapshot  sees the entries after one commit for as long as it lives, whatever is committed later. Backups copy it
//! ```

use std::fmt::Debug;
use std::path::Path;

use terrace_model::{Error, Result};

use super::{Commit, PendingCommit, Snapshot, Space};
use crate::io::FileSystem;

/// Called with key and value of an entry; false ends the scan.
pub(super) type EntryVisitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// How to open a store that has no entries at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenEmpty {
    /// The store is new.
    Initialise,
    /// The store lost its entries, so opening it fails with [`Error::Corrupt`].
    Refuse,
}

/// The order of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the first key to the last.
    Forward,
    /// From the last key to the first.
    Backward,
}

/// A durable store of the entries of a catalog; the module documentation lists its guarantees.
pub(super) trait CatalogStore: Debug + Send + Sync {
    /// Opens or makes the store at `path`; `cache_bytes` limits its cache. A store of the previous format version is
    /// rewritten first.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open, [`Error::UnsupportedFormat`] for another version,
    /// [`Error::Corrupt`] for a damaged one.
    fn open(files: &dyn FileSystem, path: &Path, cache_bytes: usize, when_empty: WhenEmpty) -> Result<Self>
    where
        Self: Sized;

    /// Opens the store at `path` without ever writing the file: repairs made while opening it, and commits, stay in
    /// memory. A store of the previous format version is read without rewriting it.
    ///
    /// # Errors
    /// Like [`CatalogStore::open`]; [`Error::Io`] when there is no store.
    fn open_read_only(path: &Path, cache_bytes: usize) -> Result<Self>
    where
        Self: Sized;

    /// Reads all of the store at `path`, which no process may write meanwhile, and verifies its checksums, without
    /// changing the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when something is damaged; otherwise like [`CatalogStore::open_read_only`].
    fn verify(path: &Path, cache_bytes: usize) -> Result<()>
    where
        Self: Sized;

    /// Copies all entries of a snapshot into a new store at `path`, in one commit. The file is durable on return; the
    /// caller syncs the folder.
    ///
    /// # Errors
    /// Those of reading `snapshot`, and of the disk.
    fn copy(snapshot: &Snapshot, path: &Path, cache_bytes: usize) -> Result<()>
    where
        Self: Sized;

    /// Path of the file.
    fn path(&self) -> &Path;

    /// False for a store of the previous format version, whose values have no checksums.
    fn is_sealed(&self) -> bool;

    /// The entries after the last commit.
    fn snapshot(&self) -> Result<Snapshot>;

    /// Like [`CatalogStore::snapshot`], but reads from the disk only, not from the memory of the process.
    ///
    /// # Errors
    /// Like [`CatalogStore::open_read_only`].
    fn snapshot_on_disk(&self) -> Result<Snapshot>;

    /// Reads a value of the last commit.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot()?.get(space, key)
    }

    /// Calls `visit` with each entry of the last commit whose key starts with `prefix`, in order, until it returns
    /// false.
    fn scan(&self, space: Space, prefix: &[u8], visit: EntryVisitor<'_>) -> Result<()> {
        self.snapshot()?.scan(space, prefix, visit)
    }

    /// Like [`CatalogStore::scan`], from the last key to the first.
    fn scan_back(&self, space: Space, prefix: &[u8], visit: EntryVisitor<'_>) -> Result<()> {
        self.snapshot()?.scan_back(space, prefix, visit)
    }

    /// Queues a commit.
    fn submit(&self, commit: Commit) -> PendingCommit;

    /// The number of the last numbered commit that is durable.
    fn durable(&self) -> Option<u64>;

    /// The reason why commits are refused; `None` while they are not.
    fn failure(&self) -> Option<Error>;

    /// Makes a store writable again after a commit failed; commits stay refused until [`CatalogStore::resume`].
    ///
    /// # Errors
    /// The reason why it cannot be written yet.
    fn reopen(&self, files: &dyn FileSystem) -> Result<()>;

    /// Accepts commits again. Those submitted before are refused, as they build on the failed one.
    fn resume(&self);

    /// Flips a bit of a stored value in a way that the store itself does not notice; for tests.
    ///
    /// # Errors
    /// [`Error::Catalog`] when the value is not there.
    fn damage(&self, space: Space, key: &[u8], bit: usize) -> Result<()>;

    /// Brings the store into the state after a failed commit and a failed reopen; for tests.
    fn fail_closed(&self, error: &Error);
}

/// The entries of a store after one commit, as stored: values with their checksums.
pub(super) trait StoredEntries: Send + Sync {
    /// The stored value of a key.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Calls `visit` with each key that starts with `prefix` and its stored value, until it returns false.
    fn scan(&self, space: Space, prefix: &[u8], direction: Direction, visit: EntryVisitor<'_>) -> Result<()>;

    /// Calls `visit` with all entries of a space in order, and verifies what a scan relies on: that the keys are in
    /// order, that a look-up finds each of them, and that their number is that of the space.
    ///
    /// # Errors
    /// When one of these does not hold; `visit` was called with the entries before the damage.
    fn check(&self, space: Space, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()>;
}
