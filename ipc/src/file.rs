//! Reads Arrow files: those with a footer that locates their messages, and streams of messages in a file.
//!
//! Every offset and length that a file announces is compared with the length of the file before the part is read.

use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow_ipc::{Block, MetadataVersion};
use bytes::Bytes;

use crate::account::Limits;
use crate::bytes::AlignedBytes;
use crate::decoder::Decoder;
use crate::error::{Error, Result, malformed};
use crate::inflate::Message;
use crate::schema::{convert_schema, read_footer, read_header};

const MAGIC: &[u8; 6] = b"ARROW1";
/// Bytes of a file before its first message.
const HEAD_BYTES: u64 = 8;
/// The length of the footer, and the magic.
const TAIL_BYTES: usize = 10;
/// First bytes of a message, before its length, since Arrow 0.15.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Reads the rows of an Arrow file of either kind.
pub struct FileReader<R> {
    input: Input<R>,
    decoder: Decoder,
    schema: SchemaRef,
    messages: Messages,
    failed: bool,
}

/// The messages that are left to read.
enum Messages {
    /// The record batches that the footer names.
    Blocks(std::vec::IntoIter<Block>),
    /// The offset of the next message.
    Stream(u64),
}

struct Input<R> {
    reader: R,
    len: u64,
}

/// Contents of the footer of a file, or of the first message of a stream.
struct FileMetadata {
    schema: SchemaRef,
    version: MetadataVersion,
    dictionaries: Vec<Block>,
    messages: Messages,
}

/// Reads the schema of a file.
///
/// # Errors
/// Like [`FileReader::open`].
pub fn read_schema<R: Read + Seek>(reader: R) -> Result<SchemaRef, Error> {
    Ok(Input::new(reader)?.metadata()?.schema)
}

impl<R: Read + Seek> FileReader<R> {
    /// Opens a reader of the columns at the positions `projection`, of all columns if `None`, within `limits`. With a
    /// range it reads only the record batches that begin in it; a stream, which has no footer to find them by, belongs
    /// to the range that has its first byte.
    ///
    /// # Errors
    /// [`Error::Malformed`] for anything but an Arrow file, [`Error::TooLarge`] beyond the limits, [`Error::Io`].
    pub fn open(
        reader: R,
        projection: Option<Vec<usize>>,
        range: Option<Range<u64>>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let mut input = Input::new(reader)?;
        let FileMetadata { schema, version, dictionaries, mut messages } = input.metadata()?;
        if let Some(range) = range {
            let begins = |offset: i64| u64::try_from(offset).is_ok_and(|offset| range.contains(&offset));
            messages = match messages {
                Messages::Blocks(blocks) => {
                    Messages::Blocks(blocks.filter(|block| begins(block.offset())).collect::<Vec<_>>().into_iter())
                }
                Messages::Stream(_) if range.start > 0 => Messages::Blocks(Vec::new().into_iter()),
                stream => stream,
            };
        }
        let projected = match &projection {
            Some(places) => Arc::new(schema.project(places)?),
            None => Arc::clone(&schema),
        };
        let mut decoder = Decoder::new(schema, version, projection, limits);
        for block in dictionaries {
            decoder.read(input.block(&block)?)?;
        }
        Ok(Self { input, decoder, schema: projected, messages, failed: false })
    }

    fn read(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let message = match &mut self.messages {
                Messages::Blocks(blocks) => blocks.next().map(|block| self.input.block(&block)).transpose()?,
                Messages::Stream(at) => self.input.message(at)?,
            };
            let Some(message) = message else { return Ok(None) };
            if let Some(rows) = self.decoder.read(message)? {
                return Ok(Some(rows));
            }
        }
    }
}

impl<R: Read + Seek> Iterator for FileReader<R> {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let read = self.read().transpose();
        self.failed = matches!(read, Some(Err(_)));
        read
    }
}

impl<R> FileReader<R> {
    /// The schema of its rows.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl<R: Read + Seek> Input<R> {
    fn new(mut reader: R) -> Result<Self> {
        let len = reader.seek(SeekFrom::End(0))?;
        Ok(Self { reader, len })
    }

