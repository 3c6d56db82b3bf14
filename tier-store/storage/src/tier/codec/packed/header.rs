//! Headers of images: what images of numbers and of texts have in common.

use arrow::buffer::{BooleanBuffer, NullBuffer};
use terrace_model::{Error, Result};

use super::super::corrupt;
use super::image::Image;
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
    /// the path, when the image is another one, was cut short, or lies at an address that is not aligned, and with
    /// [`Error::Unsupported`] when a later version of Terrace made it.
    pub(super) fn read(image: &Image, magic: [u8; 4], rows: usize) -> Result<Self> {
        let head = image.head();
        let header = head.first_chunk::<HEADER_BYTES>().ok_or_else(|| corrupt("it is not a packed column"))?;
        if !header.starts_with(&magic) {
            return Err(other_magic(header, magic));
        }
        let (numbers, _) = header.as_chunks::<4>();
        let [_, in_rows, nulls, width, low, high, ..] = *numbers else { return Err(corrupt("its header is short")) };
        let [in_rows, nulls, width, low, high] = [in_rows, nulls, width, low, high].map(u32::from_le_bytes);
        if in_rows as usize != rows {
            return Err(corrupt(format!("it has {in_rows} rows, not {rows}")));
        }
        let bytes = u64::from(high) << 32 | u64::from(low);
        if bytes != image.len() as u64 || !(head.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return Err(corrupt(format!("it has {} bytes, not {bytes}, or lies at an odd address", image.len())));
        }
        let validity = if nulls > 0 { rows.div_ceil(8) } else { 0 };
        let end = (HEADER_BYTES + validity).next_multiple_of(ALIGNMENT);
        if head.len() < HEADER_BYTES + validity {
            return Err(corrupt("it ends before its pages"));
        }
        let found = (nulls > 0).then(|| {
            let bits = head.slice_with_length(HEADER_BYTES, validity);
            NullBuffer::new(BooleanBuffer::new(bits, 0, rows))
        });
        if found.as_ref().map_or(0, NullBuffer::null_count) != nulls as usize {
            return Err(corrupt("the number of its nulls is another one"));
        }
        Ok(Self { width, nulls: found, end })
    }
}

/// The error for an image that begins with other bytes than `magic`, whose last one is the version of the form.
fn other_magic(header: &[u8; HEADER_BYTES], magic: [u8; 4]) -> Error {
    let [a, b, c, version] = magic;
    match header {
        [x, y, z, found, ..] if [*x, *y, *z] == [a, b, c] && *found > version && found.is_ascii_digit() => {
            let found = char::from(*found);
            let version = char::from(version);
            Error::Unsupported(format!("version {found} of its packed form; this build reads version {version}"))
        }
        _ => corrupt("it is not a packed column"),
    }
}
