//! Enforced primary keys: no two live rows of a table have the same key.
//!
//! ```text
//! statement   the new rows among themselves, and with all others that the transaction sees
//! commit      the new rows with what others committed since: first beside the writers, until little of it is left, then
//!             that under the lock of the head
//! ALTER       all rows among themselves, in the same two steps
//! ```
//!
//! Rows of a version that is known can only become fewer, so they are not compared again.

mod comparison;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use comparison::{Comparison, Item, ItemRows, THERE, TWICE, hull};

use super::commit::TableWrites;
use super::core::Core;
use super::draft::Draft;
use crate::error::Result;
use crate::table::ingest::SealedChunk;
use crate::table::key::{Key, KeyRange};
use crate::table::{ChunkEntry, DeltaRows, Table, TableStatistics, TableVersion};

/// How often a commit compares beside other writers before it does so under the lock.
const ROUNDS: usize = 2;

/// A version's chunks and delta entries, or those of a draft.
#[derive(Clone, Copy)]
pub(super) struct Content<'a> {
    pub(super) chunks: &'a [ChunkEntry],
    pub(super) delta: &'a [DeltaRows],
    pub(super) statistics: &'a TableStatistics,
}

impl<'a> Content<'a> {
    pub(super) fn of(version: &'a TableVersion) -> Self {
        Self { chunks: &version.chunks, delta: &version.delta, statistics: &version.statistics }
    }
}

/// A chunk or a delta entry, by its position in a content.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Chunk(usize),
    Delta(usize),
}

/// The items of `content` at places that are `wanted`, without those that cannot have a key in `range`.
fn items(
    key: &Key,
    content: Content<'_>,
    range: Option<&KeyRange>,
    wanted: impl Fn(Place) -> bool,
) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut chunks = content.chunks.iter().enumerate().filter(|(at, _)| wanted(Place::Chunk(*at))).peekable();
    if chunks.peek().is_some() {
        let ranges = key.ranges_of(content.statistics)?;
        for (at, entry) in chunks {
            if entry.live_rows() > 0
                && range.is_none_or(|range| ranges.meets(at, range))
                && let Some(range) = ranges.get(at)
            {
                items.push(Item { rows: ItemRows::Chunk(entry.clone()), range });
            }
        }
    }
    for (_, rows) in content.delta.iter().enumerate().filter(|(at, _)| wanted(Place::Delta(*at))) {
        if rows.live_rows() > 0
            && let Some(own) = rows.entry.key_range(key)?
            && range.is_none_or(|range| range.meets(own))
        {
            items.push(Item { rows: ItemRows::Delta(rows.clone()), range: own.clone() });
        }
    }
    Ok(items)
}

/// Compares the rows of `seen` at places that are `new` among themselves and with all others of it.
///
/// # Errors
/// [`crate::Error::DuplicateKey`].
pub(super) fn check_statement(
    core: &Core,
    table: &Table,
    seen: &TableVersion,
    new: impl Fn(Place) -> bool,
) -> Result<()> {
    let Some(key) = Key::enforced(table.definition())? else { return Ok(()) };
    let new_items = items(&key, Content::of(seen), None, &new)?;
    let Some(hull) = hull(&new_items) else { return Ok(()) };
    let old = items(&key, Content::of(seen), Some(&hull), |place| !new(place))?;
    Comparison::new(core, &key, Some(TWICE)).run(&new_items, &old)
}

/// The keys that a commit brings, and what they have been compared with.
#[derive(Debug)]
pub(super) struct NewKeys {
    key: Key,
    new: Vec<Item>,
    hull: KeyRange,
    /// The version whose rows were compared; `None`: not even the new rows among themselves.
    known: Option<Arc<TableVersion>>,
}

impl NewKeys {
    /// `None` where no key is enforced, or no row is new.
    pub(super) fn of(writes: &TableWrites) -> Result<Option<Self>> {
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
        Ok(Some(Self { key, new, hull, known: writes.compared.clone() }))
    }

