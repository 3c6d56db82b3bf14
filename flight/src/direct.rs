//! A wrapper around the gRPC service: reads uploads before the gRPC layer does, and sends large results after it.
//!
//! When a client resets its stream, the gRPC layer reads the end of the request as if it were complete, and an ingest
//! would store half of the rows. The wrapper turns the reset into an error. It also takes the rows out of the messages,
//! so that they are not copied twice ([`bodies`]), counts the bytes of all requests while they arrive ([`receive`]), and puts
//! the rows of large results into their messages ([`results`]). It begins the span of each call ([`trace`](crate::trace)).

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{TryFutureExt, future::MapOk};
use http_body_util::BodyExt;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};
use tracing::{Instrument, instrument::Instrumented};

use crate::{
    bodies,
    options::FlightOptions,
    receive::{self, ReceiveBudget},
    results,
    trace::{AdoptParent, call_span},
};

/// The method that uploads rows.
const DO_PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// A gRPC service that does not copy large rows, and whose handlers see an aborted upload as an error.
#[derive(Clone)]
pub struct DirectBodies<S> {
    inner: S,
    max_message_bytes: usize,
    stall_timeout: Option<Duration>,
    budget: Arc<ReceiveBudget>,
    adopt_parent: Option<AdoptParent>,
}

impl<S> DirectBodies<S> {
    pub(crate) fn new(inner: S, options: &FlightOptions, budget: Arc<ReceiveBudget>) -> Self {
        let FlightOptions { max_message_bytes, stall_timeout, adopt_parent, .. } = *options;
        Self { inner, max_message_bytes, stall_timeout, budget, adopt_parent }
    }
}

impl<S: NamedService> NamedService for DirectBodies<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for DirectBodies<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Instrumented<MapOk<S::Future, fn(http::Response<Body>) -> http::Response<Body>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let span = call_span(request.uri().path(), request.headers(), self.adopt_parent);
        let mut request = request.map(|body| Body::new(body.map_err(name_reset)));
        let body = std::mem::take(request.body_mut());
        let received = self.budget.stream();
        *request.body_mut() = if request.uri().path() == DO_PUT {
            let (rest, bodies) = bodies::take_bodies(body, self.max_message_bytes, received, self.stall_timeout);
            request.extensions_mut().insert(bodies);
            rest
        } else {
            receive::counted(body, received, self.stall_timeout)
        };
        let with_frames: fn(http::Response<Body>) -> http::Response<Body> = results::with_frames;
        // A service may do a part of its work before its future is polled.
        let answer = span.in_scope(|| self.inner.call(request));
        answer.map_ok(with_frames).instrument(span)
    }
}

fn name_reset(status: Status) -> Status {
    match status.code() {
        Code::Cancelled => Status::aborted("the client cancelled the upload"),
        _ => status,
    }
}
