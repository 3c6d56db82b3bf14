//! Enforced primary keys: no two live rows of a table have the same key.
//!
//! ```text
//! statement   compares the new rows among themselves, and with all others that the transaction sees
//! commit      compares the new rows with rows that others committed since: first without blocking writers, then
//!             the few that are left under the lock of the head
//! ALTER       compares all rows among themselves, in the same two steps
//! ```
//!
//! Rows of a version that was compared can only be deleted later, so they are not compared again.
//!
//! - `comparison`: finds keys that occur twice
//! - `tests`: tests of enforced keys

mod comparison;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use comparison::{Comparison, GIVEN_TWICE, Item, ItemRows, NOT_UNIQUE, hull};
use terrace_model::Result;
use terrace_storage::io::WritingStatement;
use terrace_storage::table::key::{Key, KeyRange};
use terrace_storage::table::{ChunkEntry, DeltaRows, Table, TableStatistics, TableVersion};

use super::commit::TableWrites;
use super::core::Core;
use super::draft::Draft;
use crate::store::ingest::SealedChunk;

/// Number of comparisons without blocking writers before the one under the lock.
const ROUNDS: usize = 2;

/// The chunks and delta entries of a version or of a draft.
#[derive(Clone, Copy)]
pub(super) struct Content<'a> {
    pub(super) chunks: &'a [ChunkEntry],
    pub(super) delta: &'a [DeltaRows],
    pub(super) statistics: &'a TableStatistics,
}

impl<'a> Content<'a> {
    pub(super) fn for_version(version: &'a TableVersion) -> Self {
        Self { chunks: &version.chunks, delta: &version.delta, statistics: &version.statistics }
    }
}

/// The position of a chunk or a delta entry in a [`Content`].
#[derive(Clone, Copy)]
pub(super) enum ItemPosition {
    Chunk(usize),
    Delta(usize),
}

/// The items of `content` at positions for which `wanted` is true, without those that cannot have a key in `range`.
fn items(
    key: &Key,
    content: Content<'_>,
    range: Option<&KeyRange>,
    wanted: impl Fn(ItemPosition) -> bool,
) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut chunks = content.chunks.iter().enumerate().filter(|(at, _)| wanted(ItemPosition::Chunk(*at))).peekable();
    if chunks.peek().is_some() {
        let ranges = key.version_ranges(content.statistics)?;
        for (at, entry) in chunks {
            if entry.live_rows() > 0
                && range.is_none_or(|range| ranges.overlaps(at, range))
                && let Some(range) = ranges.get(at)
            {
                items.push(Item { rows: ItemRows::Chunk(entry.clone()), range });
            }
        }
    }
    for (_, rows) in content.delta.iter().enumerate().filter(|(at, _)| wanted(ItemPosition::Delta(*at))) {
        if rows.live_rows() > 0
            && let Some(own) = rows.entry.key_range(key)?
            && range.is_none_or(|range| range.overlaps(own))
        {
            items.push(Item { rows: ItemRows::Delta(rows.clone()), range: own.clone() });
        }
    }
    Ok(items)
}

/// Compares the rows of `seen` at positions for which `new` is true, among themselves and with all other rows of
/// `seen`.
///
/// # Errors
/// [`terrace_model::Error::DuplicateKey`].
pub(super) fn check_statement(
    core: &Core,
    table: &Table,
    seen: &TableVersion,
    new: impl Fn(ItemPosition) -> bool,
    statement: &WritingStatement,
) -> Result<()> {
    let Some(key) = Key::enforced(table.definition())? else { return Ok(()) };
    let new_items = items(&key, Content::for_version(seen), None, &new)?;
    let Some(hull) = hull(&new_items) else { return Ok(()) };
    let old = items(&key, Content::for_version(seen), Some(&hull), |at| !new(at))?;
    Comparison::new(core, &key, Some(GIVEN_TWICE), statement).run(&new_items, &old)
}

/// The keys of the new rows of a commit, and the version that they were compared with.
#[derive(Debug)]
pub(super) struct NewKeys {
    key: Key,
    new: Vec<Item>,
    hull: KeyRange,
    /// The version that was compared with; `None`: the new rows were not compared at all, not even among themselves.
    known: Option<Arc<TableVersion>>,
    statement: Arc<WritingStatement>,
}

impl NewKeys {
    /// The keys of the new rows; `None` when the table enforces no key, and without new rows.
    pub(super) fn from_writes(writes: &TableWrites) -> Result<Option<Self>> {
        let Some(key) = Key::enforced(writes.table.definition())? else { return Ok(None) };
        let mut new = Vec::with_capacity(writes.chunks.len() + writes.delta.len());
        for (sealed, deletions) in &writes.chunks {
            new.push(Item::of_sealed(&key, sealed, deletions.clone())?);
        }
        for rows in &writes.delta {
            if let Some(range) = rows.entry.key_range(&key)?.cloned() {
                new.push(Item { rows: ItemRows::Delta(rows.clone()), range });
            }
        }
        new.retain(|item| item.live_rows() > 0);
        let Some(hull) = hull(&new) else { return Ok(None) };
        let statement = Arc::clone(&writes.statement);
        Ok(Some(Self { key, new, hull, known: writes.compared.clone(), statement }))
    }

