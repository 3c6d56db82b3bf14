//! The stamp of a chunk file: a checksum of the whole file, stored in the file.
//!
//! The checksums of [`crate::table::SegmentHome`] cover the columns and are stored in the catalog. The stamp covers every
//! byte, the file's metadata and padding included, and is stored in the file, so a catalog can be rebuilt from files that
//! are verified without it. It is the entry `terrace.crc32c` of the footer's metadata: crc32c of the file, as eight
//! hexadecimal digits, computed with these digits taken as zeros. A file that holds packed columns has it at its end
//! ([`super::packed_file`]).

use std::sync::LazyLock;

use terrace_model::Result;

use super::encode::footer;
use super::{CHECKSUM_BLOCK_BYTES, corrupt, packed_file};
use crate::table::SegmentHome;

/// Key of the stamp in the footer's metadata.
pub(super) const KEY: &str = "terrace.crc32c";
/// Placeholder for the stamp while it is computed.
pub(super) const BLANK: &str = "00000000";

/// Result of the check of a file's stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// The stamp is right: every byte is as it was written.
    Valid,
    /// The file was written before there were stamps.
    Missing,
}

/// Computes the stamp of a file that was written with a blank one, from the checksums in `homes`, and writes it into the
/// file.
pub(super) fn stamp(file: &mut [u8], homes: &[SegmentHome]) -> Result<()> {
    let at = stamp_offset(file)?.ok_or_else(|| corrupt("its encoder reserved no place for the stamp"))?;
    let digits = format!("{:08x}", checksum_from_blocks(file, at, homes));
    if let Some(target) = file.get_mut(at..at + BLANK.len()) {
        target.copy_from_slice(digits.as_bytes());
    }
    Ok(())
}

/// Compares a file with its stamp; fails with [`terrace_model::Error::Corrupt`], without the path, when they differ.
pub fn check_stamp(file: &[u8]) -> Result<Stamp> {
    if packed_file::is_packed(file) {
        return packed_file::check_stamp(file);
    }
    let Some(at) = stamp_offset(file)? else { return Ok(Stamp::Missing) };
    let expected = format!("{:08x}", checksum(file, at));
    match file.get(at..at + BLANK.len()) {
        Some(found) if found == expected.as_bytes() => Ok(Stamp::Valid),
        _ => Err(corrupt("its stamp (the checksum of the whole file) is wrong")),
    }
}

/// Offset of the digits; `None` for a file whose footer has no metadata.
fn stamp_offset(file: &[u8]) -> Result<Option<usize>> {
    let footer = footer(file)?;
    // Damage may hide the footer's metadata from the parser, so search the file for the bytes of the key too.
    if footer.custom_metadata().is_none() && !file.windows(KEY.len()).any(|bytes| bytes == KEY.as_bytes()) {
        return Ok(None);
    }
    let entry = footer.custom_metadata().and_then(|entries| entries.iter().find(|entry| entry.key() == Some(KEY)));
    let digits = entry.and_then(|entry| entry.value()).filter(|digits| digits.len() == BLANK.len());
    let at = digits.and_then(|digits| (digits.as_ptr() as usize).checked_sub(file.as_ptr() as usize));
    at.map(Some).ok_or_else(|| corrupt("its stamp (the checksum of the whole file) is missing"))
}

fn checksum(file: &[u8], at: usize) -> u32 {
    let (before, rest) = file.split_at(at.min(file.len()));
    let after = rest.get(BLANK.len()..).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), BLANK.as_bytes()), after)
}

/// Like [`checksum`], but computed from the checksums of the columns' blocks and the bytes around them.
fn checksum_from_blocks(file: &[u8], at: usize, homes: &[SegmentHome]) -> u32 {
    let part = |from: usize, to: usize| file.get(from..to).unwrap_or_default();
    let mut sum = 0;
    let mut done = 0;
    for home in homes {
        let start = home.offset as usize;
        let end = (home.offset + home.len) as usize;
        sum = crc32c::crc32c_append(sum, part(done, start));
        for (block, block_sum) in part(start, end).chunks(CHECKSUM_BLOCK_BYTES).zip(&home.checksums) {
            sum = match block.len() {
                CHECKSUM_BLOCK_BYTES => after_zeros(sum) ^ block_sum,
                _ => crc32c::crc32c_append(sum, block),
            };
        }
        done = end;
    }
    sum = crc32c::crc32c_append(sum, part(done, at));
    crc32c::crc32c_append(crc32c::crc32c_append(sum, BLANK.as_bytes()), part(at + BLANK.len(), file.len()))
}

/// The checksum after appending a block of zeros to data with checksum `sum`. It is linear in the bits of `sum` (zlib's
/// `crc32_combine`), so the caller gets the checksum for a real block by adding (XOR) the block's own.
fn after_zeros(sum: u32) -> u32 {
    static OF_BITS: LazyLock<[u32; 32]> =
        LazyLock::new(|| std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, CHECKSUM_BLOCK_BYTES)));
    OF_BITS.iter().enumerate().filter(|(bit, _)| sum >> bit & 1 == 1).fold(0, |all, (_, of_bit)| all ^ of_bit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringViewArray};

    use super::super::encode_chunk;
    use super::*;

    #[test]
    fn checksums_of_blocks_add_up_to_that_of_the_file() {
        for rows in [0, 1, 2047, 2048, 2049, 9000, 65_536] {
            let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values((0..rows).map(|i| i * 70_001)));
            let texts: ArrayRef =
                Arc::new(StringViewArray::from_iter_values((0..rows).map(|i| format!("text no. {i:09}"))));
            let batch = RecordBatch::try_from_iter([("number", numbers), ("text", texts)]).unwrap();
            assert_eq!(check_stamp(&encode_chunk(&batch).unwrap().bytes).unwrap(), Stamp::Valid, "{rows} rows");
        }
    }

    #[test]
    fn a_changed_bit_anywhere_breaks_the_stamp() {
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..100));
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..100).map(|i| format!("text {i}"))));
        let batch = RecordBatch::try_from_iter([("number", numbers), ("text", texts)]).unwrap();
        let mut file = encode_chunk(&batch).unwrap().bytes;
        assert_eq!(check_stamp(&file).unwrap(), Stamp::Valid);
        for at in 0..file.len() {
            file[at] ^= 1 << (at % 8);
            assert!(check_stamp(&file).is_err(), "byte {at} of {}", file.len());
            file[at] ^= 1 << (at % 8);
        }
    }
}
