//! A chunk (or delta batch) whose columns are in reach, given out in slices.
//!
//! Arrays are loaded once; slices of them are taken by one partition or, at the end of a scan, by several. When the
//! last one is done the chunk counts an access of each segment it needed, and the I/O charge of cold bytes ends.

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
use terrace_tier_store::tier::codec::{StoredColumn, Words};
use terrace_tier_store::tier::ssd::{Admission, ColdColumns, ColdRead};

use super::filter::{Conjunct, Selection};
use super::late::Chosen;
use super::metrics::ScanMetrics;
use super::pages::{self, Meeting, Pages};
use super::queue::ScanSpec;
use crate::error::store_error;

/// Columns of one item, ready to be sliced.
pub(super) struct OpenChunk {
    spec: Arc<ScanSpec>,
    item: u32,
    rows: usize,
    next: AtomicUsize,
    /// A constant column has the rows of the longest slice only.
    columns: Vec<StoredColumn>,
    deletions: Option<Arc<RoaringBitmap>>,
    touched: Option<Touched>,
    scanned: AtomicUsize,
    survivors: AtomicUsize,
    /// Rows of slices of which not all survived, and what did of them, sampled: steps up, down, and near, and
    /// runs of neighbours.
    parted: AtomicUsize,
    steps: [AtomicU32; 4],
    /// Table columns that wait for the filters; their slots hold no values.
    later: Vec<usize>,
    /// What the filters let pass, where they were evaluated before the other columns were read.
    chosen: Option<Chosen>,
    /// Where rows can pass the filters: cold columns have no values elsewhere.
    pages: Option<Pages>,
    // Hold the charges of the bytes read, not the arrays.
    cold: Vec<ColdColumns>,
}

struct Touched {
    chunk: Arc<Chunk>,
    /// Per read column: where it lay, and the bytes read if that was its home; `None`: it was not read.
    places: Vec<Option<(TierId, u64)>>,
}

/// How a chunk can be opened.
pub(super) enum Opening {
    /// Everything is in reach.
    Now(Arc<OpenChunk>),
    /// Some columns have to be read first.
    Cold(ColdPart),
}

/// Stands for a column whose values are not read from anywhere.
fn no_values() -> ArrayRef {
    Arc::new(NullArray::new(0))
}

/// A chunk with columns that are not resident.
pub(super) struct ColdPart {
    spec: Arc<ScanSpec>,
    item: u32,
    chunk: Arc<Chunk>,
    /// Per read column, if it is there: values, where they lay, the bytes read.
    columns: Vec<Option<(StoredColumn, TierId, u64)>>,
    /// Table columns to be read.
    missing: Vec<usize>,
    /// Those that wait until the filters were evaluated.
    later: Vec<usize>,
    chosen: Option<Chosen>,
    /// Where rows can pass the filters.
    pages: Option<Pages>,
    cold: Vec<ColdColumns>,
}

impl OpenChunk {
    /// Loads the handles of the item's columns.
    pub(super) fn open(spec: &Arc<ScanSpec>, item: u32) -> Result<Opening> {
        let Some(entry) = spec.source.chunk(item) else {
            return Self::open_delta(spec, item).map(Opening::Now);
        };
        let chunk = &entry.chunk;
        let mut missing = Vec::new();
        let mut columns = Vec::with_capacity(spec.columns.len());
        let there = |array: ArrayRef, tier: TierId| Some((StoredColumn::plain(array), tier, 0));
        for column in spec.columns.iter() {
            if spec.source.is_row_column(*column) {
                // Made slice by slice.
                columns.push(there(no_values(), spec.source.home_tier()));
                continue;
            }
            let segment = chunk.columns().get(*column);
            if let Some(constant) = segment.and_then(|s| s.constant.as_ref()) {
                let rows = spec.slice_rows.min(chunk.rows as usize);
                columns.push(there(constant.array(rows).map_err(store_error)?, spec.source.home_tier()));
                continue;
            }
            let resident = segment.and_then(|s| s.resident.load_full());
            if resident.is_none() {
                missing.push(*column);
            }
            columns.push(resident.map(|r| (r.column.clone(), r.tier.id(), 0)));
        }
        let later = Vec::new();
        let chosen = None;
        let cold = Vec::new();
        let pages = if missing.is_empty() { None } else { Pages::of(spec, chunk) };
        let spec = Arc::clone(spec);
        let chunk = Arc::clone(chunk);
        let part = ColdPart { spec, item, chunk, columns, missing, later, chosen, pages, cold };
        Ok(if part.missing.is_empty() { Opening::Now(Arc::new(part.complete(None)?)) } else { Opening::Cold(part) })
    }

