//! Whether look-ups come: statements that read a few single pages and nothing else.

use std::collections::VecDeque;

use super::intent::{Intent, StatementId};

/// So many of them within [`WITHIN_US`] are worth that scans get less of the device.
const FEWEST: usize = 4;
const WITHIN_US: u64 = 1_000_000;
/// A look-up asks for no more reads than these: a row of some dozen columns.
const MOST_READS: usize = 48;
/// Statements that are remembered, of either kind: more than run at once, mostly.
const REMEMBERED: usize = 64;

/// Looks at each read and write that comes.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    /// The last look-ups, the latest one last.
    latest: VecDeque<LookUp>,
    /// The last statements that read or wrote more. The single pages that these read, such as rows that a join has left,
    /// follow what they read in large: nobody makes room for them on the device.
    others: VecDeque<StatementId>,
}

#[derive(Debug, Clone, Copy)]
struct LookUp {
    statement: StatementId,
    /// When it read last.
    at_us: u64,
    /// Reads that it has asked for.
    reads: usize,
}

impl LookUps {
    /// Notes some reads or writes. What belongs to no statement is no look-up: second reads of what some statement reads, and
    /// upkeep.
    pub(super) fn note(&mut self, intent: Intent, is_point: bool, reads: usize, now_us: u64) {
        let statement = intent.statement;
        if statement == StatementId::NONE || self.others.contains(&statement) {
            return;
        }
        let known = self.latest.iter().position(|known| known.statement == statement);
        let before = known.and_then(|place| self.latest.remove(place)).map_or(0, |known| known.reads);
        let reads = before + reads;
        if is_point && reads <= MOST_READS {
            push(&mut self.latest, LookUp { statement, at_us: now_us, reads }, REMEMBERED);
        } else {
            push(&mut self.others, statement, REMEMBERED);
        }
    }

    /// Whether enough of them came a short time ago, so that further ones are expected.
    pub(super) fn come(&self, now_us: u64) -> bool {
        let first = self.latest.len().checked_sub(FEWEST).and_then(|place| self.latest.get(place));
        first.is_some_and(|first| now_us < first.at_us + WITHIN_US)
    }

    /// Lets look-ups come without an end, or none.
    #[cfg(test)]
    pub(super) fn expect(&mut self, expected: bool) {
        let endless = LookUp { statement: StatementId::NONE, at_us: u64::MAX / 2, reads: 1 };
        self.latest = if expected { [endless; FEWEST].into() } else { VecDeque::new() };
    }
}

fn push<T>(latest: &mut VecDeque<T>, new: T, most: usize) {
    if latest.len() == most {
        latest.pop_front();
    }
    latest.push_back(new);
}

#[cfg(test)]
mod tests {
    use super::super::intent::Class;
    use super::*;

    fn ask(look_ups: &mut LookUps, class: Class, statement: StatementId, now_us: u64) {
        look_ups.note(Intent { statement, ..class.into() }, class == Class::Point, 1, now_us);
    }

    #[test]
    fn further_look_ups_are_expected_while_some_come_within_a_second() {
        let mut look_ups = LookUps::default();
        for now_us in 0..4 {
            assert!(!look_ups.come(now_us));
            let statement = StatementId::next();
            (0..3).for_each(|_| ask(&mut look_ups, Class::Point, statement, now_us));
        }
        assert!(look_ups.come(3) && look_ups.come(WITHIN_US - 1) && !look_ups.come(WITHIN_US));
        ask(&mut look_ups, Class::Point, StatementId::NONE, WITHIN_US);
        assert!(!look_ups.come(WITHIN_US), "of no statement");
        ask(&mut look_ups, Class::Point, StatementId::next(), WITHIN_US);
        assert!(look_ups.come(WITHIN_US), "four in the last second");
    }

    #[test]
    fn pages_of_statements_that_read_more_are_no_look_ups() {
        let mut look_ups = LookUps::default();
        let statement = StatementId::next();
        ask(&mut look_ups, Class::Prefetch, statement, 0);
        ask(&mut look_ups, Class::Needed, StatementId::NONE, 0);
        (1..FEWEST).for_each(|_| ask(&mut look_ups, Class::Point, StatementId::next(), 0));
        ask(&mut look_ups, Class::Point, statement, 0);
        assert!(!look_ups.come(0));
        let late = StatementId::next();
        ask(&mut look_ups, Class::Point, late, 0);
        assert!(look_ups.come(0));
        ask(&mut look_ups, Class::Needed, late, 0);
        assert!(!look_ups.come(0), "it reads more, after all");
        (0..REMEMBERED).for_each(|_| ask(&mut look_ups, Class::Write, StatementId::next(), 0));
        assert!(!look_ups.come(0));
        (0..MOST_READS).for_each(|_| ask(&mut look_ups, Class::Point, late, 0));
        assert!(look_ups.come(0), "that was forgotten");
        ask(&mut look_ups, Class::Point, late, 0);
        assert!(!look_ups.come(0), "too many pages");
    }

    #[test]
    fn statements_that_read_many_pages_in_turn_are_no_look_ups() {
        let mut look_ups = LookUps::default();
        let statements: Vec<_> = (0..2 * FEWEST).map(|_| StatementId::next()).collect();
        for _ in 0..=MOST_READS {
            statements.iter().for_each(|statement| ask(&mut look_ups, Class::Point, *statement, 0));
        }
        assert!(!look_ups.come(0));
        for _ in 0..FEWEST {
            ask(&mut look_ups, Class::Point, StatementId::next(), 0);
            // Scans begin with small reads.
            ask(&mut look_ups, Class::Point, StatementId::next(), 0);
            let scan = StatementId::next();
            ask(&mut look_ups, Class::Point, scan, 0);
            ask(&mut look_ups, Class::Prefetch, scan, 0);
        }
        assert!(look_ups.come(0));
    }
}
