//! The bodies of uploaded Flight messages, each copied once into aligned memory that Arrow can read in place.
//!
//! The gRPC layer collects a whole message in one buffer, where the body begins at any address, and Arrow copies values
//! that are not aligned. So [`take_bodies`] removes the bodies before that layer, which sees messages without bodies.
//!
//! ```text
//!   frames -> | flag, length | descriptor, header, metadata | body |   -> | flag, length | descriptor, ... | -> gRPC
//!                                                              |
//!                                                              `-> aligned memory -> Bodies -> put
//! ```
//!
//! Arrow's arrays of a message refer to its body, so a body of rows to store counts as received as long as an array does.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use arrow::buffer::Buffer;
use arrow_flight::FlightData;
use arrow_ipc::MessageHeader;
use bytes::{Buf, Bytes};
use futures::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use prost::decode_length_delimiter;
use terrace_ipc::{AlignedBytes, read_header};
use tonic::{Status, body::Body};

use crate::receive::{Received, next_frame};

/// Bytes of the gRPC prefix: a flag and the length of the message.
const PREFIX_BYTES: usize = 5;
/// Most bytes of a field's number, type and length.
const FIELD_BYTES: usize = 20;
/// Wire type of a field that begins with its length.
const WITH_LENGTH: usize = 2;
/// The field `data_body` of a `FlightData`: its number, 1000, and its type.
pub(crate) const BODY_KEY: usize = 1000 << 3 | WITH_LENGTH;

/// Bytes of rows from which on the message counts as received until they are stored. The store keeps smaller ones while it
/// waits for more, and copies those that lie in an allocation of this size (`without_large_allocations`).
pub const LARGE_BODY_BYTES: usize = 4 << 20;

/// Bodies of messages that the gRPC layer has not delivered yet, in their order.
#[derive(Clone, Default)]
pub(crate) struct Bodies(Arc<Mutex<VecDeque<TakenBody>>>);

struct TakenBody {
    body: Option<AlignedBytes>,
    /// The bytes of the whole message.
    received: Received,
}

/// A body that counts as received until its last reader is gone.
struct ReceivedBody {
    body: AlignedBytes,
    _received: Received,
}

impl AsRef<[u8]> for ReceivedBody {
    fn as_ref(&self) -> &[u8] {
        self.body.as_ref()
    }
}

impl Bodies {
    /// Puts the next body back into its message, which counts as received no longer.
    pub(crate) fn restore(&self, message: FlightData) -> FlightData {
        let taken = self.0.lock().pop_front();
        match taken.and_then(|taken| taken.body) {
            Some(body) => FlightData { data_body: body.into(), ..message },
            None => message,
        }
    }

    /// Like [`Bodies::restore`], but rows of [`LARGE_BODY_BYTES`] or more count as received until they have no reader.
    pub(crate) fn restore_rows(&self, message: FlightData) -> FlightData {
        // The decoder keeps a dictionary until the end of the stream, and nobody may wait for that.
        let header = read_header(&message.data_header);
        if header.is_none_or(|header| header.header_type() != MessageHeader::RecordBatch) {
            return self.restore(message);
        }
        let taken = self.0.lock().pop_front();
        match taken {
            Some(TakenBody { body: Some(body), received }) if body.len() >= LARGE_BODY_BYTES => {
                let body = ReceivedBody { body, _received: received };
                FlightData { data_body: Bytes::from_owner(body), ..message }
            }
            Some(TakenBody { body: Some(body), .. }) => FlightData { data_body: body.into(), ..message },
            _ => message,
        }
    }
}

/// Removes the bodies from an upload of Flight messages; returns the upload without them, and the bodies. A message
/// that is compressed or has more than `max_message_bytes`, and all messages after it, are passed on unchanged, for the
/// gRPC layer to refuse. A client that sends half of a message and then nothing for `stall_timeout` gets an error.
pub(crate) fn take_bodies(
    upload: Body,
    max_message_bytes: usize,
    received: Received,
    stall_timeout: Option<Duration>,
) -> (Body, Bodies) {
    let bodies = Bodies::default();
    let reader = Reader {
        upload,
        input: Bytes::new(),
        message: Message::default(),
        refused: false,
        max_message_bytes,
        received,
        counted: true,
        stall_timeout,
        bodies: bodies.clone(),
    };
    let frames = stream::try_unfold(reader, |mut reader| async move {
        Ok::<_, Status>(reader.next().await?.map(|frame| (frame, reader)))
    });
    (Body::new(StreamBody::new(frames)), bodies)
}

struct Reader {
    upload: Body,
    input: Bytes,
    message: Message,
    refused: bool,
    max_message_bytes: usize,
    /// The bytes of `message`, and those of `input` once `counted` is true.
    received: Received,
    /// False while `input` begins with a message that nobody asked for.
    counted: bool,
    stall_timeout: Option<Duration>,
    bodies: Bodies,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<Frame<Bytes>>, Status> {
        if !self.counted {
            self.received.take(self.input.len()).await;
            self.counted = true;
        }
        loop {
            if let Some(part) = self.part()? {
                return Ok(Some(Frame::data(part)));
            }
            let whole = self.message.head.is_empty();
            let timeout = self.stall_timeout.filter(|_| !whole);
            let Some(frame) = next_frame(&mut self.upload, timeout).await? else {
                return if whole { Ok(None) } else { Err(Status::internal("the upload ends within a message")) };
            };
            match frame.into_data() {
                Ok(data) => {
                    self.received.take(data.len()).await;
                    self.input = data;
                }
                Err(trailers) => return Ok(Some(trailers)),
            }
        }
    }