    fn open_delta(spec: &Arc<ScanSpec>, item: u32) -> Result<Arc<Self>> {
        let gone = || DataFusionError::Internal(format!("item {item} is not part of the scanned version"));
        let delta = spec.source.delta(item).ok_or_else(gone)?;
        let batch = delta.batch();
        let column = |c: &usize| StoredColumn::plain(batch.columns().get(*c).cloned().unwrap_or_else(no_values));
        let columns = spec.columns.iter().map(column).collect();
        Ok(Arc::new(Self::new(spec, (item, batch.num_rows()), columns, delta.deletions.clone(), None)))
    }

    fn new(
        spec: &Arc<ScanSpec>,
        (item, rows): (u32, usize),
        columns: Vec<StoredColumn>,
        deletions: Option<Arc<RoaringBitmap>>,
        touched: Option<Touched>,
    ) -> Self {
        let count = || AtomicUsize::new(0);
        let spec = Arc::clone(spec);
        let next = count();
        let scanned = count();
        let survivors = count();
        let later = Vec::new();
        let chosen = None;
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
            later,
            chosen,
            pages,
            cold,
        }
    }

    /// Rows, deleted ones included.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// True when columns wait for the filters.
    pub(super) fn waits(&self) -> bool {
        !self.later.is_empty()
    }

    /// The rows of a slice that passed the filters, where these were evaluated before.
    pub(super) fn chosen(&self, range: &Range<usize>) -> Option<Selection> {
        self.chosen.as_ref().map(|chosen| chosen.slice(range.start / self.spec.slice_rows))
    }

    /// Bytes of the columns that wait.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let chunk = self.touched.as_ref().map(|touched| &touched.chunk);
        let ssd = self.spec.source.store.ssd();
        chunk.map_or(0, |chunk| self.later.iter().map(|c| ssd.bytes_to_read(chunk, *c, self.ranges())).sum())
    }

    fn ranges(&self) -> Option<&[Range<usize>]> {
        self.pages.as_ref().map(Pages::ranges)
    }

    /// Counts of its execution.
    pub(super) fn metrics(&self) -> ScanMetrics {
        self.spec.metrics.clone()
    }

    /// The columns that waited, for the rows that passed. Not for a delta, which has none.
    pub(super) fn rest(mut self, chosen: Chosen) -> Option<ColdPart> {
        let Touched { chunk, places } = self.touched.take()?;
        let columns = std::mem::take(&mut self.columns).into_iter().zip(places);
        Some(ColdPart {
            spec: Arc::clone(&self.spec),
            item: self.item,
            chunk,
            columns: columns.map(|(column, place)| place.map(|(tier, bytes)| (column, tier, bytes))).collect(),
            missing: std::mem::take(&mut self.later),
            later: Vec::new(),
            chosen: Some(chosen),
            pages: self.pages.take(),
            cold: std::mem::take(&mut self.cold),
        })
    }

    /// The next slice nobody has taken; `None` when all are.
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

    /// The keys of a slice of a read column that is stored so, and what they stand for.
    pub(super) fn keys(&self, slot: usize, range: &Range<usize>) -> Option<(Words, ArrayRef)> {
        let (words, keys) = self.columns.get(slot)?.keys(range.start, range.len())?;
        Some((words.clone(), keys))
    }

    /// The values of a slice of a read column as they are stored, perhaps narrower than declared.
    pub(super) fn stored(&self, slot: usize, range: &Range<usize>) -> Option<ArrayRef> {
        let column = self.columns.get(slot).filter(|column| column.rows() == self.rows)?;
        column.stored_values(range.start, range.len())
    }

    /// Lets an emulated device take its time for a slice of a column.
    pub(super) fn touch(&self, slot: usize, rows: usize) {
        let Some(touched) = &self.touched else { return };
        let column = self.spec.columns.get(slot).and_then(|c| touched.chunk.columns().get(*c));
        if let (Some(Some((tier, _))), Some(segment)) = (touched.places.get(slot), column) {
            self.spec.source.touch(*tier, segment.bytes() * rows as u64 / self.rows.max(1) as u64);
        }
    }

    /// The rows of a slice that are not deleted, and not left out by bounds.
    pub(super) fn live(&self, range: &Range<usize>) -> Selection {
        let meeting = self.pages.as_ref().map_or(Meeting::Whole, |pages| pages.meeting(range));
        let span = range.start as u32..range.end as u32;
        let deletions = self.deletions.as_ref().filter(|deletions| deletions.range_cardinality(span.clone()) > 0);
        let mut live = match (meeting, deletions) {
            (Meeting::Apart, _) => return Selection::Nothing,
            (Meeting::Whole, None) => return Selection::All,
            (Meeting::Whole, Some(_)) => pages::bits(range, std::slice::from_ref(range)),
            (Meeting::Partly(parts), _) => pages::bits(range, &parts),
        };
        for row in deletions.into_iter().flat_map(|deletions| deletions.range(span.clone())) {
            live.set_bit(row as usize - range.start, false);
        }
        Selection::Some(BooleanArray::new(live.finish(), None))
    }

    /// Notes that `survivors` of `rows` rows left the scan; of some there is a sample.
    pub(super) fn note(&self, rows: usize, survivors: usize, sample: impl FnOnce() -> Sample) {
        self.survivors.fetch_add(survivors, Ordering::Relaxed);
        if survivors < rows && !cfg!(feature = "no-counters") {
            self.parted.fetch_add(rows, Ordering::Relaxed);
            let Sample { up, down, near, runs } = if survivors > 0 { sample() } else { Sample::default() };
            for (sum, steps) in self.steps.iter().zip([up, down, near, runs]).filter(|(_, n)| *n > 0) {
                sum.fetch_add(steps, Ordering::Relaxed);
            }
        }
        // Whoever notes the last rows sees the survivors of all.
        let scanned = self.scanned.fetch_add(rows, Ordering::AcqRel) + rows;
        if scanned == self.rows && self.survivors.load(Ordering::Relaxed) == 0 {
            self.read_in_vain();
        }
    }

    /// How the survivors lie among the rows, and how many of them are looked for.
    fn selected(&self, scanned: usize, survivors: usize) -> (Pattern, usize) {
        if survivors == scanned {
            return (Pattern::Sequential, survivors);
        }
        let [up, down, near, runs] = self.steps.each_ref().map(|steps| steps.load(Ordering::Relaxed));
        let whole =
            Sample::of_slices(scanned.saturating_sub(self.parted.load(Ordering::Relaxed)), self.spec.slice_rows);
        let all = Sample { up: up + whole.up, down, near: near + whole.near, runs: runs + whole.runs };
        match all.pattern(survivors, scanned) {
            Pattern::Sequential => (Pattern::Sequential, survivors),
            scattered => (scattered, all.values(survivors)),
        }
    }

    /// No row was wanted: says so of the cold columns that were asked for single values, so that they get filters.
    fn read_in_vain(&self) {
        // Of values that were not read nothing can be said.
        let Some(touched) = self.touched.as_ref().filter(|_| self.pages.is_none()) else { return };
        for asked in self.spec.asked() {
            let slot = self.spec.columns.iter().position(|column| *column == asked.column);
            let place = slot.and_then(|slot| touched.places.get(slot).copied().flatten());
            let cold = place.is_some_and(|(tier, bytes)| tier == self.spec.source.home_tier() && bytes > 0);
            let values = slot.and_then(|slot| self.columns.get(slot)).filter(|_| cold);
            if let (Some(segment), Some(values)) = (touched.chunk.columns().get(asked.column), values) {
                self.spec.source.store.filters().read_in_vain(segment, values, &asked.values);
            }
        }
    }
}

