//! The queue of reads and writes that wait for the device.
//!
//! - *Between classes* the more urgent one goes first. So that none starves, a class that waits earns a sixteenth of the
//!   bytes that are read for more urgent ones, and its first read goes before them once it has earned its bytes (deficit
//!   round robin, in bytes: a read of a page does not count like one of a column).
//! - *The rules* ([`IoRules`]) may give a class the place of another one, or several the same.
//! - *In a class* statements take turns by bytes: the next read is of the statement for which the fewest bytes were read
//!   since it began to wait (start-time fair queuing), so that one that asks for much delays others by one read.
//! - *In a statement* reads of a better [`Level`] go first, and so does the statement with the better one when it is the turn
//!   of several. No level keeps a read waiting: the better reads of its own statement end, and another statement goes before
//!   it for its level once at most, as each turn puts those that begin to wait later behind those that wait.

use std::collections::VecDeque;

use super::intent::{Class, Intent, Level, StatementId};
use super::rules::IoRules;

/// A class earns one byte for so many bytes that are read for more urgent ones.
const SHARE: u64 = 16;

/// Reads that wait, each with its bytes.
#[derive(Debug)]
pub(crate) struct ReadQueue<T> {
    classes: [ClassQueue<T>; Class::ALL.len()],
    rules: IoRules,
}

/// Reads of one class.
#[derive(Debug)]
struct ClassQueue<T> {
    statements: Vec<StatementQueue<T>>,
    /// Bytes that were read for the statement that was served last.
    served_bytes: u64,
    /// Bytes that it may read before more urgent classes.
    earned_bytes: u64,
}

/// Reads of one statement, in their order. Without any, it is kept while it has had more than the statement whose turn it
/// is, so that it does not come before others again when it asks for the next read.
#[derive(Debug)]
struct StatementQueue<T> {
    statement: StatementId,
    served_bytes: u64,
    /// By level, and in a level as they came.
    waiting: VecDeque<Waiting<T>>,
}

/// A read that waits.
#[derive(Debug)]
struct Waiting<T> {
    level: Level,
    bytes: u64,
    item: T,
}

impl<T> Default for ReadQueue<T> {
    fn default() -> Self {
        Self { classes: Class::ALL.map(|_| ClassQueue::default()), rules: IoRules::default() }
    }
}

impl<T> Default for ClassQueue<T> {
    fn default() -> Self {
        Self { statements: Vec::new(), served_bytes: 0, earned_bytes: 0 }
    }
}

impl<T> ClassQueue<T> {
    fn push(&mut self, statement: StatementId, read: Waiting<T>) {
        match self.statements.iter_mut().find(|known| known.statement == statement) {
            Some(known) => {
                // One that waits keeps its turn.
                if known.waiting.is_empty() {
                    known.served_bytes = known.served_bytes.max(self.served_bytes);
                }
                let behind = known.waiting.partition_point(|other| other.level <= read.level);
                known.waiting.insert(behind, read);
            }
            None => {
                // What it read before it waited does not count.
                let served_bytes = self.served_bytes;
                self.statements.push(StatementQueue { statement, served_bytes, waiting: [read].into() });
            }
        }
    }

    /// The place of the statement whose turn it is, and the bytes of its first read.
    fn next(&self) -> Option<(usize, u64)> {
        let waiting = self.statements.iter().enumerate();
        let waiting = waiting.filter_map(|(place, queue)| Some((place, queue.served_bytes, queue.waiting.front()?)));
        let next = waiting.min_by_key(|(_, served_bytes, first)| (*served_bytes, first.level));
        next.map(|(place, _, first)| (place, first.bytes))
    }

    fn pop(&mut self) -> Option<Waiting<T>> {
        let (place, bytes) = self.next()?;
        let queue = self.statements.get_mut(place)?;
        // A byte more, so that statements that begin to wait from now on are behind those whose turn it is as well, whatever
        // their levels.
        self.served_bytes = queue.served_bytes + 1;
        queue.served_bytes += bytes;
        self.take(place, 0)
    }

    /// Removes a read of a statement.
    fn take(&mut self, place: usize, number: usize) -> Option<Waiting<T>> {
        let queue = self.statements.get_mut(place)?;
        let taken = queue.waiting.remove(number);
        let served_bytes = self.served_bytes;
        self.statements.retain(|queue| !queue.waiting.is_empty() || queue.served_bytes > served_bytes);
        if self.len() == 0 {
            *self = Self::default();
        }
        taken
    }

    fn len(&self) -> usize {
        self.statements.iter().map(|queue| queue.waiting.len()).sum()
    }
}

impl<T> ReadQueue<T> {
    /// The rules of its order.
    pub(crate) fn rules(&self) -> IoRules {
        self.rules
    }

