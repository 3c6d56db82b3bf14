//! A connection that a listener has accepted: its stream, ready for use, and its place among those that may be open.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// An accepted connection; TLS handshakes are over. Its place among the open ones is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Accepted {
    stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    peer: IpAddr,
    _place: OwnedSemaphorePermit,
}

impl Accepted {
    /// A connection without TLS.
    pub(super) fn plain(stream: TcpStream, peer: IpAddr, place: OwnedSemaphorePermit) -> Self {
        Self { stream: Either::Left(stream), peer, _place: place }
    }

    /// A connection with TLS.
    pub(super) fn encrypted(stream: TlsStream<TcpStream>, peer: IpAddr, place: OwnedSemaphorePermit) -> Self {
        Self { stream: Either::Right(Box::new(stream)), peer, _place: place }
    }

    /// Address of the client, or of a proxy in front of it.
    pub(crate) fn peer(&self) -> IpAddr {
        self.peer
    }
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
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
