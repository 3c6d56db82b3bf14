//! One client connection: the sessions of its clients without a token, and the socket whose end closes them.
//!
//! A connection on which no call has been let in for a while ends, so that nobody holds places by saying nothing, or half of something.
//! The transport clones the [`Connection`] into every call; the last clone is dropped with the socket and
//! the calls on it, and its drop closes the connection's sessions.

use std::{
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use tonic::{Status, transport::server::Connected};

use crate::{
    engine::Principal,
    service::Core,
    session::{Session, Sessions},
    write_buffer::WriteBuffer,
};

/// The client of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its address, or that of a proxy in front of it.
    pub address: IpAddr,
    /// The user whom its certificate names, where certificates do.
    pub certified_user: Option<String>,
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self { address, certified_user: None }
    }
}

/// Most users with a session on one connection.
const MOST_USERS: usize = 64;

/// State of one connection.
pub(crate) struct Connection {
    core: Arc<Core>,
    /// Its client.
    pub(crate) peer: Peer,
    /// Sessions, one of each principal: a proxy may send calls of several users over one connection.
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Whether a call on it has been let in.
    is_in_use: AtomicBool,
}

impl Connection {
    pub(crate) fn new(core: Arc<Core>, peer: Peer) -> Self {
        core.metrics.add_connections(1);
        Self { core, peer, sessions: Mutex::default(), is_in_use: AtomicBool::new(false) }
    }

    /// Notes that a call on it has been let in.
    pub(crate) fn note_use(&self) {
        self.is_in_use.store(true, Ordering::Relaxed);
    }

    /// The session of a principal on this connection; the first call opens it.
    pub(crate) fn session(&self, sessions: &Sessions, principal: Principal) -> Result<Arc<Session>, Status> {
        let mut own = self.sessions.lock();
        if let Some(session) = own.iter().find(|session| session.principal == principal).cloned() {
            if session.has_ended() {
                own.retain(|other| !Arc::ptr_eq(other, &session));
                return Err(sessions.ended());
            }
            session.principal.renew(&principal);
            session.touch();
            return Ok(session);
        }
        let is_outdated = |session: &Arc<Session>| {
            session.principal.user == principal.user && !sessions.is_current(&session.principal)
        };
        if let Some(place) = own.iter().position(is_outdated) {
            // Its client hears that it ended, and that its transaction did.
            sessions.close(&own.remove(place));
            return Err(sessions.ended());
        }
        if own.len() >= MOST_USERS {
            return Err(Status::resource_exhausted(format!(
                "{MOST_USERS} users have sessions on this connection, which is the limit: close some sessions, or open another connection"
            )));
        }
        let session = sessions.open(principal, self.peer.address)?;
        own.push(session.clone());
        Ok(session)
    }

    /// Removes the session of a principal; a later call opens a new one.
    pub(crate) fn take_session(&self, principal: &Principal) -> Option<Arc<Session>> {
        let mut own = self.sessions.lock();
        let place = own.iter().position(|session| session.principal == *principal)?;
        Some(own.remove(place))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.core.metrics.add_connections(-1);
        for session in self.sessions.get_mut().iter() {
            self.core.sessions.close(session);
        }
    }
}

/// The socket of a client, of whatever transport, that knows its [`Connection`].
pub(crate) struct Socket<S> {
    stream: WriteBuffer<S>,
    connection: Arc<Connection>,
    /// When it ends, unless a call has been let in; `None` once one has.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, connection: Connection) -> Self {
        let deadline = Some(Box::pin(tokio::time::sleep(connection.core.options.first_call_timeout)));
        let stream = WriteBuffer::new(stream, Arc::clone(&connection.core.sending));
        Self { stream, connection: Arc::new(connection), deadline }
    }

    /// Whether no call has been let in, and the time for one is over.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if self.connection.is_in_use.load(Ordering::Relaxed) {
            self.deadline = None;
        }
        self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready())
    }
}

impl<S> Connected for Socket<S> {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() && self.is_overdue(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
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
