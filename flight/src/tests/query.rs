//! Statements given as text: planning, fetching, slicing, cancelling, errors.

use std::sync::atomic::Ordering::SeqCst;

use arrow::{
    array::AsArray,
    datatypes::{DataType, Int64Type, Schema},
};
use arrow_flight::{
    CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightData, FlightDescriptor, Ticket,
    sql::{CommandStatementQuery, EndTransaction, ProstMessageExt, TicketStatementQuery},
};
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use tonic::Code;

use super::{Harness, act, code, eventually, fetch, query, rows};
use crate::metrics::Operation;

#[tokio::test]
async fn rows_come_with_the_schema_that_was_announced() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let info = client.execute("rows 100000".into(), None).await.unwrap();
    let schema = info.clone().try_decode_schema().unwrap();
    assert!(!schema.field(0).is_nullable());
    assert_eq!(schema.field(1).data_type(), &DataType::Utf8);
    assert_eq!(schema.field(0).metadata()["ARROW:FLIGHT:SQL:TYPE_NAME"], "BIGINT");
    assert_eq!(harness.engine.counters.queries.load(SeqCst), 0, "a query starts when it is fetched");

    let batches = fetch(&mut client, info).await.unwrap();
    assert_eq!(rows(&batches), 100_000);
    let last = batches.last().unwrap();
    assert_eq!(last.column(0).as_primitive::<Int64Type>().value(last.num_rows() - 1), 99_999);
    assert_eq!(last.column(1).as_string::<i32>().value(last.num_rows() - 1), "text number        99999");

    let fetched = harness.server.metrics().operation(Operation::Fetch);
    assert_eq!((fetched.calls, fetched.errors, fetched.rows), (1, 0, 100_000));
    assert!(fetched.bytes > 800_000);
}

#[tokio::test]
async fn empty_results_have_a_schema_and_odd_types_become_plain() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let empty = query(&mut client, "empty").await.unwrap();
    assert_eq!((empty.len(), rows(&empty)), (1, 0), "one batch without rows");
    assert_eq!(empty[0].num_columns(), 2);

    let batches = query(&mut client, "odd types").await.unwrap();
    assert_eq!(batches[0].column(0).as_string::<i32>().value(2), "a");
    assert_eq!(batches[0].column(1).as_string::<i32>().value(1), "a text longer than twelve bytes");

    client.set_header("terrace-view-types", "keep");
    let batches = query(&mut client, "odd types").await.unwrap();
    assert_eq!(batches[0].column(1).as_string_view().value(1), "a text longer than twelve bytes");
}

#[tokio::test]
async fn rows_are_compressed_for_clients_that_ask() {
    let harness = Harness::open().await;
    let bytes = || harness.server.metrics().operation(Operation::Fetch).bytes;
    let mut sent = Vec::new();
    for compression in ["none", "lz4", "zstd"] {
        let mut client = harness.connect().await;
        client.set_header("terrace-compression", compression);
        // One message is small, the others are large.
        for sql in ["rows 3", "rows 300000"] {
            let before = bytes();
            let batches = query(&mut client, sql).await.unwrap();
            let plain = query(&mut harness.connect().await, sql).await.unwrap();
            assert!(batches == plain, "{sql} with {compression}");
            sent.push(bytes() - before);
        }
    }
    let [_, plain, _, lz4, _, zstd] = sent[..] else { panic!("{sent:?}") };
    assert!(lz4 < plain && zstd < plain, "{plain} as they are, {lz4} with lz4, {zstd} with zstd");
    let mut client = harness.connect().await;
    client.set_header("terrace-compression", "gzip");
    let error = query(&mut client, "rows 3").await.unwrap_err();
    assert!(error.code() == Code::InvalidArgument && error.message().contains("'gzip' is none of"), "{error}");
}

#[tokio::test]
async fn messages_stay_small_enough_for_every_client() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let info = client.execute("rows 400000".into(), None).await.unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let stream = client.inner_mut().do_get(ticket).await.unwrap().into_inner();
    let messages: Vec<FlightData> = stream.try_collect().await.unwrap();
    let largest = messages.iter().map(Message::encoded_len).max().unwrap();
    assert!((1 << 16..4 << 20).contains(&largest), "{largest}");
}

#[tokio::test]
async fn rows_arrive_while_their_statement_has_no_more() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let info = client.execute("pausing".into(), None).await.unwrap();
    let mut rows = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    // A later ping would send what lies in a buffer.
    let first = tokio::time::timeout(std::time::Duration::from_secs(15), rows.next()).await;
    assert_eq!(first.unwrap().unwrap().unwrap().num_rows(), 8192);
}

