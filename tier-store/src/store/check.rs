//! Checks a store: verifies everything that can be verified, and gives advice for each finding.
//!
//! ```text
//!   catalog        pages against their checksums (offline), every value against its own checksum; every record
//!                  decodes and belongs to a table
//!   chunk files    they exist and have the right size; each column against its checksums; header, footer and padding
//!                  against the file's stamp; the header against the catalog
//!   statistics     the stored bounds against those of the data
//!   folder         files that no table knows, foreign files, descriptions of tables
//! ```
//!
//! The same code checks a directory that no server uses ([`check`]) and a store in use, on a snapshot of its tables
//! ([`super::Store::check`]). Nothing is modified, except that the latter marks damaged columns and heals them when
//! asked.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_model::{Error, Result, TableId};
use terrace_storage::catalog::records::{decode, decode_batches, decode_rows};
use terrace_storage::catalog::{Catalog, CatalogFault, ChunkRecord, Commit, Snapshot, Space, TableRecord, key_part};
use terrace_storage::io::AlignedBuffer;
use terrace_storage::io::files::RealFiles;
use terrace_storage::table::{Chunk, ChunkEntry, ChunkStatistics, Sketch, Table, TableVersion};
use terrace_storage::tier::codec::{self, Stamp};
use terrace_storage::tier::reader::cold;

use super::core::Core;
use super::description::FoundDescription;
use super::heal::decode_columns;
use super::recovery::{self, CATALOG_FILE, Inspection};

/// Severity of a finding. damage: stored data is lost, or would be without action; healed: damage that was healed;
/// notice: nothing is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Stored data is lost, or would be without action.
    Damage,
    /// Damage that was healed.
    Healed,
    /// Worth knowing; nothing is lost.
    Notice,
}

/// Something a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The file.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub path: PathBuf,
    /// The table that it concerns, if any.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub table: Option<String>,
    /// The chunk that it concerns, if any.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub chunk: Option<u64>,
    /// The column that it concerns, if any.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub column: Option<String>,
    /// The problem.
    pub what: String,
    /// What a user can do about it.
    pub advice: String,
}

/// Totals of a checked table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckedTable {
    /// Schema and name.
    pub table: String,
    /// Rows a full scan returns.
    pub rows: u64,
    /// Sealed chunks.
    pub chunks: u64,
    /// Bytes of their files.
    pub file_bytes: u64,
    /// Findings that are damage.
    pub damaged: u64,
}

/// Result of a check.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckReport {
    /// True when the contents of files were not read.
    pub quick: bool,
    /// Checked tables, by name.
    pub tables: Vec<CheckedTable>,
    /// Findings in the order of the tables, those of no table last.
    pub findings: Vec<Finding>,
    /// Bytes of files that were read and verified.
    pub verified_bytes: u64,
}

impl CheckReport {
    /// Findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// Options of a check.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Check sizes and headers only, without reading columns.
    pub quick: bool,
    /// Heal damage where possible (only of a store in use).
    pub repair: bool,
}

/// Progress of a long operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Callback that gets the progress after each file; false ends the operation with [`Error::Cancelled`]. It may sleep,
/// to leave the device to others.
pub type Watch<'a> = &'a mut dyn FnMut(Progress) -> bool;

/// Checks a data directory that no server uses, without changing anything in it.
///
/// # Errors
/// [`Error::Locked`] while a server uses it, [`Error::NotFound`] when there is none. Damage is a finding, not an error.
pub fn check(data_dir: &Path, options: CheckOptions, watch: Watch<'_>) -> Result<CheckReport> {
    let catalog = data_dir.join(CATALOG_FILE);
    let checked = |watch: Watch<'_>| -> Result<CheckReport> {
        let Inspection { core, broken } = recovery::inspect(data_dir)?;
        let mut check = Check::new(&core, CheckOptions { repair: false, ..options });
        broken.iter().for_each(|(id, error)| check.broken_table(*id, error));
        check.run(watch)?;
        check.check_format();
        check.check_folders(&broken.iter().map(|(id, _)| *id).collect())?;
        Ok(check.report)
    };
    let verified = match options.quick || !catalog.is_file() {
        true => Ok(()),
        false => recovery::name_lock_holder(&RealFiles, data_dir, Catalog::verify(&catalog, CACHE_BYTES)),
    };
    // Prefer findings that name the damaged values to one that says that some page is damaged.
    let is_damage = |error: &Error| matches!(error, Error::Corrupt { .. } | Error::Catalog(_));
    match verified {
        Ok(()) => {}
        Err(error) if is_damage(&error) => {
            let mut report =
                checked(watch).or_else(|error| catalog_only_report(options, catalog_faults(&catalog, &error)))?;
            let is_named = report.findings.iter().any(|finding| finding.path == catalog);
            if !is_named {
                report.findings.insert(0, catalog_finding(catalog, error.to_string()));
            }
            return Ok(report);
        }
        Err(error) => return Err(error),
    }
    match checked(watch) {
        Err(error) if is_damage(&error) => catalog_only_report(options, catalog_faults(&catalog, &error)),
        done => done,
    }
}

