//! Rights, and what they are held on.
//!
//! A right on a schema holds for all that is in it, and one on the database for all schemas of users: whoever asks walks up the names,
//! from the table to its schema to the database. The schema `system` is not part of the database, as its tables show figures of the
//! whole server; the rights of the server stand beside that walk.

use std::fmt;

use serde::{Deserialize, Serialize};
use terrace_model::{SYSTEM_SCHEMA, TableName};

/// A right that can be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Reads rows.
    Select,
    /// Adds rows.
    Insert,
    /// Changes rows.
    Update,
    /// Deletes rows.
    Delete,
    /// Deletes all rows without reading them.
    Truncate,
    /// Sees the names in a schema.
    Usage,
    /// Makes tables and views in a schema, and schemas in the database.
    Create,
    /// Steers the tiering loop, and the placement of tables of others.
    Tiering,
    /// Makes backups.
    Backup,
    /// Reads files of the server.
    ReadFiles,
    /// Writes files of the server.
    WriteFiles,
    /// Cancels statements of others.
    Cancel,
    /// Sees statements of others, metrics, and figures of all tables.
    Monitor,
    /// Makes, changes and drops workload groups, and takes any of them.
    WorkloadGroups,
}

impl Right {
    /// All rights.
    pub const ALL: [Self; 14] = [
        Self::Select,
        Self::Insert,
        Self::Update,
        Self::Delete,
        Self::Truncate,
        Self::Usage,
        Self::Create,
        Self::Tiering,
        Self::Backup,
        Self::ReadFiles,
        Self::WriteFiles,
        Self::Cancel,
        Self::Monitor,
        Self::WorkloadGroups,
    ];

    /// Its words in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Select => "SELECT",
            Self::Insert => "INSERT",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Truncate => "TRUNCATE",
            Self::Usage => "USAGE",
            Self::Create => "CREATE",
            Self::Tiering => "TIERING",
            Self::Backup => "BACKUP",
            Self::ReadFiles => "READ FILES",
            Self::WriteFiles => "WRITE FILES",
            Self::Cancel => "CANCEL",
            Self::Monitor => "MONITOR",
            Self::WorkloadGroups => "WORKLOAD GROUPS",
        }
    }

    /// Whether it is a right on rows, which makes a table visible.
    pub fn is_on_rows(self) -> bool {
        matches!(self, Self::Select | Self::Insert | Self::Update | Self::Delete | Self::Truncate)
    }

    /// Whether it can be held on columns of a table.
    pub fn is_on_columns(self) -> bool {
        matches!(self, Self::Select | Self::Insert | Self::Update)
    }

    /// Whether it can be held on an object.
    pub fn applies_to(self, object: &Securable) -> bool {
        match object {
            Securable::Server => !self.is_on_rows() && !matches!(self, Self::Usage | Self::Create),
            Securable::Database | Securable::Schema(_) => {
                self.is_on_rows() || matches!(self, Self::Usage | Self::Create)
            }
            Securable::Table(_) => self.is_on_rows(),
        }
    }

    /// All rights that can be held on an object: ALL PRIVILEGES.
    pub fn all_on(object: &Securable) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |right| right.applies_to(object))
    }
}

/// What rights are held on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Securable {
    /// The server.
    Server,
    /// The database: all schemas but `system`.
    Database,
    /// A schema.
    Schema(String),
    /// A table, view, external or system table.
    Table(TableName),
}

impl Securable {
    /// Its kind, in lower case.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Database => "database",
            Self::Schema(_) => "schema",
            Self::Table(_) => "table",
        }
    }

    /// The schema that it is or lies in, if it does.
    pub fn schema(&self) -> Option<&str> {
        match self {
            Self::Server | Self::Database => None,
            Self::Schema(name) => Some(name),
            Self::Table(name) => Some(&name.schema),
        }
    }

    /// What holds it; its rights hold for it, too.
    pub(crate) fn parent(&self) -> Option<Self> {
        match self {
            Self::Server | Self::Database => None,
            Self::Schema(name) => (name != SYSTEM_SCHEMA).then_some(Self::Database),
            Self::Table(name) => Some(Self::Schema(name.schema.clone())),
        }
    }

    /// The name of its record. The length of the schema tells `"a.b".c` from `a."b.c"`.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Server | Self::Database => self.kind().to_owned(),
            Self::Schema(name) => format!("schema/{name}"),
            Self::Table(name) => format!("table/{}/{name}", name.schema.len()),
        }
    }
}

impl fmt::Display for Securable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server | Self::Database => f.write_str(self.kind()),
            Self::Schema(name) => write!(f, "schema {name}"),
            Self::Table(name) => write!(f, "table {name}"),
        }
    }
}
