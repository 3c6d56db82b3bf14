//! Published views: chunks know by a mark whether they have rows of such a view, so scans that ask for no other rows
//! skip chunks.
//!
//! A published view is the version of a hot view that the last tiering run was for. Its mark is never reused: in chunks
//! of any snapshot the mark stands for this condition, even if the view was changed since.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_tier_store::table::{ColumnId, MarkId, Table, TableName};

use super::bound::BoundView;

/// A version of a view whose mark chunks know.
#[derive(Debug, Clone)]
pub(crate) struct PublishedView {
    pub(super) mark: MarkId,
    pub(super) view: Arc<BoundView>,
    /// The table under the definition that it was bound to.
    pub(super) table: Weak<Table>,
    pub(super) tally: Arc<ViewTally>,
}

impl PublishedView {
    /// The mark by which chunks know the view.
    pub(crate) fn mark(&self) -> MarkId {
        self.mark
    }

    /// The view, bound to its table.
    pub(crate) fn view(&self) -> &Arc<BoundView> {
        &self.view
    }

    /// False for a snapshot from before the table was altered or replaced, which may have other columns.
    pub(super) fn is_for(&self, table: &Arc<Table>) -> bool {
        std::ptr::eq(self.table.as_ptr(), Arc::as_ptr(table))
    }
}

/// A published view of a scanned table, and whether the scan asks for its rows only.
#[derive(Debug, Clone)]
pub(crate) struct ScanView {
    pub(crate) name: TableName,
    /// The mark of the view, if the scan asks only for rows of the view, and reads only columns of the view.
    pub(crate) mark: Option<MarkId>,
    pub(crate) tally: Arc<ViewTally>,
}

/// Counts of the scans that a view, or all views, served since the server started.
#[derive(Debug, Default)]
pub struct ViewTally {
    hits: AtomicU64,
    misses: AtomicU64,
    pruned_chunks: AtomicU64,
    saved_bytes: AtomicU64,
    /// Number of hits that read each column.
    reads: Mutex<BTreeMap<ColumnId, u64>>,
    /// Tally of all views, which counts the same events.
    total: Option<Arc<ViewTally>>,
}

impl ViewTally {
    /// A tally of one view; `total` counts the same events.
    pub(super) fn within(total: &Arc<Self>) -> Self {
        Self { total: Some(Arc::clone(total)), ..Self::default() }
    }

    /// Counts a scan that asked for rows of the view only, with the chunks and bytes that it skipped.
    pub(crate) fn hit(&self, pruned_chunks: u64, saved_bytes: u64) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.pruned_chunks.fetch_add(pruned_chunks, Ordering::Relaxed);
        self.saved_bytes.fetch_add(saved_bytes, Ordering::Relaxed);
        self.total.iter().for_each(|total| total.hit(pruned_chunks, saved_bytes));
    }

    /// Counts the columns that a hit read.
    pub(crate) fn read(&self, columns: impl Iterator<Item = ColumnId>) {
        let mut reads = self.reads.lock();
        columns.for_each(|column| *reads.entry(column).or_default() += 1);
    }

    /// Number of hits that read each column.
    pub(super) fn reads(&self) -> Vec<(ColumnId, u64)> {
        self.reads.lock().iter().map(|(column, count)| (*column, *count)).collect()
    }

    /// Counts a scan of the view's table that may have asked for other rows.
    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.total.iter().for_each(|total| total.missed());
    }

    /// Scans that asked for rows of the view only.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Scans of the view's table that may have asked for other rows.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Chunks that scans skipped because of the view, and would have read otherwise.
    pub fn pruned_chunks(&self) -> u64 {
        self.pruned_chunks.load(Ordering::Relaxed)
    }

    /// Bytes on the home tier of the columns that scans would have read of the skipped chunks.
    pub fn saved_bytes(&self) -> u64 {
        self.saved_bytes.load(Ordering::Relaxed)
    }
}