impl ColdPart {
    /// Bytes that could wait for the filters, and whether these need no other column.
    pub(super) fn waitable_bytes(&self) -> (u64, bool) {
        let bytes = |column| self.bytes_of(column);
        (self.waitable().map(bytes).sum(), self.waitable().count() == self.missing.len())
    }

    fn waitable(&self) -> impl Iterator<Item = usize> {
        let filtered = |column: &usize| {
            let slot = self.spec.columns.iter().position(|c| c == column);
            slot.is_some_and(|slot| self.spec.filters_on(slot))
        };
        self.missing.iter().copied().filter(move |column| !filtered(column))
    }

    /// The same with the columns that no filter reads left for later.
    pub(super) fn filters_first(mut self) -> Self {
        self.later = self.waitable().collect();
        self.missing.retain(|column| !self.later.contains(column));
        self
    }

    /// True when none of its pages, or the dictionary of a column that would be read, has a value that the filters let pass.
    pub(super) fn is_denied(&self) -> bool {
        self.pages.as_ref().is_some_and(Pages::is_empty)
            || self.spec.conjuncts.iter().any(|conjunct| {
                let column = conjunct.slots().first().and_then(|slot| self.spec.columns.get(*slot));
                let home = column.filter(|c| self.missing.contains(c)).and_then(|c| self.chunk.columns().get(*c));
                let Some(home) = home.map(|segment| &segment.home) else { return false };
                let nulls = home.layout.nodes.first().is_none_or(|(_, nulls)| *nulls > 0);
                home.encoding.words().is_some_and(|words| conjunct.denies(words, nulls))
            })
    }

