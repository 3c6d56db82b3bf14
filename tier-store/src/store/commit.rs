//! Commits: changes of one or several tables that become durable, and then visible, together.
//!
//! ```text
//!   lock heads (by table id) -> make drafts; check conflicts and duplicate keys -> queue the catalog commit
//!   -> move the heads on -> unlock
//!   -> wait for the disk -> publish everything durable, in the order of the queue
//! ```
//!
//! Waiting happens outside of the locks, so writers of one table share an fsync. Versions are published under the lock
//! of the table list: a reader that takes versions of several tables under it sees all of a commit or nothing of it.

use std::collections::VecDeque;
use std::sync::Arc;

use roaring::RoaringBitmap;
use terrace_model::{Error, Result};
use terrace_storage::catalog::records::encode_batches;
use terrace_storage::catalog::{Commit, PendingCommit};
use terrace_storage::io::WritingStatement;
use terrace_storage::table::{Chunk, DeltaRows, Durability, Table, TableVersion};

use super::core::Core;
use super::draft::{Draft, NextVersion, RowHolder};
use super::unique::NewKeys;
use crate::store::ingest::SealedChunk;

/// Changes that a commit makes to one table.
#[derive(Debug)]
pub(super) struct TableWrites {
    pub(super) table: Arc<Table>,
    /// Rows to delete, by the chunk or delta entry that held them when they were read.
    pub(super) deleted: Vec<(RowHolder, RoaringBitmap)>,
    /// New chunks, each with its rows that are deleted already.
    pub(super) chunks: Vec<(SealedChunk, Option<Arc<RoaringBitmap>>)>,
    /// New rows for the delta.
    pub(super) delta: Vec<DeltaRows>,
    /// The version whose keys the new rows were compared with, as well as among themselves; `None`: not compared at
    /// all.
    pub(super) compared: Option<Arc<TableVersion>>,
    /// The statement that stores the new rows.
    pub(super) statement: Arc<WritingStatement>,
}

impl TableWrites {
    pub(super) fn new(table: &Arc<Table>) -> Self {
        let (deleted, chunks, delta) = Default::default();
        Self { table: Arc::clone(table), deleted, chunks, delta, compared: None, statement: Arc::default() }
    }

    fn is_empty(&self) -> bool {
        self.deleted.is_empty() && self.chunks.is_empty() && self.delta.is_empty()
    }

    /// False for inserts into a table that opted out of logging. A commit with any other change is logged as a whole.
    fn needs_log(&self) -> bool {
        let volatile = self.table.options().durability == Durability::None;
        !volatile || !self.deleted.is_empty() || !self.chunks.is_empty()
    }

    fn encoded_rows(&self) -> Result<Vec<Option<Vec<u8>>>> {
        let encode =
            |rows: &DeltaRows| encode_batches(self.table.schema(), std::slice::from_ref(rows.batch())).map(Some);
        self.delta.iter().map(encode).collect()
    }
}

type Versions = Vec<(Arc<Table>, NextVersion)>;

/// Versions that wait for their commit, in the order of the catalog's queue.
#[derive(Debug, Default)]
pub(super) struct Publications {
    next: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    /// False when no part of the commit is written to the disk.
    is_logged: bool,
    versions: Versions,
}

/// A commit on its way to the disk.
#[derive(Debug)]
#[must_use = "a commit is visible only when completed"]
pub(super) struct Submitted {
    number: u64,
    pending: Option<PendingCommit>,
}

impl Core {
    /// Commits all of `writes` or none of them, and publishes the new versions.
    ///
    /// # Errors
    /// [`Error::Conflict`] when a row to delete was deleted by another commit, or a table was dropped;
    /// [`Error::DuplicateKey`].
    pub(super) fn commit(&self, writes: Vec<TableWrites>) -> Result<()> {
        let done = self.try_commit(writes);
        if let Err(Error::Conflict { .. } | Error::DuplicateKey { .. }) = done {
            // The conflicting commit may still wait for the disk. Wait for it too: a caller that tries again must see
            // it.
            let submitted = self.submit(Commit::default(), Vec::new());
            self.complete(submitted)?;
        }
        done
    }

    fn try_commit(&self, mut writes: Vec<TableWrites>) -> Result<()> {
        writes.retain(|w| !w.is_empty());
        writes.sort_by_key(|w| w.table.id());
        let logged = writes.iter().any(TableWrites::needs_log);
        let tables: Vec<Arc<Table>> = writes.iter().map(|w| Arc::clone(&w.table)).collect();
        let statements: Vec<Arc<WritingStatement>> = writes.iter().map(|w| Arc::clone(&w.statement)).collect();
        let encode = |w: &TableWrites| if logged { w.encoded_rows() } else { Ok(vec![None; w.delta.len()]) };
        let encoded = writes.iter().map(encode).collect::<Result<Vec<_>>>()?;
        let mut keys = writes.iter().map(NewKeys::from_writes).collect::<Result<Vec<_>>>()?;
        for (keys, writes) in keys.iter_mut().zip(&writes) {
            keys.as_mut().map_or(Ok(()), |keys| keys.prepare(self, writes))?;
        }
        for writes in &writes {
            self.sync_names(writes.chunks.iter().map(|(sealed, _)| sealed))?;
        }
        let submitted = {
            let mut heads: Vec<_> = tables.iter().map(|table| table.lock_head()).collect();
            let mut commit = Commit::default();
            let mut next = Vec::with_capacity(writes.len());
            for (((writes, encoded), keys), head) in writes.into_iter().zip(encoded).zip(keys).zip(&heads) {
                let mut draft = Draft::new(self, &writes.table, head)?;
                for (holder, rows) in &writes.deleted {
                    draft.delete(holder, rows)?;
                }
                keys.map_or(Ok(()), |mut keys| keys.compare(self, &draft))?;
                writes.chunks.into_iter().for_each(|(chunk, deletions)| draft.add_chunk(chunk, deletions));
                writes.delta.into_iter().zip(encoded).for_each(|(rows, encoded)| draft.add_rows(rows, encoded));
                next.push(draft.finish(&mut commit)?);
            }
            for (head, next) in heads.iter_mut().zip(&next) {
                head.version = Arc::clone(&next.version);
            }
            self.submit(commit, tables.iter().cloned().zip(next).collect())
        };
        self.complete(submitted)?;
        for (table, statement) in tables.iter().zip(&statements) {
            self.seal_if_full(table, statement);
            self.fold_if_many(table);
        }
        Ok(())
    }

