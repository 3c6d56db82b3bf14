//! A hot view as it is stored.

use serde::{Deserialize, Serialize};
use terrace_tier_store::table::TableName;

/// A hot view in the words of its statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Definition {
    /// Schema and name; the schema is that of the table.
    pub(crate) name: TableName,
    /// The table whose rows it picks.
    pub(crate) table: TableName,
    /// Names of its columns; empty: all that the table has.
    pub(crate) columns: Vec<String>,
    /// SELECT .. FROM .. WHERE .., as it was sent.
    pub(crate) select: String,
    /// The condition in it.
    pub(crate) predicate: String,
    /// Counts how often the condition was bound.
    pub(crate) version: u64,
    /// What `now()` is in its condition, in microseconds since 1970.
    pub(crate) bound_at_us: u64,
    /// When it was made, likewise.
    pub(crate) made_at_us: u64,
}
