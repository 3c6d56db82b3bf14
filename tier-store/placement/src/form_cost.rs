//! What the packed form costs, in memory and in files: the time to unpack what a read touches, and to pack and unpack a copy
//! that moves.
//!
//! A scan takes a copy slice by slice, [`PAGE_ROWS`] rows each. A plain slice is read where it lies, or widened to its
//! declared type; a packed one is unpacked, whole even where one row of it is wanted. Texts are the exception: of a slice in
//! which less than half of the texts are selected, only these are decoded. So the cost of an access follows from the slices
//! that it touches, and that of packed bytes, which are fewer, from the profile of the tier ([`super::cost`]).
//!
//! Heat does not tell comparisons from other sequential reads. Packed numbers are compared without being unpacked, so the
//! packed form costs filters less than is assumed here.

use serde::{Deserialize, Serialize};
use terrace_model::Pattern;
use terrace_storage::tier::codec::PAGE_ROWS;

use super::cost::{Extent, TierCost};
use crate::heat::decay::SegmentHeat;

/// The values of a packed image, by what unpacking them takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedValues {
    /// Numbers, or keys of a dictionary.
    Numbers {
        /// True when the plain image stores them in a narrower type than declared, so that plain slices are widened.
        is_narrow: bool,
    },
    /// Texts, of so many bytes together.
    Texts {
        /// Bytes of all texts.
        bytes: u64,
    },
}

/// Microseconds of a core for values in both forms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FormCost {
    /// To unpack a number of a slice.
    pub unpack_number_us: f64,
    /// To widen a number of a plain slice.
    pub widen_number_us: f64,
    /// To find a text of a packed slice, without its bytes.
    pub find_text_us: f64,
    /// To decode a byte of a packed text.
    pub decode_byte_us: f64,
    /// To pack a number.
    pub pack_number_us: f64,
    /// To pack a byte of text.
    pub pack_byte_us: f64,
}

impl FormCost {
    /// Plausible figures where they cannot be measured: those of one core of an AMD EPYC.
    pub const TYPICAL: Self = Self {
        unpack_number_us: 0.3e-3,
        widen_number_us: 0.2e-3,
        find_text_us: 4e-3,
        decode_byte_us: 0.25e-3,
        pack_number_us: 1e-3,
        pack_byte_us: 4.5e-3,
    };

    /// Microseconds by which the reads in `heat` take longer because `rows` rows are packed, beside the bytes that they
    /// read.
    pub fn unpacking_us(&self, heat: &SegmentHeat, rows: u32, values: PackedValues) -> f64 {
        let lines = Pattern::ALL.into_iter().zip(heat.accesses.iter().zip(heat.values));
        lines
            .filter(|(_, (accesses, _))| **accesses > 0.0)
            .map(|(pattern, (accesses, read))| {
                let accesses = f64::from(*accesses);
                accesses * self.access_us(pattern, f64::from(read) / accesses, rows, values)
            })
            .sum()
    }

    /// Microseconds to make a packed image of a plain one.
    pub fn packing_us(&self, rows: u32, values: PackedValues) -> f64 {
        match values {
            PackedValues::Numbers { .. } => f64::from(rows) * self.pack_number_us,
            PackedValues::Texts { bytes } => bytes as f64 * self.pack_byte_us,
        }
    }

    /// Microseconds to make a plain image of a packed one.
    pub fn plain_again_us(&self, rows: u32, values: PackedValues) -> f64 {
        let rows = f64::from(rows);
        match values {
            PackedValues::Numbers { .. } => rows * self.unpack_number_us,
            PackedValues::Texts { bytes } => rows * self.find_text_us + bytes as f64 * self.decode_byte_us,
        }
    }

    /// Like [`FormCost::unpacking_us`], of one access that reads `read` values.
    fn access_us(&self, pattern: Pattern, read: f64, rows: u32, values: PackedValues) -> f64 {
        let rows = f64::from(rows);
        let unpacked = slices_touched(pattern, read, rows) * slice_rows(rows);
        match values {
            PackedValues::Numbers { is_narrow } => {
                let plain_us = if is_narrow { self.widen_number_us } else { 0.0 };
                unpacked * (self.unpack_number_us - plain_us).max(0.0)
            }
            PackedValues::Texts { bytes } => {
                // A scan leaves out what it does not select; a look-up decodes the slice.
                let is_sparse = pattern == Pattern::Monotonic && 2.0 * read < unpacked;
                let decoded = if is_sparse { read.max(1.0) } else { unpacked };
                let text_bytes = bytes as f64 / rows.max(1.0);
                unpacked * self.find_text_us + decoded * text_bytes * self.decode_byte_us
            }
        }
    }
}

/// Number of slices of a copy of `rows` rows.
fn slices(rows: f64) -> f64 {
    (rows / PAGE_ROWS as f64).ceil().max(1.0)
}

/// Rows of one of them, on average.
fn slice_rows(rows: f64) -> f64 {
    rows / slices(rows)
}

/// Slices that an access to `read` values touches: all, or as many as scattered values lie in (Cardenas 1975).
fn slices_touched(pattern: Pattern, read: f64, rows: f64) -> f64 {
    let slices = slices(rows);
    match pattern {
        Pattern::Sequential => slices,
        Pattern::Monotonic | Pattern::Random | Pattern::Point => {
            slices * (1.0 - (1.0 - 1.0 / slices).powf(read.max(1.0)))
        }
    }
}

