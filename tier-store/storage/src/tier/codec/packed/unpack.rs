//! Unpacks rows of packed columns.

use std::ops::Range;

use arrow::array::{ArrayData, ArrayRef, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::DataType;
use terrace_model::Result;

use super::super::convert::{Halves, buffer_of_halves};
use super::super::{PAGE_ROWS, corrupt};
use super::header::Header;
use super::image::Image;
use super::lanes::{BLOCK_ROWS, Lane, Lanes, with_lane};
use super::page::{DESCRIPTOR_BYTES, Page};
use super::{ALIGNMENT, MAGIC, PageTable};

/// Most bits of the length of a run.
const MOST_LENGTH_BITS: u8 = 14;
/// Copies of its value that are written for every run.
const RUN_STEP: usize = 8;

/// A column of numbers in the packed form.
#[derive(Debug, Clone)]
pub struct PackedNumbers {
    image: Image,
    data_type: DataType,
    rows: usize,
    nulls: Option<NullBuffer>,
    descriptors: usize,
}

impl PackedNumbers {
    /// A column of `rows` values of type `data_type` over an image. Fails with [`terrace_model::Error::Corrupt`], without the
    /// path, when the image is not one of such a column: then its pages lie inside of it, whatever else it holds.
    pub(super) fn open(image: Image, data_type: &DataType, rows: usize) -> Result<Self> {
        let Header { width, nulls, end: descriptors } = Header::read(&image, MAGIC, rows)?;
        if data_type.primitive_width() != Some(width as usize) {
            return Err(corrupt(format!("it has values of {width} bytes, not of type {data_type}")));
        }
        if image.head().len() < descriptors + rows.div_ceil(PAGE_ROWS) * DESCRIPTOR_BYTES {
            return Err(corrupt("it ends before its pages"));
        }
        let column = Self { image, data_type: data_type.clone(), rows, nulls, descriptors };
        for (number, page) in column.pages().enumerate() {
            column.check_page(number, &page)?;
        }
        Ok(column)
    }

    fn check_page(&self, number: usize, page: &Page) -> Result<()> {
        let bits = self.data_type.primitive_width().unwrap_or(0).min(8) * 8;
        let rows = self.page_rows(number).len();
        let fits = usize::from(page.bits) <= bits
            && page.length_bits <= MOST_LENGTH_BITS
            && (page.runs > 0) == (page.length_bits > 0)
            && usize::from(page.runs) <= rows
            && page.offset.is_multiple_of(ALIGNMENT as u64)
            && page.stride > 0
            && page.most_strides.checked_mul(page.stride).is_some();
        let inside = page.bytes(rows) == 0 || page.range(rows).is_some_and(|range| range.end <= self.image.len());
        if fits && inside { Ok(()) } else { Err(corrupt(format!("page {number} is not one of a packed column"))) }
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The type of the values.
    #[inline]
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// The least and the greatest value of each page; `None` for a page of nulls. Decimals are unscaled, dates and times have
    /// the unit of their type.
    pub fn bounds(&self) -> impl Iterator<Item = Option<(i128, i128)>> {
        self.pages().map(|page| page.bounds())
    }

    fn pages(&self) -> impl Iterator<Item = Page> {
        (0..self.rows.div_ceil(PAGE_ROWS)).map(|number| self.page(number))
    }

    fn page(&self, number: usize) -> Page {
        let start = self.descriptors + number * DESCRIPTOR_BYTES;
        let bytes = self.image.get(start..start + DESCRIPTOR_BYTES).and_then(|bytes| bytes.first_chunk());
        bytes.map(Page::read).unwrap_or_default()
    }

    /// Where its pages lie.
    pub(super) fn page_table(&self) -> PageTable {
        let pages = self.pages().enumerate().map(|(number, page)| {
            let bytes = page.bytes(self.page_rows(number).len()) as u64;
            (if bytes > 0 { page.offset } else { 0 }, bytes)
        });
        PageTable {
            head_bytes: (self.descriptors + self.rows.div_ceil(PAGE_ROWS) * DESCRIPTOR_BYTES) as u64,
            pages: pages.collect(),
        }
    }

    /// Number of nulls.
    pub(super) fn null_count(&self) -> usize {
        self.nulls.as_ref().map_or(0, NullBuffer::null_count)
    }

    /// The rows of a page.
    fn page_rows(&self, number: usize) -> Range<usize> {
        number * PAGE_ROWS..self.rows.min((number + 1) * PAGE_ROWS)
    }

    /// The values of a range of rows.
    pub fn unpack(&self, rows: Range<usize>) -> Result<ArrayRef> {
        self.unpack_as(rows, &self.data_type)
    }

    /// The values of a range of rows, in a type of at least as many bytes and the same unit and scale.
    pub fn unpack_as(&self, rows: Range<usize>, to: &DataType) -> Result<ArrayRef> {
        let values = match to.primitive_width() {
            Some(1) => self.numbers::<i8>(&rows).map(Buffer::from_vec),
            Some(2) => self.numbers::<i16>(&rows).map(Buffer::from_vec),
            Some(4) => self.numbers::<i32>(&rows).map(Buffer::from_vec),
            Some(8) => self.numbers::<i64>(&rows).map(Buffer::from_vec),
            Some(16) => self.numbers::<Halves>(&rows).map(buffer_of_halves),
            _ => Err(corrupt(format!("values of type {to} cannot be packed"))),
        }?;
        let array = ArrayData::builder(to.clone()).len(rows.len()).nulls(self.nulls_of(&rows)).add_buffer(values);
        Ok(make_array(array.build()?))
    }

    fn numbers<N: Target>(&self, rows: &Range<usize>) -> Result<Vec<N>> {
        let mut to = Vec::with_capacity(rows.len() + RUN_STEP);
        self.for_each_page(rows, |page, page_rows, wanted| {
            if self.image.lacks(page.range(page_rows)) {
                to.resize(to.len() + wanted.len(), N::default());
                return Ok(());
            }
            with_lane!(page.bits, T => N::append_rows::<T>(&self.image, page, page_rows, wanted, &mut to))
        })?;
        Ok(to)
    }

    /// Calls `visit` with each page of a range of rows, the number of its rows, and the wanted ones of these.
    pub(super) fn for_each_page(
        &self,
        rows: &Range<usize>,
        mut visit: impl FnMut(&Page, usize, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        if rows.end > self.rows {
            return Err(corrupt(format!("rows {rows:?} of a column of {} rows", self.rows)));
        }
        let mut row = rows.start;
        while row < rows.end {
            let number = row / PAGE_ROWS;
            let of_page = self.page_rows(number);
            let end = of_page.end.min(rows.end);
            visit(&self.page(number), of_page.len(), row - of_page.start..end - of_page.start)?;
            row = end;
        }
        Ok(())
    }

    /// The nulls of a range of rows; `None` without any.
    pub(super) fn nulls_of(&self, rows: &Range<usize>) -> Option<NullBuffer> {
        let nulls = self.nulls.as_ref()?.slice(rows.start, rows.len());
        Some(nulls).filter(|nulls| nulls.null_count() > 0)
    }

    pub(super) fn image(&self) -> &Image {
        &self.image
    }
}

/// A value as it is unpacked: a signed integer of 8 to 64 bits, which stands for an unsigned one too, or 128 bits.
trait Target: Copy + Default {
    /// Appends rows of a page of `rows` rows.
    fn append_rows<T: Lane>(
        image: &Image,
        page: &Page,
        rows: usize,
        wanted: Range<usize>,
        to: &mut Vec<Self>,
    ) -> Result<()>;
}

macro_rules! targets {
    ($($target:ty)*) => { $(impl Target for $target {
        fn append_rows<T: Lane>(image: &Image, page: &Page, rows: usize, wanted: Range<usize>, to: &mut Vec<Self>) -> Result<()> {
            // Arithmetic modulo the width of the type: whatever an image holds, there is no overflow.
            let base = page.base as $target;
            let stride = page.stride as $target;
            let source = Source { image, page, rows };
            match stride {
                1 => source.append(wanted, to, |number: T| base.wrapping_add(number.into() as $target)),
                _ => source.append(wanted, to, |number: T| {
                    base.wrapping_add((number.into() as $target).wrapping_mul(stride))
                }),
            }
        }
    })* };
}
targets!(i8 i16 i32 i64);

impl Target for Halves {
    fn append_rows<T: Lane>(
        image: &Image,
        page: &Page,
        rows: usize,
        wanted: Range<usize>,
        to: &mut Vec<Self>,
    ) -> Result<()> {
        let source = Source { image, page, rows };
        let greatest = page.at(page.most_strides);
        match (i64::try_from(page.base), i64::try_from(greatest), page.stride) {
            (Ok(base), Ok(_), 1) => {
                source.append(wanted, to, |number: T| Self::from_i64(base.wrapping_add(number.into() as i64)))
            }
            (Ok(base), Ok(_), stride) => source.append(wanted, to, |number: T| {
                Self::from_i64(base.wrapping_add((number.into() as i64).wrapping_mul(stride as i64)))
            }),
            _ => source.append(wanted, to, |number: T| Self::from_i128(page.at(number.into()))),
        }
    }
}

/// A page of an image.
struct Source<'a> {
    image: &'a Image,
    page: &'a Page,
    rows: usize,
}

impl Source<'_> {
    /// Appends `value` of the number of each wanted row.
    fn append<T: Lane, N: Copy + Default>(
        &self,
        wanted: Range<usize>,
        to: &mut Vec<N>,
        value: impl Fn(T) -> N + Copy,
    ) -> Result<()> {
        let (numbers, lengths) = self.page.lanes(self.image, self.rows)?;
        if self.page.runs == 0 {
            return numbers.append(wanted, to, value);
        }
        let runs = usize::from(self.page.runs);
        let mut values = Vec::with_capacity(runs);
        numbers.append(0..runs, &mut values, value)?;
        let run_lengths = run_lengths(&lengths, runs)?;
        let mut row = 0;
        let mut at = to.len();
        let end = at + wanted.len();
        // A run may be written beyond the wanted rows, to be cut off again.
        to.resize(end + RUN_STEP, N::default());
        for (length, value) in run_lengths.into_iter().zip(values) {
            let run = row..row + usize::from(length);
            row = run.end;
            if run.end <= wanted.start {
                continue;
            }
            let count = run.end.min(wanted.end) - run.start.max(wanted.start);
            match to.get_mut(at..at + count.max(RUN_STEP)) {
                Some(places) if count <= RUN_STEP => places.fill(value),
                _ => to.get_mut(at..at + count).unwrap_or_default().fill(value),
            }
            at += count;
            if row >= wanted.end {
                break;
            }
        }
        to.truncate(end);
        if at == end { Ok(()) } else { Err(corrupt("the runs of a page end before its rows")) }
    }
}

/// The lengths of the runs of a page.
pub(super) fn run_lengths(lengths: &Lanes<'_>, runs: usize) -> Result<Vec<u16>> {
    fn append<T: Lane>(lengths: &Lanes<'_>, runs: usize, to: &mut Vec<u16>) -> Result<()> {
        lengths.append(0..runs, to, |length: T| Into::<u64>::into(length) as u16)
    }
    let mut unpacked = Vec::with_capacity(runs);
    with_lane!(lengths.bits, T => append::<T>(lengths, runs, &mut unpacked))?;
    Ok(unpacked)
}

// Lanes are read in place, so a page's blocks are aligned as the widest of them.
const _: () = assert!(ALIGNMENT.is_multiple_of(size_of::<u64>()) && PAGE_ROWS.is_multiple_of(BLOCK_ROWS));
