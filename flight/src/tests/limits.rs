//! Limits: headers, memory that sessions keep, clients that do not read, and when to try again.

use std::{
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::{
    FlightDescriptor, FlightInfo,
    sql::{ActionClosePreparedStatementRequest, CommandPreparedStatementQuery, ProstMessageExt},
};
use bytes::Bytes;
use futures::StreamExt;
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, Status};

use super::{Client, Harness, act, code, eventually, fetch, prepared::create, query, rows, status};
use crate::{
    FlightOptions,
    kept::statement_bytes,
    proto::{DetailedStatus, RETRY_INFO_URL, RetryInfo},
};

/// The delay in the details of an error.
fn retry_delay(status: &Status) -> Option<Duration> {
    let detailed = DetailedStatus::decode(status.details()).unwrap();
    let detail = detailed.details.first()?;
    assert_eq!((detailed.code, detailed.message.as_str()), (status.code() as i32, status.message()));
    assert_eq!(detail.type_url, RETRY_INFO_URL);
    let delay = RetryInfo::decode(detail.value.clone()).unwrap().retry_delay.unwrap();
    Some(Duration::new(delay.seconds.try_into().unwrap(), delay.nanos.try_into().unwrap()))
}

/// A query for three rows whose plan counts 29,096 bytes.
fn long_query() -> String {
    let text = format!("rows 3 {}", "x".repeat(993));
    assert_eq!(statement_bytes(&text), 29_096);
    text
}

async fn plan(client: &mut Client, sql: String) -> Result<FlightInfo, Status> {
    client.execute(sql, None).await.map_err(status)
}

async fn plan_prepared(client: &mut Client, handle: &Bytes) -> Result<FlightInfo, Status> {
    let command = CommandPreparedStatementQuery { prepared_statement_handle: handle.clone() };
    let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    Ok(client.inner_mut().get_flight_info(descriptor).await?.into_inner())
}

async fn close(client: &mut Client, handle: &Bytes) {
    let request = ActionClosePreparedStatementRequest { prepared_statement_handle: handle.clone() };
    act(client, "ClosePreparedStatement", request.as_any().encode_to_vec()).await.unwrap();
}

#[tokio::test]
async fn only_errors_that_pass_say_when_to_try_again() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let busy = query(&mut client, "busy").await.unwrap_err();
    assert_eq!((busy.code(), busy.message()), (Code::ResourceExhausted, "cannot plan: busy"));
    assert_eq!(retry_delay(&busy), Some(Duration::from_millis(1500)));
    for lasting in ["no memory", "no table", "nonsense"] {
        assert_eq!(retry_delay(&query(&mut client, lasting).await.unwrap_err()), None, "{lasting}");
    }
    harness.server.core.draining.store(true, Relaxed);
    let stopping = query(&mut client, "rows 3").await.unwrap_err();
    assert_eq!(stopping.code(), Code::Unavailable);
    assert_eq!(retry_delay(&stopping), Some(Duration::from_secs(5)));
}

#[tokio::test]
async fn headers_beyond_the_limit_end_their_call_and_far_beyond_it_their_connection() {
    let harness = Harness::start(FlightOptions { max_header_list_bytes: 4 << 10, ..Default::default() }).await;
    let [mut client, mut other] = [harness.connect().await, harness.connect().await];
    query(&mut other, "rows 3").await.unwrap();
    let prepared = create(&mut client, "rows 3").await.unwrap().prepared_statement_handle;
    client.set_header("x-large", "a".repeat(3 << 10));
    query(&mut client, "rows 3").await.unwrap();
    client.set_header("x-large", "a".repeat(5 << 10));
    let refused = query(&mut client, "rows 3").await.unwrap_err();
    assert!(refused.message().contains("431"), "Request Header Fields Too Large: {refused}");
    // The connection goes on, and what belongs to it.
    plan_prepared(&mut client, &prepared).await.unwrap();
    client.set_header("x-large", "a".repeat(20 << 10));
    query(&mut client, "rows 3").await.unwrap_err();
    query(&mut other, "rows 3").await.unwrap();
    query(&mut harness.connect().await, "rows 3").await.unwrap();
}

