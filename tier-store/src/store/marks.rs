//! Marks of hot views: allocates them, records what chunks know of them, rearranges rows by them.
//!
//! A change of marks is a new version of the table in one commit, over the same files. Compactions of the table wait
//! meanwhile, so that they carry the present marks over to the new chunks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::{concat, filter};
use terrace_model::{ChunkId, Error, MarkId, Result};
use terrace_storage::catalog::{Commit, Space, key, key_part};
use terrace_storage::table::mark::ConstantMarks;
use terrace_storage::table::{Arrangement, Chunk, ChunkEntry, Marked, Segment, Table};
use terrace_storage::tier::reader::Admission;

use super::compact::Compacted;
use super::core::Core;
use super::draft::Draft;
use super::write::live_rows_mask;

/// Knowledge of all rows of a chunk: they may fulfil a mark, or none of them does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkMark {
    /// The chunk.
    pub chunk: ChunkId,
    /// The mark.
    pub mark: MarkId,
    /// True when all rows may fulfil the mark, false when none does.
    pub may_fulfil: bool,
}

pub(super) const NEXT_MARK_KEY: &[u8] = b"next_mark";

impl Core {
    /// Allocates a mark that was never used before; durable on return.
    pub(super) fn new_mark(&self) -> Result<MarkId> {
        let _allocating = self.marks.lock();
        let next = self.catalog.get(Space::Meta, NEXT_MARK_KEY)?.map_or(0, |bytes| key_part(&bytes, 0));
        let mark = u32::try_from(next).ok().filter(|mark| *mark < MarkId::COUNT);
        let mark = mark.ok_or_else(|| Error::Invalid("all ids of hot view marks are used up".into()))?;
        let mut commit = Commit::default();
        commit.put(Space::Meta, NEXT_MARK_KEY.to_vec(), key(&[next + 1]));
        self.catalog.commit(commit)?;
        Ok(MarkId(mark))
    }

    /// Records for chunks and marks whether all rows may fulfil the mark or none does; see [`super::Store::set_marks`].
    pub(super) fn set_marks(&self, table: &Arc<Table>, known: &[ChunkMark]) -> Result<u64> {
        let mut constants = ConstantMarks::default();
        let mut by_chunk: HashMap<ChunkId, BTreeMap<MarkId, Arc<Segment>>> = HashMap::new();
        for ChunkMark { chunk, mark, may_fulfil } in known {
            by_chunk.entry(*chunk).or_default().insert(*mark, constants.get(*mark, *may_fulfil));
        }
        self.change_marks(table, |chunk| {
            Some(chunk.with_added_marks(by_chunk.get(&chunk.id)?.values().cloned().collect()))
        })
    }

    /// Removes marks from all chunks of a table.
    pub(super) fn forget_marks(&self, table: &Arc<Table>, marks: &[MarkId]) -> Result<()> {
        self.change_marks(table, |chunk| chunk.without_marks(marks)).map(drop)
    }

    /// Commits a new version of the table in which `change` replaced chunks; returns the number of replaced chunks.
    fn change_marks(&self, table: &Arc<Table>, change: impl Fn(&Chunk) -> Option<Chunk>) -> Result<u64> {
        let _compacting = table.lock_compacting();
        let (submitted, changed) = {
            let mut head = table.lock_head();
            let mut draft = Draft::new(self, table, &head)?;
            let changed = draft.change_marks(change);
            if changed.is_empty() {
                return Ok(0);
            }
            let mut commit = Commit::default();
            let next = draft.finish(&mut commit)?;
            head.version = Arc::clone(&next.version);
            (self.submit(commit, vec![(Arc::clone(table), next)]), changed)
        };
        self.complete(submitted)?;
        // Release the resident copies of removed bits at once, even while readers keep the old version.
        for (before, after) in &changed {
            let is_kept = |segment: &Arc<Segment>| after.mark_segments().iter().any(|kept| Arc::ptr_eq(kept, segment));
            before.mark_segments().iter().filter(|segment| !is_kept(segment)).for_each(|s| s.resident.store(None));
        }
        Ok(changed.len() as u64)
    }

    /// One bit for each row of a chunk: whether it may fulfil a mark; all true when the chunk does not know the mark.
    pub(super) fn mark_bits(&self, chunk: &Arc<Chunk>, mark: MarkId) -> Result<BooleanArray> {
        let all = |value| BooleanArray::from(vec![value; chunk.rows as usize]);
        match (chunk.marked(mark), chunk.mark_position(mark)) {
            (Marked::Some, Some(position)) => {
                let columns = self.columns(chunk, &[position], Admission::Upkeep)?;
                let bits = columns.first().and_then(|bits| bits.as_boolean_opt()).cloned();
                bits.ok_or_else(|| Error::Invalid(format!("{} is not Boolean", chunk.column_label(position))))
            }
            (Marked::None, _) => Ok(all(false)),
            _ => Ok(all(true)),
        }
    }

    /// The marks that each chunk of a group knows, with their bits for the live rows of the group, chunk after chunk.
    pub(super) fn known_marks(&self, group: &[ChunkEntry]) -> Result<Vec<(MarkId, BooleanArray)>> {
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let known = |mark: &MarkId| group.iter().all(|entry| entry.chunk.marked(*mark) != Marked::Unknown);
        let marks = first.chunk.marks().map(|(mark, _)| mark).filter(known);
        let bits = |mark| {
            let parts = group.iter().map(|entry| self.live_bits(entry, mark)).collect::<Result<Vec<_>>>()?;
            let all = concat(&parts.iter().map(|part| part as &dyn Array).collect::<Vec<_>>())?;
            Ok((mark, all.as_boolean().clone()))
        };
        marks.map(bits).collect()
    }

    /// The bits of a mark for the live rows of a chunk.
    fn live_bits(&self, entry: &ChunkEntry, mark: MarkId) -> Result<BooleanArray> {
        let bits = self.mark_bits(&entry.chunk, mark)?;
        match live_rows_mask(bits.len(), entry.deletions.as_deref()) {
            Some(live) => Ok(filter(&bits, &live)?.as_boolean().clone()),
            None => Ok(bits),
        }
    }

    /// Rewrites a group of chunks in another arrangement; see [`super::Store::rearrange`].
    pub(super) fn rearrange(
        &self,
        table: &Arc<Table>,
        group: &[ChunkEntry],
        arrange: &dyn Fn(&RecordBatch) -> Result<Arrangement>,
    ) -> Result<Compacted> {
        let _compacting = table.lock_compacting();
        let version = table.version();
        // The present entries: rows may have been deleted since the caller read the group.
        let mut now: Vec<ChunkEntry> = Vec::with_capacity(group.len());
        for wanted in group {
            let found = version.chunks.iter().find(|entry| entry.chunk.id == wanted.chunk.id);
            let Some(found) = found else {
                let table = table.name().to_string();
                return Err(Error::Conflict { table, what: "its chunks were replaced" });
            };
            if now.iter().any(|known| known.chunk.id == found.chunk.id) {
                return Err(Error::Invalid(format!("a group contains chunk {} twice", found.chunk.id.0)));
            }
            now.push(found.clone());
        }
        if now.is_empty() { Ok(Compacted::default()) } else { self.replace_group(table, &now, arrange) }
    }
}

#[cfg(test)]
pub(super) mod tests;
