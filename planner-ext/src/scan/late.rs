//! Late materialisation: the filters' columns are read first, the others as far as rows that passed need them.
//!
//! Two reads in turn take longer than one, so a scan learns whether it pays: it tries its first chunks, goes on while
//! enough is left out, and otherwise asks again now and then, because run-time filters get stricter.

use std::ops::Range;

use datafusion::common::Result;
use parking_lot::Mutex;
use terrace_tier_store::heat::Sample;

use super::filter::{Asking, Selection, SliceFilter};
use super::open::{ColdPart, OpenChunk};
use super::queue::ScanSpec;
use super::stream::Slices;

/// Chunks tried before anything is known.
const FIRST_CHUNKS: u32 = 4;
/// After so many chunks read as a whole, one is tried again.
const TRY_AGAIN: u32 = 8;
/// Columns smaller than this together are read with the filters' columns, where these are to be read.
const LEAST_BYTES: u64 = 64 << 10;
/// Of the other columns' bytes, the share that has to be left out.
const LEAST_SAVED: f64 = 0.2;
/// What a new chunk leaves of the weight of those before it.
const MEMORY: f64 = 0.75;
/// Rows that passed this close to each other are read as one range.
const NEAR_ROWS: usize = 64;

/// What an execution learned.
#[derive(Debug)]
pub(super) struct Late {
    possible: bool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Chunks tried whose outcome is not known.
    open: u32,
    /// Chunks since the last one that was tried.
    untried: u32,
    /// Bytes of the columns that waited, and of what was read of them; older chunks weigh less.
    all: f64,
    read: f64,
}

impl Late {
    /// Of a scan; ordered ones read each chunk at once.
    pub(super) fn new(spec: &ScanSpec, ordered: bool) -> Self {
        let waits = |slot: usize| !spec.filters_on(slot);
        let possible = !ordered && !spec.conjuncts.is_empty() && (0..spec.columns.len()).any(waits);
        Self { possible, known: Mutex::default() }
    }

    /// True when the next chunk, of which `bytes` could wait, is to be read filters first. Where the filters' columns are
    /// `there` already, that costs no second read.
    pub(super) fn tries(&self, bytes: u64, there: bool) -> bool {
        let may = self.possible && bytes >= if there { 1 } else { LEAST_BYTES };
        if !may || there {
            return may;
        }
        let known = &mut *self.known.lock();
        let pays = match known.all {
            0.0 => known.open < FIRST_CHUNKS,
            all => known.read <= (1.0 - LEAST_SAVED) * all,
        };
        known.untried += 1;
        let tries = pays || known.untried >= TRY_AGAIN;
        if tries {
            (known.open, known.untried) = (known.open + 1, 0);
        }
        tries
    }

    /// The chunk that was to be tried is not read now.
    pub(super) fn put_off(&self) {
        let known = &mut *self.known.lock();
        known.open = known.open.saturating_sub(1);
    }

    /// Of `all` bytes that waited, `read` are needed.
    pub(super) fn learn(&self, all: u64, read: u64) {
        let known = &mut *self.known.lock();
        known.open = known.open.saturating_sub(1);
        known.all = known.all * MEMORY + all as f64;
        known.read = known.read * MEMORY + read as f64;
    }
}

/// The rows of a chunk that passed the filters.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Of each slice.
    slices: Vec<Selection>,
    /// The rows, as ascending ranges, perhaps with a few others between them.
    ranges: Vec<Range<usize>>,
}

impl Chosen {
    /// Evaluates the filters on a chunk whose filter columns are there.
    pub(super) fn of(chunk: &OpenChunk, filter: &mut SliceFilter) -> Result<Self> {
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
                Asking::All,
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

    /// Rows (ascending) that are known already; ranges do not go across slices.
    pub(super) fn rows(rows: &[u32], slice_rows: usize) -> Self {
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

    /// Those of the slice with this number.
    pub(super) fn slice(&self, number: usize) -> Selection {
        self.slices.get(number).cloned().unwrap_or(Selection::Nothing)
    }
}

/// Evaluates the filters on `chunk`; what is to be read of its other columns, `None` when no row passed.
pub(super) fn choose(late: &Late, chunk: OpenChunk, filter: &mut SliceFilter) -> Result<Option<ColdPart>> {
    let chosen = Chosen::of(&chunk, filter)?;
    let all = chunk.waiting_bytes();
    let metrics = chunk.metrics();
    let rest = match chosen.ranges.is_empty() {
        true => {
            chunk.note(chunk.rows(), 0, Sample::default);
            None
        }
        false => chunk.rest(chosen),
    };
    let read = rest.as_ref().map_or(0, ColdPart::missing_bytes);
    late.learn(all, read);
    metrics.bytes_skipped.add(all.saturating_sub(read) as usize);
    Ok(rest)
}
