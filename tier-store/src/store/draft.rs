//! The next version of a table, being made under its head's lock.
//!
//! A draft starts as the head. Rows are deleted wherever they lie by now, chunks and delta entries are added, sealed
//! entries leave; then [`Draft::finish`] gives the version and says what the catalog has to store for it. Chunks and
//! entries without a live row are left out, so that their bytes go with the last reader.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use roaring::RoaringBitmap;

use super::core::Core;
use super::rules::log_rules;
use super::unique::Content;
use crate::catalog::records::{encode, encode_batches, encode_rows};
use crate::catalog::{ChunkRecord, Commit, Space, key};
use crate::error::{Error, Result};
use crate::table::delta::{DeltaEntry, Moved};
use crate::table::ingest::SealedChunk;
use crate::table::{
    Chunk, ChunkEntry, ChunkId, ChunkStatistics, DeltaRows, Head, Marked, Table, TableVersion, Whereabouts, sketch_key,
};

/// What holds rows: a version of a table names them by it.
#[derive(Debug, Clone)]
pub(super) enum Holder {
    Chunk(Arc<Whereabouts>),
    Delta(Arc<DeltaEntry>),
}

/// A version to be committed.
#[derive(Debug)]
pub(super) struct NextVersion {
    pub(super) version: Arc<TableVersion>,
    /// Chunks that enter the catalog with it.
    pub(super) added: Vec<Arc<Chunk>>,
    /// Chunks that leave it.
    pub(super) removed: Vec<Arc<Chunk>>,
}

/// A change of a table in progress.
pub(super) struct Draft<'a> {
    core: &'a Core,
    table: &'a Table,
    head: Arc<TableVersion>,
    chunks: Vec<ChunkEntry>,
    delta: Vec<DeltaRows>,
    /// Statistics of the chunks beyond those of the head.
    bounds: Vec<ChunkStatistics>,
    /// Rows of the entries beyond those of the head, encoded; `None` for those the catalog does not hold.
    rows: Vec<Option<Vec<u8>>>,
    /// Positions in `chunks` and `delta` where rows were deleted.
    touched: (BTreeSet<usize>, BTreeSet<usize>),
    /// Positions in `chunks` of those that know other marks.
    marked: BTreeSet<usize>,
    sealed: HashSet<u64>,
    replaced: HashSet<ChunkId>,
    /// Chunks that were replaced together, and those that hold their rows now.
    heirs: Vec<(Vec<ChunkId>, Vec<ChunkId>)>,
    /// Positions by id; made when the first row is deleted.
    index: Option<(HashMap<ChunkId, usize>, HashMap<u64, usize>)>,
}

impl<'a> Draft<'a> {
    /// A draft on the head.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the table was altered, dropped or replaced.
    pub(super) fn new(core: &'a Core, table: &'a Table, head: &Head) -> Result<Self> {
        if head.dropped {
            let table = table.name().to_string();
            return Err(Error::Conflict { table, what: "it was altered, dropped or replaced" });
        }
        let head = Arc::clone(&head.version);
        let chunks = head.chunks.to_vec();
        let delta = head.delta.to_vec();
        Ok(Self {
            core,
            table,
            head,
            chunks,
            delta,
            bounds: Vec::new(),
            rows: Vec::new(),
            touched: Default::default(),
            marked: BTreeSet::new(),
            sealed: HashSet::new(),
            replaced: HashSet::new(),
            heirs: Vec::new(),
            index: None,
        })
    }

