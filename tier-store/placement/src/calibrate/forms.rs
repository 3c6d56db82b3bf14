//! Measures what packing and unpacking cost a core, on columns like those of tables: numbers of twelve bits, and texts of some
//! words.
//!
//! The columns fit into the caches of a core and are read again and again, slice by slice, through the code of scans: the
//! bytes of a copy in memory are part of the profile of its tier, so they must not be counted here.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, RecordBatch, StringViewArray};
use arrow::buffer::{BooleanBuffer, Buffer};
use terrace_model::clock::Clock;
use terrace_model::{Error, Result};
use terrace_storage::io::AlignedBuffer;
use terrace_storage::tier::codec::{PAGE_ROWS, StoredColumn, encode_chunk, stored_bytes};

use super::random;
use super::timing::median_us;
use crate::form_cost::FormCost;

/// Rows of the column of numbers, and of that of texts: reading one takes many times the clock's grain.
const NUMBER_ROWS: usize = 16 * PAGE_ROWS;
const TEXT_ROWS: usize = 2 * PAGE_ROWS;
/// Alignment of images in memory.
const ALIGNMENT: usize = 64;
/// Numbers are below this one, above a base: their plain image stores them in two bytes of the declared four.
const NUMBERS: u64 = 4096;
/// Words of a text, of those of [`WORDS`].
const TEXT_WORDS: usize = 4;
const WORDS: [&str; 8] = ["carefully ", "final ", "deposits ", "sleep ", "furiously ", "packages ", "the ", "ironic "];

/// The figures of this machine; typical ones where the clock is too coarse.
pub(super) fn measure(clock: &dyn Clock) -> FormCost {
    measured(clock).unwrap_or(FormCost::TYPICAL)
}

fn measured(clock: &dyn Clock) -> Result<FormCost> {
    let numbers = Column::new(numbers())?;
    let texts = texts();
    let bytes = texts.iter().flatten().map(str::len).sum::<usize>() as f64;
    let texts = Column::new(Arc::new(texts))?;
    let per = |us: Result<f64>, count: f64| positive(us? / count);
    let number_rows = NUMBER_ROWS as f64;
    let text_rows = TEXT_ROWS as f64;
    let find_text_us = per(median_us(clock, |_| texts.find()), text_rows)?;
    let texts_us = median_us(clock, |_| read(&texts.packed))?;
    Ok(FormCost {
        unpack_number_us: per(median_us(clock, |_| read(&numbers.packed)), number_rows)?,
        widen_number_us: per(median_us(clock, |_| read(&numbers.plain)), number_rows)?,
        find_text_us,
        decode_byte_us: (texts_us - find_text_us * text_rows).max(0.0) / bytes,
        pack_number_us: per(median_us(clock, |_| numbers.pack()), number_rows)?,
        pack_byte_us: per(median_us(clock, |_| texts.pack()), bytes)?,
    })
}

fn numbers() -> ArrayRef {
    let mut next = random();
    Arc::new(Int32Array::from_iter_values((0..NUMBER_ROWS).map(|_| (next() % NUMBERS) as i32)))
}

fn texts() -> StringViewArray {
    let mut next = random();
    let mut word = move || WORDS.get(next() as usize % WORDS.len()).copied().unwrap_or_default();
    (0..TEXT_ROWS).map(|_| Some((0..TEXT_WORDS).map(|_| word()).collect::<String>())).collect()
}

/// Refuses the time of a clock that has not advanced.
fn positive(us: f64) -> Result<f64> {
    if us > 0.0 { Ok(us) } else { Err(Error::Invalid("the clock is too coarse to measure unpacking".into())) }
}

/// A column in both forms.
struct Column {
    plain: StoredColumn,
    packed: StoredColumn,
}

impl Column {
    fn new(values: ArrayRef) -> Result<Self> {
        let rows = values.len();
        let declared = values.data_type().clone();
        let batch = RecordBatch::try_from_iter([("column", values)])?;
        let encoded = encode_chunk(&batch)?;
        let none = || Error::Invalid("a column has no packed form".into());
        let home = encoded.homes.first().ok_or_else(none)?;
        let stored = stored_bytes(home, &encoded.bytes).ok_or_else(none)?;
        let plain = StoredColumn::decode(home, &declared, rows, &Buffer::from(stored))?;
        let image = AlignedBuffer::copy_of(&plain.packed_image().ok_or_else(none)?, ALIGNMENT)?.into_arrow(None);
        let packed = StoredColumn::open_packed(home, &declared, rows, &image)?;
        Ok(Self { plain, packed })
    }

    /// Reads all slices of the packed form where a single row of each is selected.
    fn find(&self) -> Result<u64> {
        let slice = |first: usize| {
            let selected = BooleanBuffer::collect_bool(PAGE_ROWS, |row| row == 0);
            Ok::<_, Error>(self.packed.slice_selected(first, &selected)?.len() as u64)
        };
        (0..self.packed.rows()).step_by(PAGE_ROWS).map(slice).sum()
    }

    /// Packs the plain form.
    fn pack(&self) -> Result<u64> {
        let image = self.plain.packed_image();
        image.map(|image| image.len() as u64).ok_or_else(|| Error::Invalid("a column has no packed form".into()))
    }
}

/// Reads all slices of a column.
fn read(column: &StoredColumn) -> Result<u64> {
    let slice = |first: usize| Ok::<_, Error>(column.slice(first, PAGE_ROWS)?.len() as u64);
    (0..column.rows()).step_by(PAGE_ROWS).map(slice).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::datatypes::DataType;
    use terrace_model::clock::{ManualClock, SystemClock};

    use super::*;

    #[test]
    fn both_forms_are_measured_and_a_clock_that_stands_still_gives_typical_figures() {
        let cost = measured(&SystemClock::default()).unwrap();
        let FormCost { unpack_number_us, widen_number_us, find_text_us, decode_byte_us, pack_number_us, pack_byte_us } =
            cost;
        let all = [unpack_number_us, widen_number_us, find_text_us, pack_number_us, pack_byte_us];
        // From a hundredth of a nanosecond to a microsecond: the machine may be busy.
        assert!(all.iter().all(|us| (1e-5..1.0).contains(us)) && decode_byte_us < 1.0, "{cost:?}");
        // Training a table of symbols takes longer than decoding with it.
        assert!(pack_byte_us > decode_byte_us, "{cost:?}");
        assert_eq!(measure(&ManualClock::default()), FormCost::TYPICAL);
    }

    #[test]
    fn the_columns_are_packed_and_narrow() {
        let numbers = Column::new(numbers()).unwrap();
        assert_eq!(numbers.plain.stored_values(0, 1).unwrap().data_type(), &DataType::Int16);
        let texts = Column::new(Arc::new(texts())).unwrap();
        assert!(texts.plain.keys(0, 1).is_none(), "they are too many for a dictionary");
        for (column, rows) in [(&numbers, NUMBER_ROWS), (&texts, TEXT_ROWS)] {
            assert_eq!(column.plain.widened().unwrap().as_ref(), column.packed.widened().unwrap().as_ref());
            let read = [read(&column.plain), read(&column.packed), column.find()].map(Result::unwrap);
            assert_eq!(read, [rows as u64; 3]);
        }
    }
}
