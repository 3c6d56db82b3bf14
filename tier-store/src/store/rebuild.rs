//! Rebuilds a catalog from the files of a data directory.
//!
//! The descriptions ([`super::description`]) name the tables, the chunk files have their rows; each file is verified by
//! its stamp. Checksums, bounds and sketches are computed again. The old catalog is moved aside, never deleted.
//!
//! Everything that only the catalog has is lost: rows not yet sealed, deletions of rows, the history of epochs and
//! moves, heat, the marks of hot views. Views, external tables and placement rules are taken from the old catalog where
//! it can still be read ([`OldCatalog`]). A chunk file that was written but not committed, or replaced but not yet
//! deleted, when the server died becomes part of the new catalog: nothing in the files distinguishes it from others. So
//! rebuild only without a good catalog and without a backup. The report counts these rows where the old catalog has
//! them. Because deleted rows may come back, keys are no longer enforced.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use serde::Serialize;
use terrace_model::{ChunkId, ColumnId, Error, Result, TableId};
use terrace_storage::catalog::records::{encode, encode_batches};
use terrace_storage::catalog::{Catalog, ChunkRecord, Commit, Space, TableRecord, key};
use terrace_storage::io::IoFile;
use terrace_storage::io::files::{FileSystem, RealFiles};
use terrace_storage::table::column::ids_of;
use terrace_storage::table::{ChunkStatistics, Constant, SegmentHome, TableDefinition, TableStatistics};
use terrace_storage::tier::codec::{self, ChunkHeader};
use terrace_storage::tier::ssd::files;
use terrace_storage::tier::stored_file::StoredFile;

use super::check::{Progress, Watch};
use super::description::{Descriptions, FoundDescription};
use super::heal::batch_with_rows;
use super::home_place::{HomePlace, SSD_FOLDER};
use super::marks::NEXT_MARK_KEY;
use super::old_catalog::OldCatalog;
use super::recovery::{CATALOG_FILE, NEXT_TABLE_KEY};
use super::rules::log_rules;

const CACHE_BYTES: usize = 32 << 20;

/// A table of the rebuilt catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RebuiltTable {
    /// Schema and name.
    pub table: String,
    /// Sealed chunks.
    pub chunks: u64,
    /// Rows of these chunks, deleted ones included.
    pub rows: u64,
    /// Bytes of their files.
    pub file_bytes: u64,
    /// Differences from the rows of the old catalog; `None` when it cannot be read.
    pub difference: Option<Difference>,
    /// True when its key was enforced before: it no longer is, because deleted rows may have come back.
    pub key_released: bool,
}

/// Differences between the rows of a table after a rebuild and those in the old catalog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Deleted rows that come back.
    pub undeleted_rows: u64,
    /// Rows that come back, or appear for the first time, with files that the old catalog does not name: files of
    /// unfinished loads, and of chunks that were rewritten.
    pub unnamed_rows: u64,
    /// Rows that are lost because they were not yet sealed, so that no file has them.
    pub lost_rows: u64,
    /// Rows that are lost because their files are missing or damaged.
    pub missing_rows: u64,
}

/// A file that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedFile {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

/// Result of a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RebuildReport {
    /// The tables, by number.
    pub tables: Vec<RebuiltTable>,
    /// Files that are not part of the new catalog.
    pub skipped: Vec<SkippedFile>,
    /// Rows of tables of the old catalog that are not found at all; `None` when it cannot be read.
    pub rows_of_lost_tables: Option<u64>,
    /// Named objects, such as views, that could be read from the old catalog.
    pub objects: u64,
    /// Path that the old catalog was moved to; `None` when there was none, or nothing was changed.
    pub old_catalog: Option<PathBuf>,
    /// False when the rebuild was only a dry run.
    pub written: bool,
}

