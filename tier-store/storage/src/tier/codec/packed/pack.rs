//! Packs columns of numbers.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};

use super::super::PAGE_ROWS;
use super::lanes::{bits_of, lanes_bytes, pack_lanes};
use super::page::{DESCRIPTOR_BYTES, Page};
use super::{ALIGNMENT, HEADER_BYTES, MAGIC};

/// Runs take at most this share of the bytes of a number for each row, as they take longer to unpack.
const MOST_RUNS_SHARE: f64 = 0.75;

/// The image of a column of numbers; `None` where it has none: its type is not one of integers, decimals of up to 128 bits, dates,
/// times, keys of a dictionary, or the values of a page range over more than 64 bits.
pub(super) fn pack(values: &ArrayRef) -> Option<Vec<u8>> {
    with_numbers(&values.to_data(), Packer { writes: true }).map(|(image, _)| image)
}

/// Bytes of the image that [`pack`] makes.
pub(super) fn packed_bytes(values: &ArrayRef) -> Option<u64> {
    with_numbers(&values.to_data(), Packer { writes: false }).map(|(_, bytes)| bytes)
}

/// The column with the values under nulls that a packed one has: of the row before in its page, or else the least of the page.
/// So the same bytes are made again of a packed column.
pub fn with_filled_nulls(values: ArrayRef) -> ArrayRef {
    if values.null_count() == 0 {
        return values;
    }
    let data = values.to_data();
    let Some(filled) = with_numbers(&data, NullFiller) else { return values };
    let others = data.buffers().iter().skip(1).cloned();
    let nulls = data.nulls().cloned();
    let buffers = std::iter::once(filled).chain(others).collect();
    let column = data.into_builder().offset(0).nulls(nulls).buffers(buffers).build();
    column.map_or(values, make_array)
}

/// A number as a column stores it.
trait Number: ArrowNativeType + Ord {
    fn wide(self) -> i128;
    /// The distance from a smaller number, modulo 2^64.
    fn above(self, base: Self) -> u64;
}

macro_rules! numbers {
    ($($number:ty: $unsigned:ty),*) => { $(impl Number for $number {
        #[inline]
        fn wide(self) -> i128 {
            self.into()
        }

        #[inline]
        fn above(self, base: Self) -> u64 {
            self.wrapping_sub(base) as $unsigned as u64
        }
    })* };
}
numbers!(i8: u8, i16: u16, i32: u32, i64: u64, i128: u128, u8: u8, u16: u16, u32: u32);

impl Number for u64 {
    #[inline]
    fn wide(self) -> i128 {
        self.into()
    }

    #[inline]
    fn above(self, base: Self) -> u64 {
        self.wrapping_sub(base)
    }
}

/// True when the values under nulls are those of [`with_filled_nulls`].
pub fn has_filled_nulls(values: &ArrayRef) -> bool {
    values.null_count() == 0 || with_filled_nulls(Arc::clone(values)).to_data().buffers() == values.to_data().buffers()
}

/// What is done with the numbers of a column.
trait Work {
    type Output;
    fn run<N: Number>(&self, values: &[N], validity: Option<&NullBuffer>) -> Option<Self::Output>;
}

/// Works on the numbers of a column by their type.
fn with_numbers<W: Work>(data: &ArrayData, work: W) -> Option<W::Output> {
    use DataType as D;
    let number_type = match data.data_type() {
        D::Dictionary(key, _) => key,
        other => other,
    };
    match number_type {
        D::Int8 => run::<i8, W>(data, work),
        D::Int16 => run::<i16, W>(data, work),
        D::Int32 | D::Date32 | D::Time32(_) | D::Decimal32(..) => run::<i32, W>(data, work),
        D::Int64 | D::Date64 | D::Time64(_) | D::Timestamp(..) | D::Duration(_) | D::Decimal64(..) => {
            run::<i64, W>(data, work)
        }
        D::Decimal128(..) => run::<i128, W>(data, work),
        D::UInt8 => run::<u8, W>(data, work),
        D::UInt16 => run::<u16, W>(data, work),
        D::UInt32 => run::<u32, W>(data, work),
        D::UInt64 => run::<u64, W>(data, work),
        _ => None,
    }
}

fn run<N: Number, W: Work>(data: &ArrayData, work: W) -> Option<W::Output> {
    let values = data.buffer::<N>(0).get(..data.len())?;
    work.run(values, data.nulls().filter(|nulls| nulls.null_count() > 0))
}

/// Fills the numbers under nulls.
struct NullFiller;

impl Work for NullFiller {
    type Output = Buffer;

    fn run<N: Number>(&self, values: &[N], validity: Option<&NullBuffer>) -> Option<Buffer> {
        let validity = validity?;
        let mut filled = values.to_vec();
        for (number, page) in filled.chunks_mut(PAGE_ROWS).enumerate() {
            let valid = validity.slice(number * PAGE_ROWS, page.len());
            let least = valid.valid_indices().filter_map(|row| page.get(row)).min().copied();
            let mut last = least.unwrap_or_default();
            for (value, is_valid) in page.iter_mut().zip(&valid) {
                last = if is_valid { *value } else { last };
                *value = last;
            }
        }
        Some(Buffer::from_vec(filled))
    }
}

/// Packs columns, or computes how many bytes that would give.
struct Packer {
    writes: bool,
}

impl Work for Packer {
    type Output = (Vec<u8>, u64);

