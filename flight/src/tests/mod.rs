//! The service over a loopback connection, with a small engine in memory behind it.
//!
//! Each test starts its own server, talks to it with the client of `arrow-flight`, and checks one promise.
//!
//! - [`dictionaries`]: texts as keys of dictionaries
//! - [`endpoints`]: results with several endpoints
//! - [`fake`]: an engine in memory
//! - [`fuzz`]: any bytes as messages and as calls
//! - [`limits`]: headers, memory that sessions keep, clients that do not read, when to try again
//! - [`metadata`]: metadata commands
//! - [`prepared`]: prepared statements and bulk ingest
//! - [`query`]: statements as text
//! - [`receive`]: large messages at once
//! - [`renewal`]: results that are fetched again, renewal of their tickets
//! - [`session`]: login, sessions, options, stopping

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dictionaries;
mod endpoints;
mod fake;
mod fuzz;
mod limits;
mod metadata;
mod prepared;
mod query;
mod receive;
mod renewal;
mod session;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use arrow::{datatypes::Schema, record_batch::RecordBatch};
use arrow_flight::{FlightInfo, error::FlightError, sql::client::FlightSqlServiceClient};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Status, transport::Channel};

use crate::{FlightOptions, FlightServer};
use fake::FakeEngine;
pub(crate) use fake::numbers;

/// Address of all clients.
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(super) type Client = FlightSqlServiceClient<Channel>;

/// A running server; stops when dropped.
pub(super) struct Harness {
    pub(super) engine: Arc<FakeEngine>,
    pub(super) server: FlightServer,
    address: String,
    stop: Option<oneshot::Sender<()>>,
    pub(super) serving: tokio::task::JoinHandle<Result<(), crate::Error>>,
}

impl Harness {
    pub(super) async fn start(options: FlightOptions) -> Self {
        let engine = Arc::new(FakeEngine::default());
        let server = FlightServer::new(engine.clone(), options);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let accepted = TcpListenerStream::new(listener).filter_map(async |stream| Some((stream.ok()?, PEER.into())));
        let serving = tokio::spawn(server.clone().serve(accepted.boxed(), async move {
            let _ = stopped.await;
        }));
        Self { engine, server, address, stop: Some(stop), serving }
    }

    pub(super) async fn open() -> Self {
        Self::start(FlightOptions::default()).await
    }

    pub(super) async fn connect(&self) -> Client {
        let channel = Channel::from_shared(self.address.clone()).unwrap().connect().await.unwrap();
        FlightSqlServiceClient::new(channel)
    }

    pub(super) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }
}

/// Fetches everything behind the only endpoint; checks that the stream has the schema of the information.
pub(super) async fn fetch(client: &mut Client, info: FlightInfo) -> Result<Vec<RecordBatch>, Status> {
    let promised: Schema = info.clone().try_decode_schema().unwrap();
    let [endpoint] = info.endpoint.as_slice() else { panic!("{} endpoints", info.endpoint.len()) };
    assert!(endpoint.location.is_empty(), "a location would break clients behind proxies");
    let mut stream = client.do_get(endpoint.ticket.clone().unwrap()).await.map_err(status)?;
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch.map_err(status)?);
    }
    assert_eq!(stream.schema().expect("a schema is sent also when no rows follow").as_ref(), &promised);
    Ok(batches)
}

pub(super) async fn query(client: &mut Client, sql: &str) -> Result<Vec<RecordBatch>, Status> {
    let info = client.execute(sql.to_owned(), None).await.map_err(status)?;
    fetch(client, info).await
}

pub(super) fn rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// The status inside a client error.
pub(super) fn status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => panic!("not a status: {other}"),
    }
}

pub(super) fn code<T>(result: Result<T, FlightError>) -> Code {
    match result {
        Ok(_) => panic!("an error was expected"),
        Err(error) => status(error).code(),
    }
}

/// Waits until `condition` holds; fails after five seconds.
pub(super) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("did not happen: {what}");
}

/// The bodies of an action's results.
pub(super) async fn act(client: &mut Client, name: &str, body: Vec<u8>) -> Result<Vec<bytes::Bytes>, Status> {
    let stream = client.do_action(arrow_flight::Action::new(name, body)).await.map_err(status)?;
    let results: Vec<arrow_flight::Result> = stream.try_collect().await?;
    Ok(results.into_iter().map(|result| result.body).collect())
}
