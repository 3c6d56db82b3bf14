//! Disk usage of a data directory, by table.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use terrace_model::Result;
use terrace_storage::catalog::{Space, key_part};

use super::core::Core;
use super::recovery::{self, CATALOG_FILE};

/// Disk usage of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TableUsage {
    /// Schema and name.
    pub table: String,
    /// Rows a full scan returns.
    pub rows: u64,
    /// Sealed chunks.
    pub chunks: u64,
    /// Bytes of their files.
    pub file_bytes: u64,
    /// Rows not yet sealed.
    pub delta_rows: u64,
    /// Bytes of these rows in the catalog.
    pub delta_bytes: u64,
    /// Bytes of all other catalog records of the table: homes, checksums, bounds, heat.
    pub catalog_bytes: u64,
}

/// Disk usage of a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Usage of each table, by name.
    pub tables: Vec<TableUsage>,
    /// Size of the catalog's file, free pages included.
    pub catalog_file_bytes: u64,
    /// Chunk files that no table refers to: of interrupted writes, of running loads, of tables dropped while they are
    /// read.
    pub unowned_files: u64,
    /// Bytes of these files.
    pub unowned_bytes: u64,
    /// Tables that cannot be loaded; `terrace check` says why.
    pub broken_tables: u64,
}

/// Disk usage of a data directory that no server uses; nothing in it changes.
///
/// # Errors
/// [`terrace_model::Error::Locked`] while a server uses it, [`terrace_model::Error::NotFound`] when there is none.
pub fn usage(data_dir: &Path) -> Result<Usage> {
    let inspection = recovery::inspect(data_dir)?;
    Ok(Usage { broken_tables: inspection.broken.len() as u64, ..inspection.core.usage()? })
}

impl Core {
    /// Disk usage of the open store now.
    pub(super) fn usage(&self) -> Result<Usage> {
        let snapshot = self.catalog.snapshot()?;
        let mut catalog: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for space in Space::OF_TABLES {
            snapshot.scan(space, &[], |k, v| {
                let (delta, other) = catalog.entry(key_part(k, 0)).or_default();
                *(if space == Space::Delta { delta } else { other }) += (k.len() + v.len()) as u64;
                Ok(true)
            })?;
        }
        let mut owned = HashSet::new();
        let mut tables = Vec::new();
        for table in self.tables() {
            let version = table.version();
            owned.extend(version.chunks.iter().map(|entry| entry.chunk.path.clone()));
            let (delta_bytes, catalog_bytes) = catalog.get(&table.id().0).copied().unwrap_or_default();
            tables.push(TableUsage {
                table: table.name().to_string(),
                rows: version.live_rows(),
                chunks: version.chunks.len() as u64,
                file_bytes: version.chunks.iter().map(|entry| entry.chunk.file_bytes).sum(),
                delta_rows: version.delta_rows(),
                delta_bytes,
                catalog_bytes,
            });
        }
        let files = self.home.list()?;
        let unowned = files.iter().filter(|f| (f.unfinished || f.chunk.is_some()) && !owned.contains(&f.path));
        let (unowned_files, unowned_bytes) = unowned.fold((0, 0), |(n, bytes), file| (n + 1, bytes + file.bytes));
        let catalog_file_bytes = std::fs::metadata(self.data_dir.join(CATALOG_FILE)).map_or(0, |m| m.len());
        Ok(Usage { tables, catalog_file_bytes, unowned_files, unowned_bytes, broken_tables: 0 })
    }
}
