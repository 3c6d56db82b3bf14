//! Columns in the memory of a device.
//!
//! The values of a column are integers: integers, decimals, dates, times, keys of a dictionary. They lie as Arrow has
//! them, or packed: per page of 8,192 rows a base and a number of bits, in the FastLanes layout for 32 lanes (Afroozeh
//! and Boncz, "The FastLanes Compression Layout", PVLDB 16(9), 2023, section 3), in blocks of 1,024 rows.

use std::ops::RangeInclusive;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout::{self, FORM_PACKED, LANES, PAGE_ROWS, TILE_ROWS};
use crate::memory::DeviceMemory;

/// Type of the values of a column that is not packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// 8 bits, signed.
    I8,
    /// 8 bits.
    U8,
    /// 16 bits, signed.
    I16,
    /// 16 bits.
    U16,
    /// 32 bits, signed.
    I32,
    /// 32 bits.
    U32,
    /// 64 bits, signed.
    I64,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 7] = [Self::I8, Self::U8, Self::I16, Self::U16, Self::I32, Self::U32, Self::I64];

    /// Bytes of a value.
    pub fn width(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 => 4,
            Self::I64 => 8,
        }
    }

    /// The values that the form can hold.
    pub fn range(self) -> RangeInclusive<i64> {
        match self {
            Self::I8 => i8::MIN.into()..=i8::MAX.into(),
            Self::U8 => 0..=u8::MAX.into(),
            Self::I16 => i16::MIN.into()..=i16::MAX.into(),
            Self::U16 => 0..=u16::MAX.into(),
            Self::I32 => i32::MIN.into()..=i32::MAX.into(),
            Self::U32 => 0..=u32::MAX.into(),
            Self::I64 => i64::MIN..=i64::MAX,
        }
    }

    /// Appends the bytes of a value, which must be in [`Form::range`].
    pub fn write(self, value: i64, to: &mut Vec<u8>) {
        to.extend_from_slice(&value.to_le_bytes()[..self.width()]);
    }
}

/// A page of a packed column: `value = base + bits` above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    base: i64,
    bits: u32,
    first_word: u32,
}

/// Packed values of a column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packed {
    rows: usize,
    pages: Vec<Page>,
    words: Vec<u32>,
}

impl Packed {
    /// Packs values; values of null rows do not matter, but they cost bits. `None` if a page's values differ by 2^32 or
    /// more, or the words exceed 16 GiB.
    pub fn new(values: &[i64]) -> Option<Self> {
        let mut packed = Self { rows: values.len(), ..Self::default() };
        for page in values.chunks(PAGE_ROWS as usize) {
            let (base, greatest) = (*page.iter().min()?, *page.iter().max()?);
            let span = u32::try_from(greatest.checked_sub(base)?).ok()?;
            let bits = u32::BITS - span.leading_zeros();
            let first_word = u32::try_from(packed.words.len()).ok()?;
            packed.pages.push(Page { base, bits, first_word });
            for block in page.chunks(TILE_ROWS as usize) {
                let start = packed.words.len();
                packed.words.resize(start + (bits * LANES) as usize, 0);
                let place = |row: u32, lane: u32| (octet_start(row / 8) + row % 8 * 128 + lane) as usize;
                for (row, lane) in (0..32).flat_map(|row| (0..LANES).map(move |lane| (row, lane))) {
                    let Some(value) = block.get(place(row, lane)) else { continue };
                    let number = (value - base) as u64;
                    let (word, shift) = (row * bits / 32, row * bits % 32);
                    let pair = number << shift;
                    let at = start + (word * LANES + lane) as usize;
                    if bits > 0 {
                        packed.words[at] |= pair as u32;
                    }
                    if pair >> 32 != 0 {
                        packed.words[at + LANES as usize] |= (pair >> 32) as u32;
                    }
                }
            }
        }
        Some(packed)
    }

    /// Bytes of the words and the pages.
    pub fn bytes(&self) -> usize {
        self.words.len() * 4 + self.pages.len() * 16
    }

    /// The words of a block of 1,024 rows of a page, and its number of bits.
    #[cfg(test)]
    pub(crate) fn block(&self, page: usize, block: usize) -> (&[u32], u32) {
        let Page { bits, first_word, .. } = self.pages[page];
        let start = first_word as usize + block * (bits * LANES) as usize;
        (&self.words[start..start + (bits * LANES) as usize], bits)
    }
}

