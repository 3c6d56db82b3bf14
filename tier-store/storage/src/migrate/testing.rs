//! Chunks and a home in memory, for tests of heat, placement and moves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use parking_lot::Mutex;

use super::HomeTier;
use crate::clock::SystemClock;
use crate::error::{Error, Result};
use crate::io::blocking::BlockingEngine;
use crate::io::{BlockIo, RealFiles};
use crate::table::{Chunk, ChunkId, ColumnId, Segment, TableId};
use crate::tier::ssd::{ReadColumn, SsdTier};
use crate::tier::{Account, codec};

/// Rows of a test chunk.
pub(crate) const ROWS: usize = 1000;

/// The smallest value of a column `id`, large enough that all values take eight bytes.
pub(crate) const FIRST_ID: i64 = 1 << 40;

/// Makes a chunk with columns `id` (8,000 bytes) and `word`, and its file.
pub(crate) fn chunk(table: u64, id: u64) -> (Arc<Chunk>, Vec<u8>) {
    let ids: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|n| FIRST_ID + n + (id as i64) * 1000)));
    let words: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|n| format!("w{}", n % 7))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("word", words)]).unwrap();
    let encoded = codec::encode_chunk(&batch).unwrap();
    let segments = Segment::of_file((0..).map(ColumnId), encoded.homes);
    let bytes = encoded.bytes.len() as u64;
    let chunk = Chunk::new(TableId(table), ChunkId(id), ROWS as u32, batch.schema(), PathBuf::new(), bytes, segments);
    (Arc::new(chunk), encoded.bytes)
}

/// A home in memory.
#[derive(Debug)]
pub(crate) struct FakeHome {
    account: Arc<Account>,
    files: Mutex<HashMap<(TableId, ChunkId), Vec<u8>>>,
    /// The SSD tier that calibration measures, with its folder.
    pub(crate) disk: Option<(tempfile::TempDir, SsdTier)>,
    /// Set while reads fail as those of a broken device.
    pub(crate) fails: AtomicBool,
    /// Columns read so far.
    pub(crate) reads: AtomicU64,
    /// Calls of `read` so far, of however many columns.
    pub(crate) calls: AtomicU64,
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
    /// Makes a home that calibration can measure.
    pub(crate) fn on_disk() -> Self {
        Self::with_io(Arc::new(BlockingEngine::start()))
    }

    /// Like `on_disk`, but reads with a given I/O engine.
    pub(crate) fn with_io(io: Arc<dyn BlockIo>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Arc::new(RealFiles);
        let clock = Arc::new(SystemClock::default());
        let account = || Account::new("ssd", u64::MAX);
        let tier = SsdTier::new(folder.path(), files, io, clock, account(), account()).unwrap();
        Self { disk: Some((folder, tier)), ..Self::default() }
    }

    /// Makes a chunk and keeps its file.
    pub(crate) fn add(&self, table: u64, id: u64) -> Arc<Chunk> {
        let (chunk, file) = chunk(table, id);
        self.files.lock().insert((chunk.table, chunk.id), file);
        chunk
    }

    /// Removes the file of a chunk.
    pub(crate) fn lose(&self, chunk: &Chunk) {
        self.files.lock().remove(&(chunk.table, chunk.id));
    }

    /// Reads a whole column as a cold read does; charges `account`.
    pub(crate) fn read(&self, chunk: &Arc<Chunk>, column: usize, account: &Arc<Account>) -> ReadColumn {
        let home = &chunk.segments[column].home;
        let files = self.files.lock();
        let stored = codec::stored_bytes(home, &files[&(chunk.table, chunk.id)]).unwrap();
        let bytes = codec::unpacked(home, Buffer::from(stored), &Arc::default()).unwrap();
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

    fn device(&self) -> Option<&SsdTier> {
        self.disk.as_ref().map(|(_, tier)| tier)
    }

    fn check(&self, _chunk: &Arc<Chunk>) -> Result<()> {
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
            let bytes = codec::unpacked(home, stored, &Arc::default())?;
            Ok(ReadColumn { chunk: Arc::clone(chunk), column: *column, bytes: Some(bytes), charge: None })
        };
        columns.iter().map(column).collect()
    }
}
