//! Decompresses messages.
//!
//! Every buffer of a compressed message begins with its length before compression. These lengths are summed before the
//! first byte is decompressed, and the decompressed bytes must have exactly the announced length. The resulting message
//! is equal but for the compression, and its body can be read in place:
//!
//! ```text
//!   | header: codec, buffers (offset, length)   | body: | n | lz4 frame |   | -1 | as it is |         |
//!                          v
//!   | header: no codec, buffers (offset, length) | body: n bytes | padding to 64 | as it is | padding  |
//! ```
//!
//! A reader keeps dictionaries to the end of its stream, so all dictionaries of a stream together have the limit of one
//! message.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;

use arrow_ipc::{CompressionType, MessageHeader};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;
use lz4_flex::frame::FrameDecoder;

use crate::account::Limits;
use crate::buffer_selection::BufferSelection;
use crate::bytes::{ALIGNMENT, AlignedBytes};
use crate::error::{Error, Result, malformed};
use crate::schema::{convert_schema, read_header};

/// Bytes of the length prefix of a compressed buffer.
const LENGTH_BYTES: usize = 8;
/// The length prefix of a buffer that is stored without compression.
const RAW: i64 = -1;

/// A message: its header, without the length prefix, and its body.
#[derive(Debug, Clone)]
pub struct Message {
    /// A flatbuffer.
    pub header: Bytes,
    /// The buffers that the header describes.
    pub body: Bytes,
}

/// Decompresses the messages of one stream.
#[derive(Debug)]
pub struct Inflater {
    limits: Limits,
    /// Bytes of the dictionaries that a reader keeps, by dictionary id.
    dictionaries: HashMap<i64, u64>,
}

/// One buffer of a message body.
struct BodyBuffer {
    /// Its stored bytes in the body, without the length prefix.
    stored: Range<usize>,
    /// Decompressed bytes.
    len: usize,
    is_compressed: bool,
}