    /// Queues a commit and the versions it makes durable. The caller holds the locks of their heads and has
    /// moved the heads on.
    pub(super) fn submit(&self, commit: Commit, versions: Versions) -> Submitted {
        // Even if the commit fails: only the next start can tell whether it reached the disk, and it removes orphans.
        versions.iter().flat_map(|(_, next)| &next.added).for_each(|chunk| chunk.keep_file());
        let mut publications = self.publications.lock();
        let number = publications.next;
        publications.next += 1;
        // An unlogged commit need not wait, unless it builds on a commit that does.
        let volatile = commit.is_empty() && publications.waiting.is_empty();
        publications.waiting.push_back(Waiting { number, is_logged: !volatile, versions });
        let pending = (!volatile).then(|| self.catalog.submit_numbered(commit, number));
        Submitted { number, pending }
    }

    /// Waits until a commit is durable and publishes it, with all commits queued before it.
    pub(super) fn complete(&self, submitted: Submitted) -> Result<()> {
        if let Some(pending) = submitted.pending {
            pending.wait()?;
        }
        // Dropped after the locks: the last reader of a chunk deletes its file.
        let mut removed = Vec::new();
        let mut publications = self.publications.lock();
        let _list = self.tables.write();
        let now = self.clock.now_us();
        while let Some(waiting) = publications.waiting.pop_front_if(|waiting| waiting.number <= submitted.number) {
            self.publish(waiting.versions, now, &mut removed);
        }
        Ok(())
    }

    fn publish(&self, versions: Versions, now_us: u64, removed: &mut Vec<Arc<Chunk>>) {
        for (table, next) in versions {
            table.publish(next.version, now_us);
            for chunk in next.removed {
                chunk.mark_for_deletion(&self.home);
                table.forget_chunk(chunk.id);
                removed.push(chunk);
            }
        }
    }

    /// Opens the catalog again after the disk refused a write. Tables continue from their last durable version: commits
    /// queued after the failed one are discarded, and their new files are deleted.
    ///
    /// # Errors
    /// The reason why the catalog cannot be written yet.
    pub(super) fn reopen_catalog(&self) -> Result<()> {
        // Wait until a change of a definition under way has got its result.
        let _ddl = self.ddl.lock();
        if self.catalog.failure().is_none() {
            // Another thread has reopened it, and heads may be ahead of the published versions again.
            return Ok(());
        }
        self.catalog.reopen(self.descriptions.files())?;
        let mut tables = self.tables();
        tables.sort_by_key(|table| table.id());
        let mut heads: Vec<_> = tables.iter().map(|table| table.lock_head()).collect();
        // Dropped after the locks: the last reader of a chunk deletes its file.
        let mut removed = Vec::new();
        let mut forgotten = Vec::new();
        let mut publications = self.publications.lock();
        let list = self.tables.write();
        let durable = self.catalog.durable();
        let now = self.clock.now_us();
        let is_durable = |waiting: &mut Waiting| !waiting.is_logged || Some(waiting.number) <= durable;
        while let Some(waiting) = publications.waiting.pop_front_if(is_durable) {
            self.publish(waiting.versions, now, &mut removed);
        }
        forgotten.extend(publications.waiting.drain(..).flat_map(|waiting| waiting.versions));
        for (table, next) in &forgotten {
            let kept = table.version();
            let is_kept = |chunk: &Chunk| kept.chunks.iter().any(|entry| entry.chunk.path == chunk.path);
            next.added.iter().filter(|chunk| !is_kept(chunk)).for_each(|chunk| chunk.mark_for_deletion(&self.home));
        }
        for (table, head) in tables.iter().zip(&mut heads) {
            head.version = table.version();
            head.dropped = false;
            // The commit that moved these rows did not happen.
            head.version.chunks.iter().for_each(|entry| entry.chunk.forwarding.moved.clear());
            head.version.delta.iter().for_each(|rows| rows.entry.moved.clear());
        }
        self.catalog.resume();
        drop((list, publications, heads));
        Ok(())
    }

    /// Seals a delta that has grown enough, for the statement that made it grow. Its commit stays durable even if this fails.
    fn seal_if_full(&self, table: &Arc<Table>, statement: &WritingStatement) {
        let version = table.version();
        let full = version.delta_rows() >= u64::from(table.options().chunk_rows);
        if (full || version.delta_bytes() >= self.seal.bytes)
            && let Err(error) = self.seal_for(table, statement)
        {
            tracing::warn!(table = %table.name(), %error, "cannot seal a delta; it stays in DRAM and is tried again");
        }
    }
}
