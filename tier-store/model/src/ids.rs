//! Numbers and names of tables, columns, chunks and marks. A number is never used again.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Schema of the server's own tables.
pub const SYSTEM_SCHEMA: &str = "system";

/// Number of a table; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableId(pub u64);

/// Schema and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableName {
    /// The SQL schema.
    pub schema: String,
    /// The table.
    pub name: String,
}

impl TableName {
    /// A name in a schema.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self { schema: schema.into(), name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// Number of a chunk within its table; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId(pub u64);

/// Number of a column within its table; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ColumnId(pub u32);

/// Number of a version of a hot view; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MarkId(pub u32);

/// Column ids from here on belong to marks.
const FIRST_MARK_COLUMN: u32 = 1 << 31;

impl MarkId {
    /// Number of possible marks.
    pub const COUNT: u32 = FIRST_MARK_COLUMN;

    /// The id of the column that stores its bits.
    #[inline]
    pub fn column(self) -> ColumnId {
        ColumnId(FIRST_MARK_COLUMN | self.0)
    }
}

impl ColumnId {
    /// The mark that the column belongs to; `None` for a column of a table.
    #[inline]
    pub fn mark(self) -> Option<MarkId> {
        (self.0 >= FIRST_MARK_COLUMN).then_some(MarkId(self.0 & !FIRST_MARK_COLUMN))
    }

    /// The name of a mark's column for users; `None` for a column of a table, which has a name of its own.
    pub fn mark_name(self) -> Option<String> {
        self.mark().map(|mark| format!("hot view mark {}", mark.0))
    }
}
