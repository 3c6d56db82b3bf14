//! What a run would do.

use terrace_tier_store::table::{Chunk, Marked};

use super::arrange::chunks_after;
use super::plan::Plan;
use super::survey::{Found, Survey};
use super::{Job, Pace, RunCounters};
use crate::error::Result;

/// A run that writes nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Forecast {
    /// Sealed chunks, and their rows.
    pub(crate) chunks: u64,
    pub(crate) rows: u64,
    /// Chunks without a row of the view, with nothing else, with both, and those that cannot be read.
    pub(crate) chunks_none: u64,
    pub(crate) chunks_all: u64,
    pub(crate) chunks_some: u64,
    pub(crate) chunks_unread: u64,
    /// Rows that queries of the view read before and after it, recent inserts aside.
    pub(crate) rows_read_before: u64,
    pub(crate) rows_read_after: u64,
    /// Chunks whose columns of the condition are read.
    pub(crate) chunks_read: u64,
    /// Chunks that are written anew, and those that take their places.
    pub(crate) chunks_rewritten: u64,
    pub(crate) chunks_written: u64,
    /// Bytes that come from the home tier, and that are written there.
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

impl Job {
    /// What [`Job::run`] would do now.
    ///
    /// # Errors
    /// As of a run.
    pub(crate) fn forecast(&self, pace: Pace<'_>) -> Result<Forecast> {
        let survey = Survey::make(self, self.table.version(), &RunCounters::default(), pace, &mut |_| Ok(()))?;
        let plan = Plan::of(self, &survey);
        let mut all =
            Forecast { chunks_read: survey.read_chunks, read_bytes: survey.read_bytes, ..Forecast::default() };
        for finding in &survey.findings {
            all.chunks += 1;
            all.rows += finding.entry.live_rows();
            match finding.found {
                Found::Known(Marked::None) | Found::Nothing => all.chunks_none += 1,
                Found::Known(Marked::All) | Found::Everything => all.chunks_all += 1,
                Found::Known(_) | Found::Part(_) => all.chunks_some += 1,
                Found::Unread => all.chunks_unread += 1,
            }
            all.rows_read_after += finding.rows_read();
        }
        all.rows_read_before = self.rows_read(&survey);
        for group in &plan.groups {
            all.chunks_rewritten += group.chunks.len() as u64;
            all.chunks_written += chunks_after(&group.others, group.matching as usize, group.full_rows) as u64;
            all.read_bytes += group.cold_bytes;
            all.written_bytes += group.file_bytes;
            all.rows_read_after -= group.others.iter().sum::<usize>() as u64;
        }
        Ok(all)
    }

    /// Rows that queries read as long as they are checked against the older version.
    fn rows_read(&self, survey: &Survey) -> u64 {
        let known = |chunk: &Chunk| self.published.map(|mark| chunk.marked(mark));
        let read = survey.findings.iter().filter(|finding| known(&finding.entry.chunk) != Some(Marked::None));
        read.map(|finding| finding.entry.live_rows()).sum()
    }
}
