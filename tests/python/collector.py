"""An OpenTelemetry collector that keeps the spans that it gets (OTLP over gRPC)."""

import concurrent.futures
import threading

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


def value(any_value):
    """The value of an attribute."""
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


class Span:
    """A span as a test reads it."""

    def __init__(self, span, service):
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.name, self.kind, self.status, self.state = span.name, span.kind, span.status.code, span.trace_state
        self.begin_ns, self.end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = attributes(span.attributes)
        self.events = [(event.name, attributes(event.attributes)) for event in span.events]
        self.service = service

    def __repr__(self):
        return f"{self.name} {self.id} below {self.parent or 'nothing'}: {self.attributes}"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on a free port of this machine."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests = []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def Export(self, request, context):  # noqa: N802, the name of the service's method
        headers = {key: text for key, text in context.invocation_metadata()}
        with self.lock:
            self.requests.append((request, headers))
        return trace_service_pb2.ExportTraceServiceResponse()

    def headers(self):
        """Those of each request so far."""
        with self.lock:
            return [headers for _, headers in self.requests]

    def bytes(self):
        """All that was sent so far."""
        with self.lock:
            return b"".join(request.SerializeToString() for request, _ in self.requests)

    def spans(self, trace=None):
        """The spans so far, of one trace or of all."""
        with self.lock:
            requests = [request for request, _ in self.requests]
        found = []
        for resource_spans in (spans for request in requests for spans in request.resource_spans):
            service = attributes(resource_spans.resource.attributes)["service.name"]
            found += [Span(span, service) for scope in resource_spans.scope_spans for span in scope.spans]
        return [span for span in found if trace in (None, span.trace)]

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(grace=None)
