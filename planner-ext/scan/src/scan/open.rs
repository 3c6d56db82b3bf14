//! A chunk (or delta batch) whose columns are loaded, given out in slices.
//!
//! Arrays are loaded once; one partition or, at the end of a scan, several of them take slices. The last partition that
//! releases the chunk finishes it: its outcome goes to the [`super::observer::ScanObserver`], and the I/O charge of cold
//! bytes ends.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, BooleanArray, NullArray, UInt64Array};
use arrow::buffer::BooleanBuffer;
use datafusion::common::{DataFusionError, Result};
use roaring::RoaringBitmap;
use terrace_error::store_error;
use terrace_tier_store::Error;
use terrace_tier_store::heat::Sample;
use terrace_tier_store::io::Class;
use terrace_tier_store::table::TableVersion;
use terrace_tier_store::tier::codec::{self, Dictionary, Form, StoredColumn};

use super::cold::ColdPart;
use super::filter::Selection;
use super::late::SelectedRows;
use super::metrics::ScanMetrics;
use super::outcome::{LoadedColumn, PendingOutcome, ReadPlace, RowProgress, ScanOutcome};
use super::packed_test::PackedTest;
use super::pages::{self, Overlap, Pages};
use super::plain_texts::plain_array;
use super::queue::ScanSpec;

/// Columns of one item, ready to be sliced.
pub(super) struct OpenChunk {
    /// What was read, and the rows so far; has the columns.
    outcome: PendingOutcome,
    /// Slices that no partition has taken.
    slices: SliceCursor,
    deletions: Option<Arc<RoaringBitmap>>,
    late: LateColumns,
    /// The class of the read that opened it; `None` for one that needed none.
    read_class: Option<Class>,
}

/// The next slice of a chunk, shared by the partitions.
struct SliceCursor {
    /// Number of rows, deleted ones included.
    rows: usize,
    /// Rows of a slice.
    step: usize,
    next: AtomicUsize,
}

impl SliceCursor {
    fn take(&self) -> Option<Range<usize>> {
        if !self.has_more() {
            return None;
        }
        let start = self.next.fetch_add(self.step, Ordering::Relaxed);
        (start < self.rows).then(|| start..self.rows.min(start + self.step))
    }

    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.rows
    }
}

/// Late materialisation of one chunk.
#[derive(Debug, Default)]
pub(super) struct LateColumns {
    /// Table columns that are read after the filters were evaluated; they have no values before.
    pub deferred: Vec<usize>,
    /// Rows that passed the filters, if these were evaluated before the other columns were read.
    pub selected: Option<SelectedRows>,
}

/// Result of opening a chunk.
pub(super) enum Opening {
    /// All columns are loaded.
    Now(Arc<OpenChunk>),
    /// Some columns have to be read first.
    Cold(ColdPart),
}

/// Placeholder for a column whose values are not read.
fn no_values() -> ArrayRef {
    Arc::new(NullArray::new(0))
}

impl OpenChunk {
    /// Opens an item: loads the columns that need no read.
    pub(super) fn open(spec: &Arc<ScanSpec>, item: u32) -> Result<Opening> {
        let Some(entry) = spec.source.chunk(item) else {
            return Self::open_delta(spec, item).map(Opening::Now);
        };
        let chunk = &entry.chunk;
        let mut missing = Vec::new();
        let mut columns = Vec::with_capacity(spec.columns.len());
        let home = spec.source.home_tier();
        for column in spec.columns.iter() {
            if spec.source.is_row_column(*column) {
                // Row positions are computed slice by slice.
                columns.push(Some(LoadedColumn::plain(no_values(), home)));
                continue;
            }
            let segment = chunk.columns().get(*column);
            if let Some(constant) = segment.and_then(|s| s.constant.as_ref()) {
                let rows = spec.slice_rows.min(chunk.rows as usize);
                columns.push(Some(LoadedColumn::plain(constant.array(rows).map_err(store_error)?, home)));
                continue;
            }
            let resident = segment.and_then(|s| s.resident.load_full());
            if resident.is_none() {
                missing.push(*column);
            }
            columns.push(resident.map(|resident| {
                let place = ReadPlace { tier: resident.tier.id(), bytes_read: 0, counts: true };
                LoadedColumn { values: resident.column.clone(), place }
            }));
        }
        let pages = if missing.is_empty() { None } else { Pages::for_chunk(spec, chunk) };
        let part = ColdPart {
            spec: Arc::clone(spec),
            item,
            chunk: Arc::clone(chunk),
            columns,
            missing,
            late: LateColumns::default(),
            pages,
            cold: Vec::new(),
        };
        Ok(if part.missing.is_empty() { Opening::Now(Arc::new(part.complete(None)?)) } else { Opening::Cold(part) })
    }

