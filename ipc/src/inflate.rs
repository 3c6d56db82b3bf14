//! Messages without compression, made of messages with it.
//!
//! Every buffer of a compressed message begins with its length before compression. These lengths are summed before the
//! first byte is decompressed; what comes out must have exactly the length announced. The message that comes out says
//! the same without compression, and its body can be read in place:
//!
//! ```text
//!   | header: codec, buffers (offset, length)   | body: | n | lz4 frame |   | -1 | as it is |         |
//!                          v
//!   | header: no codec, buffers (offset, length) | body: n bytes | padding to 64 | as it is | padding  |
//! ```
//!
//! Dictionaries stay with a reader to the end of its stream, so all of a stream together are held to the limit of one
//! message.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;

use arrow_ipc::{CompressionType, MessageHeader, root_as_message};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;
use lz4_flex::frame::FrameDecoder;

use crate::account::Limits;
use crate::bytes::{ALIGNMENT, AlignedBytes};
use crate::error::{Error, Result, malformed};
use crate::wanted::Wanted;

/// Bytes of the length before a compressed buffer.
const LENGTH_BYTES: usize = 8;
/// The length of a buffer that is stored as it is.
const RAW: i64 = -1;

/// A message: its header, without the length before it, and its body.
#[derive(Debug, Clone)]
pub struct Message {
    /// A flatbuffer.
    pub header: Bytes,
    /// What the header describes.
    pub body: Bytes,
}

/// Takes the compression out of the messages of one stream.
#[derive(Debug)]
pub struct Inflater {
    limits: Limits,
    /// Bytes of the dictionaries that a reader keeps, by their numbers.
    dictionaries: HashMap<i64, u64>,
}

/// One buffer of a body.
struct Part {
    /// Where it lies in the body, without the length before it.
    from: Range<usize>,
    /// How many bytes it is.
    len: usize,
    compressed: bool,
}

impl Inflater {
    /// For a stream held to `limits`.
    pub fn new(limits: Limits) -> Self {
        Self { limits, dictionaries: HashMap::new() }
    }

    /// What it is held to.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The message without compression; as it is where it has none, and where it holds no rows.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a message whose parts lie outside of it or are not of the length they announce;
    /// [`Error::TooLarge`] beyond the limits.
    pub fn inflate(&mut self, message: Message) -> Result<Message, Error> {
        self.inflate_wanted(message, None)
    }

    /// As [`Inflater::inflate`]; buffers of columns that are not wanted come out empty.
    pub(crate) fn inflate_wanted(&mut self, message: Message, wanted: Option<&Wanted>) -> Result<Message> {
        let Ok(parsed) = root_as_message(&message.header) else { return Err(malformed("its header cannot be read")) };
        let dictionary = parsed.header_as_dictionary_batch();
        let batch = match parsed.header_type() {
            MessageHeader::RecordBatch => parsed.header_as_record_batch(),
            MessageHeader::DictionaryBatch => dictionary.and_then(|dictionary| dictionary.data()),
            _ => return Ok(message),
        };
        let batch = batch.ok_or_else(|| malformed("it has no rows"))?;
        let codec = batch.compression().map(|compression| compression.codec());
        let mut parts = parts(&batch, &message.body, codec.is_some())?;
        if let Some(wanted) = wanted.filter(|_| dictionary.is_none()) {
            let counts = batch.variadicBufferCounts().into_iter().flatten();
            for (part, _) in parts.iter_mut().zip(wanted.buffers(counts)).filter(|(_, wanted)| !*wanted) {
                *part = Part { from: 0..0, len: 0, compressed: false };
            }
        }
        // Several buffers may lie in the same bytes, and are copied where these are not aligned.
        let bytes = self.checked_sum(&parts, &message.body, codec.is_some())?;
        if let Some(dictionary) = dictionary {
            self.keep(dictionary.id(), dictionary.isDelta(), bytes)?;
        }
        let Some(codec) = codec else { return Ok(message) };
        let body = self.inflated(&message.body, codec, &parts, bytes)?;
        let header = header(&parsed, &batch, &parts, bytes);
        Ok(Message { header, body })
    }

    /// Bytes of all parts, each begun at a multiple of 64 where the body is written anew. They may be as many as the
    /// limit says, and of a body that is read in place as many as it has.
    fn checked_sum(&self, parts: &[Part], body: &[u8], is_compressed: bool) -> Result<u64> {
        let len = |part: &Part| if is_compressed { padded(part.len) } else { Some(part.len) };
        let bytes = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(len(part)?));
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

