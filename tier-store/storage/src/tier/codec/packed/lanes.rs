//! Blocks of 1,024 numbers in the FastLanes layout, by the `fastlanes` crate, which leaves the lengths to its caller.

use std::ops::Range;

use arrow::datatypes::{ArrowNativeType, ToByteSlice};
use fastlanes::BitPacking;
use terrace_model::Result;

use super::super::convert::append_values;
use super::super::corrupt;

/// Numbers in a block.
pub(super) const BLOCK_ROWS: usize = 1024;
/// Up to so many numbers of a block are unpacked one by one.
const FEW_ROWS: usize = 16;

/// An unsigned integer whose lanes hold the bits of a block: the narrowest that holds a number.
pub(super) trait Lane: BitPacking + ArrowNativeType + Into<u64> {
    /// The number, of which the type holds all bits.
    fn from_number(number: u64) -> Self;
}

macro_rules! lanes {
    ($($lane:ty)*) => { $(impl Lane for $lane {
        fn from_number(number: u64) -> Self {
            number as Self
        }
    })* };
}
lanes!(u8 u16 u32 u64);

/// Evaluates an expression with the lane type for numbers of so many bits.
macro_rules! with_lane {
    ($bits:expr, $lane:ident => $body:expr) => {
        match $bits {
            0..=8 => {
                type $lane = u8;
                $body
            }
            9..=16 => {
                type $lane = u16;
                $body
            }
            17..=32 => {
                type $lane = u32;
                $body
            }
            _ => {
                type $lane = u64;
                $body
            }
        }
    };
}
pub(super) use with_lane;

/// Bytes of `count` numbers of `bits` bits: whole blocks.
pub(super) fn lanes_bytes(count: usize, bits: u8) -> usize {
    count.div_ceil(BLOCK_ROWS) * block_bytes(bits)
}

fn block_bytes(bits: u8) -> usize {
    BLOCK_ROWS / 8 * usize::from(bits)
}

/// Appends the blocks of numbers, each of at most `bits` bits.
pub(super) fn pack_lanes(numbers: impl Iterator<Item = u64>, bits: u8, to: &mut Vec<u8>) {
    with_lane!(bits, T => pack_as::<T>(numbers, bits, to));
}

fn pack_as<T: Lane>(mut numbers: impl Iterator<Item = u64>, bits: u8, to: &mut Vec<u8>) {
    let words = block_bytes(bits) / size_of::<T>();
    let mut block = [T::from_number(0); BLOCK_ROWS];
    let mut packed = [T::from_number(0); BLOCK_ROWS];
    while bits > 0 {
        let mut filled = 0;
        for (place, number) in block.iter_mut().zip(&mut numbers) {
            *place = T::from_number(number);
            filled += 1;
        }
        let Some(words) = packed.get_mut(..words).filter(|_| filled > 0) else { return };
        block.iter_mut().skip(filled).for_each(|place| *place = T::from_number(0));
        // SAFETY: the block has 1,024 numbers, and there are 1,024 * `bits` / (bits of T) words.
        unsafe { T::unchecked_pack(usize::from(bits), &block, words) };
        to.extend_from_slice(ToByteSlice::to_byte_slice(&*words));
        if filled < BLOCK_ROWS {
            return;
        }
    }
}

/// Packed numbers of one width.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes<'a> {
    /// Bits of a number.
    pub(super) bits: u8,
    /// Whole blocks.
    pub(super) bytes: &'a [u8],
}

impl Lanes<'_> {
    /// Appends `value` of each number of a range. `T` is the lane type for its bits.
    pub(super) fn append<T: Lane, N: Clone>(
        &self,
        range: Range<usize>,
        to: &mut Vec<N>,
        value: impl Fn(T) -> N + Copy,
    ) -> Result<()> {
        if self.bits == 0 {
            to.resize(to.len() + range.len(), value(T::from_number(0)));
            return Ok(());
        }
        let mut unpacked = [T::from_number(0); BLOCK_ROWS];
        let mut row = range.start;
        while row < range.end {
            let block = row / BLOCK_ROWS;
            let rows = row % BLOCK_ROWS..BLOCK_ROWS.min(range.end - block * BLOCK_ROWS);
            row += rows.len();
            let words = self.words::<T>(block)?;
            let bits = usize::from(self.bits);
            if rows.len() <= FEW_ROWS {
                // SAFETY: `words` has the words of a block.
                to.extend(rows.map(|row| value(unsafe { T::unchecked_unpack_single(bits, words, row) })));
                continue;
            }
            // SAFETY: `words` has the words of a block, and there is room for 1,024 numbers.
            unsafe { T::unchecked_unpack(bits, words, &mut unpacked) };
            append_values(unpacked.get(rows).unwrap_or_default(), to, value);
        }
        Ok(())
    }

    /// The words of a block.
    fn words<T: Lane>(&self, block: usize) -> Result<&[T]> {
        let len = block_bytes(self.bits);
        let bytes = self.bytes.get(block * len..).and_then(|bytes| bytes.get(..len));
        let bytes = bytes.ok_or_else(|| corrupt("a block lies outside its page"))?;
        // SAFETY: any bytes are a number.
        match unsafe { bytes.align_to::<T>() } {
            ([], words, []) if usize::from(self.bits) <= size_of::<T>() * 8 => Ok(words),
            _ => Err(corrupt("a block is not aligned")),
        }
    }
}
