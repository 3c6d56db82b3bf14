//! What the chunks of a table know of a view.

use std::sync::Arc;

use terrace_tier_store::table::{ChunkEntry, MarkId, Marked, Segment, TableVersion};
use terrace_tier_store::tier::TierId;

use super::definition::Definition;

/// Chunks, rows and bytes of a view in one version of its table. The delta is part of none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Chunks of the table.
    pub(crate) chunks: u64,
    /// Those that may have rows of the view, as they know it.
    pub(crate) hot_chunks: u64,
    /// Those that do not know it; they may have rows of it too.
    pub(crate) unknown_chunks: u64,
    /// Rows of the hot chunks that are not deleted: at least as many as the view has there.
    pub(crate) hot_rows: u64,
    /// Bytes at home of the view's columns in them.
    pub(crate) hot_bytes: u64,
}

impl Coverage {
    /// Of the view with that mark; without one no chunk knows it.
    pub(crate) fn of(version: &TableVersion, definition: &Definition, mark: Option<MarkId>) -> Self {
        let mut coverage = Self { chunks: version.chunks.len() as u64, ..Self::default() };
        for entry in version.chunks.iter() {
            match mark.map_or(Marked::Unknown, |mark| entry.chunk.marked(mark)) {
                Marked::Unknown => coverage.unknown_chunks += 1,
                Marked::None => {}
                Marked::All | Marked::Some => {
                    coverage.hot_chunks += 1;
                    coverage.hot_rows += entry.live_rows();
                    coverage.hot_bytes += own(entry, definition).map(|segment| segment.home.len).sum::<u64>();
                }
            }
        }
        coverage
    }

    /// Bytes that the view's columns take of some tiers, in chunks with rows of it.
    pub(crate) fn bytes_on(
        version: &TableVersion,
        definition: &Definition,
        mark: Option<MarkId>,
        tiers: &[TierId],
    ) -> u64 {
        let Some(mark) = mark else { return 0 };
        let hot = version.chunks.iter().filter(|entry| matches!(entry.chunk.marked(mark), Marked::All | Marked::Some));
        let charged = |segment: &Arc<Segment>| {
            let resident = segment.resident.load();
            let there = resident.as_ref().filter(|resident| tiers.contains(&resident.tier.id()));
            there.map_or(0, |resident| resident.bytes.charged_bytes)
        };
        hot.flat_map(|entry| own(entry, definition)).map(charged).sum()
    }

    /// Chunks that a query of the view reads.
    pub(crate) fn left(&self) -> u64 {
        self.hot_chunks + self.unknown_chunks
    }
}

/// The columns of the view in a chunk, as far as they have bytes.
fn own<'a>(entry: &'a ChunkEntry, definition: &'a Definition) -> impl Iterator<Item = &'a Arc<Segment>> {
    let columns = entry.chunk.schema.fields().iter().zip(entry.chunk.columns());
    let own = columns.filter(move |(field, segment)| definition.has_column(field.name()) && segment.constant.is_none());
    own.map(|(_, segment)| segment)
}
