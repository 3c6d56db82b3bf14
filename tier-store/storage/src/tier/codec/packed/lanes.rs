//! Blocks of 1,024 numbers in the FastLanes layout.
//!
//! A block is a matrix of words: `bits` rows of 1,024 / (bits of a word) lanes. The numbers of a lane lie in its words one
//! after the other; in the block, lane 0 has numbers 0, 128, 256 ..., so that the lanes of a row are neighbours there too. So
//! unpacking is the same shift of neighbouring words to neighbouring numbers, which compilers turn into vectors, and what is
//! done with a number is part of the loop: it never lies in memory. Words are as wide as the width of numbers allows, from 8
//! to 64 bits. (The crate `fastlanes` has the same layout, but its functions are compiled for the oldest processors, and
//! write the numbers; tests compare with it.)

use std::mem::MaybeUninit;
use std::ops::Range;

use arrow::datatypes::{ArrowNativeType, ToByteSlice};
use terrace_model::Result;

use super::super::corrupt;

/// Numbers in a block.
pub(super) const BLOCK_ROWS: usize = 1024;
/// Up to so many numbers of a block are unpacked one by one.
const FEW_ROWS: usize = 16;
/// The order of groups of eight rows of words. It is its own inverse.
const ORDER: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];

/// A block of values.
type Block<N> = [MaybeUninit<N>; BLOCK_ROWS];

/// A word of a block: an unsigned integer of 8 to 64 bits.
pub(super) trait Lane: ArrowNativeType + Into<u64> {
    /// Words in a row.
    const LANES: usize;

    fn from_number(number: u64) -> Self;
    /// True from `first` on, up to `span` above it.
    fn is_within(self, first: Self, span: Self) -> bool;
    /// Packs a block to `bits` rows of words, which are 0.
    fn pack_block(block: &[Self; BLOCK_ROWS], bits: usize, words: &mut [Self]);
    /// Unpacks number `at` of a block.
    fn unpack_one(words: &[Self], bits: usize, at: usize) -> Self;
    /// Writes `value` of each number of a block. `words` has `bits` rows, at least one.
    fn unpack_block<N>(words: &[Self], bits: usize, to: &mut Block<N>, value: impl Fn(Self) -> N);
}

/// The number in its block that row `row` of the numbers begins with.
#[inline(always)]
fn row_start(row: usize) -> usize {
    ORDER[row / 8 % 8] * 16 + row % 8 * 128
}

macro_rules! lanes {
    ($($word:ty)*) => { $(impl Lane for $word {
        const LANES: usize = BLOCK_ROWS / <$word>::BITS as usize;

        fn from_number(number: u64) -> Self {
            number as Self
        }

        #[inline(always)]
        fn is_within(self, first: Self, span: Self) -> bool {
            self.wrapping_sub(first) <= span
        }

        fn pack_block(block: &[Self; BLOCK_ROWS], bits: usize, words: &mut [Self]) {
            const WIDTH: usize = <$word>::BITS as usize;
            for row in 0..WIDTH {
                let (word, shift) = (row * bits / WIDTH, row * bits % WIDTH);
                let numbers = &block[row_start(row)..][..Self::LANES];
                for (lane, number) in numbers.iter().enumerate() {
                    words[word * Self::LANES + lane] |= number << shift;
                    if shift + bits > WIDTH {
                        words[(word + 1) * Self::LANES + lane] |= number >> (WIDTH - shift);
                    }
                }
            }
        }

        #[inline]
        fn unpack_one(words: &[Self], bits: usize, at: usize) -> Self {
            const WIDTH: usize = <$word>::BITS as usize;
            let in_row = at % 128;
            let lane = in_row % Self::LANES;
            let row = ORDER[in_row / 16 - lane / 16] * 8 + at / 128;
            let (word, shift) = (row * bits / WIDTH, row * bits % WIDTH);
            let mut number = words[word * Self::LANES + lane] >> shift;
            if shift + bits > WIDTH {
                number |= words[(word + 1) * Self::LANES + lane] << (WIDTH - shift);
            }
            number & (Self::MAX >> (WIDTH - bits))
        }

        #[inline(always)]
        fn unpack_block<N>(words: &[Self], bits: usize, to: &mut Block<N>, value: impl Fn(Self) -> N) {
            const WIDTH: usize = <$word>::BITS as usize;
            const LANES: usize = <$word>::LANES;
            let mask = Self::MAX >> (WIDTH - bits);
            let (rows, _) = words.as_chunks::<LANES>();
            for row in 0..WIDTH {
                let (word, shift) = (row * bits / WIDTH, row * bits % WIDTH);
                let start = row_start(row);
                let to = &mut to[start..start + LANES];
                let low = &rows[word];
                if shift + bits <= WIDTH {
                    for lane in 0..LANES {
                        to[lane].write(value(low[lane] >> shift & mask));
                    }
                } else {
                    let high = &rows[word + 1];
                    for lane in 0..LANES {
                        to[lane].write(value((low[lane] >> shift | high[lane] << (WIDTH - shift)) & mask));
                    }
                }
            }
        }
    })* };
}
lanes!(u8 u16 u32 u64);

