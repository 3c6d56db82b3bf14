//! Traces: spans of calls, statements and scans, sent to an OpenTelemetry collector by OTLP over gRPC.
//!
//! The crates below make spans with `tracing`, under a target of their own. Without a collector in the configuration
//! nothing of this module runs, and nobody listens for these spans. With one, a layer beside that of the log turns them into
//! spans of OpenTelemetry, a bounded queue takes those that have ended, and a thread sends them. Statements never wait for
//! any of it: spans that the queue has no room for are lost, and counted.
//!
//! ```text
//!   span ends --> layer --> queue (full: lost) --> thread --(gRPC, within a time limit: else lost)--> collector
//! ```
//!
//! - `context`: the trace of a request, and the name of a span's trace
//! - `queue`: spans that wait to be sent
//! - `sender`: sends them in batches

mod context;
mod queue;
mod sender;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanExporter as _};
use terrace_tier_store::trace::TRACE_TARGET;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::{Layer, Registry};

use crate::config::TracesConfig;
use crate::error::{Error, Result};
use crate::network::{self, Address, Protocol, TlsOptions};

pub use context::{adopt_parent, trace_id};
pub use queue::TraceFigures;
use queue::span_queue;
use sender::SpanSender;

/// A layer of the process's subscriber, below that of the log.
pub type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Time limit to connect to a collector.
const CONNECT: Duration = Duration::from_secs(5);
/// Time that a stop waits for the last spans to be sent.
const FLUSH: Duration = Duration::from_secs(3);

/// The figures of the process's traces. The subscriber is one of the whole process, and so are these.
static FIGURES: OnceLock<Arc<TraceFigures>> = OnceLock::new();

/// Figures of the traces that this process sends; `None` where it sends none.
pub fn figures() -> Option<&'static TraceFigures> {
    FIGURES.get().map(Arc::as_ref)
}

/// Sends the spans of this process, until it is finished.
pub struct Traces {
    provider: SdkTracerProvider,
    stop: CancellationToken,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Traces {
    /// Starts what sends spans to the collector of the configuration; `None` without one. Does not connect yet.
    ///
    /// # Errors
    /// [`Error::Config`] for an address, or settings of OpenTelemetry in the environment, that are of no use; [`Error::File`]
    /// for certificates that cannot be used.
    pub fn start(config: &TracesConfig) -> Result<Option<Self>> {
        let Some(endpoint) = config.endpoint.as_deref().filter(|_| config.is_on()) else { return Ok(None) };
        let failed =
            |error: &dyn std::fmt::Display| Error::System(format!("cannot start the thread of traces: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let resource = Resource::builder().with_service_name(config.service_name.clone()).build();
        let mut exporter = exporter(config, endpoint, &runtime)?;
        exporter.set_resource(&resource);
        let figures = Arc::clone(FIGURES.get_or_init(Arc::default));
        let (queue, spans) = span_queue(Arc::clone(&figures));
        let sender = SpanSender::new(exporter, spans, figures, config.timeout.0);
        let stop = CancellationToken::new();
        let (end, ended) = channel();
        let work = {
            let stop = stop.clone();
            move || {
                runtime.block_on(sender.run(stop));
                drop(end);
            }
        };
        let thread = std::thread::Builder::new().name("terrace-traces".to_owned()).spawn(work);
        let thread = thread.map_err(|error| failed(&error))?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_percent / 100.0)));
        let provider = SdkTracerProvider::builder().with_span_processor(queue);
        let provider = provider.with_sampler(sampler).with_resource(resource).build();
        Ok(Some(Self { provider, stop, ended, thread }))
    }

    /// The layer that takes spans. It takes no events of the log, which may have values of statements.
    pub fn layer(&self) -> SpanLayer {
        let layer = tracing_opentelemetry::layer::<Registry>()
            .with_tracer(self.provider.tracer("terrace"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false);
        layer.with_filter(filter_fn(|metadata| metadata.target() == TRACE_TARGET)).boxed()
    }

    /// Sends what is left, within a few seconds, and takes no more spans.
    pub fn finish(self) {
        self.stop.cancel();
        // Nothing is sent: the other end is closed.
        let ended = self.ended.recv_timeout(FLUSH);
        if !matches!(ended, Err(std::sync::mpsc::RecvTimeoutError::Timeout)) {
            // A thread that panicked has said so.
            let _ = self.thread.join();
        }
    }
}

/// What sends spans to the collector at `endpoint`, on this runtime.
fn exporter(config: &TracesConfig, endpoint: &str, runtime: &Runtime) -> Result<SpanExporter> {
    let wrong = |error: &dyn std::fmt::Display| Error::Config(format!("traces.endpoint = '{endpoint}': {error}"));
    let address = Address::parse(endpoint).map_err(|error| wrong(&error))?;
    if config.ca.is_some() && !address.tls {
        return Err(wrong(&"traces.ca is of no use without TLS; write https://HOST:PORT"));
    }
    let tls = TlsOptions { ca: config.ca.clone(), ..TlsOptions::default() };
    let connector = tls.connector(&address, Protocol::Http2)?;
    let place = Endpoint::from_shared(address.http_url()).map_err(|error| wrong(&error))?;
    // A channel belongs to the runtime that it is made in.
    let _inside = runtime.enter();
    let connect = service_fn(move |_: Uri| {
        let (address, connector) = (address.clone(), connector.clone());
        async move { network::connect(&address, connector.as_ref(), CONNECT).await.map(TokioIo::new) }
    });
    let channel: Channel = place.connect_with_connector_lazy(connect);
    let exporter = SpanExporter::builder().with_tonic().with_channel(channel).with_timeout(config.timeout.0).build();
    exporter.map_err(|error| Error::Config(format!("traces: {error}")))
}
