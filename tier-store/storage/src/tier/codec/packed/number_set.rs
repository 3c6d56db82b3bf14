//! Some values of a column of numbers, and which of them a page may have.

use std::ops::RangeInclusive;

use super::page::Page;
use super::within::Passed;

/// Values to look for. Decimals are unscaled, dates and times have the unit of their type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NumberSet {
    /// Ascending, each once.
    values: Vec<i128>,
}

impl NumberSet {
    /// These values, in any order.
    pub fn new(values: impl IntoIterator<Item = i128>) -> Self {
        let mut values: Vec<i128> = values.into_iter().collect();
        values.sort_unstable();
        values.dedup();
        Self { values }
    }

    /// The values, ascending, each once.
    pub fn values(&self) -> &[i128] {
        &self.values
    }

    /// True when one of them is in a range.
    pub fn any_within(&self, range: &RangeInclusive<i128>) -> bool {
        let first = self.values.partition_point(|value| value < range.start());
        self.values.get(first).is_some_and(|value| value <= range.end())
    }

    /// The numbers of strides of those values that a page may have, ascending; at least one.
    pub(super) fn in_page(&self, page: &Page) -> Passed<Vec<u64>> {
        let Some((least, greatest)) = page.bounds() else { return Passed::Nothing };
        let first = self.values.partition_point(|value| *value < least);
        let inside = self.values.get(first..).unwrap_or_default();
        let inside = inside.iter().take_while(|value| **value <= greatest);
        let strides = inside.filter_map(|value| {
            let distance = u64::try_from(value.checked_sub(least)?).ok()?;
            let strides = distance.checked_div(page.stride)?;
            (strides.checked_mul(page.stride) == Some(distance)).then_some(strides)
        });
        let strides: Vec<u64> = strides.collect();
        match strides.len() as u64 {
            0 => Passed::Nothing,
            // They ascend, and none is greater than that of the greatest value.
            all if all - 1 == page.most_strides => Passed::All,
            _ => Passed::Numbers(strides),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_values_of_its_stride_and_bounds() {
        let page = Page { base: -10, stride: 5, most_strides: 4, bits: 3, ..Page::default() };
        let numbers = |values: &[i128]| match NumberSet::new(values.iter().copied()).in_page(&page) {
            Passed::Nothing => vec![],
            Passed::All => vec![u64::MAX],
            Passed::Numbers(numbers) => numbers,
        };
        assert_eq!(numbers(&[10, -10, 10, 0, 7, 15, -15, i128::MIN, i128::MAX]), [0, 2, 4]);
        assert_eq!(numbers(&[-10, -5, 0, 5, 10, 11]), [u64::MAX]);
        assert!(numbers(&[]).is_empty() && numbers(&[-11, 11, 1]).is_empty());
        let set = NumberSet::new([7, -3, 7]);
        assert_eq!(set.values(), [-3, 7]);
        assert!(set.any_within(&(-3..=-3)) && set.any_within(&(0..=9)) && !set.any_within(&(-2..=6)));
        assert!(!set.any_within(&(8..=i128::MAX)) && !NumberSet::default().any_within(&(i128::MIN..=i128::MAX)));
        let nulls = Page { is_empty: true, ..page };
        assert!(matches!(NumberSet::new([-10]).in_page(&nulls), Passed::Nothing));
    }
}