    /// Deletes rows wherever they are now.
    ///
    /// # Errors
    /// [`Error::Conflict`] when one of them is deleted already.
    pub(super) fn delete(&mut self, holder: &Holder, rows: &RoaringBitmap) -> Result<()> {
        let (of_chunk, of_entry) = match holder {
            Holder::Chunk(chunk) => (chunk.moved.get(), None),
            Holder::Delta(entry) => (None, entry.moved.get()),
        };
        let map = match of_entry.as_deref() {
            Some(Moved::Folded { into, first, dropped }) => {
                let rows = folded(rows, *first, dropped.as_deref()).ok_or_else(|| self.conflict())?;
                return self.delete(&Holder::Delta(Arc::clone(into)), &rows);
            }
            Some(Moved::Sealed(map)) => Some(map),
            None => of_chunk.as_deref(),
        };
        if let Some(map) = map {
            let places = map.follow(rows).ok_or_else(|| self.conflict())?;
            return places.into_iter().try_for_each(|(chunk, rows)| self.delete(&Holder::Chunk(chunk), &rows));
        }
        let (chunks, entries) = self.index.get_or_insert_with(|| {
            let chunks = self.chunks.iter().zip(0..).map(|(c, i)| (c.chunk.id, i));
            (chunks.collect(), self.delta.iter().zip(0..).map(|(d, i)| (d.entry.sequence, i)).collect())
        });
        let (found, touched) = match holder {
            Holder::Chunk(chunk) => {
                let at = chunks.get(&chunk.chunk).copied();
                (at.and_then(|i| Some((i, &mut self.chunks.get_mut(i)?.deletions))), &mut self.touched.0)
            }
            Holder::Delta(entry) => {
                let at = entries.get(&entry.sequence).copied();
                (at.and_then(|i| Some((i, &mut self.delta.get_mut(i)?.deletions))), &mut self.touched.1)
            }
        };
        match found {
            Some((at, deletions)) if deletions.as_ref().is_none_or(|d| d.is_disjoint(rows)) => {
                touched.insert(at);
                *deletions = Some(Arc::new(deletions.as_ref().map_or_else(|| rows.clone(), |d| d.as_ref() | rows)));
                Ok(())
            }
            _ => Err(self.conflict()),
        }
    }

    /// The version it started from.
    pub(super) fn head(&self) -> &Arc<TableVersion> {
        &self.head
    }

