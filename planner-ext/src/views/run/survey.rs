//! Which chunks of a version have rows of a view.

use std::sync::Arc;

use arrow::array::BooleanArray;
use terrace_tier_store::table::{ChunkEntry, ChunkId, Marked, TableVersion};

use super::{Job, NOTED_CHUNKS, Note, Pace, RunCounters, stopped};
use crate::error::Result;
use crate::scan::ScanSource;
use crate::views::condition::Bounded;

/// What was found of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It knows the mark already.
    Known(Marked),
    /// No row is one of the view.
    Nothing,
    /// Every row may be.
    Everything,
    /// So many rows, some and not all.
    Part(u64),
    /// Its columns cannot be read.
    Unread,
}

/// A chunk, and what was found.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) entry: ChunkEntry,
    pub(super) found: Found,
}

impl Finding {
    /// Rows that a query of the view reads of the chunk as it lies.
    pub(super) fn rows_read(&self) -> u64 {
        match self.found {
            Found::Known(Marked::None) | Found::Nothing => 0,
            _ => self.entry.live_rows(),
        }
    }
}

/// All chunks of a version.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(super) version: Arc<TableVersion>,
    pub(super) findings: Vec<Finding>,
    pub(super) read_chunks: u64,
    pub(super) read_bytes: u64,
}

impl Survey {
    /// Finds it out; tells `note` what is sure of chunks as they lie, every now and then.
    pub(super) fn make(
        job: &Job,
        version: Arc<TableVersion>,
        counters: &RunCounters,
        pace: Pace<'_>,
        note: Note<'_>,
    ) -> Result<Self> {
        let source = ScanSource::new(Arc::clone(&job.store), Arc::clone(&job.table), Arc::clone(&version));
        let is_known = |entry: &ChunkEntry| job.mark.map_or(Marked::Unknown, |mark| entry.chunk.marked(mark));
        let all_known = version.chunks.iter().all(|entry| is_known(entry) != Marked::Unknown);
        let bounds = if all_known { Vec::new() } else { job.condition.bounded(&source) };
        let findings = Vec::with_capacity(version.chunks.len());
        let mut survey = Self { version: Arc::clone(&version), findings, read_chunks: 0, read_bytes: 0 };
        let mut sure = Vec::new();
        for (position, entry) in version.chunks.iter().enumerate() {
            let was_none = job.before.is_some_and(|before| entry.chunk.marked(before) == Marked::None);
            let found = match (is_known(entry), bounds.get(position)) {
                (Marked::Unknown, _) if was_none || entry.live_rows() == 0 => Found::Nothing,
                (Marked::Unknown, Some(Bounded::Nothing)) => Found::Nothing,
                (Marked::Unknown, Some(Bounded::Everything)) => Found::Everything,
                (Marked::Unknown, _) => {
                    let (found, read_bytes) = read(job, entry)?;
                    survey.read_chunks += 1;
                    survey.read_bytes += read_bytes;
                    counters.read(read_bytes);
                    if !pace(read_bytes) {
                        note(&sure)?;
                        return Err(stopped());
                    }
                    found
                }
                (known, _) => Found::Known(known),
            };
            survey.findings.push(Finding { entry: entry.clone(), found });
            match found {
                Found::Nothing => sure.push((entry.chunk.id, false)),
                Found::Everything => sure.push((entry.chunk.id, true)),
                _ => {}
            }
            if sure.len() == NOTED_CHUNKS {
                note(&sure)?;
                sure.clear();
            }
        }
        note(&sure)?;
        Ok(survey)
    }

    /// Chunks that could not be read.
    pub(super) fn unread(&self) -> impl Iterator<Item = ChunkId> {
        self.findings.iter().filter(|f| f.found == Found::Unread).map(|f| f.entry.chunk.id)
    }
}

/// Evaluates the condition on the rows of a chunk; with the bytes that were read from the home tier.
fn read(job: &Job, entry: &ChunkEntry) -> Result<(Found, u64)> {
    let chunk = &entry.chunk;
    let columns = job.condition.columns();
    let segments = columns.iter().filter_map(|column| chunk.segments.get(*column));
    let cold_bytes = segments.filter(|segment| !segment.is_in_reach()).map(|segment| segment.home.len).sum();
    let values = match job.store.columns(chunk, columns) {
        Ok(values) => values,
        Err(error @ terrace_tier_store::Error::Cancelled) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, table = %job.table.name(), "a chunk is not known to a hot view: it cannot be read");
            return Ok((Found::Unread, cold_bytes));
        }
    };
    let mask = match job.condition.holds(chunk.rows as usize, &values) {
        Ok(mask) => mask,
        // A query with this condition may fail on the same value, or never come to it.
        Err(error) => {
            tracing::debug!(%error, table = %job.table.name(), "the condition of a hot view fails on a row");
            return Ok((Found::Everything, cold_bytes));
        }
    };
    Ok((judge(entry, &mask), cold_bytes))
}

fn judge(entry: &ChunkEntry, mask: &BooleanArray) -> Found {
    let deleted = entry.deletions.iter().flat_map(|rows| rows.iter());
    let deleted = deleted.filter(|row| (*row as usize) < mask.len() && mask.value(*row as usize)).count();
    match (mask.true_count() - deleted) as u64 {
        0 => Found::Nothing,
        all if all == entry.live_rows() => Found::Everything,
        part => Found::Part(part),
    }
}
