//! Published views: the chunks of their tables know which rows they have, so scans that ask for no others leave chunks out.
//!
//! A published view is the version of a hot view that the last tiering run was for. Its mark is its own for ever: chunks of
//! any snapshot that know the mark know it for this condition, whatever became of the view since.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_tier_store::table::{ColumnId, MarkId, Table, TableName};

use super::bound::BoundView;

/// A version of a view whose rows chunks know.
#[derive(Debug, Clone)]
pub(crate) struct PublishedView {
    pub(super) mark: MarkId,
    pub(super) view: Arc<BoundView>,
    /// The table under the definition that it was bound to.
    pub(super) table: Weak<Table>,
    pub(super) tally: Arc<ViewTally>,
}

impl PublishedView {
    /// What chunks know it by.
    pub(crate) fn mark(&self) -> MarkId {
        self.mark
    }

    /// Its condition.
    pub(crate) fn view(&self) -> &Arc<BoundView> {
        &self.view
    }

    /// False for a snapshot from before the table was altered or replaced: its columns may be others.
    pub(super) fn is_of(&self, table: &Arc<Table>) -> bool {
        std::ptr::eq(self.table.as_ptr(), Arc::as_ptr(table))
    }
}

/// A published view of a scanned table.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) name: TableName,
    /// Its mark, if all rows that the scan asks for are rows of the view, which has all the columns that it reads.
    pub(crate) mark: Option<MarkId>,
    pub(crate) tally: Arc<ViewTally>,
}

/// What scans did with a view, or with all views, since the server started.
#[derive(Debug, Default)]
pub struct ViewTally {
    hits: AtomicU64,
    misses: AtomicU64,
    pruned_chunks: AtomicU64,
    saved_bytes: AtomicU64,
    /// Hits that read a column.
    reads: Mutex<BTreeMap<ColumnId, u64>>,
    /// Where all views are summed up.
    total: Option<Arc<ViewTally>>,
}

impl ViewTally {
    /// Of one view; `total` counts the same.
    pub(super) fn within(total: &Arc<Self>) -> Self {
        Self { total: Some(Arc::clone(total)), ..Self::default() }
    }

    /// A scan ran that asked for rows of the view only, and left so much out.
    pub(crate) fn hit(&self, pruned_chunks: u64, saved_bytes: u64) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.pruned_chunks.fetch_add(pruned_chunks, Ordering::Relaxed);
        self.saved_bytes.fetch_add(saved_bytes, Ordering::Relaxed);
        self.total.iter().for_each(|total| total.hit(pruned_chunks, saved_bytes));
    }

    /// A hit read these columns.
    pub(crate) fn read(&self, columns: impl Iterator<Item = ColumnId>) {
        let mut reads = self.reads.lock();
        columns.for_each(|column| *reads.entry(column).or_default() += 1);
    }

    /// How many hits read which column.
    pub(super) fn reads(&self) -> Vec<(ColumnId, u64)> {
        self.reads.lock().iter().map(|(column, count)| (*column, *count)).collect()
    }

    /// A scan of its table ran that may have asked for others.
    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.total.iter().for_each(|total| total.missed());
    }

    /// Scans that asked for rows of the view only.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Scans of its table that may have asked for others.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Chunks that scans did not read because of it, and would have read otherwise.
    pub fn pruned_chunks(&self) -> u64 {
        self.pruned_chunks.load(Ordering::Relaxed)
    }

    /// Bytes at home of the columns that they would have read of these.
    pub fn saved_bytes(&self) -> u64 {
        self.saved_bytes.load(Ordering::Relaxed)
    }
}
