//! Reads the catalog that a rebuild replaces, as far as possible: named objects such as views and placement rules,
//! which the rebuild takes over, and row counts, so that the report can count the rows that a rebuild restores or
//! loses.

use std::collections::HashMap;
use std::path::Path;

use terrace_model::{ChunkId, Error, Result, TableId};
use terrace_storage::catalog::records::{ChunkRecord, decode, decode_batches, decode_rows};
use terrace_storage::catalog::{Catalog, Space, key_part};
use terrace_storage::io::files::RealFiles;
use terrace_storage::table::Rules;

use super::marks::NEXT_MARK_KEY;
use super::recovery::{CATALOG_FILE, name_lock_holder};

const CACHE_BYTES: usize = 32 << 20;

/// The catalog before a rebuild.
#[derive(Debug, Default)]
pub(super) struct OldCatalog {
    /// Keys and values of views, schemas and external tables.
    pub(super) objects: Vec<(Vec<u8>, Vec<u8>)>,
    /// Placement rules by table.
    pub(super) rules: Vec<(TableId, Rules)>,
    /// Messages: what cannot be read or may be wrong.
    pub(super) damaged: Vec<String>,
    /// The next mark of a hot view; `None` when unknown.
    pub(super) next_mark: Option<u64>,
    rows: Option<KnownRows>,
}

/// Row counts in the old catalog.
#[derive(Debug, Default)]
struct KnownRows {
    chunks: HashMap<(TableId, ChunkId), ChunkRows>,
    /// Rows that are in the catalog only.
    unsealed: HashMap<TableId, u64>,
}

/// Row counts of a chunk.
#[derive(Debug)]
struct ChunkRows {
    /// All rows, deleted ones included.
    rows: u64,
    deleted: u64,
}

impl OldCatalog {
    /// Reads the old catalog as far as possible. The result for a missing or damaged catalog is empty.
    ///
    /// # Errors
    /// [`Error::Locked`] while a server uses the directory.
    pub(super) fn read(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(CATALOG_FILE);
        let catalog = match name_lock_holder(&RealFiles, data_dir, Catalog::open_read_only(&path, CACHE_BYTES)) {
            Err(error @ Error::Locked { .. }) => return Err(error),
            Err(_) if !path.exists() => return Ok(Self::default()),
            Err(error) => return Ok(Self { damaged: vec![error.to_string()], ..Self::default() }),
            Ok(catalog) => catalog,
        };
        let mut objects = Vec::new();
        let mut rules = Vec::new();
        let mut damaged = Vec::new();
        if !catalog.is_sealed() {
            let unproven = |error| format!("{error}. Its views and rules may be wrong");
            damaged.extend(Catalog::verify(&path, CACHE_BYTES).err().map(unproven));
        }
        // A scan ends at a damaged page.
        let lost_behind =
            |space: Space, error: Error| format!("{}: entries after a damaged page are lost ({error})", space.name());
        let scanned = catalog.snapshot().and_then(|snapshot| {
            snapshot.scan_all(Space::Objects, &[], |k, v| {
                match v {
                    Ok(v) => objects.push((k.to_vec(), v.to_vec())),
                    Err(fault) => damaged.push(fault.to_string()),
                }
                Ok(true)
            })
        });
        damaged.extend(scanned.err().map(|error| lost_behind(Space::Objects, error)));
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
        damaged.extend(scanned.err().map(|error| lost_behind(Space::Rules, error)));
        let next_mark = catalog.get(Space::Meta, NEXT_MARK_KEY).ok();
        let next_mark = next_mark.map(|next| next.map_or(0, |bytes| key_part(&bytes, 0)));
        Ok(Self { objects, rules, damaged, next_mark, rows: KnownRows::read(&catalog).ok() })
    }

    /// Deleted rows of a chunk; `Some(None)` when the catalog names no such chunk, `None` when the catalog is
    /// unreadable.
    pub(super) fn deleted_rows(&self, table: TableId, chunk: ChunkId) -> Option<Option<u64>> {
        self.rows.as_ref().map(|rows| rows.chunks.get(&(table, chunk)).map(|chunk| chunk.deleted))
    }

    /// Live rows of chunks in the catalog for which `found` is false; `None` when the catalog is unreadable.
    pub(super) fn rows_not_found(&self, found: impl Fn(TableId, ChunkId) -> bool) -> Option<u64> {
        let chunks = self.rows.as_ref()?.chunks.iter();
        let missing = chunks.filter(|((table, chunk), _)| !found(*table, *chunk));
        Some(missing.map(|(_, chunk)| chunk.rows.saturating_sub(chunk.deleted)).sum())
    }

    /// Rows of a table that are in no file; `None` when the catalog is unreadable.
    pub(super) fn unsealed_rows(&self, table: TableId) -> Option<u64> {
        self.rows.as_ref().map(|rows| rows.unsealed.get(&table).copied().unwrap_or(0))
    }
}

impl KnownRows {
    fn read(catalog: &Catalog) -> Result<Self> {
        let mut rows = Self::default();
        let chunk = |k: &[u8]| (TableId(key_part(k, 0)), ChunkId(key_part(k, 1)));
        catalog.scan(Space::Chunks, &[], |k, v| {
            let counts = ChunkRows { rows: decode::<ChunkRecord>(v, "a chunk")?.rows.into(), deleted: 0 };
            rows.chunks.insert(chunk(k), counts);
            Ok(true)
        })?;
        catalog.scan(Space::Deletions, &[], |k, v| {
            let deleted = decode_rows(v)?.len();
            rows.chunks.entry(chunk(k)).and_modify(|known| known.deleted = deleted);
            Ok(true)
        })?;
        let mut count = |space, rows_in: &dyn Fn(&[u8]) -> Result<u64>, add: bool| {
            catalog.scan(space, &[], |k, v| {
                let table = rows.unsealed.entry(TableId(key_part(k, 0))).or_default();
                let found = rows_in(v)?;
                *table = if add { *table + found } else { table.saturating_sub(found) };
                Ok(true)
            })
        };
        count(Space::Delta, &|v| Ok(decode_batches(v)?.1.iter().map(|b| b.num_rows() as u64).sum()), true)?;
        count(Space::DeltaDeletions, &|v| Ok(decode_rows(v)?.len()), false)?;
        Ok(rows)
    }
}
