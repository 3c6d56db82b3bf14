//! Translates row positions after a delta entry was sealed or chunks were replaced by others.
//!
//! A statement on an old version names rows by their old holder (a delta entry or a chunk) and position. The old holder
//! owns a [`RowMap`], which therefore lives exactly as long as some version that contains the holder. A writer that
//! deletes rows of an old version translates their positions with it, several times if the rows moved several times.
//!
//! ```text
//!   entries       e1: r0 r1 r2   e2: r0 r1        r1 of e1 was deleted before the seal began
//!   new chunks    c7: e1.r0 e1.r2 | c8: e2.r0 e2.r1      (chunk_rows = 2)
//! ```
//!
//! A row map does not keep the new chunks alive but only their [`Forwarding`], which leads on to the chunks that
//! replaced them in turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use roaring::RoaringBitmap;
use terrace_model::ChunkId;

use super::Chunk;

/// The destination of a holder's rows, set when they move. Writers hold the lock of the table's head.
#[derive(Debug)]
pub struct Destination<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for Destination<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Destination<T> {
    /// The destination; `None` while the rows have not moved.
    pub fn get(&self) -> Option<Arc<T>> {
        self.0.lock().clone()
    }

    /// Sets the destination unless there is one already.
    pub fn set(&self, place: T) {
        self.0.lock().get_or_insert_with(|| Arc::new(place));
    }

    /// Removes the destination: the commit that moved the rows was not stored.
    pub fn clear(&self) {
        self.0.lock().take();
    }
}

/// Forwards the rows of a chunk to the chunks that replaced it; outlives the chunk.
#[derive(Debug)]
pub struct Forwarding {
    /// The chunk.
    pub chunk: ChunkId,
    /// Set when other chunks replace the chunk.
    pub moved: Destination<RowMap>,
}

impl Forwarding {
    /// Creates the forwarding of a chunk that no other chunk has replaced.
    pub(crate) fn new(chunk: ChunkId) -> Arc<Self> {
        Arc::new(Self { chunk, moved: Destination::default() })
    }
}

/// The chunks that replaced old holders, in order.
#[derive(Debug)]
pub struct NewChunks {
    chunks: Vec<Arc<Forwarding>>,
    /// Number of rows up to the end of each chunk.
    ends: Vec<u64>,
}

impl NewChunks {
    /// The new chunks, in order.
    pub fn from_chunks<'a>(chunks: impl Iterator<Item = &'a Chunk>) -> Arc<Self> {
        let mut new = Self { chunks: Vec::new(), ends: Vec::new() };
        for chunk in chunks {
            new.ends.push(new.ends.last().copied().unwrap_or(0) + u64::from(chunk.rows));
            new.chunks.push(Arc::clone(&chunk.forwarding));
        }
        Arc::new(new)
    }

    /// Finds the chunk of the row at `position`, counted over all chunks, and the row within it.
    fn locate(&self, position: u64) -> Option<(&Arc<Forwarding>, u32)> {
        let at = self.ends.partition_point(|end| *end <= position);
        let chunk = self.chunks.get(at)?;
        let first = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        Some((chunk, (position - first) as u32))
    }
}

/// Translates positions of one old holder. Its rows that were not dropped follow each other from `first` on, unless all
/// rows were sorted.
#[derive(Debug)]
pub struct RowMap {
    /// The chunks that replaced all old holders.
    pub chunks: Arc<NewChunks>,
    /// Position of the holder's first row that was not dropped, counted over the new chunks.
    pub first: u64,
    /// Rows that were deleted before the rows moved.
    pub dropped: Option<Arc<RoaringBitmap>>,
    /// The position after sorting of each of these positions; `None`: the rows were not sorted.
    pub sorted: Option<Arc<[u32]>>,
}

impl RowMap {
    /// Translates `rows` of the old holder into rows of the new chunks; `None` when one of them was deleted before.
    pub fn translate(&self, rows: &RoaringBitmap) -> Option<Vec<(Arc<Forwarding>, RoaringBitmap)>> {
        let mut moved: BTreeMap<ChunkId, (Arc<Forwarding>, RoaringBitmap)> = BTreeMap::new();
        for row in rows {
            let before = match &self.dropped {
                Some(dropped) if dropped.contains(row) => return None,
                Some(dropped) => dropped.rank(row),
                None => 0,
            };
            let position = self.first + u64::from(row) - before;
            let position = match &self.sorted {
                Some(sorted) => u64::from(*sorted.get(position as usize)?),
                None => position,
            };
            let (new, row) = self.chunks.locate(position)?;
            moved.entry(new.chunk).or_insert_with(|| (Arc::clone(new), RoaringBitmap::new())).1.insert(row);
        }
        Some(moved.into_values().collect())
    }
}
