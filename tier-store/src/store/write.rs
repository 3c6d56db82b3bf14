//! Changes of table versions: inserts, seals, bulk publishes, creating and dropping tables.
//!
//! Order of every change: write files and fsync them, commit the catalog, publish the version. A crash before the
//! commit leaves orphan files, which the next start removes; after it, everything is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use roaring::RoaringBitmap;
use terrace_model::{ChunkId, Error, MarkId, Result, TableId, TableName, TierId};
use terrace_storage::catalog::records::{TableRecord, encode};
use terrace_storage::catalog::{Commit, Space, key};
use terrace_storage::io::WritingStatement;
use terrace_storage::table::delta::{DeltaEntry, Moved};
use terrace_storage::table::mark::MarkedRows;
use terrace_storage::table::{
    Arrangement, DeltaRows, Durability, NewChunks, RowMap, Rules, Table, TableDefinition, TableStatistics,
};
use terrace_storage::tier::codec;

use super::commit::TableWrites;
use super::core::Core;
use super::draft::Draft;
use super::unique;
use crate::store::ingest::{ChunkOrigin, SealedChunk, write_chunk};

/// Rows in the order in which they are written, and their division into chunks.
pub(super) struct ArrangedRows<'a> {
    pub(super) rows: &'a RecordBatch,
    /// The marks that the chunks get: one bit for each row.
    pub(super) marks: &'a [(MarkId, BooleanArray)],
    /// Number of rows of each chunk.
    pub(super) chunk_rows: &'a [u32],
}

impl Core {
    /// Makes a table that exists in memory only, until [`Core::publish_table`].
    pub(super) fn new_table(&self, mut definition: TableDefinition, replace: bool) -> Result<Arc<Table>> {
        definition.schema = Arc::new(stored_schema(&definition.schema));
        definition.options.format = definition.options.format.or(Some(self.file_format));
        definition.check()?;
        if !replace && self.tables.read().contains_key(&definition.name) {
            return Err(Error::AlreadyExists { kind: "table", name: definition.name.to_string() });
        }
        let id = TableId(self.next_table.fetch_add(1, Ordering::Relaxed));
        let statistics = TableStatistics::stored(&definition, &self.catalog, id, std::iter::empty());
        Ok(Arc::new(Table::new(id, definition, Vec::new(), statistics, Vec::new(), Rules::default())))
    }

    /// Commits a new table with its chunks; with `replace` the same commit drops the old table of that name.
    pub(super) fn publish_table(
        &self,
        table: &Arc<Table>,
        sealed: Vec<SealedChunk>,
        replace: bool,
        statement: &WritingStatement,
    ) -> Result<()> {
        unique::check_new_table(self, table, &sealed, statement)?;
        let _ddl = self.ddl.lock();
        let old = self.tables.read().get(table.name()).cloned();
        let mut commit = Commit::default();
        match &old {
            Some(_) if !replace => {
                return Err(Error::AlreadyExists { kind: "table", name: table.name().to_string() });
            }
            Some(old) => delete_table_records(old, &mut commit),
            None => {}
        }
        let record = TableRecord::new(table.definition())?;
        self.descriptions.write(table.id(), &record)?;
        commit.put(Space::Tables, key(&[table.id().0]), encode(&record)?);
        self.sync_names(&sealed)?;
        let submitted = {
            let mut replaced = old.as_ref().map(|old| old.lock_head());
            let mut head = table.lock_head();
            let mut draft = Draft::new(self, table, &head)?;
            sealed.into_iter().for_each(|chunk| draft.add_chunk(chunk, None));
            let next = draft.finish(&mut commit)?;
            head.version = Arc::clone(&next.version);
            if let Some(replaced) = &mut replaced {
                replaced.dropped = true;
            }
            self.submit(commit, vec![(Arc::clone(table), next)])
        };
        self.complete(submitted)?;
        self.tables.write().insert(table.name().clone(), Arc::clone(table));
        self.schema_changed();
        if let Some(old) = old {
            self.mark_table_for_deletion(&old);
        }
        Ok(())
    }

