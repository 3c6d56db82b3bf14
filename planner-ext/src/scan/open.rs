//! A chunk (or delta batch) whose columns are loaded, given out in slices.
//!
//! Arrays are loaded once; one partition or, at the end of a scan, several of them take slices. When the last slice is
//! done the chunk counts an access of each segment it needed, and the I/O charge of cold bytes ends.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use arrow::array::{ArrayRef, BooleanArray, NullArray, UInt64Array};
use datafusion::common::{DataFusionError, Result};
use roaring::RoaringBitmap;
use terrace_tier_store::heat::{Pattern, Sample};
use terrace_tier_store::table::{Chunk, TableVersion};
use terrace_tier_store::tier::TierId;
use terrace_tier_store::tier::codec::{Dictionary, StoredColumn};
use terrace_tier_store::tier::ssd::{Admission, ColdColumns, ColdRead};

use super::filter::{Conjunct, Selection};
use super::late::SelectedRows;
use super::metrics::ScanMetrics;
use super::pages::{self, Overlap, Pages};
use super::queue::ScanSpec;
use crate::error::store_error;

/// Columns of one item, ready to be sliced.
pub(super) struct OpenChunk {
    spec: Arc<ScanSpec>,
    item: u32,
    rows: usize,
    next: AtomicUsize,
    /// A constant column has only as many rows as the longest slice.
    columns: Vec<StoredColumn>,
    deletions: Option<Arc<RoaringBitmap>>,
    touched: Option<TouchedChunk>,
    scanned: AtomicUsize,
    survivors: AtomicUsize,
    /// Rows of the slices that some, but not all rows survived.
    parted: AtomicUsize,
    /// Sample of the survivors in these slices: steps up, down, and near, and runs of neighbours.
    steps: [AtomicU32; 4],
    /// Table columns that are read after the filters were evaluated; their slots hold no values.
    deferred: Vec<usize>,
    /// Rows that passed the filters, if these were evaluated before the other columns were read.
    selected: Option<SelectedRows>,
    /// Pages whose rows can pass the filters: cold columns have no values elsewhere.
    pages: Option<Pages>,
    /// The charges of the bytes read; the arrays are in `columns`.
    cold: Vec<ColdColumns>,
}

