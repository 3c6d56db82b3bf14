//! Drafts: the next version of a table, made under the lock of its head.
//!
//! A draft starts as the head. Callers delete rows wherever these are now, add chunks and delta entries, and remove
//! sealed entries; then [`Draft::finish`] returns the version and adds its records to a catalog commit. Chunks and
//! entries without a live row are left out, so that their bytes are released with the last reader.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use roaring::RoaringBitmap;
use terrace_model::{ChunkId, Error, Result};
use terrace_storage::catalog::records::{encode, encode_batches, encode_rows};
use terrace_storage::catalog::{ChunkRecord, Commit, Space, key};
use terrace_storage::table::delta::{DeltaEntry, Moved};
use terrace_storage::table::{
    Chunk, ChunkEntry, ChunkStatistics, DeltaRows, Forwarding, Head, Marked, Table, TableVersion, sketch_key,
};

use super::core::Core;
use super::rules::log_rules;
use super::unique::Content;
use crate::store::ingest::SealedChunk;

/// The chunk or delta entry that held rows in some version of a table.
#[derive(Debug, Clone)]
pub(super) enum RowHolder {
    Chunk(Arc<Forwarding>),
    Delta(Arc<DeltaEntry>),
}

/// A version that is ready to be committed.
#[derive(Debug)]
pub(super) struct NextVersion {
    pub(super) version: Arc<TableVersion>,
    /// Chunks that the commit adds to the catalog.
    pub(super) added: Vec<Arc<Chunk>>,
    /// Chunks that the commit removes from the catalog.
    pub(super) removed: Vec<Arc<Chunk>>,
}

/// A change of a table in progress.
pub(super) struct Draft<'a> {
    core: &'a Core,
    table: &'a Table,
    head: Arc<TableVersion>,
    chunks: Vec<ChunkEntry>,
    delta: Vec<DeltaRows>,
    /// Statistics of the chunks added to those of the head.
    bounds: Vec<ChunkStatistics>,
    /// Encoded rows of the entries added to those of the head; `None` for entries that are not logged.
    rows: Vec<Option<Vec<u8>>>,
    /// Positions in `chunks` where rows were deleted.
    touched_chunks: BTreeSet<usize>,
    /// Positions in `delta` where rows were deleted.
    touched_entries: BTreeSet<usize>,
    /// Positions in `chunks` of chunks whose marks were changed.
    marked: BTreeSet<usize>,
    /// Sequence numbers of sealed entries.
    sealed: HashSet<u64>,
    replaced: HashSet<ChunkId>,
    /// Chunks that were replaced together, and the chunks that have their rows now.
    replacements: Vec<(Vec<ChunkId>, Vec<ChunkId>)>,
    /// Built when the first row is deleted.
    index: Option<PositionIndex>,
}

/// Positions in a draft's `chunks` and `delta`.
struct PositionIndex {
    chunks: HashMap<ChunkId, usize>,
    /// By sequence number.
    entries: HashMap<u64, usize>,
}

