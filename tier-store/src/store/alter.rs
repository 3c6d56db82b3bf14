//! ALTER: changes the definition of a table, which keeps its chunk files.
//!
//! ```text
//! lock the head -> queue one commit (table, delta rows under the new columns) -> the old table takes no more writes
//! -> wait for the disk -> the new table replaces the old one
//! ```
//!
//! The chunks of the new table share segments and files with those of the old one; a new column reads its constant for
//! them. Readers of the old table continue to read its last version; its writers are refused ([`Error::Conflict`]).
//! Before a key becomes enforced, the keys of all rows are compared, without blocking writers except for the last rows.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::FieldRef;
use terrace_model::{Error, Result, TableName};
use terrace_storage::catalog::records::{TableRecord, encode, encode_batches, encode_rows};
use terrace_storage::catalog::{Commit, Space, key};
use terrace_storage::table::{
    Alteration, ChunkEntry, Column, DeltaRows, Durability, Segment, Table, TableDefinition, TableVersion,
};

use super::core::Core;
use super::rules::log_rules;
use super::unique::ExistingKeys;

impl Core {
    /// Applies changes to a table's definition; see [`super::Store::alter_table`].
    pub(super) fn alter_table(&self, name: &TableName, changes: &[Alteration]) -> Result<Arc<Table>> {
        let _ddl = self.ddl.lock();
        let old = self.table(name)?;
        let definition = old.definition().altered(changes)?;
        if definition.name != *name && self.tables.read().contains_key(&definition.name) {
            return Err(Error::AlreadyExists { kind: "table", name: definition.name.to_string() });
        }
        let enforces = definition.options.enforce_primary_key && !old.options().enforce_primary_key;
        let mut keys = if enforces { Some(ExistingKeys::for_table(&old)?) } else { None };
        keys.as_mut().map_or(Ok(()), |keys| keys.prepare(self, &old))?;
        let mut head = old.lock_head();
        let before = Arc::clone(&head.version);
        keys.map_or(Ok(()), |mut keys| keys.compare(self, &before))?;
        if !before.chunks.is_empty() || !before.delta.is_empty() {
            refuse_missing_values(old.definition(), &definition)?;
        }
        let same_columns = definition.schema == *old.schema() && same_ids(&definition, old.definition());
        let version = match same_columns {
            true => TableVersion { number: before.number + 1, ..before.as_ref().clone() },
            false => self.version_with_definition(&before, old.definition(), &definition)?,
        };
        let mut commit = Commit::default();
        commit.put(Space::Tables, key(&[old.id().0]), encode(&TableRecord::new(&definition)?)?);
        for gone in old.definition().columns.iter().filter(|c| definition.columns.iter().all(|kept| kept.id != c.id)) {
            commit.delete_prefix(Space::Sketches, key(&[old.id().0, gone.id.0.into()]));
        }
        log_delta(&mut commit, &old, &version, &definition, same_columns)?;
        if version.rules != before.rules {
            log_rules(&mut commit, old.id(), &version.rules)?;
        }
        head.dropped = true;
        let submitted = self.submit(commit, Vec::new());
        drop(head);
        self.complete(submitted)?;
        if definition.options.durability == Durability::Full {
            version.delta.iter().for_each(|rows| rows.entry.set_logged());
        }
        let table = Arc::new(old.successor(definition, version, self.clock.now_us()));
        {
            let mut tables = self.tables.write();
            tables.remove(name);
            tables.insert(table.name().clone(), Arc::clone(&table));
        }
        self.describe(&table);
        release_dropped(&before, &table);
        self.schema_changed();
        Ok(table)
    }

