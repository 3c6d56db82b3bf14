//! Commands: a parsed statement, with all that is known of it before it is planned.

use datafusion::sql::parser::{ExplainStatement, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{AlterTable, Expr};
use terrace_model::TableName;

use crate::access::{AccessCommand, CreateToken};
use crate::grant::GrantCommand;
use crate::hot_view::HotViewCommand;
use crate::kind::{Privilege, StatementKind};
use crate::names::NameParts;
use crate::objects::{ObjectRef, named_by, only_written_by};
use crate::policy::PolicyCommand;
use crate::prepare::PrepareCommand;
use crate::rewrite::Change;
use crate::rule::RuleCommand;
use crate::tiering_commands::{PlacementStatement, TieringCommand};
use crate::workload_group::WorkloadGroupCommand;

/// A parsed statement.
#[derive(Debug, Clone)]
pub struct Command {
    /// The parsed clauses; one variant per kind of statement.
    pub action: Action,
    /// Its kind.
    pub kind: StatementKind,
    /// True when it returns rows, false when it returns a count.
    pub returns_rows: bool,
    /// Names of its parameters by their number, from 1 on; none where they were not written as `$name`.
    pub parameter_names: Vec<String>,
}

impl Command {
    /// A statement that returns rows.
    pub(crate) fn with_rows(kind: StatementKind, action: Action) -> Self {
        Self { action, kind, returns_rows: true, parameter_names: Vec::new() }
    }

    /// A statement that returns a count.
    pub(crate) fn with_count(kind: StatementKind, action: Action) -> Self {
        Self { action, kind, returns_rows: false, parameter_names: Vec::new() }
    }

    /// A statement that defines, alters or drops something.
    pub(crate) fn ddl(action: Action) -> Self {
        Self::with_count(StatementKind::Ddl, action)
    }

    /// The tables, views and schemas that it names.
    pub fn objects(&self) -> Vec<ObjectRef> {
        named_by(&self.action)
    }

    /// The right that it needs.
    pub fn privilege(&self) -> Privilege {
        self.kind.privilege()
    }
}

/// A statement, by the family of statements that executes it.
#[derive(Debug, Clone)]
pub enum Action {
    /// A statement that the planner plans.
    Plan(PlannerStatement),
    /// ALTER TABLE.
    Alter(AlterTable),
    /// COMMENT ON.
    Comment(CommentOn),
    /// UPDATE, DELETE, MERGE, or EXPLAIN of one.
    Change(ChangeStatement),
    /// TRUNCATE.
    Truncate(TruncateCommand),
    /// BEGIN, COMMIT, ROLLBACK and savepoints.
    Transaction(TransactionCommand),
    /// PREPARE, EXECUTE and DEALLOCATE.
    Prepare(PrepareCommand),
    /// DROP.
    Drop(DropCommand),
    /// COPY FROM.
    CopyFrom(CopyFrom),
    /// OPTIMIZE.
    Optimize(OptimizeCommand),
    /// ALTER TABLE on placement rules.
    Rule(RuleCommand),
    /// CREATE, DROP and ALTER HOT VIEW.
    HotView(HotViewCommand),
    /// Explanations, epochs and one-time orders on placement, which return rows.
    Placement(PlacementStatement),
    /// Commands to the tiering loop.
    Tiering(TieringCommand),
    /// CANCEL QUERY.
    Cancel(CancelCommand),
    /// CREATE, ALTER and DROP USER, and DROP TOKEN.
    Access(AccessCommand),
    /// CREATE TOKEN, which returns rows.
    CreateToken(CreateToken),
    /// GRANT, REVOKE, CREATE and DROP ROLE, and ALTER .. OWNER TO.
    Grant(GrantCommand),
    /// CREATE, ALTER and DROP WORKLOAD GROUP.
    WorkloadGroup(WorkloadGroupCommand),
    /// CREATE and DROP POLICY, and ALTER TABLE .. ROW LEVEL SECURITY.
    Policy(PolicyCommand),
}

/// A statement of DataFusion's grammar that the planner plans; the engine adds `extras`.
#[derive(Debug, Clone)]
pub struct PlannerStatement {
    /// Its syntax tree, without the extras.
    pub statement: SqlStatement,
    /// Clauses that the planner does not support.
    pub extras: Extras,
}

impl PlannerStatement {
    /// The relations that it writes or makes, and does not read; names without a schema are in `default_schema`.
    pub fn only_written(&self, default_schema: &str) -> Vec<TableName> {
        only_written_by(&self.statement, default_schema)
    }
}

/// UPDATE, DELETE, MERGE, or EXPLAIN of one.
#[derive(Debug, Clone)]
pub struct ChangeStatement {
    /// The change.
    pub change: Change,
    /// The EXPLAIN around it.
    pub explain: Option<ExplainStatement>,
}

/// TRUNCATE.
#[derive(Debug, Clone)]
pub struct TruncateCommand {
    /// The tables.
    pub names: Vec<NameParts>,
    /// Whether to pass over tables that do not exist.
    pub if_exists: bool,
}

/// OPTIMIZE: compaction of one table, now.
#[derive(Debug, Clone)]
pub struct OptimizeCommand {
    /// The table.
    pub table: NameParts,
}

/// CANCEL QUERY: makes a running statement end.
#[derive(Debug, Clone)]
pub struct CancelCommand {
    /// Id of the statement, as in `system.queries`.
    pub statement: String,
}

/// A statement on transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransactionCommand {
    /// BEGIN; true for READ ONLY.
    Begin(bool),
    /// COMMIT.
    Commit,
    /// ROLLBACK.
    RollBack,
    /// SAVEPOINT name.
    Savepoint(String),
    /// RELEASE SAVEPOINT name.
    Release(String),
    /// ROLLBACK TO SAVEPOINT name.
    RollBackTo(String),
}

