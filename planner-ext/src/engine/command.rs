//! Parsed statements: the kind of a statement, the rows that it returns, and its parts as written.

use datafusion::sql::parser::{ExplainStatement, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{AlterTable, Expr, Ident, ObjectName};
use terrace_tier_store::table::TableName;

use super::CATALOG;
use super::hot_view::HotViewCommand;
use super::prepare::PrepareCommand;
use super::registry::StatementKind;
use super::rewrite::Change;
use super::rule::RuleCommand;
use super::tiering_commands::{PlacementStatement, TieringCommand};
use crate::error::{Error, Result};

/// A parsed statement, with what must be known of it before it is planned.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) action: Action,
    pub(super) kind: StatementKind,
    /// True when it returns rows, false when it returns a count.
    pub(super) returns_rows: bool,
}

impl Command {
    /// A statement that returns rows.
    pub(super) fn with_rows(kind: StatementKind, action: Action) -> Self {
        Self { action, kind, returns_rows: true }
    }

    /// A statement that returns a count.
    pub(super) fn with_count(kind: StatementKind, action: Action) -> Self {
        Self { action, kind, returns_rows: false }
    }

    /// A statement that defines, alters or drops something.
    pub(super) fn ddl(action: Action) -> Self {
        Self::with_count(StatementKind::Ddl, action)
    }
}

/// A statement, by the part of the engine that executes it.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// The planner plans it; the engine adds `extras`.
    Plan {
        statement: SqlStatement,
        extras: Extras,
    },
    Alter(AlterTable),
    Comment(CommentOn),
    /// UPDATE, DELETE, MERGE, or EXPLAIN of one.
    Change {
        change: Change,
        explain: Option<ExplainStatement>,
    },
    Truncate {
        names: Vec<NameParts>,
        if_exists: bool,
    },
    Transaction(TransactionCommand),
    /// PREPARE, EXECUTE and DEALLOCATE.
    Prepare(PrepareCommand),
    Drop(DropCommand),
    CopyFrom(CopyFrom),
    /// OPTIMIZE: compaction of one table, now.
    Optimize(NameParts),
    /// ALTER TABLE on placement rules.
    Rule(RuleCommand),
    /// CREATE, DROP and ALTER HOT VIEW.
    HotView(HotViewCommand),
    /// Explanations, epochs and one-time orders on placement, which return rows.
    Placement(PlacementStatement),
    /// Commands to the tiering loop.
    Tiering(TieringCommand),
}

/// A statement on transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TransactionCommand {
    /// True for READ ONLY.
    Begin(bool),
    Commit,
    RollBack,
    Savepoint(String),
    Release(String),
    RollBackTo(String),
}

/// Clauses of CREATE TABLE and CREATE VIEW that the planner does not support.
#[derive(Debug, Clone, Default)]
pub(super) struct Extras {
    /// WITH (...) of CREATE TABLE.
    pub(super) options: Vec<(String, String)>,
    /// Column and its default.
    pub(super) defaults: Vec<(String, Expr)>,
    /// Column and its comment.
    pub(super) comments: Vec<(String, String)>,
    /// CREATE VIEW IF NOT EXISTS.
    pub(super) if_not_exists: bool,
}

/// COMMENT ON.
#[derive(Debug, Clone)]
pub(super) struct CommentOn {
    pub(super) object: NameParts,
    pub(super) kind: CommentKind,
    /// `None`: removes the comment.
    pub(super) text: Option<String>,
    pub(super) if_exists: bool,
}

/// Kind of object that COMMENT ON names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CommentKind {
    Table,
    View,
    Column(String),
}

/// Kind of object that DROP names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DropKind {
    Table,
    View,
    Schema,
}

/// DROP TABLE, DROP VIEW, DROP SCHEMA.
#[derive(Debug, Clone)]
pub(super) struct DropCommand {
    pub(super) kind: DropKind,
    /// For a schema, the name is in `schema` and `name` is empty.
    pub(super) names: Vec<NameParts>,
    pub(super) if_exists: bool,
    pub(super) cascade: bool,
    /// Whether to refuse objects that views use.
    pub(super) restrict: bool,
}

/// COPY table FROM 'file'.
#[derive(Debug, Clone)]
pub(super) struct CopyFrom {
    pub(super) table: NameParts,
    /// Empty: all columns.
    pub(super) columns: Vec<String>,
    pub(super) location: String,
    pub(super) options: Vec<(String, String)>,
}

/// A name as written: one or two parts, normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameParts {
    pub(super) schema: Option<String>,
    pub(super) name: String,
}

impl NameParts {
    /// The full name, in `default_schema` if the name has no schema.
    pub(super) fn resolve(&self, default_schema: &str) -> TableName {
        TableName::new(self.schema.as_deref().unwrap_or(default_schema), self.name.clone())
    }

    pub(super) fn new(name: &ObjectName) -> Result<Self> {
        let parts: Option<Vec<String>> = name.0.iter().map(|p| p.as_ident().map(normalized)).collect();
        match parts.unwrap_or_default().as_slice() {
            [name] => Ok(Self { schema: None, name: name.clone() }),
            [schema, name] => Ok(Self { schema: Some(schema.clone()), name: name.clone() }),
            [catalog, schema, name] if catalog == CATALOG => {
                Ok(Self { schema: Some(schema.clone()), name: name.clone() })
            }
            _ => Err(Error::invalid(format!("'{name}' is not a name of catalog '{CATALOG}'"))),
        }
    }
}

/// An identifier as DataFusion reads it: lower case unless quoted.
pub(super) fn normalized(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}
