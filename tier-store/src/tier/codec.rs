//! The segment codec: record batches to chunk files, column images to Arrow arrays.
//!
//! A chunk file is an Arrow IPC file (Feather V2) with one record batch, aligned to 64 bytes; the schema's
//! metadata carries `terrace.format_version`, the footer's a checksum of the whole file ([`check_stamp`]). The buffers
//! of one column are neighbours in the batch's body; a [`ColumnLayout`] says how to cut them, so that a column decodes
//! without the file around it. In memory a column is one range of bytes cut the same way, its *image*: what is stored,
//! without the compression that buffers may have in the file ([`Packing`]). In file and memory alike, integers and decimals may
//! be narrower than declared ([`Encoding`]), and a column of few different texts is keys of a dictionary ([`Words`]).
//!
//! ```text
//!   file   | magic | schema | batch metadata | body: col 0 | col 1 | ... | footer |
//!   stored                                        ^home.offset, home.len
//!   column | validity | offsets | values |  child ...      each at a multiple of 64
//! ```

mod compact;
mod compression;
mod convert;
mod decode;
mod encode;
mod narrow;
mod packed;
mod packed_file;
mod packing;
mod part;
mod stamp;
mod words;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};

use crate::error::{Error, Result};
use crate::io::{TURN_BYTES, let_others_run};
use crate::table::Home;

pub(crate) use compact::normalize_column;
pub use compact::{PAGE_ROWS, long_bytes, normalize, slice_column};
pub use compression::Compression;
pub use decode::decode_column;
use decode::{decode_copy, decode_written};
pub use encode::{
    ChunkHeader, EncodedChunk, PREFIX_BYTES, check_schema_version, encode_chunk, encode_chunk_as, read_header,
    schema_len,
};
pub(crate) use encode::{check_types, encode_again, write_file};
pub use narrow::{Encoding, StoredColumn, decode_stored, stored};
pub(crate) use narrow::{may_be_narrow, narrow_column};
pub use packed::{Packed, image_bytes, unpacked, unpacked_bytes};
pub use packing::{DecompressionRates, Packing, Rates};
pub use part::{Cut, Part};
pub use stamp::{Stamp, check_stamp};
pub use words::{Worded, Words};

/// Bytes covered by one checksum of [`Home::checksums`].
pub const CHECKSUM_BLOCK_BYTES: usize = 16 * 1024;

/// Version of chunk files without what the next one knows.
pub const FORMAT_VERSION: u32 = 2;
/// Version of chunk files with compressed buffers or dictionaries. Both are read.
pub const PACKED_FORMAT_VERSION: u32 = 3;

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

/// Blocks that are checked before others are let run.
const TURN_BLOCKS: usize = TURN_BYTES / CHECKSUM_BLOCK_BYTES;

/// Checks stored bytes against the checksums of their home. Fails with the number of the first bad 16 KiB block, counted
/// from their start; a wrong length shows as the first missing block.
pub fn verify(home: &Home, stored: &[u8]) -> Result<(), usize> {
    let blocks = stored.len().div_ceil(CHECKSUM_BLOCK_BYTES);
    if stored.len() as u64 != home.len || blocks != home.checksums.len() {
        return Err(blocks.min(home.checksums.len()));
    }
    verify_blocks(home, 0, stored)
}

/// Checks some stored bytes, whole blocks that begin at `start`, as [`verify`] does all.
pub fn verify_blocks(home: &Home, start: usize, stored: &[u8]) -> Result<(), usize> {
    let first = start / CHECKSUM_BLOCK_BYTES;
    let is_bad = |(block, number): &(&[u8], usize)| {
        if number.is_multiple_of(TURN_BLOCKS) {
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

/// The schema as the table declares it, without what the file format added.
fn declared_schema(schema: &SchemaRef) -> Result<SchemaRef> {
    let mut metadata: HashMap<String, String> = schema.metadata().clone();
    metadata.remove(FORMAT_VERSION_KEY);
    let fields = schema.fields().iter().map(narrow::declared).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new_with_metadata(fields, metadata)))
}

/// Damage found by the codec, which knows no path; callers that do put it in with [`locate`].
fn corrupt(what: impl Into<String>) -> Error {
    Error::Corrupt { path: "segment".into(), what: what.into() }
}

/// Names file and column in an error of the codec.
pub(crate) fn locate(error: Error, path: &std::path::Path, place: &str) -> Error {
    match error {
        Error::Corrupt { what, .. } => Error::Corrupt { path: path.to_path_buf(), what: format!("{place}: {what}") },
        Error::Unsupported(what) => Error::Unsupported(format!("{place}: {what}")),
        Error::UnsupportedFormat { found, supported, .. } => {
            Error::UnsupportedFormat { path: path.to_path_buf(), found, supported }
        }
        other => other,
    }
}

#[cfg(test)]
pub(crate) mod tests;
