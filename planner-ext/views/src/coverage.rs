//! Coverage of a view: the chunks of its table that have, may have or cannot have its rows.

use std::sync::Arc;

use terrace_tier_store::table::{ChunkEntry, MarkId, Marked, Segment, TableVersion};
use terrace_tier_store::tier::TierId;

use super::definition::Definition;

/// Chunks, rows and bytes of a view in one version of its table, without the delta.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Chunks of the table.
    pub chunks: u64,
    /// Chunks that may have rows of the view by their mark.
    pub hot_chunks: u64,
    /// Chunks without the mark; they may have rows of the view, too.
    pub unknown_chunks: u64,
    /// Rows of the hot chunks that are not deleted: at least as many as the view has there.
    pub hot_rows: u64,
    /// Bytes on the home tier of the view's columns in the hot chunks.
    pub hot_bytes: u64,
}

impl Coverage {
    /// Coverage of the view with this mark; a view without a mark covers no chunk.
    pub fn new(version: &TableVersion, definition: &Definition, mark: Option<MarkId>) -> Self {
        let mut coverage = Self { chunks: version.chunks.len() as u64, ..Self::default() };
        for entry in version.chunks.iter() {
            match mark.map_or(Marked::Unknown, |mark| entry.chunk.marked(mark)) {
                Marked::Unknown => coverage.unknown_chunks += 1,
                Marked::None => {}
                Marked::All | Marked::Some => {
                    coverage.hot_chunks += 1;
                    coverage.hot_rows += entry.live_rows();
                    coverage.hot_bytes += view_segments(entry, definition).map(|segment| segment.home.len).sum::<u64>();
                }
            }
        }
        coverage
    }

    /// Bytes that the view's columns take on some tiers, in chunks with rows of the view.
    pub fn bytes_on(version: &TableVersion, definition: &Definition, mark: Option<MarkId>, tiers: &[TierId]) -> u64 {
        let Some(mark) = mark else { return 0 };
        let hot = version.chunks.iter().filter(|entry| matches!(entry.chunk.marked(mark), Marked::All | Marked::Some));
        let charged = |segment: &Arc<Segment>| {
            let resident = segment.resident.load();
            let there = resident.as_ref().filter(|resident| tiers.contains(&resident.tier.id()));
            there.map_or(0, |resident| resident.bytes.charged_bytes)
        };
        hot.flat_map(|entry| view_segments(entry, definition)).map(charged).sum()
    }

    /// Number of chunks that a query of the view reads.
    pub fn chunks_to_read(&self) -> u64 {
        self.hot_chunks + self.unknown_chunks
    }
}

/// The segments of the view's columns in a chunk that have bytes.
fn view_segments<'a>(entry: &'a ChunkEntry, definition: &'a Definition) -> impl Iterator<Item = &'a Arc<Segment>> {
    let columns = entry.chunk.schema.fields().iter().zip(entry.chunk.columns());
    let stored =
        columns.filter(move |(field, segment)| definition.has_column(field.name()) && segment.constant.is_none());
    stored.map(|(_, segment)| segment)
}