    /// Sets the rules for reads to come; those that wait keep their places.
    pub(crate) fn set_rules(&mut self, rules: IoRules) {
        self.rules = rules;
    }

    pub(crate) fn push(&mut self, intent: Intent, bytes: u64, item: T) {
        self.push_at(self.rules.queued(intent), bytes, item);
    }

    fn push_at(&mut self, place: Intent, bytes: u64, item: T) {
        self.class_mut(place.class).push(place.statement, Waiting { level: place.level, bytes, item });
    }

    fn class_mut(&mut self, class: Class) -> &mut ClassQueue<T> {
        class.entry_in(self.classes.each_mut())
    }

    /// Moves a read that waits in a less urgent class behind those of the same level and statement in this one: the first for
    /// which `is_it`, which may note the new intent there. False if there is none.
    pub(crate) fn raise(&mut self, intent: Intent, mut is_it: impl FnMut(&mut T) -> bool) -> bool {
        let place = self.rules.queued(intent);
        for class in Class::ALL.into_iter().filter(|class| *class > place.class) {
            let queue = self.class_mut(class);
            let found = queue.statements.iter_mut().enumerate().find_map(|(number, statement)| {
                Some((number, statement.waiting.iter_mut().position(|read| is_it(&mut read.item))?))
            });
            if let Some(read) = found.and_then(|(statement, number)| queue.take(statement, number)) {
                self.push_at(place, read.bytes, read.item);
                return true;
            }
        }
        false
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.iter().map(ClassQueue::len).sum()
    }

    /// Whether a read with this intent waits where points do.
    pub(crate) fn is_point(&self, intent: Intent) -> bool {
        self.rules.overtakes(intent.class)
    }

    /// Whether a read of [`Class::Point`] waits.
    pub(crate) fn has_point(&self) -> bool {
        self.classes.first().is_some_and(|points| !points.statements.is_empty())
    }

    /// Removes the first read of [`Class::Point`]. It counts for no other class: an engine that takes points by themselves
    /// takes the others by [`Self::pop_other`].
    pub(crate) fn pop_point(&mut self) -> Option<T> {
        self.class_mut(Class::Point).pop().map(|read| read.item)
    }

    /// Removes the next read that is none of [`Class::Point`].
    pub(crate) fn pop_other(&mut self) -> Option<T> {
        self.pop_from(1)
    }

