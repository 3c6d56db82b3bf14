//! Bulk ingests of large messages. The network counts a message until its last reader is gone, and clients wait meanwhile, so an
//! ingest that waits for the next message must not keep the one before.

use arrow::buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;

use super::*;

const MESSAGES: usize = 3;

/// A message of a client, and its rows, which lie in it.
fn message(number: usize, rows: usize, text_bytes: usize) -> (Buffer, RecordBatch) {
    let keys = Int64Array::from_iter_values((0..rows).map(|row| (row * MESSAGES + number) as i64));
    let text = |key: &Option<i64>| key.filter(|key| key % 7 > 0).map(|key| format!("{key:0>text_bytes$}"));
    let texts: StringViewArray = keys.iter().map(|key| text(&key)).collect();
    let batch = batch(vec![("k", Arc::new(keys) as ArrayRef), ("s", Arc::new(texts))]);
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let message = Buffer::from(writer.into_inner().unwrap());
    let rows = StreamDecoder::new().decode(&mut message.clone()).unwrap().unwrap();
    (message, rows)
}

/// Messages of which each comes when the one before has no reader, or an error when it has one for too long.
fn messages(rows: usize, text_bytes: usize) -> RowStream {
    let next = move |(number, before): (usize, Option<Buffer>)| async move {
        let mut waited = 0;
        while before.as_ref().is_some_and(|before| before.strong_count() > 1) {
            waited += 1;
            if waited == 1_000 {
                return Some((Err(Error::invalid(format!("message {number} is kept"))), (MESSAGES, None)));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if number == MESSAGES {
            return None;
        }
        let (message, rows) = message(number, rows, text_bytes);
        Some((Ok(rows), (number + 1, Some(message))))
    };
    futures::stream::unfold((0, None), next).boxed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ingest_that_waits_for_a_message_keeps_none() {
    let server = Server::new();
    for (table, columns) in [
        ("plain", "(k BIGINT, s VARCHAR)"),
        ("computed", "(k BIGINT, s VARCHAR, d DOUBLE DEFAULT random())"),
        ("sorted", "(k BIGINT, s VARCHAR) WITH (cluster_by = 'k')"),
    ] {
        server.run(&format!("CREATE TABLE {table} {columns}")).await.unwrap();
        let mut stored = 0;
        // Some rows of many bytes, and many of few.
        for (rows, text_bytes) in [(3_000, 2_000), (200_000, 20), (200_000, 4)] {
            let mode = IngestMode::Append;
            let request = IngestRequest { schema: None, table: table.to_owned(), mode, options: HashMap::new() };
            let schema = message(0, 1, text_bytes).1.schema();
            let messages = messages(rows, text_bytes);
            let count = server.engine.ingest(&server.session, request, schema, messages, None).await;
            assert_eq!(count.unwrap_or_else(|e| panic!("{table}, {rows} rows: {e}")), (MESSAGES * rows) as u64);
            stored += MESSAGES * rows;
        }
        let sums =
            format!("SELECT count(*), sum(k), count(s), count(*) FILTER (WHERE CAST(s AS BIGINT) <> k) FROM {table}");
        let sum = |rows: i64| 3 * rows * (3 * rows - 1) / 2;
        let keys = sum(3_000) + 2 * sum(200_000);
        let texts = (9_000 - 9_000_usize.div_ceil(7)) + 2 * (600_000 - 600_000_usize.div_ceil(7));
        assert_eq!(server.rows(&sums).await, [format!("{stored}|{keys}|{texts}|0")], "{table}");
    }
}
