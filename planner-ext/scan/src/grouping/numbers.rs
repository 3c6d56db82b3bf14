//! Codes of integers, dates and truth values that lie near each other.
//!
//! A table has the code of each value between the least and the greatest one that was met.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;

use super::groups::MOST_GROUPS;

/// Most values from the least to the greatest one.
pub(super) const MOST_RANGE: usize = 1 << 16;

/// The codes of the values of one column: 0 for null, and from 1 on in the order in which values were met.
#[derive(Debug, Default)]
pub(super) struct NumberCodes {
    /// The value of the first place of the table.
    first: i64,
    /// By place, the code of a value; 0 for none.
    table: Vec<u16>,
    /// The values by code, without that of null.
    values: Vec<i64>,
}

/// Whether a column of this type gets codes.
pub(super) fn has_number_codes(data_type: &DataType) -> bool {
    use DataType::{Boolean, Date32, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32};
    matches!(data_type, Boolean | Date32 | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32)
}

impl NumberCodes {
    /// Number of codes, with that of null; all are less.
    pub(super) fn count(&self) -> usize {
        1 + self.values.len()
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<u16>() + self.values.capacity() * size_of::<i64>()
    }

    /// Writes the code of each value into `codes`. False when the values are too many, or too far from each other: then `codes` is of no
    /// use.
    pub(super) fn find(&mut self, column: &ArrayRef, codes: &mut Vec<u16>) -> Result<bool> {
        codes.clear();
        let column = cast(column, &DataType::Int64)?;
        let numbers = column.as_primitive::<Int64Type>();
        let (Some(least), Some(greatest)) = (min(numbers), max(numbers)) else {
            codes.resize(numbers.len(), 0);
            return Ok(true);
        };
        if !self.make_room(least, greatest) {
            return Ok(false);
        }
        let nulls = numbers.nulls().filter(|nulls| nulls.null_count() > 0);
        for (row, value) in numbers.values().iter().enumerate() {
            let code = match nulls.is_some_and(|nulls| nulls.is_null(row)) {
                true => Some(0),
                false => self.code(*value),
            };
            let Some(code) = code else { return Ok(false) };
            codes.push(code);
        }
        Ok(true)
    }

    /// The values of codes, in a column of type `data_type`.
    pub(super) fn values(&self, codes: impl Iterator<Item = u16>, data_type: &DataType) -> Result<ArrayRef> {
        let value = |code: u16| self.values.get(usize::from(code).checked_sub(1)?).copied();
        let values: ArrayRef = Arc::new(codes.map(value).collect::<Int64Array>());
        Ok(cast(&values, data_type)?)
    }

    fn code(&mut self, value: i64) -> Option<u16> {
        let place = usize::try_from(value.abs_diff(self.first)).ok()?;
        let code = self.table.get_mut(place)?;
        if *code == 0 {
            if self.values.len() >= MOST_GROUPS {
                return None;
            }
            self.values.push(value);
            *code = self.values.len() as u16;
        }
        Some(*code)
    }

    /// Makes the table reach from `least` to `greatest`, at least; false when it would become too large.
    fn make_room(&mut self, least: i64, greatest: i64) -> bool {
        let (first, last) = match self.table.len() {
            0 => (least, greatest),
            places => (least.min(self.first), greatest.max(self.first.saturating_add(places as i64 - 1))),
        };
        let Some(places) = usize::try_from(last.abs_diff(first)).ok().filter(|range| *range < MOST_RANGE) else {
            return false;
        };
        if first != self.first || places >= self.table.len() {
            let before = if self.table.is_empty() { 0 } else { self.first.abs_diff(first) as usize };
            let mut table = vec![0; places + 1];
            table.iter_mut().skip(before).zip(&self.table).for_each(|(to, from)| *to = *from);
            self.first = first;
            self.table = table;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{BooleanArray, Date32Array, Int32Array};

    use super::*;

    fn found(codes: &mut NumberCodes, column: ArrayRef) -> Option<Vec<u16>> {
        let mut found = Vec::new();
        codes.find(&column, &mut found).unwrap().then_some(found)
    }

    #[test]
    fn values_keep_their_codes_while_the_range_grows() {
        let mut codes = NumberCodes::default();
        let ints = |values: Vec<Option<i32>>| Arc::new(Int32Array::from(values)) as ArrayRef;
        assert_eq!(found(&mut codes, ints(vec![None, None])), Some(vec![0, 0]));
        assert_eq!(found(&mut codes, ints(vec![Some(7), None, Some(9), Some(7)])), Some(vec![1, 0, 2, 1]));
        assert_eq!(found(&mut codes, ints(vec![Some(-5), Some(9), Some(8)])), Some(vec![3, 2, 4]));
        assert_eq!(found(&mut codes, ints(vec![Some(100), Some(7)])), Some(vec![5, 1]));
        assert_eq!(codes.count(), 6);
        let values = codes.values([3, 0, 5, 1].into_iter(), &DataType::Int32).unwrap();
        assert_eq!(&values, &ints(vec![Some(-5), None, Some(100), Some(7)]));
    }

    #[test]
    fn far_values_are_refused() {
        let mut codes = NumberCodes::default();
        let ints = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        assert_eq!(found(&mut codes, ints(vec![i64::MIN, i64::MAX])), None);
        assert_eq!(found(&mut codes, ints(vec![i64::MAX, i64::MAX - 3])), Some(vec![1, 2]));
        assert_eq!(found(&mut codes, ints(vec![0])), None);
        let edge = MOST_RANGE as i64 - 1;
        let mut codes = NumberCodes::default();
        assert_eq!(found(&mut codes, ints(vec![0, edge])), Some(vec![1, 2]));
        assert_eq!(found(&mut codes, ints(vec![-1])), None);
        assert_eq!(found(&mut codes, ints(vec![edge, 0])), Some(vec![2, 1]));
        let many = (0..=MOST_GROUPS as i64).collect();
        assert_eq!(found(&mut codes, ints(many)), None);
    }

    #[test]
    fn truth_values_and_dates_come_back() {
        let columns: [ArrayRef; 2] = [
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
            Arc::new(Date32Array::from(vec![Some(-40), None, Some(19_000)])),
        ];
        for column in columns {
            let mut codes = NumberCodes::default();
            assert!(has_number_codes(column.data_type()));
            let found = found(&mut codes, Arc::clone(&column)).unwrap();
            assert_eq!(&codes.values(found.into_iter(), column.data_type()).unwrap(), &column);
        }
    }
}
