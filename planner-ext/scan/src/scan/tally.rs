//! Counts of one scan of a statement, collected while it runs, for the advisor and `system.queries`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::common::instant::Instant;
use terrace_tier_store::io::Class;
use terrace_tier_store::placement::epoch::MAX_TIERS;
use terrace_tier_store::placement::{ColumnReads, ScanProfile};
use terrace_tier_store::table::{ColumnId, TableId};
use terrace_tier_store::tier::TierId;

use super::metrics::{SCAN_CLASSES, now};
use super::source::ScanSource;

/// Chunks of scanned tables, counted once for each scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkCounts {
    /// All chunks.
    pub chunks: u64,
    /// Those that were not read: filters, run-time filters, hot views or a limit excluded them.
    pub pruned: u64,
}

/// Counts of one execution of a scan.
#[derive(Debug)]
pub(super) struct ScanTally {
    table: TableId,
    partitions: u32,
    begun: OnceLock<Instant>,
    span_us: AtomicU64,
    wait_ns: AtomicU64,
    /// By the class of the read that ended the wait.
    class_wait_ns: [(Class, AtomicU64); SCAN_CLASSES.len()],
    columns: Vec<ColumnTally>,
    /// Names of the tiers by [`TierId`].
    tiers: Arc<[String]>,
    tier_bytes: [AtomicU64; MAX_TIERS],
    chunks: AtomicU64,
    pruned_chunks: AtomicU64,
}

#[derive(Debug, Default)]
struct ColumnTally {
    /// Set with the first segment.
    column: OnceLock<ColumnId>,
    segments: [AtomicU32; MAX_TIERS],
    cold_bytes: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl ScanTally {
    /// A tally for a scan that reads `columns` columns.
    pub(super) fn new(source: &ScanSource, columns: usize, partitions: usize) -> Self {
        Self {
            table: source.table.id(),
            partitions: u32::try_from(partitions).unwrap_or(u32::MAX),
            begun: OnceLock::new(),
            span_us: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            class_wait_ns: SCAN_CLASSES.map(|class| (class, AtomicU64::new(0))),
            columns: (0..columns).map(|_| ColumnTally::default()).collect(),
            tiers: Arc::clone(source.tiers()),
            tier_bytes: Default::default(),
            chunks: AtomicU64::new(0),
            pruned_chunks: AtomicU64::new(0),
        }
    }

    /// Notes the start; called when a partition is polled for the first time.
    pub(super) fn begin(&self) {
        self.begun.get_or_init(now);
    }

    /// Notes that a partition has ended.
    pub(super) fn end(&self) {
        let span = self.begun.get().map_or(0, |begun| begun.elapsed().as_micros());
        self.span_us.fetch_max(u64::try_from(span).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Notes that a partition has waited for reads.
    pub(super) fn waited(&self, time: Duration) {
        self.wait_ns.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// Notes that a read of `class` has ended waits of so long in all.
    pub(super) fn waited_for(&self, class: Class, time: Duration) {
        let known = self.class_wait_ns.iter().filter(|(of, _)| *of == class);
        known.for_each(|(_, wait_ns)| _ = wait_ns.fetch_add(nanos(time), Ordering::Relaxed));
    }

    /// Time that its partitions waited for reads of `class` so far.
    pub(super) fn wait_for(&self, class: Class) -> Duration {
        let known = self.class_wait_ns.iter().filter(|(of, _)| *of == class);
        Duration::from_nanos(known.map(|(_, wait_ns)| wait_ns.load(Ordering::Relaxed)).sum())
    }

    /// Time that its partitions waited for reads so far.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_nanos(self.wait_ns.load(Ordering::Relaxed))
    }

    /// Counts a segment of the column at position `slot` that was read on `tier`, `cold_bytes` of it from the home
    /// tier.
    pub(super) fn segment(&self, slot: usize, column: ColumnId, tier: TierId, cold_bytes: u64) {
        let Some(tally) = self.columns.get(slot) else { return };
        tally.column.get_or_init(|| column);
        if let Some(count) = tally.segments.get(usize::from(tier.0)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        tally.cold_bytes.fetch_add(cold_bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were read on a tier.
    pub(super) fn add_tier_bytes(&self, tier: TierId, bytes: u64) {
        if let Some(sum) = self.tier_bytes.get(usize::from(tier.0)) {
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes read so far on each tier.
    pub(super) fn tier_bytes(&self) -> impl Iterator<Item = (&str, u64)> {
        let bytes = self.tier_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed));
        self.tiers.iter().map(String::as_str).zip(bytes)
    }

    /// Counts the chunks of the table, and those that filters or a limit excluded before anything was read.
    pub(super) fn add_chunks(&self, chunks: usize, pruned: usize) {
        self.chunks.fetch_add(chunks as u64, Ordering::Relaxed);
        self.pruned_chunks.fetch_add(pruned as u64, Ordering::Relaxed);
    }

    /// Counts a chunk that run-time filters excluded.
    pub(super) fn prune_chunk(&self) {
        self.pruned_chunks.fetch_add(1, Ordering::Relaxed);
    }

    /// Chunks of the table, and those of them that were excluded so far.
    pub(super) fn chunks(&self) -> ChunkCounts {
        ChunkCounts { chunks: self.chunks.load(Ordering::Relaxed), pruned: self.pruned_chunks.load(Ordering::Relaxed) }
    }

    /// Bytes read from the home tier so far.
    pub(super) fn cold_bytes(&self) -> u64 {
        self.columns.iter().map(|tally| tally.cold_bytes.load(Ordering::Relaxed)).sum()
    }

    /// The counts so far.
    pub(super) fn profile(&self) -> ScanProfile {
        let read = |tally: &ColumnTally| {
            let column = *tally.column.get()?;
            let segments = std::array::from_fn(|id| tally.segments.get(id).map_or(0, |n| n.load(Ordering::Relaxed)));
            let cold_bytes = tally.cold_bytes.load(Ordering::Relaxed);
            Some(ColumnReads { table: self.table, column, segments, cold_bytes })
        };
        ScanProfile {
            span_us: self.span_us.load(Ordering::Relaxed) as f64,
            wait_us: self.wait_ns.load(Ordering::Relaxed) as f64 / 1e3,
            partitions: self.partitions,
            reads: self.columns.iter().filter_map(read).collect(),
        }
    }
}
