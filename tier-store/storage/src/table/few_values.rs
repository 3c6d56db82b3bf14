//! Finds the distinct values of string columns that have few distinct values.
//!
//! Columns of modes, flags and states have a handful of values. Bounds and sketches of such a column are those of its
//! distinct values. Finding these costs one comparison per row, where bounds and sketches cost a dozen operations each.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringViewArray};
use arrow::buffer::ScalarBuffer;

use super::value_hash::{MAX_INLINE_BYTES, valid_ranges};

/// Slots of the table of recently seen values; each value has one slot.
const SLOTS: usize = 256;
/// Marks an empty slot: no view of a short string, as its length would be greater.
const EMPTY: u128 = u128::MAX;
/// Rows after which the function checks whether the column has few values.
const CHECK_ROWS: usize = 4096;

/// Makes an array of all distinct values of a string column, some perhaps repeated, without nulls; `None` unless it is
/// at most a quarter as long as the column.
pub(super) fn few_values(column: &ArrayRef) -> Option<ArrayRef> {
    let array = column.as_string_view_opt()?;
    let mut seen = [EMPTY; SLOTS];
    let mut found = Vec::<u128>::new();
    let mut rows = 0;
    for range in valid_ranges(array) {
        for views in array.views().get(range)?.chunks(CHECK_ROWS) {
            for view in views {
                let slot = seen.get_mut(slot(*view))?;
                // The view of a long string has its position in a buffer, not its bytes, so each occurrence counts as
                // new.
                if *slot != *view {
                    found.push(*view);
                    *slot = if *view as u32 <= MAX_INLINE_BYTES { *view } else { EMPTY };
                }
            }
            rows += views.len();
            if found.len() > rows / 4 {
                return None;
            }
        }
    }
    // SAFETY: the views are views of the array, and its buffers go with them.
    let few = unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(found), array.data_buffers().to_vec(), None) };
    Some(Arc::new(few))
}

/// The slot of a value.
fn slot(view: u128) -> usize {
    let word = (view as u64 ^ (view >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (u64::BITS - SLOTS.trailing_zeros())) as usize
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
