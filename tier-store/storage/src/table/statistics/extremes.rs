//! Finds the smallest and the largest value of an array quickly, as bounds of every column of every chunk are computed.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, PrimitiveArray, StringArray, StringViewArray, downcast_primitive_array,
};
use arrow::compute::{max, max_string, min, min_string};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Decimal128Type};

use crate::table::value_hash::{MAX_INLINE_BYTES, valid_ranges};

/// Finds the smallest and the largest value; `None` for types that have to be sorted for that, and without values.
pub(in crate::table) fn extremes(array: &dyn Array) -> Option<(ArrayRef, ArrayRef)> {
    fn primitive<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>) -> Option<(ArrayRef, ArrayRef)> {
        let one = |value: T::Native| -> ArrayRef {
            Arc::new(PrimitiveArray::<T>::from_value(value, 1).with_data_type(array.data_type().clone()))
        };
        Some((one(min(array)?), one(max(array)?)))
    }
    if let Some(wide) = array.as_primitive_opt::<Decimal128Type>().filter(|wide| wide.null_count() == 0) {
        let (low, high) = wide_extremes(wide.values())?;
        let one = |value: i128| -> ArrayRef {
            Arc::new(Decimal128Array::from_value(value, 1).with_data_type(array.data_type().clone()))
        };
        return Some((one(low), one(high)));
    }
    downcast_primitive_array! {
        array => primitive(array),
        DataType::Utf8View => {
            let one = |value: &str| -> ArrayRef { Arc::new(StringViewArray::from(vec![value])) };
            let (min, max) = view_extremes(array.as_string_view())?;
            Some((one(min), one(max)))
        }
        DataType::Utf8 => {
            let one = |value: &str| -> ArrayRef { Arc::new(StringArray::from(vec![value])) };
            let array = array.as_string::<i32>();
            Some((one(min_string(array)?), one(max_string(array)?)))
        }
        _ => None,
    }
}

/// Finds the least and the greatest of 128-bit integers. Most fit into 64 bits, which compare faster.
fn wide_extremes(values: &[i128]) -> Option<(i128, i128)> {
    let start = (i64::MAX, i64::MIN, true);
    let (low, high, all_fit) = values.iter().fold(start, |(low, high, all_fit), value| {
        let cut = *value as i64;
        (low.min(cut), high.max(cut), all_fit & (i128::from(cut) == *value))
    });
    match all_fit && !values.is_empty() {
        true => Some((low.into(), high.into())),
        false => Some((*values.iter().min()?, *values.iter().max()?)),
    }
}

/// Finds the smallest and the largest string. Short strings lie in their views, which compare as numbers; the view of a
/// long string has its first four bytes. So a pass without branches finds the extremes of the short strings and of the
/// first bytes of the long ones. Then only the long strings that begin with these bytes are compared.
fn view_extremes(array: &StringViewArray) -> Option<(&str, &str)> {
    const NO_SHORT: (u128, u128) = (u128::MAX, 0);
    const NO_LONG: (u32, u32) = (u32::MAX, 0);
    let is_short = |view: u128| view as u32 <= MAX_INLINE_BYTES;
    let first_bytes = |key: u128| (key >> 96) as u32;
    let mut short = NO_SHORT;
    let mut long = NO_LONG;
    let mut shorts = 0;
    let mut rows = 0;
    for range in valid_ranges(array) {
        rows += range.len();
        for view in array.views().get(range).unwrap_or_default() {
            let key = StringViewArray::inline_key_fast(*view);
            let is_short = is_short(*view);
            let (low, high) = if is_short { (key, key) } else { NO_SHORT };
            short = (short.0.min(low), short.1.max(high));
            let (low, high) = if is_short { NO_LONG } else { (first_bytes(key), first_bytes(key)) };
            long = (long.0.min(low), long.1.max(high));
            shorts += usize::from(is_short);
        }
    }
    let views =
        || valid_ranges(array).flat_map(|range| range.clone().zip(array.views().get(range).unwrap_or_default()));
    let of_short = |wanted: u128| {
        let found = views().find(|(_, view)| is_short(**view) && StringViewArray::inline_key_fast(**view) == wanted)?;
        Some(array.value(found.0))
    };
    let of_long = |beginning: u32| {
        let begin = move |view: u128| first_bytes(StringViewArray::inline_key_fast(view)) == beginning;
        views().filter(move |(_, view)| !is_short(**view) && begin(**view)).map(|(row, _)| array.value(row))
    };
    let some_short = shorts > 0;
    let some_long = shorts < rows;
    let min = some_short.then(|| of_short(short.0)).flatten();
    let max = some_short.then(|| of_short(short.1)).flatten();
    let lower = (some_long && (!some_short || long.0 <= first_bytes(short.0))).then(|| of_long(long.0).min()).flatten();
    let higher =
        (some_long && (!some_short || long.1 >= first_bytes(short.1))).then(|| of_long(long.1).max()).flatten();
    Some((min.into_iter().chain(lower).min()?, max.into_iter().chain(higher).max()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn extremes_of_strings_are_those_of_their_order() {
        let mut rng = StdRng::seed_from_u64(11);
        for round in 0..2000 {
            let rows = rng.random_range(1..40);
            let letters = rng.random_range(1..4_u8);
            let mut text = || -> String {
                let len = rng.random_range(0..20);
                (0..len)
                    .map(|_| char::from(if rng.random_bool(0.02) { 0 } else { b'a' + rng.random_range(0..letters) }))
                    .collect()
            };
            let values: Vec<Option<String>> = (0..rows).map(|row| (row % 5 != 4).then(&mut text)).collect();
            let array = StringViewArray::from_iter(values.iter().map(Option::as_deref));
            let present = || values.iter().flatten().map(String::as_str);
            let expected = present().min().zip(present().max());
            assert_eq!(view_extremes(&array), expected, "round {round}: {values:?}");
        }
    }

    #[test]
    fn extremes_of_wide_integers_count_all_bits() {
        let long = i128::from(i64::MAX) + 5;
        for (values, expected) in [
            (vec![], None),
            (vec![7], Some((7, 7))),
            (vec![3, -9, i128::from(i64::MAX), 0], Some((-9, i64::MAX.into()))),
            (vec![3, long, 1], Some((1, long))),
            (vec![-long, 3, 1], Some((-long, 3))),
        ] {
            assert_eq!(wide_extremes(&values), expected, "{values:?}");
        }
    }
}
