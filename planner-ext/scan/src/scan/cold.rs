//! A chunk with columns that are not resident, on its way from the home tier.
//!
//! A [`ColdPart`] starts its read and becomes a [`ChunkRead`], which resolves to an [`Arrived`] chunk, which opens. A
//! chunk whose filters come first passes here twice: the [`OpenChunk`] with the columns of the filters turns back into a
//! [`ColdPart`] for the others.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use datafusion::common::{DataFusionError, Result};
use terrace_error::store_error;
use terrace_tier_store::table::Chunk;
use terrace_tier_store::tier::reader::{Admission, ColdColumns, ColdRead, ReadPurpose};

use super::late::SelectedRows;
use super::open::{LateColumns, OpenChunk};
use super::outcome::{LoadedColumn, PendingOutcome, ReadPlace, RowProgress};
use super::pages::Pages;
use super::queue::ScanSpec;

/// A chunk with columns that are not resident.
pub(super) struct ColdPart {
    /// The execution.
    pub spec: Arc<ScanSpec>,
    /// Position of the chunk in the table version.
    pub item: u32,
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// The loaded columns among those of the scan.
    pub columns: Vec<Option<LoadedColumn>>,
    /// Table columns to be read.
    pub missing: Vec<usize>,
    /// Columns that are read after the filters, and the rows that passed these.
    pub late: LateColumns,
    /// Pages whose rows can pass the filters.
    pub pages: Option<Pages>,
    /// Earlier reads of this scan from the chunk.
    pub cold: Vec<ColdColumns>,
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
        self.late.deferred = self.deferrable().collect();
        self.missing.retain(|column| !self.late.deferred.contains(column));
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
        let late = LateColumns { selected: Some(selected), ..self.late };
        Self { late, ..self }
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
        let home = self.spec.source.store.home();
        let level = self.spec.level.best(self.spec.source.column_ids(&self.missing));
        let purpose = ReadPurpose { admission, statement: self.spec.statement, level, is_short: self.spec.is_short() };
        let read = home.read_rows(&self.chunk, &self.missing, self.wanted(), purpose).map_err(store_error)?;
        let Some(read) = read else { return Ok(Err(self)) };
        self.spec.asked_bytes.fetch_add(read.charged_bytes(), Ordering::Relaxed);
        // Columns that others read cost no read.
        if read.charged_bytes() > 0 {
            self.spec.metrics.read(read.class());
        }
        if self.cold.is_empty() {
            self.spec.metrics.chunks_cold.add(1);
        }
        if self.late.selected.is_none() && self.pages.is_some() {
            let spared = |column: &usize| {
                home.bytes_to_read(&self.chunk, *column, None).saturating_sub(self.bytes_of(*column)) as usize
            };
            self.spec.metrics.bytes_skipped.add(self.missing.iter().chain(&self.late.deferred).map(spared).sum());
        }
        Ok(Ok(ChunkRead { part: Some(self), read: Some(read) }))
    }

    fn wanted(&self) -> Option<&[Range<usize>]> {
        self.late.selected.as_ref().map(SelectedRows::ranges).or_else(|| self.pages.as_ref().map(Pages::ranges))
    }

    fn bytes_of(&self, column: usize) -> u64 {
        self.spec.source.store.home().bytes_to_read(&self.chunk, column, self.wanted())
    }

    /// Bytes that have to be read.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.missing.iter().map(|column| self.bytes_of(*column)).sum()
    }

    /// Builds the `OpenChunk` from the loaded columns and those that were read (`cold`).
    pub(super) fn complete(mut self, cold: Option<ColdColumns>) -> Result<OpenChunk> {
        let home = self.spec.source.home_tier();
        let counts = cold.as_ref().is_none_or(|cold| self.spec.observer.admits(cold.class));
        let mut read = cold.as_ref().map(|c| c.columns.iter()).into_iter().flatten();
        let is_whole = self.pages.is_none() && self.late.selected.is_none();
        let mut columns = std::mem::take(&mut self.columns);
        for (slot, (loaded, column)) in columns.iter_mut().zip(&self.spec.columns).enumerate() {
            if loaded.is_some() || self.late.deferred.contains(column) {
                continue;
            }
            let too_few = || DataFusionError::Internal("a cold read returned too few columns".into());
            let values = read.next().ok_or_else(too_few)?;
            if is_whole {
                self.spec.observer.learn(self.item, &self.chunk, slot, values);
            }
            let place = ReadPlace { tier: home, bytes_read: self.bytes_of(*column), counts };
            *loaded = Some(LoadedColumn { values: values.clone(), place });
        }
        let deletions = self.spec.source.chunk(self.item).and_then(|e| e.deletions.clone());
        let rows = self.chunk.rows as usize;
        self.cold.extend(cold);
        let outcome = PendingOutcome {
            spec: self.spec,
            item: self.item,
            chunk: Some(self.chunk),
            columns,
            rows: RowProgress::default(),
            pages: self.pages,
            cold: self.cold,
        };
        Ok(OpenChunk::new(outcome, rows, deletions, self.late))
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
        !self.part.late.deferred.is_empty()
    }

    /// Verifies and decodes the columns.
    pub(super) fn open(self) -> Result<OpenChunk> {
        // Every byte has arrived, so this does not wait for the disk.
        let class = self.read.class();
        let cold = self.read.wait().map_err(store_error)?;
        Ok(self.part.complete(Some(cold))?.opened_by(class))
    }
}
