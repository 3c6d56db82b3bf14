//! The span of a request, for traces: the parent of the spans of its statement, and a child of that which its client names.

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use terrace_tier_store::trace::TRACE_TARGET;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::traces;

/// Paths of supervisors, which ask every few seconds.
const UNTRACED: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/metrics/segments"];

/// Middleware in front of all others: answers a request in a span of its own.
pub(super) async fn traced(request: Request, next: Next) -> Response {
    let span = request_span(&request);
    if span.is_disabled() {
        return next.run(request).await;
    }
    traces::adopt_parent(&span, request.headers());
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    span.record("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    response
}

/// The span of a request; disabled where nobody wants traces. It has the path of the route, and not that of the request, which has
/// names of tables and tiers.
fn request_span(request: &Request) -> Span {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    if UNTRACED.contains(&path) {
        return Span::none();
    }
    let method = method(request.method());
    tracing::trace_span!(
        target: TRACE_TARGET,
        parent: None,
        "request",
        otel.name = %format_args!("{method} {path}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = path,
        http.response.status_code = Empty,
    )
}

/// The name of a known method; clients may write any word.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "_OTHER",
    }
}
