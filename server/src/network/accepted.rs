//! A connection that a listener has accepted: its stream, ready for use, and its place among those that may be open.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use terrace_flight::Peer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::place::Place;

/// Bytes by which a client of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// An accepted connection; TLS handshakes are over. Its place among the open ones is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Accepted {
    stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    peer: Peer,
    _place: Place,
    /// `None` once it has come, or where the service has a time limit of its own.
    greeting: Option<Box<Greeting>>,
}

/// The first bytes of a client, which have to come in time: who says nothing loses the place.
#[derive(Debug)]
struct Greeting {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Accepted {
    /// A connection without TLS.
    pub(super) fn plain(stream: TcpStream, peer: Peer, place: Place) -> Self {
        Self { stream: Either::Left(stream), peer, _place: place, greeting: None }
    }

    /// A connection with TLS.
    pub(super) fn encrypted(stream: TlsStream<TcpStream>, peer: Peer, place: Place) -> Self {
        Self { stream: Either::Right(Box::new(stream)), peer, _place: place, greeting: None }
    }

    /// With a time limit for the first bytes of HTTP/2.
    pub(super) fn greeting_within(mut self, limit: Duration) -> Self {
        let deadline = Box::pin(tokio::time::sleep(limit));
        self.greeting = Some(Box::new(Greeting { missing: PREFACE_BYTES, deadline }));
        self
    }

    /// Its client.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(greeting) = &mut self.greeting {
            greeting.missing = greeting.missing.saturating_sub(buf.filled().len() - before);
            if greeting.missing == 0 {
                self.greeting = None;
            } else if read.is_pending() && greeting.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