/// The places that the columns of a chunk were read from.
struct TouchedChunk {
    chunk: Arc<Chunk>,
    /// Per column of the scan: its tier, and the bytes read if that was the home tier; `None` if it was not read.
    places: Vec<Option<(TierId, u64)>>,
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

/// A chunk with columns that are not resident.
pub(super) struct ColdPart {
    spec: Arc<ScanSpec>,
    item: u32,
    chunk: Arc<Chunk>,
    /// The loaded columns among those of the scan.
    columns: Vec<Option<LoadedColumn>>,
    /// Table columns to be read.
    missing: Vec<usize>,
    /// Table columns to be read after the filters were evaluated.
    deferred: Vec<usize>,
    selected: Option<SelectedRows>,
    /// Pages whose rows can pass the filters.
    pages: Option<Pages>,
    cold: Vec<ColdColumns>,
}

/// Values of a column, and the place they came from.
struct LoadedColumn {
    values: StoredColumn,
    tier: TierId,
    /// Bytes read, if `tier` is the home tier.
    bytes_read: u64,
}

impl LoadedColumn {
    fn plain(array: ArrayRef, tier: TierId) -> Self {
        Self { values: StoredColumn::plain(array), tier, bytes_read: 0 }
    }
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
            columns.push(resident.map(|r| LoadedColumn { values: r.column.clone(), tier: r.tier.id(), bytes_read: 0 }));
        }
        let deferred = Vec::new();
        let selected = None;
        let cold = Vec::new();
        let pages = if missing.is_empty() { None } else { Pages::for_chunk(spec, chunk) };
        let spec = Arc::clone(spec);
        let chunk = Arc::clone(chunk);
        let part = ColdPart { spec, item, chunk, columns, missing, deferred, selected, pages, cold };
        Ok(if part.missing.is_empty() { Opening::Now(Arc::new(part.complete(None)?)) } else { Opening::Cold(part) })
    }

    fn open_delta(spec: &Arc<ScanSpec>, item: u32) -> Result<Arc<Self>> {
        let gone = || DataFusionError::Internal(format!("item {item} is not part of the scanned version"));
        let delta = spec.source.delta(item).ok_or_else(gone)?;
        let batch = delta.batch();
        let column = |c: &usize| StoredColumn::plain(batch.columns().get(*c).cloned().unwrap_or_else(no_values));
        let columns = spec.columns.iter().map(column).collect();
        Ok(Arc::new(Self::new(spec, item, batch.num_rows(), columns, delta.deletions.clone(), None)))
    }

    fn new(
        spec: &Arc<ScanSpec>,
        item: u32,
        rows: usize,
        columns: Vec<StoredColumn>,
        deletions: Option<Arc<RoaringBitmap>>,
        touched: Option<TouchedChunk>,
    ) -> Self {
        let count = || AtomicUsize::new(0);
        let spec = Arc::clone(spec);
        let next = count();
        let scanned = count();
        let survivors = count();
        let deferred = Vec::new();
        let selected = None;
        let pages = None;
        let cold = Vec::new();
        let parted = count();
        let steps = Default::default();
        Self {
            spec,
            item,
            rows,
            next,
            columns,
            deletions,
            touched,
            scanned,
            survivors,
            parted,
            steps,
            deferred,
            selected,
            pages,
            cold,
        }
    }

    /// Number of rows, deleted ones included.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// True when columns are to be read after the filters were evaluated.
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// The rows of a slice that passed the filters, if these were evaluated before.
    pub(super) fn selected(&self, range: &Range<usize>) -> Option<Selection> {
        self.selected.as_ref().map(|selected| selected.slice(range.start / self.spec.slice_rows))
    }

    /// Bytes of the deferred columns.
    pub(super) fn deferred_bytes(&self) -> u64 {
        let chunk = self.touched.as_ref().map(|touched| &touched.chunk);
        let ssd = self.spec.source.store.ssd();
        chunk.map_or(0, |chunk| self.deferred.iter().map(|c| ssd.bytes_to_read(chunk, *c, self.ranges())).sum())
    }

    fn ranges(&self) -> Option<&[Range<usize>]> {
        self.pages.as_ref().map(Pages::ranges)
    }

    /// Counts of the execution.
    pub(super) fn metrics(&self) -> ScanMetrics {
        self.spec.metrics.clone()
    }

    /// Turns the chunk into the part that reads the deferred columns for the rows that passed. `None` for a delta,
    /// which has no such columns.
    pub(super) fn remaining_columns(mut self, selected: SelectedRows) -> Option<ColdPart> {
        let TouchedChunk { chunk, places } = self.touched.take()?;
        let columns = std::mem::take(&mut self.columns).into_iter().zip(places);
        Some(ColdPart {
            spec: Arc::clone(&self.spec),
            item: self.item,
            chunk,
            columns: columns
                .map(|(values, place)| place.map(|(tier, bytes_read)| LoadedColumn { values, tier, bytes_read }))
                .collect(),
            missing: std::mem::take(&mut self.deferred),
            deferred: Vec::new(),
            selected: Some(selected),
            pages: self.pages.take(),
            cold: std::mem::take(&mut self.cold),
        })
    }

    /// Takes the next slice that no partition has taken; `None` when there is none.
    pub(super) fn take(&self) -> Option<Range<usize>> {
        let step = self.spec.slice_rows;
        if self.next.load(Ordering::Relaxed) >= self.rows {
            return None;
        }
        let start = self.next.fetch_add(step, Ordering::Relaxed);
        (start < self.rows).then(|| start..self.rows.min(start + step))
    }

    /// True when a slice is left.
    pub(super) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.rows
    }

    /// A slice of a read column, by its position in the scan's list.
    pub(super) fn slice(&self, slot: usize, range: &Range<usize>) -> Result<ArrayRef> {
        if self.spec.columns.get(slot).is_some_and(|c| self.spec.source.is_row_column(*c)) {
            let first = TableVersion::position(self.item, range.start as u32);
            return Ok(Arc::new(UInt64Array::from_iter_values(first..first + range.len() as u64)));
        }
        let gone = || DataFusionError::Internal(format!("column {slot} of a scan was not read"));
        let column = self.columns.get(slot).ok_or_else(gone)?;
        let start = if column.rows() < self.rows { 0 } else { range.start };
        column.slice(start, range.len()).map_err(store_error)
    }

    /// The dictionary and the keys of a slice of a read column; `None` for a column that is stored without a
    /// dictionary.
    pub(super) fn keys(&self, slot: usize, range: &Range<usize>) -> Option<(Dictionary, ArrayRef)> {
        let (dictionary, keys) = self.columns.get(slot)?.keys(range.start, range.len())?;
        Some((dictionary.clone(), keys))
    }

    /// The values of a slice of a read column as they are stored, which may be narrower than declared.
    pub(super) fn stored(&self, slot: usize, range: &Range<usize>) -> Option<ArrayRef> {
        let column = self.columns.get(slot).filter(|column| column.rows() == self.rows)?;
        column.stored_values(range.start, range.len())
    }

    /// Reports the read of a slice of a column, so that an emulated device can delay it.
    pub(super) fn touch(&self, slot: usize, rows: usize) {
        let Some(touched) = &self.touched else { return };
        let column = self.spec.columns.get(slot).and_then(|c| touched.chunk.columns().get(*c));
        if let (Some(Some((tier, _))), Some(segment)) = (touched.places.get(slot), column) {
            self.spec.source.touch(*tier, segment.bytes() * rows as u64 / self.rows.max(1) as u64);
        }
    }

    /// The rows of a slice that are not deleted and not excluded by page bounds.
    pub(super) fn live(&self, range: &Range<usize>) -> Selection {
        let overlap = self.pages.as_ref().map_or(Overlap::Full, |pages| pages.overlap(range));
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
        self.survivors.fetch_add(survivors, Ordering::Relaxed);
        if survivors < rows && !cfg!(feature = "no-counters") {
            self.parted.fetch_add(rows, Ordering::Relaxed);
            let Sample { up, down, near, runs } = if survivors > 0 { sample() } else { Sample::default() };
            for (sum, steps) in self.steps.iter().zip([up, down, near, runs]).filter(|(_, n)| *n > 0) {
                sum.fetch_add(steps, Ordering::Relaxed);
            }
        }
        // The caller that notes the last rows sees the survivors of all: they were added before `scanned`.
        let scanned = self.scanned.fetch_add(rows, Ordering::AcqRel) + rows;
        if scanned == self.rows && self.survivors.load(Ordering::Relaxed) == 0 {
            self.read_in_vain();
        }
    }

    /// The pattern in which the survivors lie among the rows, and the number of values that are looked up.
    fn access_pattern(&self, scanned: usize, survivors: usize) -> (Pattern, usize) {
        if survivors == scanned {
            return (Pattern::Sequential, survivors);
        }
        let [up, down, near, runs] = self.steps.each_ref().map(|steps| steps.load(Ordering::Relaxed));
        let full =
            Sample::from_slices(scanned.saturating_sub(self.parted.load(Ordering::Relaxed)), self.spec.slice_rows);
        let all = Sample { up: up + full.up, down, near: near + full.near, runs: runs + full.runs };
        match all.pattern(survivors, scanned) {
            Pattern::Sequential => (Pattern::Sequential, survivors),
            scattered => (scattered, all.values(survivors)),
        }
    }

    /// Reports a chunk without survivors: cold columns that were asked for single values get membership filters.
    fn read_in_vain(&self) {
        // With some pages left out, a filter made of the values read would lack those of the other pages.
        let Some(touched) = self.touched.as_ref().filter(|_| self.pages.is_none()) else { return };
        for probe in self.spec.probe_values() {
            let slot = self.spec.columns.iter().position(|column| *column == probe.column);
            let place = slot.and_then(|slot| touched.places.get(slot).copied().flatten());
            let cold = place.is_some_and(|(tier, bytes)| tier == self.spec.source.home_tier() && bytes > 0);
            let values = slot.and_then(|slot| self.columns.get(slot)).filter(|_| cold);
            if let (Some(segment), Some(values)) = (touched.chunk.columns().get(probe.column), values) {
                self.spec.source.store.filters().record_useless_read(segment, values, &probe.values);
            }
        }
    }
}

