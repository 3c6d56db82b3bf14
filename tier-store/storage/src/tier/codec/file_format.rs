//! Chunk files in the format of their table: written by it, and recognised by their last bytes.

use std::io::Write;

use arrow::array::RecordBatch;
use terrace_model::{FileFormat, Result};

use super::encode::write_file;
use super::packed_file::{self, PackedColumns};
use super::{CompressionRule, EncodedChunk};

/// Encodes a batch of columns in their stored types into a file that `open` makes for about the given number of bytes. Buffers
/// are compressed as `rule` says, packed columns are not.
pub fn write_chunk_file<File: Write + AsRef<[u8]> + AsMut<[u8]>>(
    batch: &RecordBatch,
    format: FileFormat,
    rule: CompressionRule<'_>,
    open: impl Fn(usize) -> Result<File>,
) -> Result<EncodedChunk<File>> {
    match format {
        FileFormat::Arrow => write_file(batch, rule, open),
        FileFormat::Packed => packed_file::write(batch, PackedColumns::Worthwhile, rule, open),
    }
}

/// The format that a complete file has.
pub fn format_of_file(file: &[u8]) -> FileFormat {
    if packed_file::is_packed(file) { FileFormat::Packed } else { FileFormat::Arrow }
}
