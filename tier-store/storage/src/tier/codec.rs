//! The segment codec: record batches to chunk files, column images to Arrow arrays.
//!
//! A chunk file is an Arrow IPC file (Feather V2) with one record batch, aligned to 64 bytes; the schema's
//! metadata carries `terrace.format_version`, the footer's a checksum of the whole file ([`check_stamp`]). The buffers
//! of one column are neighbours in the batch's body; a [`ColumnLayout`] says how to cut them, so that a column decodes
//! without the file around it. In memory a column is one range of bytes cut the same way, its *image*: the stored bytes
//! without the compression that buffers may have in the file ([`CompressionRule`]). In file and memory alike, integers and decimals may
//! be narrower than declared ([`Encoding`]), and a column of few distinct texts is stored as keys of a [`Dictionary`].
//! Files of another format hold columns as images in the packed form ([`terrace_model::FileFormat`], [`Form`]).
//!
//! ```text
//!   file   | magic | schema | batch metadata | body: col 0 | col 1 | ... | footer |
//!   stored                                        ^home.offset, home.len
//!   column | validity | offsets | values |  child ...      each at a multiple of 64
//! ```
//!
//! - [`compact`]: batches without foreign bytes and dictionaries, views laid out by pages
//! - [`compression`]: LZ4 and ZSTD of single buffers
//! - [`convert`]: numbers to wider and narrower types
//! - [`decode`]: images to arrays, without copying
//! - [`dictionary`]: dictionary encoding of texts
//! - [`encode`]: writes chunk files and reads their headers
//! - [`file_format`]: chunk files in the format of their table
//! - [`narrow`]: narrow storage of numbers
//! - [`packed`]: the packed form of columns
//! - [`packed_encoding`]: packed columns in files
//! - [`packed_file`]: writes and reads files that hold packed columns
//! - [`compressed`]: decompresses the buffers of a column
//! - [`compressed_file`]: writes files with compressed buffers
//! - [`compression_rule`]: chooses the buffers to compress
//! - [`part`]: reads some rows of a column
//! - [`stamp`]: the checksum of a whole file
//! - [`stored_column`]: columns as tiers store them, and as scans take them

mod compact;
mod compressed;
mod compressed_file;
mod compression;
mod compression_rule;
mod convert;
mod decode;
mod dictionary;
mod encode;
mod file_format;
mod narrow;
mod packed;
mod packed_encoding;
mod packed_file;
mod part;
mod stamp;
mod stored_column;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use terrace_model::{Error, Result};

use crate::io::{QUANTUM_BYTES, let_others_run};
use crate::table::SegmentHome;

pub use compact::normalize_column;
pub use compact::{
    LARGE_ALLOCATION_BYTES, PAGE_ROWS, copied, has_large_allocations, long_bytes, normalize, slice_column,
    without_large_allocations,
};
pub use compressed::{Compressed, decompressed, decompressed_bytes, image_bytes};
pub use compression::Compression;
pub use compression_rule::{CompressionRule, DecompressionRates, Rates};
pub use decode::decode_column;
use decode::{decode_copy, decode_written};
pub use dictionary::{Dictionary, DictionaryEncoding};
pub use encode::{
    ChunkHeader, EncodedChunk, PREFIX_BYTES, check_schema_version, encode_chunk, encode_chunk_as, encode_chunk_in,
    read_header, schema_len,
};
pub use encode::{check_types, reencode_chunk};
pub use file_format::{format_of_file, write_chunk_file};
pub use narrow::{Encoding, may_be_narrow, narrow_column};
pub use packed::{NumberFilter, NumberSet, TextSet};
pub use packed::{PackedColumn, PageTable, has_filled_nulls, is_worth_packing, pack, packed_bytes, with_filled_nulls};
pub use packed_encoding::PackedEncoding;
pub use part::{Part, PartOptions};
pub use stamp::{Stamp, check_stamp};
pub use stored_column::{StoredColumn, decode_stored, packed_bytes_of_file, stored_bytes};

/// How an image stores the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Arrow arrays, in narrow types.
    #[default]
    Plain,
    /// In as few bits as each page needs ([`PackedColumn`]).
    Packed,
}

impl Form {
    /// Both, the one that is read faster first.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Packed];

