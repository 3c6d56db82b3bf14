//! Tests packed numbers as they lie: whether they are in a range, among some values, or pass a filter. Values are neither
//! widened nor written.
//!
//! A range and a list become numbers of strides, once for each page. Pages that lie inside or outside are decided by their
//! bounds, runs once for each run.

use std::ops::{Range, RangeInclusive};

use arrow::array::{BooleanArray, BooleanBufferBuilder};
use arrow::datatypes::DataType;
use terrace_model::Result;

use super::super::corrupt;
use super::lanes::{Lane, Lanes, with_lane};
use super::number_set::NumberSet;
use super::page::Page;
use super::unpack::{PackedNumbers, run_lengths};

/// Numbers that are compared with one by one.
const FEW_NUMBERS: usize = 4;
/// Bits of the table that tests more of them: as many entries as a page has rows.
const TABLE_BITS: u8 = 13;

/// A test of whole numbers that is no range and no list.
pub trait NumberFilter {
    /// False when no value of a range passes; may be true without such a value.
    fn any_in(&self, values: &RangeInclusive<i64>) -> bool;
    /// True when a value passes.
    fn passes(&self, value: i64) -> bool;
}

impl PackedNumbers {
    /// For each of a range of rows, whether its value is in a range; null for null. Decimals are unscaled, dates and times
    /// have the unit of their type.
    pub fn within(&self, rows: Range<usize>, values: &RangeInclusive<i128>) -> Result<BooleanArray> {
        self.test_pages(
            rows,
            |page| page.numbers_within(values),
            |_, stored, rows, numbers| flags(stored, rows, numbers),
        )
    }

    /// For each of a range of rows, whether its value is one of `values`; null for null. The values are as those of
    /// [`PackedNumbers::within`].
    pub fn among(&self, rows: Range<usize>, values: &NumberSet) -> Result<BooleanArray> {
        let test = |page: &Page| match values.in_page(page) {
            Passed::Numbers(numbers) => match (numbers.first(), numbers.last()) {
                // Numbers without a gap are a range.
                (Some(first), Some(last)) if last - first == numbers.len() as u64 - 1 => {
                    Passed::Numbers(Listed::Range(*first..=*last))
                }
                _ => Passed::Numbers(Listed::List(numbers)),
            },
            Passed::All => Passed::All,
            Passed::Nothing => Passed::Nothing,
        };
        self.test_pages(rows, test, |_, stored, rows, numbers| match numbers {
            Listed::Range(numbers) => flags(stored, rows, numbers),
            Listed::List(numbers) => list_flags(stored, rows, numbers),
        })
    }

    /// For each of a range of rows, whether its value passes a filter; null for null. `None` for types other than signed
    /// integers and days.
    pub fn filtered<F: NumberFilter>(&self, rows: Range<usize>, filter: &F) -> Option<Result<BooleanArray>> {
        use DataType as D;
        if !matches!(self.data_type(), D::Int8 | D::Int16 | D::Int32 | D::Int64 | D::Date32) {
            return None;
        }
        let test = |page: &Page| {
            let bounds =
                page.bounds().map(|(least, most)| Some((i64::try_from(least).ok()?, i64::try_from(most).ok()?)));
            match bounds {
                None => Passed::Nothing,
                Some(Some((least, most))) if !filter.any_in(&(least..=most)) => Passed::Nothing,
                Some(Some((least, most))) if least == most => match filter.passes(least) {
                    true => Passed::All,
                    false => Passed::Nothing,
                },
                Some(_) => Passed::Numbers(()),
            }
        };
        Some(self.test_pages(rows, test, |page, stored, rows, _| filter_flags(page, stored, rows, filter)))
    }