impl ColdPart {
    /// Bytes of the columns that could be read after the filters, and whether all missing columns are such.
    pub(super) fn deferrable_bytes(&self) -> (u64, bool) {
        let bytes = |column| self.bytes_of(column);
        (self.deferrable().map(bytes).sum(), self.deferrable().count() == self.missing.len())
    }

    fn deferrable(&self) -> impl Iterator<Item = usize> {
        let filtered = |column: &usize| {
            let slot = self.spec.columns.iter().position(|c| c == column);
            slot.is_some_and(|slot| self.spec.filters_on(slot))
        };
        self.missing.iter().copied().filter(move |column| !filtered(column))
    }

    /// Defers the columns that no filter reads.
    pub(super) fn defer_unfiltered(mut self) -> Self {
        self.deferred = self.deferrable().collect();
        self.missing.retain(|column| !self.deferred.contains(column));
        self
    }

    /// True when no page, or the dictionary of a column that would be read, has a value that passes the filters.
    pub(super) fn is_denied(&self) -> bool {
        self.pages.as_ref().is_some_and(Pages::is_empty)
            || self.spec.conjuncts.iter().any(|conjunct| {
                let column = conjunct.slots().first().and_then(|slot| self.spec.columns.get(*slot));
                let home = column.filter(|c| self.missing.contains(c)).and_then(|c| self.chunk.columns().get(*c));
                let Some(home) = home.map(|segment| &segment.home) else { return false };
                let nulls = home.layout.nodes.first().is_none_or(|(_, nulls)| *nulls > 0);
                home.encoding.dictionary().is_some_and(|dictionary| conjunct.denies(dictionary, nulls))
            })
    }