    /// The next message without its body; `None` when the message is not complete yet.
    fn part(&mut self) -> Result<Option<Bytes>, Status> {
        if self.refused {
            return Ok(Some(std::mem::take(&mut self.input)).filter(|input| !input.is_empty()));
        }
        if !self.message.fill_head(&mut self.input, PREFIX_BYTES) {
            return Ok(None);
        }
        let Some([packed, length @ ..]) = self.message.head.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if *packed != 0 || length > self.max_message_bytes {
            self.refused = true;
            return Ok(Some(std::mem::take(&mut self.message).head.into()));
        }
        if !self.message.read(&mut self.input, PREFIX_BYTES + length)? {
            return Ok(None);
        }
        let received = self.received.end_message_before(self.input.len());
        self.counted = self.input.is_empty();
        let Message { mut head, body, .. } = std::mem::take(&mut self.message);
        let length = (head.len() - PREFIX_BYTES) as u32;
        head.get_mut(1..PREFIX_BYTES).unwrap_or_default().copy_from_slice(&length.to_be_bytes());
        self.bodies.0.lock().push_back(TakenBody { body, received });
        Ok(Some(head.into()))
    }
}

/// The bytes of a buffer, without a copy.
pub(crate) fn shared(buffer: Buffer) -> Bytes {
    struct Owner(Buffer);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Owner(buffer))
}

/// A field of a message that begins with its length.
struct Field {
    /// Its number and type.
    key: usize,
    /// Offset of its bytes.
    start: usize,
    /// Number of its bytes.
    length: usize,
}

/// A message, or the beginning of one.
#[derive(Default)]
struct Message {
    /// The prefix and all fields but the body.
    head: Vec<u8>,
    /// End of the complete fields in `head`, which follow the prefix; past the end of `head` while a field is
    /// incomplete.
    fields: usize,
    body: Option<AlignedBytes>,
    /// Bytes of the body that have not arrived.
    missing: usize,
    /// Bytes of the message that are not in `head`.
    taken: usize,
}

impl Message {
    /// Moves input to `head` until it has `bytes`; false when the input ended before.
    fn fill_head(&mut self, input: &mut Bytes, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(self.head.len()).min(input.len());
        self.head.extend_from_slice(&input.split_to(wanted));
        self.head.len() >= bytes
    }

    /// Reads a message of `bytes` (with its prefix) to its end; false when the input ended before. Fails when there is
    /// no memory for its body.
    fn read(&mut self, input: &mut Bytes, bytes: usize) -> Result<bool, Status> {
        self.fields = self.fields.max(PREFIX_BYTES);
        loop {
            if let Some(body) = &mut self.body {
                let part = input.split_to(self.missing.min(input.len()));
                body.extend_from_slice(&part);
                self.missing -= part.len();
            }
            let end = bytes - self.taken;
            if self.missing > 0 {
                return Ok(false);
            }
            if self.fields >= end {
                return Ok(self.fill_head(input, end));
            }
            if !self.fill_head(input, end.min(self.fields + FIELD_BYTES)) {
                return Ok(false);
            }
            let Some(Field { key, start, length }) = self.field().filter(|field| field.length <= end - field.start)
            else {
                // Not a field with a length, or no field at all: the gRPC layer gets the rest unchanged and decides.
                self.fields = end;
                continue;
            };
            if key != BODY_KEY {
                self.fields = start + length;
                continue;
            }
            // `head` may hold bytes beyond the body: they stay in it, behind the fields before the body.
            let read = self.head.split_off(start);
            let (body, rest) = read.split_at(length.min(read.len()));
            self.head.truncate(self.fields);
            self.taken += start - self.fields + length;
            self.head.extend_from_slice(rest);
            self.missing = length - body.len();
            let aligned = AlignedBytes::with_capacity(length);
            let mut aligned = aligned.map_err(|error| Status::resource_exhausted(error.to_string()))?;
            aligned.extend_from_slice(body);
            self.body = Some(aligned);
        }
    }

    /// The field that begins at `fields`.
    fn field(&self) -> Option<Field> {
        let mut rest = self.head.get(self.fields..)?;
        let key = decode_length_delimiter(&mut rest).ok().filter(|key| key & 7 == WITH_LENGTH)?;
        let length = decode_length_delimiter(&mut rest).ok()?;
        Some(Field { key, start: self.head.len() - rest.remaining(), length })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow_flight::{decode::FlightRecordBatchStream, encode::FlightDataEncoderBuilder, error::FlightError};
    use futures::{TryStreamExt, executor::block_on};
    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::{metrics::FlightMetrics, receive::ReceiveBudget};

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
    }

