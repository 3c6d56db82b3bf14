//! Kinds of statements, and the rights that they need.

/// Kind of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatementKind {
    /// Returns rows.
    Query,
    /// INSERT and COPY FROM.
    Insert,
    /// UPDATE, DELETE, MERGE, TRUNCATE.
    Change,
    /// CREATE, DROP.
    Ddl,
    /// COPY TO.
    Export,
    /// Bulk ingest.
    Ingest,
    /// SET, RESET, BEGIN, COMMIT, ROLLBACK, savepoints, CANCEL QUERY.
    Setting,
    /// Epochs, orders on placement, and commands to the tiering loop.
    Tiering,
}

impl StatementKind {
    /// All kinds.
    pub const ALL: [Self; 8] =
        [Self::Query, Self::Insert, Self::Change, Self::Ddl, Self::Export, Self::Ingest, Self::Setting, Self::Tiering];

    /// Lower-case name, as in metrics and SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Insert => "insert",
            Self::Change => "change",
            Self::Ddl => "ddl",
            Self::Export => "export",
            Self::Ingest => "ingest",
            Self::Setting => "setting",
            Self::Tiering => "tiering",
        }
    }

    /// The right that statements of this kind need.
    pub fn privilege(self) -> Privilege {
        match self {
            Self::Query => Privilege::Read,
            Self::Insert | Self::Change | Self::Ingest => Privilege::Write,
            Self::Ddl => Privilege::Define,
            Self::Export => Privilege::Export,
            Self::Setting => Privilege::Session,
            Self::Tiering => Privilege::Tiering,
        }
    }
}

/// A right that a statement needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Reads rows.
    Read,
    /// Adds, changes or deletes rows.
    Write,
    /// Creates, alters or drops tables, views, schemas, rules.
    Define,
    /// Reads rows and writes them to files of the server.
    Export,
    /// Changes only the session.
    Session,
    /// Steers the tiering loop, or moves segments.
    Tiering,
}

impl Privilege {
    /// True for what a READ ONLY transaction refuses.
    pub fn changes_server(self) -> bool {
        matches!(self, Self::Write | Self::Define | Self::Tiering)
    }
}
