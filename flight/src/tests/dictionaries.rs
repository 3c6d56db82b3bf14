//! Columns of texts as keys of dictionaries, for clients that ask.

use arrow::{
    array::{Array, AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType, Schema},
};
use arrow_flight::{
    FlightData, FlightDescriptor,
    sql::{CommandStatementQuery, ProstMessageExt},
};
use arrow_ipc::{MessageHeader, root_as_message};
use futures::TryStreamExt;
use prost::Message;
use terrace_ipc::keyed_text_type;
use tonic::Code;

use super::{Client, Harness, fetch, query};

const HEADER: &str = "terrace-dictionary-types";

async fn asking(harness: &Harness) -> Client {
    let mut client = harness.connect().await;
    client.set_header(HEADER, "keep");
    client
}

/// The texts of a column.
fn texts(batches: &[RecordBatch], column: usize) -> Vec<Option<String>> {
    let plain = batches.iter().map(|batch| cast(batch.column(column), &DataType::Utf8).unwrap());
    plain.flat_map(|plain| plain.as_string::<i32>().iter().map(|t| t.map(str::to_owned)).collect::<Vec<_>>()).collect()
}

fn values(batch: &RecordBatch) -> Vec<&str> {
    let values = batch.column(0).as_any_dictionary_opt().unwrap().values();
    values.as_string::<i32>().iter().flatten().collect()
}

/// The kinds of the messages of a result.
async fn kinds(client: &mut Client, sql: &str) -> Vec<MessageHeader> {
    let info = client.execute(sql.to_owned(), None).await.unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let stream = client.inner_mut().do_get(ticket).await.unwrap().into_inner();
    let messages: Vec<FlightData> = stream.try_collect().await.unwrap();
    messages.iter().map(|message| root_as_message(&message.data_header).unwrap().header_type()).collect()
}

#[tokio::test]
async fn texts_have_the_keys_that_were_announced() {
    let harness = Harness::open().await;
    let mut client = asking(&harness).await;
    let info = client.execute("words".into(), None).await.unwrap();
    let announced: Schema = info.clone().try_decode_schema().unwrap();
    assert_eq!(announced.field(0).data_type(), &keyed_text_type());
    let DataType::List(item) = announced.field(1).data_type() else { panic!("{announced}") };
    assert_eq!(item.data_type(), &DataType::Utf8, "nested texts are values");

    let batches = fetch(&mut client, info).await.unwrap();
    assert!(batches.iter().all(|batch| batch.schema().fields() == announced.fields()));
    assert_eq!(
        batches.iter().map(values).collect::<Vec<_>>(),
        [
            vec!["x", "y"],
            vec!["x", "y", "z"],
            vec!["x", "y", "z"],
            vec!["x", "y", "z", "a text that is in no dictionary"],
        ]
    );
    let plain = query(&mut harness.connect().await, "words").await.unwrap();
    assert_eq!(plain[0].column(0).data_type(), &DataType::Utf8);
    assert_eq!(texts(&batches, 0), texts(&plain, 0));
    assert!(texts(&plain, 0).contains(&None));

    let command = CommandStatementQuery { query: "words".into(), transaction_id: None };
    let mut request = tonic::Request::new(FlightDescriptor::new_cmd(command.as_any().encode_to_vec()));
    request.metadata_mut().insert(HEADER, "keep".parse().unwrap());
    let schema = client.inner_mut().get_schema(request).await.unwrap().into_inner();
    assert_eq!(Schema::try_from(&schema).unwrap(), announced);
    let mut prepared = client.prepare("words".into(), None).await.unwrap();
    assert_eq!(prepared.dataset_schema().unwrap(), &announced);
    let info = prepared.execute().await.unwrap();
    assert_eq!(info.try_decode_schema().unwrap(), announced);
}

#[tokio::test]
async fn dictionaries_are_sent_before_the_rows_that_have_new_values() {
    use MessageHeader as M;
    let harness = Harness::open().await;
    let mut client = asking(&harness).await;
    // The third batch has no new value.
    let expected = [M::Schema, M::DictionaryBatch, M::RecordBatch, M::DictionaryBatch, M::RecordBatch, M::RecordBatch];
    let found = kinds(&mut client, "words").await;
    assert_eq!(found[..6], expected);
    assert_eq!(found[6..], [M::DictionaryBatch, M::RecordBatch]);
    // A reader waits for the dictionary of each column, also where no rows follow.
    assert_eq!(kinds(&mut client, "empty").await, [M::Schema, M::DictionaryBatch, M::RecordBatch]);
    let plain = kinds(&mut harness.connect().await, "words").await;
    assert!(!plain.contains(&M::DictionaryBatch), "{plain:?}");
}

#[tokio::test]
async fn columns_of_many_values_keep_small_dictionaries() {
    let harness = Harness::open().await;
    // Both the dictionary and the rows of a slice are large messages.
    for compression in ["none", "lz4"] {
        let mut client = asking(&harness).await;
        client.set_header("terrace-compression", compression);
        let batches = query(&mut client, "rows 100000").await.unwrap();
        let plain = query(&mut harness.connect().await, "rows 100000").await.unwrap();
        assert_eq!(texts(&batches, 1), texts(&plain, 1));
        for batch in &batches {
            let dictionary = batch.column(1).as_any_dictionary_opt().unwrap();
            assert!(dictionary.values().len() <= batch.num_rows(), "{} values", dictionary.values().len());
        }
    }
}

#[tokio::test]
async fn long_texts_are_split_before_they_have_keys() {
    let harness = Harness::open().await;
    let mut client = asking(&harness).await;
    let info = client.execute("long words".into(), None).await.unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let stream = client.inner_mut().do_get(ticket).await.unwrap().into_inner();
    let messages: Vec<FlightData> = stream.try_collect().await.unwrap();
    let largest = messages.iter().map(Message::encoded_len).max().unwrap();
    assert!((1 << 20..4 << 20).contains(&largest), "{largest}");
    // Some rows each, not one.
    assert!(messages.len() < 30, "{} messages", messages.len());
    let batches = query(&mut client, "long words").await.unwrap();
    let plain = query(&mut harness.connect().await, "long words").await.unwrap();
    assert_eq!(texts(&batches, 0), texts(&plain, 0));
}

#[tokio::test]
async fn another_value_of_the_header_is_refused() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    client.set_header(HEADER, "yes");
    let error = query(&mut client, "rows 3").await.unwrap_err();
    assert!(error.code() == Code::InvalidArgument && error.message().contains("'yes' is not 'keep'"), "{error}");
}
