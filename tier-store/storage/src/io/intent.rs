//! What a read or a write is for: its class, and the statement and the operator that asked for it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The purpose of a read or a write, from the most urgent to the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A scan that has asked for little so far asks for a few bytes: a client probably looks a few rows up, and waits.
    Point,
    /// A scan waits for the bytes.
    Needed,
    /// A statement spills rows because it exceeded its share of memory, or reads them back.
    Spill,
    /// A scan will need the bytes soon.
    Prefetch,
    /// A client stores rows: inserts, ingests, and seals of rows that were inserted.
    Write,
    /// Work that no statement waits for: moves between tiers, compaction, marks and surveys of views, checks, backups.
    Upkeep,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 6] = [Self::Point, Self::Needed, Self::Spill, Self::Prefetch, Self::Write, Self::Upkeep];
    /// A read of more bytes is none of [`Class::Point`].
    pub const POINT_BYTES: u64 = 256 << 10;

    /// Its name, as system tables and metrics show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Point => "point",
            Self::Needed => "needed",
            Self::Spill => "spill",
            Self::Prefetch => "prefetch",
            Self::Write => "write",
            Self::Upkeep => "upkeep",
        }
    }

    /// The entry of the class in a list in the order of [`Class::ALL`].
    pub(super) fn entry_in<T>(self, all: [T; Class::ALL.len()]) -> T {
        let [point, needed, spill, prefetch, write, upkeep] = all;
        match self {
            Self::Point => point,
            Self::Needed => needed,
            Self::Spill => spill,
            Self::Prefetch => prefetch,
            Self::Write => write,
            Self::Upkeep => upkeep,
        }
    }

    /// Whether the read is one of those that statements ask the home for.
    pub(super) fn is_demand(self) -> bool {
        matches!(self, Self::Point | Self::Needed | Self::Prefetch)
    }
}

/// A statement, or something else whose reads and writes take turns with those of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StatementId(u64);

impl StatementId {
    /// The reads that belong to no statement.
    pub const NONE: Self = Self(0);

    /// One that no other statement of this process has.
    pub fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The level of the operator that reads, in the plan of its statement (rule 2 of hStorage-DB): 0 for the lowest operator of
/// those that work at the same time. The lower one is better, as the operators above wait for its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u16);

impl Level {
    /// That of sequential reads, of writes and of what belongs to no operator: behind all others.
    pub const NONE: Self = Self(u16::MAX);

    /// So many operators above the lowest.
    pub fn new(number: usize) -> Self {
        Self(number.min(usize::from(u16::MAX - 1)) as u16)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("no level"),
            Self(number) => write!(f, "level {number}"),
        }
    }
}

/// What a read or a write is for. Its bytes are those of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// How urgent it is.
    pub class: Class,
    /// Whose it is.
    pub statement: StatementId,
    /// The level of the operator that reads at random.
    pub level: Level,
}

impl From<Class> for Intent {
    /// A read or a write that belongs to no statement and to no operator.
    fn from(class: Class) -> Self {
        Self { class, statement: StatementId::NONE, level: Level::NONE }
    }
}