/// The report of a directory whose catalog cannot be used: findings of the catalog only.
fn catalog_only_report(options: CheckOptions, findings: Vec<Finding>) -> Result<CheckReport> {
    Ok(CheckReport { quick: options.quick, tables: Vec::new(), findings, verified_bytes: 0 })
}

/// Finds the damaged values of a catalog that cannot be used because of `error`.
fn catalog_faults(catalog: &Path, error: &Error) -> Vec<Finding> {
    let snapshot = Catalog::open_read_only(catalog, CACHE_BYTES).and_then(|catalog| catalog.snapshot());
    let faults = snapshot.map(|snapshot| snapshot.faults(&Space::ALL)).unwrap_or_default();
    match faults.is_empty() {
        true => vec![catalog_finding(catalog.to_owned(), error.to_string())],
        false => faults.iter().map(|fault| fault_finding(catalog, fault, None)).collect(),
    }
}

const CACHE_BYTES: usize = 32 << 20;

impl Core {
    /// Checks the tables as they are now.
    pub(super) fn check(&self, options: CheckOptions, watch: Watch<'_>) -> Result<CheckReport> {
        let mut check = Check::new(self, options);
        check.run(watch)?;
        Ok(check.report)
    }

    /// Removes a damaged value that statements do not need.
    fn remove_damaged_value(&self, fault: &CatalogFault) -> Result<()> {
        let key =
            fault.key.clone().ok_or_else(|| Error::Invalid("a damaged catalog page cannot be repaired".into()))?;
        let mut commit = Commit::default();
        commit.delete(fault.space, key);
        self.catalog.commit(commit)
    }
}

struct Check<'a> {
    core: &'a Core,
    options: CheckOptions,
    report: CheckReport,
}

impl<'a> Check<'a> {
    fn new(core: &'a Core, options: CheckOptions) -> Self {
        let report = CheckReport { quick: options.quick, tables: Vec::new(), findings: Vec::new(), verified_bytes: 0 };
        Self { core, options, report }
    }

    fn run(&mut self, watch: Watch<'_>) -> Result<()> {
        self.check_catalog()?;
        let versions: Vec<_> = self.core.tables().into_iter().map(|table| (table.version(), table)).collect();
        let bytes = |version: &TableVersion| version.chunks.iter().map(|entry| entry.chunk.file_bytes).sum::<u64>();
        let total_bytes = versions.iter().map(|(version, _)| bytes(version)).sum();
        let mut done_bytes = 0;
        for (version, table) in &versions {
            let before = self.report.count(Severity::Damage);
            for (position, entry) in version.chunks.iter().enumerate() {
                self.check_chunk(table, version, position, entry);
                done_bytes += entry.chunk.file_bytes;
                if !watch(Progress { done_bytes, total_bytes }) {
                    return Err(Error::Cancelled);
                }
            }
            self.report.tables.push(CheckedTable {
                table: table.name().to_string(),
                rows: version.live_rows(),
                chunks: version.chunks.len() as u64,
                file_bytes: bytes(version),
                damaged: (self.report.count(Severity::Damage) - before) as u64,
            });
        }
        Ok(())
    }

