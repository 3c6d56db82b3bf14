//! Listeners: bind an address, accept connections, complete their TLS handshakes, and bound how many there are.
//!
//! A connection beyond the limit is closed at once, and one of HTTP/2 that does not begin in time. Handshakes run beside each other, each within a time limit; where too
//! many run at once, the one that began first ends, since an honest one is over within milliseconds.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use terrace_flight::Peer;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::accepted::Accepted;
use super::place::{Place, Places};
use super::server_tls::{Protocol, ServerTls};
use crate::error::{Error, Result};

/// Connections that wait for the service to take them.
const WAITING: usize = 64;
/// Handshakes that run at once.
const MOST_HANDSHAKES: usize = 256;
/// Pause after an error that the next attempt would meet too, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Most open connections.
    pub(crate) connections: usize,
    /// Time limit of a TLS handshake, and of the first bytes of HTTP/2 after it.
    pub(crate) handshake: Duration,
}

/// What a listener counts.
#[derive(Debug, Default)]
pub(crate) struct ListenerFigures {
    accepted: AtomicU64,
    refused: AtomicU64,
    failed_handshakes: AtomicU64,
}

impl ListenerFigures {
    /// Connections accepted, handshakes included that failed later.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections closed because too many were open, in all or of their client.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Handshakes that failed, or took too long.
    pub(crate) fn failed_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Ordering::Relaxed)
    }
}

/// A bound address.
#[derive(Debug)]
pub(crate) struct Listener {
    tcp: TcpListener,
    figures: Arc<ListenerFigures>,
}

