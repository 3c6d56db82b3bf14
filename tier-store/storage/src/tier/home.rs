//! The home: the tier that holds every sealed byte, and what the rest of the system asks of it.
//!
//! Every sealed chunk is one file at the home; copies in memory come and go. Moves and placement need a [`HomeTier`]: a
//! name, an account, reads of whole columns. The store and the scan need a [`Home`]: cold reads, writes, deletions, the
//! list of files. Calibration needs a [`MeasuredHome`]: it writes a sample file and reads it as scans read chunks.
//! [`super::ssd::SsdTier`] is a home in a folder, [`super::object_home::ObjectHome`] one in an object store; only the code
//! that opens a data directory names them.
//!
//! A call is about a chunk or some of its columns, never about a row, and a scan makes none for columns in memory.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use terrace_model::{Account, ChunkId, Result, TableId, TierKind};

use super::reader::{Admission, ColdRead, ReadColumn, ReadGap, ReadPurpose};
use super::stored_file::StoredFile;
use crate::io::{AlignedBuffer, BlockIo, Intent, IoFile};
use crate::table::Chunk;

/// The home as moves and placement see it.
pub trait HomeTier: Send + Sync {
    /// Name shown to users.
    fn name(&self) -> &str;
    /// The account of the bytes of all files. Its limit bounds ingest, not placement.
    fn account(&self) -> &Arc<Account>;
    /// The kind of tier.
    fn kind(&self) -> TierKind {
        TierKind::Ssd
    }
    /// Describes the device in one line, by which a stored calibration is recognised.
    fn describe(&self) -> String;
    /// The same home with accounts and counters of its own, so that the reads of measurements are not counted or charged as
    /// reads of statements; `None`: it cannot be measured.
    fn for_measurements(&self) -> Option<Arc<dyn MeasuredHome>> {
        None
    }
    /// Opens the chunk's file ([`Chunk::file`]) unless it is open; its columns are not read.
    ///
    /// # Errors
    /// [`Error::Io`](terrace_model::Error::Io) for a file that is missing or cannot be read,
    /// [`Error::Corrupt`](terrace_model::Error::Corrupt) for one that was cut short or is another one.
    fn check(&self, chunk: &Chunk) -> Result<()>;
    /// Reads columns of a chunk, neighbours in the file at once, checks them against their checksums and decompresses
    /// them; one for each column, in that order. Blocks.
    ///
    /// # Errors
    /// Those of [`Self::check`]; `Corrupt` also for a wrong checksum, and from then on for every read of that column.
    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>>;
}

/// The home as the store and the scan see it. A file is immutable and complete from the moment it has its name; only
/// [`Self::replace_file`] puts another one, of the same content, in its place.
pub trait Home: HomeTier + fmt::Debug {
    /// The engine that reads its files.
    fn io(&self) -> &Arc<dyn BlockIo>;

    /// Starts to read `columns` of a chunk; the future verifies and decodes them. Of columns where that is possible and
    /// saves enough, it reads only the bytes that the `wanted` rows (ascending ranges) need; the other rows are zero or
    /// empty. A whole column that another reader reads, or has read and still holds, is shared.
    ///
    /// Returns `None` when the I/O account has no room, for [`Admission::Prefetch`] and [`Admission::Upkeep`] only.
    ///
    /// # Errors
    /// Those of [`HomeTier::check`], and the error of its first reader for a column that is known to be damaged. Errors
    /// of the device, and wrong checksums, are those of the future.
    fn read_rows(
        &self,
        chunk: &Arc<Chunk>,
        columns: &[usize],
        wanted: Option<&[Range<usize>]>,
        purpose: ReadPurpose,
    ) -> Result<Option<ColdRead>>;

    /// Like [`Self::read_rows`], for all rows and no statement.
    fn read_columns(&self, chunk: &Arc<Chunk>, columns: &[usize], admission: Admission) -> Result<Option<ColdRead>> {
        self.read_rows(chunk, columns, None, admission.into())
    }

    /// Stored bytes of a column that [`Self::read_rows`] would read; no I/O. 0 when there is no such column.
    fn bytes_to_read(&self, chunk: &Chunk, column: usize, wanted: Option<&[Range<usize>]>) -> u64;

