//! Tests packed numbers for a range of values as they lie: values are neither widened nor written.

use std::ops::{Range, RangeInclusive};

use arrow::array::{BooleanArray, BooleanBufferBuilder};
use terrace_model::Result;

use super::super::corrupt;
use super::lanes::{Lane, Lanes, with_lane};
use super::page::Page;
use super::unpack::{PackedNumbers, run_lengths};

impl PackedNumbers {
    /// For each of a range of rows, whether its value is in a range; null for null. Decimals are unscaled, dates and times
    /// have the unit of their type.
    pub fn within(&self, rows: Range<usize>, values: &RangeInclusive<i128>) -> Result<BooleanArray> {
        let mut bits = BooleanBufferBuilder::new(rows.len());
        self.for_each_page(&rows, |page, page_rows, wanted| {
            match page.numbers_within(values) {
                _ if self.image().lacks(page.range(page_rows)) => bits.append_n(wanted.len(), false),
                Passed::Nothing => bits.append_n(wanted.len(), false),
                Passed::All => bits.append_n(wanted.len(), true),
                Passed::Numbers(numbers) => {
                    let (stored, lengths) = page.lanes(self.image(), page_rows)?;
                    match usize::from(page.runs) {
                        0 => append_flags(&flags(&stored, wanted, &numbers)?, &mut bits),
                        runs => {
                            let flags = flags(&stored, 0..runs, &numbers)?;
                            append_runs(&flags, run_lengths(&lengths, runs)?, &wanted, &mut bits)?;
                        }
                    }
                }
            }
            Ok(())
        })?;
        Ok(BooleanArray::new(bits.finish(), self.nulls_of(&rows)))
    }
}

/// The numbers of a page whose values are in a range.
enum Passed {
    Nothing,
    All,
    Numbers(RangeInclusive<u64>),
}

impl Page {
    fn numbers_within(&self, values: &RangeInclusive<i128>) -> Passed {
        let stride = i128::from(self.stride);
        // Rounded towards the inside of the range.
        let first = values.start().saturating_sub(self.base).max(0);
        let first = first / stride + i128::from(first % stride > 0);
        let last = values.end().saturating_sub(self.base).div_euclid(stride).min(self.most_strides.into());
        match (u64::try_from(first), u64::try_from(last)) {
            _ if self.is_empty || first > last => Passed::Nothing,
            (Ok(0), Ok(last)) if last == self.most_strides => Passed::All,
            (Ok(first), Ok(last)) => Passed::Numbers(first..=last),
            _ => Passed::Nothing,
        }
    }
}

/// 1 for each number that is in a range, else 0.
fn flags(stored: &Lanes<'_>, rows: Range<usize>, numbers: &RangeInclusive<u64>) -> Result<Vec<u8>> {
    let mut flags = Vec::with_capacity(rows.len());
    with_lane!(stored.bits, T => {
        let first = T::from_number(*numbers.start());
        let span = T::from_number(numbers.end() - numbers.start());
        stored.append(rows, &mut flags, |number: T| u8::from(number.is_within(first, span)))
    })?;
    Ok(flags)
}

fn append_flags(flags: &[u8], bits: &mut BooleanBufferBuilder) {
    let (eights, rest) = flags.as_chunks::<8>();
    let mut packed: Vec<u8> = eights.iter().map(|eight| packed(*eight)).collect();
    let mut last = [0; 8];
    last.iter_mut().zip(rest).for_each(|(place, flag)| *place = *flag);
    packed.push(self::packed(last));
    bits.append_packed_range(0..flags.len(), &packed);
}

/// Packs eight bytes of 0 or 1 into bits: the product has byte k at bit 56 + k, and no carry reaches that bit.
fn packed(flags: [u8; 8]) -> u8 {
    (u64::from_le_bytes(flags).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Appends the flag of its run for each wanted row.
fn append_runs(flags: &[u8], lengths: Vec<u16>, wanted: &Range<usize>, bits: &mut BooleanBufferBuilder) -> Result<()> {
    let mut row = 0;
    let end = bits.len() + wanted.len();
    for (flag, length) in flags.iter().zip(lengths) {
        let run = row..row + usize::from(length);
        row = run.end;
        let inside = run.start.max(wanted.start)..run.end.min(wanted.end);
        bits.append_n(inside.len(), *flag != 0);
    }
    if bits.len() == end { Ok(()) } else { Err(corrupt("the runs of a page end before its rows")) }
}
