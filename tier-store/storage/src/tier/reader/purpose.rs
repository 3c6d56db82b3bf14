//! What a read of the home is for, and the intent that follows from it for the queue of the device.

use crate::io::{Class, Intent, Level, StatementId};

/// Says whether a cold read may be refused when the I/O account is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// A read ahead of use: admitted only with room in the account.
    Prefetch,
    /// A read that is needed now, with nothing else under way: always admitted.
    Guaranteed,
    /// A read for a move: always admitted, but never shared with statements, which would have to wait for it.
    Move,
    /// A read for other upkeep: admitted with room in the account, or when nothing else is in it; never shared with
    /// statements.
    Upkeep,
}

impl Admission {
    /// True when no statement waits for the read.
    pub(super) fn is_upkeep(self) -> bool {
        matches!(self, Self::Move | Self::Upkeep)
    }
}

/// What a read of the home is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPurpose {
    /// Whether it may be refused.
    pub admission: Admission,
    /// The statement that reads.
    pub statement: StatementId,
    /// The level of the operator that reads, if it reads at random.
    pub level: Level,
    /// Whether the scan has asked for little so far: its small reads are then of [`Class::Point`].
    pub is_short: bool,
}

impl From<Admission> for ReadPurpose {
    /// A read that belongs to no statement.
    fn from(admission: Admission) -> Self {
        Self { admission, statement: StatementId::NONE, level: Level::NONE, is_short: false }
    }
}

impl ReadPurpose {
    /// The intent of a read of so many bytes, for all rows of its columns or for some of them. One for all rows is sequential
    /// unless it is a point, so it has no level.
    pub(super) fn intent(self, bytes: u64, is_part: bool) -> Intent {
        let class = self.class(bytes, is_part);
        let level = if is_part || class == Class::Point { self.level } else { Level::NONE };
        Intent { class, statement: self.statement, level }
    }

    /// The class of a read of so many bytes, for all rows of its columns or some.
    fn class(self, bytes: u64, is_part: bool) -> Class {
        match self.admission {
            Admission::Move | Admission::Upkeep => Class::Upkeep,
            // Columns that others read are no point, however few bytes this reader adds.
            _ if self.is_short && bytes == 0 => Class::Needed,
            _ if self.is_short && bytes <= Class::POINT_BYTES => Class::Point,
            // A statement reads some rows of a column when others have passed its filter: it needs them now.
            Admission::Guaranteed => Class::Needed,
            Admission::Prefetch if is_part => Class::Needed,
            Admission::Prefetch => Class::Prefetch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_reads_of_some_rows_have_the_level_of_their_operator() {
        let level = Level::new(2);
        let statement = StatementId::next();
        let intent = |admission, is_short, bytes, is_part| {
            ReadPurpose { admission, statement, level, is_short }.intent(bytes, is_part)
        };
        let point = Intent { class: Class::Point, statement, level };
        assert_eq!(intent(Admission::Prefetch, true, 4096, false), point);
        for admission in [Admission::Prefetch, Admission::Guaranteed] {
            assert_eq!(intent(admission, false, 1 << 20, true), Intent { class: Class::Needed, ..point });
            assert_eq!(intent(admission, false, 1 << 20, false).level, Level::NONE, "whole columns");
        }
        assert_eq!(ReadPurpose::from(Admission::Upkeep).intent(4096, true), Intent::from(Class::Upkeep));
    }
}
