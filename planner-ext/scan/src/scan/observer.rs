//! Records the effects of a scan: heat of segments, metrics, and statistics that the store learns from values.
//!
//! The code that reads and filters calls two functions here and does not use the counters itself:
//!
//! - [`ScanObserver::finish`], once per chunk whose scan has ended, whether by its last row, an error, or because the
//!   stream was dropped. It counts accesses (heat, totals of the store, `EXPLAIN ANALYZE`, the advisor), notes the
//!   share of rows that passed, records reads without a matching row for membership filters, and offers cold columns to memory.
//! - [`ScanObserver::learn`], when all values of a cold column have arrived. Bounds of pages and samples do not wait
//!   for the end: other scans use them at once, and also come from a chunk that is read but never scanned.

use std::sync::{Arc, OnceLock};

use datafusion::physical_expr::PhysicalExpr;
use terrace_tier_store::heat::{Pattern, Sample};
use terrace_tier_store::io::{Class, IoRules};
use terrace_tier_store::table::{Chunk, Segment};
use terrace_tier_store::tier::codec::StoredColumn;
use terrace_tier_store::tier::reader::ColdColumns;

use super::counted_segments::CountedSegments;
use super::filter::Conjunct;
use super::metrics::ScanMetrics;
use super::outcome::{ReadPlace, RowCounts, ScanOutcome};
use super::probe_values::ProbeValues;
use super::pruning::present_conjunction;
use super::source::ScanSource;
use super::survival::SurvivalRate;
use super::tally::ScanTally;

/// Counts the reads of one execution of a scan, and passes values to the store's statistics.
pub(super) struct ScanObserver {
    source: Arc<ScanSource>,
    /// Columns of the scan.
    columns: Vec<ObservedColumn>,
    slice_rows: usize,
    has_filters: bool,
    counts: ScanCounts,
    rules: IoRules,
    survival: SurvivalRate,
    useless_reads: UselessReads,
}

/// The counts that an execution adds to, besides those of the store.
pub(super) struct ScanCounts {
    /// For `EXPLAIN ANALYZE`.
    pub metrics: ScanMetrics,
    /// For the advisor.
    pub tally: Arc<ScanTally>,
    /// Segments that the statement has counted.
    pub counted_segments: Arc<CountedSegments>,
    /// Whether kernels of a device could make the reads.
    pub is_for_kernels: bool,
}

/// A column of the scan, and how the filters use it.
struct ObservedColumn {
    /// Position in the table.
    column: usize,
    /// True when a filter reads it.
    is_filtered: bool,
    /// True when a filter compares it with a number, so that bounds of its pages exclude rows.
    is_compared: bool,
}

/// The access of a scan to one segment.
struct SegmentAccess<'a> {
    /// Position of the column in the scan's list.
    slot: usize,
    /// Position of the column in the table.
    column: usize,
    segment: &'a Segment,
    place: ReadPlace,
    /// Bytes of the segment in memory, or bytes read from the home tier.
    bytes: u64,
    lookups: Lookups,
}

/// How a scan looked up values of a segment.
#[derive(Debug, Clone, Copy)]
struct Lookups {
    pattern: Pattern,
    values: usize,
}

impl ScanObserver {
    /// An observer of a scan without filters; `columns` are those that it reads of the table.
    pub(super) fn new(source: &Arc<ScanSource>, columns: &[usize], slice_rows: usize, counts: ScanCounts) -> Self {
        let observed = |column: &usize| ObservedColumn { column: *column, is_filtered: false, is_compared: false };
        Self {
            source: Arc::clone(source),
            columns: columns.iter().map(observed).collect(),
            slice_rows,
            has_filters: false,
            counts,
            rules: source.store.io().rules(),
            survival: SurvivalRate::default(),
            useless_reads: UselessReads::new(Vec::new()),
        }
    }

    /// Adds the filters of the scan: `conjuncts` over its columns, and `filters`, the same over the table's schema.
    pub(super) fn with_filters(self, conjuncts: &[Conjunct], filters: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let observed = |(slot, ObservedColumn { column, .. })| ObservedColumn {
            column,
            is_filtered: conjuncts.iter().any(|conjunct| conjunct.slots().contains(&slot)),
            is_compared: conjuncts.iter().filter_map(Conjunct::bounded_slot).any(|bounded| bounded == slot),
        };
        Self {
            columns: self.columns.into_iter().enumerate().map(observed).collect(),
            has_filters: !conjuncts.is_empty(),
            useless_reads: UselessReads::new(filters),
            ..self
        }
    }

    /// The share of the rows that passed the filters so far.
    pub(super) fn survival(&self) -> &SurvivalRate {
        &self.survival
    }

    /// Learns bounds of pages and a sample from `values`, which are all values of a column that was read from the home
    /// tier; `slot` is its position in the scan's list, `item` that of the chunk in the table version.
    pub(super) fn learn(&self, item: u32, chunk: &Chunk, slot: usize, values: &StoredColumn) {
        let Some(column) = self.columns.get(slot).filter(|column| column.is_filtered) else { return };
        if column.is_compared
            && let Some(segment) = chunk.columns().get(column.column)
        {
            segment.learn_page_bounds(values);
        }
        if self.source.version.is_sampled(item as usize) {
            self.source.table.offer_sample(chunk, column.column, values);
        }
    }

    /// Takes the outcome of a chunk whose scan has ended.
    pub(super) fn finish(&self, outcome: ScanOutcome) {
        self.useless_reads.record(&self.source, &self.columns, &outcome);
        if cfg!(feature = "no-counters") {
            return;
        }
        self.note_survival(&outcome.rows);
        for access in self.accesses(&outcome) {
            if access.place.counts {
                self.count_heat(outcome.item, &access);
            }
            self.source.store.access_totals().record(access.place.tier, access.lookups.pattern, access.bytes);
            self.count_read(&access);
        }
        self.offer_columns(outcome.cold);
    }

