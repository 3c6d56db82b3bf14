//! Page bounds of a column: the least and the greatest value of every 8,192 rows.
//!
//! They are computed when a scan that filters on the column has read all of it from its home, and taken from a column that is
//! packed into memory: no extra read is done, and other columns have none. Rows of a chunk never change, so page bounds stay valid as long as
//! the chunk exists; they do not survive a restart. They take 24 bytes for each page.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::compute::{max, min};
use arrow::datatypes::{
    DataType, Date32Type, Decimal32Type, Decimal64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type,
};

use crate::tier::codec::{Form, PAGE_ROWS, StoredColumn};

/// Least and greatest value of each page; `None` for a page of nulls. Decimals are unscaled, dates and times have the
/// unit of their type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageBounds(Box<[Option<(i64, i64)>]>);

impl PageBounds {
    /// Computes them for a whole column; `None` for a type without page bounds, or when the column has only one page.
    pub fn from_column(column: &StoredColumn) -> Option<Self> {
        let rows = column.rows();
        if rows <= PAGE_ROWS {
            return None;
        }
        if column.form() == Form::Packed {
            let narrow = |(min, max): (i128, i128)| Some((i64::try_from(min).ok()?, i64::try_from(max).ok()?));
            let pages = column.packed_bounds()?;
            return pages
                .map(|page| page.map_or(Some(None), |page| narrow(page).map(Some)))
                .collect::<Option<_>>()
                .map(Self);
        }
        let values = column.stored_values(0, rows)?;
        let pages = (0..rows).step_by(PAGE_ROWS).map(|first| values.slice(first, PAGE_ROWS.min(rows - first)));
        pages.map(|page| bounds(&page)).collect::<Option<_>>().map(Self)
    }

    /// The rows of the pages for whose bounds (least, greatest) `may_match` is true, as ascending ranges of whole
    /// pages. Pages of nulls never match.
    pub fn rows(&self, rows: usize, may_match: impl Fn(i64, i64) -> bool) -> Vec<Range<usize>> {
        let mut ranges = Vec::<Range<usize>>::new();
        for (page, _) in
            self.0.iter().enumerate().filter(|(_, bounds)| bounds.is_some_and(|(min, max)| may_match(min, max)))
        {
            let page = page * PAGE_ROWS..rows.min((page + 1) * PAGE_ROWS);
            match ranges.last_mut().filter(|last| last.end == page.start) {
                Some(last) => last.end = page.end,
                None => ranges.push(page),
            }
        }
        ranges
    }
}

/// The least and the greatest value of a page; `Some(None)`: all are null; `None`: the type has no page bounds.
fn bounds(page: &ArrayRef) -> Option<Option<(i64, i64)>> {
    fn extremes<T: ArrowPrimitiveType<Native: Into<i64>>>(page: &ArrayRef) -> Option<(i64, i64)> {
        let page = page.as_primitive::<T>();
        Some((min(page)?.into(), max(page)?.into()))
    }
    Some(match page.data_type() {
        DataType::Int8 => extremes::<Int8Type>(page),
        DataType::Int16 => extremes::<Int16Type>(page),
        DataType::Int32 => extremes::<Int32Type>(page),
        DataType::Int64 => extremes::<Int64Type>(page),
        DataType::UInt8 => extremes::<UInt8Type>(page),
        DataType::UInt16 => extremes::<UInt16Type>(page),
        DataType::UInt32 => extremes::<UInt32Type>(page),
        DataType::Decimal32(..) => extremes::<Decimal32Type>(page),
        DataType::Decimal64(..) => extremes::<Decimal64Type>(page),
        DataType::Date32 => extremes::<Date32Type>(page),
        DataType::Timestamp(TimeUnit::Second, _) => extremes::<TimestampSecondType>(page),
        DataType::Timestamp(TimeUnit::Millisecond, _) => extremes::<TimestampMillisecondType>(page),
        DataType::Timestamp(TimeUnit::Microsecond, _) => extremes::<TimestampMicrosecondType>(page),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => extremes::<TimestampNanosecondType>(page),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int32Array, UInt64Array};

    use super::*;

    #[test]
    fn pages_without_a_wanted_value_are_left_out() {
        let rows = 3 * PAGE_ROWS + 10;
        // A page of values below 100, one of nulls, one like the first, and a short one with a single value.
        let value = |row: usize| match row / PAGE_ROWS {
            0 | 2 => Some((row % 100) as i32),
            1 => None,
            _ => (row == rows - 1).then_some(-7),
        };
        let column = StoredColumn::plain(Arc::new((0..rows).map(value).collect::<Int32Array>()));
        let bounds = PageBounds::from_column(&column).unwrap();
        assert_eq!(bounds.rows(rows, |min, max| (min..=max).contains(&99)), [0..8192, 16_384..24_576]);
        assert_eq!(bounds.rows(rows, |min, _| min < 0), [24_576..rows]);
        assert_eq!(bounds.rows(rows, |min, max| min <= 0 && max >= -7), [0..8192, 16_384..rows]);
        assert!(bounds.rows(rows, |_, max| max >= 100).is_empty());
    }

    #[test]
    fn columns_of_one_page_and_of_other_types_have_none() {
        let page_bounds = |array: ArrayRef| PageBounds::from_column(&StoredColumn::plain(array));
        assert_eq!(page_bounds(Arc::new(Int32Array::from(vec![1; PAGE_ROWS]))), None);
        assert_eq!(page_bounds(Arc::new(Float64Array::from(vec![1.0; PAGE_ROWS + 1]))), None);
        assert_eq!(page_bounds(Arc::new(UInt64Array::from(vec![1; PAGE_ROWS + 1]))), None);
        assert!(page_bounds(Arc::new(Int32Array::from(vec![1; PAGE_ROWS + 1]))).is_some());
    }
}