/// Clauses of CREATE TABLE and CREATE VIEW that the planner does not support.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// WITH (...) of CREATE TABLE.
    pub options: Vec<(String, String)>,
    /// Column and its default.
    pub defaults: Vec<(String, Expr)>,
    /// Column and its comment.
    pub comments: Vec<(String, String)>,
    /// CREATE VIEW IF NOT EXISTS.
    pub if_not_exists: bool,
    /// CREATE VIEW .. WITH (security_invoker = true): it is read with the rights of who asks, and not with its owner's.
    pub security_invoker: bool,
}

/// COMMENT ON.
#[derive(Debug, Clone)]
pub struct CommentOn {
    /// The table or view.
    pub object: NameParts,
    /// The part that gets the comment: the table, the view or a column.
    pub kind: CommentKind,
    /// `None`: removes the comment.
    pub text: Option<String>,
    /// Whether to pass over an object that does not exist.
    pub if_exists: bool,
}

/// Kind of object that COMMENT ON names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommentKind {
    /// The table.
    Table,
    /// The view.
    View,
    /// This column.
    Column(String),
}

/// Kind of object that DROP names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropKind {
    /// Tables and external tables.
    Table,
    /// Views.
    View,
    /// Schemas.
    Schema,
}

/// DROP TABLE, DROP VIEW, DROP SCHEMA.
#[derive(Debug, Clone)]
pub struct DropCommand {
    /// Kind of the objects.
    pub kind: DropKind,
    /// The objects; the name of a schema is the last part.
    pub names: Vec<NameParts>,
    /// Whether to pass over objects that do not exist.
    pub if_exists: bool,
    /// Whether to drop what depends on the objects.
    pub cascade: bool,
    /// Whether to refuse objects that views use.
    pub restrict: bool,
}

/// COPY table FROM 'file'.
#[derive(Debug, Clone)]
pub struct CopyFrom {
    /// The table.
    pub table: NameParts,
    /// Empty: all columns.
    pub columns: Vec<String>,
    /// File or folder on the server.
    pub location: String,
    /// Options, with lower-case names.
    pub options: Vec<(String, String)>,
}
