//! Sums of integers and decimals by group, without a branch a value.
//!
//! A sum that is added to in each row has to wait for the row before. So each group has several partial sums, which take the
//! rows in turn. Decimals are added in 64 bits as long as the bits of a batch's values show that no partial sum can overflow, then the partial
//! sums go into totals of 128 bits. Integers wrap around, as in DataFusion, so the order of additions does not matter.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, UInt64Type};
use datafusion::common::{Result, internal_datafusion_err};

use super::narrow::Narrow;

/// Partial sums of a group.
const LANES: usize = 4;
/// With more groups, two rows in turn are seldom of one group, and fewer sums stay in the processor's cache.
const MOST_WITH_LANES: usize = 1024;

/// Partial sums by group. Of groups beyond the first ones all lanes but one have none.
#[derive(Debug, Default)]
struct Lanes([Vec<i64>; LANES]);

impl Lanes {
    /// Makes room for so many groups.
    fn resize(&mut self, count: usize) {
        let [first, others @ ..] = &mut self.0;
        first.resize(count, 0);
        others.iter_mut().for_each(|lane| lane.resize(count.min(MOST_WITH_LANES), 0));
    }

    /// Adds `number` of each value to a partial sum of its group.
    #[inline]
    fn add<T: Copy>(&mut self, groups: &[u32], values: &[T], number: impl Fn(T) -> i64) {
        let has_lanes = self.0.iter().all(|lane| lane.len() <= MOST_WITH_LANES);
        let [first, second, third, fourth] = self.0.each_mut().map(Vec::as_mut_slice);
        if !has_lanes {
            groups.iter().zip(values).for_each(|(group, value)| add_to(first, *group, number(*value)));
            return;
        }
        let (groups, last_groups) = groups.as_chunks::<LANES>();
        let (values, last_values) = values.as_chunks::<LANES>();
        for ([a, b, c, d], [v, w, x, y]) in groups.iter().zip(values) {
            add_to(first, *a, number(*v));
            add_to(second, *b, number(*w));
            add_to(third, *c, number(*x));
            add_to(fourth, *d, number(*y));
        }
        last_groups.iter().zip(last_values).for_each(|(group, value)| add_to(first, *group, number(*value)));
    }

    /// The sum of each group; it wraps around.
    fn sums(&self) -> impl Iterator<Item = i64> {
        let [first, others @ ..] = &self.0;
        first.iter().enumerate().map(move |(group, sum)| {
            let parts = others.iter().filter_map(|lane| lane.get(group));
            parts.fold(*sum, |sum, part| sum.wrapping_add(*part))
        })
    }

    fn clear(&mut self) {
        self.0.iter_mut().for_each(|lane| lane.fill(0));
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|lane| lane.capacity() * size_of::<i64>()).sum()
    }
}

#[inline]
fn add_to(sums: &mut [i64], group: u32, number: i64) {
    if let Some(sum) = sums.get_mut(group as usize) {
        *sum = sum.wrapping_add(number);
    }
}

/// Numbers of rows by group.
#[derive(Debug, Default)]
pub(super) struct RowCounts(Lanes);

impl RowCounts {
    /// Counts rows, of which `groups` has the groups, out of so many.
    pub(super) fn add(&mut self, groups: &[u32], count: usize) {
        self.0.resize(count);
        self.0.add(groups, groups, |_| 1);
    }

    /// The number of rows of each group.
    pub(super) fn counts(&self) -> impl Iterator<Item = i64> {
        self.0.sums()
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// What is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Int64,
    UInt64,
    Decimal128,
}

/// Sums of one argument by group.
#[derive(Debug)]
pub(super) struct Sums {
    numbers: Numbers,
    partial: Lanes,
    /// Sums of decimals beside the partial ones.
    totals: Vec<i128>,
    /// How much may be added to the partial sums of decimals until one of them could overflow.
    room: u64,
}

impl Sums {
    /// Sums of values of this type; `None` for a type that DataFusion sums in another one.
    pub(super) fn new(data_type: &DataType) -> Option<Self> {
        let numbers = match data_type {
            DataType::Int64 => Numbers::Int64,
            DataType::UInt64 => Numbers::UInt64,
            DataType::Decimal128(..) => Numbers::Decimal128,
            _ => return None,
        };
        Some(Self { numbers, partial: Lanes::default(), totals: Vec::new(), room: i64::MAX as u64 })
    }

