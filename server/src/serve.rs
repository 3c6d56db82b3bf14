//! The server: starts, prints its choices, serves, and stops in order.
//!
//! Start: memory, store, engine, listeners. Stop: refuse new work, let running work end within the grace period, flush,
//! exit 0.
//! [`Server`] is what tests and the demo run in their own process; [`run`] adds the terminal and signals.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use terrace_flight::{FlightOptions, FlightServer};
use terrace_planner_ext::engine::Engine;
use terrace_tier_store::Store;
use terrace_tier_store::placement::TieringMode;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::adapter::FlightEngine;
use crate::client::Connection;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::http::{self, AppState, ServerInfo};
use crate::instance::Instance;
use crate::logging;
use crate::memory::MemoryPlan;
use crate::network::{Limits, Listener, NetworkFigures, Protocol, ServerTls, TlsOptions, check_exposure};
use crate::oidc::Oidc;
use crate::terminal::outln;
use crate::traces::{self, Traces};
use crate::units::human_bytes;

/// A running server. Start and stop it from a plain thread or a blocking one; dropping it stops it at once.
pub struct Server {
    config: Config,
    instance: Instance,
    network: Option<Runtime>,
    tls: Option<Arc<ServerTls>>,
    flight_addr: SocketAddr,
    http_addr: SocketAddr,
    /// Address of the port for probes, if there is one.
    health_addr: Option<SocketAddr>,
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// The listeners of a server, bound and not yet accepting.
struct Listeners {
    flight: Listener,
    http: Listener,
    health: Option<Listener>,
}

impl Server {
    /// Starts a server; it serves when this returns.
    ///
    /// # Errors
    /// [`Error::Listen`] for a port in use, or an address beyond loopback without users or TLS; [`Error::File`] for
    /// certificates and keys of an issuer that cannot be used; and errors of [`Instance::open`].
    pub fn start(config: Config) -> Result<Self> {
        if config.password.is_some() {
            check_exposure(&config, true)?;
        }
        let tls = ServerTls::load(&config)?;
        let network = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("terrace-net")
            .thread_stack_size(crate::instance::STACK_BYTES)
            .enable_all()
            .build()
            .map_err(|e| Error::System(format!("cannot start the network threads: {e}")))?;
        // Ports first: fails on a port in use before the store is opened.
        let listeners = Listeners {
            flight: Listener::bind(&network, &config.flight.addr, "flight.addr")?,
            http: Listener::bind(&network, &config.http.addr, "http.addr")?,
            health: config
                .http
                .health_addr
                .as_ref()
                .filter(|addr| !addr.is_empty())
                .map(|addr| Listener::bind(&network, addr, "http.health_addr"))
                .transpose()?,
        };
        let oidc = Oidc::load(&config.oidc, &network)?;
        let instance = Instance::open(&config)?;
        if let Some(oidc) = &oidc {
            instance.engine.users().trust(Arc::clone(&oidc.issuer));
        }
        // Which users there are, the catalog knows.
        check_exposure(&config, !instance.engine.users().is_open())?;
        let mut server = Self {
            config,
            instance,
            tls,
            flight_addr: listeners.flight.addr()?,
            http_addr: listeners.http.addr()?,
            health_addr: listeners.health.as_ref().map(Listener::addr).transpose()?,
            network: Some(network),
            stop: CancellationToken::new(),
            tasks: Vec::new(),
        };
        server.spawn(listeners, oidc);
        Ok(server)
    }

