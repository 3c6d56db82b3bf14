//! The forecast of a run.

use terrace_error::Result;
use terrace_tier_store::table::{Chunk, Marked};

use super::arrange::chunks_after;
use super::plan::Plan;
use super::survey::{ChunkContent, Survey};
use super::{Job, KeepGoing, RunCounters};

/// The work that a run would do, and its effect on queries.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Forecast {
    /// Sealed chunks.
    pub chunks: u64,
    /// Rows of these.
    pub rows: u64,
    /// Chunks without rows of the view.
    pub chunks_none: u64,
    /// Chunks with rows of the view only.
    pub chunks_all: u64,
    /// Chunks with rows of the view and other rows.
    pub chunks_some: u64,
    /// Chunks that cannot be read.
    pub chunks_unread: u64,
    /// Rows that queries of the view read before the run, without recent inserts.
    pub rows_read_before: u64,
    /// Rows that they read after it.
    pub rows_read_after: u64,
    /// Chunks of which the run reads columns of the condition.
    pub chunks_read: u64,
    /// Chunks that the run replaces.
    pub chunks_rewritten: u64,
    /// Chunks that it writes in their place.
    pub chunks_written: u64,
    /// Bytes that it reads from the home tier.
    pub read_bytes: u64,
    /// Bytes that it writes to the home tier.
    pub written_bytes: u64,
}

impl Job {
    /// Forecasts a [`Job::run`] that would start now.
    ///
    /// # Errors
    /// Like [`Job::run`].
    pub fn forecast(&self, keep_going: KeepGoing<'_>) -> Result<Forecast> {
        let survey = Survey::make(self, self.table.version(), &RunCounters::default(), keep_going, &mut |_| Ok(()))?;
        let plan = Plan::new(self, &survey);
        let mut all =
            Forecast { chunks_read: survey.read_chunks, read_bytes: survey.read_bytes, ..Forecast::default() };
        for finding in &survey.findings {
            all.chunks += 1;
            all.rows += finding.entry.live_rows();
            match finding.content {
                ChunkContent::Known(Marked::None) | ChunkContent::Nothing => all.chunks_none += 1,
                ChunkContent::Known(Marked::All) | ChunkContent::Everything => all.chunks_all += 1,
                ChunkContent::Known(_) | ChunkContent::Part(_) => all.chunks_some += 1,
                ChunkContent::Unread => all.chunks_unread += 1,
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

    /// Rows that queries read while they are checked against the published version.
    fn rows_read(&self, survey: &Survey) -> u64 {
        let known = |chunk: &Chunk| self.published.map(|mark| chunk.marked(mark));
        let read = survey.findings.iter().filter(|finding| known(&finding.entry.chunk) != Some(Marked::None));
        read.map(|finding| finding.entry.live_rows()).sum()
    }
}
