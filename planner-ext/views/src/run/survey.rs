//! The survey of a run: finds out which chunks of a version have rows of a view.

use std::sync::Arc;

use arrow::array::BooleanArray;
use terrace_error::Result;
use terrace_scan::scan::ScanSource;
use terrace_tier_store::table::{ChunkEntry, ChunkId, Marked, TableVersion};

use super::{Job, KeepGoing, NOTED_CHUNKS, RunCounters, StoreMarks, stopped};
use crate::condition::BoundsVerdict;

/// Rows of the view in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkContent {
    /// The chunk has the mark already.
    Known(Marked),
    /// No row belongs to the view.
    Nothing,
    /// Every row may belong to the view.
    Everything,
    /// This number of rows belongs to the view; some and not all.
    Part(u64),
    /// The chunk's columns cannot be read.
    Unread,
}

/// A chunk, and the rows of the view in it.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) entry: ChunkEntry,
    pub(super) content: ChunkContent,
}

impl Finding {
    /// Rows that a query of the view reads of the chunk without a rewrite.
    pub(super) fn rows_read(&self) -> u64 {
        match self.content {
            ChunkContent::Known(Marked::None) | ChunkContent::Nothing => 0,
            _ => self.entry.live_rows(),
        }
    }
}

/// The findings about all chunks of a version.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(super) version: Arc<TableVersion>,
    pub(super) findings: Vec<Finding>,
    pub(super) read_chunks: u64,
    pub(super) read_bytes: u64,
}

impl Survey {
    /// Surveys all chunks; passes results that need no rewrite to `store_marks`, in batches.
    pub(super) fn make(
        job: &Job,
        version: Arc<TableVersion>,
        counters: &RunCounters,
        keep_going: KeepGoing<'_>,
        store_marks: StoreMarks<'_>,
    ) -> Result<Self> {
        let source = ScanSource::new(Arc::clone(&job.store), Arc::clone(&job.table), Arc::clone(&version));
        let is_known = |entry: &ChunkEntry| job.mark.map_or(Marked::Unknown, |mark| entry.chunk.marked(mark));
        let all_known = version.chunks.iter().all(|entry| is_known(entry) != Marked::Unknown);
        let bounds = if all_known { Vec::new() } else { job.condition.judge_by_bounds(&source) };
        let findings = Vec::with_capacity(version.chunks.len());
        let mut survey = Self { version: Arc::clone(&version), findings, read_chunks: 0, read_bytes: 0 };
        let mut sure = Vec::new();
        for (position, entry) in version.chunks.iter().enumerate() {
            let was_none = job.before.is_some_and(|before| entry.chunk.marked(before) == Marked::None);
            let content = match (is_known(entry), bounds.get(position)) {
                (Marked::Unknown, _) if was_none || entry.live_rows() == 0 => ChunkContent::Nothing,
                (Marked::Unknown, Some(BoundsVerdict::Nothing)) => ChunkContent::Nothing,
                (Marked::Unknown, Some(BoundsVerdict::Everything)) => ChunkContent::Everything,
                (Marked::Unknown, _) => {
                    let (content, read_bytes) = read(job, entry)?;
                    survey.read_chunks += 1;
                    survey.read_bytes += read_bytes;
                    counters.read(read_bytes);
                    if !keep_going(read_bytes) {
                        store_marks(&sure)?;
                        return Err(stopped());
                    }
                    content
                }
                (known, _) => ChunkContent::Known(known),
            };
            survey.findings.push(Finding { entry: entry.clone(), content });
            match content {
                ChunkContent::Nothing => sure.push((entry.chunk.id, false)),
                ChunkContent::Everything => sure.push((entry.chunk.id, true)),
                _ => {}
            }
            if sure.len() == NOTED_CHUNKS {
                store_marks(&sure)?;
                sure.clear();
            }
        }
        store_marks(&sure)?;
        Ok(survey)
    }

    /// Chunks that could not be read.
    pub(super) fn unread(&self) -> impl Iterator<Item = ChunkId> {
        self.findings.iter().filter(|f| f.content == ChunkContent::Unread).map(|f| f.entry.chunk.id)
    }
}

/// Evaluates the condition on the rows of a chunk; also returns the bytes that were read from the home tier.
fn read(job: &Job, entry: &ChunkEntry) -> Result<(ChunkContent, u64)> {
    let chunk = &entry.chunk;
    let columns = job.condition.columns();
    let segments = columns.iter().filter_map(|column| chunk.segments.get(*column));
    let cold_bytes = segments.filter(|segment| !segment.is_in_memory()).map(|segment| segment.home.len).sum();
    let values = match job.store.columns(chunk, columns) {
        Ok(values) => values,
        Err(error @ terrace_tier_store::Error::Cancelled) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, table = %job.table.name(), "cannot read a chunk; it stays unmarked for a hot view");
            return Ok((ChunkContent::Unread, cold_bytes));
        }
    };
    let mask = match job.condition.holds(chunk.rows as usize, &values) {
        Ok(mask) => mask,
        // A query with this condition may fail on the same value, or never evaluate it.
        Err(error) => {
            tracing::debug!(%error, table = %job.table.name(), "the condition of a hot view fails on a row");
            return Ok((ChunkContent::Everything, cold_bytes));
        }
    };
    Ok((judge(entry, &mask), cold_bytes))
}

fn judge(entry: &ChunkEntry, mask: &BooleanArray) -> ChunkContent {
    let deleted = entry.deletions.iter().flat_map(|rows| rows.iter());
    let deleted = deleted.filter(|row| (*row as usize) < mask.len() && mask.value(*row as usize)).count();
    match (mask.true_count() - deleted) as u64 {
        0 => ChunkContent::Nothing,
        all if all == entry.live_rows() => ChunkContent::Everything,
        part => ChunkContent::Part(part),
    }
}