    pub(super) fn drop_table(&self, name: &TableName) -> Result<()> {
        let _ddl = self.ddl.lock();
        let table = self.table(name)?;
        let mut commit = Commit::default();
        delete_table_records(&table, &mut commit);
        let submitted = {
            let mut head = table.lock_head();
            head.dropped = true;
            self.submit(commit, Vec::new())
        };
        self.complete(submitted)?;
        self.tables.write().remove(name);
        self.schema_changed();
        self.mark_table_for_deletion(&table);
        Ok(())
    }

    /// Removes the description of a dropped table, and lets its files be deleted with their last reader.
    fn mark_table_for_deletion(&self, table: &Table) {
        self.descriptions.remove(table.id());
        table.version().chunks.iter().for_each(|entry| entry.chunk.mark_for_deletion(&self.home));
    }

    pub(super) fn insert(&self, table: &Arc<Table>, batches: &[RecordBatch]) -> Result<u64> {
        let Some(rows) = self.delta_rows(table, batches)? else { return Ok(0) };
        let count = rows.live_rows();
        self.commit(vec![TableWrites { delta: vec![rows], ..TableWrites::new(table) }])?;
        Ok(count)
    }

    /// Makes a delta entry of rows, charged but not yet part of the table; `None` without rows.
    pub(super) fn delta_rows(&self, table: &Arc<Table>, batches: &[RecordBatch]) -> Result<Option<DeltaRows>> {
        batches.iter().try_for_each(|batch| table.check_rows(batch))?;
        let batch = codec::normalize(&concat_batches(table.schema(), batches)?)?;
        if batch.num_rows() == 0 {
            return Ok(None);
        }
        let entry = Arc::new(self.charge_delta(table, batch)?);
        Ok(Some(DeltaRows { entry, deletions: None }))
    }

    /// Charges the delta account for rows; when it is full, seals this table, and then others, the largest first, until there is
    /// room.
    fn charge_delta(&self, table: &Arc<Table>, batch: RecordBatch) -> Result<DeltaEntry> {
        let now = self.clock.now_us();
        let sequence = table.allocate_delta();
        let charge = |batch: &RecordBatch| DeltaEntry::charged(&self.delta, sequence, batch.clone(), now);
        let full = match charge(&batch) {
            Err(full @ Error::BudgetExceeded { .. }) => full,
            done => return done,
        };
        let mut failed = None;
        let others = self.unsealed_tables().into_iter().map(|(_, other)| other);
        for other in std::iter::once(Arc::clone(table)).chain(others) {
            // A table that cannot be sealed must not refuse rows of another table that have room.
            failed = failed.or(self.seal(&other).err());
            match charge(&batch) {
                Err(Error::BudgetExceeded { .. }) => {}
                done => return done,
            }
        }
        Err(failed.unwrap_or(full))
    }

    /// The tables with unsealed rows and the bytes of these, the largest first.
    fn unsealed_tables(&self) -> Vec<(u64, Arc<Table>)> {
        let mut tables: Vec<_> =
            self.tables().into_iter().map(|table| (table.version().delta_bytes(), table)).collect();
        tables.retain(|(bytes, _)| *bytes > 0);
        tables.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        tables
    }

    /// Once unsealed rows take three quarters of their memory, seals table by table, the largest first, until they take half of
    /// it. So a statement finds room, unless rows come faster than the disk takes them: a write buffer between two marks,
    /// where hStorage-DB (section 5.3.2, rule 4) flushes all of it. False when a table could not be sealed.
    pub(super) fn seal_to_low_mark(&self) -> bool {
        let limit_bytes = self.delta.limit_bytes();
        let (high_bytes, low_bytes) = (limit_bytes - limit_bytes / 4, limit_bytes / 2);
        // The account has what compaction holds besides.
        if self.delta.used_bytes() < high_bytes {
            return true;
        }
        let tables = self.unsealed_tables();
        let mut unsealed_bytes: u64 = tables.iter().map(|(bytes, _)| *bytes).sum();
        if unsealed_bytes < high_bytes {
            return true;
        }
        let mut all_sealed = true;
        for (bytes, table) in tables {
            if unsealed_bytes <= low_bytes {
                break;
            }
            match self.seal(&table) {
                Ok(()) => unsealed_bytes -= bytes,
                Err(error) => {
                    all_sealed = false;
                    tracing::warn!(table = %table.name(), %error, "cannot seal a delta; it stays in DRAM and is tried again");
                }
            }
        }
        all_sealed
    }