    /// Lower-case name, as in settings, SQL and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Packed => "packed",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Plain => Self::Packed,
            Self::Packed => Self::Plain,
        }
    }

    /// The form of this name.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another name.
    pub fn from_name(name: &str) -> Result<Self> {
        let unknown = || Error::Invalid(format!("there is no form '{name}': a form is plain or packed"));
        Self::ALL.into_iter().find(|form| form.name() == name).ok_or_else(unknown)
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The forms that copies in memory get, where no rule names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormChoice {
    /// The plain one.
    #[default]
    Plain,
    /// The packed one, where a column has it and it saves enough.
    Packed,
    /// Either: placement chooses the form of a copy together with its tier.
    Auto,
}

impl FormChoice {
    /// The form of copies that are made before placement can weigh them: those of new chunks.
    pub fn first(self) -> Form {
        match self {
            Self::Plain | Self::Auto => Form::Plain,
            Self::Packed => Form::Packed,
        }
    }

    /// The form that takes fewest bytes of those that it allows.
    pub fn smallest(self) -> Form {
        match self {
            Self::Plain => Form::Plain,
            Self::Packed | Self::Auto => Form::Packed,
        }
    }
}

impl std::fmt::Display for FormChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Packed => "packed",
            Self::Auto => "auto",
        })
    }
}

/// Bytes covered by one checksum of [`SegmentHome::checksums`].
pub const CHECKSUM_BLOCK_BYTES: usize = 16 * 1024;

/// Version of chunk files that have neither compressed buffers nor dictionaries.
pub const FORMAT_VERSION: u32 = 2;
/// Version of chunk files with compressed buffers or dictionaries.
pub const COMPRESSED_FORMAT_VERSION: u32 = 3;
/// Version of chunk files that hold packed columns. All three are read.
pub const PACKED_FORMAT_VERSION: u32 = 4;

/// Key of the format version in the metadata of a chunk file's schema.
pub const FORMAT_VERSION_KEY: &str = "terrace.format_version";

/// How a column's image is cut into Arrow buffers: the column's share of the record batch message.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ColumnLayout {
    /// (rows, nulls) of the column and its descendants, depth first.
    pub nodes: Vec<(u32, u32)>,
    /// (offset from the start of the image, bytes) in Arrow's order.
    pub buffers: Vec<(u64, u64)>,
    /// Data buffers of each view column among the nodes.
    pub variadic: Vec<u32>,
}

/// Blocks that a thread checks between two calls of [`let_others_run`].
const QUANTUM_BLOCKS: usize = QUANTUM_BYTES / CHECKSUM_BLOCK_BYTES;

/// Checks stored bytes against the checksums of their home. Fails with the number of the first bad 16 KiB block, counted
/// from their start; a wrong length shows as the first missing block.
pub fn verify(home: &SegmentHome, stored: &[u8]) -> Result<(), usize> {
    let blocks = stored.len().div_ceil(CHECKSUM_BLOCK_BYTES);
    if stored.len() as u64 != home.len || blocks != home.checksums.len() {
        return Err(blocks.min(home.checksums.len()));
    }
    verify_blocks(home, 0, stored)
}

/// Like [`verify`], but for some of the stored bytes: whole blocks that begin at `start`.
pub fn verify_blocks(home: &SegmentHome, start: usize, stored: &[u8]) -> Result<(), usize> {
    let first = start / CHECKSUM_BLOCK_BYTES;
    let is_bad = |(block, number): &(&[u8], usize)| {
        if number.is_multiple_of(QUANTUM_BLOCKS) {
            let_others_run();
        }
        home.checksums.get(*number).is_none_or(|expected| crc32c::crc32c(block) != *expected)
    };
    let bad = stored.chunks(CHECKSUM_BLOCK_BYTES).zip(first..).find(is_bad);
    bad.map_or(Ok(()), |(_, number)| Err(number))
}

/// Checksums of an image, one per 16 KiB.
pub(crate) fn checksums(image: &[u8]) -> Box<[u32]> {
    image.chunks(CHECKSUM_BLOCK_BYTES).map(crc32c::crc32c).collect()
}

/// The schema as the table declares it, without the metadata and the types of the file format.
fn declared_schema(schema: &SchemaRef) -> Result<SchemaRef> {
    let mut metadata: HashMap<String, String> = schema.metadata().clone();
    metadata.remove(FORMAT_VERSION_KEY);
    let fields = schema.fields().iter().map(narrow::declared_field).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new_with_metadata(fields, metadata)))
}

/// An error for damage. The codec knows no path; callers that do add it with [`locate`].
fn corrupt(what: impl Into<String>) -> Error {
    Error::Corrupt { path: "segment".into(), what: what.into() }
}

/// Adds file and column to an error of the codec.
pub fn locate(error: Error, path: &std::path::Path, place: &str) -> Error {
    match error {
        Error::Corrupt { what, .. } => Error::Corrupt { path: path.to_path_buf(), what: format!("{place}: {what}") },
        Error::Unsupported(what) => Error::Unsupported(format!("{}: {place}: {what}", path.display())),
        Error::UnsupportedFormat { found, supported, .. } => {
            Error::UnsupportedFormat { path: path.to_path_buf(), found, supported }
        }
        other => other,
    }
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod random_batch;
#[cfg(test)]
mod tests;
