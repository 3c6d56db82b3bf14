//! Rebuilding a catalog from the files of a data directory.
//!
//! The descriptions ([`super::description`]) say which tables there are, the chunk files what is in them; each file
//! proves itself by its stamp. Checksums, bounds and sketches are computed anew. The old catalog is moved aside, never deleted.
//!
//! Only in the catalog, and so lost: rows not yet sealed, deletions of rows, the history of epochs and moves, heat, what
//! is known of hot views. Views,
//! external tables and placement rules are taken from the old catalog where it can still be read ([`OldCatalog`]). A chunk file that was
//! written but not committed, or replaced but not yet deleted, when the server died comes back: the files do not tell it
//! from others, so rebuild only when there is neither a good catalog nor a backup. The report counts these rows where the
//! old catalog knows them. As rows come back, no key is enforced any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use serde::Serialize;

use super::check::{Progress, Watch};
use super::description::Descriptions;
use super::heal::batch;
use super::marks::NEXT_MARK_KEY;
use super::old_catalog::OldCatalog;
use super::recovery::{CATALOG_FILE, NEXT_TABLE_KEY, SSD_FOLDER};
use super::rules::log_rules;
use crate::catalog::records::{encode, encode_batches};
use crate::catalog::{Catalog, ChunkRecord, Commit, Space, TableRecord, key};
use crate::error::{Error, Result};
use crate::io::IoFile;
use crate::io::files::{FileSystem, RealFiles};
use crate::table::column::ids_of;
use crate::table::{ChunkId, ChunkStatistics, ColumnId, Constant, Home, TableDefinition, TableId, TableStatistics};
use crate::tier::codec::{self, ChunkHeader};
use crate::tier::ssd::files::{self, StoredFile};

const CACHE_BYTES: usize = 32 << 20;

/// A table that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RebuiltTable {
    /// Schema and name.
    pub table: String,
    /// Sealed chunks.
    pub chunks: u64,
    /// Rows of these, deleted ones included.
    pub rows: u64,
    /// Bytes of their files.
    pub file_bytes: u64,
    /// In what these rows differ from those of the old catalog; `None` when it cannot be read.
    pub difference: Option<Difference>,
    /// Its key was enforced and is so no longer: deleted rows may have come back.
    pub key_released: bool,
}

/// What a rebuild does to the rows of a table, compared with the old catalog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Deleted rows that come back.
    pub undeleted_rows: u64,
    /// Rows that come back, or come for the first time, with files that the old catalog does not name: of loads that did
    /// not end, and of chunks that were rewritten.
    pub unnamed_rows: u64,
    /// Rows that are lost: they were not yet sealed, so no file has them.
    pub lost_rows: u64,
    /// Rows that are lost: their files are missing or damaged.
    pub missing_rows: u64,
}

/// A file that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedFile {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// What a rebuild found and did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RebuildReport {
    /// By number.
    pub tables: Vec<RebuiltTable>,
    /// Files that are not part of the new catalog.
    pub skipped: Vec<SkippedFile>,
    /// Rows of tables of the old catalog that are not found at all; `None` when it cannot be read.
    pub rows_of_lost_tables: Option<u64>,
    /// Views and the like that the old catalog still knew.
    pub objects: u64,
    /// Where the old catalog lies now; `None` when there was none, or nothing was changed.
    pub old_catalog: Option<PathBuf>,
    /// False when this was only a look.
    pub written: bool,
}