impl Listener {
    /// Binds an address; `key` is its key of the configuration.
    pub(crate) fn bind(network: &Runtime, addr: &str, key: &'static str) -> Result<Self> {
        let found = resolve(addr, key)?;
        let _inside = network.enter();
        let bound = std::net::TcpListener::bind(found.as_slice()).and_then(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        let tcp = bound.map_err(|e| {
            let port = addr.rsplit(':').next().unwrap_or_default();
            let message = match e.kind() {
                io::ErrorKind::AddrInUse => format!(
                    "port {port} is in use. Stop what listens there (`ss -ltnp 'sport = :{port}'` names it) or choose another \
                     port; port 0 takes a free one"
                ),
                io::ErrorKind::PermissionDenied => format!("port {port} needs privileges; choose one above 1023"),
                _ => e.to_string(),
            };
            Error::Listen { addr: addr.to_owned(), key, message }
        })?;
        Ok(Self { tcp, figures: Arc::default() })
    }

    /// The address that it is bound to.
    pub(crate) fn addr(&self) -> Result<SocketAddr> {
        self.tcp.local_addr().map_err(|e| Error::System(format!("cannot ask a listener for its address: {e}")))
    }

    /// Its counts.
    pub(crate) fn figures(&self) -> Arc<ListenerFigures> {
        Arc::clone(&self.figures)
    }

    /// Accepts connections until `stop`, on a task of the current runtime; with `tls` they are encrypted. The stream does
    /// not end: the service that takes the connections ends by itself.
    pub(crate) fn accept(
        self,
        protocol: Protocol,
        tls: Option<Arc<ServerTls>>,
        limits: Limits,
        stop: CancellationToken,
    ) -> impl Stream<Item = Accepted> + Send + Unpin + use<> {
        let (ready, accepted) = mpsc::channel(WAITING);
        let places = Places::new(limits.connections);
        let accepting = Accepting { tcp: self.tcp, figures: self.figures, places, protocol, tls, limits, ready };
        tokio::spawn(async move {
            tokio::select! {
                () = accepting.run() => {}
                () = stop.cancelled() => {}
            }
        });
        ReceiverStream::new(accepted).chain(stream::pending())
    }
}

/// The IP addresses and the port of an address of the configuration.
pub(super) fn resolve(addr: &str, key: &'static str) -> Result<Vec<SocketAddr>> {
    let failed = |message: String| Error::Listen { addr: addr.to_owned(), key, message };
    let found: Vec<SocketAddr> = std::net::ToSocketAddrs::to_socket_addrs(addr)
        .map_err(|e| failed(format!("{e}; write HOST:PORT, for example 127.0.0.1:31337")))?
        .collect();
    if found.is_empty() { Err(failed("this host name has no IP address".to_owned())) } else { Ok(found) }
}

/// A listener that accepts.
struct Accepting {
    tcp: TcpListener,
    figures: Arc<ListenerFigures>,
    places: Arc<Places>,
    protocol: Protocol,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
    ready: mpsc::Sender<Accepted>,
}

impl Accepting {
    /// Accepts for ever, or without TLS until the service takes no more connections.
    async fn run(self) {
        let mut handshakes = VecDeque::new();
        let mut is_failing = false;
        loop {
            let (stream, peer) = match self.tcp.accept().await {
                Ok((stream, peer)) => (stream, peer.ip()),
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(%error, "cannot accept connections; trying again");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if std::mem::take(&mut is_failing) {
                tracing::info!("accepting connections again");
            }
            let Some(place) = self.places.take(peer) else {
                self.figures.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            self.figures.accepted.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!("TCP_NODELAY not set: {error}");
            }
            match &self.tls {
                None => {
                    let accepted = greeting(Accepted::plain(stream, peer.into(), place), self.protocol, self.limits);
                    if self.ready.send(accepted).await.is_err() {
                        return;
                    }
                }
                Some(tls) => {
                    abort_oldest(&mut handshakes);
                    let handshake = Handshake {
                        tls: Arc::clone(tls),
                        protocol: self.protocol,
                        limits: self.limits,
                        ready: self.ready.clone(),
                        counted: Counted { figures: Arc::clone(&self.figures), failed: true },
                    };
                    handshakes.push_back(tokio::spawn(handshake.run(stream, peer, place)).abort_handle());
                }
            }
        }
    }
}

/// Limits the time until a client of HTTP/2 begins; the service of HTTP/1 does so by itself.
fn greeting(accepted: Accepted, protocol: Protocol, limits: Limits) -> Accepted {
    match protocol {
        Protocol::Http2 => accepted.greeting_within(limits.handshake),
        Protocol::Http1 => accepted,
    }
}

/// Ends the oldest handshake where too many run.
fn abort_oldest(handshakes: &mut VecDeque<AbortHandle>) {
    if handshakes.len() < MOST_HANDSHAKES {
        return;
    }
    handshakes.retain(|handshake| !handshake.is_finished());
    if handshakes.len() >= MOST_HANDSHAKES
        && let Some(oldest) = handshakes.pop_front()
    {
        oldest.abort();
    }
}

/// A handshake that has not ended yet.
struct Handshake {
    tls: Arc<ServerTls>,
    protocol: Protocol,
    limits: Limits,
    ready: mpsc::Sender<Accepted>,
    counted: Counted,
}

impl Handshake {
    async fn run(mut self, stream: TcpStream, peer: IpAddr, place: Place) {
        let acceptor = self.tls.acceptor(self.protocol);
        match tokio::time::timeout(self.limits.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                self.counted.failed = false;
                let peer = Peer { address: peer, certified_user: self.tls.certified_user(&stream) };
                let accepted = greeting(Accepted::encrypted(stream, peer, place), self.protocol, self.limits);
                // A service that has stopped takes no connection.
                let _ = self.ready.send(accepted).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, %peer, "a TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took longer than {:?}", self.limits.handshake),
        }
    }
}

/// Counts a handshake as failed unless it succeeded, also when it is aborted.
struct Counted {
    figures: Arc<ListenerFigures>,
    failed: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.figures.failed_handshakes.fetch_add(u64::from(self.failed), Ordering::Relaxed);
    }
}

/// True for an error of the connection that was to be accepted; the next one may be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
