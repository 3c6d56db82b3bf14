//! The catalog: durable metadata in an embedded ACID store, such as tables, chunks, statistics, delta, objects,
//! placement decisions and heat.
//!
//! A [`Commit`] is a list of puts and deletes that become durable together or not at all. After an I/O error the catalog
//! refuses writes until it is reopened, which the store tries with back-off; reads go on meanwhile. Keys are
//! big-endian, so a prefix is a range. Every value is stored with a checksum.
//!
//! ```text
//!   Catalog, Snapshot    what callers use: spaces, checksums, damage
//!        | trait CatalogStore, trait StoredEntries
//!   RedbStore            one writer thread that groups concurrent commits into one transaction (group commit)
//! ```
//!
//! Spaces, keys and values:
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
//! placements  epoch                     -> placement of all segments after it (postcard)
//! ```
//!
//! - `commit`: changes that become durable together
//! - [`records`]: records of tables and chunks, and their encoding
//! - `redb_store`: the store, implemented with redb
//! - `sealed`: values with checksums, and faults
//! - `snapshot`: consistent reads
//! - `store`: the traits of a store
//! - [`testing`]: damage to catalogs, for tests

mod commit;
pub mod records;
mod redb_store;
mod sealed;
mod snapshot;
mod store;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::path::Path;

use terrace_model::{Error, Result};

pub use commit::Commit;
pub use commit::PendingCommit;
pub use records::{ChunkRecord, TableRecord};
pub use sealed::CatalogFault;
pub use snapshot::Snapshot;

use crate::io::FileSystem;
use redb_store::RedbStore;
use store::{CatalogStore, WhenEmpty};

/// Key in [`Space::Meta`] of the measured cost profiles of the devices.
pub const CALIBRATION_KEY: &[u8] = b"calibration";
/// Key in [`Space::Meta`] of the hysteresis state, which keeps segments from moving back and forth.
pub const HYSTERESIS_KEY: &[u8] = b"tiering_holds";
/// Key in [`Space::Meta`] of the number of the last transaction.
const LAST_COMMIT_KEY: &[u8] = b"last_commit";
/// Keys in [`Space::Meta`] of values that are measured, decided or counted again when they are damaged.
const EXPENDABLE_META: [&[u8]; 3] = [CALIBRATION_KEY, HYSTERESIS_KEY, LAST_COMMIT_KEY];

/// The message about a catalog that lost its contents.
pub const LOST_CATALOG: &str = "it is missing or empty, but files of tables exist. Restore a backup, or rebuild the \
                                       catalog from the files: `terrace rebuild-catalog`";

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

impl Space {
    /// All spaces.
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

    /// The spaces of tables that describe the rows of a table.
    pub const OF_CONTENT: [Self; 6] =
        [Self::Chunks, Self::Statistics, Self::Sketches, Self::Deletions, Self::Delta, Self::DeltaDeletions];

    /// The spaces without which a start would lose data, or statements would return wrong answers.
    pub(crate) const ESSENTIAL: [Self; 9] = [
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

    /// Its name in the store and in messages.
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

/// Makes a key of one to three numbers, in order.
pub fn key(parts: &[u64]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.to_be_bytes()).collect()
}

/// The `index`-th number of a [`key`].
pub fn key_part(bytes: &[u8], index: usize) -> u64 {
    let part = bytes.get(index * 8..index * 8 + 8).and_then(|b| b.try_into().ok());
    part.map_or(0, u64::from_be_bytes)
}

/// The store that the catalog is kept in.
type DefaultStore = RedbStore;

/// The open catalog.
#[derive(Debug)]
pub struct Catalog {
    store: Box<dyn CatalogStore>,
}

impl Catalog {
    /// Opens or creates the catalog at `path`; `cache_bytes` limits the cache of its store. A catalog of the previous
    /// format version is rewritten first.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open, [`Error::UnsupportedFormat`] for another version,
    /// [`Error::Corrupt`] for a damaged one.
    pub fn open(files: &dyn FileSystem, path: &Path, cache_bytes: usize) -> Result<Self> {
        DefaultStore::open(files, path, cache_bytes, WhenEmpty::Initialise).map(Self::from_store)
    }