    /// Reads an upload of `bytes` that arrive in parts of `step`: as the gRPC layer sees it, and as a handler does.
    fn read_upload(
        bytes: &[u8],
        step: usize,
        max: usize,
    ) -> (Result<Vec<u8>, Status>, Result<Vec<FlightData>, Status>) {
        let upload = || {
            let frames: Vec<_> = bytes.chunks(step).map(|part| Ok(Frame::data(Bytes::copy_from_slice(part)))).collect();
            let body = Body::new(StreamBody::new(stream::iter::<Vec<Result<_, Status>>>(frames)));
            take_bodies(body, max, ReceiveBudget::new(1 << 20, Arc::default(), Arc::default()).stream(), None)
        };
        let seen = block_on(upload().0.collect()).map(|seen| seen.to_bytes().to_vec());
        let (rest, bodies) = upload();
        let decoder = tonic_prost::ProstCodec::<FlightData, FlightData>::raw_decoder(Default::default());
        let messages = tonic::Streaming::new_request(decoder, rest, None, Some(max));
        (seen, block_on(messages.map_ok(|message| bodies.restore(message)).try_collect()))
    }

    #[test]
    fn fields_around_a_body_stay_and_what_is_refused_passes_as_it_is() {
        let message =
            FlightData { data_header: "head".into(), data_body: vec![7; 100].into(), ..FlightData::default() };
        let meta = FlightData { app_metadata: "behind".into(), ..FlightData::default() };
        let bytes = [framed(&[message.encode_to_vec(), meta.encode_to_vec()].concat()), framed(&[])].concat();
        let (seen, messages) = read_upload(&bytes, 13, 1000);
        assert!(seen.unwrap().len() < 40);
        let whole = FlightData { app_metadata: "behind".into(), ..message };
        assert_eq!(messages.unwrap(), [whole, FlightData::default()]);

        let (seen, messages) = read_upload(&bytes, 13, 100);
        assert_eq!(seen.unwrap(), bytes);
        assert_eq!(messages.unwrap_err().code(), tonic::Code::OutOfRange);
        let (seen, _) = read_upload(&bytes[..60], 13, 1000);
        assert_eq!(seen.unwrap_err().code(), tonic::Code::Internal);
    }

    #[tokio::test]
    async fn rows_count_as_received_until_they_have_no_reader() {
        let metrics = Arc::<FlightMetrics>::default();
        let budget = ReceiveBudget::new(1 << 20, Arc::clone(&metrics), Arc::default());
        for (count, is_large) in [(LARGE_BODY_BYTES / 8, true), (1_000, false)] {
            let rows = crate::tests::numbers(0, count);
            let encoder = FlightDataEncoderBuilder::new().with_max_flight_data_size(usize::MAX);
            let messages: Vec<_> = encoder.build(stream::iter([Ok(rows.clone())])).try_collect().await.unwrap();
            let bytes: Vec<u8> = messages.iter().flat_map(|message| framed(&message.encode_to_vec())).collect();
            for counts in [true, false] {
                let upload = Body::new(http_body_util::Full::new(Bytes::from(bytes.clone())));
                let (rest, bodies) = take_bodies(upload, 64 << 20, budget.stream(), None);
                let decoder = tonic_prost::ProstCodec::<FlightData, FlightData>::raw_decoder(Default::default());
                let messages = tonic::Streaming::new_request(decoder, rest, None, Some(64 << 20));
                let messages = messages.map_err(|status| FlightError::Tonic(Box::new(status)));
                let messages =
                    messages.map_ok(move |m| if counts { bodies.restore_rows(m) } else { bodies.restore(m) });
                let mut batches: Vec<_> =
                    FlightRecordBatchStream::new_from_flight_data(messages).try_collect().await.unwrap();
                assert_eq!(batches, std::slice::from_ref(&rows));
                let slice = batches.remove(0).slice(900, 10);
                let received = metrics.received_bytes();
                assert_eq!(received >= LARGE_BODY_BYTES as u64, counts && is_large, "{received}");
                assert_eq!(received > 0, counts && is_large, "{received}");
                drop(slice);
                assert_eq!(metrics.received_bytes(), 0);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Any message is read as the gRPC layer alone would read it, or refused.
        #[test]
        fn messages_mean_the_same_without_their_bodies(
            header in prop::collection::vec(any::<u8>(), 0..50),
            body in prop::collection::vec(any::<u8>(), 0..300),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            step in 1_usize..400,
        ) {
            let message = FlightData { data_header: header.into(), data_body: body.into(), ..FlightData::default() };
            let mut fields = message.encode_to_vec();
            if let (Some((at, value)), false) = (damage, fields.is_empty()) {
                let at = at.index(fields.len());
                fields[at] = value;
            }
            let (_, messages) = read_upload(&[framed(&fields), framed(&fields)].concat(), step, 1 << 20);
            match FlightData::decode(fields.as_slice()) {
                Ok(expected) => prop_assert_eq!(messages.unwrap(), vec![expected.clone(), expected]),
                Err(_) => prop_assert!(messages.is_err()),
            }
        }
    }
}
