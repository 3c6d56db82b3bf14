//! The tiering run of a hot view (Meyer et al., ADMS 2015, 4.1): what chunks are to know of it.
//!
//! ```text
//!   prepare     what a run has to know
//!   survey      which rows each chunk has: by bounds, by what an older version knows, by reading columns of the condition
//!   plan        what is noted of chunks as they are, and which are written anew together
//!   arrange     how the rows of such a group are to lie
//!   forecast    what a run would do, without writing
//!   counters    what runs did
//! ```
//!
//! All that a run finds out is noted of the chunks, group by group, so it may end at any point and go on at another time.
//! It never makes anybody wait: what is written anew is an optimistic transaction, and chunks about which nothing is known
//! are read by all queries. One run of a table at a time, as the caller sees to.

mod arrange;
mod counters;
mod forecast;
mod plan;
mod prepare;
mod survey;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use terrace_tier_store::Store;
use terrace_tier_store::table::{ChunkEntry, ChunkId, MarkId, Marked, Table};

pub use counters::RunCounters;
pub(crate) use forecast::Forecast;
use plan::{Group, Plan};
use survey::Survey;

use super::condition::Condition;
use crate::error::{Error, ErrorKind, Result};

/// Looks at the table after which a run leaves chunks that came meanwhile to the next one.
const MOST_PASSES: usize = 4;
/// Chunks of which something is noted in one commit.
const NOTED_CHUNKS: usize = 1024;

/// Asked after each piece of work, with the bytes that it read from the home tier and wrote: false ends the run.
pub(crate) type Pace<'a> = &'a dyn Fn(u64) -> bool;

/// Told of chunks, as they lie, whether each of their rows may be one of the view, or none is.
pub(crate) type Note<'a> = &'a mut dyn FnMut(&[(ChunkId, bool)]) -> Result<()>;

/// A mark, and what it says of rows.
#[derive(Debug, Clone)]
pub(crate) struct Marking {
    pub(crate) mark: MarkId,
    pub(crate) condition: Arc<Condition>,
    /// Of the newest version of its view: rows are put together by these.
    pub(crate) is_newest: bool,
}

/// One version of a view, and what its run has to know.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) store: Arc<Store>,
    pub(crate) table: Arc<Table>,
    pub(crate) condition: Arc<Condition>,
    /// What chunks get; `None`: it is only asked what a run would do.
    pub(crate) mark: Option<MarkId>,
    /// That of the version that queries are checked against now.
    pub(crate) published: Option<MarkId>,
    /// The same where all rows of this version are rows of that one: chunks that have none of those have none of these.
    pub(crate) before: Option<MarkId>,
    /// All other marks of views of the table: rows that are written anew keep them.
    pub(crate) others: Vec<Marking>,
}

impl Job {
    /// Looks at all chunks that do not know the mark and sees to it that they do. Chunks that come meanwhile, or that
    /// cannot be read, may be left.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when `pace` says so; what the store says.
    pub(crate) fn run(&self, counters: &RunCounters, pace: Pace<'_>) -> Result<()> {
        let Some(mark) = self.mark else { return Ok(()) };
        for _ in 0..MOST_PASSES {
            let version = self.table.version();
            let unknown = |entry: &&ChunkEntry| entry.chunk.marked(mark) == Marked::Unknown;
            counters.leave(version.chunks.iter().filter(unknown).count());
            let mut note = |known: &[(ChunkId, bool)]| self.note(mark, known, counters);
            let survey = Survey::make(self, version, counters, pace, &mut note)?;
            let plan = Plan::of(self, &survey);
            let rest: Vec<(ChunkId, bool)> = plan.kept.iter().map(|chunk| (*chunk, true)).collect();
            self.note(mark, &rest, counters)?;
            for group in plan.groups {
                self.rearrange(group, counters, pace)?;
            }
            let unread: HashSet<ChunkId> = survey.unread().collect();
            let version = self.table.version();
            if version.chunks.iter().filter(unknown).all(|entry| unread.contains(&entry.chunk.id)) {
                break;
            }
        }
        Ok(())
    }

    fn note(&self, mark: MarkId, known: &[(ChunkId, bool)], counters: &RunCounters) -> Result<()> {
        for piece in known.chunks(NOTED_CHUNKS) {
            let piece: Vec<_> = piece.iter().map(|(chunk, may)| (*chunk, mark, *may)).collect();
            counters.note(self.store.set_marks(&self.table, &piece)?);
        }
        Ok(())
    }

    /// Writes a group anew; in smaller ones where memory is short. What changed meanwhile is left to the next look.
    fn rearrange(&self, group: Group, counters: &RunCounters, pace: Pace<'_>) -> Result<()> {
        let mut open = vec![group.chunks];
        while let Some(mut chunks) = open.pop() {
            let version = self.table.version();
            let by_id: HashMap<ChunkId, _> = version.chunks.iter().map(|entry| (entry.chunk.id, entry)).collect();
            let entries: Vec<_> = chunks.iter().filter_map(|id| by_id.get(id)).map(|e| (*e).clone()).collect();
            if entries.is_empty() {
                continue;
            }
            let live: Vec<usize> = entries.iter().map(|entry| entry.live_rows() as usize).collect();
            // A failure of ours is no failure of the store's: without an order rows stay as they are.
            let arrange = |rows: &_| Ok(self.arrangement(rows, &live, group.full_rows));
            match self.store.rearrange(&self.table, &entries, &arrange) {
                Ok(done) => {
                    counters.write(&done);
                    if !pace(done.written_bytes) {
                        return Err(stopped());
                    }
                }
                Err(terrace_tier_store::Error::BudgetExceeded { .. }) if chunks.len() > 1 => {
                    let second = chunks.split_off(chunks.len() / 2);
                    open.extend([second, chunks]);
                }
                Err(terrace_tier_store::Error::Conflict { .. }) if self.is_as_it_was() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// False when the table was altered, dropped or replaced.
    fn is_as_it_was(&self) -> bool {
        self.store.table(self.table.name()).is_ok_and(|table| Arc::ptr_eq(&table, &self.table))
    }

    /// False when the table was dropped or replaced.
    pub(crate) fn is_there(&self) -> bool {
        self.store.table(self.table.name()).is_ok_and(|table| table.id() == self.table.id())
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "the run was ended before it was over; what it found out is kept")
}