impl Inflater {
    /// Makes an inflater for one stream with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, dictionaries: HashMap::new() }
    }

    /// The limits of its messages.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the message without compression, unchanged if it has none or holds no rows.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a message whose parts lie outside of it or are not of the length they announce, and for a
    /// schema with a type that cannot be used;
    /// [`Error::TooLarge`] beyond the limits.
    pub fn inflate(&mut self, message: Message) -> Result<Message, Error> {
        self.inflate_selected(message, None)
    }

    /// Like [`Inflater::inflate`], but empties the buffers of columns that are not selected.
    pub(crate) fn inflate_selected(
        &mut self,
        message: Message,
        selection: Option<&BufferSelection>,
    ) -> Result<Message> {
        let Some(parsed) = read_header(&message.header) else { return Err(malformed("its header cannot be read")) };
        let dictionary = parsed.header_as_dictionary_batch();
        let batch = match parsed.header_type() {
            MessageHeader::RecordBatch => parsed.header_as_record_batch(),
            MessageHeader::DictionaryBatch => dictionary.and_then(|dictionary| dictionary.data()),
            MessageHeader::Schema => {
                convert_schema(parsed.header_as_schema().ok_or_else(|| malformed("it has no schema"))?)?;
                return Ok(message);
            }
            _ => return Ok(message),
        };
        let batch = batch.ok_or_else(|| malformed("it has no rows"))?;
        let codec = batch.compression().map(|compression| compression.codec());
        let mut buffers = body_buffers(&batch, &message.body, codec.is_some())?;
        if let Some(selection) = selection.filter(|_| dictionary.is_none()) {
            let counts = batch.variadicBufferCounts().into_iter().flatten();
            for (buffer, _) in buffers.iter_mut().zip(selection.buffers(counts)).filter(|(_, selected)| !*selected) {
                *buffer = BodyBuffer { stored: 0..0, len: 0, is_compressed: false };
            }
        }
        // A message without compression is checked too: several of its buffers may name the same bytes, and the reader
        // copies each of them that is not aligned.
        let bytes = self.checked_sum(&buffers, &message.body, codec.is_some())?;
        if let Some(dictionary) = dictionary {
            self.count_dictionary(dictionary.id(), dictionary.isDelta(), bytes)?;
        }
        let Some(codec) = codec else { return Ok(message) };
        let body = self.inflate_body(&message.body, codec, &buffers, bytes)?;
        let header = inflated_header(&parsed, &batch, &buffers, bytes);
        Ok(Message { header, body })
    }

    /// Sums the bytes of all buffers, padded to multiples of 64 where the body is written anew. The limit is that of
    /// the stream, or the size of the body where that is larger and the body is read in place.
    fn checked_sum(&self, buffers: &[BodyBuffer], body: &[u8], is_compressed: bool) -> Result<u64> {
        let len = |buffer: &BodyBuffer| if is_compressed { padded(buffer.len) } else { Some(buffer.len) };
        let bytes = buffers.iter().try_fold(0_usize, |sum, buffer| sum.checked_add(len(buffer)?));
        let bytes = bytes.map_or(u64::MAX, |bytes| bytes as u64);
        let in_place = if is_compressed { 0 } else { body.len() as u64 };
        let limit = self.limits.message_bytes.max(in_place);
        match bytes > limit {
            true => Err(Error::TooLarge(format!(
                "the buffers of a message take {bytes} bytes in all, more than the limit of {limit}: send fewer rows at \
                 a time"
            ))),
            false => Ok(bytes),
        }
    }

    /// Counts a dictionary that the reader keeps. A delta adds to the dictionary of its id, any other one replaces it.
    fn count_dictionary(&mut self, id: i64, is_delta: bool, bytes: u64) -> Result<()> {
        let counted = self.dictionaries.entry(id).or_default();
        *counted = if is_delta { counted.saturating_add(bytes) } else { bytes };
        let sum = self.dictionaries.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        match sum > self.limits.message_bytes {
            true => Err(Error::TooLarge(format!(
                "the dictionaries of a stream take {sum} bytes, more than the limit of {}",
                self.limits.message_bytes
            ))),
            false => Ok(()),
        }
    }

    /// Writes the decompressed buffers one after the other; `bytes` is the sum of their padded lengths.
    fn inflate_body(&self, body: &[u8], codec: CompressionType, buffers: &[BodyBuffer], bytes: u64) -> Result<Bytes> {
        let len = usize::try_from(bytes).map_err(|_| malformed("it announces more than can be addressed"))?;
        let mut out = AlignedBytes::zeroed(len, self.limits.charge(bytes)?)?;
        let mut remaining = out.as_mut_slice();
        for buffer in buffers {
            let short = || malformed("its buffers are not those that it announces");
            let len = padded(buffer.len).ok_or_else(short)?;
            let (to, behind) = remaining.split_at_mut_checked(len).ok_or_else(short)?;
            let to = to.get_mut(..buffer.len).ok_or_else(short)?;
            let from = body.get(buffer.stored.clone()).ok_or_else(short)?;
            match buffer.is_compressed {
                true => decompress(codec, from, to)?,
                false if from.len() == to.len() => to.copy_from_slice(from),
                false => return Err(short()),
            }
            remaining = behind;
        }
        Ok(out.into())
    }
}

/// Reads the buffers of a message; fails unless all of them lie within `body`.
fn body_buffers(batch: &arrow_ipc::RecordBatch<'_>, body: &[u8], is_compressed: bool) -> Result<Vec<BodyBuffer>> {
    let body_buffer = |buffer: &arrow_ipc::Buffer| {
        let outside = || {
            let len = buffer.length();
            let offset = buffer.offset();
            malformed(format!("a buffer of {len} bytes at {offset} lies outside of its message"))
        };
        let start = usize::try_from(buffer.offset()).map_err(|_| outside())?;
        let len = usize::try_from(buffer.length()).map_err(|_| outside())?;
        let stored = start..start.checked_add(len).ok_or_else(outside)?;
        let bytes = body.get(stored.clone()).ok_or_else(outside)?;
        if bytes.is_empty() || !is_compressed {
            return Ok(BodyBuffer { stored, len, is_compressed: false });
        }
        let (length, _) = bytes.split_first_chunk::<LENGTH_BYTES>().ok_or_else(outside)?;
        let stored = start + LENGTH_BYTES..start + len;
        match i64::from_le_bytes(*length) {
            RAW => Ok(BodyBuffer { len: stored.len(), stored, is_compressed: false }),
            0 => Ok(BodyBuffer { stored: 0..0, len: 0, is_compressed: false }),
            length => match usize::try_from(length) {
                Ok(len) => Ok(BodyBuffer { stored, len, is_compressed: true }),
                Err(_) => Err(malformed(format!("a buffer announces a length of {length}"))),
            },
        }
    };
    batch.buffers().into_iter().flatten().map(body_buffer).collect()
}