    /// Removes the next read.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_from(0)
    }

    /// Removes the next read of the classes from the one at place `first` on.
    fn pop_from(&mut self, first: usize) -> Option<T> {
        let has_earned = |queue: &ClassQueue<T>| queue.next().is_some_and(|(_, bytes)| bytes <= queue.earned_bytes);
        let waits = |queue: &ClassQueue<T>| !queue.statements.is_empty();
        let find = |is_it: &dyn Fn(&ClassQueue<T>) -> bool| {
            let mut known = self.classes.iter().enumerate().skip(first);
            known.find(|(_, queue)| is_it(queue)).map(|(place, _)| place)
        };
        let place = find(&has_earned).or_else(|| find(&waits))?;
        let queue = self.classes.get_mut(place)?;
        let earned_bytes = queue.earned_bytes;
        let read = queue.pop()?;
        queue.earned_bytes = queue.earned_bytes.min(earned_bytes).saturating_sub(read.bytes);
        self.earn(place, read.bytes);
        Some(read.item)
    }

    /// Lets the classes that wait behind the one at `place` earn their part of what was read for it.
    fn earn(&mut self, place: usize, bytes: u64) {
        for queue in self.classes.iter_mut().skip(place + 1) {
            // What it cannot spend it does not save.
            let most_bytes = queue.next().map_or(0, |(_, bytes)| bytes);
            queue.earned_bytes = (queue.earned_bytes + bytes.div_ceil(SHARE)).min(most_bytes);
        }
    }

    /// Removes the read at a position, counted over all classes.
    pub(crate) fn remove(&mut self, mut place: usize) -> Option<T> {
        for class in &mut self.classes {
            for statement in 0..class.statements.len() {
                let len = class.statements.get(statement)?.waiting.len();
                if place < len {
                    return class.take(statement, place).map(|read| read.item);
                }
                place -= len;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::OnceLock;

    use super::super::rules::Turns;
    use super::*;

    fn intent(class: Class, statement: usize) -> Intent {
        static STATEMENTS: OnceLock<[StatementId; 2]> = OnceLock::new();
        let [first, second] = STATEMENTS.get_or_init(|| [StatementId::next(), StatementId::next()]);
        Intent { statement: [StatementId::NONE, *first, *second][statement], ..class.into() }
    }

    fn at_level(level: usize, statement: StatementId) -> Intent {
        Intent { class: Class::Needed, statement, level: Level::new(level) }
    }

    #[test]
    fn the_most_urgent_class_goes_first_and_each_gets_its_share_of_the_bytes() {
        let mut waiting = ReadQueue::default();
        for number in 0..400 {
            for class in Class::ALL {
                // A read ahead is sixteen times as large as others.
                let bytes = if class == Class::Prefetch { 64 << 10 } else { 4 << 10 };
                waiting.push(intent(class, 0), bytes, (class, number));
            }
        }
        assert_eq!(waiting.len(), 2400);
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order.len(), 2400);
        for class in Class::ALL {
            let numbers: Vec<i32> = order.iter().filter(|(c, _)| *c == class).map(|(_, n)| *n).collect();
            assert_eq!(numbers, (0..400).collect::<Vec<_>>(), "each class in its order");
        }
        // While points wait, every other class has a sixteenth of their bytes, and of those before it.
        let early: Vec<_> = order.iter().take_while(|read| **read != (Class::Point, 399)).collect();
        let count = |class| early.iter().filter(|(c, _)| *c == class).count();
        assert_eq!(count(Class::Point), 399);
        assert!([24, 25].contains(&count(Class::Needed)), "{}", count(Class::Needed));
        assert!((24..=28).contains(&count(Class::Spill)), "{}", count(Class::Spill));
        assert!([1, 2].contains(&count(Class::Prefetch)), "{}", count(Class::Prefetch));
        assert!((24..=34).contains(&count(Class::Write)), "{}", count(Class::Write));
        assert!((24..=36).contains(&count(Class::Upkeep)), "{}", count(Class::Upkeep));
    }

    #[test]
    fn statements_of_a_class_take_turns_by_bytes() {
        let mut waiting = ReadQueue::default();
        // One asks for eight reads of a megabyte, then another one for sixteen of a quarter.
        (0..8).for_each(|number| waiting.push(intent(Class::Needed, 1), 1 << 20, (1, number)));
        (0..16).for_each(|number| waiting.push(intent(Class::Needed, 2), 256 << 10, (2, number)));
        let order: Vec<(i32, i32)> = std::iter::from_fn(|| waiting.pop()).collect();
        let statements: Vec<i32> = order.iter().map(|(statement, _)| *statement).collect();
        assert_eq!(statements[..10], [1, 2, 2, 2, 2, 1, 2, 2, 2, 2]);
        assert_eq!(statements[20..], [1, 1, 1, 1], "what is left");
        // What one has read counts while it waits only.
        waiting.push(intent(Class::Needed, 1), 1 << 20, (1, 0));
        waiting.push(intent(Class::Needed, 2), 4 << 10, (2, 0));
        waiting.push(intent(Class::Needed, 2), 4 << 10, (2, 1));
        let order: Vec<(i32, i32)> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order, [(1, 0), (2, 0), (2, 1)]);
    }

    #[test]
    fn one_that_asks_again_and_again_leaves_others_their_turns() {
        let mut waiting = ReadQueue::default();
        (0..40).for_each(|_| waiting.push(intent(Class::Needed, 2), 4096, 2));
        waiting.push(intent(Class::Needed, 1), 4096, 1);
        let mut turns = [0; 3];
        for _ in 0..40 {
            let statement = waiting.pop().unwrap();
            turns[statement] += 1;
            if statement == 1 {
                waiting.push(intent(Class::Needed, 1), 4096, 1);
            }
        }
        assert_eq!(turns, [0, 20, 20]);
        assert_eq!(waiting.len(), 21);
    }

    #[test]
    fn in_a_statement_the_lower_operator_reads_first() {
        let mut waiting = ReadQueue::default();
        let statement = StatementId::next();
        let ask = |waiting: &mut ReadQueue<usize>| {
            waiting.push(Intent { statement, ..Class::Needed.into() }, 4096, 0);
            for (number, level) in [2, 0, 2, 0].into_iter().enumerate() {
                waiting.push(at_level(level, statement), 4096, number + 1);
            }
            std::iter::from_fn(|| waiting.pop()).collect::<Vec<_>>()
        };
        assert_eq!(ask(&mut waiting), [2, 4, 1, 3, 0]);
        for turns in [Turns::Bytes, Turns::Arrival] {
            waiting.set_rules(IoRules::new(IoRules::DEFAULT_ORDER, turns).unwrap());
            assert_eq!(ask(&mut waiting), [0, 1, 2, 3, 4], "{turns:?}");
        }
    }

    #[test]
    fn a_level_decides_only_between_statements_whose_turn_it_is() {
        let [first, second] = [StatementId::next(), StatementId::next()];
        let mut waiting = ReadQueue::default();
        (0..2).for_each(|number| waiting.push(at_level(2, first), 4096, ("high", number)));
        (0..3).for_each(|number| waiting.push(at_level(1, second), 4096, ("low", number)));
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order, [("low", 0), ("high", 0), ("low", 1), ("high", 1), ("low", 2)]);
        // A better class still goes first, and new statements of better levels keep nobody waiting.
        waiting.push(at_level(5, first), 4096, ("waits", 0));
        waiting.push(intent(Class::Point, 2), 4096, ("point", 0));
        let mut served = Vec::new();
        for number in 0..4 {
            waiting.push(at_level(0, StatementId::next()), 4096, ("new", number));
            waiting.push(at_level(5, first), 4096, ("waits", number + 1));
            served.extend(waiting.pop());
        }
        assert_eq!(served, [("point", 0), ("new", 0), ("new", 1), ("waits", 0)]);
    }

    #[test]
    fn points_can_be_taken_by_themselves() {
        let mut waiting = ReadQueue::default();
        waiting.push(intent(Class::Needed, 1), 4096, 0);
        assert!(!waiting.has_point() && waiting.pop_point().is_none());
        waiting.push(intent(Class::Point, 2), 4096, 1);
        assert!(waiting.has_point());
        assert_eq!((waiting.pop_point(), waiting.pop_point(), waiting.pop()), (Some(1), None, Some(0)));
        waiting.push(intent(Class::Point, 2), 4096, 1);
        waiting.push(intent(Class::Prefetch, 1), 4096, 2);
        assert_eq!((waiting.pop_other(), waiting.pop_other(), waiting.pop()), (Some(2), None, Some(1)));
        waiting.push(intent(Class::Upkeep, 0), 4096, 7);
        assert_eq!((waiting.remove(1), waiting.remove(0), waiting.len()), (None, Some(7), 0));
    }

    #[test]
    fn rules_change_the_order() {
        let served = |order: &str, turns| {
            let mut waiting = ReadQueue::default();
            waiting.set_rules(IoRules::new(order, turns).unwrap());
            (0..4).for_each(|number| waiting.push(intent(Class::Prefetch, 1), 4096, ("ahead", number)));
            (0..2).for_each(|number| waiting.push(intent(Class::Needed, 2), 4096, ("needed", number)));
            waiting.push(intent(Class::Spill, 2), 4096, ("spill", 0));
            // A scan waits for what it reads ahead now.
            waiting.raise(intent(Class::Needed, 1), |read| *read == ("ahead", 3));
            std::iter::from_fn(|| waiting.pop())
                .map(|(what, number)| format!("{what}{number}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let by_default = served(IoRules::DEFAULT_ORDER, Turns::Statement);
        assert_eq!(by_default, "needed0 ahead3 needed1 spill0 ahead0 ahead1 ahead2");
        let spills_first = served("point > spill > needed > prefetch > write > upkeep", Turns::Statement);
        assert_eq!(spills_first, "spill0 needed0 ahead3 needed1 ahead0 ahead1 ahead2");
        let all_equal = "point = needed = spill = prefetch = write = upkeep";
        assert_eq!(served(all_equal, Turns::Statement), "ahead0 needed0 ahead1 needed1 ahead2 spill0 ahead3");
        assert_eq!(served(all_equal, Turns::Arrival), "ahead0 ahead1 ahead2 ahead3 needed0 needed1 spill0");
        // Points overtake where their rank is theirs alone.
        let mut waiting = ReadQueue::default();
        assert!(waiting.is_point(intent(Class::Point, 1)) && !waiting.is_point(intent(Class::Needed, 1)));
        waiting.set_rules(IoRules::new(all_equal, Turns::Arrival).unwrap());
        waiting.push(intent(Class::Point, 1), 4096, 0);
        assert!(!waiting.is_point(intent(Class::Point, 1)) && !waiting.has_point() && waiting.pop_other() == Some(0));
    }

    #[test]
    fn a_raised_read_waits_behind_those_of_its_new_class() {
        let mut waiting = ReadQueue::default();
        waiting.push(intent(Class::Needed, 1), 4096, 0);
        (1..4).for_each(|number| waiting.push(intent(Class::Prefetch, 1), 4096, number));
        waiting.push(intent(Class::Upkeep, 0), 4096, 4);
        assert!(waiting.raise(intent(Class::Needed, 1), |number| *number == 2));
        assert!(!waiting.raise(intent(Class::Needed, 1), |number| *number == 2), "it is as urgent already");
        assert!(!waiting.raise(intent(Class::Upkeep, 1), |number| *number == 1), "nothing is lowered");
        assert!(!waiting.raise(intent(Class::Needed, 1), |number| *number == 9));
        assert!(waiting.raise(intent(Class::Prefetch, 1), |number| *number == 4));
        let order: Vec<i32> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order, [0, 2, 1, 3, 4]);
    }
}