/// Unpacks a block in a loop that is compiled for this processor.
fn unpack<T: Lane, N>(words: &[T], bits: usize, to: &mut Block<N>, value: impl Fn(T) -> N) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, for which the function is compiled.
        return unsafe { unpack_avx2(words, bits, to, value) };
    }
    T::unpack_block(words, bits, to, value);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn unpack_avx2<T: Lane, N>(words: &[T], bits: usize, to: &mut Block<N>, value: impl Fn(T) -> N) {
    T::unpack_block(words, bits, to, value);
}

/// Evaluates an expression with the type of the words for numbers of so many bits.
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

/// Bits of a number.
pub(super) fn bits_of(number: u64) -> u8 {
    (u64::BITS - number.leading_zeros()) as u8
}

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
    let mut words = vec![T::from_number(0); block_bytes(bits) / size_of::<T>()];
    let mut filled = BLOCK_ROWS;
    while bits > 0 && filled == BLOCK_ROWS {
        let mut block = [T::from_number(0); BLOCK_ROWS];
        filled = 0;
        for (place, number) in block.iter_mut().zip(&mut numbers) {
            *place = T::from_number(number);
            filled += 1;
        }
        if filled > 0 {
            words.fill(T::from_number(0));
            T::pack_block(&block, usize::from(bits), &mut words);
            to.extend_from_slice(words.to_byte_slice());
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
    /// Appends `value` of each number of a range. `T` is the type of the words for its bits.
    pub(super) fn append<T: Lane, N: Copy>(
        &self,
        range: Range<usize>,
        to: &mut Vec<N>,
        value: impl Fn(T) -> N + Copy,
    ) -> Result<()> {
        if self.bits == 0 {
            to.resize(to.len() + range.len(), value(T::from_number(0)));
            return Ok(());
        }
        to.reserve(range.len());
        let bits = usize::from(self.bits);
        let mut row = range.start;
        while row < range.end {
            let block = row / BLOCK_ROWS;
            let rows = row % BLOCK_ROWS..BLOCK_ROWS.min(range.end - block * BLOCK_ROWS);
            row += rows.len();
            let words = self.words::<T>(block)?;
            if rows.len() <= FEW_ROWS {
                to.extend(rows.map(|row| value(T::unpack_one(words, bits, row))));
            } else if let (BLOCK_ROWS, Some(place)) = (rows.len(), to.spare_capacity_mut().first_chunk_mut()) {
                unpack(words, bits, place, value);
                let len = to.len() + BLOCK_ROWS;
                // SAFETY: all values of the block were written behind the others.
                unsafe { to.set_len(len) };
            } else {
                let mut unpacked: Block<N> = [MaybeUninit::uninit(); BLOCK_ROWS];
                unpack(words, bits, &mut unpacked, value);
                // SAFETY: all values of the block were written.
                to.extend(unpacked.get(rows).unwrap_or_default().iter().map(|value| unsafe { value.assume_init() }));
            }
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

#[cfg(test)]
mod tests {
    use fastlanes::BitPacking;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Every width of every word, against the crate `fastlanes`.
    fn check<T: Lane + BitPacking>() {
        let rng = &mut StdRng::seed_from_u64(size_of::<T>() as u64);
        for bits in 1..=size_of::<T>() * 8 {
            let block: [T; BLOCK_ROWS] =
                std::array::from_fn(|_| T::from_number(rng.random::<u64>() >> (64 - bits) as u32));
            let mut words = vec![T::from_number(0); bits * <T as Lane>::LANES];
            T::pack_block(&block, bits, &mut words);
            let mut expected = vec![T::from_number(0); bits * <T as Lane>::LANES];
            // SAFETY: the block has 1,024 numbers, and there are `bits` rows of words.
            unsafe { <T as BitPacking>::unchecked_pack(bits, &block, &mut expected) };
            assert_eq!(words, expected, "{bits} bits");
            let lanes = Lanes { bits: bits as u8, bytes: words.to_byte_slice() };
            let mut unpacked = Vec::new();
            lanes.append(0..BLOCK_ROWS, &mut unpacked, |number: T| number).ok();
            lanes.append(5..900, &mut unpacked, |number: T| number).ok();
            lanes.append(100..108, &mut unpacked, |number: T| number).ok();
            assert!(unpacked == [&block[..], &block[5..900], &block[100..108]].concat(), "{bits} bits");
            assert!((0..BLOCK_ROWS).all(|at| T::unpack_one(&words, bits, at) == block[at]), "{bits} bits");
            // Without wide registers.
            let mut narrow: Block<T> = [MaybeUninit::uninit(); BLOCK_ROWS];
            T::unpack_block(&words, bits, &mut narrow, |number| number);
            // SAFETY: all values of the block were written.
            assert!(narrow.iter().zip(block).all(|(value, expected)| unsafe { value.assume_init() } == expected));
        }
    }

    #[test]
    fn blocks_have_the_layout_of_fast_lanes() {
        check::<u8>();
        check::<u16>();
        check::<u32>();
        check::<u64>();
    }
}
