//! Uploads that end early must not look complete.
//!
//! When a client resets its stream, the gRPC layer reads the end of the request as if all had been sent, and an ingest
//! would store half of it. This wrapper names the reset before that layer sees it.

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

/// A gRPC service whose handlers see a given-up upload as an error.
#[derive(Debug, Clone)]
pub struct CompleteUploads<S> {
    inner: S,
}

impl<S> CompleteUploads<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner }
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
        self.inner.call(request.map(|body| Body::new(body.map_err(name_reset))))
    }
}

fn name_reset(status: Status) -> Status {
    match status.code() {
        Code::Cancelled => Status::aborted("the client gave the upload up"),
        _ => status,
    }
}
