//! A connection that a listener has accepted: its stream, ready for use, and its place among those that may be open.
//!
//! HTTP/2 writes and flushes a large result in frames of 16 KiB, which is what most clients take, and the system would send each of them on its
//! own. So it is told to collect full segments while large frames are written (`TCP_CORK`). The library flushes once more after the last of
//! them, without another write ([`Cork`]); if it did not, the system would send the rest after 200 ms.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use terrace_flight::Peer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::place::Place;

/// Bytes by which a client of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// Bytes of a write that others are expected to follow: those of a whole frame of HTTP/2.
const LARGE_WRITE_BYTES: usize = 16 << 10;

/// An accepted connection; TLS handshakes are over. Its place among the open ones is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Accepted {
    stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    peer: Peer,
    _place: Place,
    /// `None` once it has come, or where the service has a time limit of its own.
    greeting: Option<Box<Greeting>>,
    /// `None` for HTTP/1, which flushes once.
    cork: Option<Cork>,
}

/// Whether the system collects full segments.
#[derive(Debug, Default)]
struct Cork {
    is_set: bool,
    /// Whether the last write was large and has not been flushed.
    follows_large: bool,
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
        Self { stream: Either::Left(stream), peer, _place: place, greeting: None, cork: None }
    }

    /// A connection with TLS.
    pub(super) fn encrypted(stream: TlsStream<TcpStream>, peer: Peer, place: Place) -> Self {
        Self { stream: Either::Right(Box::new(stream)), peer, _place: place, greeting: None, cork: None }
    }

    /// For HTTP/2, with a time limit for its first bytes.
    pub(super) fn for_http2(mut self, limit: Duration) -> Self {
        let deadline = Box::pin(tokio::time::sleep(limit));
        self.greeting = Some(Box::new(Greeting { missing: PREFACE_BYTES, deadline }));
        self.cork = Some(Cork::default());
        self
    }

    /// Its client.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Notes a write that begins now.
    fn note_write(&mut self, bytes: usize) {
        let is_large = bytes >= LARGE_WRITE_BYTES;
        let Some(cork) = &mut self.cork else { return };
        cork.follows_large = is_large;
        if is_large && !cork.is_set {
            self.set_cork(true);
        }
    }

    /// Notes that all writes have been flushed.
    fn note_flush(&mut self) {
        let Some(cork) = &mut self.cork else { return };
        let more_may_follow = std::mem::take(&mut cork.follows_large);
        if cork.is_set && !more_may_follow {
            self.set_cork(false);
        }
    }

    fn set_cork(&mut self, is_set: bool) {
        let tcp = match &self.stream {
            Either::Left(tcp) => tcp,
            Either::Right(tls) => tls.get_ref().0,
        };
        let changed = SockRef::from(tcp).set_tcp_cork(is_set);
        match changed {
            Ok(()) => self.cork = Some(Cork { is_set, follows_large: is_set }),
            Err(error) => tracing::debug!("TCP_CORK not changed: {error}"),
        }
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
        self.note_write(buf.len());
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.note_write(bufs.iter().map(|buf| buf.len()).sum());
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.note_flush();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::place::Places;
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn is_corked(accepted: &Accepted) -> bool {
        let Either::Left(tcp) = &accepted.stream else { return false };
        SockRef::from(tcp).tcp_cork().unwrap()
    }

    #[tokio::test]
    async fn large_frames_are_collected_until_the_last_was_flushed() {
        let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let place = Places::new(1).take(ADDRESS).unwrap();
        let mut accepted = Accepted::plain(stream, ADDRESS.into(), place).for_http2(Duration::from_secs(60));

        accepted.write_all(&[0; 100]).await.unwrap();
        assert!(!is_corked(&accepted), "a small answer goes at once");
        accepted.flush().await.unwrap();
        for _ in 0..2 {
            accepted.write_all(&[0; LARGE_WRITE_BYTES]).await.unwrap();
            accepted.flush().await.unwrap();
            assert!(is_corked(&accepted), "another frame may follow");
        }
        accepted.flush().await.unwrap();
        assert!(!is_corked(&accepted), "none did");
        accepted.write_all(&[0; LARGE_WRITE_BYTES]).await.unwrap();
        accepted.flush().await.unwrap();
        accepted.write_all(&[0; 100]).await.unwrap();
        accepted.flush().await.unwrap();
        assert!(!is_corked(&accepted), "the end of a result goes at once");
        client.read_exact(&mut [0; 200 + 3 * LARGE_WRITE_BYTES]).await.unwrap();
    }
}