    /// Seals the present delta entries of a table. Rows inserted meanwhile stay in the delta; rows deleted meanwhile
    /// stay deleted.
    pub(super) fn seal(&self, table: &Arc<Table>) -> Result<()> {
        self.seal_for(table, &WritingStatement::default())
    }

    /// The same for a statement that waits for it.
    pub(super) fn seal_for(&self, table: &Arc<Table>, statement: &WritingStatement) -> Result<()> {
        let _sealing = table.lock_sealing();
        let delta = Arc::clone(&table.version().delta);
        if delta.is_empty() || table.lock_head().dropped {
            return Ok(());
        }
        let live = delta.iter().map(live_batch).collect::<Result<Vec<_>>>()?;
        let sealed = self.write_chunks(table, &live, statement)?;
        self.sync_names(&sealed)?;
        let chunks = NewChunks::from_chunks(sealed.iter().map(|sealed| sealed.chunk.as_ref()));
        let mut first = 0;
        let map = |rows: &DeltaRows| {
            let map = RowMap { chunks: Arc::clone(&chunks), first, dropped: rows.deletions.clone(), sorted: None };
            first += rows.live_rows();
            map
        };
        let maps: Vec<RowMap> = delta.iter().map(map).collect();
        let submitted = {
            let mut head = table.lock_head();
            if head.dropped {
                // The table was altered or dropped meanwhile, so the rows do not belong to it any more.
                return Ok(());
            }
            let mut draft = Draft::new(self, table, &head)?;
            let mut late: HashMap<ChunkId, RoaringBitmap> = HashMap::new();
            for (rows, map) in delta.iter().zip(&maps) {
                let moved = map.translate(&draft.deleted_since(rows)).unwrap_or_default();
                moved.into_iter().for_each(|(new, rows)| *late.entry(new.chunk).or_default() |= rows);
                draft.remove_sealed(&rows.entry);
            }
            for chunk in sealed {
                let deletions = late.remove(&chunk.chunk.id).map(Arc::new);
                draft.add_chunk(chunk, deletions);
            }
            let mut commit = Commit::default();
            let next = draft.finish(&mut commit)?;
            head.version = Arc::clone(&next.version);
            for (rows, map) in delta.iter().zip(maps) {
                // Besides this only a fold sets it, and the sealing lock keeps the two apart.
                rows.entry.moved.set(Moved::Sealed(map));
            }
            self.submit(commit, vec![(Arc::clone(table), next)])
        };
        self.complete(submitted)
    }

    /// Writes rows of a statement as chunks that are not yet part of the table; they start on the tier of the table's
    /// admission.
    pub(super) fn write_chunks(
        &self,
        table: &Table,
        batches: &[RecordBatch],
        statement: &WritingStatement,
    ) -> Result<Vec<SealedChunk>> {
        let all = concat_batches(table.schema(), batches)?;
        let chunk_rows = Arrangement::in_current_order(all.num_rows(), table.options().chunk_rows).chunk_rows;
        let rows = ArrangedRows { rows: &all, marks: &[], chunk_rows: &chunk_rows };
        self.write_derived_chunks(table, &rows, ChunkOrigin::written_by(statement), &|_| self.admission(table))
    }

