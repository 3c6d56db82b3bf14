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
//! Of a new chunk only its [`Whereabouts`] are held, which say where its rows went when it was replaced in its turn.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use roaring::RoaringBitmap;

use super::ChunkId;

/// A chunk's name, and where its rows went; outlives the chunk.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    /// The chunk.
    pub(crate) chunk: ChunkId,
    /// Set when other chunks replace it.
    pub(crate) moved: OnceLock<RowMap>,
}

impl Whereabouts {
    pub(crate) fn of(chunk: ChunkId) -> Arc<Self> {
        Arc::new(Self { chunk, moved: OnceLock::new() })
    }
}

/// The new places of one holder's rows: they follow each other from `first` on, without those that were dropped, unless
/// they were sorted anew.
#[derive(Debug)]
pub(crate) struct RowMap {
    /// The chunks that all replaced holders became.
    pub(crate) chunks: Arc<[Arc<Whereabouts>]>,
    /// Rows of each of them but the last.
    pub(crate) chunk_rows: u32,
    /// Position of the holder's first kept row in the chunks' rows.
    pub(crate) first: u64,
    /// Rows that were deleted before the rows moved.
    pub(crate) dropped: Option<Arc<RoaringBitmap>>,
    /// Where the row at each of these positions went when all of them were sorted.
    pub(crate) sorted: Option<Arc<[u32]>>,
}

impl RowMap {
    /// The chunks that took `rows` over, with the rows there; `None` when one of the rows was deleted before.
    pub(crate) fn follow(&self, rows: &RoaringBitmap) -> Option<Vec<(Arc<Whereabouts>, RoaringBitmap)>> {
        let mut moved: BTreeMap<ChunkId, (Arc<Whereabouts>, RoaringBitmap)> = BTreeMap::new();
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
            let (chunk, row) = (position / u64::from(self.chunk_rows), position % u64::from(self.chunk_rows));
            let new = self.chunks.get(chunk as usize)?;
            moved.entry(new.chunk).or_insert_with(|| (Arc::clone(new), RoaringBitmap::new())).1.insert(row as u32);
        }
        Some(moved.into_values().collect())
    }
}