#[tokio::test]
async fn a_change_that_arrives_as_a_query_runs_exactly_once() {
    let harness = Harness::open().await;
    let updates = || harness.engine.counters.updates.load(SeqCst);
    let mut client = harness.connect().await;

    let command = CommandStatementQuery { query: "insert".into(), transaction_id: None };
    let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    let schema = client.inner_mut().get_schema(descriptor.clone()).await.unwrap().into_inner();
    assert_eq!(Schema::try_from(&schema).unwrap().field(0).name(), "rows_affected");
    assert_eq!(updates(), 0, "asking for the schema changes nothing");

    let info = client.execute("insert".into(), None).await.unwrap();
    assert_eq!(updates(), 1, "the change is made also when nobody fetches the answer");
    let batches = fetch(&mut client, info.clone()).await.unwrap();
    assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), 1);
    fetch(&mut client, info).await.unwrap();
    assert_eq!(updates(), 1, "fetching does not repeat it");

    let polled = client.inner_mut().poll_flight_info(descriptor).await.unwrap().into_inner();
    assert!(polled.flight_descriptor.is_none(), "nothing is left to poll for");
    assert_eq!(updates(), 2);

    assert_eq!(client.execute_update("insert".into(), None).await.unwrap(), 1);
    assert_eq!(code(client.execute_update("rows 3".into(), None).await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_ticket_is_fetched_once_and_carries_no_sql() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let info = client.execute("rows 3".into(), None).await.unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    assert!(!ticket.ticket.windows(4).any(|window| window == b"rows"));
    fetch(&mut client, info.clone()).await.unwrap();
    let again = fetch(&mut client, info).await.unwrap_err();
    assert_eq!(again.code(), Code::NotFound);
    assert!(again.message().contains("run the query again"), "{}", again.message());

    let sql = CommandStatementQuery { query: "insert".into(), transaction_id: None };
    let strange =
        |handle: &[u8]| TicketStatementQuery { statement_handle: handle.to_vec().into() }.as_any().encode_to_vec();
    for (hostile, expected) in [
        (b"".to_vec(), Code::InvalidArgument),
        (vec![0xff; 100], Code::InvalidArgument),
        (sql.as_any().encode_to_vec(), Code::InvalidArgument),
        (strange(&[0xfe, 0xff]), Code::InvalidArgument),
        (strange(b"rows-affected:many"), Code::InvalidArgument),
        (strange(b"insert"), Code::NotFound),
        (strange(&[b'x'; 100_000]), Code::NotFound),
    ] {
        let refused = client.inner_mut().do_get(Ticket::new(hostile)).await.unwrap_err();
        assert_eq!(refused.code(), expected, "{}", refused.message());
        assert!(!refused.message().is_empty());
    }
    assert_eq!(harness.engine.counters.updates.load(SeqCst), 0);
}

#[tokio::test]
async fn engine_errors_keep_their_meaning_and_text() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    for (sql, expected) in [
        ("nonsense", Code::InvalidArgument),
        ("no table", Code::NotFound),
        ("no feature", Code::Unimplemented),
        ("no memory", Code::ResourceExhausted),
        ("no right", Code::PermissionDenied),
    ] {
        let refused = query(&mut client, sql).await.unwrap_err();
        assert_eq!(refused.code(), expected);
        assert_eq!(refused.message(), format!("cannot plan: {sql}"));
    }
    assert_eq!(query(&mut client, " ").await.unwrap_err().code(), Code::InvalidArgument);
    let transaction = client.execute("rows 1".into(), Some("tx".into())).await;
    assert_eq!(code(transaction), Code::NotFound);

    let half = query(&mut client, "half").await.unwrap_err();
    assert_eq!((half.code(), half.message()), (Code::ResourceExhausted, "the disk for spilling is full"));
    assert_eq!(harness.server.metrics().operation(Operation::Fetch).errors, 1);
}