#[tokio::test]
async fn a_call_that_is_half_sent_ends_with_its_connection() {
    let options = FlightOptions { first_call_timeout: Duration::from_millis(400), ..Default::default() };
    let harness = Harness::start(options).await;
    let mut stream = TcpStream::connect(harness.address.trim_start_matches("http://")).await.unwrap();
    // No settings, and the begin of headers that have 100 bytes.
    let settings: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let headers: [u8; 12] = [0, 0, 100, 1, 4, 0, 0, 0, 1, 0, 0, 0];
    for bytes in [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &headers] {
        stream.write_all(bytes).await.unwrap();
    }
    let mut told = Vec::new();
    // Its end may be that of a connection, or a reset.
    let _ = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut told)).await.expect("it ends");
    eventually("the connection is gone", || harness.server.metrics().connections() == 0).await;
    query(&mut harness.connect().await, "rows 3").await.unwrap();
}

#[tokio::test]
async fn the_oldest_tickets_of_a_session_make_room_for_new_ones() {
    let harness = Harness::start(FlightOptions { max_kept_bytes_per_session: 100_000, ..Default::default() }).await;
    let metrics = harness.server.metrics();
    let mut client = harness.connect().await;
    let mut other = harness.connect().await;
    let others = plan(&mut other, long_query()).await.unwrap();
    let mut infos = Vec::new();
    for _ in 0..4 {
        infos.push(plan(&mut client, long_query()).await.unwrap());
    }
    assert_eq!(metrics.kept_bytes(), 4 * 29_096, "three of this session and one of the other");

    let mut infos = infos.into_iter();
    let dropped = fetch(&mut client, infos.next().unwrap()).await.unwrap_err();
    assert_eq!(dropped.code(), Code::NotFound);
    assert!(dropped.message().contains("dropped before it was fetched"), "{}", dropped.message());
    for info in infos {
        assert_eq!(rows(&fetch(&mut client, info).await.unwrap()), 3);
    }
    assert_eq!(rows(&fetch(&mut other, others).await.unwrap()), 3);
    assert_eq!(metrics.kept_bytes(), 0);
}

#[tokio::test]
async fn a_user_with_many_sessions_loses_tickets_and_others_do_not() {
    let harness = Harness::start(FlightOptions { max_tickets: 4, ..Default::default() }).await;
    let mut ada = harness.connect().await;
    ada.set_header("authorization", "Basic YWRhOnNlY3JldA==");
    let of_ada = plan(&mut ada, "rows 3".into()).await.unwrap();
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut client = harness.connect().await;
        let info = plan(&mut client, "rows 3".into()).await.unwrap();
        others.push((client, info));
    }
    let mut fetched = Vec::new();
    for (mut client, info) in others {
        fetched.push(fetch(&mut client, info).await.is_ok());
    }
    assert_eq!(fetched, [false, true, true, true], "the oldest one of the user with the most");
    assert_eq!(rows(&fetch(&mut ada, of_ada).await.unwrap()), 3, "older than all");
}