    fn spawn(&mut self, listeners: Listeners, oidc: Option<Oidc>) {
        let Some(network) = &self.network else { return };
        // Listeners and connections live on this runtime.
        let _inside = network.enter();
        let query_bytes = self.instance.plan.query_bytes;
        let stall_timeout = Some(self.config.query.stall_timeout.0).filter(|timeout| !timeout.is_zero());
        let options = FlightOptions {
            users: Some(Arc::clone(self.engine().users())),
            audit: Arc::clone(self.engine().audit()),
            drain_timeout: self.config.grace.0,
            max_received_bytes: (self.instance.plan.reserve_bytes / 3).max(32 << 20),
            max_unsent_bytes: (self.instance.plan.reserve_bytes / 16).clamp(4 << 20, 32 << 20),
            memory_short: Arc::clone(self.instance.memory_use().short()),
            max_kept_bytes_per_session: (query_bytes / 16).max(16 << 20),
            max_kept_bytes_per_user: (query_bytes / 8).max(16 << 20),
            max_kept_bytes: (query_bytes / 4).max(32 << 20),
            stall_timeout,
            adopt_parent: Some(traces::adopt_parent),
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
            prices_per_gb: self.config.prices_per_gb(),
            tls: self.tls.is_some(),
            stall_timeout,
        };
        let Listeners { flight, http, health } = listeners;
        let named = [
            ("flight", Some(flight.figures())),
            ("http", Some(http.figures())),
            ("health", health.as_ref().map(Listener::figures)),
        ];
        let listeners = named.into_iter().filter_map(|(name, figures)| Some((name, figures?))).collect();
        let network_figures = NetworkFigures {
            listeners,
            tls: self.tls.clone(),
            logins: service.logins(),
            issuer: oidc.as_ref().map(|oidc| Arc::clone(&oidc.issuer)),
        };
        let memory = self.instance.memory_use();
        let state = AppState::new(Arc::clone(self.engine()), service.metrics(), info, memory, network_figures);
        let history = Arc::clone(state.history());
        let limits = |connections| Limits { connections, handshake: self.config.tls.handshake_timeout.0 };
        let accepted = flight.accept(
            Protocol::Http2,
            self.tls.clone(),
            limits(self.config.flight.max_connections),
            self.stop.clone(),
        );
        let stop = self.stop.clone();
        let mut tasks = vec![network.spawn(async move {
            let accepted = accepted.map(|connection| {
                let peer = connection.peer().clone();
                (connection, peer)
            });
            if let Err(error) = service.serve(accepted, stop.cancelled_owned()).await {
                tracing::error!(%error, "the Flight service stopped with an error");
            }
        })];
        let http_limits = limits(self.config.http.max_connections);
        let routers = [
            (Some(http), self.tls.clone(), http::HEAD_TIMEOUT, http::router(Arc::clone(&state))),
            (health, None, http::PROBE_HEAD_TIMEOUT, http::probes(state)),
        ];
        for (listener, tls, head_timeout, router) in routers {
            let Some(listener) = listener else { continue };
            let accepted = listener.accept(Protocol::Http1, tls, http_limits, self.stop.clone());
            let stop = self.stop.clone().cancelled_owned();
            tasks.push(network.spawn(http::serve(router, accepted, head_timeout, stop)));
        }
        if let Some(tls) = &self.tls {
            tasks.push(network.spawn(Arc::clone(tls).keep_current(self.stop.clone())));
        }
        if let Some(oidc) = oidc {
            tasks.push(network.spawn(oidc.keep_current(self.stop.clone())));
        }
        let memory = self.instance.memory_use();
        tasks.push(network.spawn(history.keep_current(Arc::clone(self.engine()), memory, self.stop.clone())));
        self.tasks = tasks;
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
            // A certificate is for a name more often than for an address.
            url: match (self.tls.is_some(), reachable(self.flight_addr)) {
                (true, addr) if addr.ip().is_loopback() => format!("grpc+tls://localhost:{}", addr.port()),
                (_, addr) => format!("{}://{addr}", self.schemes().0),
            },
            user: self.config.user.clone(),
            password: self.config.password.clone(),
            tls: TlsOptions::default(),
        }
    }