    /// Restricts the read to these rows.
    pub(super) fn for_rows(self, selected: SelectedRows) -> Self {
        Self { selected: Some(selected), ..self }
    }

    /// The item of the chunk.
    pub(super) fn item(&self) -> u32 {
        self.item
    }

    /// True when nothing has to be read before the filters can be evaluated.
    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Starts reading the missing columns; returns the part when the I/O budget has no room now (never with
    /// [`Admission::Guaranteed`]).
    pub(super) fn read(self, admission: Admission) -> Result<Result<ChunkRead, Self>> {
        let ssd = self.spec.source.store.ssd();
        let read = ssd.read_rows(&self.chunk, &self.missing, self.wanted(), admission).map_err(store_error)?;
        let Some(read) = read else { return Ok(Err(self)) };
        if self.cold.is_empty() {
            self.spec.metrics.chunks_cold.add(1);
        }
        if self.selected.is_none() && self.pages.is_some() {
            let spared = |column: &usize| {
                ssd.bytes_to_read(&self.chunk, *column, None).saturating_sub(self.bytes_of(*column)) as usize
            };
            self.spec.metrics.bytes_skipped.add(self.missing.iter().chain(&self.deferred).map(spared).sum());
        }
        Ok(Ok(ChunkRead { part: Some(self), read: Some(read) }))
    }

    fn wanted(&self) -> Option<&[Range<usize>]> {
        self.selected.as_ref().map(SelectedRows::ranges).or_else(|| self.pages.as_ref().map(Pages::ranges))
    }

    fn bytes_of(&self, column: usize) -> u64 {
        self.spec.source.store.ssd().bytes_to_read(&self.chunk, column, self.wanted())
    }

    /// Bytes that have to be read.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.missing.iter().map(|column| self.bytes_of(*column)).sum()
    }

    /// Learns page bounds and a sample from all values of a column that a filter reads.
    fn learn(&self, slot: usize, column: usize, values: &StoredColumn, sampled: bool) {
        let mut compared = self.spec.conjuncts.iter().filter_map(Conjunct::comparison);
        if compared.any(|(compared, _)| compared == slot)
            && let Some(segment) = self.chunk.columns().get(column)
        {
            segment.learn_page_bounds(values);
        }
        if sampled && self.spec.filters_on(slot) {
            self.spec.source.table.offer_sample(&self.chunk, column, values);
        }
    }