/// Reads all files of a data directory; with `write` a catalog is made of them and takes the old one's place.
///
/// # Errors
/// [`Error::Locked`] while a server uses the directory, [`Error::NotFound`] when there is none, [`Error::Io`]. The old
/// catalog is in its place then.
pub fn rebuild_catalog(data_dir: &Path, write: bool, now_unix_us: u64, watch: Watch<'_>) -> Result<RebuildReport> {
    let ssd = data_dir.join(SSD_FOLDER);
    if !ssd.is_dir() {
        return Err(Error::not_found("data directory", data_dir.display().to_string()));
    }
    let old = OldCatalog::read(data_dir)?;
    refuse_holder(data_dir)?;
    let mut found = Found { ssd, tables: BTreeMap::new(), skipped: Vec::new() };
    old.damaged.iter().for_each(|what| found.skip(data_dir.join(CATALOG_FILE), what));
    found.descriptions(data_dir)?;
    found.chunks(watch)?;
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

/// A server whose catalog was deleted under it holds no lock that could be seen, but still the file.
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

struct Found {
    ssd: PathBuf,
    tables: BTreeMap<TableId, FoundTable>,
    skipped: Vec<SkippedFile>,
}

impl Found {
    fn skip(&mut self, path: PathBuf, why: impl ToString) {
        self.skipped.push(SkippedFile { path, why: why.to_string() });
    }

    /// Tables by their descriptions; of two with one name the younger, which replaced the other.
    fn descriptions(&mut self, data_dir: &Path) -> Result<()> {
        let mut names: HashMap<String, TableId> = HashMap::new();
        let mut described = Descriptions::of(Arc::new(RealFiles), data_dir).list()?;
        described.reverse();
        for (id, path, record) in described {
            match record.and_then(TableRecord::definition) {
                Err(error) => self.skip(path, error),
                Ok(mut definition) => match names.get(&definition.name.to_string()) {
                    Some(younger) => self.skip(path, format!("table {} replaced this one", younger.0)),
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

    fn chunks(&mut self, watch: Watch<'_>) -> Result<()> {
        let mut files = files::list(&RealFiles, &self.ssd)?;
        files.sort_by_key(|file| file.chunk);
        let total_bytes = files.iter().map(|file| file.bytes).sum();
        let mut done_bytes = 0;
        for file in files {
            done_bytes += file.bytes;
            self.chunk(file);
            if !watch(Progress { done_bytes, total_bytes }) {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    fn chunk(&mut self, file: StoredFile) {
        let Some((table, chunk)) = file.chunk else {
            let why = if file.unfinished { "it was never finished" } else { "it is not a file of Terrace" };
            return self.skip(file.path, why);
        };
        let Some(table) = self.tables.get_mut(&table) else {
            return self.skip(file.path, "no description names its table: it was dropped, or never finished");
        };
        let name = file.path.strip_prefix(&self.ssd).ok().and_then(Path::to_str).unwrap_or_default();
        match read_chunk(&file.path, name, &table.definition) {
            Ok(read) => drop(table.chunks.insert(chunk, read)),
            Err(Error::Corrupt { what, .. }) => self.skip(file.path, what),
            Err(error) => self.skip(file.path, error),
        }
    }
}

/// Record and bounds of a chunk, from a file that proves itself.
fn read_chunk(path: &Path, name: &str, definition: &TableDefinition) -> Result<(ChunkRecord, ChunkStatistics)> {
    let corrupt = |what: String| Error::Corrupt { path: path.to_owned(), what };
    let file = IoFile::open(path)?;
    let file = file.read_start(usize::try_from(file.len).map_err(|_| corrupt("it is larger than memory".into()))?)?;
    let bytes = file.as_slice();
    codec::check_stamp(bytes).map_err(|error| codec::locate(error, path, "header or footer"))?;
    let header = codec::read_header(bytes).map_err(|error| codec::locate(error, path, "header"))?;
    let same = header.schema.fields() == definition.schema.fields();
    // A file that does not number its columns has them as the table was created.
    let columns = ids_of(&header.schema).or_else(|| same.then(|| definition.columns.iter().map(|c| c.id).collect()));
    let columns: Vec<ColumnId> = columns.ok_or_else(|| corrupt("its columns are not those of its table".into()))?;
    let statistics = ChunkStatistics::compute(&decoded(&header, &columns, definition, bytes)?)?;
    let ChunkHeader { rows, homes, .. } = header;
    // Which marks are still of a hot view, the files do not tell.
    let of_table = |(column, _): &(ColumnId, Home)| column.mark().is_none();
    let (columns, homes) = columns.into_iter().zip(homes).filter(of_table).unzip();
    let file = name.to_owned();
    let file_bytes = bytes.len() as u64;
    Ok((ChunkRecord { file, file_bytes, rows, place: 0, columns, homes, marks: Vec::new() }, statistics))
}

/// The rows of a file with the columns that its table has now.
fn decoded(header: &ChunkHeader, ids: &[ColumnId], definition: &TableDefinition, file: &[u8]) -> Result<RecordBatch> {
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
    batch(&definition.schema, columns, rows)
}

/// Writes a whole catalog; durable on return, but for its name.
fn write_catalog(path: &Path, tables: &BTreeMap<TableId, FoundTable>, old: OldCatalog, now_unix_us: u64) -> Result<()> {
    RealFiles.remove_file(path)?;
    let catalog = Catalog::open(&RealFiles, path, CACHE_BYTES)?;
    let mut commit = Commit::default();
    let next = tables.keys().next_back().map_or(1, |last| last.0 + 1);
    commit.put(Space::Meta, NEXT_TABLE_KEY.to_vec(), key(&[next]));
    // Hot views may come back that name marks: these must not be given again. Marks are given seldom, so that no store had
    // one for each minute until now.
    let next_mark = old.next_mark.unwrap_or(now_unix_us / 60_000_000);
    commit.put(Space::Meta, NEXT_MARK_KEY.to_vec(), key(&[next_mark]));
    for (k, v) in old.objects {
        commit.put(Space::Objects, k, v);
    }
    for (id, rules) in old.rules {
        let Some(table) = tables.get(&id) else { continue };
        let rules = rules.under(&table.definition);
        let lost: Vec<ChunkId> = rules.named_chunks().filter(|chunk| !table.chunks.contains_key(chunk)).collect();
        log_rules(&mut commit, id, &rules.following(&[], lost.iter().copied()).unwrap_or(rules))?;
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

/// Keeps the old catalog under another name and puts the new one in its place; returns where the old one is. There is a
/// catalog at every moment: a rebuild that dies in between can be run again and finds the views where it found them.
fn put_in_place(data_dir: &Path, new: &Path, now_unix_us: u64) -> Result<Option<PathBuf>> {
    let catalog = data_dir.join(CATALOG_FILE);
    let aside = data_dir.join(format!("{CATALOG_FILE}.old-{now_unix_us}"));
    let old = RealFiles.len(&catalog)?.map(|_| keep(&catalog, &aside)).transpose()?.map(|()| aside);
    RealFiles.sync_folder(data_dir)?;
    RealFiles.rename(new, &catalog)?;
    RealFiles.sync_folder(data_dir)?;
    Ok(old)
}

/// Gives a file a second name, or, where the file system has no such thing, a copy.
fn keep(file: &Path, aside: &Path) -> Result<()> {
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
        // It ends before the last step, for which the new catalog is missing.
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
