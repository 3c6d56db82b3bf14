//! Many large messages at once, for which there is not enough memory.

use std::{sync::Arc, time::Duration};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::{
    FlightData, FlightDescriptor,
    encode::FlightDataEncoderBuilder,
    sql::{CommandStatementIngest, ProstMessageExt, TableDefinitionOptions, TableExistsOption, TableNotExistOption},
};
use futures::{TryStreamExt, future::join_all, stream};
use prost::Message;
use tokio_stream::wrappers::ReceiverStream;

use super::{Harness, query, rows};
use crate::FlightOptions;

const STREAMS: usize = 16;
/// Rows of a message, of 8 bytes each.
const ROWS: i64 = 1 << 20;
const MESSAGES: usize = 2;
const MESSAGE_BYTES: u64 = 8 << 20;
const BUDGET_BYTES: u64 = 2 * MESSAGE_BYTES;

/// An ingest of messages that are as large as a batch of rows.
async fn upload() -> Vec<FlightData> {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let command = CommandStatementIngest {
        table_definition_options: Some(TableDefinitionOptions {
            if_not_exist: TableNotExistOption::Create as i32,
            if_exists: TableExistsOption::Append as i32,
        }),
        table: "t".into(),
        ..CommandStatementIngest::default()
    };
    FlightDataEncoderBuilder::new()
        .with_max_flight_data_size(usize::MAX)
        .with_flight_descriptor(Some(FlightDescriptor::new_cmd(command.as_any().encode_to_vec())))
        .build(stream::iter(vec![batch; MESSAGES].into_iter().map(Ok)))
        .try_collect()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_wait_for_each_other_and_all_arrive() {
    let messages = upload().await;
    assert!(messages[1].data_body.len() as u64 >= MESSAGE_BYTES);
    for connections in [STREAMS, 1] {
        let options = FlightOptions { max_received_bytes: BUDGET_BYTES, ..Default::default() };
        let harness = Harness::start(options).await;
        let metrics = harness.server.metrics();
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(harness.connect().await);
        }
        let uploads = (0..STREAMS).map(|number| {
            let mut client = clients[number % connections].clone();
            let messages = messages.clone();
            tokio::spawn(async move {
                let results = client.do_put(stream::iter(messages)).await.unwrap();
                results.try_collect::<Vec<_>>().await.unwrap()
            })
        });
        let uploads = join_all(uploads.collect::<Vec<_>>());
        let uploads = tokio::time::timeout(Duration::from_secs(60), uploads).await.expect("all uploads end");
        assert!(uploads.into_iter().all(|results| results.unwrap().len() == 1));
        let ingested: usize = harness.engine.ingested.lock().iter().map(|(_, rows)| rows).sum();
        assert_eq!(ingested, STREAMS * MESSAGES * (1 << 20));
        assert_eq!(metrics.received_bytes(), 0);
        let peak = metrics.received_peak_bytes();
        let most = BUDGET_BYTES + MESSAGE_BYTES + STREAMS as u64 * (64 << 10);
        assert!((BUDGET_BYTES..=most).contains(&peak), "{peak} of {most}, {connections} connections");
    }
}

#[tokio::test]
async fn statements_pass_while_a_client_holds_all_of_the_budget() {
    let options = FlightOptions { max_received_bytes: 1 << 20, ..Default::default() };
    let harness = Harness::start(options).await;
    let metrics = harness.server.metrics();
    let messages = upload().await;
    // A body that never ends, on a connection of its own.
    let mut uploader = harness.connect().await;
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    for message in messages {
        sender.send(message).await.unwrap();
    }
    let upload = tokio::spawn(async move { uploader.do_put(ReceiverStream::new(receiver)).await.map(|_| ()) });
    super::eventually("it takes more than the budget", || metrics.received_peak_bytes() > 4 << 20).await;
    let mut client = harness.connect().await;
    assert_eq!(rows(&query(&mut client, "rows 3").await.unwrap()), 3);
    drop(sender);
    upload.await.unwrap().unwrap();
    super::eventually("it gives all back", || metrics.received_bytes() == 0).await;
}
