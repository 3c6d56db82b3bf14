//! Placement snapshots: the tier of every segment after an epoch, for rolling back to it.
//!
//! The log of moves does not suffice, as a segment's tier also changes without a move: a new chunk starts on a tier,
//! and after a restart all segments are at home. A snapshot holds a set of chunks per table, column and memory tier,
//! and the chunks of each table; columns are mostly placed in runs of chunks, so it is small. The last
//! [`KEPT_SNAPSHOTS`] are kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_model::{ChunkId, ColumnId, TableId, TierId};
use terrace_storage::table::ChunkSet;

use super::tiering::TableSnapshot;

/// Number of epochs that a roll back can return to.
pub const KEPT_SNAPSHOTS: u64 = 100;

/// The placement of all tables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlacementSnapshot {
    /// Names of the memory tiers, fastest first.
    tiers: Vec<String>,
    tables: BTreeMap<u64, TablePlacement>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct TablePlacement {
    chunks: ChunkSet,
    /// By column and position of the tier.
    resident: BTreeMap<(u32, u8), ChunkSet>,
}

impl PlacementSnapshot {
    /// Captures the current placement of the tables.
    pub(super) fn capture(tiers: Vec<String>, tables: &[TableSnapshot]) -> Self {
        let mut placements = BTreeMap::new();
        for table in tables {
            let mut placement = TablePlacement::default();
            for chunk in table.chunks.iter().map(|entry| &entry.chunk) {
                placement.chunks.insert(chunk.id);
                for segment in &chunk.segments {
                    if let Some(resident) = segment.resident.load().as_ref() {
                        placement
                            .resident
                            .entry((segment.column.0, resident.tier.id().0))
                            .or_default()
                            .insert(chunk.id);
                    }
                }
            }
            placements.insert(table.id.0, placement);
        }
        Self { tiers, tables: placements }
    }

    /// The memory tier that a segment lay on, `Some(None)` for its home; `None` for a chunk that did not exist.
    pub(super) fn tier(&self, table: TableId, chunk: ChunkId, column: ColumnId) -> Option<Option<&str>> {
        let placement = self.tables.get(&table.0).filter(|placement| placement.chunks.contains(chunk))?;
        let lay_on =
            |tier: &u8| placement.resident.get(&(column.0, *tier)).is_some_and(|chunks| chunks.contains(chunk));
        let tier = (0..self.tiers.len() as u8).find(lay_on).map(TierId);
        Some(tier.and_then(|tier| self.tiers.get(usize::from(tier.0)).map(String::as_str)))
    }

    /// Memory tiers that held segments, with the number of them.
    pub(super) fn resident_segments(&self) -> Vec<(String, u64)> {
        let count = |position: u8| {
            let tables = self.tables.values().flat_map(|placement| &placement.resident);
            tables.filter(|((_, tier), _)| *tier == position).map(|(_, chunks)| chunks.iter().count() as u64).sum()
        };
        let counts = self.tiers.iter().zip(0_u8..).map(|(name, position)| (name.clone(), count(position)));
        counts.filter(|(_, segments)| *segments > 0).collect()
    }

    /// Number of segments in memory whose table or chunk no longer exists.
    pub(super) fn lost_segments(&self, tables: &[TableSnapshot]) -> u64 {
        let mut lost = 0;
        for (id, placement) in &self.tables {
            let now: ChunkSet = match tables.iter().find(|table| table.id.0 == *id) {
                Some(table) => table.chunks.iter().map(|entry| entry.chunk.id).collect(),
                None => ChunkSet::default(),
            };
            let missing = |set: &ChunkSet| set.iter().filter(|chunk| !now.contains(*chunk)).count() as u64;
            lost += placement.resident.values().map(missing).sum::<u64>();
        }
        lost
    }
}
