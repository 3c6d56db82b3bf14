//! The span of a call, for traces: the parent of the spans of its statements, and a child of that which its client names.
//!
//! A call begins where the gRPC layer gets it, and its handler runs in the span. Rows of results are sent afterwards:
//! the [`Observation`](crate::metrics::Observation) of the call keeps the span until the last message.

use terrace_model::trace::{TRACE_TARGET, attribute};
use tonic::{Code, codegen::http::HeaderMap};
use tracing::{Span, field::Empty};

/// Makes a span a child of the one that headers of a request name (`traceparent`), where they name one.
pub type AdoptParent = fn(&Span, &HeaderMap);

/// Longest name of a method that is known to be none that a client made up.
const METHOD_BYTES: usize = 32;

/// The span of a call of the method at `path`; disabled where nobody wants traces.
pub(crate) fn call_span(path: &str, headers: &HeaderMap, adopt: Option<AdoptParent>) -> Span {
    let (service, method) = split(path);
    let span = tracing::trace_span!(
        target: TRACE_TARGET,
        parent: None,
        "call",
        otel.name = %format_args!("{service}/{method}"),
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method,
        rpc.grpc.status_code = Empty,
        terrace.operation = Empty,
        terrace.rows = Empty,
        terrace.bytes = Empty,
    );
    if let Some(adopt) = adopt.filter(|_| !span.is_disabled()) {
        adopt(&span, headers);
    }
    span
}

/// The names of a service and of a method, from a path of gRPC. The service is ours, the method is what the client wrote.
fn split(path: &str) -> (&str, &str) {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
    let may_be_one = method.len() <= METHOD_BYTES && method.bytes().all(|byte| byte.is_ascii_alphabetic());
    (service, if may_be_one { method } else { "_OTHER" })
}

/// How a call has ended.
pub(crate) struct CallEnd {
    pub(crate) operation: &'static str,
    /// `Ok` where it has not failed.
    pub(crate) code: Code,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Gives the span of a call its figures.
pub(crate) fn record_end(span: &Span, end: &CallEnd) {
    if span.is_disabled() {
        return;
    }
    span.record("rpc.grpc.status_code", i64::from(i32::from(end.code)));
    span.record("terrace.operation", end.operation);
    span.record("terrace.rows", attribute(end.rows));
    span.record("terrace.bytes", attribute(end.bytes));
    if is_fault(end.code) {
        span.record("otel.status_code", "ERROR");
    }
}

/// Whether a code says that the server failed; the others say that a request cannot be fulfilled.
fn is_fault(code: Code) -> bool {
    let faults =
        [Code::Unknown, Code::DeadlineExceeded, Code::Unimplemented, Code::Internal, Code::Unavailable, Code::DataLoss];
    faults.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_methods_are_no_texts_of_clients() {
        let service = "arrow.flight.protocol.FlightService";
        assert_eq!(split(&format!("/{service}/DoGet")), (service, "DoGet"));
        assert_eq!(split(&format!("/{service}/secret=1")), (service, "_OTHER"));
        assert_eq!(split(&format!("/{service}/{}", "a".repeat(33))), (service, "_OTHER"));
        assert_eq!(split(""), ("", ""));
    }

    #[test]
    fn a_refused_request_is_no_fault_of_the_server() {
        assert!(is_fault(Code::Internal) && is_fault(Code::Unavailable));
        assert!(!is_fault(Code::Ok) && !is_fault(Code::InvalidArgument) && !is_fault(Code::Unauthenticated));
    }
}
