//! The groups of rows, by the codes of their columns.
//!
//! The codes of a row are put together to a slot, each column with the bits that its codes need; a table has the group of each slot. Groups
//! are numbered in the order in which they are met, as DataFusion's accumulators expect.

/// Most groups; with more, DataFusion's aggregation takes over.
pub(super) const MOST_GROUPS: usize = 1 << 14;
/// Most bits of a slot: the table then takes 128 KiB.
pub(super) const MOST_BITS: u32 = 16;

/// A row without a group, while groups are looked up.
const NO_GROUP: u32 = u32::MAX;

/// The groups of one partition.
#[derive(Debug)]
pub(super) struct Groups {
    /// Bits of the codes of each column.
    bits: Vec<u32>,
    /// By slot, the number of its group plus one; 0 for none.
    table: Vec<u16>,
    /// The codes of all groups, one after the other.
    codes: Vec<u16>,
    /// The slots of the latest rows.
    slots: Vec<u32>,
}

/// The bits that `count` codes, from 0 on, need.
pub(super) fn bits_of_codes(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}

impl Groups {
    /// No groups yet, of so many columns.
    pub(super) fn new(columns: usize) -> Self {
        Self { bits: vec![0; columns], table: vec![0], codes: Vec::new(), slots: Vec::new() }
    }

    /// Number of groups.
    pub(super) fn count(&self) -> usize {
        self.codes.len() / self.bits.len().max(1)
    }

    /// The code of a column in each group.
    pub(super) fn codes(&self, column: usize) -> impl Iterator<Item = u16> {
        self.codes.chunks_exact(self.bits.len().max(1)).filter_map(move |codes| codes.get(column).copied())
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        (self.table.capacity() + self.codes.capacity()) * size_of::<u16>() + self.slots.capacity() * size_of::<u32>()
    }

    /// Writes the group of each row into `groups`. Column by column, `columns` has a code for each row, which is less than that in `counts`.
    /// False when there are too many groups: then `groups` is of no use.
    pub(super) fn find(&mut self, columns: &[&[u16]], counts: &[usize], groups: &mut Vec<u32>) -> bool {
        if !self.make_room(counts) {
            return false;
        }
        self.slots.clear();
        self.slots.resize(columns.first().map_or(0, |codes| codes.len()), 0);
        for (codes, shift) in columns.iter().zip(shifts(&self.bits)) {
            for (slot, code) in self.slots.iter_mut().zip(*codes) {
                *slot |= u32::from(*code) << shift;
            }
        }
        groups.clear();
        let table = &self.table;
        let group = |slot: &u32| table.get(*slot as usize).map_or(NO_GROUP, |group| u32::from(*group).wrapping_sub(1));
        groups.extend(self.slots.iter().map(group));
        // One pass without a branch a row; new groups are rare.
        match groups.iter().fold(0_u32, |most, group| most.max(*group)) {
            NO_GROUP => self.add_new(columns, groups),
            _ => true,
        }
    }

    /// Gives each row without a group a new one, or that of an earlier row.
    fn add_new(&mut self, columns: &[&[u16]], groups: &mut [u32]) -> bool {
        let mut count = self.count();
        for (row, (group, slot)) in groups.iter_mut().zip(&self.slots).enumerate() {
            if *group != NO_GROUP {
                continue;
            }
            let Some(known) = self.table.get_mut(*slot as usize) else { return false };
            if *known == 0 {
                if count >= MOST_GROUPS {
                    return false;
                }
                count += 1;
                *known = count as u16;
                self.codes.extend(columns.iter().map(|codes| codes.get(row).copied().unwrap_or(0)));
            }
            *group = u32::from(*known) - 1;
        }
        true
    }

    /// Makes the table large enough for so many codes of each column; false when it would become too large.
    fn make_room(&mut self, counts: &[usize]) -> bool {
        let needed = counts.iter().map(|count| bits_of_codes(*count));
        let bits: Vec<u32> = needed.zip(&self.bits).map(|(needed, known)| needed.max(*known)).collect();
        if bits == self.bits {
            return true;
        }
        let all = bits.iter().sum::<u32>();
        if all > MOST_BITS || bits.len() != self.bits.len() {
            return false;
        }
        self.bits = bits;
        self.table = vec![0; 1 << all];
        for (number, codes) in (1..).zip(self.codes.chunks_exact(self.bits.len().max(1))) {
            let slot = codes
                .iter()
                .zip(shifts(&self.bits))
                .fold(0_usize, |slot, (code, shift)| slot | usize::from(*code) << shift);
            if let Some(known) = self.table.get_mut(slot) {
                *known = number;
            }
        }
        true
    }
}

/// Where the code of each column begins in a slot.
fn shifts(bits: &[u32]) -> impl Iterator<Item = u32> {
    bits.iter().scan(0, |next, bits| {
        let shift = *next;
        *next += bits;
        Some(shift)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_need_the_bits_of_the_largest_one() {
        assert_eq!([0, 1, 2, 3, 4, 5, 4096, 4097].map(bits_of_codes), [0, 0, 1, 2, 2, 3, 12, 13]);
    }

    #[test]
    fn too_many_groups_are_refused_and_keep_the_known_ones() {
        let mut groups = Groups::new(1);
        let mut found = Vec::new();
        let codes: Vec<u16> = (0..MOST_GROUPS as u16).collect();
        assert!(groups.find(&[&codes], &[MOST_GROUPS], &mut found));
        assert_eq!(found, (0..MOST_GROUPS as u32).collect::<Vec<_>>());
        assert!(!groups.find(&[&[5, MOST_GROUPS as u16]], &[MOST_GROUPS + 1], &mut found));
        assert_eq!(groups.count(), MOST_GROUPS);
        assert!(groups.find(&[&[7, 5]], &[MOST_GROUPS + 1], &mut found));
        assert_eq!(found, [7, 5]);
        assert!(!Groups::new(2).find(&[&[0], &[0]], &[1 << 9, 1 << 8], &mut found));
        assert!(Groups::new(2).find(&[&[0], &[0]], &[1 << 8, 1 << 8], &mut found));
    }

    proptest! {
        #[test]
        fn rows_are_in_one_group_if_and_only_if_their_codes_are_equal(
            batches in proptest::collection::vec(proptest::collection::vec((0_u16..20, 0_u16..6, 0_u16..3), 0..60), 1..6),
        ) {
            let mut groups = Groups::new(3);
            let mut known: Vec<(u16, u16, u16)> = Vec::new();
            let mut counts = [1_usize; 3];
            for rows in batches {
                let columns: [Vec<u16>; 3] = [
                    rows.iter().map(|row| row.0).collect(),
                    rows.iter().map(|row| row.1).collect(),
                    rows.iter().map(|row| row.2).collect(),
                ];
                for (count, codes) in counts.iter_mut().zip(&columns) {
                    *count = codes.iter().fold(*count, |most, code| most.max(usize::from(*code) + 1));
                }
                for row in &rows {
                    if !known.contains(row) {
                        known.push(*row);
                    }
                }
                let mut found = Vec::new();
                prop_assert!(groups.find(&columns.each_ref().map(Vec::as_slice), &counts, &mut found));
                let expected = rows.iter().map(|row| known.iter().position(|known| known == row).map(|at| at as u32));
                prop_assert_eq!(found.into_iter().map(Some).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
                prop_assert_eq!(groups.count(), known.len());
            }
            let codes = |column: usize| groups.codes(column).collect::<Vec<_>>();
            prop_assert_eq!(codes(1), known.iter().map(|codes| codes.1).collect::<Vec<_>>());
        }
    }
}
