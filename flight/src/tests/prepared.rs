//! Prepared statements and bulk ingest.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use arrow::{
    array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray},
    datatypes::{DataType, Int64Type, Schema},
};
use arrow_flight::{
    FlightData, FlightDescriptor,
    encode::FlightDataEncoderBuilder,
    sql::{
        ActionCreatePreparedStatementRequest, Any, CommandPreparedStatementQuery, CommandPreparedStatementUpdate,
        CommandStatementIngest, DoPutPreparedStatementResult, ProstMessageExt, TableDefinitionOptions,
        TableExistsOption, TableNotExistOption,
    },
};
use arrow_ipc::{CompressionType, writer::IpcWriteOptions};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use tonic::Code;

use super::{Harness, act, code, eventually, fake::numbers, fetch, rows};
use crate::{FlightOptions, IfExists, IfNotExists, Operation, proto::CreatePreparedStatementResult};

pub(super) fn parameters(a: Vec<i64>, b: Vec<&str>) -> RecordBatch {
    let a: ArrayRef = Arc::new(Int64Array::from(a));
    let b: ArrayRef = Arc::new(StringArray::from(b));
    RecordBatch::try_from_iter([("0", a), ("1", b)]).unwrap()
}

pub(super) async fn create(
    client: &mut super::Client,
    sql: &str,
) -> Result<CreatePreparedStatementResult, tonic::Status> {
    let request = ActionCreatePreparedStatementRequest { query: sql.into(), transaction_id: None };
    let results = act(client, "CreatePreparedStatement", request.as_any().encode_to_vec()).await?;
    let any = Any::decode(results[0].clone()).unwrap();
    assert!(any.type_url.ends_with(".ActionCreatePreparedStatementResult"));
    Ok(CreatePreparedStatementResult::decode(any.value).unwrap())
}

#[tokio::test]
async fn preparing_tells_queries_from_updates() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let query = create(&mut client, "rows 3").await.unwrap();
    assert_eq!(query.is_update, Some(false));
    assert!(!query.dataset_schema.is_empty());
    let update = create(&mut client, "insert text ?").await.unwrap();
    assert_eq!(update.is_update, Some(true));
    assert!(update.dataset_schema.is_empty());
    let schema = Schema::try_from(arrow_flight::IpcMessage(update.parameter_schema)).unwrap();
    assert_eq!(schema.field(0).data_type(), &DataType::Utf8, "drivers cannot bind a view");
}

#[tokio::test]
async fn a_query_runs_once_per_row_of_its_parameters() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let mut prepared = client.prepare("echo".into(), None).await.unwrap();
    let handle = create(&mut client, "echo").await.unwrap().prepared_statement_handle;
    let command = CommandPreparedStatementQuery { prepared_statement_handle: handle.clone() };
    let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    let data = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
    let answer = client.do_put(stream::iter([data])).await.unwrap().message().await.unwrap().unwrap();
    let answer = DoPutPreparedStatementResult::decode(answer.app_metadata).unwrap();
    assert_eq!(answer.prepared_statement_handle, Some(handle), "the Java client goes on with what it gets back");

    prepared.set_parameters(parameters(vec![7], vec!["x"])).unwrap();
    let info = prepared.execute().await.unwrap();
    prepared.set_parameters(parameters(vec![8, 9], vec!["y", "z"])).unwrap();
    let later = prepared.execute().await.unwrap();

    let first = fetch(&mut client, info).await.unwrap();
    assert_eq!(first[0].column(0).as_primitive::<Int64Type>().value(0), 7, "a later binding does not change it");
    let second = fetch(&mut client, later).await.unwrap();
    assert_eq!(rows(&second), 2);
    assert_eq!(second[1].column(1).as_string::<i32>().value(0), "z");
    prepared.close().await.unwrap();
}

#[tokio::test]
async fn an_update_runs_with_all_rows_of_its_parameters() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let mut prepared = client.prepare("insert ?".into(), None).await.unwrap();
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    prepared.set_parameters(RecordBatch::try_from_iter([("0", column)]).unwrap()).unwrap();
    assert_eq!(prepared.execute_update().await.unwrap(), 3);
    assert_eq!(harness.engine.counters.updates.load(SeqCst), 1);

    prepared.set_parameters(parameters(vec![1], vec!["too many"])).unwrap();
    assert_eq!(code(prepared.execute_update().await), Code::InvalidArgument);

    let mut plain = client.prepare("insert".into(), None).await.unwrap();
    assert_eq!(plain.execute_update().await.unwrap(), 1);
}

#[tokio::test]
async fn prepared_statements_are_bounded_and_belong_to_their_session() {
    let options = FlightOptions { max_prepared_per_session: 2, ..FlightOptions::default() };
    let harness = Harness::start(options).await;
    let mut client = harness.connect().await;
    let mut first = client.prepare("rows 3".into(), None).await.unwrap();
    let second = client.prepare("rows 3".into(), None).await.unwrap();
    let third = create(&mut client, "rows 3").await.unwrap_err();
    assert_eq!(third.code(), Code::ResourceExhausted);

    let mut other = harness.connect().await;
    let handle = create(&mut other, "rows 3").await.unwrap().prepared_statement_handle;
    let stolen = CommandPreparedStatementQuery { prepared_statement_handle: handle };
    let descriptor = FlightDescriptor::new_cmd(stolen.as_any().encode_to_vec());
    assert_eq!(client.inner_mut().get_flight_info(descriptor).await.unwrap_err().code(), Code::NotFound);

    second.close().await.unwrap();
    assert!(create(&mut client, "rows 3").await.is_ok());
    first.execute().await.unwrap();
}