    /// Adds values, of which `groups` has the groups, out of so many.
    pub(super) fn add(&mut self, groups: &[u32], values: &ArrayRef, count: usize) -> Result<()> {
        self.partial.resize(count);
        match self.numbers {
            Numbers::Int64 => {
                let values = typed::<Int64Type>(values)?;
                with_zeros(values, |values| self.partial.add(groups, values, |value| value));
            }
            Numbers::UInt64 => {
                let values = typed::<UInt64Type>(values)?;
                with_zeros(values, |values| self.partial.add(groups, values, |value| value as i64));
            }
            Numbers::Decimal128 => {
                let values = typed::<Decimal128Type>(values)?;
                self.totals.resize(count, 0);
                with_zeros(values, |values| self.add_decimals(groups, values));
            }
        }
        Ok(())
    }

    /// Adds decimals that are there in 64 bits.
    pub(super) fn add_narrow(&mut self, groups: &[u32], narrow: &Narrow, count: usize) {
        self.partial.resize(count);
        self.totals.resize(count, 0);
        let with_zeros: Vec<i64>;
        let values = match &narrow.nulls {
            None => narrow.values.as_slice(),
            Some(nulls) => {
                let values = narrow.values.iter().zip(nulls);
                with_zeros = values.map(|(value, valid)| if valid { *value } else { 0 }).collect();
                with_zeros.as_slice()
            }
        };
        let most =
            |bits: u64| bits.checked_add(1)?.checked_mul(values.len() as u64).filter(|most| *most <= i64::MAX as u64);
        // What follows from the operands may be far from what there is.
        let exact = || most(values.iter().fold(0, |all, value| all | (value ^ (value >> 63))) as u64);
        match 1_u64.checked_shl(narrow.bits).and_then(|over| most(over - 1)).or_else(exact) {
            Some(most) => self.add_partial(groups, values, most, |value| value),
            None => self.add_totals(groups, values.iter().map(|value| i128::from(*value))),
        }
    }

    fn add_decimals(&mut self, groups: &[u32], values: &[i128]) {
        let bits = values.iter().fold(0, |all: i128, value| all | (value ^ (value >> 127)));
        let most = u64::try_from(bits).ok().and_then(|bits| bits.checked_add(1)?.checked_mul(values.len() as u64));
        match most.filter(|most| *most <= i64::MAX as u64) {
            Some(most) => self.add_partial(groups, values, most, |value| value as i64),
            None => self.add_totals(groups, values.iter().copied()),
        }
    }

    /// Adds values whose sum is at most `most` away from zero.
    #[inline]
    fn add_partial<T: Copy>(&mut self, groups: &[u32], values: &[T], most: u64, number: impl Fn(T) -> i64) {
        if most > self.room {
            self.fold();
        }
        self.room -= most;
        self.partial.add(groups, values, number);
    }

    fn add_totals(&mut self, groups: &[u32], values: impl Iterator<Item = i128>) {
        for (group, value) in groups.iter().zip(values) {
            if let Some(total) = self.totals.get_mut(*group as usize) {
                *total = total.wrapping_add(value);
            }
        }
    }

    /// Adds the partial sums of decimals to the totals.
    fn fold(&mut self) {
        for (total, sum) in self.totals.iter_mut().zip(self.partial.sums()) {
            *total = total.wrapping_add(i128::from(sum));
        }
        self.partial.clear();
        self.room = i64::MAX as u64;
    }