/// Reads all files of a data directory; with `write`, makes a catalog from them that replaces the old one.
///
/// # Errors
/// [`Error::Locked`] while a server uses the directory, [`Error::NotFound`] when there is none, [`Error::Io`]. After an
/// error the old catalog is still in its place.
pub fn rebuild_catalog(data_dir: &Path, write: bool, now_unix_us: u64, watch: Watch<'_>) -> Result<RebuildReport> {
    if !data_dir.join(SSD_FOLDER).is_dir() {
        return Err(Error::not_found("data directory", data_dir.display().to_string()));
    }
    let home = HomePlace::recorded_folder(&RealFiles, data_dir)?;
    let old = OldCatalog::read(data_dir)?;
    refuse_holder(data_dir)?;
    let mut found = FoundFiles { home, tables: BTreeMap::new(), skipped: Vec::new() };
    old.damaged.iter().for_each(|what| found.skip(data_dir.join(CATALOG_FILE), what));
    found.read_descriptions(data_dir)?;
    found.read_chunks(watch)?;
    let mut report = RebuildReport {
        tables: found.tables.iter().map(|(id, table)| table.report(*id, &old)).collect(),
        rows_of_lost_tables: old.rows_not_found(|table, _| found.tables.contains_key(&table)),
        objects: old.objects.len() as u64,
        old_catalog: None,
        written: false,
        skipped: Vec::new(),
    };
    if write {
        let path = data_dir.join(format!("{CATALOG_FILE}.new"));
        write_catalog(&path, &found.tables, old, now_unix_us)?;
        report.old_catalog = put_in_place(data_dir, &path, now_unix_us)?;
        report.written = true;
    }
    report.skipped = found.skipped;
    Ok(report)
}

/// Refuses a directory whose catalog a running process has open. A server whose catalog file was deleted has no lock on
/// the present file, but still has the deleted one open.
fn refuse_holder(data_dir: &Path) -> Result<()> {
    let catalog = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned()).join(CATALOG_FILE);
    let deleted = PathBuf::from(format!("{} (deleted)", catalog.display()));
    let is_open = |process: &Path| {
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|file| file == catalog || file == deleted)
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    match processes.into_iter().find(|process| is_open(process)) {
        Some(process) => {
            let holder = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(Error::Locked { path: data_dir.to_owned(), holder })
        }
        None => Ok(()),
    }
}

/// A described table and its chunks.
struct FoundTable {
    definition: TableDefinition,
    key_released: bool,
    chunks: BTreeMap<ChunkId, (ChunkRecord, ChunkStatistics)>,
}

impl FoundTable {
    fn report(&self, id: TableId, old: &OldCatalog) -> RebuiltTable {
        RebuiltTable {
            table: self.definition.name.to_string(),
            chunks: self.chunks.len() as u64,
            rows: self.chunks.values().map(|(chunk, _)| u64::from(chunk.rows)).sum(),
            file_bytes: self.chunks.values().map(|(chunk, _)| chunk.file_bytes).sum(),
            difference: self.difference(id, old),
            key_released: self.key_released,
        }
    }

    fn difference(&self, id: TableId, old: &OldCatalog) -> Option<Difference> {
        let mut difference = Difference {
            lost_rows: old.unsealed_rows(id)?,
            missing_rows: old.rows_not_found(|table, chunk| table != id || self.chunks.contains_key(&chunk))?,
            ..Difference::default()
        };
        for (chunk, (record, _)) in &self.chunks {
            match old.deleted_rows(id, *chunk)? {
                Some(deleted) => difference.undeleted_rows += deleted,
                None => difference.unnamed_rows += u64::from(record.rows),
            }
        }
        Some(difference)
    }
}

/// Tables and chunk files of a data directory.
struct FoundFiles {
    /// The folder of the chunk files.
    home: PathBuf,
    tables: BTreeMap<TableId, FoundTable>,
    skipped: Vec<SkippedFile>,
}

impl FoundFiles {
    fn skip(&mut self, path: PathBuf, why: impl ToString) {
        self.skipped.push(SkippedFile { path, why: why.to_string() });
    }

    /// Adds the described tables. Of two tables with one name only the younger is added: it replaced the other.
    fn read_descriptions(&mut self, data_dir: &Path) -> Result<()> {
        let mut names: HashMap<String, TableId> = HashMap::new();
        let mut described = Descriptions::new(Arc::new(RealFiles), data_dir).list()?;
        described.reverse();
        for FoundDescription { id, path, record } in described {
            match record.and_then(TableRecord::definition) {
                Err(error) => self.skip(path, error),
                Ok(mut definition) => match names.get(&definition.name.to_string()) {
                    Some(younger) => self.skip(path, format!("table {} replaced this table", younger.0)),
                    None => {
                        names.insert(definition.name.to_string(), id);
                        let key_released = std::mem::take(&mut definition.options.enforce_primary_key);
                        self.tables.insert(id, FoundTable { definition, key_released, chunks: BTreeMap::new() });
                    }
                },
            }
        }
        Ok(())
    }

