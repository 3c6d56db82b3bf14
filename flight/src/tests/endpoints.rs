//! Results with several endpoints, which clients fetch over several connections.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use arrow::{
    array::{ArrayRef, AsArray, Int64Array, RecordBatch},
    datatypes::Int64Type,
};
use arrow_flight::{
    CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightDescriptor, FlightInfo,
    decode::FlightRecordBatchStream,
    sql::{CommandStatementQuery, ProstMessageExt},
};
use futures::StreamExt;
use prost::Message;
use tonic::{Code, Request, Status};

use super::{Client, Harness, act, eventually, fetch, rows, status};
use crate::FlightOptions;

/// A client that wants so many endpoints.
async fn wanting(harness: &Harness, endpoints: &str) -> Client {
    let mut client = harness.connect().await;
    client.set_header("terrace-endpoints", endpoints);
    client
}

async fn execute(client: &mut Client, sql: &str) -> FlightInfo {
    client.execute(sql.to_owned(), None).await.unwrap()
}

/// The information of a result, with one of its endpoints.
fn part(info: &FlightInfo, number: usize) -> FlightInfo {
    FlightInfo { endpoint: vec![info.endpoint[number].clone()], ..info.clone() }
}

/// The streams of the first endpoints of a result, of each of which a batch has been read.
async fn open(client: &mut Client, info: &FlightInfo, endpoints: usize) -> Vec<FlightRecordBatchStream> {
    let mut streams = Vec::new();
    for endpoint in &info.endpoint[..endpoints] {
        let mut stream = client.do_get(endpoint.ticket.clone().unwrap()).await.unwrap();
        stream.next().await.unwrap().unwrap();
        streams.push(stream);
    }
    streams
}