    fn open_delta(spec: &Arc<ScanSpec>, item: u32) -> Result<Arc<Self>> {
        let gone = || DataFusionError::Internal(format!("item {item} is not part of the scanned version"));
        let delta = spec.source.delta(item).ok_or_else(gone)?;
        let batch = delta.batch();
        let home = spec.source.home_tier();
        let column = |c: &usize| {
            let values = batch.columns().get(*c).cloned().unwrap_or_else(no_values);
            Some(LoadedColumn::plain(values, home))
        };
        let outcome = PendingOutcome {
            spec: Arc::clone(spec),
            item,
            chunk: None,
            columns: spec.columns.iter().map(column).collect(),
            rows: RowProgress::default(),
            pages: None,
            cold: Vec::new(),
        };
        Ok(Arc::new(Self::new(outcome, batch.num_rows(), delta.deletions.clone(), LateColumns::default())))
    }

    /// A chunk of `rows` rows, of which no slice was taken.
    pub(super) fn new(
        outcome: PendingOutcome,
        rows: usize,
        deletions: Option<Arc<RoaringBitmap>>,
        late: LateColumns,
    ) -> Self {
        let slices = SliceCursor { rows, step: outcome.spec.slice_rows, next: AtomicUsize::new(0) };
        Self { outcome, slices, deletions, late, read_class: None }
    }

    /// The chunk, opened by a read of `class`.
    pub(super) fn opened_by(self, class: Class) -> Self {
        Self { read_class: Some(class), ..self }
    }

    /// The class of the read that opened it; `None` for one that needed none.
    pub(super) fn read_class(&self) -> Option<Class> {
        self.read_class
    }

    /// Ends the scan of the chunk, whether all of it was scanned or not: reports its outcome to the observer.
    pub(super) fn finish(mut self) {
        self.outcome.finish();
    }

    /// Gives up a share of the chunk; the last partition that does so finishes it.
    pub(super) fn release(chunk: Arc<Self>) {
        if let Some(chunk) = Arc::into_inner(chunk) {
            chunk.finish();
        }
    }

    /// Number of rows, deleted ones included.
    pub(super) fn rows(&self) -> usize {
        self.slices.rows
    }

    /// True when columns are to be read after the filters were evaluated.
    pub(super) fn has_deferred(&self) -> bool {
        !self.late.deferred.is_empty()
    }

    /// The rows of a slice that passed the filters, if these were evaluated before.
    pub(super) fn selected(&self, range: &Range<usize>) -> Option<Selection> {
        self.late.selected.as_ref().map(|selected| selected.slice(range.start / self.slices.step))
    }

    /// Bytes of the deferred columns.
    pub(super) fn deferred_bytes(&self) -> u64 {
        let home = self.outcome.spec.source.store.home();
        let ranges = self.outcome.pages.as_ref().map(Pages::ranges);
        let chunk = self.outcome.chunk.as_ref();
        chunk.map_or(0, |chunk| self.late.deferred.iter().map(|c| home.bytes_to_read(chunk, *c, ranges)).sum())
    }

    /// Counts of the execution.
    pub(super) fn metrics(&self) -> ScanMetrics {
        self.outcome.spec.metrics.clone()
    }

    /// Turns the chunk into the part that reads the deferred columns for the rows that passed. `None` for a delta,
    /// which has no such columns.
    pub(super) fn remaining_columns(mut self, selected: SelectedRows) -> Option<ColdPart> {
        // The scan of the chunk goes on, so nothing is reported yet.
        let ScanOutcome { item, chunk, columns, rows: _, pages, cold } = self.outcome.take()?;
        let spec = Arc::clone(&self.outcome.spec);
        let late = LateColumns { deferred: Vec::new(), selected: Some(selected) };
        Some(ColdPart { spec, item, chunk, columns, missing: self.late.deferred, late, pages, cold })
    }

    /// Takes the next slice that no partition has taken; `None` when there is none.
    pub(super) fn take(&self) -> Option<Range<usize>> {
        self.slices.take()
    }

    /// True when a slice is left.
    pub(super) fn has_more(&self) -> bool {
        self.slices.has_more()
    }

    /// A slice of a read column, by its position in the scan's list.
    pub(super) fn slice(&self, slot: usize, range: &Range<usize>) -> Result<ArrayRef> {
        let PendingOutcome { spec, item, .. } = &self.outcome;
        if spec.columns.get(slot).is_some_and(|c| spec.source.is_row_column(*c)) {
            let first = TableVersion::position(*item, range.start as u32);
            return Ok(Arc::new(UInt64Array::from_iter_values(first..first + range.len() as u64)));
        }
        let gone = || DataFusionError::Internal(format!("column {slot} of a scan was not read"));
        let column = self.values(slot).ok_or_else(gone)?;
        let start = if column.rows() < self.rows() { 0 } else { range.start };
        column.slice(start, range.len()).map_err(|error| self.value_error(slot, error))
    }

    /// The error of a column whose values cannot be unpacked, with its chunk, its name and the file.
    fn value_error(&self, slot: usize, error: Error) -> DataFusionError {
        let PendingOutcome { spec, chunk, .. } = &self.outcome;
        match (chunk, spec.columns.get(slot)) {
            (Some(chunk), Some(column)) => store_error(codec::locate(error, &chunk.path, &chunk.column_label(*column))),
            _ => store_error(error),
        }
    }