    /// Makes a version with the rows of `before` and the columns of another definition.
    fn version_with_definition(
        &self,
        before: &TableVersion,
        from: &TableDefinition,
        to: &TableDefinition,
    ) -> Result<TableVersion> {
        let convert = |entry: &ChunkEntry| ChunkEntry {
            chunk: Arc::new(entry.chunk.with_definition(&to.schema, &to.columns)),
            deletions: entry.deletions.clone(),
            place: entry.place,
        };
        let chunks = before.chunks.iter().map(convert).collect();
        let statistics = Arc::new(before.statistics.with_definition(to));
        let mut delta = Vec::with_capacity(before.delta.len());
        for rows in before.delta.iter() {
            let entry = Arc::new(rows.entry.with_columns(&self.delta, rows_with_definition(rows.batch(), from, to)?));
            delta.push(DeltaRows { entry, deletions: rows.deletions.clone() });
        }
        let rules = Arc::new(before.rules.with_definition(to));
        Ok(TableVersion { number: before.number + 1, chunks, delta: delta.into(), statistics, rules })
    }
}

/// Adds the delta's rows to the commit where they differ from those in the catalog, and where the catalog does not have
/// them yet but the new definition logs inserts.
fn log_delta(
    commit: &mut Commit,
    old: &Table,
    version: &TableVersion,
    definition: &TableDefinition,
    same_columns: bool,
) -> Result<()> {
    for rows in version.delta.iter() {
        let logged = rows.entry.is_logged();
        let newly_logged = !logged && definition.options.durability == Durability::Full;
        if newly_logged || (logged && !same_columns) {
            let key = key(&[old.id().0, rows.entry.sequence]);
            commit.put(Space::Delta, key.clone(), encode_batches(&definition.schema, &[rows.batch().clone()])?);
            if let Some(deletions) = &rows.deletions {
                commit.put(Space::DeltaDeletions, key, encode_rows(deletions)?);
            }
        }
    }
    Ok(())
}

fn same_ids(a: &TableDefinition, b: &TableDefinition) -> bool {
    a.columns.iter().map(|column| column.id).eq(b.columns.iter().map(|column| column.id))
}

/// Refuses a new NOT NULL column without a DEFAULT: the present rows would have no value in it.
fn refuse_missing_values(before: &TableDefinition, definition: &TableDefinition) -> Result<()> {
    let lacking = |(column, field): &(&Column, &FieldRef)| {
        let new = before.columns.iter().all(|known| known.id != column.id);
        new && !field.is_nullable() && column.missing.as_ref().is_some_and(|constant| constant.is_null())
    };
    match definition.columns.iter().zip(definition.schema.fields()).find(lacking) {
        Some((_, field)) => Err(Error::Invalid(format!(
            "column '{}' is NOT NULL and table '{}' has rows; give it a DEFAULT",
            field.name(),
            definition.name
        ))),
        None => Ok(()),
    }
}

/// Converts delta rows to the columns of another definition; columns are matched by their ids.
fn rows_with_definition(batch: &RecordBatch, from: &TableDefinition, to: &TableDefinition) -> Result<RecordBatch> {
    let mut arrays = Vec::with_capacity(to.columns.len());
    for (column, field) in to.columns.iter().zip(to.schema.fields()) {
        let known = from.columns.iter().position(|c| c.id == column.id).and_then(|at| batch.columns().get(at));
        arrays.push(match (known, &column.missing) {
            (Some(array), _) => Arc::clone(array),
            (None, Some(constant)) => constant.array(batch.num_rows())?,
            (None, None) => return Err(Error::Invalid(format!("column '{}' has no value for old rows", field.name()))),
        });
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(&to.schema), arrays, &options)?)
}

/// Releases the resident copies of dropped columns at once, even while readers keep the old table.
fn release_dropped(before: &TableVersion, new: &Table) {
    let kept = |segment: &Segment| new.definition().columns.iter().any(|column| column.id == segment.column);
    for entry in before.chunks.iter() {
        entry.chunk.segments.iter().filter(|s| !kept(s)).for_each(|s| s.resident.store(None));
    }
}

#[cfg(test)]
mod tests;
