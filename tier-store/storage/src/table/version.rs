//! Table versions: the state of a table that a statement sees, fixed when it starts.
//!
//! A row of a version has a *position*: the item it lies in (a chunk, or after the chunks a delta entry), and its row
//! there. Positions are valid for their version only; a writer translates them with the version they were read from.

use std::sync::Arc;

use arrow::array::RecordBatch;
use roaring::{RoaringBitmap, RoaringTreemap};
use terrace_model::Result;

use super::delta::DeltaEntry;
use super::{Chunk, DeltaColumn, Rules, Sketch, TableStatistics};

/// A chunk in one version.
#[derive(Debug, Clone)]
pub struct ChunkEntry {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Deleted row positions within the chunk; `None` when no row is deleted.
    pub deletions: Option<Arc<RoaringBitmap>>,
    /// Its place in the order of chunks; ascending within a version.
    pub place: u64,
}

impl ChunkEntry {
    /// Rows that are not deleted.
    #[inline]
    pub fn live_rows(&self) -> u64 {
        u64::from(self.chunk.rows) - self.deletions.as_ref().map_or(0, |d| d.len())
    }
}

/// A delta entry in one version.
#[derive(Debug, Clone)]
pub struct DeltaRows {
    /// The rows; holds their charge.
    pub entry: Arc<DeltaEntry>,
    /// Deleted rows; `None` when no row is deleted.
    pub deletions: Option<Arc<RoaringBitmap>>,
}

impl DeltaRows {
    /// All rows, the deleted ones included; the table's schema.
    #[inline]
    pub fn batch(&self) -> &RecordBatch {
        &self.entry.batch
    }

    /// Values of a column that plans need, deleted rows included.
    #[inline]
    pub fn column(&self, column: usize) -> Option<Arc<DeltaColumn>> {
        self.entry.column(column)
    }

    /// Rows that are not deleted.
    #[inline]
    pub fn live_rows(&self) -> u64 {
        self.entry.batch.num_rows() as u64 - self.deletions.as_ref().map_or(0, |d| d.len())
    }
}

/// An immutable snapshot of a table.
#[derive(Debug, Clone)]
pub struct TableVersion {
    /// Grows by one with each commit.
    pub number: u64,
    /// Sealed chunks in order of sealing.
    pub chunks: Arc<[ChunkEntry]>,
    /// Recent inserts, in DRAM; always scanned.
    pub delta: Arc<[DeltaRows]>,
    /// Bounds of the chunks' columns, in the order of `chunks`, and their distinct values.
    pub statistics: Arc<TableStatistics>,
    /// The placement rules of users.
    pub rules: Arc<Rules>,
}

impl TableVersion {
    /// Bytes of the delta in DRAM.
    pub fn delta_bytes(&self) -> u64 {
        self.delta.iter().map(|d| d.entry.bytes()).sum()
    }

    /// Rows of the delta that are not deleted.
    pub fn delta_rows(&self) -> u64 {
        self.delta.iter().map(DeltaRows::live_rows).sum()
    }

    /// Rows a full scan returns.
    pub fn live_rows(&self) -> u64 {
        self.chunks.iter().map(ChunkEntry::live_rows).sum::<u64>() + self.delta_rows()
    }

    /// Segments whose home is known to be damaged.
    pub fn damaged_segments(&self) -> usize {
        self.chunks.iter().map(|entry| entry.chunk.damaged_segments()).sum()
    }

    /// Rows that are deleted and still take their place.
    pub fn deleted_rows(&self) -> u64 {
        let chunks = self.chunks.iter().map(|c| &c.deletions);
        chunks.chain(self.delta.iter().map(|d| &d.deletions)).flatten().map(|d| d.len()).sum()
    }

    /// Estimated distinct values of a column, null not counted, with a standard error of 6.5 %; `None` when a chunk has
    /// no sketch of them. Deleted rows may count.
    pub fn distinct(&self, column: usize) -> Result<Option<f64>> {
        let Some(chunks) = self.statistics.sketch(column)? else { return Ok(None) };
        let mut all = chunks.clone();
        let mut small = Vec::new();
        for rows in self.delta.iter() {
            let Some(values) = rows.batch().columns().get(column) else { return Ok(None) };
            if rows.entry.is_small() {
                small.push(values);
                continue;
            }
            let known = rows.column(column);
            let Some(sketch) = known.as_ref().and_then(|known| known.sketch(values)) else { return Ok(None) };
            all.merge(sketch);
        }
        let Some(small) = Sketch::from_arrays(small) else { return Ok(None) };
        all.merge(&small);
        Ok(Some(all.estimate().min(self.live_rows() as f64)))
    }

    /// True when some row is deleted.
    pub fn has_deletions(&self) -> bool {
        self.chunks.iter().any(|c| c.deletions.is_some()) || self.delta.iter().any(|d| d.deletions.is_some())
    }

    /// The position of a row of an item: chunks first, then delta entries, in their order.
    #[inline]
    pub fn position(item: u32, row: u32) -> u64 {
        u64::from(item) << 32 | u64::from(row)
    }

    /// Item and row of a position.
    #[inline]
    pub fn item_and_row(position: u64) -> (u32, u32) {
        ((position >> 32) as u32, position as u32)
    }

    /// The positions of all rows that are not deleted.
    pub fn live_positions(&self) -> RoaringTreemap {
        let chunks = self.chunks.iter().map(|c| (c.chunk.rows, &c.deletions));
        let delta = self.delta.iter().map(|d| (d.entry.batch.num_rows() as u32, &d.deletions));
        let items = chunks.chain(delta).zip(0..).map(|((rows, deleted), item)| {
            let mut live = RoaringBitmap::new();
            live.insert_range(..rows);
            if let Some(deleted) = deleted {
                live -= deleted.as_ref();
            }
            (item, live)
        });
        RoaringTreemap::from_bitmaps(items)
    }
}