impl<'a> Draft<'a> {
    /// Starts a draft from the head.
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
            touched_chunks: BTreeSet::new(),
            touched_entries: BTreeSet::new(),
            marked: BTreeSet::new(),
            sealed: HashSet::new(),
            replaced: HashSet::new(),
            replacements: Vec::new(),
            index: None,
        })
    }

    /// Deletes rows, following them to where folds, seals and compactions moved them.
    ///
    /// # Errors
    /// [`Error::Conflict`] when one of them is deleted already.
    pub(super) fn delete(&mut self, holder: &RowHolder, rows: &RoaringBitmap) -> Result<()> {
        let (of_chunk, of_entry) = match holder {
            RowHolder::Chunk(chunk) => (chunk.moved.get(), None),
            RowHolder::Delta(entry) => (None, entry.moved.get()),
        };
        let map = match of_entry.as_deref() {
            Some(Moved::Folded { into, first, dropped }) => {
                let rows = rows_after_fold(rows, *first, dropped.as_deref()).ok_or_else(|| self.conflict())?;
                return self.delete(&RowHolder::Delta(Arc::clone(into)), &rows);
            }
            Some(Moved::Sealed(map)) => Some(map),
            None => of_chunk.as_deref(),
        };
        if let Some(map) = map {
            let places = map.translate(rows).ok_or_else(|| self.conflict())?;
            return places.into_iter().try_for_each(|(chunk, rows)| self.delete(&RowHolder::Chunk(chunk), &rows));
        }
        let index = self.index.get_or_insert_with(|| PositionIndex {
            chunks: self.chunks.iter().zip(0..).map(|(c, i)| (c.chunk.id, i)).collect(),
            entries: self.delta.iter().zip(0..).map(|(d, i)| (d.entry.sequence, i)).collect(),
        });
        let (found, touched) = match holder {
            RowHolder::Chunk(chunk) => {
                let at = index.chunks.get(&chunk.chunk).copied();
                (at.and_then(|i| Some((i, &mut self.chunks.get_mut(i)?.deletions))), &mut self.touched_chunks)
            }
            RowHolder::Delta(entry) => {
                let at = index.entries.get(&entry.sequence).copied();
                (at.and_then(|i| Some((i, &mut self.delta.get_mut(i)?.deletions))), &mut self.touched_entries)
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

    /// The version that the draft started from.
    pub(super) fn head(&self) -> &Arc<TableVersion> {
        &self.head
    }

    /// The rows of the head without those that the draft deleted.
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

    /// Rows of an entry that were deleted since `seen`.
    pub(super) fn deleted_since(&self, seen: &DeltaRows) -> RoaringBitmap {
        let now = self.delta.iter().find(|d| d.entry.sequence == seen.entry.sequence);
        deleted_between(now.map(|d| &d.deletions), &seen.deletions, seen.batch().num_rows() as u32)
    }

    /// Rows of a chunk that were deleted since `seen`.
    pub(super) fn deleted_of_chunk_since(&self, seen: &ChunkEntry) -> RoaringBitmap {
        let now = self.chunks.iter().find(|c| c.chunk.id == seen.chunk.id);
        deleted_between(now.map(|c| &c.deletions), &seen.deletions, seen.chunk.rows)
    }

    /// Replaces chunks by others that have the same rows.
    pub(super) fn replace(&mut self, old: &[ChunkEntry], new: Vec<(SealedChunk, Option<Arc<RoaringBitmap>>)>) {
        let last = self.chunks.iter().map(|c| c.place).max().unwrap_or(0);
        self.replaced.extend(old.iter().map(|c| c.chunk.id));
        self.replacements
            .push((old.iter().map(|c| c.chunk.id).collect(), new.iter().map(|(c, _)| c.chunk.id).collect()));
        // The place of an old chunk may belong to another chunk now: the old one lost its last row, and another chunk
        // was added at the end.
        let others = self.chunks.iter().filter(|c| !self.replaced.contains(&c.chunk.id));
        let taken: HashSet<u64> = others.map(|c| c.place).collect();
        let places = old.iter().map(|c| c.place).filter(|place| !taken.contains(place)).chain(last + 1..);
        for ((sealed, deletions), place) in new.into_iter().zip(places) {
            self.chunks.push(ChunkEntry { chunk: sealed.chunk, deletions, place });
            self.bounds.push(sealed.statistics);
        }
    }

    /// Replaces chunks by the results of `change`, which know other marks; returns pairs of the old and the new chunk.
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

    /// Removes an entry whose rows are added as chunks or as part of another entry.
    pub(super) fn remove_sealed(&mut self, entry: &DeltaEntry) {
        self.sealed.insert(entry.sequence);
    }

    /// Adds a chunk whose file is written.
    pub(super) fn add_chunk(&mut self, sealed: SealedChunk, deletions: Option<Arc<RoaringBitmap>>) {
        let place = self.chunks.last().map_or(0, |last| last.place + 1);
        self.chunks.push(ChunkEntry { chunk: sealed.chunk, deletions, place });
        self.bounds.push(sealed.statistics);
    }

    /// Adds rows to the delta; `encoded` are the bytes that the catalog stores for them, `None` when they are not
    /// logged.
    pub(super) fn add_rows(&mut self, rows: DeltaRows, encoded: Option<Vec<u8>>) {
        self.delta.push(rows);
        self.rows.push(encoded);
    }

    /// Returns the version and adds to `commit` the records that have to be durable before a reader may see it.
    pub(super) fn finish(mut self, commit: &mut Commit) -> Result<NextVersion> {
        let chunks = self.finish_chunks(commit)?;
        let delta = self.finish_delta(commit)?;
        let kept: HashSet<ChunkId> = chunks.iter().map(|c| c.chunk.id).collect();
        let old = &self.head.chunks;
        let mut removed = Vec::new();
        let mut removed_places = BTreeSet::new();
        for entry in old.iter().filter(|c| !kept.contains(&c.chunk.id)) {
            removed.push(Arc::clone(&entry.chunk));
            removed_places.insert(entry.place);
        }
        let new = self.chunks.get(old.len()..).unwrap_or_default();
        let bounds = std::mem::take(&mut self.bounds);
        let new: Vec<_> = new.iter().zip(bounds).filter(|(c, _)| kept.contains(&c.chunk.id)).collect();
        self.finish_sketches(commit, &kept, &new);
        let added = new.iter().map(|(c, _)| Arc::clone(&c.chunk)).collect();
        let statistics = match new.is_empty() && removed_places.is_empty() {
            true => Arc::clone(&self.head.statistics),
            false => {
                let new: Vec<_> = new.into_iter().map(|(c, bounds)| (c.place, bounds)).collect();
                let (statistics, groups) = self.head.statistics.changed(&removed_places, &new)?;
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
        // New chunks whose rows were all deleted meanwhile are not part of the version.
        let mut replacements = std::mem::take(&mut self.replacements);
        replacements.iter_mut().for_each(|(_, new)| new.retain(|chunk| kept.contains(chunk)));
        let rules = match self.head.rules.after_replacement(&replacements, removed.iter().map(|chunk| chunk.id)) {
            Some(rules) => {
                log_rules(commit, self.table.id(), &rules)?;
                Arc::new(rules)
            }
            None => Arc::clone(&self.head.rules),
        };
        let version = TableVersion { number: self.head.number + 1, chunks, delta, statistics, rules };
        Ok(NextVersion { version: Arc::new(version), added, removed })
    }

    /// Deletes the sketches of removed chunks, then adds those of new chunks. The order matters: new chunks may take
    /// the places of removed ones, and keys contain the place.
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
            if let Some(deletions) = entry.deletions.as_ref().filter(|_| is_new || self.touched_chunks.contains(&at)) {
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
            file: self.core.home.relative(&chunk.path)?,
            file_bytes: chunk.file_bytes,
            rows: chunk.rows,
            place: *place,
            columns: stored().map(|segment| segment.column).collect(),
            homes: stored().map(|segment| segment.home.clone()).collect(),
            marks: chunk.marks().filter_map(constant).collect(),
            packed_bytes: stored().map(|segment| segment.home.packed_bytes).collect(),
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
                // An entry that is not logged has no record to delete, so the commit may stay empty and need not wait
                // for the disk.
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
            let touched = logged && (is_new || self.touched_entries.contains(&at));
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

/// Maps rows of an entry to their rows in the entry that it was folded into: the rows that were kept follow each other
/// from `first` on. `None` when one of the rows was dropped by the fold.
fn rows_after_fold(rows: &RoaringBitmap, first: u32, dropped: Option<&RoaringBitmap>) -> Option<RoaringBitmap> {
    let place = |row: u32| match dropped {
        Some(dropped) if dropped.contains(row) => None,
        Some(dropped) => Some(first + row - dropped.rank(row) as u32),
        None => Some(first + row),
    };
    rows.iter().map(place).collect()
}

/// Rows deleted `now` and not `before`. `now` is `None` for a chunk or entry that was removed: then all of its rows
/// were deleted, since only one without live rows is removed.
fn deleted_between(
    now: Option<&Option<Arc<RoaringBitmap>>>,
    before: &Option<Arc<RoaringBitmap>>,
    rows: u32,
) -> RoaringBitmap {
    let mut deleted = match now {
        Some(now) => now.as_deref().cloned().unwrap_or_default(),
        None => (0..rows).collect(),
    };
    if let Some(before) = before {
        deleted -= before.as_ref();
    }
    deleted
}
