//! Messages for tests, and functions that damage them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, DictionaryArray, Int64Array, ListArray, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{Int32Type, Int64Type};
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_ipc::{CompressionType, MetadataVersion, root_as_message};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;

use crate::account::{Charge, Limits};
use crate::decoder::Decoder;
use crate::inflate::Message;

pub(crate) const LZ4: CompressionType = CompressionType::LZ4_FRAME;
pub(crate) const ZSTD: CompressionType = CompressionType::ZSTD;

/// Limits of one mebibyte.
pub(crate) fn limits() -> Limits {
    Limits { message_bytes: 1 << 20, expanded_bytes: 1 << 20, account: None }
}

/// An account that records its peak use.
#[derive(Debug)]
pub(crate) struct Account {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl Account {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// Bytes taken from an [`Account`] until it is dropped.
struct TestCharge(Arc<Account>, u64);

impl Drop for TestCharge {
    fn drop(&mut self) {
        self.0.used.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl crate::account::Account for Arc<Account> {
    fn charge(&self, bytes: u64) -> Result<Charge, String> {
        if self.used() + bytes > self.limit {
            return Err("all is taken".to_owned());
        }
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(used, Ordering::Relaxed);
        Ok(Box::new(TestCharge(Arc::clone(self), bytes)))
    }
}

/// Makes a batch of numbers, strings, string views, dictionary keys and lists.
pub(crate) fn batch(rows: i32) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter((0..rows).map(|i| (i % 7 != 0).then_some(i64::from(i)))));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("text {}", i % 50))));
    let views = StringViewArray::from_iter_values((0..rows).map(|i| format!("a longer text that is no. {}", i % 50)));
    let keys = (0..rows).map(|i| ["red", "green", "a colour with a long name"][i as usize % 3]);
    let keys: DictionaryArray<Int32Type> = keys.collect();
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(
        (0..rows).map(|i| Some((0..i % 3).map(|j| Some(i64::from(i + j))).collect::<Vec<_>>())),
    );
    let columns: [(&str, ArrayRef); 5] = [
        ("number", numbers),
        ("text", texts),
        ("view", Arc::new(views)),
        ("key", Arc::new(keys)),
        ("list", Arc::new(lists)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn options(codec: Option<CompressionType>) -> IpcWriteOptions {
    let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5).unwrap();
    options.try_with_compression(codec).unwrap()
}

/// Writes an Arrow file that holds the batch `times` times.
pub(crate) fn file(batch: &RecordBatch, times: usize, codec: Option<CompressionType>) -> Vec<u8> {
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options(codec)).unwrap();
    (0..times).for_each(|_| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

/// Like `file()`, but writes a stream.
pub(crate) fn stream(batch: &RecordBatch, times: usize, codec: Option<CompressionType>) -> Vec<u8> {
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options(codec)).unwrap();
    (0..times).for_each(|_| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

/// Makes the messages of a stream: a schema, a dictionary, rows.
pub(crate) fn messages(batch: &RecordBatch, codec: Option<CompressionType>) -> Vec<Message> {
    let stream = Bytes::from(stream(batch, 1, codec));
    let mut messages = Vec::new();
    let mut at = 0;
    loop {
        let length = i32::from_le_bytes(stream[at + 4..at + 8].try_into().unwrap()) as usize;
        if length == 0 {
            return messages;
        }
        let header = stream.slice(at + 8..at + 8 + length);
        let body = at + 8 + length;
        at = body + root_as_message(&header).unwrap().bodyLength() as usize;
        messages.push(Message { header, body: stream.slice(body..at) });
    }
}

/// Makes a decoder for messages of which the first is the schema.
pub(crate) fn decoder(messages: &[Message]) -> Decoder {
    let message = root_as_message(&messages[0].header).unwrap();
    let schema = arrow_ipc::convert::fb_to_schema(message.header_as_schema().unwrap());
    Decoder::new(Arc::new(schema), MetadataVersion::V5, None, limits())
}

/// The length prefixes of the compressed buffers of a message: offset in the body, and value.
pub(crate) fn length_prefixes(rows: &Message) -> Vec<(usize, i64)> {
    let message = root_as_message(&rows.header).unwrap();
    let buffers = message.header_as_record_batch().unwrap().buffers().unwrap();
    let places = buffers.iter().filter(|buffer| buffer.length() > 0).map(|buffer| buffer.offset() as usize);
    places.map(|at| (at, i64::from_le_bytes(rows.body[at..at + 8].try_into().unwrap()))).collect()
}

/// Overwrites the length prefix at `at`.
pub(crate) fn set_length_prefix(rows: &mut Message, at: usize, length: i64) {
    let mut body = rows.body.to_vec();
    body[at..at + 8].copy_from_slice(&length.to_le_bytes());
    rows.body = body.into();
}

/// Rebuilds the header of a message after `change` to its buffers; as a dictionary if `id` is given.
fn rebuilt(message: &Message, change: impl FnOnce(&mut Vec<arrow_ipc::Buffer>), id: Option<i64>) -> Message {
    let parsed = root_as_message(&message.header).unwrap();
    let dictionary = parsed.header_as_dictionary_batch();
    let batch = dictionary.map_or_else(|| parsed.header_as_record_batch(), |dictionary| dictionary.data()).unwrap();
    let mut builder = FlatBufferBuilder::new();
    let mut buffers: Vec<_> = batch.buffers().unwrap().iter().copied().collect();
    change(&mut buffers);
    let buffers = builder.create_vector(&buffers);
    let nodes: Vec<_> = batch.nodes().unwrap().iter().copied().collect();
    let nodes = builder.create_vector(&nodes);
    let compression = batch.compression().map(|compression| {
        let arguments = arrow_ipc::BodyCompressionArgs { codec: compression.codec(), method: compression.method() };
        arrow_ipc::BodyCompression::create(&mut builder, &arguments)
    });
    let arguments = arrow_ipc::RecordBatchArgs {
        length: batch.length(),
        nodes: Some(nodes),
        buffers: Some(buffers),
        compression,
        variadicBufferCounts: None,
    };
    let batch = arrow_ipc::RecordBatch::create(&mut builder, &arguments);
    let header = match id {
        Some(id) => {
            let arguments = arrow_ipc::DictionaryBatchArgs { id, data: Some(batch), isDelta: false };
            arrow_ipc::DictionaryBatch::create(&mut builder, &arguments).as_union_value()
        }
        None => batch.as_union_value(),
    };
    let arguments = arrow_ipc::MessageArgs {
        version: MetadataVersion::V5,
        header_type: parsed.header_type(),
        header: Some(header),
        bodyLength: message.body.len() as i64,
        custom_metadata: None,
    };
    let parsed = arrow_ipc::Message::create(&mut builder, &arguments);
    builder.finish(parsed, None);
    Message { header: Bytes::copy_from_slice(builder.finished_data()), body: message.body.clone() }
}

/// Rebuilds a message with `times` more buffers, all at the offset of the longest.
pub(crate) fn with_buffer_repeated(rows: &Message, times: usize) -> Message {
    let repeat = |buffers: &mut Vec<arrow_ipc::Buffer>| {
        let longest = buffers.iter().max_by_key(|buffer| buffer.length()).copied().unwrap();
        buffers.extend(std::iter::repeat_n(longest, times));
    };
    rebuilt(rows, repeat, None)
}

/// Rebuilds a dictionary message under another id.
pub(crate) fn with_id(dictionary: &Message, id: i64) -> Message {
    rebuilt(dictionary, |_| {}, Some(id))
}