    /// Reads `len` bytes from `at` on.
    fn bytes(&mut self, at: u64, len: u64) -> Result<Bytes> {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        let len = usize::try_from(len).ok().filter(|_| end.is_some());
        let outside = || malformed(format!("a part of the file at {at} is outside its {} bytes", self.len));
        let len = len.ok_or_else(outside)?;
        self.reader.seek(SeekFrom::Start(at))?;
        let mut bytes = AlignedBytes::zeroed(len, None)?;
        self.reader.read_exact(bytes.as_mut_slice())?;
        Ok(bytes.into())
    }

    fn metadata(&mut self) -> Result<FileMetadata> {
        let is_file = self.len >= MAGIC.len() as u64 && self.bytes(0, MAGIC.len() as u64)?.as_ref() == MAGIC;
        if is_file { self.footer() } else { self.first_message() }
    }

    fn footer(&mut self) -> Result<FileMetadata> {
        let cut = || malformed("the Arrow file was cut short");
        let end = self.len.checked_sub(TAIL_BYTES as u64).filter(|end| *end >= HEAD_BYTES).ok_or_else(cut)?;
        let tail = self.bytes(end, TAIL_BYTES as u64)?;
        let (length, magic) = tail.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u64::try_from(i32::from_le_bytes(*length)).ok().filter(|_| magic == MAGIC).ok_or_else(cut)?;
        let footer = self.bytes(end.checked_sub(length).ok_or_else(cut)?, length)?;
        let Some(footer) = read_footer(&footer) else { return Err(malformed("its footer cannot be read")) };
        let schema = footer.schema().ok_or_else(|| malformed("its footer has no schema"))?;
        let batches: Vec<Block> = footer.recordBatches().into_iter().flatten().copied().collect();
        Ok(FileMetadata {
            schema: Arc::new(convert_schema(schema)?),
            version: footer.version(),
            dictionaries: footer.dictionaries().into_iter().flatten().copied().collect(),
            messages: Messages::Blocks(batches.into_iter()),
        })
    }

    fn first_message(&mut self) -> Result<FileMetadata> {
        let mut at = 0;
        let message = self.message(&mut at)?.ok_or_else(|| malformed("the file is empty: it has no schema"))?;
        let Some(parsed) = read_header(&message.header) else { return Err(malformed("it is not an Arrow file")) };
        let schema = parsed.header_as_schema().ok_or_else(|| malformed("it does not begin with a schema"))?;
        Ok(FileMetadata {
            schema: Arc::new(convert_schema(schema)?),
            version: parsed.version(),
            dictionaries: Vec::new(),
            messages: Messages::Stream(at),
        })
    }

    /// Reads a message that the footer names.
    fn block(&mut self, block: &Block) -> Result<Message> {
        let outside = || malformed("its footer points to a message outside the file");
        let at = u64::try_from(block.offset()).map_err(|_| outside())?;
        let header_len = u64::try_from(block.metaDataLength()).map_err(|_| outside())?;
        let body_len = u64::try_from(block.bodyLength()).map_err(|_| outside())?;
        let body_at = at.checked_add(header_len).ok_or_else(outside)?;
        let header = self.bytes(at, header_len)?;
        let skipped = if header.starts_with(&CONTINUATION) { 8 } else { 4 };
        if header.len() < skipped {
            return Err(outside());
        }
        Ok(Message { header: header.slice(skipped..), body: self.bytes(body_at, body_len)? })
    }

    /// Reads four bytes at `at` and advances it behind them.
    fn length(&mut self, at: &mut u64) -> Result<[u8; 4]> {
        let bytes = self.bytes(*at, 4)?;
        *at += 4;
        bytes.first_chunk().copied().ok_or_else(|| malformed("a length is missing"))
    }

    /// Reads the message at `at` and advances it behind the message; `None` at the end.
    fn message(&mut self, at: &mut u64) -> Result<Option<Message>> {
        // Writers often leave the end-of-stream marker out.
        if *at == self.len {
            return Ok(None);
        }
        let mut found = self.length(at)?;
        if found == CONTINUATION {
            found = self.length(at)?;
        }
        let header_len = u64::try_from(i32::from_le_bytes(found));
        let header_len = header_len.map_err(|_| malformed("a message has a negative length"))?;
        if header_len == 0 {
            return Ok(None);
        }
        let header = self.bytes(*at, header_len)?;
        let body_len = match read_header(&header) {
            Some(parsed) => parsed.bodyLength(),
            None => return Err(malformed("it is not an Arrow file, or one of its messages is damaged")),
        };
        let body_len = u64::try_from(body_len).map_err(|_| malformed("a message has a negative length"))?;
        let body = self.bytes(*at + header_len, body_len)?;
        *at += header_len + body_len;
        Ok(Some(Message { header, body }))
    }
}

