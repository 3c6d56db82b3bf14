//! Priorities of reads, and the queue of waiting reads.

use std::collections::VecDeque;

/// The purpose of a read, from the most urgent to the least: a queued read waits while reads of a more urgent class are
/// queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A statement waits for the bytes.
    Needed,
    /// A scan will need the bytes soon.
    Prefetch,
    /// A statement reads back rows that it spilled because it exceeded its share of memory.
    Spill,
    /// Work that no statement waits for: moves between tiers, compaction, marks and surveys of views, checks, backups.
    Upkeep,
}

/// Every 16th read to start is of one of the lower classes, in rotation, so that no class starves.
const FAIRNESS_INTERVAL: u32 = 16;

/// The waiting requests: a first-in-first-out queue for each class.
#[derive(Debug)]
pub(crate) struct ClassQueues<T> {
    classes: [VecDeque<T>; 4],
    started: u32,
}

impl<T> Default for ClassQueues<T> {
    fn default() -> Self {
        Self { classes: Default::default(), started: 0 }
    }
}

impl<T> ClassQueues<T> {
    pub(crate) fn push(&mut self, class: Class, item: T) {
        self.queue_mut(class).push_back(item);
    }

    fn queue_mut(&mut self, class: Class) -> &mut VecDeque<T> {
        let [needed, prefetch, spill, upkeep] = &mut self.classes;
        match class {
            Class::Needed => needed,
            Class::Prefetch => prefetch,
            Class::Spill => spill,
            Class::Upkeep => upkeep,
        }
    }

    /// Moves a request that waits in a less urgent class to the end of `class`. False if there is none.
    pub(crate) fn raise(&mut self, class: Class, is_it: impl Fn(&T) -> bool) -> bool {
        let lower = [Class::Prefetch, Class::Spill, Class::Upkeep].into_iter().filter(|other| *other > class);
        for other in lower {
            let queue = self.queue_mut(other);
            if let Some(item) = queue.iter().position(&is_it).and_then(|place| queue.remove(place)) {
                self.push(class, item);
                return true;
            }
        }
        false
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.iter().map(VecDeque::len).sum()
    }

    /// Removes the next request to start.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.started = self.started.wrapping_add(1);
        // The lower classes share these starts in rotation.
        let lower = self.classes.len() - 1;
        let first = match self.started.is_multiple_of(FAIRNESS_INTERVAL) {
            true => 1 + (self.started / FAIRNESS_INTERVAL - 1) as usize % lower,
            false => 0,
        };
        let (before, from) = self.classes.split_at_mut(first);
        from.iter_mut().chain(before).find_map(VecDeque::pop_front)
    }

    /// Removes the request at a position, counted over all classes.
    pub(crate) fn remove(&mut self, mut place: usize) -> Option<T> {
        for class in &mut self.classes {
            match class.len() {
                len if place < len => return class.remove(place),
                len => place -= len,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_goes_first_and_nothing_waits_for_ever() {
        let mut waiting = ClassQueues::default();
        for number in 0..100 {
            waiting.push(Class::Upkeep, (Class::Upkeep, number));
            waiting.push(Class::Prefetch, (Class::Prefetch, number));
            waiting.push(Class::Spill, (Class::Spill, number));
            waiting.push(Class::Needed, (Class::Needed, number));
        }
        assert_eq!(waiting.len(), 400);
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order.len(), 400);
        for class in [Class::Needed, Class::Prefetch, Class::Spill, Class::Upkeep] {
            let numbers: Vec<i32> = order.iter().filter(|(c, _)| *c == class).map(|(_, n)| *n).collect();
            assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "each class in its order");
        }
        let first = |class| order.iter().position(|(c, _)| *c == class);
        assert_eq!((first(Class::Needed), first(Class::Prefetch)), (Some(0), Some(15)));
        assert_eq!((first(Class::Spill), first(Class::Upkeep)), (Some(31), Some(47)));
        let early = order.iter().take(100).filter(|(class, _)| *class == Class::Needed).count();
        assert!(early >= 90, "{early}");
        waiting.push(Class::Upkeep, (Class::Upkeep, 7));
        assert_eq!((waiting.remove(1), waiting.remove(0), waiting.len()), (None, Some((Class::Upkeep, 7)), 0));
    }

    #[test]
    fn a_raised_request_waits_behind_those_of_its_new_class() {
        let mut waiting = ClassQueues::default();
        waiting.push(Class::Needed, 0);
        (1..4).for_each(|number| waiting.push(Class::Prefetch, number));
        waiting.push(Class::Upkeep, 4);
        assert!(waiting.raise(Class::Needed, |number| *number == 2));
        assert!(!waiting.raise(Class::Needed, |number| *number == 2), "it is as urgent already");
        assert!(!waiting.raise(Class::Upkeep, |number| *number == 1), "nothing is lowered");
        assert!(!waiting.raise(Class::Needed, |number| *number == 9));
        assert!(waiting.raise(Class::Prefetch, |number| *number == 4));
        let order: Vec<i32> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order, [0, 2, 1, 3, 4]);
    }
}
