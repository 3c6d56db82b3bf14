//! Counts of the scans that hot views served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_tier_store::table::ColumnId;

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
    pub fn within(total: &Arc<Self>) -> Self {
        Self { total: Some(Arc::clone(total)), ..Self::default() }
    }

    /// Counts a scan that asked for rows of the view only, with the chunks and bytes that it skipped.
    pub fn hit(&self, pruned_chunks: u64, saved_bytes: u64) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.pruned_chunks.fetch_add(pruned_chunks, Ordering::Relaxed);
        self.saved_bytes.fetch_add(saved_bytes, Ordering::Relaxed);
        self.total.iter().for_each(|total| total.hit(pruned_chunks, saved_bytes));
    }

    /// Counts the columns that a hit read.
    pub fn read(&self, columns: impl Iterator<Item = ColumnId>) {
        let mut reads = self.reads.lock();
        columns.for_each(|column| *reads.entry(column).or_default() += 1);
    }

    /// Number of hits that read each column.
    pub fn reads(&self) -> Vec<(ColumnId, u64)> {
        self.reads.lock().iter().map(|(column, count)| (*column, *count)).collect()
    }

    /// Counts a scan of the view's table that may have asked for other rows.
    pub fn missed(&self) {
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