    /// The same, of which only these rows are wanted.
    pub(super) fn of_rows(self, chosen: Chosen) -> Self {
        Self { chosen: Some(chosen), ..self }
    }

    /// The number of its chunk.
    pub(super) fn item(&self) -> u32 {
        self.item
    }

    /// True when nothing has to be read before the filters can be evaluated.
    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Starts reading what is missing. `None`: the I/O budget has no room now (never with [`Admission::Guaranteed`]).
    pub(super) fn read(self, admission: Admission) -> Result<Result<ChunkRead, Self>> {
        let ssd = self.spec.source.store.ssd();
        let read = ssd.read_rows(&self.chunk, &self.missing, self.wanted(), admission).map_err(store_error)?;
        let Some(read) = read else { return Ok(Err(self)) };
        if self.cold.is_empty() {
            self.spec.metrics.chunks_cold.add(1);
        }
        if self.chosen.is_none() && self.pages.is_some() {
            let spared = |column: &usize| {
                ssd.bytes_to_read(&self.chunk, *column, None).saturating_sub(self.bytes_of(*column)) as usize
            };
            self.spec.metrics.bytes_skipped.add(self.missing.iter().chain(&self.later).map(spared).sum());
        }
        Ok(Ok(ChunkRead { part: Some(self), read: Some(read) }))
    }

    fn wanted(&self) -> Option<&[Range<usize>]> {
        self.chosen.as_ref().map(Chosen::ranges).or_else(|| self.pages.as_ref().map(Pages::ranges))
    }

    fn bytes_of(&self, column: usize) -> u64 {
        self.spec.source.store.ssd().bytes_to_read(&self.chunk, column, self.wanted())
    }

