//! Least and greatest values by group, without a branch a value.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal128Type, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::Result;

use super::sums::typed;

/// Which value of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extreme {
    Least,
    Greatest,
}

/// The extremes of one argument by group.
pub(super) trait Extremes: Send {
    /// Takes values, of which `groups` has the groups, out of so many.
    fn add(&mut self, groups: &[u32], values: &ArrayRef, count: usize) -> Result<()>;
    /// The extreme of each group, in a column that is null where `nulls` says so.
    fn column(&self, nulls: Option<NullBuffer>) -> Result<ArrayRef>;
    /// Bytes that they take.
    fn bytes(&self) -> usize;
}

/// The extremes of values of a type; `None` for types that DataFusion has to compare.
pub(super) fn extremes(data_type: &DataType, extreme: Extreme) -> Option<Box<dyn Extremes>> {
    Some(match data_type {
        DataType::Int8 => typed_extremes::<Int8Type>(data_type, extreme),
        DataType::Int16 => typed_extremes::<Int16Type>(data_type, extreme),
        DataType::Int32 => typed_extremes::<Int32Type>(data_type, extreme),
        DataType::Int64 => typed_extremes::<Int64Type>(data_type, extreme),
        DataType::UInt8 => typed_extremes::<UInt8Type>(data_type, extreme),
        DataType::UInt16 => typed_extremes::<UInt16Type>(data_type, extreme),
        DataType::UInt32 => typed_extremes::<UInt32Type>(data_type, extreme),
        DataType::UInt64 => typed_extremes::<UInt64Type>(data_type, extreme),
        DataType::Date32 => typed_extremes::<Date32Type>(data_type, extreme),
        DataType::Date64 => typed_extremes::<Date64Type>(data_type, extreme),
        DataType::Timestamp(TimeUnit::Second, _) => typed_extremes::<TimestampSecondType>(data_type, extreme),
        DataType::Timestamp(TimeUnit::Millisecond, _) => typed_extremes::<TimestampMillisecondType>(data_type, extreme),
        DataType::Timestamp(TimeUnit::Microsecond, _) => typed_extremes::<TimestampMicrosecondType>(data_type, extreme),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => typed_extremes::<TimestampNanosecondType>(data_type, extreme),
        DataType::Decimal128(..) => typed_extremes::<Decimal128Type>(data_type, extreme),
        _ => return None,
    })
}

fn typed_extremes<T: ArrowPrimitiveType>(data_type: &DataType, extreme: Extreme) -> Box<dyn Extremes> {
    Box::new(TypedExtremes::<T> { data_type: data_type.clone(), extreme, values: Vec::new() })
}

struct TypedExtremes<T: ArrowPrimitiveType> {
    data_type: DataType,
    extreme: Extreme,
    values: Vec<T::Native>,
}

impl<T: ArrowPrimitiveType> TypedExtremes<T> {
    /// What every value of a group replaces, or equals.
    fn start(&self) -> T::Native {
        match self.extreme {
            Extreme::Least => T::Native::MAX_TOTAL_ORDER,
            Extreme::Greatest => T::Native::MIN_TOTAL_ORDER,
        }
    }

    fn take(&mut self, rows: impl Iterator<Item = (u32, T::Native)>) {
        let extreme = self.extreme;
        for (group, value) in rows {
            if let Some(known) = self.values.get_mut(group as usize) {
                let replaces = match extreme {
                    Extreme::Least => value.is_lt(*known),
                    Extreme::Greatest => value.is_gt(*known),
                };
                *known = if replaces { value } else { *known };
            }
        }
    }
}

impl<T: ArrowPrimitiveType> Extremes for TypedExtremes<T> {
    fn add(&mut self, groups: &[u32], values: &ArrayRef, count: usize) -> Result<()> {
        let values = typed::<T>(values)?;
        let start = self.start();
        self.values.resize(count, start);
        let rows = groups.iter().copied().zip(values.values().iter().copied());
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => self.take(rows),
            Some(nulls) => self.take(rows.zip(nulls).filter_map(|(row, valid)| valid.then_some(row))),
        }
        Ok(())
    }

    fn column(&self, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let column = PrimitiveArray::<T>::try_new(self.values.iter().copied().collect(), nulls)?;
        Ok(Arc::new(column.with_data_type(self.data_type.clone())))
    }

    fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<T::Native>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{Decimal128Array, Int8Array, TimestampMicrosecondArray, UInt64Array};

    use super::*;

    fn found(values: &ArrayRef, extreme: Extreme) -> ArrayRef {
        let mut extremes = extremes(values.data_type(), extreme).unwrap();
        // In two batches, with a group that comes later and one that has only nulls.
        extremes.add(&[0, 1, 0], &values.slice(0, 3), 2).unwrap();
        extremes.add(&[2, 0, 1], &values.slice(3, 3), 3).unwrap();
        let nulls = NullBuffer::from(vec![true, false, true]);
        extremes.column(Some(nulls)).unwrap()
    }

    #[test]
    fn extremes_of_groups_are_found_also_at_the_ends_of_the_type() {
        let values: ArrayRef = Arc::new(Int8Array::from(vec![Some(-128), None, Some(5), Some(127), Some(6), None]));
        let least = found(&values, Extreme::Least);
        let greatest = found(&values, Extreme::Greatest);
        assert_eq!(&least, &(Arc::new(Int8Array::from(vec![Some(-128), None, Some(127)])) as ArrayRef));
        assert_eq!(&greatest, &(Arc::new(Int8Array::from(vec![Some(6), None, Some(127)])) as ArrayRef));
        let values: ArrayRef = Arc::new(UInt64Array::from(vec![Some(0), None, Some(5), Some(u64::MAX), Some(6), None]));
        let least = found(&values, Extreme::Least);
        let greatest = found(&values, Extreme::Greatest);
        assert_eq!(&least, &(Arc::new(UInt64Array::from(vec![Some(0), None, Some(u64::MAX)])) as ArrayRef));
        assert_eq!(&greatest, &(Arc::new(UInt64Array::from(vec![Some(6), None, Some(u64::MAX)])) as ArrayRef));
    }

    #[test]
    fn decimals_keep_their_precision_and_times_their_zone() {
        let values = Decimal128Array::from(vec![Some(-7), None, Some(5), Some(1), None, None]);
        let values: ArrayRef = Arc::new(values.with_precision_and_scale(12, 3).unwrap());
        assert_eq!(found(&values, Extreme::Least).data_type(), &DataType::Decimal128(12, 3));
        let values = TimestampMicrosecondArray::from(vec![Some(-7), None, Some(5), Some(1), None, None]);
        let values: ArrayRef = Arc::new(values.with_timezone("+02:00"));
        let expected = TimestampMicrosecondArray::from(vec![Some(5), None, Some(1)]).with_timezone("+02:00");
        assert_eq!(&found(&values, Extreme::Greatest), &(Arc::new(expected) as ArrayRef));
        assert!(extremes(&DataType::Float64, Extreme::Least).is_none());
        assert!(extremes(&DataType::Utf8View, Extreme::Greatest).is_none());
    }
}
