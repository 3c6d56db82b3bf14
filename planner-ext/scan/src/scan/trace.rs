//! The span of one execution of a scan, for traces: what it read on which tier, and what it waited for.
//!
//! Reads are summed up per scan and tier, so that the number of spans and events depends on the plan and not on the data.
//! The span begins with the execution, ends with its last partition, and has its figures once the execution is dropped.

use std::sync::Arc;

use terrace_tier_store::trace::{TRACE_TARGET, attribute};
use tracing::Span;
use tracing::field::Empty;

use super::metrics::{SCAN_CLASSES, ScanMetrics};
use super::source::ScanSource;
use super::tally::ScanTally;

/// The operator that reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// Reads chunks from end to end.
    Scan,
    /// Reads rows by their positions.
    Fetch,
}

impl Reader {
    fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Fetch => "fetch",
        }
    }
}

/// Makes the span of an execution below that of its statement; disabled where the statement has none.
pub(super) fn scan_span(statement: &Span, operator: Reader, source: &ScanSource) -> Span {
    if statement.is_disabled() {
        return Span::none();
    }
    tracing::trace_span!(
        target: TRACE_TARGET,
        parent: statement,
        "scan",
        otel.name = operator.name(),
        db.collection.name = %source.table.name(),
        terrace.scan.chunks = Empty,
        terrace.scan.chunks_pruned = Empty,
        terrace.scan.chunks_cold = Empty,
        terrace.scan.bytes = Empty,
        terrace.scan.cold_bytes = Empty,
        terrace.scan.bytes_skipped = Empty,
        terrace.scan.read_wait_us = Empty,
    )
}

/// Keeps the span of an execution, and gives it its figures in the end.
pub(super) struct ScanTrace {
    span: Span,
    metrics: ScanMetrics,
    tally: Arc<ScanTally>,
}

impl ScanTrace {
    /// The figures of `metrics` and `tally` become those of `span`.
    pub(super) fn new(span: Span, metrics: &ScanMetrics, tally: &Arc<ScanTally>) -> Self {
        Self { span, metrics: metrics.clone(), tally: Arc::clone(tally) }
    }

    /// Notes that a partition has ended: the last one ends the span.
    pub(super) fn end(&self) {
        // A span that was entered ends where it was left for the last time, however long it is kept.
        self.span.in_scope(|| ());
    }

    fn record_figures(&self) {
        let Self { span, metrics, tally } = self;
        let count = |number: usize| attribute(number as u64);
        let pruned = metrics.chunks_pruned.value() + metrics.chunks_pruned_dynamic.value();
        let bytes: u64 = tally.tier_bytes().map(|(_, bytes)| bytes).sum();
        span.record("terrace.scan.chunks", count(metrics.chunks_total.value()));
        span.record("terrace.scan.chunks_pruned", count(pruned));
        span.record("terrace.scan.chunks_cold", count(metrics.chunks_cold.value()));
        span.record("terrace.scan.bytes", attribute(bytes));
        span.record("terrace.scan.cold_bytes", attribute(tally.cold_bytes()));
        span.record("terrace.scan.bytes_skipped", count(metrics.bytes_skipped.value()));
        span.record("terrace.scan.read_wait_us", attribute(tally.wait().as_micros() as u64));
    }

    fn add_events(&self) {
        let Self { span, tally, .. } = self;
        for (tier, bytes) in tally.tier_bytes().filter(|(_, bytes)| *bytes > 0) {
            tracing::trace!(
                target: TRACE_TARGET,
                parent: span,
                { terrace.tier = tier, terrace.bytes = attribute(bytes) },
                "segment reads"
            );
        }
        let waits = SCAN_CLASSES.map(|class| (class, tally.wait_for(class)));
        for (class, wait) in waits.into_iter().filter(|(_, wait)| !wait.is_zero()) {
            tracing::trace!(
                target: TRACE_TARGET,
                parent: span,
                { terrace.read.class = class.name(), terrace.wait_us = attribute(wait.as_micros() as u64) },
                "waits for device reads"
            );
        }
    }
}

impl Drop for ScanTrace {
    fn drop(&mut self) {
        if !self.span.is_disabled() {
            self.record_figures();
            self.add_events();
        }
    }
}
