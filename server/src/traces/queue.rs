//! Spans that have ended and wait to be sent: as many as there is room for, the others are lost and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::mpsc;

/// Most spans that wait. With the longest texts of statements they take some 20 MiB, mostly a tenth of that.
const MOST_QUEUED: usize = 4_096;

/// What becomes of spans. The counts only grow.
#[derive(Debug, Default)]
pub struct TraceFigures {
    sent: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    is_failing: AtomicBool,
}

impl TraceFigures {
    /// Spans that the collector has taken.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Spans that were lost because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Spans that were lost because the collector did not take them.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the collector did not take the last spans.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Counts spans that the collector has taken. Returns whether it did not take those before.
    pub(super) fn add_sent(&self, spans: u64) -> bool {
        self.sent.fetch_add(spans, Ordering::Relaxed);
        self.is_failing.swap(false, Ordering::Relaxed)
    }

    /// Counts spans that the collector did not take. Returns whether it did not take those before, either.
    pub(super) fn add_failed(&self, spans: u64) -> bool {
        self.failed.fetch_add(spans, Ordering::Relaxed);
        self.is_failing.swap(true, Ordering::Relaxed)
    }
}

/// Takes spans that have ended, without waiting.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: mpsc::Sender<SpanData>,
    figures: Arc<TraceFigures>,
}

/// An empty queue, and what takes spans out of it.
pub(super) fn span_queue(figures: Arc<TraceFigures>) -> (SpanQueue, mpsc::Receiver<SpanData>) {
    let (spans, taken) = mpsc::channel(MOST_QUEUED);
    (SpanQueue { spans, figures }, taken)
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.figures.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does nothing: whoever stops the server waits for the thread that sends.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use opentelemetry::trace::{Tracer, TracerProvider};
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

    use super::*;

    #[test]
    fn spans_beyond_the_room_are_lost_and_counted() {
        let figures = Arc::<TraceFigures>::default();
        let (queue, mut taken) = span_queue(Arc::clone(&figures));
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).with_span_processor(queue).build();
        let tracer = provider.tracer("test");
        for _ in 0..MOST_QUEUED + 3 {
            drop(tracer.start("span"));
        }
        assert_eq!(figures.dropped(), 3);
        let mut waiting = 0;
        while taken.try_recv().is_ok() {
            waiting += 1;
        }
        assert_eq!(waiting, MOST_QUEUED);
        drop(tracer.start("span"));
        assert_eq!(taken.try_recv().unwrap().name, "span");
    }

    #[test]
    fn spans_that_are_not_recorded_take_no_room() {
        let figures = Arc::<TraceFigures>::default();
        let (queue, mut taken) = span_queue(Arc::clone(&figures));
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).with_span_processor(queue).build();
        drop(provider.tracer("test").start("span"));
        assert!(taken.try_recv().is_err());
        assert_eq!(figures.dropped(), 0);
    }
}