    fn keep(&mut self, id: i64, is_delta: bool, bytes: u64) -> Result<()> {
        let kept = self.dictionaries.entry(id).or_default();
        *kept = if is_delta { kept.saturating_add(bytes) } else { bytes };
        let sum = self.dictionaries.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        match sum > self.limits.message_bytes {
            true => Err(Error::TooLarge(format!(
                "the dictionaries of a stream take {sum} bytes, more than the limit of {}",
                self.limits.message_bytes
            ))),
            false => Ok(()),
        }
    }

    fn inflated(&self, body: &[u8], codec: CompressionType, parts: &[Part], bytes: u64) -> Result<Bytes> {
        let len = usize::try_from(bytes).map_err(|_| malformed("it announces more than can be addressed"))?;
        let mut out = AlignedBytes::zeroed(len, self.limits.charge(bytes)?)?;
        let mut rest = out.as_mut_slice();
        for part in parts {
            let short = || malformed("its buffers are not those that it announces");
            let (to, behind) = rest.split_at_mut_checked(padded(part.len).ok_or_else(short)?).ok_or_else(short)?;
            let to = to.get_mut(..part.len).ok_or_else(short)?;
            let from = body.get(part.from.clone()).ok_or_else(short)?;
            match part.compressed {
                true => decompress(codec, from, to)?,
                false if from.len() == to.len() => to.copy_from_slice(from),
                false => return Err(short()),
            }
            rest = behind;
        }
        Ok(out.into())
    }
}

/// The buffers of a message, all of them within `body`.
fn parts(batch: &arrow_ipc::RecordBatch<'_>, body: &[u8], is_compressed: bool) -> Result<Vec<Part>> {
    let part = |buffer: &arrow_ipc::Buffer| {
        let outside = || {
            let len = buffer.length();
            let offset = buffer.offset();
            malformed(format!("a buffer of {len} bytes at {offset} lies outside of its message"))
        };
        let start = usize::try_from(buffer.offset()).map_err(|_| outside())?;
        let len = usize::try_from(buffer.length()).map_err(|_| outside())?;
        let from = start..start.checked_add(len).ok_or_else(outside)?;
        let bytes = body.get(from.clone()).ok_or_else(outside)?;
        if bytes.is_empty() || !is_compressed {
            return Ok(Part { from, len, compressed: false });
        }
        let (length, _) = bytes.split_first_chunk::<LENGTH_BYTES>().ok_or_else(outside)?;
        let from = start + LENGTH_BYTES..start + len;
        match i64::from_le_bytes(*length) {
            RAW => Ok(Part { len: from.len(), from, compressed: false }),
            0 => Ok(Part { from: 0..0, len: 0, compressed: false }),
            length => match usize::try_from(length) {
                Ok(len) => Ok(Part { from, len, compressed: true }),
                Err(_) => Err(malformed(format!("a buffer announces a length of {length}"))),
            },
        }
    };
    batch.buffers().into_iter().flatten().map(part).collect()
}

fn padded(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(ALIGNMENT)
}

/// Fills `to`. What is decompressed must have its length, neither less nor more.
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

/// The header of the same message whose parts lie one after the other, without compression.
fn header(
    message: &arrow_ipc::Message<'_>,
    batch: &arrow_ipc::RecordBatch<'_>,
    parts: &[Part],
    body_bytes: u64,
) -> Bytes {
    let mut builder = FlatBufferBuilder::new();
    let nodes: Vec<_> = batch.nodes().into_iter().flatten().copied().collect();
    let nodes = builder.create_vector(&nodes);
    let mut end = 0;
    let buffers = parts.iter().map(|part| {
        let start = end;
        // The sum was checked.
        end += padded(part.len).unwrap_or_default();
        arrow_ipc::Buffer::new(start as i64, part.len as i64)
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
            for (place, _) in testing::lengths(&rows) {
                let mut changed = rows.clone();
                testing::announce(&mut changed, place, LARGEST);
                let error = Inflater::new(limits()).inflate(changed).unwrap_err();
                assert!(matches!(&error, Error::TooLarge(why) if why.contains("281474976")), "{error}");
            }
        }
    }

    #[test]
    fn what_comes_out_has_the_announced_length() {
        for codec in [LZ4, ZSTD] {
            let rows = testing::messages(&testing::batch(3_000), Some(codec)).pop().unwrap();
            for (place, length) in testing::lengths(&rows).into_iter().filter(|(_, length)| *length > 0) {
                // More than there is, less than there is (an lz4 frame goes on as long as it likes), and nonsense.
                for announced in [length + 1, length - 1, length * 10, -2, i64::MIN] {
                    let mut changed = rows.clone();
                    testing::announce(&mut changed, place, announced);
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
        // The same one again takes the place of the former.
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