    /// For each of a range of rows, whether its value passes; null for null. `test` says which numbers of a page pass, `flags`
    /// tests some of its numbers for them: 1 or 0 for each.
    fn test_pages<N>(
        &self,
        rows: Range<usize>,
        test: impl Fn(&Page) -> Passed<N>,
        flags: impl Fn(&Page, &Lanes<'_>, Range<usize>, &N) -> Result<Vec<u8>>,
    ) -> Result<BooleanArray> {
        let mut bits = BooleanBufferBuilder::new(rows.len());
        self.for_each_page(&rows, |page, page_rows, wanted| {
            match test(page) {
                _ if self.image().lacks(page.range(page_rows)) => bits.append_n(wanted.len(), false),
                Passed::Nothing => bits.append_n(wanted.len(), false),
                Passed::All => bits.append_n(wanted.len(), true),
                Passed::Numbers(numbers) => {
                    let (stored, lengths) = page.lanes(self.image(), page_rows)?;
                    match usize::from(page.runs) {
                        0 => append_flags(&flags(page, &stored, wanted, &numbers)?, &mut bits),
                        runs => {
                            let flags = flags(page, &stored, 0..runs, &numbers)?;
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

/// The numbers of a page whose values pass.
pub(super) enum Passed<N> {
    /// None.
    Nothing,
    /// All.
    All,
    /// These.
    Numbers(N),
}

/// The numbers of a page that are among some values.
enum Listed {
    Range(RangeInclusive<u64>),
    /// Ascending.
    List(Vec<u64>),
}

impl Page {
    fn numbers_within(&self, values: &RangeInclusive<i128>) -> Passed<RangeInclusive<u64>> {
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

/// 1 for each number that is one of `numbers`, which ascend, else 0.
fn list_flags(stored: &Lanes<'_>, rows: Range<usize>, numbers: &[u64]) -> Result<Vec<u8>> {
    with_lane!(stored.bits, T => list_flags_as::<T>(stored, rows, numbers))
}

fn list_flags_as<T: Lane>(stored: &Lanes<'_>, rows: Range<usize>, numbers: &[u64]) -> Result<Vec<u8>> {
    let mut flags = Vec::with_capacity(rows.len());
    if numbers.len() <= FEW_NUMBERS {
        // The first one stands in the places that are left.
        let number = |at: usize| numbers.get(at).or(numbers.first()).copied().unwrap_or_default();
        let few: [T; FEW_NUMBERS] = std::array::from_fn(|at| T::from_number(number(at)));
        stored
            .append(rows, &mut flags, |number: T| few.iter().fold(0, |found, one| found | u8::from(number == *one)))?;
        return Ok(flags);
    }
    // By the low bits of a number; these are all of a narrow one.
    let bits = stored.bits.min(TABLE_BITS);
    let is_exact = bits == stored.bits;
    let mask = (1_usize << bits) - 1;
    let mut table = vec![0_u8; 1 << bits];
    for number in numbers {
        if let Some(place) = table.get_mut(*number as usize & mask) {
            *place = 1;
        }
    }
    stored.append(rows, &mut flags, |number: T| {
        let number = Into::<u64>::into(number);
        let found = table.get(number as usize & mask).copied().unwrap_or(0);
        if is_exact || found == 0 { found } else { u8::from(numbers.binary_search(&number).is_ok()) }
    })?;
    Ok(flags)
}

/// 1 for each number whose value passes a filter, else 0.
fn filter_flags<F: NumberFilter>(page: &Page, stored: &Lanes<'_>, rows: Range<usize>, filter: &F) -> Result<Vec<u8>> {
    with_lane!(stored.bits, T => filter_flags_as::<T, F>(page, stored, rows, filter))
}

fn filter_flags_as<T: Lane, F: NumberFilter>(
    page: &Page,
    stored: &Lanes<'_>,
    rows: Range<usize>,
    filter: &F,
) -> Result<Vec<u8>> {
    let mut flags = Vec::with_capacity(rows.len());
    // Arithmetic modulo the width of the type, as where the values are unpacked.
    let base = page.base as i64;
    let stride = page.stride as i64;
    stored.append(rows, &mut flags, |number: T| {
        let distance = (Into::<u64>::into(number) as i64).wrapping_mul(stride);
        u8::from(filter.passes(base.wrapping_add(distance)))
    })?;
    Ok(flags)
}

pub(super) fn append_flags(flags: &[u8], bits: &mut BooleanBufferBuilder) {
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
