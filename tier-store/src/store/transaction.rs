//! Transactions: changes of tables that only their owner sees until all of them are committed.
//!
//! For each table that it changes, a transaction has the version it started from (its *base*) and that version with its
//! own changes on top (its *view*), which its next statement reads. The view keeps the base's chunks and delta entries
//! in their places, with more deleted rows, and has its own behind them; so the difference between the two is all there
//! is to commit. Rows of its own lie in chunk files and delta entries that nobody else knows and that go with it.
//!
//! Snapshot isolation: the first committer of a deletion wins, the other gets [`Error::Conflict`]. Inserts conflict only
//! where the table enforces its key.

#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roaring::{RoaringBitmap, RoaringTreemap};

use super::Store;
use super::commit::TableWrites;
use super::draft::Holder;
use super::unique::{Place, check_statement};
use super::write::live_batch;
use crate::error::{Error, Result};
use crate::table::ingest::SealedChunk;
use crate::table::{ChunkEntry, ChunkId, ChunkStatistics, DeltaRows, NewRows, Table, TableId, TableVersion};

/// A transaction in progress. Dropping it rolls it back.
#[derive(Debug)]
pub struct Transaction {
    store: Arc<Store>,
    tables: BTreeMap<TableId, Changed>,
}

/// A state of a transaction to return to.
#[derive(Debug, Clone)]
pub struct Savepoint(BTreeMap<TableId, Changed>);

/// A table with changes of the transaction.
#[derive(Debug, Clone)]
struct Changed {
    table: Arc<Table>,
    base: Arc<TableVersion>,
    view: Arc<TableVersion>,
    /// Bounds of its own chunks.
    own: BTreeMap<ChunkId, ChunkStatistics>,
}

impl Transaction {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { store, tables: BTreeMap::new() }
    }

    /// The table with this transaction's changes; `None` while it has none there.
    pub fn view(&self, table: &Table) -> Option<Arc<TableVersion>> {
        self.tables.get(&table.id()).map(|changed| Arc::clone(&changed.view))
    }

    /// Deletes the rows at positions of `seen` and adds rows, together. `seen` is the transaction's view of the table, or,
    /// at its first change there, the version that it started from.
    ///
    /// # Errors
    /// As of [`Transaction::prepare`] and [`Change::complete`]. Nothing has changed then.
    pub fn change(
        &mut self,
        table: &Arc<Table>,
        seen: &Arc<TableVersion>,
        deleted: &RoaringTreemap,
        added: Option<NewRows>,
    ) -> Result<()> {
        let mut change = self.prepare(table, seen, deleted, added)?;
        change.complete()?;
        self.apply(change)
    }

    /// The first step of [`Transaction::change`], which is quick: a change that is not part of the transaction yet. It is to
    /// be completed, without the transaction, and then applied.
    ///
    /// # Errors
    /// [`Error::Invalid`] for positions of another version, or rows of another table.
    pub fn prepare(
        &self,
        table: &Arc<Table>,
        seen: &Arc<TableVersion>,
        deleted: &RoaringTreemap,
        added: Option<NewRows>,
    ) -> Result<Change> {
        let mut changed = match self.tables.get(&table.id()) {
            Some(changed) => changed.clone(),
            None => Changed::new(table, seen),
        };
        // Another object of the same table has other columns: rows and positions of one do not fit the other.
        let rows_of = added.as_ref().map(|rows| &rows.table);
        if !Arc::ptr_eq(&changed.table, table)
            || rows_of.is_some_and(|t| t.id() == table.id() && !Arc::ptr_eq(t, table))
        {
            let table = table.name().to_string();
            return Err(Error::Conflict { table, what: "it was altered" });
        }
        if !Arc::ptr_eq(&changed.view, seen) {
            return Err(not_seen());
        }
        if added.as_ref().is_some_and(|rows| rows.table.id() != table.id()) {
            return Err(Error::Invalid(format!("the rows were written for another table than '{}'", table.name())));
        }
        let is_empty = deleted.is_empty() && added.is_none();
        changed.delete(deleted)?;
        let old = (changed.view.chunks.len(), changed.view.delta.len());
        if let Some(rows) = added {
            changed.add(rows)?;
        }
        Ok(Change { store: Arc::clone(&self.store), seen: Arc::clone(seen), changed, old, is_empty })
    }

    /// Makes a completed change part of the transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the table was changed by another one since it was prepared.
    pub fn apply(&mut self, change: Change) -> Result<()> {
        let id = change.changed.table.id();
        let now = self.tables.get(&id).map_or(&change.changed.base, |now| &now.view);
        if !Arc::ptr_eq(now, &change.seen) {
            return Err(not_seen());
        }
        if !change.is_empty {
            self.tables.insert(id, change.changed);
        }
        Ok(())
    }

    /// True when there is something to commit.
    pub fn has_changes(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Marks the present state.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.tables.clone())
    }

    /// Returns to a state marked earlier in this transaction.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) {
        self.tables = savepoint.0;
    }

    /// Makes all changes durable, then visible, at once.
    ///
    /// # Errors
    /// [`Error::Conflict`] when another transaction deleted one of its rows first, or a table is no more; nothing has
    /// changed then, and the same work may be done again on the present state. [`Error::DuplicateKey`] when another one
    /// committed a row with the same key first.
    pub fn commit(self) -> Result<()> {
        let writes = self.tables.into_values().map(Changed::into_writes).collect::<Result<Vec<_>>>()?;
        self.store.core.commit(writes)
    }
}

