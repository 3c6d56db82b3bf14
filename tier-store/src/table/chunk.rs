//! Chunks and segments: an immutable slice of a table, one segment per column.
//!
//! A segment always has a *home* (its range of the chunk's Arrow IPC file) and at most one *resident* copy on a
//! byte-addressable tier. The resident handle is replaced atomically by moves; whoever loaded it before keeps reading
//! the old copy, whose charge ends with its last reader (architecture, decision 1).

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;

use super::row_map::RowMap;
use crate::heat::SegmentCounters;
use crate::io::IoFile;
use crate::tier::TierId;
use crate::tier::codec::{ColumnLayout, Encoding};
use crate::tier::ssd::SsdTier;

/// Number of a chunk within its table; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ChunkId(pub u64);

/// Where a segment's durable bytes lie in the chunk's file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Home {
    /// First byte of the column, from the start of the file; a multiple of 64.
    pub offset: u64,
    /// Bytes stored.
    pub len: u64,
    /// How they relate to the column's image in memory.
    pub encoding: Encoding,
    /// Bytes of that image.
    pub image_len: u64,
    /// How the stored bytes are cut into Arrow buffers.
    pub layout: ColumnLayout,
    /// crc32c of each 16 KiB block stored, counted from `offset`; the last block may be short.
    pub checksums: Box<[u32]>,
}

/// A resident copy: the decoded array over bytes that lie on `tier`.
#[derive(Debug)]
pub struct Resident {
    /// The byte-addressable tier it lies on.
    pub tier: TierId,
    /// The whole column of the chunk; its buffers own the tier's charge.
    pub array: ArrayRef,
    /// The image itself, for copying to another tier.
    pub bytes: crate::tier::SegmentBytes,
}

/// One column of one chunk.
#[derive(Debug)]
pub struct Segment {
    /// Durable place.
    pub home: Home,
    /// Copy on a faster tier, if any. `None`: the segment is read from its home.
    pub resident: ArcSwapOption<Resident>,
    /// Accesses since the start of the process.
    pub counters: SegmentCounters,
}

impl Segment {
    /// Bytes of its image in memory, on whichever tier: what placement weighs.
    pub fn bytes(&self) -> u64 {
        self.home.image_len
    }

    /// A segment that lies at its home only.
    pub fn new(home: Home) -> Self {
        Self { home, resident: ArcSwapOption::empty(), counters: SegmentCounters::default() }
    }
}

/// An immutable slice of a table.
#[derive(Debug)]
pub struct Chunk {
    /// The table it belongs to.
    pub table: super::TableId,
    /// Its number.
    pub id: ChunkId,
    /// Rows, at most the table's `chunk_rows`.
    pub rows: u32,
    /// Columns of the table, in order.
    pub schema: SchemaRef,
    /// Its Arrow IPC file.
    pub path: PathBuf,
    /// Size of that file.
    pub file_bytes: u64,
    /// One per column of `schema`.
    pub segments: Box<[Segment]>,
    /// The open file; opened at the first cold read.
    pub file: OnceLock<Arc<IoFile>>,
    /// Where its rows went; set when other chunks replace it.
    pub(crate) moved: OnceLock<RowMap>,
    /// Set while the chunk is not (or no longer) in the catalog: its file goes with it.
    doomed: Mutex<Option<Arc<SsdTier>>>,
}

impl Chunk {
    /// A chunk whose file is written.
    pub fn new(
        table: super::TableId,
        id: ChunkId,
        rows: u32,
        schema: SchemaRef,
        path: PathBuf,
        file_bytes: u64,
        segments: Box<[Segment]>,
    ) -> Self {
        let (file, moved, doomed) = (OnceLock::new(), OnceLock::new(), Mutex::new(None));
        Self { table, id, rows, schema, path, file_bytes, segments, file, moved, doomed }
    }

    /// The file goes when the last reader does.
    pub(crate) fn doom(&self, tier: &Arc<SsdTier>) {
        *self.doomed.lock() = Some(Arc::clone(tier));
    }

    /// The chunk is in the catalog: its file stays.
    pub(crate) fn keep(&self) {
        *self.doomed.lock() = None;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.doomed.get_mut().take().map(|tier| tier.remove(&self.path)) {
            tracing::warn!(%error, "a chunk file stays behind; the next start removes it");
        }
    }
}
