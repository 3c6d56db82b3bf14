//! What a scan found: for each group the values of its measures.

use std::ops::RangeInclusive;

/// A key of the groups: its values, and null as one more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub range: RangeInclusive<i64>,
    /// Values in the range, without null.
    pub count: u32,
    /// True if null is a value, the last one.
    pub is_nullable: bool,
    /// Values of the keys before this one.
    pub stride: u32,
}

impl KeyRange {
    /// Values, with null.
    pub fn values(&self) -> u32 {
        self.count + u32::from(self.is_nullable)
    }

    /// The value of a group; `None` is null.
    fn value(&self, group: u32) -> Option<i64> {
        let code = group / self.stride % self.values();
        (code < self.count).then(|| self.range.start() + i64::from(code))
    }
}

/// The groups of a scan. All combinations of values of the keys are there, also those that no row has: count rows to
/// tell them apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    pub(crate) keys: Vec<KeyRange>,
    pub(crate) measures: usize,
    /// Measures of the first group, of the second, ..
    pub(crate) values: Vec<i128>,
}

impl Groups {
    /// Number of groups.
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.measures).unwrap_or(0)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values of the measures of a group; empty for a group that does not exist.
    pub fn measures(&self, group: usize) -> &[i128] {
        self.values.get(group * self.measures..(group + 1) * self.measures).unwrap_or_default()
    }

    /// The keys of a group; `None` is null.
    pub fn keys(&self, group: usize) -> Vec<Option<i64>> {
        self.keys.iter().map(|key| key.value(group as u32)).collect()
    }

    /// Keys and measures of each group.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<Option<i64>>, &[i128])> {
        (0..self.len()).map(|group| (self.keys(group), self.measures(group)))
    }
}