/// A change of a table on its way into a transaction.
#[derive(Debug)]
pub struct Change {
    store: Arc<Store>,
    seen: Arc<TableVersion>,
    changed: Changed,
    /// Chunks and delta entries of the view without the new rows.
    old: (usize, usize),
    is_empty: bool,
}

impl Change {
    /// Does what takes time: compares the keys of the new rows where the table enforces its key, and writes many small
    /// inserts as chunks. Blocks.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`]; what writing says.
    pub fn complete(&mut self) -> Result<()> {
        if self.is_empty {
            return Ok(());
        }
        let (chunks, delta) = self.old;
        let is_new = |place: Place| match place {
            Place::Chunk(at) => at >= chunks,
            Place::Delta(at) => at >= delta,
        };
        check_statement(self.store.core(), &self.changed.table, &self.changed.view, is_new)?;
        self.changed.seal_own(&self.store)
    }
}

fn not_seen() -> Error {
    Error::Invalid("the positions are not of the version that the transaction sees".into())
}

impl Changed {
    fn new(table: &Arc<Table>, base: &Arc<TableVersion>) -> Self {
        Self { table: Arc::clone(table), base: Arc::clone(base), view: Arc::clone(base), own: BTreeMap::new() }
    }

    fn delete(&mut self, positions: &RoaringTreemap) -> Result<()> {
        if positions.is_empty() {
            return Ok(());
        }
        let view = Arc::make_mut(&mut self.view);
        let mut chunks = view.chunks.to_vec();
        let mut delta = view.delta.to_vec();
        for (item, rows) in positions.bitmaps() {
            let after_chunks = (item as usize).checked_sub(chunks.len());
            let (deletions, count) = match after_chunks {
                None => chunks.get_mut(item as usize).map(|c| (&mut c.deletions, c.chunk.rows)),
                Some(at) => delta.get_mut(at).map(|d| (&mut d.deletions, d.entry.batch.num_rows() as u32)),
            }
            .ok_or_else(|| Error::Invalid(format!("item {item} is not part of the version")))?;
            let fresh = deletions.as_ref().is_none_or(|d| d.is_disjoint(rows));
            if !fresh || rows.max().is_some_and(|last| last >= count) {
                return Err(Error::Invalid(format!("rows of item {item} are not part of the version")));
            }
            *deletions = Some(Arc::new(deletions.as_ref().map_or_else(|| rows.clone(), |d| d.as_ref() | rows)));
        }
        (view.chunks, view.delta) = (chunks.into(), delta.into());
        Ok(())
    }