#[tokio::test]
async fn prepared_statements_beyond_the_bytes_of_a_session_are_refused() {
    let harness = Harness::start(FlightOptions { max_kept_bytes_per_session: 100_000, ..Default::default() }).await;
    let metrics = harness.server.metrics();
    let mut client = harness.connect().await;
    let ticket = plan(&mut client, long_query()).await.unwrap();
    let mut handles = Vec::new();
    for _ in 0..3 {
        handles.push(create(&mut client, &long_query()).await.unwrap().prepared_statement_handle);
    }
    assert_eq!(fetch(&mut client, ticket).await.unwrap_err().code(), Code::NotFound, "tickets make room first");

    let planned = plan_prepared(&mut client, &handles[0]).await.unwrap();
    assert_eq!(metrics.kept_bytes(), 3 * 29_096, "a ticket shares the plan of its prepared statement");
    let refused = create(&mut client, &long_query()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    for part in ["about 87288 bytes", "limit is 100000 bytes", "close prepared statements"] {
        assert!(refused.message().contains(part), "{}", refused.message());
    }
    assert_eq!(retry_delay(&refused), None, "only closing statements helps");
    assert_eq!(plan(&mut client, long_query()).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(rows(&fetch(&mut client, planned).await.unwrap()), 3, "dropping it would have freed nothing");

    close(&mut client, &handles[0]).await;
    create(&mut client, &long_query()).await.unwrap();
    act(&mut client, "CloseSession", vec![]).await.unwrap();
    assert_eq!(metrics.kept_bytes(), 0);
}

#[tokio::test]
async fn all_sessions_together_are_bounded() {
    let harness = Harness::start(FlightOptions { max_kept_bytes: 60_000, ..Default::default() }).await;
    let mut client = harness.connect().await;
    let mut other = harness.connect().await;
    let first = plan(&mut client, long_query()).await.unwrap();
    create(&mut client, &long_query()).await.unwrap();
    let planned = plan(&mut other, long_query()).await.unwrap_err();
    let prepared = create(&mut other, &long_query()).await.unwrap_err();
    for refused in [planned, prepared] {
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("about 58192 bytes"), "{}", refused.message());
        assert!(retry_delay(&refused).is_some_and(|delay| delay >= Duration::from_secs(1)));
    }
    fetch(&mut client, first).await.unwrap();
    assert_eq!(rows(&query(&mut other, &long_query()).await.unwrap()), 3);
}

#[tokio::test]
async fn expired_tickets_make_room_for_all_sessions() {
    let options =
        FlightOptions { max_kept_bytes: 60_000, ticket_ttl: Duration::from_millis(200), ..Default::default() };
    let harness = Harness::start(options).await;
    let mut client = harness.connect().await;
    for _ in 0..2 {
        plan(&mut client, long_query()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(250)).await;
    let mut other = harness.connect().await;
    create(&mut other, &long_query()).await.unwrap();
    assert_eq!(harness.server.metrics().kept_bytes(), 29_096);
}

#[tokio::test]
async fn bound_parameters_count_until_their_statement_is_closed() {
    let harness = Harness::start(FlightOptions { max_kept_bytes_per_session: 20_000, ..Default::default() }).await;
    let metrics = harness.server.metrics();
    let mut client = harness.connect().await;
    let parameters = |count: i64| {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
        RecordBatch::try_from_iter([("0", column.clone()), ("1", column)]).unwrap()
    };
    let mut prepared = client.prepare("echo".into(), None).await.unwrap();
    let plan_bytes = metrics.kept_bytes();
    prepared.set_parameters(parameters(5_000)).unwrap();
    assert_eq!(code(prepared.execute().await), Code::ResourceExhausted);
    assert_eq!(metrics.kept_bytes(), plan_bytes);

    prepared.set_parameters(parameters(1)).unwrap();
    let info = prepared.execute().await.unwrap();
    assert!((plan_bytes + 16..20_000).contains(&metrics.kept_bytes()));
    prepared.close().await.unwrap();
    assert!(metrics.kept_bytes() > plan_bytes, "the ticket still needs both");
    assert_eq!(rows(&fetch(&mut client, info).await.unwrap()), 1);
    assert_eq!(metrics.kept_bytes(), 0);
}

#[tokio::test]
async fn the_statement_of_a_client_that_does_not_read_ends() {
    let options = FlightOptions { stall_timeout: Some(Duration::from_millis(300)), ..Default::default() };
    let harness = Harness::start(options).await;
    let counters = harness.engine.counters.clone();
    let mut client = harness.connect().await;
    let info = client.execute("endless".into(), None).await.unwrap();
    let mut stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    eventually("the statement ends", || counters.live.load(SeqCst) == 0).await;
    assert_eq!(harness.server.core.tickets.counts(), (0, 0));
    assert_eq!(harness.server.metrics().stalled(), 1);

    // What was under way arrives, and then the reason.
    let error = loop {
        match stream.next().await.expect("the stream does not end as if it were complete") {
            Ok(_) => {}
            Err(error) => break status(error),
        }
    };
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.message().starts_with("the client took no rows for 300 ms"), "{}", error.message());
    assert_eq!(rows(&query(&mut client, "rows 3").await.unwrap()), 3, "the connection goes on");
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_served() {
    let options = FlightOptions { stall_timeout: Some(Duration::from_secs(1)), ..Default::default() };
    let harness = Harness::start(options).await;
    let mut client = harness.connect().await;
    let info = client.execute("endless".into(), None).await.unwrap();
    let mut stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    for _ in 0..100 {
        stream.next().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(harness.server.metrics().stalled(), 0);
}