    fn run<N: Number>(&self, values: &[N], validity: Option<&NullBuffer>) -> Option<(Vec<u8>, u64)> {
        let rows = values.len();
        let pages = rows.div_ceil(PAGE_ROWS);
        let descriptors = (HEADER_BYTES + validity.map_or(0, |_| rows.div_ceil(8))).next_multiple_of(ALIGNMENT);
        let mut end = descriptors + pages * DESCRIPTOR_BYTES;
        let first = end.next_multiple_of(ALIGNMENT);
        let mut distances = Distances::default();
        let mut described = Vec::with_capacity(pages);
        let mut blocks = Vec::new();
        for (number, values) in values.chunks(PAGE_ROWS).enumerate() {
            let valid = validity.map(|nulls| nulls.slice(number * PAGE_ROWS, values.len()));
            let mut page = distances.measure(values, valid.as_ref().filter(|valid| valid.null_count() > 0))?;
            let bytes = page.bytes(values.len());
            if bytes > 0 {
                end = end.next_multiple_of(ALIGNMENT);
                page.offset = end as u64;
                end += bytes;
            }
            if self.writes {
                blocks.resize(blocks.len() + (page.offset as usize).saturating_sub(first + blocks.len()), 0);
                distances.write(&page, &mut blocks);
                described.push(page);
            }
        }
        if !self.writes {
            return Some((Vec::new(), end as u64));
        }
        let mut image = Vec::with_capacity(first + blocks.len());
        image.extend_from_slice(&MAGIC);
        for number in [rows, validity.map_or(0, |nulls| nulls.null_count()), size_of::<N>()] {
            image.extend_from_slice(&(number as u32).to_le_bytes());
        }
        image.extend_from_slice(&(end as u64).to_le_bytes());
        image.resize(HEADER_BYTES, 0);
        if let Some(nulls) = validity {
            image.extend_from_slice(&nulls.inner().sliced());
        }
        image.resize(descriptors, 0);
        described.iter().for_each(|page| page.write(&mut image));
        if !blocks.is_empty() {
            image.resize(first, 0);
            image.extend_from_slice(&blocks);
        }
        Some((image, end as u64))
    }
}

/// The distances of the values of a page from its base.
#[derive(Default)]
struct Distances(Vec<u64>);

impl Distances {
    /// Computes them, and how the page is stored. A null row has the distance of the row before it. `None` when they exceed
    /// 64 bits.
    fn measure<N: Number>(&mut self, values: &[N], validity: Option<&NullBuffer>) -> Option<Page> {
        self.0.clear();
        let bounds = match validity {
            None => bounds(values.iter().copied()),
            Some(valid) => bounds(valid.valid_indices().filter_map(|row| values.get(row)).copied()),
        };
        let Some((base, greatest)) = bounds else {
            self.0.resize(values.len(), 0);
            return Some(Page { stride: 1, is_empty: true, ..Page::default() });
        };
        let most = u64::try_from(greatest.wide().checked_sub(base.wide())?).ok()?;
        match validity {
            None => self.0.extend(values.iter().map(|value| value.above(base))),
            Some(valid) => {
                let mut last = 0;
                self.0.extend(values.iter().zip(valid.iter()).map(|(value, is_valid)| {
                    last = if is_valid { value.above(base) } else { last };
                    last
                }));
            }
        }
        let stride = self.stride();
        let most_strides = most / stride;
        let page = Page { base: base.wide(), stride, most_strides, bits: bits_of(most_strides), ..Page::default() };
        Some(self.with_runs(page))
    }

    /// The greatest common divisor of the distances; 1 when all are 0.
    fn stride(&self) -> u64 {
        let mut stride = 0;
        for distance in &self.0 {
            if stride == 0 || !distance.is_multiple_of(stride) {
                stride = gcd(stride, *distance);
                if stride == 1 {
                    break;
                }
            }
        }
        stride.max(1)
    }

    /// The page with runs, if that is smaller.
    fn with_runs(&self, page: Page) -> Page {
        let mut last = None;
        let mut runs = 0;
        for distance in &self.0 {
            runs += usize::from(last != Some(*distance));
            last = Some(*distance);
        }
        let plain = page.bytes(self.0.len());
        // Not even lengths of one bit would be small enough.
        if plain == 0 || too_many(lanes_bytes(runs, page.bits + 1), plain) {
            return page;
        }
        let longest = self.runs().map(|(length, _)| length).max().unwrap_or(0);
        let runs = Page { runs: runs as u16, length_bits: bits_of(longest as u64), ..page };
        if too_many(runs.bytes(self.0.len()), plain) { page } else { runs }
    }

    /// Length and distance of each run.
    fn runs(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.chunk_by(|a, b| a == b).map(|run| (run.len(), run.first().copied().unwrap_or(0)))
    }

    fn write(&self, page: &Page, to: &mut Vec<u8>) {
        if page.runs > 0 {
            pack_lanes(self.runs().map(|(_, distance)| distance / page.stride), page.bits, to);
            pack_lanes(self.runs().map(|(length, _)| length as u64), page.length_bits, to);
        } else if page.stride > 1 {
            pack_lanes(self.0.iter().map(|distance| distance / page.stride), page.bits, to);
        } else {
            pack_lanes(self.0.iter().copied(), page.bits, to);
        }
    }
}

/// The least and the greatest number.
fn bounds<N: Number>(mut numbers: impl Iterator<Item = N>) -> Option<(N, N)> {
    let first = numbers.next()?;
    Some(numbers.fold((first, first), |(least, greatest), number| (least.min(number), greatest.max(number))))
}

fn too_many(runs: usize, plain: usize) -> bool {
    runs as f64 > plain as f64 * MOST_RUNS_SHARE
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