#[tokio::test]
async fn a_slow_client_holds_little_and_a_client_that_leaves_ends_its_query() {
    let harness = Harness::open().await;
    let counters = harness.engine.counters.clone();
    let mut client = harness.connect().await;
    let info = client.execute("endless".into(), None).await.unwrap();
    let mut stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let produced = counters.produced.load(SeqCst);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(counters.produced.load(SeqCst), produced, "nothing is produced while the client does not read");
    assert!(produced < 40, "{produced} batches were produced ahead of the client");

    drop(stream);
    eventually("the query ends", || counters.live.load(SeqCst) == 0).await;
    assert_eq!(harness.server.core.tickets.counts(), (0, 0));
    assert_eq!(harness.server.metrics().operation(Operation::Fetch).errors, 0);
}

#[tokio::test]
async fn a_query_is_cancelled_before_and_while_it_runs() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let mut other = harness.connect().await;
    async fn cancel(client: &mut super::Client, info: &arrow_flight::FlightInfo) -> CancelStatus {
        let body = CancelFlightInfoRequest::new(info.clone()).encode_to_vec();
        let results = act(client, "CancelFlightInfo", body).await.unwrap();
        CancelFlightInfoResult::decode(results[0].clone()).unwrap().status()
    }

    let info = client.execute("rows 3".into(), None).await.unwrap();
    assert_eq!(cancel(&mut other, &info).await, CancelStatus::Cancelled);
    assert_eq!(fetch(&mut client, info.clone()).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(cancel(&mut client, &info).await, CancelStatus::NotCancellable);
    assert!(harness.engine.counters.cancelled.lock().is_empty());

    let info = client.execute("endless".into(), None).await.unwrap();
    let mut stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    assert_eq!(cancel(&mut other, &info).await, CancelStatus::Cancelled);
    assert_eq!(harness.engine.counters.cancelled.lock()[0].0, "q");
}

#[tokio::test]
async fn a_table_is_read_by_its_path() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let path = |parts: &[&str]| FlightDescriptor::new_path(parts.iter().map(|part| (*part).to_owned()).collect());
    let info = client.inner_mut().get_flight_info(path(&["c", "s", "t"])).await.unwrap().into_inner();
    assert_eq!(rows(&fetch(&mut client, info).await.unwrap()), 3);
    for wrong in [path(&[]), path(&["a", "b", "c", "d"]), path(&["\"; insert"])] {
        assert_eq!(client.inner_mut().get_flight_info(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let listed = client.inner_mut().list_flights(arrow_flight::Criteria { expression: "or".into() }).await.unwrap();
    let listed: Vec<_> = listed.into_inner().try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].flight_descriptor.as_ref().unwrap().path, ["terrace", "public", "orders"]);
}

#[tokio::test]
async fn malformed_requests_are_refused_by_name() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let raw = client.inner_mut();
    for bytes in [&b""[..], &[0xff; 64], b"\x0a\x05hello"] {
        let refused = raw.get_flight_info(FlightDescriptor::new_cmd(bytes.to_vec())).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{}", refused.message());
        let empty =
            FlightData { flight_descriptor: Some(FlightDescriptor::new_cmd(bytes.to_vec())), ..FlightData::default() };
        let refused = raw.do_put(futures::stream::iter([empty])).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    assert_eq!(raw.do_put(futures::stream::iter([])).await.unwrap_err().code(), Code::InvalidArgument);
    for action in ["CreatePreparedStatement", "CancelQuery", "SetSessionOptions", "CancelFlightInfo"] {
        let refused = act(&mut client, action, vec![0xff; 10]).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{action}");
    }
    assert_eq!(act(&mut client, "Explode", vec![]).await.unwrap_err().code(), Code::Unimplemented);
    let exchange = client.inner_mut().do_exchange(futures::stream::iter([])).await.unwrap_err();
    assert_eq!(exchange.code(), Code::Unimplemented);
}

#[tokio::test]
async fn transactions_are_named_by_statements_and_end_once() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let id = client.begin_transaction().await.unwrap();
    client.execute("rows 1".into(), Some(id.clone())).await.unwrap();
    let mut prepared = client.prepare("insert".into(), Some(id.clone())).await.unwrap();
    assert_eq!(prepared.execute_update().await.unwrap(), 1);
    client.end_transaction(id.clone(), EndTransaction::Commit).await.unwrap();
    assert_eq!(code(client.end_transaction(id.clone(), EndTransaction::Commit).await), Code::NotFound);
    assert_eq!(code(client.execute_update("insert".into(), Some(id)).await), Code::NotFound);
    let id = client.begin_transaction().await.unwrap();
    let lost = client.end_transaction(id, EndTransaction::Rollback).await.unwrap_err();
    assert!(lost.to_string().contains("somebody was faster"), "{lost}");
}