    /// Like [`OpenChunk::slice`], but texts and bytes as plain arrays.
    pub(super) fn plain_slice(&self, slot: usize, range: &Range<usize>) -> Result<ArrayRef> {
        let stored = self.values(slot).filter(|column| column.rows() == self.rows());
        match stored.and_then(|column| column.texts_of_keys(range.start, range.len())) {
            Some(texts) => Ok(texts),
            None => plain_array(&self.slice(slot, range)?),
        }
    }

    /// Like [`OpenChunk::slice`], but only rows that are selected have to be right.
    pub(super) fn slice_selected(
        &self,
        slot: usize,
        range: &Range<usize>,
        selected: &BooleanBuffer,
    ) -> Result<ArrayRef> {
        match self.values(slot).filter(|column| column.rows() == self.rows() && selected.len() == range.len()) {
            Some(column) => column.slice_selected(range.start, selected).map_err(|error| self.value_error(slot, error)),
            None => self.slice(slot, range),
        }
    }

    /// The dictionary and the keys of a slice of a read column; `None` for a column that is stored without a
    /// dictionary.
    pub(super) fn keys(&self, slot: usize, range: &Range<usize>) -> Option<(Dictionary, ArrayRef)> {
        let (dictionary, keys) = self.values(slot)?.keys(range.start, range.len())?;
        Some((dictionary.clone(), keys))
    }

    /// The values of a slice of a read column as they are stored, which may be narrower than declared.
    pub(super) fn stored(&self, slot: usize, range: &Range<usize>) -> Option<ArrayRef> {
        self.all_values(slot)?.stored_values(range.start, range.len())
    }

    /// For each row of a slice of a read column, whether it passes a test of packed values, null for null.
    pub(super) fn packed(&self, slot: usize, range: &Range<usize>, test: PackedTest<'_>) -> Option<BooleanArray> {
        test.pass(self.all_values(slot)?, range.start, range.len())
    }

    /// For each row of a slice of a read column, whether it is null.
    pub(super) fn is_null(&self, slot: usize, range: &Range<usize>) -> Option<BooleanArray> {
        self.all_values(slot)?.is_null(range.start, range.len())
    }

    /// True for a read column of packed values that are no keys of a dictionary.
    pub(super) fn is_packed(&self, slot: usize) -> bool {
        self.all_values(slot).is_some_and(|column| column.form() == Form::Packed && column.dictionary().is_none())
    }

    /// True for a read column of texts or bytes that are packed one by one.
    pub(super) fn has_packed_texts(&self, slot: usize) -> bool {
        self.all_values(slot).is_some_and(StoredColumn::has_packed_texts)
    }

    /// The dictionary of a read column that is stored as keys.
    pub(super) fn dictionary(&self, slot: usize) -> Option<&Dictionary> {
        self.values(slot)?.dictionary()
    }

    /// A read column that has a value for each row of the chunk.
    fn all_values(&self, slot: usize) -> Option<&StoredColumn> {
        self.values(slot).filter(|column| column.rows() == self.rows())
    }

    fn values(&self, slot: usize) -> Option<&StoredColumn> {
        self.outcome.columns.get(slot)?.as_ref().map(|loaded| &loaded.values)
    }

    /// Reports the read of a slice of a column, so that an emulated device can delay it.
    pub(super) fn touch(&self, slot: usize, rows: usize) {
        let PendingOutcome { spec, chunk: Some(chunk), columns, .. } = &self.outcome else { return };
        let segment = spec.columns.get(slot).and_then(|c| chunk.columns().get(*c));
        if let (Some(Some(loaded)), Some(segment)) = (columns.get(slot), segment) {
            spec.source.touch(loaded.place.tier, segment.bytes() * rows as u64 / self.rows().max(1) as u64);
        }
    }

    /// The rows of a slice that are not deleted and not excluded by page bounds.
    pub(super) fn live(&self, range: &Range<usize>) -> Selection {
        let overlap = self.outcome.pages.as_ref().map_or(Overlap::Full, |pages| pages.overlap(range));
        let span = range.start as u32..range.end as u32;
        let deletions = self.deletions.as_ref().filter(|deletions| deletions.range_cardinality(span.clone()) > 0);
        let mut live = match (overlap, deletions) {
            (Overlap::None, _) => return Selection::Nothing,
            (Overlap::Full, None) => return Selection::All,
            (Overlap::Full, Some(_)) => pages::bits(range, std::slice::from_ref(range)),
            (Overlap::Partial(parts), _) => pages::bits(range, &parts),
        };
        for row in deletions.into_iter().flat_map(|deletions| deletions.range(span.clone())) {
            live.set_bit(row as usize - range.start, false);
        }
        Selection::Some(BooleanArray::new(live.finish(), None))
    }

    /// Notes that `survivors` of `rows` rows passed; `sample` is called if these are only some of the rows.
    pub(super) fn note(&self, rows: usize, survivors: usize, sample: impl FnOnce() -> Sample) {
        self.outcome.rows.add(rows, survivors, sample);
    }
}
