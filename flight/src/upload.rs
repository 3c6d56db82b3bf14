//! A wrapper around the gRPC service that reads uploads before the gRPC layer does.
//!
//! When a client resets its stream, the gRPC layer reads the end of the request as if it were complete, and an ingest
//! would store half of the rows. The wrapper turns the reset into an error. It also takes the rows out of the messages,
//! so that they are not copied twice ([`bodies`]).

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use http_body_util::BodyExt;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};

use crate::bodies;

/// The method that uploads rows.
const DO_PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// A gRPC service whose handlers see an aborted upload as an error.
#[derive(Debug, Clone)]
pub struct CompleteUploads<S> {
    inner: S,
    max_message_bytes: usize,
}

impl<S> CompleteUploads<S> {
    pub(crate) fn new(inner: S, max_message_bytes: usize) -> Self {
        Self { inner, max_message_bytes }
    }
}

impl<S: NamedService> NamedService for CompleteUploads<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for CompleteUploads<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut request = request.map(|body| Body::new(body.map_err(name_reset)));
        if request.uri().path() == DO_PUT {
            let (rest, bodies) = bodies::take_bodies(std::mem::take(request.body_mut()), self.max_message_bytes);
            *request.body_mut() = rest;
            request.extensions_mut().insert(bodies);
        }
        self.inner.call(request)
    }
}

fn name_reset(status: Status) -> Status {
    match status.code() {
        Code::Cancelled => Status::aborted("the client cancelled the upload"),
        _ => status,
    }
}
