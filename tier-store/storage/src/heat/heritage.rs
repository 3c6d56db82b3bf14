//! The heat that a chunk inherits from the chunks that it replaces.

use terrace_model::{ChunkId, ColumnId, MarkId};

use super::PatternCounts;

/// The heat that a chunk inherits from the former chunks of its rows.
#[derive(Debug, Clone)]
pub struct Heritage {
    /// The former chunks, each with the share of the rows that came from it.
    pub parents: Vec<(ChunkId, f32)>,
    /// Initial counters of its segments, by column id, because the table may be altered before they are read.
    pub counts: Vec<(ColumnId, PatternCounts)>,
    /// Marks of hot views that no row of this chunk satisfies, each with the share of the rows whose former chunk may
    /// have had such rows. Scans of these views counted as reads of the former chunks, but will skip this chunk.
    pub cleared: Vec<(MarkId, f32)>,
}
