//! The trace of a request: what the headers `traceparent` and `tracestate` name (W3C Trace Context), and the name of the
//! trace that a span belongs to.

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Longest `tracestate` that is passed on (W3C Trace Context, section 3.3.1.5): each span of the request keeps a copy.
const STATE_BYTES: usize = 512;

/// Makes a span a child of the one that the headers of a request name, where they name one.
pub fn adopt_parent(span: &Span, headers: &HeaderMap) {
    if !headers.contains_key("traceparent") {
        return;
    }
    let parent = TraceContextPropagator::new().extract(&Headers(headers));
    if parent.span().span_context().is_valid() {
        // Without a layer that takes spans there is nothing to be done.
        let _ = span.set_parent(parent);
    }
}

/// The name of the trace of a span, as 32 hexadecimal digits; `None` where that trace is not recorded.
pub fn trace_id(span: &Span) -> Option<String> {
    let context = span.context();
    let recorded = context.span();
    let recorded = recorded.span_context();
    (recorded.is_valid() && recorded.is_sampled()).then(|| recorded.trace_id().to_string())
}

/// Headers of HTTP as OpenTelemetry reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        (key != "tracestate" || value.len() <= STATE_BYTES).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The trace of a span that adopts these headers, where traces that begin here are recorded or not.
    fn trace_of(headers: &[(&'static str, &str)], sampler: Sampler) -> Option<String> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = headers.collect();
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::ParentBased(Box::new(sampler))).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test")).with_context_activation(false);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::trace_span!(parent: None, "call");
            adopt_parent(&span, &headers);
            let child = tracing::trace_span!(parent: &span, "statement");
            assert_eq!(trace_id(&child), trace_id(&span));
            trace_id(&child)
        })
    }

    #[test]
    fn a_request_goes_on_with_the_trace_of_its_client() {
        let named = Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned());
        assert_eq!(trace_of(&[("traceparent", PARENT)], Sampler::AlwaysOff), named);
        assert_eq!(trace_of(&[("traceparent", PARENT), ("tracestate", "a=1")], Sampler::AlwaysOff), named);
        let unrecorded = PARENT.replace("-01", "-00");
        assert_eq!(trace_of(&[("traceparent", unrecorded.as_str())], Sampler::AlwaysOn), None);
    }

    #[test]
    fn a_request_without_a_trace_begins_one() {
        for headers in [vec![], vec![("traceparent", "00-0-0-01")], vec![("traceparent", "no trace")]] {
            assert_eq!(trace_of(&headers, Sampler::AlwaysOff), None);
            let begun = trace_of(&headers, Sampler::AlwaysOn).unwrap();
            assert!(begun.len() == 32 && begun.bytes().all(|byte| byte.is_ascii_hexdigit()), "{begun}");
        }
    }

    #[test]
    fn a_long_state_is_not_passed_on() {
        let long = format!("a={}", "b".repeat(STATE_BYTES));
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", PARENT.parse().unwrap());
        headers.insert("tracestate", long.parse().unwrap());
        assert_eq!(Headers(&headers).get("tracestate"), None);
        assert_eq!(Headers(&headers).get("traceparent"), Some(PARENT));
    }

    #[test]
    fn a_span_that_nobody_takes_has_no_trace() {
        assert_eq!(trace_id(&Span::none()), None);
    }
}
