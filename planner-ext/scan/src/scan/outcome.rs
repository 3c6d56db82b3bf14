//! The outcome of the scan of one chunk, as plain data: what was read of it and which rows passed.
//!
//! A [`PendingOutcome`] grows while partitions scan the chunk. When the scan of the chunk ends, it becomes a
//! [`ScanOutcome`] and goes to the [`super::observer::ScanObserver`], once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use arrow::array::ArrayRef;
use terrace_tier_store::heat::Sample;
use terrace_tier_store::table::Chunk;
use terrace_tier_store::tier::TierId;
use terrace_tier_store::tier::codec::StoredColumn;
use terrace_tier_store::tier::reader::ColdColumns;

use super::pages::Pages;
use super::queue::ScanSpec;

/// What the scan of a chunk has read, when it has ended: with the last row, or because it was given up.
pub(super) struct ScanOutcome {
    /// Position of the chunk in the table version.
    pub item: u32,
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// One for each column of the scan; `None` for a column that was not read.
    pub columns: Vec<Option<LoadedColumn>>,
    /// The rows.
    pub rows: RowCounts,
    /// Pages that were read of cold columns with filters; `None` if all pages were.
    pub pages: Option<Pages>,
    /// The reads from the home tier, with their charges; their arrays are in `columns`.
    pub cold: Vec<ColdColumns>,
}

/// Values of a column of a chunk, and the place that they were read from.
pub(super) struct LoadedColumn {
    /// The values. A constant column has only as many rows as the longest slice.
    pub values: StoredColumn,
    /// Their place.
    pub place: ReadPlace,
}

impl LoadedColumn {
    /// A column of which no bytes were read.
    pub(super) fn plain(array: ArrayRef, tier: TierId) -> Self {
        Self { values: StoredColumn::plain(array), place: ReadPlace { tier, bytes_read: 0, counts: true } }
    }
}

/// The place that a column of a chunk was read from.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadPlace {
    /// The tier.
    pub tier: TierId,
    /// Bytes read, if `tier` is the home tier; else 0.
    pub bytes_read: u64,
    /// Whether placement learns from the read: `false` for one from the home of a class that it does not admit.
    pub counts: bool,
}

/// Rows of a chunk that were scanned.
#[derive(Debug)]
pub(super) struct RowCounts {
    /// Rows of all slices that were scanned.
    pub scanned: usize,
    /// Rows that passed the filters.
    pub survivors: usize,
    /// Rows of the slices of which not all rows passed.
    pub parted: usize,
    /// Sample of the survivors in these slices.
    pub sample: Sample,
}

/// [`RowCounts`] to which several partitions add.
#[derive(Debug, Default)]
pub(super) struct RowProgress {
    scanned: AtomicUsize,
    survivors: AtomicUsize,
    parted: AtomicUsize,
    up: AtomicU32,
    down: AtomicU32,
    near: AtomicU32,
    runs: AtomicU32,
}

impl RowProgress {
    /// Adds `rows` rows of which `survivors` passed; `sample` is called if these are only some of the rows.
    pub(super) fn add(&self, rows: usize, survivors: usize, sample: impl FnOnce() -> Sample) {
        self.scanned.fetch_add(rows, Ordering::Relaxed);
        self.survivors.fetch_add(survivors, Ordering::Relaxed);
        if survivors < rows && !cfg!(feature = "no-counters") {
            self.parted.fetch_add(rows, Ordering::Relaxed);
            let Sample { up, down, near, runs } = if survivors > 0 { sample() } else { Sample::default() };
            for (sum, steps) in [(&self.up, up), (&self.down, down), (&self.near, near), (&self.runs, runs)] {
                if steps > 0 {
                    sum.fetch_add(steps, Ordering::Relaxed);
                }
            }
        }
    }

    /// The rows so far. Complete for the last owner of the chunk: the others added theirs before they let go of it.
    fn counts(&self) -> RowCounts {
        let steps = |sum: &AtomicU32| sum.load(Ordering::Relaxed);
        RowCounts {
            scanned: self.scanned.load(Ordering::Relaxed),
            survivors: self.survivors.load(Ordering::Relaxed),
            parted: self.parted.load(Ordering::Relaxed),
            sample: Sample {
                up: steps(&self.up),
                down: steps(&self.down),
                near: steps(&self.near),
                runs: steps(&self.runs),
            },
        }
    }
}

/// The outcome of a chunk that is still scanned.
///
/// Dropping it finishes it. A scan finishes chunks explicitly where it ends with them
/// ([`super::open::OpenChunk::release`], [`super::open::OpenChunk::finish`]), but partitions share a chunk, and any of
/// them may be dropped or leave by an error or a panic while another one still works on it. That the last owner is
/// gone is the one event which comes exactly once in all these cases, so no read stays uncounted.
pub(super) struct PendingOutcome {
    /// The execution.
    pub spec: Arc<ScanSpec>,
    /// Position of the chunk or delta entry in the table version.
    pub item: u32,
    /// `None` for a delta entry, which has no outcome, and once the outcome was taken.
    pub chunk: Option<Arc<Chunk>>,
    /// As in [`ScanOutcome`].
    pub columns: Vec<Option<LoadedColumn>>,
    /// The rows so far.
    pub rows: RowProgress,
    /// As in [`ScanOutcome`].
    pub pages: Option<Pages>,
    /// As in [`ScanOutcome`].
    pub cold: Vec<ColdColumns>,
}

impl PendingOutcome {
    /// The outcome so far, which is not reported any more; `None` if there is none.
    pub(super) fn take(&mut self) -> Option<ScanOutcome> {
        Some(ScanOutcome {
            chunk: self.chunk.take()?,
            item: self.item,
            columns: std::mem::take(&mut self.columns),
            rows: self.rows.counts(),
            pages: self.pages.take(),
            cold: std::mem::take(&mut self.cold),
        })
    }

    /// Reports the outcome, unless that was done.
    pub(super) fn finish(&mut self) {
        if let Some(outcome) = self.take() {
            self.spec.observer.finish(outcome);
        }
    }
}

impl Drop for PendingOutcome {
    fn drop(&mut self) {
        self.finish();
    }
}