/// The cost of reads of a copy at one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceCost {
    cost: TierCost,
    extent: Extent,
    /// The cost of unpacking, and what is unpacked; `None` for plain bytes.
    unpacking: Option<(FormCost, PackedValues)>,
}

impl PlaceCost {
    /// Reads of a plain copy, or of a plain home, of this extent.
    pub(super) fn plain(cost: TierCost, extent: Extent) -> Self {
        Self { cost, extent, unpacking: None }
    }

    /// Reads of a packed copy, or of a packed home, of this extent: a value cannot be read without the slice around it.
    pub(super) fn packed(cost: TierCost, extent: Extent, form_cost: FormCost, values: PackedValues) -> Self {
        let slice_bytes = extent.bytes as f64 / slices(extent.rows.into());
        Self { cost: cost.with_granules_of(slice_bytes as u64), extent, unpacking: Some((form_cost, values)) }
    }

    /// Microseconds of the reads in `heat`.
    pub(super) fn reads_us(&self, heat: &SegmentHeat) -> f64 {
        let tier_us = self.cost.expected_us(heat, self.extent);
        let unpacking_us = |(cost, values): (FormCost, PackedValues)| cost.unpacking_us(heat, self.extent.rows, values);
        tier_us + self.unpacking.map_or(0.0, unpacking_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::builders::{MIB, ROWS, reads, scans};

    const COST: FormCost = FormCost {
        unpack_number_us: 3e-3,
        widen_number_us: 2e-3,
        find_text_us: 5e-3,
        decode_byte_us: 1e-3,
        pack_number_us: 7e-3,
        pack_byte_us: 9e-3,
    };
    const NUMBERS: PackedValues = PackedValues::Numbers { is_narrow: false };
    const NARROW: PackedValues = PackedValues::Numbers { is_narrow: true };
    const TEXTS: PackedValues = PackedValues::Texts { bytes: 10 * ROWS as u64 };

    #[test]
    fn a_scan_unpacks_everything_and_a_look_up_one_slice() {
        let us = |heat: SegmentHeat, values| COST.unpacking_us(&heat, ROWS, values);
        let rows = f64::from(ROWS);
        assert!((us(scans(2.0), NUMBERS) - 2.0 * rows * 3e-3).abs() < 1e-6);
        // Plain slices of narrow numbers are widened, which packed ones are not.
        assert!((us(scans(1.0), NARROW) - rows * 1e-3).abs() < 1e-6);
        assert!((us(scans(1.0), TEXTS) - rows * (5e-3 + 10e-3)).abs() < 1e-6);
        let slice = PAGE_ROWS as f64;
        assert!((us(reads(Pattern::Point, 4.0, 4.0), NUMBERS) - 4.0 * slice * 3e-3).abs() < 1e-6);
        assert!((us(reads(Pattern::Random, 1.0, 1.0), TEXTS) - slice * 15e-3).abs() < 1e-6);
        // Few selected texts of all slices: each is found, few are decoded.
        let few = us(reads(Pattern::Monotonic, 1.0, 1000.0), TEXTS);
        assert!((few - (rows * 5e-3 + 1000.0 * 10e-3)).abs() < 0.1, "{few}");
        let all = us(reads(Pattern::Monotonic, 1.0, ROWS as f32), TEXTS);
        assert!((all - us(scans(1.0), TEXTS)).abs() < 1e-6);
        assert_eq!(us(SegmentHeat::default(), TEXTS), 0.0);
    }

    #[test]
    fn a_copy_is_packed_and_unpacked_as_a_whole() {
        let rows = f64::from(ROWS);
        assert!((COST.packing_us(ROWS, NUMBERS) - rows * 7e-3).abs() < 1e-6);
        assert!((COST.packing_us(ROWS, TEXTS) - rows * 90e-3).abs() < 1e-6);
        assert!((COST.plain_again_us(ROWS, NARROW) - rows * 3e-3).abs() < 1e-6);
        assert!((COST.plain_again_us(ROWS, TEXTS) - rows * 15e-3).abs() < 1e-6);
    }

    #[test]
    fn scans_of_packed_copies_read_fewer_bytes_and_look_ups_more() {
        let tier = TierCost::new(0.0, 0.1, 1_000.0, Some(64));
        let plain = PlaceCost::plain(tier, Extent { bytes: MIB, rows: ROWS, whole: false });
        let free = FormCost { unpack_number_us: 0.0, ..COST };
        let packed = PlaceCost::packed(tier, Extent { bytes: MIB / 4, rows: ROWS, whole: false }, free, NUMBERS);
        assert!((packed.reads_us(&scans(1.0)) - plain.reads_us(&scans(1.0)) / 4.0).abs() < 1e-6);
        let look_up = reads(Pattern::Point, 1.0, 1.0);
        assert!((plain.reads_us(&look_up) - (0.1 + 0.064)).abs() < 1e-9);
        assert!((packed.reads_us(&look_up) - (0.1 + (MIB / 4 / 8) as f64 / 1_000.0)).abs() < 1e-9);
    }
}
