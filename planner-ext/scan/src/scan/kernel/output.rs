//! The groups that kernels found, as rows of the first half of an aggregate.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Decimal128Array, Int64Array, RecordBatch, RecordBatchOptions, StringViewArray, UInt64Array,
    make_array,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use terrace_tier_store::tier::hbm::device::groups::Groups;

use super::condition::is_text;
use super::plan::{KernelPlan, State};
use super::texts::Texts;

impl KernelPlan {
    /// The rows of the groups that some row belongs to; without keys one row, whatever was found.
    pub(super) fn rows(&self, groups: &Groups, texts: &HashMap<u32, Texts>) -> Result<RecordBatch> {
        let is_found = |measures: &[i128]| self.keys.is_empty() || measures.first().is_some_and(|rows| *rows > 0);
        let found: Vec<_> = groups.iter().filter(|(_, measures)| is_found(measures)).collect();
        let fields = self.schema.fields();
        let mut columns = Vec::with_capacity(fields.len());
        for (at, key) in self.keys.iter().enumerate() {
            let values: Vec<Option<i64>> = found.iter().map(|(keys, _)| keys.get(at).copied().flatten()).collect();
            let Some(field) = fields.get(at) else { return internal_err!("a key without a field") };
            columns.push(match texts.get(key).filter(|_| is_text(field.data_type())) {
                Some(texts) => text_array(&values, texts),
                None => number_array(field.data_type(), values.into_iter().map(|value| value.map(i128::from)))?,
            });
        }
        for (field, state) in fields.iter().skip(self.keys.len()).zip(&self.states) {
            let values = found.iter().map(|(_, measures)| value_of(*state, measures));
            columns.push(number_array(field.data_type(), values)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(found.len()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

/// The value of a state for a group with these measures.
fn value_of(state: State, measures: &[i128]) -> Option<i128> {
    match state {
        State::Count(counted) => counted.rows(measures),
        State::Divisor(counted) => counted.rows(measures).filter(|rows| *rows > 0),
        State::Value { value, counted } => {
            measures.get(value).copied().filter(|_| counted.rows(measures).is_some_and(|rows| rows > 0))
        }
    }
}

fn text_array(codes: &[Option<i64>], texts: &Texts) -> ArrayRef {
    Arc::new(codes.iter().map(|code| texts.text((*code)?)).collect::<StringViewArray>())
}

/// Numbers as values of a type. Sums of 64 bits wrap around, as DataFusion's do.
fn number_array(data_type: &DataType, numbers: impl Iterator<Item = Option<i128>>) -> Result<ArrayRef> {
    match data_type {
        DataType::Decimal128(precision, scale) => {
            let numbers: Decimal128Array = numbers.collect();
            Ok(Arc::new(numbers.with_precision_and_scale(*precision, *scale)?))
        }
        DataType::UInt64 => {
            Ok(Arc::new(numbers.map(|number| number.map(|number| number as u64)).collect::<UInt64Array>()))
        }
        other => {
            let numbers = numbers.map(|number| number.map(|number| number as i64));
            let wide: ArrayRef = Arc::new(numbers.collect::<Int64Array>());
            match other {
                DataType::Int64 => Ok(wide),
                integer if integer.is_integer() => Ok(cast(&wide, integer)?),
                DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(..) => {
                    with_type(&cast(&wide, &DataType::Int32)?, other)
                }
                _ => with_type(&wide, other),
            }
        }
    }
}

/// The same bits as values of another type.
fn with_type(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    Ok(make_array(array.to_data().into_builder().data_type(data_type.clone()).build()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::AsArray;
    use arrow::datatypes::{
        Date32Type, Decimal32Type, Decimal128Type, Int8Type, TimeUnit, TimestampMicrosecondType, UInt64Type,
    };

    use super::super::masked::Counted;
    use super::*;

    fn array(data_type: &DataType) -> ArrayRef {
        let array = number_array(data_type, [Some(7), None, Some(120)].into_iter()).unwrap();
        assert_eq!((array.data_type(), array.len(), array.null_count()), (data_type, 3, 1));
        array
    }

    #[test]
    fn numbers_become_values_of_their_type() {
        assert_eq!(array(&DataType::Int8).as_primitive::<Int8Type>().value(2), 120);
        assert_eq!(array(&DataType::UInt64).as_primitive::<UInt64Type>().value(0), 7);
        assert_eq!(array(&DataType::Date32).as_primitive::<Date32Type>().value(2), 120);
        assert_eq!(array(&DataType::Decimal32(9, 2)).as_primitive::<Decimal32Type>().value(2), 120);
        assert_eq!(array(&DataType::Decimal128(38, 4)).as_primitive::<Decimal128Type>().value(0), 7);
        let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        assert_eq!(array(&time).as_primitive::<TimestampMicrosecondType>().value(2), 120);
    }

    #[test]
    fn a_state_without_values_is_null() {
        let sum = State::Value { value: 1, counted: Counted::by(2) };
        assert_eq!(
            [value_of(sum, &[3, 10, 2]), value_of(sum, &[3, 0, 0]), value_of(State::Count(Counted::by(0)), &[0])],
            [Some(10), None, Some(0)]
        );
        let divisor = State::Divisor(Counted::by(2));
        assert_eq!([value_of(divisor, &[3, 10, 2]), value_of(divisor, &[3, 0, 0])], [Some(2), None]);
    }
}