    /// The sum of each group, in a column of type `data_type` that is null where `nulls` says so.
    pub(super) fn column(&mut self, nulls: Option<NullBuffer>, data_type: &DataType) -> Result<ArrayRef> {
        match self.numbers {
            Numbers::Int64 => column::<Int64Type>(self.partial.sums(), nulls, data_type),
            Numbers::UInt64 => column::<UInt64Type>(self.partial.sums().map(|sum| sum as u64), nulls, data_type),
            Numbers::Decimal128 => {
                self.fold();
                column::<Decimal128Type>(self.totals.iter().copied(), nulls, data_type)
            }
        }
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.partial.bytes() + self.totals.capacity() * size_of::<i128>()
    }
}

/// A column of `values`, in one type of several that have the same numbers.
fn column<T: ArrowPrimitiveType>(
    values: impl Iterator<Item = T::Native>,
    nulls: Option<NullBuffer>,
    data_type: &DataType,
) -> Result<ArrayRef> {
    let column = PrimitiveArray::<T>::try_new(values.collect(), nulls)?;
    Ok(Arc::new(column.with_data_type(data_type.clone())))
}

/// The values as those of type `T`.
pub(super) fn typed<T: ArrowPrimitiveType>(values: &ArrayRef) -> Result<&PrimitiveArray<T>> {
    let other = || internal_datafusion_err!("values of type {} are aggregated as {}", values.data_type(), T::DATA_TYPE);
    values.as_primitive_opt::<T>().ok_or_else(other)
}

/// Calls `add` with the values, and zero where they are null.
fn with_zeros<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>, add: impl FnOnce(&[T::Native])) {
    match values.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => {
            let values: &[T::Native] = values.values();
            add(values);
        }
        Some(nulls) => {
            let values = values.values().iter().zip(nulls);
            let values: Vec<T::Native> =
                values.map(|(value, valid)| if valid { *value } else { T::Native::default() }).collect();
            add(values.as_slice());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{Decimal128Array, Int64Array, UInt64Array};
    use proptest::prelude::*;

    use super::*;

    /// Values of up to so many bits, or null, each with a group.
    fn rows(groups: u32) -> impl Strategy<Value = Vec<(u32, Option<i128>)>> {
        let value = (any::<i128>(), 1_u32..127).prop_map(|(value, bits)| value >> (127 - bits));
        let value = prop_oneof![1 => Just(None), 1 => Just(Some(0)), 6 => value.prop_map(Some)];
        proptest::collection::vec((0..groups, value), 0..100)
    }

    /// Batches of which some have values around the edges of 64 bits.
    fn batches() -> impl Strategy<Value = Vec<Vec<(u32, Option<i128>)>>> {
        let narrow = (rows(5), 1_u32..64).prop_map(|(rows, bits)| {
            let narrowed = |value: i128| (value << 64 >> 64) >> (64 - bits);
            rows.into_iter().map(|(group, value)| (group, value.map(narrowed))).collect::<Vec<_>>()
        });
        proptest::collection::vec(prop_oneof![1 => rows(5), 4 => narrow], 1..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn sums_are_those_of_128_bits(batches in batches()) {
            let mut sums = Sums::new(&DataType::Decimal128(38, 2)).unwrap();
            let mut counts = RowCounts::default();
            let mut expected = [0_i128; 5];
            let mut expected_counts = [0_i64; 5];
            for rows in batches {
                let (groups, values): (Vec<u32>, Vec<Option<i128>>) = rows.into_iter().unzip();
                for (group, value) in groups.iter().zip(&values) {
                    expected[*group as usize] = expected[*group as usize].wrapping_add(value.unwrap_or(0));
                    expected_counts[*group as usize] += 1;
                }
                let values: ArrayRef = Arc::new(Decimal128Array::from(values));
                sums.add(&groups, &values, 5).unwrap();
                counts.add(&groups, 5);
            }
            prop_assert_eq!(counts.counts().collect::<Vec<_>>(), expected_counts);
            let data_type = DataType::Decimal128(38, 2);
            let found = sums.column(None, &data_type).unwrap();
            prop_assert_eq!(found.data_type(), &data_type);
            prop_assert_eq!(typed::<Decimal128Type>(&found).unwrap().values().to_vec(), expected);
            // An average of the same argument takes them once more.
            let again = sums.column(None, &data_type).unwrap();
            prop_assert_eq!(&again, &found);
        }

        #[test]
        fn groups_beyond_those_with_lanes_are_summed(counts in proptest::collection::vec(1_u32..3000, 1..5), seed in any::<u32>()) {
            let mut sums = Sums::new(&DataType::Int64).unwrap();
            let mut expected: Vec<i64> = Vec::new();
            for count in counts {
                let count = count.max(expected.len() as u32);
                expected.resize(count as usize, 0);
                let groups: Vec<u32> = (0..4000_u32).map(|row| row.wrapping_mul(seed | 1) % count).collect();
                for (row, group) in groups.iter().enumerate() {
                    expected[*group as usize] += row as i64;
                }
                let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..4000));
                sums.add(&groups, &values, count as usize).unwrap();
            }
            let found = sums.column(None, &DataType::Int64).unwrap();
            prop_assert_eq!(typed::<Int64Type>(&found).unwrap().values().to_vec(), expected);
        }

        #[test]
        fn sums_of_integers_wrap_around(rows in rows(3)) {
            let (groups, values): (Vec<u32>, Vec<Option<i128>>) = rows.into_iter().unzip();
            let mut expected = [0_i64; 3];
            for (group, value) in groups.iter().zip(&values) {
                expected[*group as usize] = expected[*group as usize].wrapping_add(value.unwrap_or(0) as i64);
            }
            let signed: Int64Array = values.iter().map(|value| value.map(|value| value as i64)).collect();
            let unsigned: UInt64Array = values.iter().map(|value| value.map(|value| value as u64)).collect();
            let columns: [ArrayRef; 2] = [Arc::new(signed), Arc::new(unsigned)];
            for column in columns {
                let mut sums = Sums::new(column.data_type()).unwrap();
                sums.add(&groups, &column, 3).unwrap();
                let found = sums.column(None, column.data_type()).unwrap();
                let found: Vec<i64> = match found.as_primitive_opt::<UInt64Type>() {
                    Some(found) => found.values().iter().map(|value| *value as i64).collect(),
                    None => typed::<Int64Type>(&found).unwrap().values().to_vec(),
                };
                prop_assert_eq!(found, expected);
            }
        }
    }
}
