//! One client connection: its session where clients need not log in, and the socket that tells when it ends.
//!
//! The transport clones the [`Connection`] into every call; the last clone goes with the socket and the calls on it, and
//! takes the connection's session along.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tonic::{Status, transport::server::Connected};

use crate::{
    engine::Principal,
    service::Core,
    session::{Session, Sessions},
};

/// State of one connection.
pub(crate) struct Connection {
    core: Arc<Core>,
    opening: tokio::sync::Mutex<()>,
    session: Mutex<Option<Arc<Session>>>,
}

impl Connection {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        core.metrics.add_connections(1);
        Self { core, opening: tokio::sync::Mutex::default(), session: Mutex::default() }
    }

    /// The connection's session, opened at the first call.
    pub(crate) async fn session(&self, sessions: &Sessions, principal: Principal) -> Result<Arc<Session>, Status> {
        let _guard = self.opening.lock().await;
        if let Some(session) = self.session.lock().clone() {
            return Ok(session);
        }
        let session = sessions.open(principal).await?;
        *self.session.lock() = Some(session.clone());
        Ok(session)
    }

    /// Gives the session up; a later call opens a new one.
    pub(crate) fn take_session(&self) -> Option<Arc<Session>> {
        self.session.lock().take()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.core.metrics.add_connections(-1);
        let Some(session) = self.take_session() else { return };
        let core = self.core.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(status) = core.sessions.close(&session).await {
                    tracing::warn!(session = session.id.0, "session not closed cleanly: {}", status.message());
                }
            });
        }
    }
}

/// A TCP socket that knows its [`Connection`].
pub(crate) struct Socket {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, core: Arc<Core>) -> Self {
        Self { stream, connection: Arc::new(Connection::new(core)) }
    }
}

impl Connected for Socket {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.clone()
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
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
