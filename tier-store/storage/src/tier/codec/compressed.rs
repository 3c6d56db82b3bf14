//! Compressed columns: their layout in the file, and their decompression.
//!
//! In a file with compression every buffer that is not empty is preceded by its length before compression, as eight
//! bytes; -1 says that it is stored raw. A raw buffer begins right after its -1, at a multiple of 64, so a column without
//! compressed buffers is read as in any other file: in place, whole or in part.
//!
//! ```text
//!   |  .. -1 | raw buffer ..      | length | compressed buffer .. |  .. -1 | raw ..
//!   0        64                  n*64                             m*64     (m+1)*64
//! ```

use std::ops::Range;
use std::sync::Arc;

use arrow::buffer::Buffer;
use terrace_model::Result;

use super::{Compression, Encoding, corrupt};
use crate::io::{AlignedBuffer, BufferPool};
use crate::table::SegmentHome;

/// Bytes of the length before a buffer.
pub(super) const LENGTH_BYTES: u64 = 8;
/// The length of a buffer that is stored raw.
pub(super) const RAW: i64 = -1;
/// Most bytes that a column may have after decompression: a larger length is damage.
const MOST_BYTES: u64 = 1 << 36;

/// Layout of the buffers of a column in the file when one of them is compressed. The layout of the home has their offsets
/// after decompression.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Compressed {
    /// The compression of the compressed ones.
    pub compression: Compression,
    /// Bytes of a value where values are narrower than the declared type, else 0.
    pub width: u8,
    /// (offset from the start of the home, bytes) of each buffer with the length before it, in Arrow's order; no bytes for
    /// an empty buffer.
    pub buffers: Vec<(u64, u64)>,
}

impl Encoding {
    /// The compression of the compressed buffers; `None` when no buffer is compressed.
    pub fn compression(&self) -> Option<Compression> {
        self.compressed().map(|compressed| compressed.compression)
    }

    pub(super) fn compressed(&self) -> Option<&Compressed> {
        match self {
            Self::Compressed(compressed) => Some(compressed),
            Self::Dictionary(encoding) => encoding.compressed.as_ref(),
            _ => None,
        }
    }

    /// For each buffer at `home`, whose encoding this is, true when it is compressed. A packed column has no buffer.
    pub(super) fn compressed_buffers(&self, home: &SegmentHome) -> Vec<bool> {
        if self.is_packed() {
            return Vec::new();
        }
        let raw = &home.layout.buffers;
        let Some(compressed) = self.compressed() else { return vec![false; raw.len()] };
        // A buffer that would not shrink is never compressed, so a shorter one is compressed.
        let shorter = |((_, stored), (_, raw)): (&(u64, u64), &(u64, u64))| *stored > 0 && *stored < raw + LENGTH_BYTES;
        compressed.buffers.iter().zip(raw).map(shorter).collect()
    }
}

/// Bytes of memory that decoding takes beside the stored bytes: the image of a compressed column, else 0.
pub fn decompressed_bytes(home: &SegmentHome) -> u64 {
    home.encoding.compressed().map_or(0, |_| image_bytes(home))
}

/// Bytes of a column's image in memory in the plain form: the stored bytes without compression, or unpacked.
pub fn image_bytes(home: &SegmentHome) -> u64 {
    home.layout.buffers.iter().map(|(offset, len)| offset.saturating_add(*len)).max().unwrap_or(0)
}

/// Decompresses the bytes stored at a home to an image, in the form of the home: `stored` itself where no buffer is compressed, else
/// memory of `pool`, with the layout of the home. Fails with [`terrace_model::Error::Corrupt`], without the path, when `stored` is not a compressed column.
pub fn decompressed(home: &SegmentHome, stored: Buffer, pool: &Arc<BufferPool>) -> Result<Buffer> {
    let Some(compressed) = home.encoding.compressed() else { return Ok(stored) };
    let end = image_bytes(home);
    // Check the length before memory is allocated for it: no compression has a higher ratio.
    let most = stored.len() as u64 * compressed.compression.max_ratio();
    let bytes = usize::try_from(end).ok().filter(|_| end <= most.min(MOST_BYTES));
    let bytes = bytes.ok_or_else(|| corrupt(format!("{} bytes cannot decompress to {end}", stored.len())))?;
    let buffers = stored_buffers(home, compressed, &stored)?;
    let mut memory = AlignedBuffer::zeroed(pool, bytes)?;
    let to = memory.window_mut();
    for StoredBuffer { from, at, is_compressed } in buffers {
        let to = to.get_mut(at).ok_or_else(|| corrupt("a buffer lies outside its column"))?;
        match is_compressed {
            true => compressed.compression.decompress(from, to)?,
            false => to.copy_from_slice(from),
        }
    }
    Ok(memory.into_arrow(None))
}

/// The stored bytes of a buffer, and its range in the image.
struct StoredBuffer<'a> {
    from: &'a [u8],
    at: Range<usize>,
    is_compressed: bool,
}

/// The buffers that are not empty. Fails when the length before a buffer differs from the layout's.
fn stored_buffers<'a>(home: &SegmentHome, compressed: &Compressed, stored: &'a [u8]) -> Result<Vec<StoredBuffer<'a>>> {
    if compressed.buffers.len() != home.layout.buffers.len() {
        return Err(corrupt("the number of its buffers differs from its layout"));
    }
    let buffers = compressed.buffers.iter().zip(&home.layout.buffers);
    let stored_buffer = |((from, stored_len), (at, len)): (&(u64, u64), &(u64, u64))| {
        let outside = || corrupt(format!("a buffer of {stored_len} bytes at {from} lies outside the column"));
        let from = range(*from, *stored_len).and_then(|range| stored.get(range)).ok_or_else(outside)?;
        let at = range(*at, *len).ok_or_else(outside)?;
        let (length, from) = from.split_first_chunk().ok_or_else(outside)?;
        match i64::from_le_bytes(*length) {
            RAW if from.len() == at.len() => Ok(StoredBuffer { from, at, is_compressed: false }),
            length if u64::try_from(length) == Ok(*len) => Ok(StoredBuffer { from, at, is_compressed: true }),
            length => Err(corrupt(format!("a buffer of {len} bytes declares a length of {length}"))),
        }
    };
    buffers.filter(|((_, stored_len), (_, len))| *stored_len > 0 || *len > 0).map(stored_buffer).collect()
}

fn range(offset: u64, len: u64) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(usize::try_from(len).ok()?)?)
}
