//! The server: starts, prints its choices, serves, and stops in order.
//!
//! Start: memory, store, engine, listeners. Stop: refuse new work, let running work end within the grace period, flush,
//! exit 0.
//! [`Server`] is what tests and the demo run in their own process; [`run`] adds the terminal and signals.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrace_flight::{Authentication, FlightOptions, FlightServer};
use terrace_planner_ext::engine::Engine;
use terrace_tier_store::Store;
use terrace_tier_store::placement::TieringMode;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::adapter::FlightEngine;
use crate::client::Connection;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::http::{self, AppState, Credentials, ServerInfo};
use crate::instance::Instance;
use crate::memory::MemoryPlan;
use crate::terminal::{self, errln, outln};
use crate::units::human_bytes;

/// A running server. Start and stop it from a plain thread or a blocking one; dropping it stops it at once.
pub struct Server {
    config: Config,
    instance: Instance,
    network: Option<Runtime>,
    flight_addr: SocketAddr,
    http_addr: SocketAddr,
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Server {
    /// Starts a server; it serves when this returns.
    ///
    /// # Errors
    /// [`Error::Listen`] for a port in use or an open server beyond loopback, and errors of [`Instance::open`].
    pub fn start(config: Config) -> Result<Self> {
        check_exposure(&config)?;
        let network = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("terrace-net")
            .thread_stack_size(crate::instance::STACK_BYTES)
            .enable_all()
            .build()
            .map_err(|e| Error::System(format!("cannot start the network threads: {e}")))?;
        // Ports first: fails on a port in use before the store is opened.
        let flight = listen(&network, &config.flight.addr, "flight.addr")?;
        let http = listen(&network, &config.http.addr, "http.addr")?;
        let instance = Instance::open(&config)?;
        let flight_addr = local_addr(&flight)?;
        let http_addr = local_addr(&http)?;
        let mut server = Self {
            config,
            instance,
            network: Some(network),
            flight_addr,
            http_addr,
            stop: CancellationToken::new(),
            tasks: Vec::new(),
        };
        server.spawn(flight, http);
        Ok(server)
    }

    fn spawn(&mut self, flight: TcpListener, http: TcpListener) {
        let Some(network) = &self.network else { return };
        let password = self.config.user.clone().zip(self.config.password.clone());
        let query_bytes = self.instance.plan.query_bytes;
        let options = FlightOptions {
            authentication: match &password {
                Some((user, password)) => Authentication::Password { user: user.clone(), password: password.clone() },
                None => Authentication::Open,
            },
            drain_timeout: self.config.grace.0,
            max_received_bytes: (self.instance.plan.reserve_bytes / 3).max(32 << 20),
            max_kept_bytes_per_session: (query_bytes / 16).max(16 << 20),
            max_kept_bytes: (query_bytes / 4).max(32 << 20),
            stall_timeout: Some(self.config.query.stall_timeout.0).filter(|timeout| !timeout.is_zero()),
            session_ttl: Some(self.config.query.idle_session_timeout.0).filter(|timeout| !timeout.is_zero()),
            ..FlightOptions::default()
        };
        let service = FlightServer::new(FlightEngine::new(Arc::clone(self.engine())), options);
        let info = ServerInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_dir: self.config.data_dir.clone(),
            flight_addr: self.flight_addr,
            http_addr: self.http_addr,
            started_unix_us: crate::unix_us(),
            credentials: password.map(|(user, password)| Credentials { user, password }),
            prices_per_gb: self.config.tiers.prices_per_gb(),
        };
        let state = AppState::new(Arc::clone(self.engine()), service.metrics(), info, self.instance.memory_use());
        let stop_flight = self.stop.clone();
        let stop_http = self.stop.clone();
        self.tasks.push(network.spawn(async move {
            if let Err(error) = service.serve(flight, stop_flight.cancelled_owned()).await {
                tracing::error!(%error, "the Flight service stopped with an error");
            }
        }));
        self.tasks.push(network.spawn(async move {
            if let Err(error) = http::serve(state, http, stop_http.cancelled_owned()).await {
                tracing::error!(%error, "the HTTP service stopped with an error");
            }
        }));
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.instance.engine
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        self.instance.store()
    }

    /// How memory is divided.
    pub fn memory(&self) -> &MemoryPlan {
        &self.instance.plan
    }

    /// Address of Flight SQL.
    pub fn flight_addr(&self) -> SocketAddr {
        self.flight_addr
    }

    /// Address of HTTP.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Connection data for a client in this process.
    pub fn connection(&self) -> Connection {
        Connection {
            url: format!("grpc://{}", reachable(self.flight_addr)),
            user: self.config.user.clone(),
            password: self.config.password.clone(),
        }
    }

    /// The network's runtime, for clients in this process.
    pub fn network(&self) -> Option<&tokio::runtime::Handle> {
        self.network.as_ref().map(Runtime::handle)
    }