fn padded(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(ALIGNMENT)
}

/// Decompresses `from` into `to`; fails unless the decompressed bytes fill it exactly.
fn decompress(codec: CompressionType, from: &[u8], to: &mut [u8]) -> Result<()> {
    let failed = |error: std::io::Error| malformed(format!("a buffer cannot be decompressed: {error}"));
    let wrong = |len: usize| malformed(format!("a compressed buffer does not have the {len} bytes it announces"));
    match codec {
        CompressionType::LZ4_FRAME => {
            let mut frame = FrameDecoder::new(from);
            frame.read_exact(to).map_err(failed)?;
            match frame.read(&mut [0]).map_err(failed)? {
                0 => Ok(()),
                _ => Err(wrong(to.len())),
            }
        }
        CompressionType::ZSTD => {
            let len = to.len();
            match zstd::bulk::decompress_to_buffer(from, to).map_err(failed)? {
                found if found == len => Ok(()),
                _ => Err(wrong(len)),
            }
        }
        other => Err(malformed(format!("compression {} is unknown", other.0))),
    }
}

/// Builds the header of a message whose decompressed buffers lie one after the other.
fn inflated_header(
    message: &arrow_ipc::Message<'_>,
    batch: &arrow_ipc::RecordBatch<'_>,
    buffers: &[BodyBuffer],
    body_bytes: u64,
) -> Bytes {
    let mut builder = FlatBufferBuilder::new();
    let nodes: Vec<_> = batch.nodes().into_iter().flatten().copied().collect();
    let nodes = builder.create_vector(&nodes);
    let mut end = 0;
    let buffers = buffers.iter().map(|buffer| {
        let start = end;
        // `checked_sum` found the sum to fit.
        end += padded(buffer.len).unwrap_or_default();
        arrow_ipc::Buffer::new(start as i64, buffer.len as i64)
    });
    let buffers: Vec<_> = buffers.collect();
    let buffers = builder.create_vector(&buffers);
    let counts = batch.variadicBufferCounts().map(|counts| counts.iter().collect::<Vec<i64>>());
    let counts = counts.map(|counts| builder.create_vector(&counts));
    let batch = arrow_ipc::RecordBatchArgs {
        length: batch.length(),
        nodes: Some(nodes),
        buffers: Some(buffers),
        compression: None,
        variadicBufferCounts: counts,
    };
    let batch = arrow_ipc::RecordBatch::create(&mut builder, &batch);
    let header = match message.header_as_dictionary_batch() {
        Some(dictionary) => {
            let id = dictionary.id();
            let is_delta = dictionary.isDelta();
            let dictionary = arrow_ipc::DictionaryBatchArgs { id, data: Some(batch), isDelta: is_delta };
            arrow_ipc::DictionaryBatch::create(&mut builder, &dictionary).as_union_value()
        }
        None => batch.as_union_value(),
    };
    let message = arrow_ipc::MessageArgs {
        version: message.version(),
        header_type: message.header_type(),
        header: Some(header),
        bodyLength: body_bytes as i64,
        custom_metadata: None,
    };
    let message = arrow_ipc::Message::create(&mut builder, &message);
    builder.finish(message, None);
    Bytes::copy_from_slice(builder.finished_data())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow_ipc::root_as_message;

    use super::*;
    use crate::testing::{self, LZ4, ZSTD, limits};

    const LARGEST: i64 = 1 << 48;

    #[test]
    fn what_was_compressed_comes_back() {
        for codec in [Some(LZ4), Some(ZSTD), None] {
            let messages = testing::messages(&testing::batch(3_000), codec);
            assert!(messages.len() > 2, "a schema, a dictionary, rows");
            let mut inflater = Inflater::new(limits());
            let mut decoder = testing::decoder(&messages);
            for message in messages.into_iter().skip(1) {
                let inflated = inflater.inflate(message).unwrap();
                let parsed = root_as_message(&inflated.header).unwrap();
                assert!(parsed.header_as_record_batch().is_none_or(|batch| batch.compression().is_none()));
                if let Some(rows) = decoder.read(inflated).unwrap() {
                    assert_eq!(rows, testing::batch(3_000));
                }
            }
        }
    }

    #[test]
    fn announced_lengths_are_refused_before_memory_is_asked_for() {
        for codec in [LZ4, ZSTD] {
            let rows = testing::messages(&testing::batch(3_000), Some(codec)).pop().unwrap();
            for (place, _) in testing::length_prefixes(&rows) {
                let mut changed = rows.clone();
                testing::set_length_prefix(&mut changed, place, LARGEST);
                let error = Inflater::new(limits()).inflate(changed).unwrap_err();
                assert!(matches!(&error, Error::TooLarge(why) if why.contains("281474976")), "{error}");
            }
        }
    }

    #[test]
    fn what_comes_out_has_the_announced_length() {
        for codec in [LZ4, ZSTD] {
            let rows = testing::messages(&testing::batch(3_000), Some(codec)).pop().unwrap();
            for (place, length) in testing::length_prefixes(&rows).into_iter().filter(|(_, length)| *length > 0) {
                // More than there is, less than there is (an lz4 frame goes on as long as it likes), and nonsense.
                for announced in [length + 1, length - 1, length * 10, -2, i64::MIN] {
                    let mut changed = rows.clone();
                    testing::set_length_prefix(&mut changed, place, announced);
                    let error = Inflater::new(limits()).inflate(changed).unwrap_err();
                    assert!(matches!(error, Error::Malformed(_)), "{announced}: {error}");
                }
            }
        }
    }

    #[test]
    fn one_buffer_announced_often_counts_as_often() {
        let rows = testing::messages(&testing::batch(3_000), Some(ZSTD)).pop().unwrap();
        let repeated = testing::with_buffer_repeated(&rows, 100_000);
        let error = Inflater::new(limits()).inflate(repeated).unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
    }

    #[test]
    fn dictionaries_of_a_stream_are_summed() {
        let messages = testing::messages(&testing::batch(3_000), Some(LZ4));
        let dictionary = messages.get(1).unwrap();
        let mut inflater = Inflater::new(Limits { message_bytes: 1 << 12, ..limits() });
        // A dictionary replaces the previous one of its id.
        for _ in 0..100 {
            inflater.inflate(dictionary.clone()).unwrap();
        }
        let others = (0..100).map(|id| inflater.inflate(testing::with_id(dictionary, 1_000 + id)));
        assert!(others.into_iter().any(|other| matches!(other, Err(Error::TooLarge(_)))));
    }

    #[test]
    fn what_is_decompressed_is_counted_until_its_last_reader_is_done() {
        let account = testing::Account::new(1 << 20);
        let counted = |account: &Arc<testing::Account>| Limits { account: Some(Arc::new(account.clone())), ..limits() };
        let rows = testing::messages(&testing::batch(3_000), Some(LZ4)).pop().unwrap();
        let inflated = Inflater::new(counted(&account)).inflate(rows.clone()).unwrap();
        assert_eq!(account.used(), inflated.body.len() as u64);
        let slice = inflated.body.slice(10..20);
        drop(inflated);
        assert!(account.used() > 0);
        drop(slice);
        assert_eq!(account.used(), 0);
        let error = Inflater::new(counted(&testing::Account::new(100))).inflate(rows).unwrap_err();
        assert!(matches!(&error, Error::TooLarge(why) if why.contains("all is taken")), "{error}");
    }
}