    /// Like [`Core::write_chunks`], but for rows that come from `origin`. Each column starts on the tier that `tier`
    /// gives, if rules allow it and the tier has room.
    pub(super) fn write_derived_chunks(
        &self,
        table: &Table,
        arranged: &ArrangedRows<'_>,
        origin: ChunkOrigin<'_>,
        tier: &dyn Fn(usize) -> Option<TierId>,
    ) -> Result<Vec<SealedChunk>> {
        let mut first = 0;
        let sealed = arranged.chunk_rows.iter().map(|count| {
            let start = first;
            let len = *count as usize;
            first += len;
            let marks = arranged.marks.iter().map(|(mark, bits)| (*mark, bits.slice(start, len))).collect();
            let part = MarkedRows { batches: vec![arranged.rows.slice(start, len)], marks };
            write_chunk(self, table, table.allocate_chunk(), origin, part, tier)
        });
        sealed.collect()
    }

    /// Makes the names of a table's new files durable. No commit has them yet, so no other thread waits for it.
    pub(super) fn sync_names<'a>(&self, sealed: impl IntoIterator<Item = &'a SealedChunk>) -> Result<()> {
        // All files of a table share a folder.
        let first = sealed.into_iter().next();
        first.map_or(Ok(()), |sealed| self.home.sync_names(sealed.chunk.table))
    }

    /// Seals tables whose inserts are not logged, so that a clean stop loses nothing.
    pub(super) fn seal_volatile(&self) -> Result<()> {
        let volatile = |t: &Arc<Table>| t.options().durability == Durability::None;
        self.tables().iter().filter(|t| volatile(t)).try_for_each(|t| self.seal(t))
    }

    /// Seals every delta whose oldest row is older than the seal rule allows.
    pub(super) fn seal_aged(&self) {
        let now = self.clock.now_us();
        for table in self.tables() {
            let oldest = table.version().delta.iter().map(|d| d.entry.since_us).min();
            if oldest.is_some_and(|since| now.saturating_sub(since) >= self.seal.age_us)
                && let Err(error) = self.seal(&table)
            {
                tracing::warn!(table = %table.name(), %error, "cannot seal a delta; it stays in DRAM and is tried again");
            }
        }
    }
}

/// Adds the deletion of all catalog records of a table to a commit.
fn delete_table_records(table: &Table, commit: &mut Commit) {
    let id = key(&[table.id().0]);
    commit.delete(Space::Tables, id.clone());
    commit.delete(Space::Heat, id.clone());
    commit.delete(Space::Rules, id.clone());
    for space in Space::OF_CONTENT {
        commit.delete_prefix(space, id.clone());
    }
}

/// The rows of a delta entry that are not deleted.
pub(super) fn live_batch(rows: &DeltaRows) -> Result<RecordBatch> {
    without_deleted(rows.batch(), rows.deletions.as_deref())
}

/// The rows of `batch` without those at `deleted` positions.
pub(super) fn without_deleted(batch: &RecordBatch, deleted: Option<&RoaringBitmap>) -> Result<RecordBatch> {
    match live_rows_mask(batch.num_rows(), deleted) {
        Some(live) => Ok(filter_record_batch(batch, &live)?),
        None => Ok(batch.clone()),
    }
}

/// A mask of `rows` rows, true for those not at `deleted` positions; `None` when no row is deleted.
pub(super) fn live_rows_mask(rows: usize, deleted: Option<&RoaringBitmap>) -> Option<BooleanArray> {
    deleted.map(|deleted| (0..rows as u32).map(|row| Some(!deleted.contains(row))).collect())
}

/// The schema in which a table is stored: dictionary columns become columns of their values. Metadata of clients is
/// kept except keys with the prefix `terrace.`: in a file, these name the encoding of the column.
fn stored_schema(schema: &Schema) -> Schema {
    let field = |field: &Arc<Field>| {
        let data_type = match field.data_type() {
            DataType::Dictionary(_, value) => value.as_ref().clone(),
            other => other.clone(),
        };
        let mut metadata = field.metadata().clone();
        metadata.retain(|key, _| !key.starts_with("terrace."));
        field.as_ref().clone().with_data_type(data_type).with_metadata(metadata)
    };
    Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>())
}