    /// Compares beside other writers, so that little is left to do under the lock of the head.
    pub(super) fn prepare(&mut self, core: &Core, writes: &TableWrites) -> Result<()> {
        for _ in 0..ROUNDS {
            // While the deletions are carried to where their rows lie, none of these may move.
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

    /// Compares with what the draft has beyond the rows that are known; it has no new rows yet, but its deletions.
    pub(super) fn compare(&mut self, core: &Core, draft: &Draft<'_>) -> Result<()> {
        let known = self.known.replace(Arc::clone(draft.head()));
        let unchanged = known.as_ref().is_some_and(|known| Arc::ptr_eq(known, draft.head()));
        if unchanged {
            return Ok(());
        }
        let fresh = Fresh::of(draft.content(), known.as_deref());
        let old = items(&self.key, draft.content(), Some(&self.hull), |place| fresh.has(place))?;
        let among = known.is_none().then_some(TWICE);
        Comparison::new(core, &self.key, among).run(&self.new, &old)
    }
}

/// The check of the rows of a table that is to enforce its key from now on.
pub(super) struct ExistingKeys {
    key: Key,
    known: Option<Arc<TableVersion>>,
}

impl ExistingKeys {
    pub(super) fn of(table: &Table) -> Result<Self> {
        Ok(Self { key: Key::of(table.definition())?, known: None })
    }

    /// Compares beside writers, so that little is left to do under the lock of the head.
    pub(super) fn prepare(&mut self, core: &Core, table: &Table) -> Result<()> {
        for _ in 0..ROUNDS {
            let head = Arc::clone(&table.lock_head().version);
            self.compare(core, &head)?;
        }
        Ok(())
    }

    /// Compares what `head` has beyond the rows that are known, among themselves and with these.
    pub(super) fn compare(&mut self, core: &Core, head: &Arc<TableVersion>) -> Result<()> {
        let known = self.known.replace(Arc::clone(head));
        let content = Content::of(head);
        let fresh = Fresh::of(content, known.as_deref());
        let new = items(&self.key, content, None, |place| fresh.has(place))?;
        let Some(hull) = hull(&new) else { return Ok(()) };
        let old = items(&self.key, content, Some(&hull), |place| !fresh.has(place))?;
        Comparison::new(core, &self.key, Some(THERE)).run(&new, &old)
    }
}

/// Compares the rows of chunks that are about to become a table.
///
/// # Errors
/// [`crate::Error::DuplicateKey`].
pub(super) fn check_new_table(core: &Core, table: &Table, sealed: &[SealedChunk]) -> Result<()> {
    let Some(key) = Key::enforced(table.definition())? else { return Ok(()) };
    let new = sealed.iter().map(|sealed| Item::of_sealed(&key, sealed, None)).collect::<Result<Vec<_>>>()?;
    Comparison::new(core, &key, Some(TWICE)).run(&new, &[])
}

/// Chunks and delta entries that a later version has and an earlier one has not.
struct Fresh {
    chunks: Vec<bool>,
    /// Entries from here on.
    delta: usize,
}

impl Fresh {
    fn of(content: Content<'_>, known: Option<&TableVersion>) -> Self {
        let Some(known) = known else { return Self { chunks: vec![true; content.chunks.len()], delta: 0 } };
        // Both are in the order of places; a place may be taken over by another chunk.
        let mut old = known.chunks.iter().peekable();
        let mut chunks = Vec::with_capacity(content.chunks.len());
        for entry in content.chunks {
            while old.next_if(|old| old.place < entry.place).is_some() {}
            chunks.push(old.peek().is_none_or(|old| old.chunk.id != entry.chunk.id));
        }
        // New entries come after all that are left of the old ones.
        let mut old = known.delta.iter();
        let is_old = |rows: &DeltaRows| old.any(|old| Arc::ptr_eq(&old.entry, &rows.entry));
        let delta = content.delta.iter().map(is_old).take_while(|is_old| *is_old).count();
        Self { chunks, delta }
    }

    fn has(&self, place: Place) -> bool {
        match place {
            Place::Chunk(at) => self.chunks.get(at).copied().unwrap_or(true),
            Place::Delta(at) => at >= self.delta,
        }
    }
}
