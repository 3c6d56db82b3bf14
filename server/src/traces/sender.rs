//! Sends spans to the collector in batches, each within a time limit.
//!
//! A collector that takes no spans is named in the log once, until it takes some again; what it did not take is lost. The
//! errors of the exporter name codes and addresses, and no headers.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::queue::TraceFigures;

/// Most spans of a batch.
const BATCH_SPANS: usize = 512;
/// Time for which a batch that is not full waits for more.
const GATHER: Duration = Duration::from_millis(500);

/// Takes spans out of a queue and sends them.
pub(super) struct SpanSender<E> {
    exporter: E,
    spans: mpsc::Receiver<SpanData>,
    figures: Arc<TraceFigures>,
    time_limit: Duration,
}

impl<E: SpanExporter> SpanSender<E> {
    /// Sends `spans` by `exporter`, each batch within a time limit.
    pub(super) fn new(
        exporter: E,
        spans: mpsc::Receiver<SpanData>,
        figures: Arc<TraceFigures>,
        time_limit: Duration,
    ) -> Self {
        Self { exporter, spans, figures, time_limit }
    }

    /// Sends spans until `stop`, and then those that are left, unless the time limit passes.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.gather(&mut batch) => {}
            }
            if !batch.is_empty() {
                self.send(batch).await;
            }
            if stop.is_cancelled() {
                break;
            }
        }
        self.spans.close();
        // What is not sent in time is left.
        let _ = tokio::time::timeout(self.time_limit, self.send_rest()).await;
    }

    /// Waits for spans, and a moment for more of them. What came before it is dropped is in the batch.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) {
        if self.spans.recv_many(batch, BATCH_SPANS).await == 0 {
            // Nobody can give spans any more: there is nothing to do but to wait for the stop.
            return std::future::pending().await;
        }
        let fill = async {
            while batch.len() < BATCH_SPANS {
                let room = BATCH_SPANS - batch.len();
                if self.spans.recv_many(batch, room).await == 0 {
                    return;
                }
            }
        };
        // A batch need not be full.
        let _ = tokio::time::timeout(GATHER, fill).await;
    }

    /// Sends the spans of a queue that is closed.
    async fn send_rest(&mut self) {
        loop {
            let mut batch = Vec::new();
            if self.spans.recv_many(&mut batch, BATCH_SPANS).await == 0 {
                return;
            }
            self.send(batch).await;
        }
    }

    async fn send(&self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        let error = match tokio::time::timeout(self.time_limit, self.exporter.export(batch)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {:?} (traces.timeout)", self.time_limit)),
        };
        let Some(error) = error else {
            if self.figures.add_sent(count) {
                tracing::info!("the collector of traces takes spans again");
            }
            return;
        };
        if !self.figures.add_failed(count) {
            tracing::warn!(error, "the collector of traces takes no spans: they are lost, and counted, until it does");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use opentelemetry::trace::{Tracer, TracerProvider};
    use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use parking_lot::Mutex;

    use super::super::queue::span_queue;
    use super::*;

    /// A collector that takes spans, refuses them, or does not answer.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Collector {
        Takes,
        Refuses,
        Hangs,
    }

    /// Does what its collector does, and keeps the sizes of batches.
    #[derive(Debug, Clone)]
    struct Exporter {
        collector: Arc<Mutex<Collector>>,
        batches: Arc<Mutex<Vec<usize>>>,
    }

    impl SpanExporter for Exporter {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.batches.lock().push(batch.len());
            let collector = *self.collector.lock();
            match collector {
                Collector::Takes => Ok(()),
                Collector::Refuses => Err(OTelSdkError::InternalFailure("refused".to_owned())),
                Collector::Hangs => std::future::pending().await,
            }
        }
    }

    /// A sender of so many spans, with its exporter.
    fn sender(spans: usize, collector: Collector) -> (SpanSender<Exporter>, Exporter) {
        let figures = Arc::<TraceFigures>::default();
        let (queue, taken) = span_queue(Arc::clone(&figures));
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).with_span_processor(queue).build();
        for _ in 0..spans {
            drop(provider.tracer("test").start("span"));
        }
        let exporter = Exporter { collector: Arc::new(Mutex::new(collector)), batches: Arc::default() };
        (SpanSender::new(exporter.clone(), taken, figures, Duration::from_millis(200)), exporter)
    }

    /// Waits until a condition holds.
    async fn until(holds: impl Fn() -> bool) {
        let waiting = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
    }

    #[tokio::test]
    async fn a_stop_sends_what_is_left_in_batches() {
        let (sender, exporter) = sender(BATCH_SPANS + 7, Collector::Takes);
        let figures = Arc::clone(&sender.figures);
        let stop = CancellationToken::new();
        stop.cancel();
        sender.run(stop).await;
        assert_eq!(*exporter.batches.lock(), [BATCH_SPANS, 7]);
        assert_eq!((figures.sent(), figures.failed(), figures.is_failing()), (BATCH_SPANS as u64 + 7, 0, false));
    }

    #[tokio::test]
    async fn spans_are_sent_while_the_server_runs() {
        let (sender, exporter) = sender(3, Collector::Takes);
        let figures = Arc::clone(&sender.figures);
        let stop = CancellationToken::new();
        let sending = tokio::spawn(sender.run(stop.clone()));
        until(|| figures.sent() == 3).await;
        stop.cancel();
        sending.await.unwrap();
        assert_eq!(*exporter.batches.lock(), [3]);
    }

    #[tokio::test]
    async fn a_collector_that_refuses_loses_spans_until_it_takes_some() {
        let (sender, exporter) = sender(BATCH_SPANS + 1, Collector::Refuses);
        let figures = Arc::clone(&sender.figures);
        let stop = CancellationToken::new();
        let sending = tokio::spawn(sender.run(stop.clone()));
        until(|| figures.failed() > 0).await;
        assert!(figures.is_failing());
        *exporter.collector.lock() = Collector::Takes;
        stop.cancel();
        sending.await.unwrap();
        assert_eq!(figures.sent() + figures.failed(), BATCH_SPANS as u64 + 1);
        assert_eq!(figures.is_failing(), figures.sent() == 0, "the last batch says whether it fails");
    }

    #[tokio::test]
    async fn a_collector_that_does_not_answer_is_given_up_in_time() {
        let (sender, exporter) = sender(2 * BATCH_SPANS, Collector::Hangs);
        let figures = Arc::clone(&sender.figures);
        let stop = CancellationToken::new();
        let sending = tokio::spawn(sender.run(stop.clone()));
        until(|| figures.failed() > 0).await;
        assert_eq!((figures.sent(), figures.is_failing()), (0, true));
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(60), sending).await.unwrap().unwrap();
        assert!(!exporter.batches.lock().is_empty());
    }
}
