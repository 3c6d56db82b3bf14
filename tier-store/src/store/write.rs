//! How versions change: inserts, seals, bulk publishes, creating and dropping tables.
//!
//! Order of every change: write files and fsync them, commit the catalog, publish the version. A crash before the commit
//! leaves orphan files, which the next start removes; after it, everything is there.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};

use super::core::Core;
use crate::catalog::records::{TableRecord, encode, encode_batches};
use crate::catalog::{ChunkRecord, Commit, Space, key};
use crate::error::{Error, Result};
use crate::table::delta::DeltaEntry;
use crate::table::ingest::{SealedChunk, write_chunk};
use crate::table::{ChunkEntry, Durability, Table, TableDefinition, TableId, TableName, TableStatistics, TableVersion};
use crate::tier::codec;

impl Core {
    /// A table that exists in memory only, until [`Core::publish_table`].
    pub(super) fn new_table(&self, mut definition: TableDefinition, replace: bool) -> Result<Arc<Table>> {
        definition.check()?;
        if !replace && self.tables.read().contains_key(&definition.name) {
            return Err(Error::AlreadyExists { kind: "table", name: definition.name.to_string() });
        }
        definition.schema = Arc::new(stored_schema(&definition.schema));
        let id = TableId(self.next_table.fetch_add(1, Ordering::Relaxed));
        let statistics = TableStatistics::empty(Arc::clone(&definition.schema));
        Ok(Arc::new(Table::new(id, definition, Vec::new(), statistics, Vec::new())))
    }

    /// Commits a new table with its chunks; with `replace` the old one of that name goes in the same commit.
    pub(super) fn publish_table(&self, table: &Arc<Table>, sealed: Vec<SealedChunk>, replace: bool) -> Result<()> {
        let _ddl = self.ddl.lock();
        let old = self.tables.read().get(table.name()).cloned();
        let mut commit = Commit::default();
        match &old {
            Some(_) if !replace => {
                return Err(Error::AlreadyExists { kind: "table", name: table.name().to_string() });
            }
            Some(old) => self.forget(old, &mut commit)?,
            None => {}
        }
        let record = TableRecord {
            name: table.name().clone(),
            schema: encode_batches(table.schema(), &[])?,
            primary_key: table.primary_key().to_vec(),
            options: table.options().clone(),
        };
        commit.put(Space::Tables, key(&[table.id().0]), encode(&record)?);
        self.commit_chunks(table, sealed, &[], commit)?;
        self.tables.write().insert(table.name().clone(), Arc::clone(table));
        self.schema_changed();
        if let Some(old) = old {
            self.doom(&old);
        }
        Ok(())
    }

    pub(super) fn drop_table(&self, name: &TableName) -> Result<()> {
        let _ddl = self.ddl.lock();
        let table = self.table(name)?;
        let mut commit = Commit::default();
        self.forget(&table, &mut commit)?;
        self.catalog.commit(commit)?;
        self.tables.write().remove(name);
        self.schema_changed();
        self.doom(&table);
        Ok(())
    }

    /// The files of a dropped table go with the last reader.
    fn doom(&self, table: &Table) {
        table.version().chunks.iter().for_each(|entry| entry.chunk.doom(&self.ssd));
    }

    /// Adds to a commit the removal of everything the catalog knows of a table.
    fn forget(&self, table: &Table, commit: &mut Commit) -> Result<()> {
        let id = key(&[table.id().0]);
        commit.delete(Space::Tables, id.clone());
        commit.delete(Space::Heat, id.clone());
        for space in [Space::Chunks, Space::Statistics, Space::Delta] {
            self.catalog.scan(space, &id, |k, _| {
                commit.delete(space, k.to_vec());
                Ok(true)
            })?;
        }
        Ok(())
    }

    pub(super) fn insert(&self, table: &Table, batches: &[RecordBatch]) -> Result<u64> {
        batches.iter().try_for_each(|batch| table.check_rows(batch))?;
        let batch = codec::normalize(&concat_batches(table.schema(), batches)?)?;
        let rows = batch.num_rows() as u64;
        if rows == 0 {
            return Ok(0);
        }
        let entry = self.charge_delta(table, batch)?;
        if table.options().durability == Durability::Full {
            let mut commit = Commit::default();
            let bytes = encode_batches(table.schema(), std::slice::from_ref(&entry.batch))?;
            commit.put(Space::Delta, key(&[table.id().0, entry.sequence]), bytes);
            self.catalog.commit(commit)?;
        }
        let version = {
            let writer = table.lock_writer();
            let old = table.version();
            let entries = old.entries.iter().cloned().chain([Arc::new(entry)]).collect();
            let new = TableVersion::new(old.number + 1, old.chunks.clone(), old.statistics.clone(), entries);
            table.publish(&writer, new);
            table.version()
        };
        let full = version.delta_rows() >= u64::from(table.options().chunk_rows);
        if full || version.delta_bytes() >= self.seal.bytes {
            self.seal(table)?;
        }
        Ok(rows)
    }

