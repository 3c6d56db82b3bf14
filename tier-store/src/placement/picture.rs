//! Where everything lay after an epoch: what a roll back goes by.
//!
//! The log of moves alone does not say it: new chunks start on a tier, and a restart leaves all at home, without a move.
//! A picture holds a set of chunks per table, column and memory tier, and the chunks there were; columns are mostly placed
//! in runs, so it is small. The last [`KEPT_PICTURES`] are kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tiering::TableSnapshot;
use crate::table::{ChunkId, ChunkSet, ColumnId, TableId};
use crate::tier::TierId;

/// Epochs that can be gone back to.
pub const KEPT_PICTURES: u64 = 100;

/// The placement of all tables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// Names of the memory tiers, fastest first.
    tiers: Vec<String>,
    tables: BTreeMap<u64, TablePicture>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct TablePicture {
    chunks: ChunkSet,
    /// By column and position of the tier.
    resident: BTreeMap<(u32, u8), ChunkSet>,
}

impl Picture {
    /// As the tables lie now.
    pub(super) fn take(tiers: Vec<String>, tables: &[TableSnapshot]) -> Self {
        let mut pictures = BTreeMap::new();
        for table in tables {
            let mut picture = TablePicture::default();
            for chunk in table.chunks.iter().map(|entry| &entry.chunk) {
                picture.chunks.insert(chunk.id);
                for segment in &chunk.segments {
                    if let Some(resident) = segment.resident.load().as_ref() {
                        picture.resident.entry((segment.column.0, resident.tier.id().0)).or_default().insert(chunk.id);
                    }
                }
            }
            pictures.insert(table.id.0, picture);
        }
        Self { tiers, tables: pictures }
    }

    /// The memory tier that a segment lay on; `None`: its home. Nothing for a chunk that was not there.
    pub(super) fn tier(&self, table: TableId, chunk: ChunkId, column: ColumnId) -> Option<Option<&str>> {
        let picture = self.tables.get(&table.0).filter(|picture| picture.chunks.contains(chunk))?;
        let lay = |tier: &u8| picture.resident.get(&(column.0, *tier)).is_some_and(|chunks| chunks.contains(chunk));
        let tier = (0..self.tiers.len() as u8).find(lay).map(TierId);
        Some(tier.and_then(|tier| self.tiers.get(usize::from(tier.0)).map(String::as_str)))
    }

    /// Memory tiers with the segments that lay there, where there were any.
    pub(super) fn held(&self) -> Vec<(String, u64)> {
        let of = |position: u8| {
            let tables = self.tables.values().flat_map(|picture| &picture.resident);
            tables.filter(|((_, tier), _)| *tier == position).map(|(_, chunks)| chunks.iter().count() as u64).sum()
        };
        let counts = self.tiers.iter().zip(0_u8..).map(|(name, position)| (name.clone(), of(position)));
        counts.filter(|(_, segments)| *segments > 0).collect()
    }

    /// Segments in memory of tables and chunks that are no longer there.
    pub(super) fn gone(&self, tables: &[TableSnapshot]) -> u64 {
        let mut gone = 0;
        for (id, picture) in &self.tables {
            let now: ChunkSet = match tables.iter().find(|table| table.id.0 == *id) {
                Some(table) => table.chunks.iter().map(|entry| entry.chunk.id).collect(),
                None => ChunkSet::default(),
            };
            let missing = |set: &ChunkSet| set.iter().filter(|chunk| !now.contains(*chunk)).count() as u64;
            gone += picture.resident.values().map(missing).sum::<u64>();
        }
        gone
    }
}
