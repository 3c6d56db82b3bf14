//! Uploads rows from a client to a server.
//!
//! The values go to the socket from Arrow's own buffers ([`frames`](crate::frames)). The bytes are plain gRPC and Flight, so any
//! server can read them.

use std::collections::VecDeque;

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    compute::cast,
    datatypes::{DataType, Schema},
    error::ArrowError,
};
use arrow_flight::FlightDescriptor;
use arrow_ipc::writer::StreamEncoder;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tonic::{Status, body::Body};

use crate::{encode::parts, error, frames::IpcMessage};

/// Larger batches are sent in parts.
const MESSAGE_BYTES: usize = 2 << 20;

/// The body of a DoPut: `descriptor`, which names the command, and the rows. Dictionaries are sent as their values.
/// When `rows` ends with an error, the upload is aborted.
pub fn upload(
    descriptor: FlightDescriptor,
    rows: impl Stream<Item = Result<RecordBatch, Status>> + Send + 'static,
) -> Body {
    let mut sender = Sender { descriptor: Some(descriptor), encoder: None };
    let frames = rows
        .map(move |batch| sender.frames(batch?).map_err(error::encoding))
        .map_ok(|frames| stream::iter(frames.into_iter().map(|bytes| Ok::<_, Status>(Frame::data(bytes)))))
        .try_flatten();
    Body::new(StreamBody::new(frames))
}

struct Sender {
    /// The descriptor until it is sent, which is with the schema.
    descriptor: Option<FlightDescriptor>,
    encoder: Option<StreamEncoder>,
}

impl Sender {
    fn frames(&mut self, batch: RecordBatch) -> Result<Vec<Bytes>, ArrowError> {
        let batch = without_dictionaries(batch)?;
        let mut encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => StreamEncoder::try_new(batch.schema_ref())?,
        };
        let mut frames = Vec::new();
        for part in parts(batch, MESSAGE_BYTES)? {
            let pieces = encoder.encode(&part)?.into_iter();
            let mut stream: VecDeque<Buffer> = pieces.filter(|piece| !piece.is_empty()).collect();
            while !stream.is_empty() {
                let message = IpcMessage::take(&mut stream)?;
                // Servers take larger frames of HTTP/2 than clients.
                frames.extend(message.into_frames(self.descriptor.take(), 1)?);
            }
        }
        self.encoder = Some(encoder);
        Ok(frames)
    }
}

fn without_dictionaries(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let is_dictionary = |data_type: &DataType| matches!(data_type, DataType::Dictionary(..));
    if !batch.schema_ref().fields().iter().any(|field| is_dictionary(field.data_type())) {
        return Ok(batch);
    }
    let mut fields = Vec::new();
    let mut columns = Vec::new();
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let data_type = match column.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        fields.push(field.as_ref().clone().with_data_type(data_type.clone()));
        columns.push(cast(column, data_type)?);
    }
    let schema = Schema::new_with_metadata(fields, batch.schema_ref().metadata().clone());
    RecordBatch::try_new(schema.into(), columns)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, Int64Array, ListArray, StringViewArray,
    };
    use arrow::datatypes::{Int32Type, Int64Type};
    use arrow_flight::{FlightData, decode::FlightRecordBatchStream};
    use futures::executor::block_on;
    use http_body_util::BodyExt;

    use super::*;
    use crate::{bodies, receive::ReceiveBudget};

    fn batch(rows: i64) -> RecordBatch {
        let views = (0..rows).map(|i| (i % 7 != 0).then(|| format!("{i} {}", "long ".repeat((i % 9) as usize))));
        let dictionary: DictionaryArray<Int32Type> =
            (0..rows).map(|i| ["a", "b"].get(i as usize % 3).copied()).collect();
        let columns: [(&str, ArrayRef); 6] = [
            ("i", Arc::new(Int64Array::from_iter_values(0..rows))),
            ("d", Arc::new(Decimal128Array::from_iter((0..rows).map(|i| (i % 5 > 0).then_some(i128::from(i)))))),
            ("v", Arc::new(StringViewArray::from_iter(views))),
            ("k", Arc::new(dictionary)),
            ("b", Arc::new(BooleanArray::from_iter((0..rows).map(|i| Some(i % 3 == 0))))),
            ("l", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>((0..rows).map(|i| Some(vec![Some(i)]))))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
    }

    /// Decodes an upload like a server, with bytes that arrive `step` at a time.
    fn received(upload: Body, step: usize) -> (Vec<FlightData>, Vec<RecordBatch>) {
        let bytes = block_on(upload.collect()).unwrap().to_bytes();
        let frames = bytes.chunks(step).map(|part| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(part))));
        let received = ReceiveBudget::new(1 << 30, Arc::default(), Arc::default()).stream();
        let body = Body::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())));
        let (rest, bodies) = bodies::take_bodies(body, 1 << 30, received, None);
        let decoder = tonic_prost::ProstCodec::<FlightData, FlightData>::raw_decoder(Default::default());
        let messages = tonic::Streaming::new_request(decoder, rest, None, None);
        let messages: Vec<_> = block_on(messages.map_ok(|message| bodies.restore(message)).try_collect()).unwrap();
        let again = stream::iter(messages.clone().into_iter().map(Ok));
        (messages, block_on(FlightRecordBatchStream::new_from_flight_data(again).try_collect()).unwrap())
    }

    #[test]
    fn rows_arrive_as_they_left_however_the_bytes_are_cut() {
        let sent = vec![batch(3), batch(0), batch(5000), batch(100_000).slice(17, 90_000)];
        let expected: Vec<_> = sent.iter().map(|batch| without_dictionaries(batch.clone()).unwrap()).collect();
        let schema = expected[0].schema();
        let expected = arrow::compute::concat_batches(&schema, &expected).unwrap();
        for step in [1 << 20, 9973, 1] {
            let rows = stream::iter(sent.clone().into_iter().map(Ok));
            let descriptor = FlightDescriptor::new_cmd("what for");
            let (messages, batches) = received(upload(descriptor.clone(), rows), step);
            assert_eq!(arrow::compute::concat_batches(&schema, &batches).unwrap(), expected);
            let in_place = |body: &Bytes| body.is_empty() || body.as_ptr().align_offset(64) == 0;
            assert!(messages.iter().all(|message| in_place(&message.data_body)));
            assert_eq!(messages[0].flight_descriptor, Some(descriptor));
            assert!(messages.iter().skip(1).all(|message| message.flight_descriptor.is_none()));
            assert!(messages.iter().all(|message| message.data_body.len() <= MESSAGE_BYTES + MESSAGE_BYTES / 2));
        }
    }

    #[test]
    fn rows_that_end_in_an_error_break_the_upload_off() {
        let rows = stream::iter([Ok(batch(10)), Err(Status::aborted("no more"))]);
        let upload = upload(FlightDescriptor::default(), rows);
        assert!(block_on(upload.collect()).is_err());
    }
}
