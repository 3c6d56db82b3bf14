//! Late materialisation: a scan reads the filters' columns first, and of the other columns only what the rows that
//! passed need.
//!
//! Two reads one after the other take longer than one, so a scan learns whether late materialisation pays: it attempts
//! it for the first chunks, goes on while enough bytes are left out, and otherwise attempts it again from time to time,
//! because run-time filters get stricter.

use std::ops::Range;

use datafusion::common::Result;
use parking_lot::Mutex;
use terrace_tier_store::heat::Sample;

use super::cold::ColdPart;
use super::filter::{DynamicFilterUse, Selection, SliceFilter};
use super::open::OpenChunk;
use super::queue::ScanSpec;
use super::stream::Slices;

/// Chunks that are attempted before any outcome is known.
const FIRST_CHUNKS: u32 = 4;
/// Number of chunks read as a whole after which one is attempted again.
const TRY_AGAIN: u32 = 8;
/// Deferrable columns smaller than this together are read with the filters' columns, if those have to be read.
const LEAST_BYTES: u64 = 64 << 10;
/// Share of the other columns' bytes that has to be left out.
const LEAST_SAVED: f64 = 0.2;
/// Factor by which each new chunk lowers the weight of the earlier ones.
const MEMORY: f64 = 0.75;
/// Selected rows that are this close to each other are read as one range.
const NEAR_ROWS: usize = 64;

/// Decides for one execution of a scan which chunks are read filters first, by the outcome of earlier chunks.
#[derive(Debug)]
pub(super) struct LateMaterialization {
    possible: bool,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    /// Chunks attempted whose outcome is not known yet.
    pending: u32,
    /// Chunks since the last attempted one.
    untried: u32,
    /// Bytes of the deferred columns; older chunks weigh less.
    deferred_bytes: f64,
    /// Bytes of these that were read after all, weighed likewise.
    read_bytes: f64,
}

impl LateMaterialization {
    /// State for a scan; an ordered scan reads each chunk as a whole.
    pub(super) fn new(spec: &ScanSpec, ordered: bool) -> Self {
        let unfiltered = |slot: usize| !spec.filters_on(slot);
        let possible = !ordered && !spec.conjuncts.is_empty() && (0..spec.columns.len()).any(unfiltered);
        Self { possible, history: Mutex::default() }
    }

    /// True when the next chunk, of which `bytes` could be deferred, is to be read filters first. If the filters'
    /// columns are resident already (`filters_ready`), this costs no second read.
    pub(super) fn attempts(&self, bytes: u64, filters_ready: bool) -> bool {
        let may = self.possible && bytes >= if filters_ready { 1 } else { LEAST_BYTES };
        if !may || filters_ready {
            return may;
        }
        let known = &mut *self.history.lock();
        let pays = match known.deferred_bytes {
            0.0 => known.pending < FIRST_CHUNKS,
            deferred => known.read_bytes <= (1.0 - LEAST_SAVED) * deferred,
        };
        known.untried += 1;
        let attempts = pays || known.untried >= TRY_AGAIN;
        if attempts {
            known.pending += 1;
            known.untried = 0;
        }
        attempts
    }

    /// Takes an attempt back because the I/O budget has no room for the chunk now.
    pub(super) fn cancel_attempt(&self) {
        let known = &mut *self.history.lock();
        known.pending = known.pending.saturating_sub(1);
    }

    /// Records that `read` of `deferred` bytes have to be read after all.
    pub(super) fn learn(&self, deferred: u64, read: u64) {
        let known = &mut *self.history.lock();
        known.pending = known.pending.saturating_sub(1);
        known.deferred_bytes = known.deferred_bytes * MEMORY + deferred as f64;
        known.read_bytes = known.read_bytes * MEMORY + read as f64;
    }
}

/// The rows of a chunk that passed the filters.
#[derive(Debug)]
pub(super) struct SelectedRows {
    /// Selection of each slice.
    slices: Vec<Selection>,
    /// The rows as ascending ranges, which may include a few other rows between them.
    ranges: Vec<Range<usize>>,
}

impl SelectedRows {
    /// Evaluates the filters on a chunk whose filter columns are loaded.
    pub(super) fn evaluate(chunk: &OpenChunk, filter: &mut SliceFilter) -> Result<Self> {
        let mut slices = Vec::new();
        let mut ranges = Vec::<Range<usize>>::new();
        let mut add = |rows: Range<usize>| match ranges.last_mut() {
            Some(last) if rows.start <= last.end + NEAR_ROWS => last.end = rows.end,
            _ => ranges.push(rows),
        };
        while let Some(range) = chunk.take() {
            let live = chunk.live(&range);
            let selection = filter.apply(
                range.len(),
                live,
                &mut Slices { chunk, range: &range, known: &mut [], touched: Vec::new() },
                DynamicFilterUse::Always,
            )?;
            match &selection {
                Selection::All => add(range),
                Selection::Nothing => {}
                Selection::Some(mask) => {
                    mask.values().set_slices().for_each(|(start, end)| add(range.start + start..range.start + end));
                }
            }
            slices.push(selection);
        }
        Ok(Self { slices, ranges })
    }

    /// Selects `rows`, which ascend; no range crosses the border of a slice.
    pub(super) fn from_rows(rows: &[u32], slice_rows: usize) -> Self {
        let mut ranges = Vec::<Range<usize>>::new();
        for row in rows.iter().map(|row| *row as usize) {
            let joins =
                |last: &Range<usize>| row <= last.end + NEAR_ROWS && last.start / slice_rows == row / slice_rows;
            match ranges.last_mut().filter(|last| joins(last)) {
                Some(last) => last.end = row + 1,
                None => ranges.push(row..row + 1),
            }
        }
        Self { slices: Vec::new(), ranges }
    }

    /// The rows, as ascending ranges.
    pub(super) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Selection of the slice with this number.
    pub(super) fn slice(&self, number: usize) -> Selection {
        self.slices.get(number).cloned().unwrap_or(Selection::Nothing)
    }
}

/// Evaluates the filters on `chunk` and returns the part that is still to be read for the rows that passed; `None` when
/// no row passed.
pub(super) fn select_rows(
    late: &LateMaterialization,
    chunk: OpenChunk,
    filter: &mut SliceFilter,
) -> Result<Option<ColdPart>> {
    let selected = match SelectedRows::evaluate(&chunk, filter) {
        Ok(selected) => selected,
        Err(error) => {
            chunk.finish();
            return Err(error);
        }
    };
    let deferred = chunk.deferred_bytes();
    let metrics = chunk.metrics();
    let remaining = match selected.ranges.is_empty() {
        true => {
            chunk.note(chunk.rows(), 0, Sample::default);
            chunk.finish();
            None
        }
        false => chunk.remaining_columns(selected),
    };
    let read = remaining.as_ref().map_or(0, ColdPart::missing_bytes);
    late.learn(deferred, read);
    metrics.bytes_skipped.add(deferred.saturating_sub(read) as usize);
    Ok(remaining)
}