    /// Verifies that every value is the one that was written, and that every record decodes and belongs to a table.
    fn check_catalog(&mut self) -> Result<()> {
        let path = self.core.data_dir.join(CATALOG_FILE);
        match self.core.descriptions.files().is_simulated() {
            true => self.check_snapshot(&path, &self.core.catalog.snapshot()?),
            false => match self.core.catalog.snapshot_on_disk() {
                Ok(snapshot) => self.check_snapshot(&path, &snapshot),
                Err(error @ (Error::Corrupt { .. } | Error::Catalog(_))) => {
                    // A catalog that was closed after a failure gives the same error as a damaged one.
                    self.core.catalog.failure().map_or(Ok(()), Err)?;
                    self.report.findings.push(catalog_finding(path, error.to_string()));
                    Ok(())
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Verifies the values and records of one snapshot of the catalog.
    fn check_snapshot(&mut self, path: &Path, snapshot: &Snapshot) -> Result<()> {
        let names: HashMap<TableId, String> =
            self.core.tables().iter().map(|table| (table.id(), table.name().to_string())).collect();
        let damaged = snapshot.faults(&Space::ALL);
        for fault in &damaged {
            let name = fault.table().and_then(|table| names.get(&table)).cloned();
            let mut finding = fault_finding(path, fault, name);
            if self.options.repair && fault.is_expendable() {
                match self.core.remove_damaged_value(fault) {
                    Ok(()) => (finding.severity, finding.advice) = (Severity::Healed, "nothing to do".to_owned()),
                    Err(error) => finding.advice = format!("cannot be removed: {error}"),
                }
            }
            self.report.findings.push(finding);
        }
        // A scan of a space ends at a damaged page, so the entries after it cannot be verified.
        let is_readable = |space: Space| !damaged.iter().any(|fault| fault.space == space && fault.is_page_damage());
        if !is_readable(Space::Tables) {
            return Ok(());
        }
        let mut tables = HashMap::new();
        let mut faults = Vec::new();
        snapshot.scan_all(Space::Tables, &[], |k, v| {
            let record = v.ok().and_then(|v| decode::<TableRecord>(v, "a table").ok());
            // Records that cannot be read were reported when the tables were loaded.
            tables.insert(key_part(k, 0), record.and_then(|record| Some(record.definition().ok()?.schema)));
            Ok(true)
        })?;
        for space in Space::OF_CONTENT.into_iter().filter(|space| is_readable(*space)) {
            snapshot.scan_all(space, &[], |k, v| {
                let Ok(v) = v else { return Ok(true) };
                let table = key_part(k, 0);
                let fault = match (space, tables.get(&table)) {
                    (_, None) => Some("its table does not exist".to_owned()),
                    (_, Some(None)) => None,
                    (Space::Chunks, _) => decode::<ChunkRecord>(v, "a chunk").err().map(|e| e.to_string()),
                    (Space::Delta, Some(Some(schema))) => match decode_batches(v) {
                        Ok((found, _)) if found.fields() == schema.fields() => None,
                        Ok(_) => Some("its columns differ from those of the table".to_owned()),
                        Err(error) => Some(error.to_string()),
                    },
                    (Space::Sketches, _) => Sketch::decode(v).err().map(|e| e.to_string()),
                    (Space::Deletions | Space::DeltaDeletions, _) => decode_rows(v).err().map(|e| e.to_string()),
                    _ => decode_batches(v).err().map(|e| e.to_string()),
                };
                let name = space.name();
                faults.extend(fault.map(|f| format!("entry {} of {name} of table {table}: {f}", key_part(k, 1))));
                Ok(true)
            })?;
        }
        self.report.findings.extend(faults.into_iter().map(|what| catalog_finding(path.to_owned(), what)));
        Ok(())
    }

    /// Adds a notice when the catalog has the format of an earlier version, which is no damage.
    fn check_format(&mut self) {
        if !self.core.catalog.is_sealed() {
            let path = self.core.data_dir.join(CATALOG_FILE);
            let what = "it was written by an earlier version: its values have no checksums";
            let advice = "the first start of a server of this version rewrites it, and earlier versions do not open it \
                          afterwards: make a backup with the version that wrote it before. A backup that this version \
                          makes has the new format";
            self.report.findings.push(notice(path, what, advice));
        }
    }

    fn broken_table(&mut self, id: TableId, error: &Error) {
        let path = self.core.data_dir.join(CATALOG_FILE);
        self.report.findings.push(catalog_finding(path, format!("table {} cannot be loaded: {error}", id.0)));
    }

    /// Heals a chunk's file, then verifies it again.
    fn heal_and_verify(&self, chunk: &Chunk) -> Result<()> {
        self.core.heal(chunk)?;
        match file_faults(self.core, chunk, &self.core.home.load_file(chunk)?).is_empty() {
            true => Ok(()),
            false => Err(Error::Corrupt { path: chunk.path.clone(), what: "the rebuilt file is still damaged".into() }),
        }
    }

    /// Checks the file of a chunk and its stored bounds, and heals the file when asked.
    fn check_chunk(&mut self, table: &Table, version: &TableVersion, position: usize, entry: &ChunkEntry) {
        let chunk = &entry.chunk;
        let mut faults = if self.options.quick { header_faults(self.core, chunk) } else { Vec::new() };
        let mut wrong_bounds = false;
        if !self.options.quick {
            match self.core.home.load_file(chunk) {
                Ok(file) => {
                    self.report.verified_bytes += file.as_slice().len() as u64;
                    faults = file_faults(self.core, chunk, &file);
                    if faults.is_empty() {
                        faults.extend(statistics_fault(version, position, chunk, &file));
                        wrong_bounds = !faults.is_empty();
                        // A reader once found damage, but the file is good: the damage was not on the disk.
                        if chunk.damaged_segments() > 0 {
                            chunk.file.store(None);
                        }
                    }
                }
                Err(error) => faults.push(Fault::of_file(error.to_string())),
            }
        }
        if faults.is_empty() {
            return;
        }
        // Wrong bounds lie in the catalog: a new file would not correct them.
        let healed = (self.options.repair && !wrong_bounds).then(|| self.heal_and_verify(chunk));
        for fault in faults {
            let finding = fault.finding(table, chunk, healed.as_ref());
            self.report.findings.push(finding);
        }
    }

    /// Finds files that belong to no table, and missing or wrong descriptions. Only for a directory without a writer.
    fn check_folders(&mut self, broken: &HashSet<TableId>) -> Result<()> {
        let tables = self.core.tables();
        let ids: HashMap<TableId, &Arc<Table>> = tables.iter().map(|table| (table.id(), table)).collect();
        let chunks =
            tables.iter().flat_map(|t| t.version().chunks.iter().map(|e| e.chunk.path.clone()).collect::<Vec<_>>());
        let known: HashSet<PathBuf> = chunks.collect();
        for file in self.core.home.list()? {
            let of_broken = file.chunk.is_some_and(|(table, _)| broken.contains(&table));
            if known.contains(&file.path) || of_broken {
                continue;
            }
            let (what, advice) = match file.unfinished || file.chunk.is_some() {
                true => ("no table refers to it: an interrupted write left it", "the next start removes it"),
                false => ("it is not a file of Terrace", "move it elsewhere; Terrace never changes it"),
            };
            self.report.findings.push(notice(file.path, what, advice));
        }
        let mut described = HashSet::new();
        for FoundDescription { id, path, record } in self.core.descriptions.list()? {
            described.insert(id);
            let what = match (record, ids.get(&id)) {
                (Err(error), _) => error.to_string(),
                (Ok(_), None) if !broken.contains(&id) => "it describes a table that was dropped".to_owned(),
                _ => continue,
            };
            self.report.findings.push(notice(path, &what, "the next start of a server corrects it"));
        }
        for (id, table) in ids.into_iter().filter(|(id, _)| !described.contains(id)) {
            let what = format!("it is missing: a rebuilt catalog would lack table {}", table.name());
            let path = self.core.descriptions.path(id);
            self.report.findings.push(notice(path, &what, "the next start of a server writes it"));
        }
        Ok(())
    }
}

/// Damage of a chunk, before it becomes a [`Finding`].
struct Fault {
    /// The damaged column; `None` for damage outside of the columns.
    column: Option<usize>,
    what: String,
    advice: &'static str,
}

impl Fault {
    fn of_file(what: String) -> Self {
        let advice = "statements that read it fail. `terrace check --repair` heals it while a server has copies of its \
                      columns in DRAM or NVM; else restore a backup, or load the table again";
        Self { column: None, what, advice }
    }

    fn of_header(what: impl std::fmt::Display) -> Self {
        let advice = "columns can still be read. `terrace check --repair` on the running server writes the file again";
        Self { column: None, what: format!("header or footer: {what}"), advice }
    }

    fn of_column(column: usize, what: String) -> Self {
        let advice = "statements that read this column fail. `terrace check --repair` heals it while a server has a copy \
                      in DRAM or NVM; else restore a backup, or load the table again";
        Self { column: Some(column), what, advice }
    }

    fn finding(self, table: &Table, chunk: &Chunk, healed: Option<&Result<()>>) -> Finding {
        let (severity, advice) = match healed {
            Some(Ok(())) => (Severity::Healed, "nothing to do".to_owned()),
            Some(Err(error)) => (Severity::Damage, format!("cannot be healed: {error}")),
            None => (Severity::Damage, self.advice.to_owned()),
        };
        let name = |column: usize| chunk.column_name(column).into_owned();
        Finding {
            severity,
            path: chunk.path.clone(),
            table: Some(table.name().to_string()),
            chunk: Some(chunk.id.0),
            column: self.column.map(name),
            what: self.what,
            advice,
        }
    }
}

/// Makes a finding of a damaged value or page of the catalog.
fn fault_finding(path: &Path, fault: &CatalogFault, table: Option<String>) -> Finding {
    let finding = catalog_finding(path.to_owned(), fault.to_string());
    match fault.is_expendable() {
        true => {
            let advice = "statements work without it: it is a log record, or Terrace computes it again. `terrace check \
                          --repair` on the running server removes it";
            Finding { advice: advice.to_owned(), table, ..finding }
        }
        false => Finding { table, ..finding },
    }
}

fn catalog_finding(path: PathBuf, what: String) -> Finding {
    let advice = "restore a backup, or rebuild the catalog from the table files: `terrace rebuild-catalog`".to_owned();
    Finding { severity: Severity::Damage, path, table: None, chunk: None, column: None, what, advice }
}

fn notice(path: PathBuf, what: &str, advice: &str) -> Finding {
    let what = what.to_owned();
    let advice = advice.to_owned();
    Finding { severity: Severity::Notice, path, table: None, chunk: None, column: None, what, advice }
}

/// Checks that the file exists, has its size and begins like a chunk file; reports columns marked as damaged.
fn header_faults(core: &Core, chunk: &Chunk) -> Vec<Fault> {
    match core.home.check(chunk) {
        Ok(()) => {
            let marked = |column| Some(Fault::of_column(column, message_without_path(chunk.damage(column)?)));
            (0..chunk.segments.len()).filter_map(marked).collect()
        }
        Err(error) => vec![Fault::of_file(message_without_path(error))],
    }
}

/// Verifies a file's bytes; returns the faults and marks damaged columns.
fn file_faults(core: &Core, chunk: &Chunk, file: &AlignedBuffer) -> Vec<Fault> {
    let bytes = file.as_slice();
    if bytes.len() as u64 != chunk.file_bytes {
        return vec![Fault::of_file(format!("its size is {} bytes, expected {}", bytes.len(), chunk.file_bytes))];
    }
    let mut faults = Vec::new();
    for (column, segment) in chunk.segments.iter().enumerate() {
        let stored = codec::stored_bytes(&segment.home, bytes).unwrap_or_default();
        if let Err(error) = cold::verify_column(chunk, column, stored) {
            if let (Ok(()), Some(open)) = (core.home.check(chunk), chunk.file.load().as_ref()) {
                open.mark(segment.column, &error);
            }
            faults.push(Fault::of_column(column, message_without_path(error)));
        }
    }
    // The stamp covers the columns too, so it proves header, footer and padding only when the columns are good.
    if faults.is_empty() {
        faults.extend(frame_fault(chunk, bytes));
    }
    faults
}

/// Verifies header, footer and padding.
fn frame_fault(chunk: &Chunk, file: &[u8]) -> Option<Fault> {
    let header = match codec::check_stamp(file).and_then(|stamp| Ok((stamp, codec::read_header(file)?))) {
        // A file of an earlier version has no stamp; its header is still compared with the catalog.
        Ok((Stamp::Valid | Stamp::Missing, header)) => header,
        Err(error) => return Some(Fault::of_header(message_without_path(error))),
    };
    // The file may have columns that the table dropped, and other names for those it renamed.
    let mut homes = chunk.segments.iter().filter(|s| s.constant.is_none()).map(|segment| &segment.home);
    let same = header.rows == chunk.rows
        && homes.all(|home| header.homes.iter().any(|in_header| home.is_in_header(in_header)));
    (!same).then(|| Fault::of_header("its columns differ from those in the catalog: it is the file of another chunk"))
}

/// Compares the stored bounds of a chunk with those of its data.
fn statistics_fault(version: &TableVersion, position: usize, chunk: &Chunk, file: &AlignedBuffer) -> Option<Fault> {
    let compare = || -> Result<Option<usize>> {
        let computed = ChunkStatistics::bounds(&decode_columns(chunk, file.as_slice())?)?;
        let computed = computed.column_bounds();
        for column in 0..chunk.columns().len() {
            let stored = version.statistics.column(column)?;
            if !computed(column).is_some_and(|computed| stored.agrees_with(position, &computed)) {
                return Ok(Some(column));
            }
        }
        Ok(None)
    };
    let advice = "queries may miss rows of this chunk. Rebuild the catalog: `terrace rebuild-catalog`";
    match compare() {
        Ok(None) => None,
        Ok(Some(column)) => Some(Fault {
            column: Some(column),
            what: "its bounds in the catalog differ from those of its values".into(),
            advice,
        }),
        Err(error) => Some(Fault { column: None, what: format!("its bounds cannot be compared: {error}"), advice }),
    }
}

/// The message of an error without the path, which a finding has in a field of its own.
fn message_without_path(error: Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what,
        other => other.to_string(),
    }
}
