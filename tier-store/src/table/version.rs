//! Table versions: what a statement sees, fixed when it starts.

use std::sync::Arc;

use arrow::array::RecordBatch;
use roaring::RoaringBitmap;

use super::delta::DeltaEntry;
use super::{Chunk, TableStatistics};

/// A chunk as one version sees it.
#[derive(Debug, Clone)]
pub struct ChunkEntry {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Deleted row positions within the chunk; `None` when no row is deleted.
    pub deletions: Option<Arc<RoaringBitmap>>,
}

impl ChunkEntry {
    /// Rows that are not deleted.
    pub fn live_rows(&self) -> u64 {
        u64::from(self.chunk.rows) - self.deletions.as_ref().map_or(0, |d| d.len())
    }
}

/// An immutable snapshot of a table.
#[derive(Debug, Clone)]
pub struct TableVersion {
    /// Grows by one with each commit.
    pub number: u64,
    /// Sealed chunks in order of sealing.
    pub chunks: Arc<[ChunkEntry]>,
    /// Recent inserts, in DRAM; always scanned. Every batch has the table's schema.
    pub delta: Arc<[RecordBatch]>,
    /// The inserts behind `delta`, which hold its charge.
    pub(crate) entries: Arc<[Arc<DeltaEntry>]>,
    /// Bounds of the chunks' columns, in the order of `chunks`.
    pub statistics: Arc<TableStatistics>,
}

impl TableVersion {
    pub(crate) fn new(
        number: u64,
        chunks: Arc<[ChunkEntry]>,
        statistics: Arc<TableStatistics>,
        entries: Vec<Arc<DeltaEntry>>,
    ) -> Self {
        let delta = entries.iter().map(|e| e.batch.clone()).collect();
        Self { number, chunks, delta, entries: entries.into(), statistics }
    }

    /// Bytes of the delta in DRAM.
    pub fn delta_bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.bytes()).sum()
    }

    /// Rows of the delta.
    pub fn delta_rows(&self) -> u64 {
        self.delta.iter().map(|b| b.num_rows() as u64).sum()
    }

    /// Rows a full scan returns.
    pub fn live_rows(&self) -> u64 {
        self.chunks.iter().map(ChunkEntry::live_rows).sum::<u64>() + self.delta_rows()
    }

    /// True when some row of some chunk is deleted.
    pub fn has_deletions(&self) -> bool {
        self.chunks.iter().any(|c| c.deletions.is_some())
    }
}
