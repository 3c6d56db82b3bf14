//! Starts nodes and knows their addresses.
//!
//! All nodes are in this process, over one store, and listen on loopback ports that the system chooses. A call without the
//! secret, which is made anew at each start and never leaves the process, is refused before anything of it is read.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result as PlanResult;
use datafusion_distributed::{ChannelResolver, Worker, WorkerResolver};
use subtle::ConstantTimeEq;
use terrace_access::random_secret;
use terrace_error::{Error, ErrorKind, Result};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tonic::codegen::InterceptedService;
use tonic::codegen::http::HeaderValue;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Status};
use url::Url;

use crate::channel::{Channels, SECRET};
use crate::counts::NodeCounts;
use crate::node::TaskSessions;
use crate::statement::{Statement, Statements, TaskHost};

/// Streams of one connection: a task may read every partition of every other task.
const MOST_STREAMS: u32 = 1 << 20;
/// Streams that were reset before a node has seen them, and those that it reset itself, with which a connection goes on: many may
/// come at once when a statement is cancelled while others keep the threads of the node.
const MOST_RESET_STREAMS: usize = MOST_STREAMS as usize;
/// How often a node asks whether the other side of a connection is there.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time for its answer.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// What is known of a node.
#[derive(Debug, Clone)]
pub struct NodeRecord {
    /// Its number, from 1.
    pub number: usize,
    /// Where it listens.
    pub address: String,
    /// Tasks that it was given since it started.
    pub tasks: u64,
    /// Chunks and entries of the delta in the scans of these tasks.
    pub items: u64,
}

/// The nodes of this process.
pub struct Nodes {
    urls: Vec<Url>,
    counts: Vec<Arc<NodeCounts>>,
    statements: Arc<Statements>,
    channels: Arc<dyn ChannelResolver + Send + Sync>,
    servers: Vec<AbortHandle>,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").field("nodes", &self.records()).finish_non_exhaustive()
    }
}

impl Nodes {
    /// Starts `count` nodes, whose tasks are executed on `runtime`.
    ///
    /// # Errors
    /// When no port can be opened.
    pub fn start(count: usize, runtime: &Handle) -> Result<Arc<Self>> {
        // Listeners and connections belong to the runtime that is entered.
        let _entered = runtime.enter();
        let secret = random_secret();
        let mut header = HeaderValue::try_from(secret.as_str()).map_err(|error| failed(&error))?;
        header.set_sensitive(true);
        let listeners = (0..count).map(|_| listen()).collect::<Result<Vec<_>>>()?;
        let urls = listeners.iter().map(address).collect::<Result<Vec<_>>>()?;
        let channels: Arc<dyn ChannelResolver + Send + Sync> = Arc::new(Channels::new(&urls, &header)?);
        let statements = Arc::<Statements>::default();
        let mut counts = Vec::new();
        let mut servers = Vec::new();
        for listener in listeners {
            let sessions = TaskSessions {
                counts: Arc::default(),
                statements: Arc::clone(&statements),
                channels: Arc::clone(&channels),
            };
            counts.push(Arc::clone(&sessions.counts));
            let worker = Worker::from_session_builder(sessions).with_version(env!("CARGO_PKG_VERSION"));
            let secret: Arc<str> = Arc::from(secret.as_str());
            let check = move |request: Request<()>| checked(request, &secret);
            let server = Server::builder()
                .max_concurrent_streams(MOST_STREAMS)
                .http2_max_pending_accept_reset_streams(Some(MOST_RESET_STREAMS))
                .http2_max_local_error_reset_streams(Some(MOST_RESET_STREAMS))
                .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
                .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
                .add_service(InterceptedService::new(worker.into_worker_server(), check))
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
            let serving = runtime.spawn(async move {
                if let Err(error) = server.await {
                    tracing::error!(%error, "a node stopped");
                }
            });
            servers.push(serving.abort_handle());
        }
        tracing::info!(nodes = count, "queries over large tables are executed by several nodes of this process");
        Ok(Arc::new(Self { urls, counts, statements, channels, servers }))
    }

    /// Number of nodes.
    pub fn count(&self) -> usize {
        self.urls.len()
    }

    /// What is known of each node.
    pub fn records(&self) -> Vec<NodeRecord> {
        let nodes = self.urls.iter().zip(&self.counts).enumerate();
        let record = |(place, (url, counts)): (usize, (&Url, &Arc<NodeCounts>))| NodeRecord {
            number: place + 1,
            address: url.authority().to_owned(),
            tasks: counts.tasks(),
            items: counts.items(),
        };
        nodes.map(record).collect()
    }

    /// Statements of which parts are executed by nodes now.
    pub fn statements(&self) -> usize {
        self.statements.count()
    }

    /// Registers a statement, whose tasks `host` serves, until what this returns is dropped.
    pub fn register(&self, host: Arc<dyn TaskHost>) -> Arc<Statement> {
        self.statements.register(host)
    }

    /// Connections to the nodes.
    pub(crate) fn channels(&self) -> Arc<dyn ChannelResolver + Send + Sync> {
        Arc::clone(&self.channels)
    }

    /// Addresses of the nodes.
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses(self.urls.clone())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.servers.iter().for_each(AbortHandle::abort);
    }
}

/// The addresses of all nodes, fixed for a statement.
pub(crate) struct Addresses(Vec<Url>);

impl WorkerResolver for Addresses {
    fn get_urls(&self) -> PlanResult<Vec<Url>> {
        Ok(self.0.clone())
    }
}

fn listen() -> Result<TcpListener> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| failed(&error))?;
    listener.set_nonblocking(true).map_err(|error| failed(&error))?;
    TcpListener::from_std(listener).map_err(|error| failed(&error))
}

fn address(listener: &TcpListener) -> Result<Url> {
    let address: SocketAddr = listener.local_addr().map_err(|error| failed(&error))?;
    Url::parse(&format!("http://{address}")).map_err(|error| failed(&error))
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::FailedPrecondition, format!("cannot start the nodes of cluster.nodes: {error}"))
}

/// Refuses a call without the secret.
fn checked(request: Request<()>, secret: &str) -> Result<Request<()>, Status> {
    let given = request.metadata().get(SECRET).map(|value| value.as_bytes()).unwrap_or_default();
    match bool::from(given.ct_eq(secret.as_bytes())) {
        true => Ok(request),
        false => Err(Status::unauthenticated("this port is for the nodes of the cluster only")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion_distributed::GetWorkerInfoRequest;
    use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
    use tonic::transport::Endpoint;

    use super::*;

    #[tokio::test]
    async fn a_stranger_is_refused() {
        let nodes = Nodes::start(2, &Handle::current()).unwrap();
        assert_eq!(nodes.count(), 2);
        for record in nodes.records() {
            let channel = Endpoint::from_shared(format!("http://{}", record.address)).unwrap().connect_lazy();
            let mut client = create_worker_client(BoxCloneSyncChannel::new(channel));
            let refused = client.get_worker_info(GetWorkerInfoRequest {}).await;
            let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("for the nodes of the cluster only"), "{text}");
            assert_eq!((record.tasks, record.items), (0, 0));
        }
    }

    #[test]
    fn only_the_whole_secret_is_accepted() {
        let with = |secret: &str| {
            let mut request = Request::new(());
            request.metadata_mut().insert(SECRET, secret.parse().unwrap());
            checked(request, "abc").is_ok()
        };
        assert!(with("abc"));
        assert!(!with("ab") && !with("abcd") && !with("ABC"));
        assert!(checked(Request::new(()), "abc").is_err());
    }
}
