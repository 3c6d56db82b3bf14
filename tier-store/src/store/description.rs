//! Descriptions of tables in small files, from which a catalog can be rebuilt: chunk files contain their columns, but
//! not the name, key and settings of their table.
//!
//! ```text
//!   <data>/tables/t7.json   {"format_version":1,"id":7,"table":"public.sales","columns":["k Int64",..],
//!                            "record":"<the catalog's record, hexadecimal>","crc32c":"<of the record>"}
//! ```
//!
//! The file is durable before the table's first commit and is removed after the commit that drops the table. The start
//! of a store writes descriptions that are missing or old and removes those of no table, so a crash in between does no
//! harm.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_model::{Error, Result, TableId};
use terrace_storage::catalog::TableRecord;
use terrace_storage::catalog::records::{decode, decode_batches, encode};
use terrace_storage::io::FileSystem;
use terrace_storage::io::files::create_folders;
use terrace_storage::tier::ssd::files::replace_durably;

/// Folder of the descriptions, below the data directory.
const FOLDER: &str = "tables";
const FORMAT_VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Description {
    format_version: u32,
    id: u64,
    /// For people only; a rebuild reads the record.
    table: String,
    /// For people only; a rebuild reads the record.
    columns: Vec<String>,
    /// The catalog's record, in hexadecimal.
    record: String,
    crc32c: String,
}

/// Reads and writes the descriptions of a data directory.
#[derive(Debug)]
pub(super) struct Descriptions {
    files: Arc<dyn FileSystem>,
    dir: PathBuf,
}

/// A description file that was found.
pub(super) struct FoundDescription {
    /// The table's number, from the file's name.
    pub(super) id: TableId,
    pub(super) path: PathBuf,
    /// The record in the file, or why it cannot be read.
    pub(super) record: Result<TableRecord>,
}

impl Descriptions {
    /// The descriptions of the data directory `data_dir`.
    pub(super) fn new(files: Arc<dyn FileSystem>, data_dir: &Path) -> Self {
        Self { files, dir: data_dir.join(FOLDER) }
    }

    /// The file system that they are written to.
    pub(super) fn files(&self) -> &dyn FileSystem {
        self.files.as_ref()
    }

    /// The file that describes a table.
    pub(super) fn path(&self, id: TableId) -> PathBuf {
        self.dir.join(format!("t{}.json", id.0))
    }

    /// Writes a description durably, in place of an older one; does nothing when the file has the same content already.
    pub(super) fn write(&self, id: TableId, record: &TableRecord) -> Result<()> {
        let path = self.path(id);
        let bytes = to_json(id, record)?;
        if self.files.read(&path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        create_folders(self.files.as_ref(), &self.dir)?;
        replace_durably(self.files.as_ref(), &path, &bytes)
    }

    /// Removes the description of a dropped table. If that fails, the next start removes it.
    pub(super) fn remove(&self, id: TableId) {
        if let Err(error) = self.files.remove_file(&self.path(id)) {
            tracing::warn!(%error, table = id.0, "cannot remove the description of a dropped table; the next start removes it");
        }
    }

    /// All descriptions, by number of the table. Files with other names are not descriptions and left out.
    pub(super) fn list(&self) -> Result<Vec<FoundDescription>> {
        if !self.files.is_folder(&self.dir) {
            return Ok(Vec::new());
        }
        let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix('t')?.strip_suffix(".json")?.parse().ok();
        let mut found = Vec::new();
        for entry in self.files.list(&self.dir)? {
            if let Some(id) = number(&entry.path).map(TableId) {
                let record = self.files.read(&entry.path).and_then(|bytes| parse(id, &entry.path, &bytes));
                found.push(FoundDescription { id, path: entry.path, record });
            }
        }
        found.sort_by_key(|description| description.id);
        Ok(found)
    }
}

fn to_json(id: TableId, record: &TableRecord) -> Result<Vec<u8>> {
    let (schema, _) = decode_batches(&record.schema)?;
    let bytes = encode(record)?;
    let description = Description {
        format_version: FORMAT_VERSION,
        id: id.0,
        table: record.name.to_string(),
        columns: schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect(),
        record: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        crc32c: format!("{:08x}", crc32c::crc32c(&bytes)),
    };
    serde_json::to_vec(&description).map_err(|e| Error::Invalid(format!("cannot describe a table: {e}")))
}

fn parse(id: TableId, path: &Path, bytes: &[u8]) -> Result<TableRecord> {
    let corrupt = |what: &str| Error::Corrupt { path: path.to_owned(), what: what.to_owned() };
    let description: Description =
        serde_json::from_slice(bytes).map_err(|e| corrupt(&format!("it is not the description of a table: {e}")))?;
    if description.format_version != FORMAT_VERSION {
        let found = description.format_version;
        let supported = FORMAT_VERSION;
        return Err(Error::UnsupportedFormat { path: path.to_owned(), found, supported });
    }
    if description.id != id.0 {
        return Err(corrupt(&format!("it describes table {}", description.id)));
    }
    let record = unhex(&description.record).ok_or_else(|| corrupt("its record is not hexadecimal"))?;
    if format!("{:08x}", crc32c::crc32c(&record)) != description.crc32c {
        return Err(corrupt("its record does not match its checksum"));
    }
    decode(&record, "a table").map_err(|e| corrupt(&e.to_string()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    text.as_bytes().chunks(2).map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}
