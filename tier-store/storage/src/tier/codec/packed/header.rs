//! Headers of images: what images of numbers and of texts have in common.

use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use terrace_model::Result;

use super::super::corrupt;
use super::{ALIGNMENT, HEADER_BYTES};

/// The header of an image.
#[derive(Debug)]
pub(super) struct Header {
    /// Bytes of a value of an image of numbers.
    pub(super) width: u32,
    /// The nulls; `None` without any.
    pub(super) nulls: Option<NullBuffer>,
    /// Where the part after the validity begins.
    pub(super) end: usize,
}

impl Header {
    /// Reads the header of an image of `rows` rows that begins with `magic`. Fails with [`terrace_model::Error::Corrupt`], without
    /// the path, when the image is another one, was cut short, or lies at an address that is not aligned.
    pub(super) fn read(image: &Buffer, magic: [u8; 4], rows: usize) -> Result<Self> {
        let header = image.first_chunk::<HEADER_BYTES>().filter(|header| header.starts_with(&magic));
        let header = header.ok_or_else(|| corrupt("it is not a packed column"))?;
        let (numbers, _) = header.as_chunks::<4>();
        let [_, in_rows, nulls, width, low, high, ..] = *numbers else { return Err(corrupt("its header is short")) };
        let [in_rows, nulls, width, low, high] = [in_rows, nulls, width, low, high].map(u32::from_le_bytes);
        if in_rows as usize != rows {
            return Err(corrupt(format!("it has {in_rows} rows, not {rows}")));
        }
        let bytes = u64::from(high) << 32 | u64::from(low);
        if bytes != image.len() as u64 || !(image.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return Err(corrupt(format!("it has {} bytes, not {bytes}, or lies at an odd address", image.len())));
        }
        let validity = if nulls > 0 { rows.div_ceil(8) } else { 0 };
        let end = (HEADER_BYTES + validity).next_multiple_of(ALIGNMENT);
        if image.len() < HEADER_BYTES + validity {
            return Err(corrupt("it ends before its pages"));
        }
        let found = (nulls > 0).then(|| {
            let bits = image.slice_with_length(HEADER_BYTES, validity);
            NullBuffer::new(BooleanBuffer::new(bits, 0, rows))
        });
        if found.as_ref().map_or(0, NullBuffer::null_count) != nulls as usize {
            return Err(corrupt("the number of its nulls is another one"));
        }
        Ok(Self { width, nulls: found, end })
    }
}