    /// The rows of the head without those deleted since.
    pub(super) fn content(&self) -> Content<'_> {
        let chunks = self.chunks.get(..self.head.chunks.len()).unwrap_or_default();
        let delta = self.delta.get(..self.head.delta.len()).unwrap_or_default();
        Content { chunks, delta, statistics: &self.head.statistics }
    }

    fn conflict(&self) -> Error {
        Error::Conflict {
            table: self.table.name().to_string(),
            what: "another transaction changed the same rows first",
        }
    }

    /// Rows of a sealed entry that were deleted since `seen`.
    pub(super) fn deleted_since(&self, seen: &DeltaRows) -> RoaringBitmap {
        let now = self.delta.iter().find(|d| d.entry.sequence == seen.entry.sequence);
        since(now.map(|d| &d.deletions), &seen.deletions, seen.batch().num_rows() as u32)
    }

    /// Rows of a chunk that were deleted since `seen`.
    pub(super) fn deleted_of_chunk_since(&self, seen: &ChunkEntry) -> RoaringBitmap {
        let now = self.chunks.iter().find(|c| c.chunk.id == seen.chunk.id);
        since(now.map(|c| &c.deletions), &seen.deletions, seen.chunk.rows)
    }

    /// Puts chunks in the place of others that hold the same rows.
    pub(super) fn replace(&mut self, old: &[ChunkEntry], new: Vec<(SealedChunk, Option<Arc<RoaringBitmap>>)>) {
        let last = self.chunks.iter().map(|c| c.place).max().unwrap_or(0);
        self.replaced.extend(old.iter().map(|c| c.chunk.id));
        self.heirs.push((old.iter().map(|c| c.chunk.id).collect(), new.iter().map(|(c, _)| c.chunk.id).collect()));
        // A place may have been given away since: its chunk lost its last row, and another one came to the end.
        let others = self.chunks.iter().filter(|c| !self.replaced.contains(&c.chunk.id));
        let taken: HashSet<u64> = others.map(|c| c.place).collect();
        let places = old.iter().map(|c| c.place).filter(|place| !taken.contains(place)).chain(last + 1..);
        for ((sealed, deletions), place) in new.into_iter().zip(places) {
            self.chunks.push(ChunkEntry { chunk: sealed.chunk, deletions, place });
            self.bounds.push(sealed.statistics);
        }
    }

    /// Puts chunks that know other marks in the place of those before; these, each with the one before.
    pub(super) fn change_marks(&mut self, change: impl Fn(&Chunk) -> Option<Chunk>) -> Vec<(Arc<Chunk>, Arc<Chunk>)> {
        let mut changed = Vec::new();
        for (at, entry) in self.chunks.iter_mut().enumerate() {
            if let Some(after) = change(&entry.chunk).map(Arc::new) {
                changed.push((std::mem::replace(&mut entry.chunk, Arc::clone(&after)), after));
                self.marked.insert(at);
            }
        }
        changed
    }

    /// Takes out an entry whose rows are added as chunks.
    pub(super) fn remove_sealed(&mut self, entry: &DeltaEntry) {
        self.sealed.insert(entry.sequence);
    }

    /// Adds a chunk that is written.
    pub(super) fn add_chunk(&mut self, sealed: SealedChunk, deletions: Option<Arc<RoaringBitmap>>) {
        let place = self.chunks.last().map_or(0, |last| last.place + 1);
        self.chunks.push(ChunkEntry { chunk: sealed.chunk, deletions, place });
        self.bounds.push(sealed.statistics);
    }

    /// Adds rows to the delta; `encoded` is what the catalog stores of them.
    pub(super) fn add_rows(&mut self, rows: DeltaRows, encoded: Option<Vec<u8>>) {
        self.delta.push(rows);
        self.rows.push(encoded);
    }

    /// The version, and in `commit` what has to be durable before anybody may read it.
    pub(super) fn finish(mut self, commit: &mut Commit) -> Result<NextVersion> {
        let chunks = self.finish_chunks(commit)?;
        let delta = self.finish_delta(commit)?;
        let kept: HashSet<ChunkId> = chunks.iter().map(|c| c.chunk.id).collect();
        let old = &self.head.chunks;
        let mut removed = Vec::new();
        let mut gone = BTreeSet::new();
        for entry in old.iter().filter(|c| !kept.contains(&c.chunk.id)) {
            removed.push(Arc::clone(&entry.chunk));
            gone.insert(entry.place);
        }
        let new = self.chunks.get(old.len()..).unwrap_or_default();
        let bounds = std::mem::take(&mut self.bounds);
        let new: Vec<_> = new.iter().zip(bounds).filter(|(c, _)| kept.contains(&c.chunk.id)).collect();
        self.finish_sketches(commit, &kept, &new);
        let added = new.iter().map(|(c, _)| Arc::clone(&c.chunk)).collect();
        let statistics = match new.is_empty() && gone.is_empty() {
            true => Arc::clone(&self.head.statistics),
            false => {
                let new: Vec<_> = new.into_iter().map(|(c, bounds)| (c.place, bounds)).collect();
                let (statistics, groups) = self.head.statistics.changed(&gone, &new)?;
                for (group, batch) in groups {
                    let key = self.key(group);
                    match batch {
                        Some(batch) => {
                            let bytes = encode_batches(&batch.schema(), std::slice::from_ref(&batch))?;
                            commit.put(Space::Statistics, key, bytes)
                        }
                        None => commit.delete(Space::Statistics, key),
                    };
                }
                Arc::new(statistics)
            }
        };
        let chunks = chunks.into();
        let delta = delta.into();
        // A new chunk whose rows all went meanwhile is none.
        let mut heirs = std::mem::take(&mut self.heirs);
        heirs.iter_mut().for_each(|(_, new)| new.retain(|chunk| kept.contains(chunk)));
        let rules = match self.head.rules.following(&heirs, removed.iter().map(|chunk| chunk.id)) {
            Some(rules) => {
                log_rules(commit, self.table.id(), &rules)?;
                Arc::new(rules)
            }
            None => Arc::clone(&self.head.rules),
        };
        let version = TableVersion { number: self.head.number + 1, chunks, delta, statistics, rules };
        Ok(NextVersion { version: Arc::new(version), added, removed })
    }

    /// Removes the sketches of chunks that go, then adds those of new ones, some of which take their places.
    fn finish_sketches(&self, commit: &mut Commit, kept: &HashSet<ChunkId>, new: &[(&ChunkEntry, ChunkStatistics)]) {
        let table = self.table.id();
        let old = &self.head.chunks;
        for entry in old.iter().filter(|c| !kept.contains(&c.chunk.id)) {
            for segment in entry.chunk.columns() {
                commit.delete(Space::Sketches, sketch_key(table, segment.column, entry.place));
            }
        }
        for (entry, statistics) in new {
            let columns = entry.chunk.columns().iter().map(|segment| segment.column);
            for (key, sketch) in statistics.stored_sketches(table, entry.place, columns) {
                commit.put(Space::Sketches, key, sketch);
            }
        }
    }

    fn finish_chunks(&self, commit: &mut Commit) -> Result<Vec<ChunkEntry>> {
        let mut kept = Vec::with_capacity(self.chunks.len());
        for (at, entry) in self.chunks.iter().enumerate() {
            let key = self.key(entry.chunk.id.0);
            let is_new = at >= self.head.chunks.len();
            if entry.live_rows() == 0 || self.replaced.contains(&entry.chunk.id) {
                if !is_new {
                    commit.delete(Space::Chunks, key.clone()).delete(Space::Deletions, key);
                }
                continue;
            }
            if is_new || self.marked.contains(&at) {
                commit.put(Space::Chunks, key.clone(), encode(&self.record(entry)?)?);
            }
            if let Some(deletions) = entry.deletions.as_ref().filter(|_| is_new || self.touched.0.contains(&at)) {
                commit.put(Space::Deletions, key, encode_rows(deletions)?);
            }
            kept.push(entry.clone());
        }
        kept.sort_by_key(|entry| entry.place);
        Ok(kept)
    }

    fn record(&self, entry: &ChunkEntry) -> Result<ChunkRecord> {
        let ChunkEntry { chunk, place, .. } = entry;
        let stored = || chunk.segments.iter().filter(|segment| segment.constant.is_none());
        let constant = |(mark, marked)| match marked {
            Marked::All => Some((mark, true)),
            Marked::None => Some((mark, false)),
            Marked::Some | Marked::Unknown => None,
        };
        Ok(ChunkRecord {
            file: self.core.ssd.relative(&chunk.path)?,
            file_bytes: chunk.file_bytes,
            rows: chunk.rows,
            place: *place,
            columns: stored().map(|segment| segment.column).collect(),
            homes: stored().map(|segment| segment.home.clone()).collect(),
            marks: chunk.marks().filter_map(constant).collect(),
        })
    }

    fn finish_delta(&mut self, commit: &mut Commit) -> Result<Vec<DeltaRows>> {
        let mut encoded = std::mem::take(&mut self.rows).into_iter();
        let mut kept = Vec::with_capacity(self.delta.len());
        for (at, rows) in self.delta.iter().enumerate() {
            let key = self.key(rows.entry.sequence);
            let is_new = at >= self.head.delta.len();
            let bytes = if is_new { encoded.next().flatten() } else { None };
            if rows.live_rows() == 0 || self.sealed.contains(&rows.entry.sequence) {
                // What is not logged need not be taken back, and nobody waits for the disk then.
                if !is_new && rows.entry.is_logged() {
                    commit.delete(Space::Delta, key.clone()).delete(Space::DeltaDeletions, key);
                }
                continue;
            }
            let logged = if is_new { bytes.is_some() } else { rows.entry.is_logged() };
            if let Some(bytes) = bytes {
                rows.entry.set_logged();
                commit.put(Space::Delta, key.clone(), bytes);
            }
            let touched = logged && (is_new || self.touched.1.contains(&at));
            if let Some(deletions) = rows.deletions.as_ref().filter(|_| touched) {
                commit.put(Space::DeltaDeletions, key, encode_rows(deletions)?);
            }
            kept.push(rows.clone());
        }
        Ok(kept)
    }

    fn key(&self, part: u64) -> Vec<u8> {
        key(&[self.table.id().0, part])
    }
}

/// Where rows lie that were kept, one after the other, from `first` on; `None` when one of them was dropped before.
fn folded(rows: &RoaringBitmap, first: u32, dropped: Option<&RoaringBitmap>) -> Option<RoaringBitmap> {
    let place = |row: u32| match dropped {
        Some(dropped) if dropped.contains(row) => None,
        Some(dropped) => Some(first + row - dropped.rank(row) as u32),
        None => Some(first + row),
    };
    rows.iter().map(place).collect()
}

/// Rows deleted `now` and not `before`; all rows of a holder that is gone, since only one without live rows goes.
fn since(now: Option<&Option<Arc<RoaringBitmap>>>, before: &Option<Arc<RoaringBitmap>>, rows: u32) -> RoaringBitmap {
    let mut deleted = match now {
        Some(now) => now.as_deref().cloned().unwrap_or_default(),
        None => (0..rows).collect(),
    };
    if let Some(before) = before {
        deleted -= before.as_ref();
    }
    deleted
}