    /// Like [`Catalog::open`], but an empty catalog counts as damaged.
    pub fn open_existing(files: &dyn FileSystem, path: &Path, cache_bytes: usize) -> Result<Self> {
        DefaultStore::open(files, path, cache_bytes, WhenEmpty::Refuse).map(Self::from_store)
    }

    /// Opens the catalog at `path` without ever writing the file: repairs made while opening it, and commits, stay in
    /// memory. A catalog of the previous format version is read without rewriting it.
    ///
    /// # Errors
    /// Like [`Catalog::open`]; [`Error::Io`] when there is no catalog.
    pub fn open_read_only(path: &Path, cache_bytes: usize) -> Result<Self> {
        DefaultStore::open_read_only(path, cache_bytes).map(Self::from_store)
    }

    fn from_store(store: impl CatalogStore + 'static) -> Self {
        Self { store: Box::new(store) }
    }

    /// False for a catalog of the previous format version, whose values have no checksums.
    pub fn is_sealed(&self) -> bool {
        self.store.is_sealed()
    }

    /// Path of its file.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Reads all of a catalog and compares its pages with their checksums, without changing the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a page is damaged; otherwise like [`Catalog::open_read_only`].
    pub fn verify(path: &Path, cache_bytes: usize) -> Result<()> {
        DefaultStore::verify(path, cache_bytes)
    }

    /// Reads all values that answers of statements depend on, and compares them with their checksums.
    ///
    /// # Errors
    /// [`Error::Corrupt`] that names the first damaged value, and what to do; the log has the others.
    pub fn refuse_damage(&self) -> Result<()> {
        let faults = self.snapshot()?.faults(&Space::ESSENTIAL);
        let needed: Vec<&CatalogFault> = faults.iter().filter(|fault| !fault.is_expendable()).collect();
        for fault in faults.iter().skip(1) {
            tracing::error!(%fault, path = %self.path().display(), "the catalog is damaged");
        }
        needed.first().map_or(Ok(()), |fault| Err(fault.error(self.path())))
    }

    /// Makes changes durable; returns after the fsync.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] or [`Error::Corrupt`] when they are not durable.
    pub fn commit(&self, commit: Commit) -> Result<()> {
        self.submit(commit).wait()
    }

    /// Queues changes: commits become durable in the order in which they are submitted, and none after one that failed.
    pub(crate) fn submit(&self, commit: Commit) -> PendingCommit {
        self.store.submit(commit)
    }

    /// Like [`Catalog::submit`], with a number for [`Catalog::durable`].
    pub fn submit_numbered(&self, mut commit: Commit, number: u64) -> PendingCommit {
        commit.number = Some(number);
        self.store.submit(commit)
    }

    /// The number of the last numbered commit that is durable.
    pub fn durable(&self) -> Option<u64> {
        self.store.durable()
    }

    /// The reason why writes are refused; `None` while they are not.
    pub fn failure(&self) -> Option<Error> {
        self.store.failure()
    }

    /// Reopens the store after a write failed; writes stay refused until [`Catalog::resume`].
    ///
    /// # Errors
    /// The reason why it cannot be written yet.
    pub fn reopen(&self, files: &dyn FileSystem) -> Result<()> {
        self.store.reopen(files)
    }

    /// Accepts writes again. Commits submitted before are refused, as they build on the failed one.
    pub fn resume(&self) {
        self.store.resume();
    }

    /// A snapshot of the state after the last commit.
    ///
    /// # Errors
    /// [`Error::Catalog`] while the store cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.store.snapshot()
    }

    /// Like [`Catalog::snapshot`], but reads from the disk only, not from pages that the server has in memory.
    ///
    /// # Errors
    /// Like [`Catalog::open_read_only`].
    pub fn snapshot_on_disk(&self) -> Result<Snapshot> {
        self.store.snapshot_on_disk()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// Like [`Snapshot::get`].
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.store.get(space, key)
    }

    /// Calls `visit` with each key that starts with `prefix`, in order, until it returns false.
    ///
    /// # Errors
    /// Like [`Snapshot::get`], and those of `visit`.
    pub fn scan(&self, space: Space, prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.store.scan(space, prefix, &mut visit)
    }

    /// Like [`Catalog::scan`], from the last key to the first.
    ///
    /// # Errors
    /// Like [`Catalog::scan`].
    pub fn scan_back(
        &self,
        space: Space,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.store.scan_back(space, prefix, &mut visit)
    }
}
