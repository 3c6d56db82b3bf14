//! The tiering run of a hot view (Meyer et al., ADMS 2015, 4.1): marks chunks, and rewrites chunks so that rows of the
//! view lie together.
//!
//! - `arrange`: arranges the rows of a group of chunks that is rewritten
//! - `forecast`: forecasts a run without writing
//! - `plan`: decides which chunks stay as they are, and which are rewritten together
//! - `prepare`: makes the job of a run
//! - `survey`: finds the rows of the view in each chunk: by bounds, by the mark of an older version, by reading columns
//!
//! A run stores its results as marks of chunks, group by group, so it may end at any point and continue at another
//! time. No other operation waits for it: rewriting is an optimistic transaction, and all queries read chunks
//! without the mark. The caller ensures that only one run of a table is under way at a time.

mod arrange;
mod forecast;
mod plan;
mod prepare;
mod survey;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use terrace_error::{Error, ErrorKind, Result};
use terrace_scan::hot_views::RunCounters;
use terrace_tier_store::Store;
use terrace_tier_store::store::ChunkMark;
use terrace_tier_store::table::{ChunkEntry, ChunkId, MarkId, Marked, Table};

pub use forecast::Forecast;
use plan::{Group, Plan};
use survey::Survey;

use super::condition::Condition;

/// Most passes over the table; a run leaves chunks that are new after these to the next run.
const MOST_PASSES: usize = 4;
/// Most chunks that are marked in one commit.
const NOTED_CHUNKS: usize = 1024;

/// Called after each piece of work, with the bytes read from the home tier and written; false ends the run.
pub type KeepGoing<'a> = &'a dyn Fn(u64) -> bool;

/// Called with chunks, each with whether all of its rows may belong to the view (true), or none does (false).
pub(crate) type StoreMarks<'a> = &'a mut dyn FnMut(&[(ChunkId, bool)]) -> Result<()>;

/// A mark with its condition.
#[derive(Debug, Clone)]
pub(crate) struct Marking {
    pub(crate) mark: MarkId,
    pub(crate) condition: Arc<Condition>,
    /// True for the mark of the newest version of its view: rows are arranged by these marks.
    pub(crate) is_newest: bool,
}

/// The run of one version of a view.
#[derive(Debug)]
pub struct Job {
    pub(crate) store: Arc<Store>,
    pub(crate) table: Arc<Table>,
    pub(crate) condition: Arc<Condition>,
    /// The mark that chunks get; `None` for a job that is only forecast.
    pub(crate) mark: Option<MarkId>,
    /// Mark of the version that queries are checked against now.
    pub(crate) published: Option<MarkId>,
    /// Equal to `published` if all rows of this version belong to that one: chunks without rows of that version have
    /// none of this version either.
    pub(crate) before: Option<MarkId>,
    /// All other marks of views of the table, which rewritten rows keep.
    pub(crate) others: Vec<Marking>,
}

impl Job {
    /// Marks all chunks that do not have the mark yet. Chunks that are added meanwhile, or that cannot be read, may be
    /// left.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when `keep_going` returns false; errors of the store.
    pub fn run(&self, counters: &RunCounters, keep_going: KeepGoing<'_>) -> Result<()> {
        let Some(mark) = self.mark else { return Ok(()) };
        for _ in 0..MOST_PASSES {
            let version = self.table.version();
            let unknown = |entry: &&ChunkEntry| entry.chunk.marked(mark) == Marked::Unknown;
            counters.leave(version.chunks.iter().filter(unknown).count());
            let mut store_marks = |known: &[(ChunkId, bool)]| self.store_marks(mark, known, counters);
            let survey = Survey::make(self, version, counters, keep_going, &mut store_marks)?;
            let plan = Plan::new(self, &survey);
            let unchanged: Vec<(ChunkId, bool)> = plan.unchanged.iter().map(|chunk| (*chunk, true)).collect();
            self.store_marks(mark, &unchanged, counters)?;
            for group in plan.groups {
                self.rearrange(group, counters, keep_going)?;
            }
            let unread: HashSet<ChunkId> = survey.unread().collect();
            let version = self.table.version();
            if version.chunks.iter().filter(unknown).all(|entry| unread.contains(&entry.chunk.id)) {
                break;
            }
        }
        Ok(())
    }

    /// Stores the mark in chunks.
    fn store_marks(&self, mark: MarkId, known: &[(ChunkId, bool)], counters: &RunCounters) -> Result<()> {
        for piece in known.chunks(NOTED_CHUNKS) {
            let marks =
                piece.iter().map(|(chunk, may_fulfil)| ChunkMark { chunk: *chunk, mark, may_fulfil: *may_fulfil });
            let piece: Vec<_> = marks.collect();
            counters.note(self.store.set_marks(&self.table, &piece)?);
        }
        Ok(())
    }

    /// Rewrites a group, in smaller groups if memory is short. Chunks that changed meanwhile are left to the next pass.
    fn rearrange(&self, group: Group, counters: &RunCounters, keep_going: KeepGoing<'_>) -> Result<()> {
        let mut open = vec![group.chunks];
        while let Some(mut chunks) = open.pop() {
            let version = self.table.version();
            let by_id: HashMap<ChunkId, _> = version.chunks.iter().map(|entry| (entry.chunk.id, entry)).collect();
            let entries: Vec<_> = chunks.iter().filter_map(|id| by_id.get(id)).map(|e| (*e).clone()).collect();
            if entries.is_empty() {
                continue;
            }
            let live: Vec<usize> = entries.iter().map(|entry| entry.live_rows() as usize).collect();
            // The arrangement itself cannot fail.
            let arrange = |rows: &_| Ok(self.arrangement(rows, &live, group.full_rows));
            match self.store.rearrange(&self.table, &entries, &arrange) {
                Ok(done) => {
                    counters.write(&done);
                    if !keep_going(done.read_bytes + done.written_bytes) {
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
    pub fn is_there(&self) -> bool {
        self.store.table(self.table.name()).is_ok_and(|table| table.id() == self.table.id())
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "the run was stopped before it finished; its results so far are kept")
}
