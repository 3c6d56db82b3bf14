//! The heat that a chunk inherits from the chunks that it replaces.

use terrace_model::{ChunkId, ColumnId, MarkId};

use super::PatternCounts;

/// The heat that a chunk inherits from the chunks whose rows it holds now.
#[derive(Debug, Clone)]
pub struct Heritage {
    /// The former chunks, each with the share of the rows that came from it.
    pub parents: Vec<(ChunkId, f32)>,
    /// Initial counters of its segments, by column: the table may be altered before they are observed.
    pub counts: Vec<(ColumnId, PatternCounts)>,
    /// Marks without a row in this chunk, each with the share of the rows that came from chunks which may have had some.
    /// The scans of these views were among the parents' reads, but will not read this chunk.
    pub cleared: Vec<(MarkId, f32)>,
}