    /// The schemes of addresses of Flight SQL and of HTTP.
    fn schemes(&self) -> (&'static str, &'static str) {
        if self.tls.is_some() { ("grpc+tls", "https") } else { ("grpc", "http") }
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

    /// Logs what starts, and where it listens.
    fn log_start(&self) {
        let tiers = self.store().all_tier_infos();
        let budgets = tiers.iter().map(|tier| match tier.budget_bytes {
            u64::MAX => format!("{} no limit", tier.name),
            bytes => format!("{} {}", tier.name, human_bytes(bytes)),
        });
        let budgets = budgets.collect::<Vec<_>>().join(", ");
        let (grpc, http) = self.schemes();
        let memory = self.memory();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            pid = std::process::id(),
            flight = %format_args!("{grpc}://{}", self.flight_addr),
            http = %format_args!("{http}://{}", self.http_addr),
            data_dir = %self.config.data_dir.display(),
            memory_limit = %human_bytes(memory.limit.bytes),
            query_memory = %human_bytes(memory.query_bytes),
            tiers = budgets,
            epochs = %self.config.tiering.interval,
            has_users = !self.engine().users().is_open(),
            "Terrace serves"
        );
    }

    /// The server's choices and how to connect, for a person.
    pub fn summary(&self) -> String {
        let mut lines = vec![("data", self.config.data_dir.display().to_string())];
        for tier in self.store().all_tier_infos() {
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
        let open = match self.engine().users().is_open() {
            true => "open to every user of this machine",
            false => "requires user and password, or a token",
        };
        let (grpc, http) = self.schemes();
        lines.push(("Flight SQL", format!("{grpc}://{}   ({open})", self.flight_addr)));
        lines.push(("HTTP", format!("{http}://{}/", self.http_addr)));
        if let Some(addr) = self.health_addr {
            lines.push(("health", format!("http://{addr}/healthz, /readyz   (for probes, without TLS)")));
        }
        if self.tls.as_ref().is_some_and(|tls| tls.is_mutual()) {
            lines.push(("TLS", "clients must show a certificate".to_owned()));
        }
        let mut out = format!("Terrace {}\n", env!("CARGO_PKG_VERSION"));
        for (name, value) in lines {
            out.push_str(&format!("  {name:<12}{value}\n"));
        }
        out.push_str("\nConnect:\n");
        let url = self.connection().url;
        let is_default = self.flight_addr.port() == 31337 && self.tls.is_none();
        let place = if is_default { String::new() } else { format!(" --url {url}") };
        let trust = if self.tls.is_some() { " --ca FILE" } else { "" };
        out.push_str(&format!("  terrace sql{place}{trust} \"SELECT * FROM system.tiers\"\n"));
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

/// A file that exists while the server serves, for scripts: `{"flight":..,"http":..,"pid":..}`.
struct ReadyFile(PathBuf);

impl ReadyFile {
    fn write(path: &Path, server: &Server) -> Result<Self> {
        let mut text = serde_json::json!({
            "flight": reachable(server.flight_addr).to_string(),
            "http": reachable(server.http_addr).to_string(),
            "pid": std::process::id(),
        });
        if let (Some(addr), Some(text)) = (server.health_addr, text.as_object_mut()) {
            text.insert("health".to_owned(), reachable(addr).to_string().into());
        }
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
    let traces = Traces::start(&config.traces)?;
    logging::start(&config.log, traces.as_ref().map(Traces::layer))?;
    let served = serve(config, ready_file).map_err(logging::log_fatal);
    if let Some(traces) = traces {
        traces.finish();
    }
    served
}

fn serve(config: Config, ready_file: Option<&Path>) -> Result<()> {
    let server = Server::start(config)?;
    server.log_start();
    if !logging::is_json() {
        outln!("{}\nStop it with Ctrl-C.", server.summary());
    }
    let ready = ready_file.map(|path| ReadyFile::write(path, &server)).transpose()?;
    wait_and_stop(server)?;
    drop(ready);
    Ok(())
}

/// Serves until a signal, then stops; a second signal ends the process at once.
pub fn wait_and_stop(server: Server) -> Result<()> {
    let Some(network) = server.network().cloned() else { return Ok(()) };
    let name = network.block_on(signal())?;
    let grace = server.config.grace;
    logging::notice(&format!(
        "{name}: the server refuses new work; running statements have {grace} to finish (send the signal again to stop at once)"
    ));
    network.spawn(async {
        if signal().await.is_ok() {
            std::process::exit(130);
        }
    });
    server.shutdown()?;
    logging::notice("stopped");
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
