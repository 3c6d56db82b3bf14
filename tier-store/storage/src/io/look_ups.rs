//! Whether look-ups come: statements that read single pages and nothing else.

use std::collections::VecDeque;

use super::intent::{Intent, StatementId};

/// So long after a look-up further ones are expected.
const COME_US: u64 = 1_000_000;
/// Statements that are remembered as reading more than pages: more than run at once, mostly.
const REMEMBERED: usize = 64;

/// Looks at each read and write that comes.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    /// Until when look-ups are expected.
    until_us: u64,
    /// The statement that says so, and until when they were expected before it: it may go on to read more than pages.
    latest: StatementId,
    before_us: u64,
    /// Statements that read or wrote more than pages, the latest last. The single pages that these read, such as rows that a
    /// join has left, follow what they read in large: nobody makes room for them on the device.
    others: VecDeque<StatementId>,
}

impl LookUps {
    /// Notes what is asked for.
    pub(super) fn note(&mut self, intent: Intent, is_point: bool, now_us: u64) {
        // What belongs to no statement are second reads of what a statement reads.
        if intent.statement == StatementId::NONE {
            return;
        }
        let is_known = self.others.contains(&intent.statement);
        if is_point && !is_known {
            if intent.statement != self.latest {
                (self.latest, self.before_us) = (intent.statement, self.until_us);
            }
            self.until_us = now_us + COME_US;
        }
        if is_point || is_known {
            return;
        }
        if intent.statement == self.latest {
            self.until_us = self.before_us;
        }
        if self.others.len() == REMEMBERED {
            self.others.pop_front();
        }
        self.others.push_back(intent.statement);
    }

    /// Whether one came a short time ago, so that further ones are expected.
    pub(super) fn come(&self, now_us: u64) -> bool {
        now_us < self.until_us
    }

    #[cfg(test)]
    pub(super) fn expect_until(&mut self, until_us: u64) {
        self.until_us = until_us;
    }
}

#[cfg(test)]
mod tests {
    use super::super::intent::Class;
    use super::*;

    #[test]
    fn further_look_ups_are_expected_for_a_second() {
        let mut look_ups = LookUps::default();
        assert!(!look_ups.come(0));
        let of = |class: Class| Intent { statement: StatementId::next(), ..class.into() };
        look_ups.note(of(Class::Needed), false, 0);
        assert!(!look_ups.come(0));
        look_ups.note(of(Class::Point), true, 5);
        assert!(look_ups.come(COME_US + 4) && !look_ups.come(COME_US + 5));
        look_ups.note(Class::Point.into(), true, COME_US);
        assert!(!look_ups.come(COME_US + 5), "of no statement");
    }

    #[test]
    fn pages_of_statements_that_read_more_are_no_look_ups() {
        let mut look_ups = LookUps::default();
        let statement = StatementId::next();
        let ask = |look_ups: &mut LookUps, class: Class, statement, now_us| {
            look_ups.note(Intent { statement, ..class.into() }, class == Class::Point, now_us);
        };
        ask(&mut look_ups, Class::Prefetch, statement, 0);
        ask(&mut look_ups, Class::Needed, StatementId::NONE, 0);
        ask(&mut look_ups, Class::Point, statement, 0);
        assert!(!look_ups.come(0));
        for _ in 0..REMEMBERED {
            ask(&mut look_ups, Class::Needed, StatementId::next(), 0);
        }
        ask(&mut look_ups, Class::Point, statement, 0);
        assert!(look_ups.come(0), "it was forgotten");
        ask(&mut look_ups, Class::Needed, statement, 0);
        assert!(!look_ups.come(0), "it reads more, after all");
        ask(&mut look_ups, Class::Point, StatementId::next(), 0);
        ask(&mut look_ups, Class::Point, statement, 0);
        ask(&mut look_ups, Class::Needed, StatementId::next(), 0);
        assert!(look_ups.come(0), "another one reads pages only");
    }
}