    /// The whole file of a chunk, unverified: for checks, repairs and backups. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`](terrace_model::Error::Io) for a file that is missing or cannot be read.
    fn load_file(&self, chunk: &Chunk) -> Result<AlignedBuffer>;

    /// Writes a chunk's file for a purpose, and returns its path once its bytes are durable; its name is durable after
    /// [`Self::sync_names`]. A failure leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::BudgetExceeded`](terrace_model::Error::BudgetExceeded) when the account is full,
    /// [`Error::Io`](terrace_model::Error::Io) when the disk is, or fails.
    fn write_chunk(&self, table: TableId, chunk: ChunkId, intent: Intent, file: &AlignedBuffer) -> Result<PathBuf>;

    /// Makes the names of a table's files durable: callers do so before the commit that refers to them.
    fn sync_names(&self, table: TableId) -> Result<()>;

    /// Replaces the bytes of a chunk's file: readers of the old file finish, later readers open the new one. The old
    /// file exists until the new one is durable. Damage recorded for the old one does not count for the new one.
    fn replace_file(&self, chunk: &Chunk, bytes: &[u8]) -> Result<()>;

    /// Deletes a file and ends its charge; one that is gone already is no error. Reads under way finish. A file may wait for its
    /// deletion; it is charged, and listed, until then.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Deletes the files that wait for it, and lets none wait from now on: for a store that closes, as the next one may give
    /// a new file the name of a deleted one.
    fn end_removals(&self) {}

    /// All files at the home, in no order: also those of interrupted writes and those that are not of this store.
    fn list(&self) -> Result<Vec<StoredFile>>;

    /// Size of a file; `None` when there is none.
    fn file_bytes(&self, path: &Path) -> Result<Option<u64>>;

    /// Charges a file that existed before this process started.
    fn adopt_file(&self, path: &Path, bytes: u64);

    /// A file's name as the catalog records it: relative to the home, so that users can move the home.
    ///
    /// # Errors
    /// [`Error::Invalid`](terrace_model::Error::Invalid) for a path outside of the home.
    fn relative(&self, path: &Path) -> Result<String>;

    /// The path of a file by the name that the catalog records.
    fn absolute(&self, name: &str) -> PathBuf;

    /// The marker that says whose home it is; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::Io`](terrace_model::Error::Io) when it cannot be read.
    fn read_marker(&self) -> Result<Option<Vec<u8>>>;

    /// Writes the marker unless there is one: then it returns false. It is durable on return.
    ///
    /// # Errors
    /// [`Error::Io`](terrace_model::Error::Io) when it cannot be written.
    fn create_marker(&self, bytes: &[u8]) -> Result<bool>;

    /// The longest hole between two pieces of a file that one read includes.
    fn read_gap(&self) -> &ReadGap;

    /// Counters of reads and writes so far.
    fn counters(&self) -> &HomeCounters;
}

/// A home as calibration sees it: a place for a sample file, which is deleted by [`Home::remove`].
pub trait MeasuredHome: Home {
    /// Writes a file that belongs to no chunk, and returns its path.
    ///
    /// # Errors
    /// [`Error::Io`](terrace_model::Error::Io) when it cannot be written.
    fn write_sample(&self, name: &str, bytes: &[u8]) -> Result<PathBuf>;

    /// Opens a file for reads by [`Home::io`].
    ///
    /// # Errors
    /// [`Error::Io`](terrace_model::Error::Io) when it cannot be opened.
    fn open(&self, path: &Path) -> Result<Arc<IoFile>>;
}

/// Counters of a home since the start of the process.
#[derive(Debug, Default)]
pub struct HomeCounters {
    /// Cold reads finished.
    pub reads: AtomicU64,
    /// Bytes of the blocks that they read.
    pub read_bytes: AtomicU64,
    /// Time in which statements waited for cold reads, in microseconds.
    pub wait_us: AtomicU64,
    /// Bytes of chunk files written.
    pub written_bytes: AtomicU64,
    /// Reads that found damage.
    pub corrupt: AtomicU64,
    /// Files that were repaired.
    pub healed: AtomicU64,
}