impl<R: Read + Seek> RecordBatchReader for ArrowReader<R> {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }
}

/// A [`FileReader`] with Arrow's errors.
struct ArrowReader<R>(FileReader<R>);

impl<R: Read + Seek> Iterator for ArrowReader<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map_err(|error| ArrowError::ExternalError(Box::new(error))))
    }
}

impl<R: Read + Seek> FileReader<R> {
    /// Converts it into a reader with Arrow's trait and errors.
    pub fn into_arrow(self) -> impl RecordBatchReader {
        ArrowReader(self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::{self, LZ4, ZSTD, limits};

    fn read(file: &[u8], limits: Limits) -> Result<Vec<RecordBatch>> {
        FileReader::open(Cursor::new(file), None, None, limits)?.collect()
    }

    #[test]
    fn files_of_either_kind_are_read() {
        let batch = testing::batch(3_000);
        for codec in [Some(LZ4), Some(ZSTD), None] {
            for file in [testing::file(&batch, 3, codec), testing::stream(&batch, 3, codec)] {
                assert_eq!(read_schema(Cursor::new(&file)).unwrap(), batch.schema());
                assert_eq!(read(&file, limits()).unwrap(), vec![batch.clone(); 3]);
                let places = vec![4, 1];
                let some = FileReader::open(Cursor::new(&file), Some(places.clone()), None, limits()).unwrap();
                assert_eq!(some.schema(), Arc::new(batch.schema().project(&places).unwrap()));
                for rows in some {
                    assert_eq!(rows.unwrap(), batch.project(&places).unwrap());
                }
            }
        }
    }

    #[test]
    fn ranges_share_the_batches_of_a_file() {
        let batch = testing::batch(3_000);
        for file in [testing::file(&batch, 5, Some(LZ4)), testing::stream(&batch, 5, Some(LZ4))] {
            let len = file.len() as u64;
            let parts = 7;
            let ranges = (0..parts).map(|part| len * part / parts..len * (part + 1) / parts);
            let batches = ranges.flat_map(|range| {
                FileReader::open(Cursor::new(&file), None, Some(range), limits()).unwrap().map(Result::unwrap)
            });
            assert_eq!(batches.count(), 5);
        }
    }

    #[test]
    fn what_is_no_arrow_file_says_so() {
        for text in ["", "x", "ARROW1", "ARROW1\0\0", "not an Arrow file at all, but some text of a length"] {
            assert!(matches!(read_schema(Cursor::new(text)), Err(Error::Malformed(_))), "{text}");
        }
        let whole = testing::file(&testing::batch(100), 1, None);
        for len in 0..whole.len() {
            assert!(read(whole.get(..len).unwrap(), limits()).is_err(), "{len} of {}", whole.len());
        }
    }

    #[test]
    fn a_stream_may_end_without_its_mark() {
        let batch = testing::batch(100);
        let stream = testing::stream(&batch, 2, None);
        assert_eq!(read(stream.get(..stream.len() - 8).unwrap(), limits()).unwrap().len(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Damaged files end in an error or in other rows, never in a panic, and never in more memory than allowed.
        #[test]
        fn damaged_files_end_in_errors(
            kind in 0_usize..6,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let batch = testing::batch(200);
            let codec = [Some(LZ4), Some(ZSTD), None].get(kind % 3).copied().flatten();
            let mut file = if kind < 3 { testing::file(&batch, 2, codec) } else { testing::stream(&batch, 2, codec) };
            for (at, value) in damage {
                let at = at.index(file.len());
                file[at] = value;
            }
            let account = testing::Account::new(1 << 20);
            let _ = read(&file, Limits { account: Some(Arc::new(account.clone())), ..limits() });
            prop_assert!(account.peak() <= 1 << 20);
        }
    }
}
