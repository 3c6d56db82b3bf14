//! Connections to nodes.
//!
//! There is one connection to each node, for all statements. A task asks for the partitions of another task one by one, each
//! in a stream of its own: the transport limits what waits to be read for a stream, and were several partitions to share one,
//! an operator that merges them could wait for a partition behind another one that is full. A connection may hold what very
//! many streams have not read, so that no stream waits for the connection. Each call carries the secret of the cluster, and
//! errors name the node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest, GetWorkerInfoResponse,
    SetPlanRequest, WorkerChannel, WorkerToCoordinatorMsg,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::transport::Endpoint;
use url::Url;

use crate::failure::from_node;

/// The header with the secret of the cluster.
pub(crate) const SECRET: &str = "x-terrace-secret";

/// Longest time to connect to a node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a node is asked whether it is there.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time for its answer. Steps of statements may keep the threads of a node for seconds.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes that a stream may have on the way.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Bytes that all streams of a connection may have on the way.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// Connections to all nodes.
pub(crate) struct Channels(HashMap<Url, NodeChannel>);

impl Channels {
    /// Connections to the nodes of a cluster, by their addresses, with its `secret`. They are made when they are first
    /// needed, on the runtime of the caller.
    ///
    /// # Errors
    /// When an address cannot be used.
    pub(crate) fn new(nodes: &[Url], secret: &HeaderValue) -> Result<Self> {
        let channel = |(number, url): (usize, &Url)| {
            let endpoint = Endpoint::from_shared(url.to_string())
                .map_err(|error| exec_datafusion_err!("the address {url} of a node cannot be used: {error}"))?;
            let channel = endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
                .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .connect_lazy();
            let name = format!("{} ({})", number + 1, url.authority());
            let channel = BoxCloneSyncChannel::new(channel);
            Ok::<_, DataFusionError>((url.clone(), NodeChannel { name: name.into(), channel, secret: secret.clone() }))
        };
        Ok(Self(nodes.iter().enumerate().map(channel).collect::<Result<_>>()?))
    }
}

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        match self.0.get(url) {
            Some(channel) => Ok(Box::new(channel.clone())),
            None => Err(exec_datafusion_err!("{url} is no node of this cluster")),
        }
    }
}

/// The connection to one node.
#[derive(Clone)]
struct NodeChannel {
    /// Number and address of the node.
    name: Arc<str>,
    channel: BoxCloneSyncChannel,
    secret: HeaderValue,
}

impl NodeChannel {
    fn with_secret(&self, mut headers: HeaderMap) -> HeaderMap {
        headers.insert(SECRET, self.secret.clone());
        headers
    }
}

#[async_trait]
impl WorkerChannel for NodeChannel {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        set_plan_request: SetPlanRequest,
        c2w_stream: BoxStream<'static, CoordinatorToWorkerMsg>,
        metrics: ExecutionPlanMetricsSet,
        task_ctx: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let mut client = create_worker_client(self.channel.clone());
        let headers = self.with_secret(headers);
        let messages = client.coordinator_channel(headers, set_plan_request, c2w_stream, metrics, task_ctx).await;
        let messages = messages.map_err(|error| from_node(error, &self.name))?;
        let name = Arc::clone(&self.name);
        Ok(messages.map_err(move |error| from_node(error, &name)).boxed())
    }

    async fn execute_task(
        &mut self,
        headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        task_ctx: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let headers = self.with_secret(headers);
        let mut partitions = Vec::new();
        for partition in request.target_partition_start..request.target_partition_end {
            let one = ExecuteTaskRequest {
                task_key: request.task_key,
                target_partition_start: partition,
                target_partition_end: partition + 1,
                producer_head: request.producer_head.clone(),
            };
            let mut client = create_worker_client(self.channel.clone());
            let rows = client.execute_task(headers.clone(), one, metrics.clone(), task_ctx).await;
            for rows in rows.map_err(|error| from_node(error, &self.name))? {
                let name = Arc::clone(&self.name);
                partitions.push(rows.map_err(move |error| from_node(error, &name)).boxed());
            }
        }
        Ok(partitions)
    }

    async fn get_worker_info(&mut self, request: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        // It sends no headers, so a node refuses it: nothing here asks for it.
        create_worker_client(self.channel.clone()).get_worker_info(request).await
    }
}