pub(super) fn ingest(table: &str, exists: TableExistsOption, missing: TableNotExistOption) -> CommandStatementIngest {
    let options = TableDefinitionOptions { if_not_exist: missing as i32, if_exists: exists as i32 };
    CommandStatementIngest {
        table_definition_options: Some(options),
        table: table.into(),
        schema: Some("public".into()),
        catalog: Some(String::new()),
        temporary: false,
        transaction_id: None,
        options: [("cluster_by".to_owned(), "n".to_owned())].into(),
    }
}

#[tokio::test]
async fn ingest_streams_rows_with_what_the_client_asked_for() {
    use TableExistsOption::{Append, Fail, Replace};
    use TableNotExistOption::{Create, Fail as Missing};
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    for (exists, missing) in [(Fail, Create), (Append, Missing), (Replace, Create), (Append, Create)] {
        let batches = stream::iter([Ok(numbers(0, 100)), Ok(numbers(100, 50))]);
        assert_eq!(client.execute_ingest(ingest("t", exists, missing), batches).await.unwrap(), 150);
    }
    let seen: Vec<_> =
        harness.engine.ingested.lock().iter().map(|(t, rows)| (t.if_exists, t.if_not_exists, *rows)).collect();
    assert_eq!(
        seen,
        [
            (IfExists::Fail, IfNotExists::Create, 150),
            (IfExists::Append, IfNotExists::Fail, 150),
            (IfExists::Replace, IfNotExists::Create, 150),
            (IfExists::Append, IfNotExists::Create, 150),
        ]
    );
    let target = harness.engine.ingested.lock()[0].0.clone();
    assert_eq!((target.catalog, target.schema.as_deref()), (None, Some("public")));
    assert_eq!(target.options["cluster_by"], "n");
}

#[tokio::test]
async fn a_failed_ingest_stores_nothing_and_says_why() {
    use {TableExistsOption::Append, TableNotExistOption::Create};
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let wide =
        RecordBatch::try_from_iter(["a", "b", "c"].map(|name| (name, Arc::new(Int64Array::from(vec![1])) as ArrayRef)));
    let refused = client.execute_ingest(ingest("t", Append, Create), stream::iter([Ok(wide.unwrap())])).await;
    assert_eq!(super::status(refused.unwrap_err()).message(), "column x: the table has no such column");

    let never_ends = stream::iter([Ok(numbers(0, 10))]).chain(stream::pending());
    let call = client.execute_ingest(ingest("t", Append, Create), never_ends);
    assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err());
    let metrics = harness.server.metrics();
    eventually("the ingest of a client that left ends", || metrics.operation(Operation::Ingest).active == 0).await;

    let nameless = stream::iter([Ok(numbers(0, 10))]);
    assert_eq!(code(client.execute_ingest(ingest("", Append, Create), nameless).await), Code::InvalidArgument);
    assert!(harness.engine.ingested.lock().is_empty());
}

/// Compressed rows of 32,000 bytes whose message announces `bytes`.
async fn announcing(bytes: i64, command: &impl ProstMessageExt) -> Vec<FlightData> {
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
    let rows = RecordBatch::try_from_iter([("0", Arc::new(Int64Array::from(vec![7; 4_000])) as ArrayRef)]).unwrap();
    let encoder = FlightDataEncoderBuilder::new().with_options(options);
    let mut messages: Vec<FlightData> = encoder.build(stream::iter([Ok(rows)])).try_collect().await.unwrap();
    messages[0].flight_descriptor = Some(FlightDescriptor::new_cmd(command.as_any().encode_to_vec()));
    let mut body = messages[1].data_body.to_vec();
    body[..8].copy_from_slice(&bytes.to_le_bytes());
    messages[1].data_body = body.into();
    messages
}

#[tokio::test]
async fn no_upload_decides_how_much_memory_is_asked_for() {
    use {TableExistsOption::Append, TableNotExistOption::Create};
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let handle = create(&mut client, "insert ?").await.unwrap().prepared_statement_handle;
    let bind = CommandPreparedStatementUpdate { prepared_statement_handle: handle };
    for (bytes, expected) in [(1 << 48, Code::ResourceExhausted), (40_000, Code::InvalidArgument)] {
        let ingested = announcing(bytes, &ingest("t", Append, Create)).await;
        let bound = announcing(bytes, &bind).await;
        for messages in [ingested, bound] {
            let answer = match client.do_put(stream::iter(messages)).await {
                Ok(mut answers) => answers.message().await.map(drop),
                Err(error) => Err(super::status(error)),
            };
            assert_eq!(answer.unwrap_err().code(), expected, "{bytes}");
        }
    }
    assert!(harness.engine.ingested.lock().is_empty());
    // With its true length the same message is accepted, and the server goes on.
    for messages in [announcing(32_000, &ingest("t", Append, Create)).await, announcing(32_000, &bind).await] {
        client.do_put(stream::iter(messages)).await.unwrap().message().await.unwrap().unwrap();
    }
    assert_eq!(harness.engine.ingested.lock()[0].1, 4_000);
}