    /// Charges the delta account; when it is full, seals this table and then the others to make room.
    fn charge_delta(&self, table: &Table, batch: RecordBatch) -> Result<DeltaEntry> {
        let now = self.clock.now_us();
        let sequence = table.allocate_delta();
        let charge = |batch| DeltaEntry::charged(&self.delta, sequence, batch, now);
        match charge(batch.clone()) {
            Err(Error::BudgetExceeded { .. }) => {
                self.seal(table)?;
                for other in self.tables() {
                    self.seal(&other)?;
                }
                charge(batch)
            }
            done => done,
        }
    }

    /// Seals the delta that is there now. Rows inserted meanwhile stay in the delta.
    pub(super) fn seal(&self, table: &Table) -> Result<()> {
        let _sealing = table.lock_sealing();
        let entries = table.version().entries.clone();
        if entries.is_empty() {
            return Ok(());
        }
        let batches: Vec<RecordBatch> = entries.iter().map(|e| e.batch.clone()).collect();
        let all = concat_batches(table.schema(), &batches)?;
        let rows = table.options().chunk_rows as usize;
        let sealed = (0..all.num_rows()).step_by(rows).map(|start| {
            let part = all.slice(start, rows.min(all.num_rows() - start));
            write_chunk(self, table, table.allocate_chunk(), &[part])
        });
        let sealed = sealed.collect::<Result<Vec<_>>>()?;
        let sequences: Vec<u64> = entries.iter().map(|e| e.sequence).collect();
        self.publish_chunks(table, sealed, &sequences)
    }

    /// Seals tables whose inserts are not logged, so that a clean stop loses nothing.
    pub(super) fn seal_volatile(&self) -> Result<()> {
        let volatile = |t: &Arc<Table>| t.options().durability == Durability::None;
        self.tables().iter().filter(|t| volatile(t)).try_for_each(|t| self.seal(t))
    }

    /// Seals every delta whose oldest row is older than the rule says.
    pub(super) fn seal_aged(&self) {
        let now = self.clock.now_us();
        for table in self.tables() {
            let oldest = table.version().entries.iter().map(|e| e.since_us).min();
            if oldest.is_some_and(|since| now.saturating_sub(since) >= self.seal.age_us)
                && let Err(error) = self.seal(&table)
            {
                tracing::warn!(table = %table.name(), %error, "cannot seal a delta; it stays in DRAM and is tried again");
            }
        }
    }

    /// Commits chunks of an existing table, replacing the delta entries `sealed_entries`.
    pub(super) fn publish_chunks(&self, table: &Table, sealed: Vec<SealedChunk>, sealed_entries: &[u64]) -> Result<()> {
        let _ddl = self.ddl.lock();
        let current = self.tables.read().get(table.name()).map(|t| t.id());
        if current != Some(table.id()) {
            return Err(Error::NotFound { kind: "table", name: table.name().to_string() });
        }
        self.commit_chunks(table, sealed, sealed_entries, Commit::default())
    }

    fn commit_chunks(
        &self,
        table: &Table,
        sealed: Vec<SealedChunk>,
        sealed_entries: &[u64],
        mut commit: Commit,
    ) -> Result<()> {
        let writer = table.lock_writer();
        let old = table.version();
        let (chunks, bounds): (Vec<_>, Vec<_>) = sealed.into_iter().map(|s| (s.chunk, s.statistics)).unzip();
        let (statistics, groups) = old.statistics.extended(&bounds)?;
        for chunk in &chunks {
            let record = ChunkRecord {
                file: self.ssd.relative(&chunk.path)?,
                file_bytes: chunk.file_bytes,
                rows: chunk.rows,
                homes: chunk.segments.iter().map(|s| s.home.clone()).collect(),
            };
            commit.put(Space::Chunks, key(&[table.id().0, chunk.id.0]), encode(&record)?);
        }
        for (group, batch) in groups {
            let bytes = encode_batches(&batch.schema(), std::slice::from_ref(&batch))?;
            commit.put(Space::Statistics, key(&[table.id().0, group]), bytes);
        }
        for sequence in sealed_entries {
            commit.delete(Space::Delta, key(&[table.id().0, *sequence]));
        }
        // Also after a failure: whether the commit reached the disk is known at the next start, which removes orphans.
        chunks.iter().for_each(|chunk| chunk.keep());
        self.catalog.commit(commit)?;
        let added = chunks.into_iter().map(|chunk| ChunkEntry { chunk, deletions: None });
        let chunks: Vec<ChunkEntry> = old.chunks.iter().cloned().chain(added).collect();
        let gone: HashSet<u64> = sealed_entries.iter().copied().collect();
        let entries = old.entries.iter().filter(|e| !gone.contains(&e.sequence)).cloned().collect();
        let version = TableVersion::new(old.number + 1, chunks.into(), Arc::new(statistics), entries);
        table.publish(&writer, version);
        Ok(())
    }
}

/// Dictionaries are stored as their values; metadata of clients is not kept.
fn stored_schema(schema: &Schema) -> Schema {
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Dictionary(_, value) => Field::new(field.name(), value.as_ref().clone(), field.is_nullable()),
        other => Field::new(field.name(), other.clone(), field.is_nullable()),
    };
    Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>())
}
