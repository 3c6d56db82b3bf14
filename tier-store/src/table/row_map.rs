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
use std::sync::Arc;

use parking_lot::Mutex;
use roaring::RoaringBitmap;

use super::{Chunk, ChunkId};

/// Where the rows of a holder went, once they did. Written under the head's lock of the table.
#[derive(Debug)]
pub(crate) struct Destination<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for Destination<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Destination<T> {
    /// Where they went; `None` while they are where they were.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        self.0.lock().clone()
    }

    /// They go somewhere; the first place is the one that counts.
    pub(crate) fn set(&self, place: T) {
        self.0.lock().get_or_insert_with(|| Arc::new(place));
    }

    /// They did not: what moved them was not stored.
    pub(crate) fn clear(&self) {
        self.0.lock().take();
    }
}

/// A chunk's name, and where its rows went; outlives the chunk.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    /// The chunk.
    pub(crate) chunk: ChunkId,
    /// Set when other chunks replace it.
    pub(crate) moved: Destination<RowMap>,
}

impl Whereabouts {
    pub(crate) fn of(chunk: ChunkId) -> Arc<Self> {
        Arc::new(Self { chunk, moved: Destination::default() })
    }
}

/// The chunks that holders became, one behind the other.
#[derive(Debug)]
pub(crate) struct NewChunks {
    chunks: Vec<Arc<Whereabouts>>,
    /// Rows up to the end of each.
    ends: Vec<u64>,
}

impl NewChunks {
    pub(crate) fn of<'a>(chunks: impl Iterator<Item = &'a Chunk>) -> Arc<Self> {
        let mut new = Self { chunks: Vec::new(), ends: Vec::new() };
        for chunk in chunks {
            new.ends.push(new.ends.last().copied().unwrap_or(0) + u64::from(chunk.rows));
            new.chunks.push(Arc::clone(&chunk.whereabouts));
        }
        Arc::new(new)
    }

    /// The chunk that has the row at a position of all rows, and where.
    fn at(&self, position: u64) -> Option<(&Arc<Whereabouts>, u32)> {
        let at = self.ends.partition_point(|end| *end <= position);
        let chunk = self.chunks.get(at)?;
        let first = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        Some((chunk, (position - first) as u32))
    }
}

/// The new places of one holder's rows: they follow each other from `first` on, without those that were dropped, unless
/// they were sorted anew.
#[derive(Debug)]
pub(crate) struct RowMap {
    /// What all replaced holders became.
    pub(crate) chunks: Arc<NewChunks>,
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
            let (new, row) = self.chunks.at(position)?;
            moved.entry(new.chunk).or_insert_with(|| (Arc::clone(new), RoaringBitmap::new())).1.insert(row);
        }
        Some(moved.into_values().collect())
    }
}