    /// Compares without blocking other writers, so that few rows are left to compare under the lock of the head.
    pub(super) fn prepare(&mut self, core: &Core, writes: &TableWrites) -> Result<()> {
        for _ in 0..ROUNDS {
            // Applying the deletions follows rows to their present chunks, so no row may move: take the lock.
            let locked = writes.table.lock_head();
            let head = locked.clone();
            if self.known.as_ref().is_some_and(|known| Arc::ptr_eq(known, &head.version)) {
                return Ok(());
            }
            let mut draft = Draft::new(core, &writes.table, &head)?;
            writes.deleted.iter().try_for_each(|(holder, rows)| draft.delete(holder, rows))?;
            drop(locked);
            self.compare(core, &draft)?;
        }
        Ok(())
    }

    /// Compares with the rows that the draft has and the known version has not. The draft has the commit's deletions
    /// already, but not its new rows.
    pub(super) fn compare(&mut self, core: &Core, draft: &Draft<'_>) -> Result<()> {
        let known = self.known.replace(Arc::clone(draft.head()));
        let unchanged = known.as_ref().is_some_and(|known| Arc::ptr_eq(known, draft.head()));
        if unchanged {
            return Ok(());
        }
        let added = AddedItems::since(draft.content(), known.as_deref());
        let old = items(&self.key, draft.content(), Some(&self.hull), |at| added.contains(at))?;
        let duplicate_message = known.is_none().then_some(GIVEN_TWICE);
        Comparison::new(core, &self.key, duplicate_message, &self.statement).run(&self.new, &old)
    }
}

/// The check of all rows of a table when its key becomes enforced.
pub(super) struct ExistingKeys {
    key: Key,
    known: Option<Arc<TableVersion>>,
    statement: WritingStatement,
}

impl ExistingKeys {
    pub(super) fn for_table(table: &Table) -> Result<Self> {
        Ok(Self { key: Key::for_table(table.definition())?, known: None, statement: WritingStatement::default() })
    }

    /// Compares without blocking writers, so that few rows are left to compare under the lock of the head.
    pub(super) fn prepare(&mut self, core: &Core, table: &Table) -> Result<()> {
        for _ in 0..ROUNDS {
            let head = Arc::clone(&table.lock_head().version);
            self.compare(core, &head)?;
        }
        Ok(())
    }

    /// Compares the rows that `head` has and the known version has not, among themselves and with the known rows.
    pub(super) fn compare(&mut self, core: &Core, head: &Arc<TableVersion>) -> Result<()> {
        let known = self.known.replace(Arc::clone(head));
        let content = Content::for_version(head);
        let added = AddedItems::since(content, known.as_deref());
        let new = items(&self.key, content, None, |at| added.contains(at))?;
        let Some(hull) = hull(&new) else { return Ok(()) };
        let old = items(&self.key, content, Some(&hull), |at| !added.contains(at))?;
        Comparison::new(core, &self.key, Some(NOT_UNIQUE), &self.statement).run(&new, &old)
    }
}

/// Compares the rows of the chunks of a new table.
///
/// # Errors
/// [`terrace_model::Error::DuplicateKey`].
pub(super) fn check_new_table(
    core: &Core,
    table: &Table,
    sealed: &[SealedChunk],
    statement: &WritingStatement,
) -> Result<()> {
    let Some(key) = Key::enforced(table.definition())? else { return Ok(()) };
    let new = sealed.iter().map(|sealed| Item::of_sealed(&key, sealed, None)).collect::<Result<Vec<_>>>()?;
    Comparison::new(core, &key, Some(GIVEN_TWICE), statement).run(&new, &[])
}

/// The chunks and delta entries that a later version has and an earlier one has not.
struct AddedItems {
    /// For each chunk of the later version: true when it was added.
    chunks: Vec<bool>,
    /// Position of the first added delta entry.
    delta: usize,
}

impl AddedItems {
    fn since(content: Content<'_>, known: Option<&TableVersion>) -> Self {
        let Some(known) = known else { return Self { chunks: vec![true; content.chunks.len()], delta: 0 } };
        // Both lists are in the order of places; another chunk may have taken over a place.
        let mut old = known.chunks.iter().peekable();
        let mut chunks = Vec::with_capacity(content.chunks.len());
        for entry in content.chunks {
            while old.next_if(|old| old.place < entry.place).is_some() {}
            chunks.push(old.peek().is_none_or(|old| old.chunk.id != entry.chunk.id));
        }
        // New entries come after all remaining old ones.
        let mut old = known.delta.iter();
        let is_old = |rows: &DeltaRows| old.any(|old| Arc::ptr_eq(&old.entry, &rows.entry));
        let delta = content.delta.iter().map(is_old).take_while(|is_old| *is_old).count();
        Self { chunks, delta }
    }

    fn contains(&self, position: ItemPosition) -> bool {
        match position {
            ItemPosition::Chunk(at) => self.chunks.get(at).copied().unwrap_or(true),
            ItemPosition::Delta(at) => at >= self.delta,
        }
    }
}
