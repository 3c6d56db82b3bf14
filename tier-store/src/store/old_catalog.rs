//! What a rebuild takes from the catalog that it replaces, as far as that can still be read: views and the like, and
//! what it knows of rows, so that the report can say what a rebuild gives back and what it loses.

use std::collections::HashMap;
use std::path::Path;

use super::marks::NEXT_MARK_KEY;
use super::recovery::{CATALOG_FILE, with_holder};
use crate::catalog::records::{ChunkRecord, decode, decode_batches, decode_rows};
use crate::catalog::{Catalog, Space, key_part};
use crate::error::{Error, Result};
use crate::io::files::RealFiles;
use crate::table::{ChunkId, Rules, TableId};

const CACHE_BYTES: usize = 32 << 20;

/// The catalog before a rebuild.
#[derive(Debug, Default)]
pub(super) struct OldCatalog {
    /// Views, schemas and external tables, key and value.
    pub(super) objects: Vec<(Vec<u8>, Vec<u8>)>,
    /// Placement rules by table.
    pub(super) rules: Vec<(TableId, Rules)>,
    /// What of it cannot be read or may be wrong, in words.
    pub(super) damaged: Vec<String>,
    /// The next mark of a hot view; `None` when that cannot be told.
    pub(super) next_mark: Option<u64>,
    rows: Option<KnownRows>,
}

/// What it knows of rows.
#[derive(Debug, Default)]
struct KnownRows {
    /// Rows of each chunk it names, and how many of these are deleted.
    chunks: HashMap<(TableId, ChunkId), (u64, u64)>,
    /// Rows that are in the catalog only.
    unsealed: HashMap<TableId, u64>,
}

impl OldCatalog {
    /// Reads what can be read. One that is missing or damaged knows nothing.
    ///
    /// # Errors
    /// [`Error::Locked`] while a server uses the directory.
    pub(super) fn read(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(CATALOG_FILE);
        let catalog = match with_holder(&RealFiles, data_dir, Catalog::open_frozen(&path, CACHE_BYTES)) {
            Err(error @ Error::Locked { .. }) => return Err(error),
            Err(_) if !path.exists() => return Ok(Self::default()),
            Err(error) => return Ok(Self { damaged: vec![error.to_string()], ..Self::default() }),
            Ok(catalog) => catalog,
        };
        let mut objects = Vec::new();
        let mut rules = Vec::new();
        let mut damaged = Vec::new();
        if !catalog.is_sealed() {
            let unproven = |error| format!("{error}. Views and rules may not be what was written");
            damaged.extend(Catalog::verify(&path, CACHE_BYTES).err().map(unproven));
        }
        let behind =
            |space: Space, error: Error| format!("{}: what is behind a damaged page is lost ({error})", space.name());
        let scanned = catalog.snapshot().and_then(|snapshot| {
            snapshot.scan_all(Space::Objects, &[], |k, v| {
                match v {
                    Ok(v) => objects.push((k.to_vec(), v.to_vec())),
                    Err(fault) => damaged.push(fault.to_string()),
                }
                Ok(true)
            })
        });
        damaged.extend(scanned.err().map(|error| behind(Space::Objects, error)));
        let scanned = catalog.snapshot().and_then(|snapshot| {
            snapshot.scan_all(Space::Rules, &[], |k, v| {
                let table = TableId(key_part(k, 0));
                match v.map(|v| decode(v, "placement rules")) {
                    Ok(Ok(decoded)) => rules.push((table, decoded)),
                    Ok(Err(error)) => damaged.push(format!("the placement rules of table {}: {error}", table.0)),
                    Err(fault) => damaged.push(fault.to_string()),
                }
                Ok(true)
            })
        });
        damaged.extend(scanned.err().map(|error| behind(Space::Rules, error)));
        let next_mark = catalog.get(Space::Meta, NEXT_MARK_KEY).ok();
        let next_mark = next_mark.map(|next| next.map_or(0, |bytes| key_part(&bytes, 0)));
        Ok(Self { objects, rules, damaged, next_mark, rows: KnownRows::of(&catalog).ok() })
    }

    /// Deleted rows of a chunk; `Some(None)` when it names no such chunk, `None` when that cannot be told.
    pub(super) fn deleted_rows(&self, table: TableId, chunk: ChunkId) -> Option<Option<u64>> {
        self.rows.as_ref().map(|rows| rows.chunks.get(&(table, chunk)).map(|(_, deleted)| *deleted))
    }

    /// Live rows of chunks that it names and for which `found` is false; `None` when that cannot be told.
    pub(super) fn rows_not_found(&self, found: impl Fn(TableId, ChunkId) -> bool) -> Option<u64> {
        let chunks = self.rows.as_ref()?.chunks.iter();
        let missing = chunks.filter(|((table, chunk), _)| !found(*table, *chunk));
        Some(missing.map(|(_, (rows, deleted))| rows.saturating_sub(*deleted)).sum())
    }

    /// Rows of a table that are in no file; `None` when that cannot be told.
    pub(super) fn unsealed_rows(&self, table: TableId) -> Option<u64> {
        self.rows.as_ref().map(|rows| rows.unsealed.get(&table).copied().unwrap_or(0))
    }
}

impl KnownRows {
    fn of(catalog: &Catalog) -> Result<Self> {
        let mut rows = Self::default();
        let chunk = |k: &[u8]| (TableId(key_part(k, 0)), ChunkId(key_part(k, 1)));
        catalog.scan(Space::Chunks, &[], |k, v| {
            rows.chunks.insert(chunk(k), (u64::from(decode::<ChunkRecord>(v, "a chunk")?.rows), 0));
            Ok(true)
        })?;
        catalog.scan(Space::Deletions, &[], |k, v| {
            let deleted = decode_rows(v)?.len();
            rows.chunks.entry(chunk(k)).and_modify(|(_, known)| *known = deleted);
            Ok(true)
        })?;
        let mut count = |space, of: &dyn Fn(&[u8]) -> Result<u64>, more: bool| {
            catalog.scan(space, &[], |k, v| {
                let table = rows.unsealed.entry(TableId(key_part(k, 0))).or_default();
                let found = of(v)?;
                *table = if more { *table + found } else { table.saturating_sub(found) };
                Ok(true)
            })
        };
        count(Space::Delta, &|v| Ok(decode_batches(v)?.1.iter().map(|b| b.num_rows() as u64).sum()), true)?;
        count(Space::DeltaDeletions, &|v| Ok(decode_rows(v)?.len()), false)?;
        Ok(rows)
    }
}
