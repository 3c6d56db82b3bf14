//! Chunks and a home in memory, for the tests of heat, placement and moves; no server calls it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use parking_lot::Mutex;
use terrace_model::clock::SystemClock;
use terrace_model::{Account, ChunkId, ColumnId, Error, FileFormat, Result, TableId};

use crate::io::blocking::BlockingEngine;
use crate::io::{BlockIo, RealFiles};
use crate::table::{Chunk, Segment, WrittenFile};
use crate::tier::reader::ReadColumn;
use crate::tier::ssd::SsdTier;
use crate::tier::{HomeTier, MeasuredHome, codec};

/// Rows of a test chunk.
pub const ROWS: usize = 1000;

/// The smallest value of a column `id`, large enough that all values take eight bytes.
pub const FIRST_ID: i64 = 1 << 40;

/// Makes a chunk with columns `id` (8,000 bytes) and `word`, and its Arrow file.
pub fn chunk(table: u64, id: u64) -> (Arc<Chunk>, Vec<u8>) {
    chunk_in(table, id, FileFormat::Arrow)
}

/// Like [`chunk`], with a file of some format: `id` may be packed.
pub fn chunk_in(table: u64, id: u64, format: FileFormat) -> (Arc<Chunk>, Vec<u8>) {
    let ids: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|n| FIRST_ID + n + (id as i64) * 1000)));
    let words: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|n| format!("w{}", n % 7))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("word", words)]).unwrap();
    let encoded = codec::encode_chunk_in(&batch, format, codec::CompressionRule::Raw).unwrap();
    let segments = Segment::of_file((0..).map(ColumnId), encoded.homes);
    let bytes = encoded.bytes.len() as u64;
    let file = WrittenFile { path: PathBuf::new(), bytes, segments };
    let chunk = Chunk::new(TableId(table), ChunkId(id), ROWS as u32, batch.schema(), file);
    (Arc::new(chunk), encoded.bytes)
}

/// A home in memory.
#[derive(Debug)]
pub struct FakeHome {
    account: Arc<Account>,
    files: Mutex<HashMap<(TableId, ChunkId), Vec<u8>>>,
    /// The SSD tier that calibration measures.
    pub disk: Option<SsdTier>,
    /// Set while reads fail as those of a broken device.
    pub fails: AtomicBool,
    /// Columns read so far.
    pub reads: AtomicU64,
    /// Calls of `read` so far, of however many columns.
    pub calls: AtomicU64,
}

impl Default for FakeHome {
    fn default() -> Self {
        let reads = AtomicU64::new(0);
        let calls = AtomicU64::new(0);
        let fails = AtomicBool::new(false);
        Self { account: Account::new("ssd", u64::MAX), files: Mutex::default(), disk: None, fails, reads, calls }
    }
}

impl FakeHome {
    /// Makes a home in a folder, so that calibration can measure it.
    pub fn on_disk(folder: &Path) -> Self {
        Self::with_io(folder, Arc::new(BlockingEngine::start()))
    }

    /// Like `on_disk`, but reads with a given I/O engine.
    pub fn with_io(folder: &Path, io: Arc<dyn BlockIo>) -> Self {
        let files = Arc::new(RealFiles);
        let clock = Arc::new(SystemClock::default());
        let account = || Account::new("ssd", u64::MAX);
        let tier = SsdTier::new(folder, files, io, clock, account(), account()).unwrap();
        Self { disk: Some(tier), ..Self::default() }
    }

    /// Makes a chunk and keeps its file.
    pub fn add(&self, table: u64, id: u64) -> Arc<Chunk> {
        self.add_in(table, id, FileFormat::Arrow)
    }

    /// Makes a chunk with a file of some format, and keeps it.
    pub fn add_in(&self, table: u64, id: u64, format: FileFormat) -> Arc<Chunk> {
        let (chunk, file) = chunk_in(table, id, format);
        self.files.lock().insert((chunk.table, chunk.id), file);
        chunk
    }

    /// Removes the file of a chunk.
    pub fn lose(&self, chunk: &Chunk) {
        self.files.lock().remove(&(chunk.table, chunk.id));
    }

    /// Reads a whole column as a cold read does; charges `account`.
    pub fn read(&self, chunk: &Arc<Chunk>, column: usize, account: &Arc<Account>) -> ReadColumn {
        let home = &chunk.segments[column].home;
        let files = self.files.lock();
        let stored = codec::stored_bytes(home, &files[&(chunk.table, chunk.id)]).unwrap();
        let bytes = codec::decompressed(home, Buffer::from(stored), &Arc::default()).unwrap();
        let charge = Some(Arc::new(account.charge_always(bytes.len() as u64)));
        ReadColumn { chunk: Arc::clone(chunk), column, bytes: Some(bytes), charge }
    }
}

impl HomeTier for FakeHome {
    fn name(&self) -> &str {
        "ssd"
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn describe(&self) -> String {
        "a map".into()
    }

    fn for_measurements(&self) -> Option<Arc<dyn MeasuredHome>> {
        self.disk.as_ref()?.for_measurements()
    }

    fn check(&self, _chunk: &Chunk) -> Result<()> {
        Ok(())
    }

    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(columns.len() as u64, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::io("read", "/dev/nvme0n1", &std::io::Error::from_raw_os_error(libc::EIO)));
        }
        let files = self.files.lock();
        let file = files.get(&(chunk.table, chunk.id)).ok_or_else(|| Error::Unsupported("no such file".into()))?;
        let column = |column: &usize| {
            let home = &chunk.segments[*column].home;
            let stored = Buffer::from(&file[home.offset as usize..(home.offset + home.len) as usize]);
            let bytes = codec::decompressed(home, stored, &Arc::default())?;
            Ok(ReadColumn { chunk: Arc::clone(chunk), column: *column, bytes: Some(bytes), charge: None })
        };
        columns.iter().map(column).collect()
    }
}
