//! Descriptors of pages.

use std::ops::Range;

use terrace_model::Result;

use super::super::corrupt;
use super::image::Image;
use super::lanes::{Lanes, lanes_bytes};

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 48;

/// A page: how its rows are stored, and the bounds of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Page {
    /// The least value.
    pub(super) base: i128,
    /// A divisor of the distances of all values from the base; at least 1.
    pub(super) stride: u64,
    /// Strides of the greatest value above the base.
    pub(super) most_strides: u64,
    /// Place in the image.
    pub(super) offset: u64,
    /// Number of runs; 0: a number for each row.
    pub(super) runs: u16,
    /// Bits of a number.
    pub(super) bits: u8,
    /// Bits of the length of a run.
    pub(super) length_bits: u8,
    /// True when all rows are null.
    pub(super) is_empty: bool,
}

impl Page {
    /// Bytes of the page when it has `rows` rows.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        match usize::from(self.runs) {
            0 => lanes_bytes(rows, self.bits),
            runs => lanes_bytes(runs, self.bits) + lanes_bytes(runs, self.length_bits),
        }
    }

    /// The least and the greatest value; `None` when all rows are null.
    pub(super) fn bounds(&self) -> Option<(i128, i128)> {
        (!self.is_empty).then(|| (self.base, self.at(self.most_strides)))
    }

    /// The value of a number of strides.
    #[inline]
    pub(super) fn at(&self, strides: u64) -> i128 {
        self.base.wrapping_add(i128::from(strides.wrapping_mul(self.stride)))
    }

    /// The numbers of the rows or runs, and the lengths of the runs.
    pub(super) fn lanes<'a>(&self, image: &'a Image, rows: usize) -> Result<(Lanes<'a>, Lanes<'a>)> {
        let count = if self.runs > 0 { usize::from(self.runs) } else { rows };
        let numbers = lanes_bytes(count, self.bits);
        let range = self.range(rows).ok_or_else(outside)?;
        let (numbers, lengths) =
            image.get(range).and_then(|page| page.split_at_checked(numbers)).ok_or_else(outside)?;
        Ok((Lanes { bits: self.bits, bytes: numbers }, Lanes { bits: self.length_bits, bytes: lengths }))
    }

    /// Its place in the image.
    pub(super) fn range(&self, rows: usize) -> Option<Range<usize>> {
        let start = usize::try_from(self.offset).ok()?;
        Some(start..start.checked_add(self.bytes(rows))?)
    }

    pub(super) fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.base.to_le_bytes());
        for number in [self.stride, self.most_strides, self.offset] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&self.runs.to_le_bytes());
        to.extend_from_slice(&[self.bits, self.length_bits, self.is_empty.into(), 0, 0, 0]);
    }

    /// Reads a descriptor; its numbers are not checked.
    pub(super) fn read(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let (numbers, _) = bytes.as_chunks::<8>();
        let [low, high, stride, most_strides, offset, rest] = *numbers else { return Self::default() };
        let [runs_low, runs_high, bits, length_bits, is_empty, ..] = rest;
        let [stride, most_strides, offset] = [stride, most_strides, offset].map(u64::from_le_bytes);
        Self {
            base: i128::from(i64::from_le_bytes(high)) << 64 | i128::from(u64::from_le_bytes(low)),
            stride,
            most_strides,
            offset,
            runs: u16::from_le_bytes([runs_low, runs_high]),
            bits,
            length_bits,
            is_empty: is_empty != 0,
        }
    }
}

fn outside() -> terrace_model::Error {
    corrupt("a page lies outside the packed column")
}