    /// Starts the tiering loop of a server that was configured without one.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start_tiering(&mut self) -> Result<()> {
        self.config.tiering.enabled = true;
        self.store().tiering().set_first_mode(TieringMode::Auto);
        Ok(self.store().tiering().start(self.config.tiering.interval.0)?)
    }

    /// Refuses new work, lets running work end within the grace period, flushes.
    ///
    /// # Errors
    /// When flushing fails; acknowledged changes are durable even then.
    pub fn shutdown(mut self) -> Result<()> {
        let grace = self.config.grace.0;
        self.stop.cancel();
        let tasks = std::mem::take(&mut self.tasks);
        let engine = Arc::clone(self.engine());
        if let Some(network) = self.network.take() {
            let (done, wait) = std::sync::mpsc::channel();
            network.spawn(async move {
                engine.drain(grace).await;
                // Do not wait for idle connections of browsers and pools.
                let _ = tokio::time::timeout(Duration::from_secs(2), futures::future::join_all(tasks)).await;
                let _ = done.send(());
            });
            let _ = wait.recv_timeout(grace + Duration::from_secs(10));
            network.shutdown_background();
        }
        self.instance.flush()
    }

    /// The server's choices and how to connect, for a person.
    pub fn summary(&self) -> String {
        let mut lines = vec![("data", self.config.data_dir.display().to_string())];
        for tier in self.store().tier_infos() {
            let emulated = if tier.emulated { ", EMULATED in ordinary memory" } else { "" };
            let budget = match tier.budget_bytes {
                u64::MAX => "no limit".to_owned(),
                bytes => format!("budget {}", human_bytes(bytes)),
            };
            lines.push(("tier", format!("{:<6}{budget:<18}{}{emulated}", tier.name, tier.description)));
        }
        let parts: Vec<String> = self
            .memory()
            .parts()
            .iter()
            .filter(|part| part.1 > 0)
            .map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes)))
            .collect();
        let limit = &self.memory().limit;
        lines.push(("memory", format!("{} of {}", human_bytes(limit.bytes), limit.source)));
        lines.push(("", parts.join(" + ")));
        let tiering = &self.config.tiering;
        let every = format!("an epoch every {}", tiering.interval);
        lines.push(("tiering", if tiering.enabled { every } else { "off".to_owned() }));
        let open = if self.config.password.is_none() {
            "open to every user of this machine"
        } else {
            "requires user and password"
        };
        lines.push(("Flight SQL", format!("grpc://{}   ({open})", self.flight_addr)));
        lines.push(("HTTP", format!("http://{}/", self.http_addr)));
        let mut out = format!("Terrace {}\n", env!("CARGO_PKG_VERSION"));
        for (name, value) in lines {
            out.push_str(&format!("  {name:<12}{value}\n"));
        }
        out.push_str("\nConnect:\n");
        let url = self.connection().url;
        let port = if self.flight_addr.port() == 31337 { String::new() } else { format!(" --url {url}") };
        out.push_str(&format!("  terrace sql{port} \"SELECT * FROM system.tiers\"\n"));
        for line in python_lines(&self.connection()) {
            out.push_str(&format!("  {line}\n"));
        }
        out
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(network) = self.network.take() {
            network.shutdown_background();
        }
    }
}

/// Three lines of Python that connect (`pip install adbc-driver-flightsql pyarrow`).
pub fn python_lines(connection: &Connection) -> [String; 3] {
    let login = match &connection.user {
        Some(user) => format!(", db_kwargs={{\"username\": \"{user}\", \"password\": \"...\"}}"),
        None => String::new(),
    };
    [
        "from adbc_driver_flightsql import dbapi".to_owned(),
        format!("cursor = dbapi.connect(\"{}\"{login}).cursor()", connection.url),
        "print(cursor.execute(\"SELECT * FROM system.tiers\").fetch_arrow_table())".to_owned(),
    ]
}

/// An address to connect to: a wildcard listens on loopback too.
fn reachable(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        ip if ip.is_unspecified() && ip.is_ipv4() => ([127, 0, 0, 1], addr.port()).into(),
        ip if ip.is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, addr.port()).into(),
        _ => addr,
    }
}

/// Fails for a server without a password beyond loopback: everyone who reaches its ports has all rights.
fn check_exposure(config: &Config) -> Result<()> {
    if config.password.is_some() {
        return Ok(());
    }
    for (addr, key) in [(&config.flight.addr, "flight.addr"), (&config.http.addr, "http.addr")] {
        let found = resolve(addr, key)?;
        if let Some(open) = found.iter().find(|a| !a.ip().is_loopback()) {
            return Err(Error::Listen {
                addr: open.to_string(),
                key,
                message: "no password is set, so the server would be open to the network. Set TERRACE_USER and \
                          TERRACE_PASSWORD, or listen on 127.0.0.1"
                    .to_owned(),
            });
        }
    }
    Ok(())
}

