//! The state that all handlers share: the engine, Flight's counters, and facts about the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrace_access::Users;
use terrace_flight::FlightMetrics;
use terrace_planner_ext::engine::Engine;
use terrace_tier_store::Store;

use super::problem::{Problem, Result};
use super::tasks::Tasks;
use crate::history::History;
use crate::memory_watch::WatchFigures;
use crate::network::NetworkFigures;

/// Facts about the server.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Version of the build.
    pub version: String,
    /// The data directory.
    pub data_dir: PathBuf,
    /// Address of Flight SQL.
    pub flight_addr: SocketAddr,
    /// Address of HTTP.
    pub http_addr: SocketAddr,
    /// Start of the process, microseconds since the Unix epoch.
    pub started_unix_us: u64,
    /// True when both ports speak TLS.
    pub tls: bool,
    /// Price of 10^9 bytes of the tiers that have one, by name.
    pub prices_per_gb: Vec<(String, f64)>,
    /// How long a client may leave the rows of a statement unread; `None`: no limit.
    pub stall_timeout: Option<Duration>,
}

/// The state that all handlers share.
pub struct AppState {
    pub(super) engine: Arc<Engine>,
    pub(super) flight: Arc<FlightMetrics>,
    pub(super) info: ServerInfo,
    pub(super) memory: Arc<WatchFigures>,
    pub(super) network: NetworkFigures,
    pub(super) tasks: Arc<Tasks>,
    history: Arc<History>,
}

impl AppState {
    /// The state of one server.
    pub fn new(
        engine: Arc<Engine>,
        flight: Arc<FlightMetrics>,
        info: ServerInfo,
        memory: Arc<WatchFigures>,
        network: NetworkFigures,
    ) -> Arc<Self> {
        Arc::new(Self { engine, flight, info, memory, network, tasks: Arc::default(), history: Arc::default() })
    }

    /// The samples of the last hours.
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Who may use the server.
    pub(super) fn users(&self) -> &Arc<Users> {
        self.engine.users()
    }

    /// The store below the engine.
    pub(super) fn store(&self) -> &Arc<Store> {
        self.engine.store()
    }

    /// Runs `work` on the blocking pool.
    pub(super) async fn blocking<T, F>(self: &Arc<Self>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T> + Send + 'static,
    {
        let state = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&state)).await.map_err(|e| {
            Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, format!("the request failed: {e}"))
        })?
    }
}
