//! Transactions: changes of tables that are visible only to their owner until all of them are committed.
//!
//! For each table that it changes, a transaction has the version it started from (its *base*) and that version with the
//! transaction's changes on top (its *view*), which its next statement reads. The view keeps the base's chunks and delta entries
//! in their positions, with more deleted rows, and appends its own; so a commit writes the difference between the
//! two. The new rows lie in chunk files and delta entries that no other transaction sees and that are deleted with the
//! transaction.
//!
//! Snapshot isolation: the first committer of a deletion wins, the other gets [`Error::Conflict`]. Inserts conflict
//! only where the table enforces its key.

#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roaring::{RoaringBitmap, RoaringTreemap};
use terrace_model::{ChunkId, Error, Result, TableId};
use terrace_storage::io::WritingStatement;
use terrace_storage::table::{ChunkEntry, ChunkStatistics, DeltaRows, Table, TableVersion};

use super::Store;
use super::commit::TableWrites;
use super::draft::RowHolder;
use super::unique::{ItemPosition, check_statement};
use super::write::live_batch;
use crate::store::ingest::{NewRows, SealedChunk};

/// A transaction in progress. Dropping it rolls it back.
#[derive(Debug)]
pub struct Transaction {
    store: Arc<Store>,
    tables: BTreeMap<TableId, ChangedTable>,
}

/// A state of a transaction that it can return to.
#[derive(Debug, Clone)]
pub struct Savepoint(BTreeMap<TableId, ChangedTable>);

/// A table with changes of the transaction.
#[derive(Debug, Clone)]
struct ChangedTable {
    table: Arc<Table>,
    base: Arc<TableVersion>,
    view: Arc<TableVersion>,
    /// Bounds of its own chunks.
    own_bounds: BTreeMap<ChunkId, ChunkStatistics>,
    /// The last statement that added rows.
    statement: Arc<WritingStatement>,
}

impl Transaction {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { store, tables: BTreeMap::new() }
    }

    /// The table with this transaction's changes; `None` without changes of the table.
    pub fn view(&self, table: &Table) -> Option<Arc<TableVersion>> {
        self.tables.get(&table.id()).map(|changed| Arc::clone(&changed.view))
    }

    /// Deletes the rows at positions of `seen` and adds rows, together. `seen` is the transaction's view of the table,
    /// or, at its first change of the table, the version that it started from.
    ///
    /// # Errors
    /// The errors of [`Transaction::prepare`] and [`Change::complete`]. An error changes nothing.
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

    /// The first step of [`Transaction::change`], which is fast: makes a change that is not part of the transaction
    /// yet. The caller completes it, without access to the transaction, and then applies it.
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
            None => ChangedTable::new(table, seen),
        };
        // ALTER makes a new `Table` with the same id and other columns: rows and positions of one do not fit the other.
        let rows_of = added.as_ref().map(|rows| &rows.table);
        if !Arc::ptr_eq(&changed.table, table)
            || rows_of.is_some_and(|t| t.id() == table.id() && !Arc::ptr_eq(t, table))
        {
            let table = table.name().to_string();
            return Err(Error::Conflict { table, what: "it was altered" });
        }
        if !Arc::ptr_eq(&changed.view, seen) {
            return Err(wrong_version());
        }
        if added.as_ref().is_some_and(|rows| rows.table.id() != table.id()) {
            return Err(Error::Invalid(format!("the rows were written for another table than '{}'", table.name())));
        }
        let is_empty = deleted.is_empty() && added.is_none();
        changed.delete(deleted)?;
        let old_chunks = changed.view.chunks.len();
        let old_entries = changed.view.delta.len();
        if let Some(rows) = added {
            changed.add(rows)?;
        }
        Ok(Change {
            store: Arc::clone(&self.store),
            seen: Arc::clone(seen),
            changed,
            old_chunks,
            old_entries,
            is_empty,
        })
    }

    /// Makes a completed change part of the transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] when another change of the table was applied since this one was prepared.
    pub fn apply(&mut self, change: Change) -> Result<()> {
        let id = change.changed.table.id();
        let now = self.tables.get(&id).map_or(&change.changed.base, |now| &now.view);
        if !Arc::ptr_eq(now, &change.seen) {
            return Err(wrong_version());
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

    /// Returns a savepoint of the present state.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.tables.clone())
    }

    /// Returns to an earlier savepoint of this transaction.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) {
        self.tables = savepoint.0;
    }

    /// Makes all changes durable, then visible, at once.
    ///
    /// # Errors
    /// [`Error::Conflict`] when another transaction deleted one of its rows first, or a table was dropped or altered;
    /// nothing has changed then, and the caller may repeat its work on the present state. [`Error::DuplicateKey`] when
    /// another transaction committed a row with the same key first.
    pub fn commit(self) -> Result<()> {
        let writes = self.tables.into_values().map(ChangedTable::into_writes).collect::<Result<Vec<_>>>()?;
        self.store.core.commit(writes)
    }
}