fn resolve(addr: &str, key: &'static str) -> Result<Vec<SocketAddr>> {
    let failed = |message: String| Error::Listen { addr: addr.to_owned(), key, message };
    let found: Vec<SocketAddr> = std::net::ToSocketAddrs::to_socket_addrs(addr)
        .map_err(|e| failed(format!("{e}; write HOST:PORT, for example 127.0.0.1:31337")))?
        .collect();
    if found.is_empty() { Err(failed("this host name has no IP address".to_owned())) } else { Ok(found) }
}

fn listen(network: &Runtime, addr: &str, key: &'static str) -> Result<TcpListener> {
    let found = resolve(addr, key)?;
    let _inside = network.enter();
    let bound = std::net::TcpListener::bind(found.as_slice()).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    bound.map_err(|e| {
        let port = addr.rsplit(':').next().unwrap_or_default();
        let message = match e.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "port {port} is in use. Stop what listens there (`ss -ltnp 'sport = :{port}'` names it) or choose another \
                 port; port 0 takes a free one"
            ),
            std::io::ErrorKind::PermissionDenied => format!("port {port} needs privileges; choose one above 1023"),
            _ => e.to_string(),
        };
        Error::Listen { addr: addr.to_owned(), key, message }
    })
}

fn local_addr(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|e| Error::System(format!("cannot ask a listener for its address: {e}")))
}

/// A file that exists while the server serves, for scripts: `{"flight":..,"http":..,"pid":..}`.
struct ReadyFile(PathBuf);

impl ReadyFile {
    fn write(path: &Path, server: &Server) -> Result<Self> {
        let text = serde_json::json!({
            "flight": reachable(server.flight_addr).to_string(),
            "http": reachable(server.http_addr).to_string(),
            "pid": std::process::id(),
        });
        // Rename a complete file, so that a waiting script never reads half of it.
        let partial = path.with_extension("partial");
        std::fs::write(&partial, format!("{text}\n"))
            .and_then(|()| std::fs::rename(&partial, path))
            .map_err(|e| Error::file(path, format!("cannot write the ready file: {e}")))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `terrace serve`: runs a server until SIGTERM or SIGINT.
pub fn run(config: Config, ready_file: Option<&Path>) -> Result<()> {
    init_logging(&config.log)?;
    let server = Server::start(config)?;
    outln!("{}\nStop it with Ctrl-C.", server.summary());
    let ready = ready_file.map(|path| ReadyFile::write(path, &server)).transpose()?;
    wait_and_stop(server)?;
    drop(ready);
    Ok(())
}

/// Serves until a signal, then stops; a second signal ends the process at once.
pub fn wait_and_stop(server: Server) -> Result<()> {
    let Some(network) = server.network().cloned() else { return Ok(()) };
    let name = network.block_on(signal())?;
    errln!(
        "{name}: the server refuses new work; running statements have {} to finish (send the signal again to stop at once)",
        server.config.grace
    );
    network.spawn(async {
        if signal().await.is_ok() {
            std::process::exit(130);
        }
    });
    server.shutdown()?;
    errln!("stopped");
    Ok(())
}

/// Waits for SIGTERM or SIGINT.
pub async fn signal() -> Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |e| Error::System(format!("cannot listen for signals: {e}"));
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(tokio::select! {
        Some(()) = term.recv() => "SIGTERM",
        Some(()) = int.recv() => "SIGINT",
        // The runtime is shutting down, which is no signal.
        else => std::future::pending().await,
    })
}

/// Log lines to stderr, by the filter of the configuration; with colours only on a terminal.
pub fn init_logging(filter: &str) -> Result<()> {
    let no_color = std::env::var_os("NO_COLOR");
    let colours = terminal::may_colour(std::io::stderr().is_terminal(), no_color.as_deref());
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|e| Error::Config(format!("log = '{filter}': {e}; write a level or a filter, for example info")))?;
    // A second call (tests, the demo) keeps the first.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // The subscriber would report a closed standard error on standard error, and panic.
    let _ = lines.log_internal_errors(false).try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn an_open_server_stays_on_loopback() {
        let mut config = Config::default();
        config.flight.addr = "0.0.0.0:0".to_owned();
        let error = check_exposure(&config).unwrap_err().to_string();
        assert!(error.contains("TERRACE_PASSWORD") && error.contains("flight.addr"), "{error}");
        config.user = Some("ann".to_owned());
        config.password = Some("x".to_owned());
        assert!(check_exposure(&config).is_ok());
    }

    #[test]
    fn a_taken_port_is_named() {
        let network = Runtime::new().unwrap();
        let first = listen(&network, "127.0.0.1:0", "http.addr").unwrap();
        let addr = first.local_addr().unwrap().to_string();
        let error = listen(&network, &addr, "http.addr").unwrap_err().to_string();
        assert!(error.contains("is in use") && error.contains("http.addr"), "{error}");
        assert!(listen(&network, "nonsense", "http.addr").unwrap_err().to_string().contains("HOST:PORT"));
    }
}
