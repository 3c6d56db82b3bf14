//! The pool's free space: extents of whole 4 KiB units, allocated by best fit, merged when they are freed.

use std::collections::{BTreeMap, BTreeSet};

/// Extents start and end at multiples of this.
const UNIT_BYTES: u64 = 4096;

/// `bytes` rounded up to whole units.
pub(super) fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT_BYTES)
}

/// A range of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The free extents, by offset and by size. Neighbours are always merged.
#[derive(Debug)]
pub(super) struct Extents {
    by_offset: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    free_bytes: u64,
}

impl Extents {
    /// All of `0 .. capacity` (rounded down to whole units) is free.
    pub(super) fn new(capacity: u64) -> Self {
        let mut all = Self { by_offset: BTreeMap::new(), by_len: BTreeSet::new(), free_bytes: 0 };
        all.insert(0, capacity - capacity % UNIT_BYTES);
        all
    }

    /// The smallest free extent that holds `bytes` (more than 0), cut to size. `None` when none does.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<Extent> {
        let len = rounded(bytes.max(1));
        let &(found_len, offset) = self.by_len.range((len, 0)..).next()?;
        self.remove(offset, found_len);
        self.insert(offset + len, found_len - len);
        Some(Extent { offset, len })
    }

    /// Frees an extent that [`Extents::allocate`] returned.
    pub(super) fn free(&mut self, extent: Extent) {
        let Extent { mut offset, mut len } = extent;
        if let Some((&before, &before_len)) = self.by_offset.range(..offset).next_back()
            && before + before_len == offset
        {
            self.remove(before, before_len);
            offset = before;
            len += before_len;
        }
        if let Some(&after_len) = self.by_offset.get(&(offset + len)) {
            self.remove(offset + len, after_len);
            len += after_len;
        }
        self.insert(offset, len);
    }

    /// Free bytes, and the largest free extent.
    pub(super) fn free_bytes(&self) -> (u64, u64) {
        (self.free_bytes, self.by_len.last().map_or(0, |(len, _)| *len))
    }

    fn insert(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.by_offset.insert(offset, len);
            self.by_len.insert((len, offset));
            self.free_bytes += len;
        }
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
        self.free_bytes -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_never_overlap_and_all_come_back_as_one(
            steps in prop::collection::vec((any::<bool>(), 1u64..200_000, any::<prop::sample::Index>()), 1..200)
        ) {
            let capacity = 4 << 20;
            let mut extents = Extents::new(capacity);
            let mut held: Vec<Extent> = Vec::new();
            for (allocate, bytes, which) in steps {
                if allocate || held.is_empty() {
                    let (free, largest) = extents.free_bytes();
                    match extents.allocate(bytes) {
                        Some(new) => {
                            prop_assert!(new.len >= bytes && new.offset + new.len <= capacity);
                            let apart = |e: &Extent| e.offset + e.len <= new.offset || new.offset + new.len <= e.offset;
                            prop_assert!(held.iter().all(apart));
                            held.push(new);
                        }
                        None => prop_assert!(largest < rounded(bytes) && largest <= free),
                    }
                } else {
                    extents.free(held.swap_remove(which.index(held.len())));
                }
                let used: u64 = held.iter().map(|e| e.len).sum();
                prop_assert_eq!(extents.free_bytes().0 + used, capacity);
            }
            held.into_iter().for_each(|e| extents.free(e));
            prop_assert_eq!(extents.free_bytes(), (capacity, capacity));
            prop_assert_eq!(extents.by_offset.len(), 1);
        }
    }
}
