//! Where rows went when a delta entry was sealed or chunks were replaced by others.
//!
//! Whoever holds an old version knows rows by their old place. A [`RowMap`] hangs on the old holder (a delta entry, a
//! chunk), so it lives exactly as long as some version that knows the holder, and a writer that deletes rows of an old
//! version follows it, several times where rows moved several times.
//!
//! ```text
//!   entries       e1: r0 r1 r2   e2: r0 r1        r1 of e1 was deleted before the seal began
//!   new chunks    c7: e1.r0 e1.r2 | c8: e2.r0 e2.r1      (chunk_rows = 2)
//! ```
//!
//! The new chunks are held weakly: one that is gone has no rows left.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use roaring::RoaringBitmap;

use super::{Chunk, ChunkId};

/// The new places of one holder's rows: they follow each other from `first` on, without those that were dropped.
#[derive(Debug)]
pub(crate) struct RowMap {
    /// The chunks that all replaced holders became.
    pub(crate) chunks: Arc<[Weak<Chunk>]>,
    /// Rows of each of them but the last.
    pub(crate) chunk_rows: u32,
    /// Position of the holder's first kept row in the chunks' rows.
    pub(crate) first: u64,
    /// Rows that were deleted before the rows moved.
    pub(crate) dropped: Option<Arc<RoaringBitmap>>,
}

impl RowMap {
    /// The chunks that hold `rows` now, with the rows there; `None` when one of them is no more.
    pub(crate) fn follow(&self, rows: &RoaringBitmap) -> Option<Vec<(Arc<Chunk>, RoaringBitmap)>> {
        let mut moved: BTreeMap<ChunkId, (Arc<Chunk>, RoaringBitmap)> = BTreeMap::new();
        for row in rows {
            let before = match &self.dropped {
                Some(dropped) if dropped.contains(row) => return None,
                Some(dropped) => dropped.rank(row),
                None => 0,
            };
            let position = self.first + u64::from(row) - before;
            let (chunk, row) = (position / u64::from(self.chunk_rows), position % u64::from(self.chunk_rows));
            let chunk = self.chunks.get(chunk as usize)?.upgrade()?;
            moved.entry(chunk.id).or_insert_with(|| (chunk, RoaringBitmap::new())).1.insert(row as u32);
        }
        Some(moved.into_values().collect())
    }
}
