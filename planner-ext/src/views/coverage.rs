//! What the chunks of a table know of a view.

use terrace_tier_store::table::{ChunkEntry, MarkId, Marked, TableVersion};

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
                    coverage.hot_bytes += bytes(entry, definition);
                }
            }
        }
        coverage
    }

    /// Chunks that a query of the view reads.
    pub(crate) fn left(&self) -> u64 {
        self.hot_chunks + self.unknown_chunks
    }
}

fn bytes(entry: &ChunkEntry, definition: &Definition) -> u64 {
    let columns = entry.chunk.schema.fields().iter().zip(entry.chunk.columns());
    let own = |name: &String| definition.columns.is_empty() || definition.columns.contains(name);
    let own = columns.filter(|(field, segment)| own(field.name()) && segment.constant.is_none());
    own.map(|(_, segment)| segment.home.len).sum()
}