/// Place in a block of the first of 8 rows that a lane has in sequence, in the order of the FastLanes layout.
fn octet_start(octet: u32) -> u32 {
    (octet & 1) * 64 + (octet & 2) * 16
}

/// The range of a column without values.
pub const NO_VALUES: RangeInclusive<i64> = RangeInclusive::new(0, -1);

/// Values of a column in the host's memory.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// As Arrow has them, little-endian.
    Plain(Form, &'a [u8]),
    /// Packed.
    Packed(&'a Packed),
}

/// A column in the host's memory.
#[derive(Debug, Clone)]
pub struct ColumnData<'a> {
    /// Number of rows.
    pub rows: u32,
    /// Their values.
    pub values: Values<'a>,
    /// Arrow's bitmap from its first bit on; `None`: no row is null.
    pub validity: Option<&'a [u8]>,
    /// Lower and upper bound of the values of rows that are not null. A sum of values outside of them may be wrong.
    pub range: RangeInclusive<i64>,
}

/// A column in the memory of a device.
#[derive(Debug)]
pub struct DeviceColumn {
    memory: DeviceMemory,
    form: u32,
    rows: u32,
    range: RangeInclusive<i64>,
    validity: Option<u64>,
    pages: Option<u64>,
}

/// Appends `bytes`, padded with zeros to the alignment of every section.
pub(crate) fn append_section(to: &mut Vec<u8>, bytes: &[u8]) -> u64 {
    let start = to.len();
    to.extend_from_slice(bytes);
    to.resize(to.len().next_multiple_of(16), 0);
    start as u64
}

impl DeviceColumn {
    /// Copies a column to a device.
    pub fn upload(device: &dyn Device, data: &ColumnData<'_>) -> Result<Self> {
        let rows = data.rows as usize;
        let mut rest = Vec::new();
        let (form, values, pages) = match data.values {
            Values::Plain(form, bytes) => {
                let needed = rows * form.width();
                let values = bytes.get(..needed).ok_or_else(|| short("values", bytes.len(), needed))?;
                (form as u32, values.to_vec(), None)
            }
            Values::Packed(packed) => {
                if packed.rows < rows {
                    return Err(short("packed values", packed.rows, rows));
                }
                let mut pages = Vec::new();
                for Page { base, bits, first_word } in &packed.pages {
                    pages.extend_from_slice(&base.to_le_bytes());
                    pages.extend_from_slice(&bits.to_le_bytes());
                    pages.extend_from_slice(&first_word.to_le_bytes());
                }
                // The kernels read up to two words of each lane more than there are.
                let words =
                    packed.words.iter().chain(&[0; 2 * LANES as usize]).flat_map(|word| word.to_le_bytes()).collect();
                (FORM_PACKED, words, Some(append_section(&mut rest, &pages)))
            }
        };
        let mut validity = None;
        if let Some(bitmap) = data.validity {
            let needed = rows.div_ceil(8);
            let bitmap = bitmap.get(..needed).ok_or_else(|| short("validity", bitmap.len(), needed))?;
            validity = Some(append_section(&mut rest, bitmap));
        }
        let start = values.len().next_multiple_of(16) as u64;
        let mut memory = device.allocate((start + rest.len() as u64).max(16))?;
        device.upload(&values, &mut memory, 0)?;
        device.upload(&rest, &mut memory, start)?;
        let section = |offset: u64| start + offset;
        let (validity, pages) = (validity.map(section), pages.map(section));
        let range = if data.range.is_empty() { NO_VALUES } else { data.range.clone() };
        Ok(Self { memory, form, rows: data.rows, range, validity, pages })
    }

    /// Number of rows.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Bounds of the values of rows that are not null.
    pub fn range(&self) -> RangeInclusive<i64> {
        self.range.clone()
    }

    /// True when rows may be null.
    pub fn is_nullable(&self) -> bool {
        self.validity.is_some()
    }

    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// What the kernels read; `codes` is the address and number of the codes of a dictionary's keys.
    pub(crate) fn layout(&self, codes: Option<(u64, u32)>) -> layout::Column {
        let place = |offset: Option<u64>| offset.map_or(0, |offset| self.memory.address() + offset);
        layout::Column {
            values: self.memory.address(),
            validity: place(self.validity),
            pages: place(self.pages),
            codes: codes.map_or(0, |(address, _)| address),
            form: self.form,
            keys: codes.map_or(0, |(_, keys)| keys),
        }
    }
}

fn short(what: &str, found: usize, needed: usize) -> Error {
    Error::Invalid(format!("the {what} of a column are too short: {found} instead of {needed}"))
}