/// A change of a table that is not part of its transaction yet.
#[derive(Debug)]
pub struct Change {
    store: Arc<Store>,
    seen: Arc<TableVersion>,
    changed: ChangedTable,
    /// Number of chunks of the view before the new rows.
    old_chunks: usize,
    /// Number of delta entries of the view before the new rows.
    old_entries: usize,
    is_empty: bool,
}

impl Change {
    /// Does the slow part: compares the keys of the new rows if the table enforces its key, and writes the
    /// transaction's delta rows as chunks once they fill one. Blocks.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`]; the errors of writing.
    pub fn complete(&mut self) -> Result<()> {
        if self.is_empty {
            return Ok(());
        }
        let is_new = |position: ItemPosition| match position {
            ItemPosition::Chunk(at) => at >= self.old_chunks,
            ItemPosition::Delta(at) => at >= self.old_entries,
        };
        let ChangedTable { table, view, statement, .. } = &self.changed;
        check_statement(self.store.core(), table, view, is_new, statement)?;
        self.changed.seal_own_rows(&self.store)
    }
}

fn wrong_version() -> Error {
    Error::Invalid("the row positions belong to another version than the transaction reads".into())
}

impl ChangedTable {
    fn new(table: &Arc<Table>, base: &Arc<TableVersion>) -> Self {
        Self {
            table: Arc::clone(table),
            base: Arc::clone(base),
            view: Arc::clone(base),
            own_bounds: BTreeMap::new(),
            statement: Arc::default(),
        }
    }

    /// Marks rows of the view as deleted.
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
        self.statement = rows.statement;
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
            self.own_bounds.insert(chunk.id, statistics);
            chunks.push(ChunkEntry { chunk, deletions: None, place });
        }
        view.statistics = Arc::new(view.statistics.changed(&BTreeSet::new(), &bounds)?.0.with_own_chunks(&bounds));
        view.chunks = chunks.into();
        Ok(())
    }

    /// Writes its own delta rows as chunks once they fill one: no seal of the table sees these rows.
    fn seal_own_rows(&mut self, store: &Store) -> Result<()> {
        let own = self.own_delta();
        if own.iter().map(DeltaRows::live_rows).sum::<u64>() < u64::from(self.table.options().chunk_rows) {
            return Ok(());
        }
        let live = own.iter().map(live_batch).collect::<Result<Vec<_>>>()?;
        let sealed = store.core.write_chunks(&self.table, &live, &self.statement)?;
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
                writes.deleted.push((RowHolder::Chunk(Arc::clone(&old.chunk.forwarding)), rows));
            }
        }
        for (old, new) in base.delta.iter().zip(view.delta.iter()) {
            if let Some(rows) = newly_deleted(&old.deletions, &new.deletions) {
                writes.deleted.push((RowHolder::Delta(Arc::clone(&old.entry)), rows));
            }
        }
        for entry in view.chunks.iter().skip(base.chunks.len()) {
            let unknown = || Error::Invalid("a chunk of the transaction has no bounds".into());
            let statistics = self.own_bounds.get(&entry.chunk.id).cloned().ok_or_else(unknown)?;
            let chunk = SealedChunk { chunk: Arc::clone(&entry.chunk), statistics };
            writes.chunks.push((chunk, entry.deletions.clone()));
        }
        writes.delta = self.own_delta().to_vec();
        writes.compared = Some(Arc::clone(base));
        writes.statement = Arc::clone(&self.statement);
        Ok(writes)
    }
}

/// Rows that are deleted in `new` and not in `old`; `None` if there are none.
fn newly_deleted(old: &Option<Arc<RoaringBitmap>>, new: &Option<Arc<RoaringBitmap>>) -> Option<RoaringBitmap> {
    match (old, new) {
        (_, None) => None,
        (None, Some(new)) => Some(new.as_ref().clone()),
        (Some(old), Some(new)) if Arc::ptr_eq(old, new) => None,
        (Some(old), Some(new)) => Some(new.as_ref() - old.as_ref()),
    }
}