    /// Adds all chunk files to their tables.
    fn read_chunks(&mut self, watch: Watch<'_>) -> Result<()> {
        let mut files = files::list(&RealFiles, &self.home)?;
        files.sort_by_key(|file| file.chunk);
        let total_bytes = files.iter().map(|file| file.bytes).sum();
        let mut done_bytes = 0;
        for file in files {
            done_bytes += file.bytes;
            self.add_chunk(file);
            if !watch(Progress { done_bytes, total_bytes }) {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Verifies a chunk file and adds it to its table, or to the skipped files.
    fn add_chunk(&mut self, file: StoredFile) {
        let Some((table, chunk)) = file.chunk else {
            let why = if file.unfinished { "its write was interrupted" } else { "it is not a file of Terrace" };
            return self.skip(file.path, why);
        };
        let Some(table) = self.tables.get_mut(&table) else {
            return self.skip(file.path, "its table has no description: the table was dropped, or never finished");
        };
        let name = file.path.strip_prefix(&self.home).ok().and_then(Path::to_str).unwrap_or_default();
        match read_chunk(&file.path, name, &table.definition) {
            Ok(read) => drop(table.chunks.insert(chunk, read)),
            Err(Error::Corrupt { what, .. }) => self.skip(file.path, what),
            Err(error) => self.skip(file.path, error),
        }
    }
}

/// Reads a chunk file and verifies it by its stamp; returns the record and the bounds of the chunk.
fn read_chunk(path: &Path, name: &str, definition: &TableDefinition) -> Result<(ChunkRecord, ChunkStatistics)> {
    let corrupt = |what: String| Error::Corrupt { path: path.to_owned(), what };
    let file = IoFile::open(path)?;
    let file = file.read_start(usize::try_from(file.len).map_err(|_| corrupt("it is larger than memory".into()))?)?;
    let bytes = file.as_slice();
    codec::check_stamp(bytes).map_err(|error| codec::locate(error, path, "header or footer"))?;
    let header = codec::read_header(bytes).map_err(|error| codec::locate(error, path, "header"))?;
    let same = header.schema.fields() == definition.schema.fields();
    // A file without column ids has the columns of the table when it was created.
    let columns = ids_of(&header.schema).or_else(|| same.then(|| definition.columns.iter().map(|c| c.id).collect()));
    let columns: Vec<ColumnId> = columns.ok_or_else(|| corrupt("its columns differ from those of its table".into()))?;
    let statistics = ChunkStatistics::compute(&decode_rows(&header, &columns, definition, bytes)?)?;
    let ChunkHeader { rows, mut homes, schema } = header;
    for (home, field) in homes.iter_mut().zip(schema.fields()) {
        // A dropped column that cannot be decoded takes no other with it.
        home.packed_bytes = codec::packed_bytes_of_file(home, field.data_type(), rows as usize, bytes).ok().flatten();
    }
    // Leave out bits of marks: the files do not show which marks still belong to a hot view.
    let of_table = |(column, _): &(ColumnId, SegmentHome)| column.mark().is_none();
    let (columns, homes): (Vec<ColumnId>, Vec<SegmentHome>) = columns.into_iter().zip(homes).filter(of_table).unzip();
    let packed_bytes = homes.iter().map(|home| home.packed_bytes).collect();
    let file = name.to_owned();
    let file_bytes = bytes.len() as u64;
    Ok((ChunkRecord { file, file_bytes, rows, place: 0, columns, homes, marks: Vec::new(), packed_bytes }, statistics))
}

/// Decodes the rows of a file with the present columns of its table.
fn decode_rows(
    header: &ChunkHeader,
    ids: &[ColumnId],
    definition: &TableDefinition,
    file: &[u8],
) -> Result<RecordBatch> {
    let rows = header.rows as usize;
    let mut columns = Vec::with_capacity(definition.columns.len());
    for (column, field) in definition.columns.iter().zip(definition.schema.fields()) {
        let at = ids.iter().position(|id| *id == column.id);
        let stored = at.and_then(|at| Some((header.homes.get(at)?, header.schema.fields().get(at)?.data_type())));
        columns.push(match stored {
            Some((home, found)) if found == field.data_type() => codec::decode_stored(home, found, rows, file)?,
            Some((_, found)) => {
                let what = format!("its column '{}' is {found}, the table has {}", field.name(), field.data_type());
                return Err(Error::Corrupt { path: "segment".into(), what });
            }
            None => match &column.missing {
                Some(constant) => constant.array(rows)?,
                None => Constant::null(field.data_type()).array(rows)?,
            },
        });
    }
    batch_with_rows(&definition.schema, columns, rows)
}

/// Writes a complete catalog. Its content is durable on return, its name is not.
fn write_catalog(path: &Path, tables: &BTreeMap<TableId, FoundTable>, old: OldCatalog, now_unix_us: u64) -> Result<()> {
    RealFiles.remove_file(path)?;
    let catalog = Catalog::open(&RealFiles, path, CACHE_BYTES)?;
    let mut commit = Commit::default();
    let next = tables.keys().next_back().map_or(1, |last| last.0 + 1);
    commit.put(Space::Meta, NEXT_TABLE_KEY.to_vec(), key(&[next]));
    // Hot views may come back that use marks, so these marks must not be allocated again. If the old catalog does not
    // tell the next mark, take the minutes since 1970: marks are allocated so rarely that no store has used as many.
    let next_mark = old.next_mark.unwrap_or(now_unix_us / 60_000_000);
    commit.put(Space::Meta, NEXT_MARK_KEY.to_vec(), key(&[next_mark]));
    for (k, v) in old.objects {
        commit.put(Space::Objects, k, v);
    }
    for (id, rules) in old.rules {
        let Some(table) = tables.get(&id) else { continue };
        let rules = rules.with_definition(&table.definition);
        let lost: Vec<ChunkId> = rules.named_chunks().filter(|chunk| !table.chunks.contains_key(chunk)).collect();
        log_rules(&mut commit, id, &rules.after_replacement(&[], lost.iter().copied()).unwrap_or(rules))?;
    }
    for (id, table) in tables {
        commit.put(Space::Tables, key(&[id.0]), encode(&TableRecord::new(&table.definition)?)?);
        let mut bounds = Vec::with_capacity(table.chunks.len());
        for (place, (chunk, (record, statistics))) in (0..).zip(&table.chunks) {
            let record = ChunkRecord { place, ..record.clone() };
            commit.put(Space::Chunks, key(&[id.0, chunk.0]), encode(&record)?);
            let columns = table.definition.columns.iter().map(|column| column.id);
            for (key, sketch) in statistics.stored_sketches(*id, place, columns) {
                commit.put(Space::Sketches, key, sketch);
            }
            bounds.push((place, statistics.clone()));
        }
        let (_, groups) = TableStatistics::empty(&table.definition).changed(&BTreeSet::new(), &bounds)?;
        for (group, batch) in groups.into_iter().filter_map(|(group, batch)| Some((group, batch?))) {
            let bytes = encode_batches(&batch.schema(), std::slice::from_ref(&batch))?;
            commit.put(Space::Statistics, key(&[id.0, group]), bytes);
        }
    }
    catalog.commit(commit)
}

/// Keeps the old catalog under another name and renames the new one to its place; returns the path of the old one. A
/// catalog is in place at every moment, so a rebuild that dies in between can be run again and finds the same views.
fn put_in_place(data_dir: &Path, new: &Path, now_unix_us: u64) -> Result<Option<PathBuf>> {
    let catalog = data_dir.join(CATALOG_FILE);
    let aside = data_dir.join(format!("{CATALOG_FILE}.old-{now_unix_us}"));
    let old = RealFiles.len(&catalog)?.map(|_| link_or_copy(&catalog, &aside)).transpose()?.map(|()| aside);
    RealFiles.sync_folder(data_dir)?;
    RealFiles.rename(new, &catalog)?;
    RealFiles.sync_folder(data_dir)?;
    Ok(old)
}

/// Makes a hard link to a file, or a copy where the file system has no hard links.
fn link_or_copy(file: &Path, aside: &Path) -> Result<()> {
    match std::fs::hard_link(file, aside) {
        Ok(()) => Ok(()),
        Err(_) => RealFiles.write(aside, &RealFiles.read(file)?),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_catalog_is_in_place_whenever_it_stops() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = dir.path().join(CATALOG_FILE);
        let new = dir.path().join("new");
        std::fs::write(&catalog, "old").unwrap();
        // Fails before the last step, because the new catalog is missing.
        put_in_place(dir.path(), &new, 1).unwrap_err();
        assert_eq!(std::fs::read(&catalog).unwrap(), b"old");
        std::fs::write(&new, "new").unwrap();
        let aside = put_in_place(dir.path(), &new, 2).unwrap().unwrap();
        assert_eq!(
            (std::fs::read(&catalog).unwrap(), std::fs::read(aside).unwrap()),
            (b"new".to_vec(), b"old".to_vec())
        );
    }
}
