//! Columns of few different strings, looked at without looking at each row twice.
//!
//! Modes, flags and states take one of a handful of values. Bounds and sketches of such a column are those of its
//! different values; finding these costs a comparison a row, where bounds and sketches cost a dozen operations each.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringViewArray};
use arrow::buffer::ScalarBuffer;

use super::value_hash::{MOST_INLINE, valid};

/// Places of the table of values seen last; a value has one place.
const PLACES: usize = 256;
/// No view of a short string: its length would be greater.
const NONE: u128 = u128::MAX;
/// Rows between two looks at whether it pays.
const STEP: usize = 4096;

/// An array of the same different values, none of them null, of a string column, if it is much shorter than the column.
pub(super) fn few_values(column: &ArrayRef) -> Option<ArrayRef> {
    let array = column.as_string_view_opt()?;
    let mut seen = [NONE; PLACES];
    let mut kept = Vec::<u128>::new();
    let mut rows = 0;
    for range in valid(array) {
        for views in array.views().get(range)?.chunks(STEP) {
            for view in views {
                let place = seen.get_mut(place(*view))?;
                // A long string's view says where it lies: it is kept each time.
                if *place != *view {
                    kept.push(*view);
                    *place = if *view as u32 <= MOST_INLINE { *view } else { NONE };
                }
            }
            rows += views.len();
            if kept.len() > rows / 4 {
                return None;
            }
        }
    }
    // SAFETY: the views are some of the array's, with its buffers.
    let few = unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(kept), array.data_buffers().to_vec(), None) };
    Some(Arc::new(few))
}

fn place(view: u128) -> usize {
    let word = (view as u64 ^ (view >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (u64::BITS - PLACES.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn few_values_are_all_values() {
        let mut rng = StdRng::seed_from_u64(23);
        let mut found = 0;
        for round in 0..300 {
            let rows = rng.random_range(0..20_000_usize);
            let different = rng.random_range(1..80_u32);
            let long = rng.random_range(0..3_u32);
            let nulls = rng.random_bool(0.5);
            let value = |number: u32| match number % 10 < long {
                true => format!("{number:020}"),
                false => format!("{number}"),
            };
            let values: Vec<Option<String>> = (0..rows)
                .map(|_| (!nulls || rng.random_bool(0.8)).then(|| value(rng.random_range(0..different))))
                .collect();
            let column: ArrayRef = Arc::new(values.iter().map(Option::as_deref).collect::<StringViewArray>());
            let Some(few) = few_values(&column) else { continue };
            found += 1;
            assert!(few.null_count() == 0 && few.len() <= rows / 4, "round {round}");
            let all: BTreeSet<_> = values.iter().flatten().map(String::as_str).collect();
            let of_few: BTreeSet<_> = few.as_string_view().iter().flatten().collect();
            assert_eq!(of_few, all, "round {round}");
        }
        assert!((100..300).contains(&found), "{found} of 300 columns had few values");
    }
}
