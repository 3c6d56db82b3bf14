//! The state that all handlers share: the engine, Flight's counters, and facts about the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use terrace_flight::FlightMetrics;
use terrace_planner_ext::engine::Engine;
use terrace_tier_store::Store;

use super::problem::{Problem, Result};
use crate::memory_watch::WatchFigures;
use crate::network::NetworkFigures;

/// One user name with its password.
#[derive(Clone)]
pub struct Credentials {
    /// Name of the user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Credentials {
    /// True when the value of an `Authorization` header names this user and password. Takes the same time
    /// whichever part is wrong.
    pub fn accept(&self, authorization: &str) -> bool {
        let expected = format!("{}:{}", self.user, self.password);
        basic(authorization).is_some_and(|given| equal_in_constant_time(&given, expected.as_bytes()))
    }

    /// The user that the value of an `Authorization` header names.
    pub(super) fn user(authorization: &str) -> Option<String> {
        let given = String::from_utf8(basic(authorization)?).ok()?;
        Some(given.split_once(':')?.0.to_owned())
    }
}

/// The bytes that a header of HTTP Basic carries, `user:password`.
fn basic(authorization: &str) -> Option<Vec<u8>> {
    let (scheme, encoded) = authorization.split_once(' ')?;
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok().filter(|_| is_basic)
}

fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0u8, |sum, (x, y)| sum | (x ^ y));
    std::hint::black_box(differences) == 0 && a.len() == b.len()
}

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
    /// Credentials of the API; `None`: open to every caller, which the server allows on loopback only.
    pub credentials: Option<Credentials>,
    /// True when both ports speak TLS.
    pub tls: bool,
    /// Price of 10^9 bytes of the tiers that have one, by name.
    pub prices_per_gb: Vec<(String, f64)>,
}

/// The state that all handlers share.
pub struct AppState {
    pub(super) engine: Arc<Engine>,
    pub(super) flight: Arc<FlightMetrics>,
    pub(super) info: ServerInfo,
    pub(super) memory: Arc<WatchFigures>,
    pub(super) network: NetworkFigures,
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
        Arc::new(Self { engine, flight, info, memory, network })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_is_accepted() {
        let credentials = Credentials { user: "ada".into(), password: "lace:d".into() };
        let header = |text: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text));
        assert!(credentials.accept(&header("ada:lace:d")));
        assert!(credentials.accept(&header("ada:lace:d").replace("Basic", "basic")));
        for wrong in ["ada:lace", "ada:lace:d ", "bob:lace:d", ":", ""] {
            assert!(!credentials.accept(&header(wrong)), "{wrong}");
        }
        assert!(!credentials.accept("Bearer abc") && !credentials.accept("Basic ***") && !credentials.accept(""));
    }
}