    /// Bytes that have to be read.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.missing.iter().map(|column| self.bytes_of(*column)).sum()
    }

    /// What can be told from all values of a column that a filter asked for.
    fn learn(&self, (slot, column): (usize, usize), values: &StoredColumn, sampled: bool) {
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

    /// The chunk, with what was read of it.
    pub(super) fn complete(mut self, cold: Option<ColdColumns>) -> Result<OpenChunk> {
        let home = self.spec.source.home_tier();
        let mut read = cold.as_ref().map(|c| c.columns.iter()).into_iter().flatten();
        let source = &self.spec.source;
        let sampled = source.version.is_sampled(self.item as usize);
        let known = std::mem::take(&mut self.columns);
        let mut columns = Vec::with_capacity(known.len());
        let mut places = Vec::with_capacity(known.len());
        for (slot, (known, column)) in known.into_iter().zip(&self.spec.columns).enumerate() {
            if let Some((values, tier, bytes)) = known {
                columns.push(values);
                places.push(Some((tier, bytes)));
            } else if self.later.contains(column) {
                columns.push(StoredColumn::plain(no_values()));
                places.push(None);
            } else {
                let too_few = || DataFusionError::Internal("a cold read returned too few columns".into());
                let stored = read.next().ok_or_else(too_few)?;
                if self.pages.is_none() && self.chosen.is_none() {
                    self.learn((slot, *column), stored, sampled);
                }
                columns.push(stored.clone());
                places.push(Some((home, self.bytes_of(*column))));
            }
        }
        let deletions = self.spec.source.chunk(self.item).and_then(|e| e.deletions.clone());
        let rows = self.chunk.rows as usize;
        let touched = Touched { chunk: self.chunk, places };
        self.cold.extend(cold);
        let mut chunk = OpenChunk::new(&self.spec, (self.item, rows), columns, deletions, Some(touched));
        (chunk.later, chunk.chosen, chunk.pages, chunk.cold) = (self.later, self.chosen, self.pages, self.cold);
        Ok(chunk)
    }
}

/// A chunk on its way; resolves when all bytes are there.
pub(super) struct ChunkRead {
    part: Option<ColdPart>,
    read: Option<ColdRead>,
}

/// A chunk whose bytes are there. They are not yet verified and decoded: that is work for the partition that takes the
/// chunk, outside of any lock.
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
    /// True when columns wait for the filters.
    pub(super) fn waits(&self) -> bool {
        !self.part.later.is_empty()
    }

    /// Verifies and decodes the columns.
    pub(super) fn open(self) -> Result<OpenChunk> {
        // Every byte is there, so this does not wait for the disk.
        let cold = self.read.wait().map_err(store_error)?;
        self.part.complete(Some(cold))
    }
}

impl Drop for OpenChunk {
    /// Counts an access of each segment, once per statement. What filters read was read from end to end, or by pages where
    /// bounds left some of them; the other columns were read where rows survived. A resident column without survivors was
    /// not touched. Cold ones may then come into memory.
    fn drop(&mut self) {
        let Some(touched) = self.touched.as_ref().filter(|_| !cfg!(feature = "no-counters")) else { return };
        let scanned = *self.scanned.get_mut();
        let survivors = *self.survivors.get_mut();
        let selected = self.selected(scanned, survivors);
        if !self.spec.conjuncts.is_empty() {
            self.spec.passed.add(scanned, survivors);
        }
        let totals = self.spec.source.store.access_totals();
        for (slot, (column, place)) in self.spec.columns.iter().zip(&touched.places).enumerate() {
            let Some((tier, bytes_read)) = place else { continue };
            let Some(segment) = touched.chunk.columns().get(*column).filter(|s| s.constant.is_none()) else { continue };
            let resident = *tier != self.spec.source.home_tier();
            let (pattern, values) = match (self.spec.filters_on(slot), &self.pages) {
                // A place for each page.
                (true, Some(pages)) if !resident => (Pattern::Point, pages.count()),
                (true, _) => (Pattern::Sequential, scanned),
                (false, _) => selected,
            };
            if values == 0 && resident {
                continue;
            }
            self.spec.counted.count((self.item, *column), segment, (pattern, values as u64));
            let bytes = if resident { segment.bytes() } else { *bytes_read };
            totals.record(*tier, pattern, bytes);
            self.spec.metrics.segment(*tier, bytes);
            self.spec.tally.segment(slot, segment.column, *tier, *bytes_read);
        }
        std::mem::take(&mut self.cold).into_iter().for_each(|cold| self.spec.source.store.let_go(cold));
    }
}