/// The error that a stream ends with.
async fn ending(stream: &mut FlightRecordBatchStream) -> Status {
    loop {
        match stream.next().await.expect("the stream does not end as if it were complete") {
            Ok(_) => {}
            Err(error) => break status(error),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn endpoints_together_have_each_row_once() {
    let harness = Harness::open().await;
    let mut client = wanting(&harness, "4").await;
    let info = execute(&mut client, "rows 1000000").await;
    assert_eq!((info.endpoint.len(), info.ordered), (4, false));
    assert_eq!(harness.engine.counters.queries.load(SeqCst), 0, "a query starts when it is fetched");
    let mut fetches = Vec::new();
    for number in 0..4 {
        let mut client = harness.connect().await;
        let one = part(&info, number);
        fetches.push(tokio::spawn(async move { fetch(&mut client, one).await.unwrap() }));
    }
    let mut keys = Vec::new();
    for task in fetches {
        for batch in task.await.unwrap() {
            keys.extend(batch.column(0).as_primitive::<Int64Type>().values().iter().copied());
        }
    }
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..1_000_000), "rows are missing, or came twice");
    assert_eq!(harness.engine.counters.queries.load(SeqCst), 1);
    eventually("nothing is kept", || harness.server.core.tickets.counts() == (0, 0)).await;
    assert_eq!(fetch(&mut client, part(&info, 2)).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn an_endpoint_is_fetched_once_and_has_no_rows_after_the_end() {
    let harness = Harness::open().await;
    let mut client = wanting(&harness, "3").await;
    let info = execute(&mut client, "rows 200000").await;
    assert_eq!(rows(&fetch(&mut client, part(&info, 2)).await.unwrap()), 200_000);
    assert_eq!(fetch(&mut client, part(&info, 2)).await.unwrap_err().code(), Code::NotFound);
    eventually("the query has ended", || harness.engine.counters.live.load(SeqCst) == 0).await;
    for number in [0, 1] {
        let batches = fetch(&mut client, part(&info, number)).await.unwrap();
        assert_eq!((batches.len(), rows(&batches)), (1, 0));
    }
    eventually("nothing is kept", || harness.server.core.tickets.counts() == (0, 0)).await;
    assert_eq!(harness.server.metrics().kept_bytes(), 0);
}

#[tokio::test]
async fn a_result_of_which_an_endpoint_is_closed_early_ends() {
    let harness = Harness::open().await;
    let mut client = wanting(&harness, "3").await;
    let info = execute(&mut client, "endless").await;
    let mut streams = open(&mut client, &info, 2).await;
    assert_eq!(harness.engine.counters.live.load(SeqCst), 1);
    streams.pop();
    eventually("the query ends", || harness.engine.counters.live.load(SeqCst) == 0).await;
    let error = ending(&mut streams[0]).await;
    assert!(error.code() == Code::Aborted && error.message().contains("closed before its end"), "{error}");
    assert_eq!(fetch(&mut client, part(&info, 2)).await.unwrap_err().code(), Code::Aborted);
    eventually("nothing is kept", || harness.server.core.tickets.counts() == (0, 0)).await;
}

#[tokio::test]
async fn cancelling_one_endpoint_ends_all() {
    let harness = Harness::open().await;
    let mut client = wanting(&harness, "3").await;
    let info = execute(&mut client, "endless").await;
    let streams = open(&mut client, &info, 2).await;
    let body = CancelFlightInfoRequest::new(part(&info, 2)).encode_to_vec();
    let results = act(&mut client, "CancelFlightInfo", body).await.unwrap();
    assert_eq!(CancelFlightInfoResult::decode(results[0].clone()).unwrap().status(), CancelStatus::Cancelled);
    assert_eq!(harness.engine.counters.live.load(SeqCst), 0);
    for mut stream in streams {
        assert_eq!(ending(&mut stream).await.code(), Code::Cancelled);
    }
    assert_eq!(fetch(&mut client, part(&info, 2)).await.unwrap_err().code(), Code::NotFound);
    eventually("nothing is kept", || harness.server.core.tickets.counts() == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fetched_result_is_cancelled_before_its_statement_has_a_name() {
    let harness = Harness::open().await;
    let live = || harness.engine.counters.live.load(SeqCst);
    for endpoints in ["1", "2"] {
        let mut client = wanting(&harness, endpoints).await;
        let info = execute(&mut client, "waiting").await;
        let mut fetches = Vec::new();
        for number in 0..info.endpoint.len() {
            let mut client = harness.connect().await;
            let one = part(&info, number);
            fetches.push(tokio::spawn(async move { fetch(&mut client, one).await }));
        }
        eventually("all is fetched", || harness.server.core.tickets.counts() == (0, 1) && live() == 1).await;
        let body = CancelFlightInfoRequest::new(info).encode_to_vec();
        let results = act(&mut client, "CancelFlightInfo", body).await.unwrap();
        assert_eq!(CancelFlightInfoResult::decode(results[0].clone()).unwrap().status(), CancelStatus::Cancelled);
        for task in fetches {
            assert_eq!(task.await.unwrap().unwrap_err().code(), Code::Cancelled, "{endpoints} endpoints");
        }
        eventually("nothing runs", || harness.server.core.tickets.counts() == (0, 0) && live() == 0).await;
    }
    assert!(harness.engine.counters.cancelled.lock().is_empty(), "the engine knows no name");
}

#[tokio::test]
async fn an_error_comes_through_each_endpoint() {
    let harness = Harness::open().await;
    let mut client = wanting(&harness, "2").await;
    let info = execute(&mut client, "half").await;
    for number in [1, 0] {
        assert_eq!(fetch(&mut client, part(&info, number)).await.unwrap_err().code(), Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn tickets_that_are_not_fetched_expire_while_others_are_read() {
    let options = FlightOptions { ticket_ttl: Duration::from_secs(2), ..FlightOptions::default() };
    let harness = Harness::start(options).await;
    let mut client = wanting(&harness, "2").await;
    let info = execute(&mut client, "endless").await;
    let mut streams = open(&mut client, &info, 1).await;
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(fetch(&mut client, part(&info, 1)).await.unwrap_err().code(), Code::NotFound);
    for _ in 0..20 {
        streams[0].next().await.unwrap().unwrap();
    }
    drop(streams);
    eventually("the query ends", || harness.engine.counters.live.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn an_endpoint_may_wait_while_another_is_read() {
    let options = FlightOptions { stall_timeout: Some(Duration::from_secs(2)), ..FlightOptions::default() };
    let harness = Harness::start(options).await;
    let mut client = wanting(&harness, "2").await;
    let info = execute(&mut client, "endless").await;
    let mut streams = open(&mut client, &info, 2).await;
    for _ in 0..80 {
        streams[0].next().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    assert_eq!(harness.server.metrics().stalled(), 0);
    streams[1].next().await.unwrap().unwrap();
    eventually("nobody reads, and the query ends", || harness.engine.counters.live.load(SeqCst) == 0).await;
    assert!(harness.server.metrics().stalled() > 0);
}

#[tokio::test]
async fn rows_of_several_parameters_are_shared() {
    let harness = Harness::open().await;
    let mut client = wanting(&harness, "2").await;
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let mut prepared = client.prepare("echo".into(), None).await.unwrap();
    prepared.set_parameters(RecordBatch::try_from_iter([("0", column.clone()), ("1", column)]).unwrap()).unwrap();
    let info = prepared.execute().await.unwrap();
    assert_eq!(info.endpoint.len(), 2);
    let mut sent = 0;
    for number in [0, 1] {
        sent += rows(&fetch(&mut client, part(&info, number)).await.unwrap());
    }
    assert_eq!(sent, 3);
    assert_eq!(harness.engine.counters.queries.load(SeqCst), 3);
}

#[tokio::test]
async fn results_in_an_order_or_that_are_fetched_again_have_one_endpoint() {
    let harness = Harness::open().await;
    let mut plain = harness.connect().await;
    assert_eq!(execute(&mut plain, "rows 3").await.endpoint.len(), 1);
    let mut client = wanting(&harness, "4").await;
    let ordered = execute(&mut client, "rows 3 in order").await;
    assert_eq!((ordered.endpoint.len(), ordered.ordered), (1, true));
    assert_eq!(rows(&fetch(&mut client, ordered).await.unwrap()), 3);
    let count = execute(&mut client, "insert").await;
    assert_eq!(count.endpoint.len(), 1);
    assert_eq!(rows(&fetch(&mut client, count).await.unwrap()), 1);
    assert_eq!(client.get_catalogs().await.unwrap().endpoint.len(), 1);

    client.set_header("terrace-tickets", "keep");
    let kept = execute(&mut client, "rows 3").await;
    assert!(kept.endpoint.len() == 1 && kept.endpoint[0].expiration_time.is_some());
    let once = execute(&mut client, "odd types").await;
    assert_eq!(once.endpoint.len(), 4);
    assert!(once.endpoint.iter().all(|endpoint| endpoint.expiration_time.is_none()));
}

#[tokio::test]
async fn polling_gives_all_endpoints_and_a_wrong_number_is_refused() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let command = CommandStatementQuery { query: "rows 3".into(), transaction_id: None };
    let mut request = Request::new(FlightDescriptor::new_cmd(command.as_any().encode_to_vec()));
    request.metadata_mut().insert("terrace-endpoints", "2".parse().unwrap());
    let polled = client.inner_mut().poll_flight_info(request).await.unwrap().into_inner();
    assert!(polled.flight_descriptor.is_none());
    assert_eq!(polled.info.unwrap().endpoint.len(), 2);

    let mut client = wanting(&harness, "none").await;
    let refused = status(client.execute("rows 3".into(), None).await.unwrap_err());
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("terrace-endpoints"), "{refused}");
}
