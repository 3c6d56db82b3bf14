//! Patterns of accesses to segments (Dreseler 2021, section 6.2).

use serde::{Deserialize, Serialize};

/// The pattern of accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// The whole segment or a good part of it, from one row to the next.
    Sequential,
    /// Positions in order, some skipped.
    Monotonic,
    /// Positions in no order, each read independent of the next.
    Random,
    /// A few rows.
    Point,
}

impl Pattern {
    /// All patterns, in the order of counters and cost profiles.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Monotonic, Self::Random, Self::Point];

    /// Lower-case name, as in metrics and SQL.
    #[inline]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Monotonic => "monotonic",
            Self::Random => "random",
            Self::Point => "point",
        }
    }
}