    /// Builds the `OpenChunk` from the loaded columns and those that were read (`cold`).
    pub(super) fn complete(mut self, cold: Option<ColdColumns>) -> Result<OpenChunk> {
        let home = self.spec.source.home_tier();
        let mut read = cold.as_ref().map(|c| c.columns.iter()).into_iter().flatten();
        let source = &self.spec.source;
        let sampled = source.version.is_sampled(self.item as usize);
        let known = std::mem::take(&mut self.columns);
        let mut columns = Vec::with_capacity(known.len());
        let mut places = Vec::with_capacity(known.len());
        for (slot, (known, column)) in known.into_iter().zip(&self.spec.columns).enumerate() {
            if let Some(LoadedColumn { values, tier, bytes_read }) = known {
                columns.push(values);
                places.push(Some((tier, bytes_read)));
            } else if self.deferred.contains(column) {
                columns.push(StoredColumn::plain(no_values()));
                places.push(None);
            } else {
                let too_few = || DataFusionError::Internal("a cold read returned too few columns".into());
                let stored = read.next().ok_or_else(too_few)?;
                if self.pages.is_none() && self.selected.is_none() {
                    self.learn(slot, *column, stored, sampled);
                }
                columns.push(stored.clone());
                places.push(Some((home, self.bytes_of(*column))));
            }
        }
        let deletions = self.spec.source.chunk(self.item).and_then(|e| e.deletions.clone());
        let rows = self.chunk.rows as usize;
        let touched = TouchedChunk { chunk: self.chunk, places };
        self.cold.extend(cold);
        let mut chunk = OpenChunk::new(&self.spec, self.item, rows, columns, deletions, Some(touched));
        chunk.deferred = self.deferred;
        chunk.selected = self.selected;
        chunk.pages = self.pages;
        chunk.cold = self.cold;
        Ok(chunk)
    }
}

/// A chunk that is being read; resolves when all bytes have arrived.
pub(super) struct ChunkRead {
    part: Option<ColdPart>,
    read: Option<ColdRead>,
}

/// A chunk whose bytes have arrived. The partition that takes the chunk verifies and decodes them, outside of any lock.
pub(super) struct Arrived {
    part: ColdPart,
    read: Box<ColdRead>,
}

impl Future for ChunkRead {
    type Output = (u32, Arrived);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(read) = &mut self.read {
            ready!(read.poll_arrived(cx));
        }
        match (self.part.take(), self.read.take()) {
            (Some(part), Some(read)) => Poll::Ready((part.item, Arrived { part, read: Box::new(read) })),
            _ => Poll::Pending,
        }
    }
}

impl Arrived {
    /// True when columns are to be read after the filters were evaluated.
    pub(super) fn has_deferred(&self) -> bool {
        !self.part.deferred.is_empty()
    }

    /// Verifies and decodes the columns.
    pub(super) fn open(self) -> Result<OpenChunk> {
        // Every byte has arrived, so this does not wait for the disk.
        let cold = self.read.wait().map_err(store_error)?;
        self.part.complete(Some(cold))
    }
}

impl Drop for OpenChunk {
    /// Counts an access of each segment, once per statement. Filter columns were read from end to end, or by pages if
    /// bounds excluded some; the other columns were read at the survivors. A resident column without survivors was not
    /// touched. Afterwards the store may bring cold columns into memory.
    fn drop(&mut self) {
        let Some(touched) = self.touched.as_ref().filter(|_| !cfg!(feature = "no-counters")) else { return };
        let scanned = *self.scanned.get_mut();
        let survivors = *self.survivors.get_mut();
        let selected = self.access_pattern(scanned, survivors);
        if !self.spec.conjuncts.is_empty() {
            self.spec.survival.add(scanned, survivors);
        }
        let totals = self.spec.source.store.access_totals();
        for (slot, (column, place)) in self.spec.columns.iter().zip(&touched.places).enumerate() {
            let Some((tier, bytes_read)) = place else { continue };
            let Some(segment) = touched.chunk.columns().get(*column).filter(|s| s.constant.is_none()) else { continue };
            let resident = *tier != self.spec.source.home_tier();
            let (pattern, values) = match (self.spec.filters_on(slot), &self.pages) {
                // One lookup per page.
                (true, Some(pages)) if !resident => (Pattern::Point, pages.count()),
                (true, _) => (Pattern::Sequential, scanned),
                (false, _) => selected,
            };
            if values == 0 && resident {
                continue;
            }
            self.spec.counted_segments.count(self.item, *column, segment, pattern, values as u64);
            let bytes = if resident { segment.bytes() } else { *bytes_read };
            totals.record(*tier, pattern, bytes);
            self.spec.metrics.segment(*tier, bytes);
            self.spec.tally.segment(slot, segment.column, *tier, *bytes_read);
        }
        std::mem::take(&mut self.cold).into_iter().for_each(|cold| self.spec.source.store.release_columns(cold));
    }
}