    fn note_survival(&self, rows: &RowCounts) {
        if self.has_filters {
            self.survival.add(rows.scanned, rows.survivors);
        }
    }

    /// The accesses to segments, in the order of the scan's columns. Columns of filters were read from end to end, or
    /// by pages if bounds excluded some; the other columns were read at the survivors. A resident column without
    /// survivors was not touched.
    fn accesses<'a>(&'a self, outcome: &'a ScanOutcome) -> impl Iterator<Item = SegmentAccess<'a>> {
        let of_survivors = self.lookups_of_survivors(&outcome.rows);
        let columns = outcome.columns.iter().zip(&self.columns).enumerate();
        columns.filter_map(move |(slot, (loaded, ObservedColumn { column, is_filtered, .. }))| {
            let place = loaded.as_ref()?.place;
            let segment = outcome.chunk.columns().get(*column).filter(|segment| segment.constant.is_none())?;
            let is_resident = place.tier != self.source.home_tier();
            let lookups = match (is_filtered, &outcome.pages) {
                // One lookup per page.
                (true, Some(pages)) if !is_resident => Lookups { pattern: Pattern::Point, values: pages.count() },
                (true, _) => Lookups { pattern: Pattern::Sequential, values: outcome.rows.scanned },
                (false, _) => of_survivors,
            };
            if lookups.values == 0 && is_resident {
                return None;
            }
            let bytes = if is_resident { segment.bytes() } else { place.bytes_read };
            Some(SegmentAccess { slot, column: *column, segment, place, bytes, lookups })
        })
    }

    /// The pattern in which the survivors lie among the rows, and the number of values that are looked up.
    fn lookups_of_survivors(&self, rows: &RowCounts) -> Lookups {
        let RowCounts { scanned, survivors, parted, sample: Sample { up, down, near, runs } } = *rows;
        let in_sequence = Lookups { pattern: Pattern::Sequential, values: survivors };
        if survivors == scanned {
            return in_sequence;
        }
        let full = Sample::from_slices(scanned.saturating_sub(parted), self.slice_rows);
        let all = Sample { up: up + full.up, down, near: near + full.near, runs: runs + full.runs };
        match all.pattern(survivors, scanned) {
            Pattern::Sequential => in_sequence,
            pattern => Lookups { pattern, values: all.values(survivors) },
        }
    }

    /// Counts an access of the segment, once per statement.
    fn count_heat(&self, item: u32, access: &SegmentAccess<'_>) {
        let SegmentAccess { column, segment, lookups: Lookups { pattern, values }, .. } = *access;
        let is_first = self.counts.counted_segments.count(item, column, segment, pattern, values as u64);
        if is_first && self.counts.is_for_kernels {
            segment.counters.record_kernel();
        }
    }

    /// Counts what was read, for `EXPLAIN ANALYZE` and the advisor.
    fn count_read(&self, access: &SegmentAccess<'_>) {
        let SegmentAccess { slot, segment, place: ReadPlace { tier, bytes_read, .. }, bytes, .. } = *access;
        self.counts.metrics.segment(tier, bytes);
        self.counts.tally.add_tier_bytes(tier, bytes);
        self.counts.tally.segment(slot, segment.column, tier, bytes_read);
    }

    /// Offers cold columns to a memory tier, after their accesses were counted.
    fn offer_columns(&self, cold: Vec<ColdColumns>) {
        let admitted = cold.into_iter().filter(|columns| self.admits(columns.class));
        admitted.for_each(|columns| self.source.store.release_columns(columns));
    }

    /// Whether placement learns from a read of this class.
    pub(super) fn admits(&self, class: Class) -> bool {
        self.rules.admits(class)
    }
}

/// Records chunks that were read without a row that passed: cold columns that were asked for single values get
/// membership filters.
struct UselessReads {
    /// The filters over the table's schema.
    filters: Vec<Arc<dyn PhysicalExpr>>,
    /// Computed when a chunk was read without a matching row: the keys of joins are known by then.
    probe_values: OnceLock<Vec<ProbeValues>>,
}

impl UselessReads {
    fn new(filters: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        Self { filters, probe_values: OnceLock::new() }
    }

    /// The single values that the filters ask columns for.
    fn probe_values(&self, source: &ScanSource) -> &[ProbeValues] {
        self.probe_values.get_or_init(|| match present_conjunction(&self.filters) {
            Ok(predicate) => ProbeValues::from_predicate(&predicate, source.schema()),
            Err(_) => Vec::new(),
        })
    }

    fn record(&self, source: &ScanSource, columns: &[ObservedColumn], outcome: &ScanOutcome) {
        let is_useless = outcome.rows.survivors == 0 && outcome.rows.scanned == outcome.chunk.rows as usize;
        // With some pages left out, a filter made of the values read would lack those of the other pages.
        if !is_useless || outcome.pages.is_some() {
            return;
        }
        for probe in self.probe_values(source) {
            let slot = columns.iter().position(|column| column.column == probe.column);
            let loaded = slot.and_then(|slot| outcome.columns.get(slot)?.as_ref());
            let is_cold = |place: ReadPlace| place.tier == source.home_tier() && place.bytes_read > 0;
            let cold = loaded.filter(|loaded| is_cold(loaded.place));
            if let (Some(segment), Some(cold)) = (outcome.chunk.columns().get(probe.column), cold) {
                source.store.filters().record_useless_read(segment, &cold.values, &probe.values);
            }
        }
    }
}
