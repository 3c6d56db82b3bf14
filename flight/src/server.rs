//! The service on accepted connections: start, serve, drain, stop.
//!
//! At shutdown no new connection and no new call is taken; calls under way may end within the drain timeout. HTTP/2
//! pings detect a peer that vanished without closing its connection, and its queries end.

use std::{
    future::Future,
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use futures::{Stream, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};
use tonic::transport::Server;

use crate::{
    connection::{Connection, Peer, Socket},
    direct::DirectBodies,
    engine::Engine,
    error::Error,
    logins::Logins,
    metrics::FlightMetrics,
    options::FlightOptions,
    service::{Core, Service},
};

const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that a client may send ahead on one stream; an ingest holds at most this much undecoded data.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// The same on one connection. The window is renewed when half of it has been read, so 16 streams may wait until others
/// have been received ([`receive`](crate::receive)) and leave enough of it for one that goes on.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// Largest HTTP/2 frame that clients may send; each frame costs a wake-up and a copy of its own.
const FRAME_BYTES: u32 = 1 << 20;

/// A Flight SQL server around an engine.
#[derive(Clone)]
pub struct FlightServer {
    pub(crate) core: Arc<Core>,
}

impl FlightServer {
    /// A server that is not listening yet.
    pub fn new(engine: Arc<dyn Engine>, options: FlightOptions) -> Self {
        Self { core: Arc::new(Core::new(engine, options)) }
    }

    /// Its counters.
    pub fn metrics(&self) -> Arc<FlightMetrics> {
        self.core.metrics.clone()
    }

    /// The delays of its logins, for other services that take the same passwords.
    pub fn logins(&self) -> Arc<Logins> {
        Arc::clone(&self.core.sessions.logins)
    }

    /// The gRPC service, for a caller that has its own transport. Without [`serve`](Self::serve), clients that do not
    /// log in share one session.
    pub fn into_service(self) -> DirectBodies<FlightServiceServer<impl FlightService>> {
        let core = Arc::clone(&self.core);
        let service = FlightServiceServer::new(Service { core: self.core })
            .max_decoding_message_size(core.options.max_message_bytes)
            .max_encoding_message_size(usize::MAX);
        DirectBodies::new(service, &core.options, Arc::clone(&core.receiving))
    }

    /// Serves the connections that `accepted` yields with their clients, until `shutdown` completes and the calls under way have ended, or
    /// the drain timeout passed.
    pub async fn serve<C, S>(self, accepted: impl Stream<Item = (C, Peer)> + Send, shutdown: S) -> Result<(), Error>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let core = self.core.clone();
        let drain_timeout = core.options.drain_timeout;
        let (stopping, stopped) = oneshot::channel::<()>();
        let signal = {
            let core = core.clone();
            async move {
                shutdown.await;
                core.draining.store(true, Relaxed);
                let _ = stopping.send(());
            }
        };
        let incoming =
            accepted.map(|(stream, peer)| Ok::<_, io::Error>(Socket::new(stream, Connection::new(core.clone(), peer))));
        let swept = self.core.clone();
        let sweep = async move { swept.sessions.sweep().await };
        let serving = Server::builder()
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .http2_max_header_list_size(self.core.options.max_header_list_bytes)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .add_service(self.into_service())
            .serve_with_incoming_shutdown(incoming, signal);
        let deadline = async move {
            if stopped.await.is_ok() {
                tokio::time::sleep(drain_timeout).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            result = serving => Ok(result?),
            () = sweep => Ok(()),
            () = deadline => {
                tracing::warn!("the server ends calls that still run after {drain_timeout:?}");
                Ok(())
            }
        }
    }
}