    fn add(&mut self, rows: NewRows) -> Result<()> {
        self.add_chunks(rows.chunks)?;
        if let Some(rows) = rows.delta {
            let view = Arc::make_mut(&mut self.view);
            view.delta = view.delta.iter().cloned().chain([rows]).collect();
        }
        Ok(())
    }

    fn add_chunks(&mut self, sealed: Vec<SealedChunk>) -> Result<()> {
        if sealed.is_empty() {
            return Ok(());
        }
        let view = Arc::make_mut(&mut self.view);
        let mut chunks = view.chunks.to_vec();
        let mut bounds = Vec::with_capacity(sealed.len());
        for SealedChunk { chunk, statistics } in sealed {
            let place = chunks.last().map_or(0, |last| last.place + 1);
            bounds.push((place, statistics.clone()));
            self.own.insert(chunk.id, statistics);
            chunks.push(ChunkEntry { chunk, deletions: None, place });
        }
        view.statistics = Arc::new(view.statistics.changed(&BTreeSet::new(), &bounds)?.0.holding(&bounds));
        view.chunks = chunks.into();
        Ok(())
    }

    /// Writes its own delta rows as chunks once they fill one: they cannot be sealed by anybody else.
    fn seal_own(&mut self, store: &Store) -> Result<()> {
        let own = self.own_delta();
        if own.iter().map(DeltaRows::live_rows).sum::<u64>() < u64::from(self.table.options().chunk_rows) {
            return Ok(());
        }
        let live = own.iter().map(live_batch).collect::<Result<Vec<_>>>()?;
        let sealed = store.core.write_chunks(&self.table, &live)?;
        let kept = self.base.delta.len();
        let view = Arc::make_mut(&mut self.view);
        view.delta = view.delta.iter().take(kept).cloned().collect();
        self.add_chunks(sealed)
    }

    fn own_delta(&self) -> &[DeltaRows] {
        self.view.delta.get(self.base.delta.len()..).unwrap_or_default()
    }

    fn into_writes(self) -> Result<TableWrites> {
        let mut writes = TableWrites::new(&self.table);
        let base = &self.base;
        let view = &self.view;
        for (old, new) in base.chunks.iter().zip(view.chunks.iter()) {
            if let Some(rows) = newly_deleted(&old.deletions, &new.deletions) {
                writes.deleted.push((Holder::Chunk(Arc::clone(&old.chunk.whereabouts)), rows));
            }
        }
        for (old, new) in base.delta.iter().zip(view.delta.iter()) {
            if let Some(rows) = newly_deleted(&old.deletions, &new.deletions) {
                writes.deleted.push((Holder::Delta(Arc::clone(&old.entry)), rows));
            }
        }
        for entry in view.chunks.iter().skip(base.chunks.len()) {
            let unknown = || Error::Invalid("a chunk of the transaction has no bounds".into());
            let statistics = self.own.get(&entry.chunk.id).cloned().ok_or_else(unknown)?;
            let chunk = SealedChunk { chunk: Arc::clone(&entry.chunk), statistics };
            writes.chunks.push((chunk, entry.deletions.clone()));
        }
        writes.delta = self.own_delta().to_vec();
        writes.compared = Some(Arc::clone(base));
        Ok(writes)
    }
}

/// Rows that are deleted in `new` and not in `old`; `None` without such.
fn newly_deleted(old: &Option<Arc<RoaringBitmap>>, new: &Option<Arc<RoaringBitmap>>) -> Option<RoaringBitmap> {
    match (old, new) {
        (_, None) => None,
        (None, Some(new)) => Some(new.as_ref().clone()),
        (Some(old), Some(new)) if Arc::ptr_eq(old, new) => None,
        (Some(old), Some(new)) => Some(new.as_ref() - old.as_ref()),
    }
}
