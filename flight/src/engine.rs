//! The narrow trait through which the service reaches a query engine.
//!
//! The service knows sessions, statements and record batches, never how they are planned or stored. An implementation
//! of [`Engine`] owns its runtimes: planning and execution must not block the thread that polls these futures, because
//! it is a network thread. A statement does nothing before `query` or `update` is called, and a dropped [`BatchStream`]
//! ends the work behind it.
//!
//! Methods without a future are called on a network thread, `open_session` under the lock of a connection and
//! `close_session` from a destructor: they neither wait nor call the service. The other methods return boxed futures instead
//! of using `async_trait`, which costs the compiler a minute (docs/design/build-times.md).

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use futures::future::BoxFuture;
pub use terrace_access::Principal;
pub use terrace_model::error::ErrorKind;

/// Key of a session held by the engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionId(pub String);

/// Key of a transaction held by the engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TransactionId(pub String);

/// Key of a running statement; the same value as in `system.queries`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StatementId(pub String);

/// An error of the engine; `message` is for a person and is sent to the client unchanged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// Kind of the error, by what the caller can do.
    pub kind: ErrorKind,
    /// One readable sentence or a few.
    pub message: String,
    /// Time after which the same call may succeed; `None` where trying again does not help. It is sent to the client.
    pub retry_after: Option<Duration>,
}

impl EngineError {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    /// The same error for a client that may try again after `delay`.
    #[must_use]
    pub fn with_retry_after(self, delay: Duration) -> Self {
        Self { retry_after: Some(delay), ..self }
    }
}

/// Result of a call to the engine.
pub type EngineResult<T> = Result<T, EngineError>;

/// Record batches, pulled one by one. Dropping the stream ends the work behind it.
pub type BatchStream = futures::stream::BoxStream<'static, EngineResult<RecordBatch>>;

/// Properties of a statement that are known before it runs.
#[derive(Debug, Clone)]
pub struct StatementInfo {
    /// Columns of the result; empty when `is_update`.
    pub dataset_schema: SchemaRef,
    /// One field per parameter, in order of position.
    pub parameter_schema: SchemaRef,
    /// True for DML, DDL and everything else that returns a row count instead of rows.
    pub is_update: bool,
    /// True for a query whose rows come in an order that its text gives (ORDER BY).
    pub is_ordered: bool,
}

/// A running query. Dropping `batches` cancels it and frees its resources.
pub struct QueryResult {
    /// Key under which the query may be cancelled.
    pub id: StatementId,
    /// Columns of every batch.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: BatchStream,
}

/// How the rows of a query are sent, so that an engine need not make what is converted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texts {
    /// Texts and bytes go as views.
    Views,
    /// They go as plain arrays; views are converted.
    Plain,
    /// Texts go as keys of dictionaries ([`terrace_ipc::keyed_text_type`]); all else is converted, dictionaries of other keys too.
    Keys,
}

/// Behaviour of an ingest when the table exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// Refuse with [`ErrorKind::AlreadyExists`].
    Fail,
    /// Add the rows.
    Append,
    /// Replace the old rows.
    Replace,
}

/// Behaviour of an ingest when the table does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfNotExists {
    /// Refuse with [`ErrorKind::NotFound`].
    Fail,
    /// Create it with the schema of the stream.
    Create,
}

/// The table of an ingest.
#[derive(Debug, Clone)]
pub struct IngestTarget {
    /// Catalog, or the session's default.
    pub catalog: Option<String>,
    /// Schema, or the session's default.
    pub schema: Option<String>,
    /// Table name, exactly as the client spells it.
    pub table: String,
    /// True for a table that lives as long as the session.
    pub temporary: bool,
    /// Behaviour when the table exists.
    pub if_exists: IfExists,
    /// Behaviour when it does not.
    pub if_not_exists: IfNotExists,
    /// Options of the backend, such as `cluster_by`.
    pub options: HashMap<String, String>,
}

/// Type of the values of a session option. The engine takes and returns them as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// Text.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// A number.
    Double,
    /// Not known: the engine checks the text.
    Unknown,
}

/// Kind of a table as metadata commands name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// A table of the store.
    BaseTable,
    /// A view.
    View,
    /// A table of schema `system` or `information_schema`.
    SystemTable,
    /// An external table: files that are read as a table.
    External,
}

impl TableKind {
    /// The name that clients see and filter by, as in JDBC. Clients do not know "EXTERNAL", so such a table has the
    /// name of a plain table.
    pub fn name(self) -> &'static str {
        match self {
            Self::BaseTable | Self::External => "TABLE",
            Self::View => "VIEW",
            Self::SystemTable => "SYSTEM TABLE",
        }
    }
}

/// One table as metadata commands show it.
#[derive(Debug, Clone)]
pub struct TableEntry {
    /// Catalog it is in.
    pub catalog: String,
    /// Schema it is in.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: TableKind,
    /// Its columns.
    pub columns: SchemaRef,
    /// Column names of the primary key, in key order; empty without one.
    pub primary_key: Vec<String>,
}

/// Times after which the engine ends work by itself; `None`: it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest execution of a statement.
    pub statement: Option<Duration>,
    /// Longest time for which a transaction stays open without a statement.
    pub transaction: Option<Duration>,
}

/// The query engine behind the service.
pub trait Engine: Send + Sync + 'static {
    /// Name and version, shown by SqlInfo.
    fn product(&self) -> (String, String);
    /// Its limits of time, shown by SqlInfo.
    fn timeouts(&self) -> Timeouts;
    /// The account for memory that messages of clients are decompressed into; `None` by default.
    fn message_memory(&self) -> Option<Arc<dyn terrace_ipc::Account>> {
        None
    }
    /// Opens a session for an authenticated user, whose client is at `address`.
    fn open_session(&self, principal: Principal, address: IpAddr) -> EngineResult<SessionId>;
    /// Ends a session, its running statements and its transactions. Does nothing for an unknown session.
    fn close_session(&self, session: &SessionId);

    /// Whether a statement of the session has not ended.
    fn runs_statement(&self, session: &SessionId) -> bool;
    /// Parses and checks one statement without running it. Without `transaction` it runs in the transaction that
    /// SQL began in the session, or commits by itself.
    fn prepare<'a>(
        &'a self,
        session: &'a SessionId,
        transaction: Option<&'a TransactionId>,
        sql: &'a str,
    ) -> BoxFuture<'a, EngineResult<Arc<dyn Statement>>>;
    /// Stores a stream of rows, all or nothing; returns the number of rows.
    fn ingest<'a>(
        &'a self,
        session: &'a SessionId,
        transaction: Option<&'a TransactionId>,
        target: IngestTarget,
        schema: SchemaRef,
        batches: BatchStream,
    ) -> BoxFuture<'a, EngineResult<u64>>;
    /// Begins a transaction for statements that name it.
    fn begin_transaction(&self, session: &SessionId) -> EngineResult<TransactionId>;
    /// Ends a transaction. A commit that loses against another one is [`ErrorKind::Aborted`].
    fn end_transaction<'a>(
        &'a self,
        session: &'a SessionId,
        id: &'a TransactionId,
        commit: bool,
    ) -> BoxFuture<'a, EngineResult<()>>;
    /// Sets a savepoint.
    fn begin_savepoint(&self, session: &SessionId, id: &TransactionId, name: &str) -> EngineResult<()>;
    /// Forgets a savepoint, or returns to it.
    fn end_savepoint<'a>(
        &'a self,
        session: &'a SessionId,
        id: &'a TransactionId,
        name: &'a str,
        roll_back: bool,
    ) -> BoxFuture<'a, EngineResult<()>>;
    /// Cancels a running statement on behalf of a session, perhaps of another user, where that may; `false` when it is not running.
    fn cancel(&self, session: &SessionId, statement: &StatementId) -> EngineResult<bool>;
    /// Names of the catalogs.
    fn catalogs(&self, session: &SessionId) -> EngineResult<Vec<String>>;
    /// Pairs of catalog and schema.
    fn schemas(&self, session: &SessionId) -> EngineResult<Vec<(String, String)>>;
    /// Every table the session may see.
    fn tables<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, EngineResult<Vec<TableEntry>>>;
    /// Options of the session with their present values.
    fn session_options(&self, session: &SessionId) -> EngineResult<HashMap<String, String>>;
    /// Type of the values of an option. An unknown name is [`ErrorKind::NotFound`].
    fn option_kind(&self, session: &SessionId, name: &str) -> EngineResult<OptionKind>;
    /// Sets one option, or with `None` returns it to its default. An unknown name is [`ErrorKind::NotFound`], a bad
    /// value [`ErrorKind::InvalidArgument`].
    fn set_session_option(&self, session: &SessionId, name: &str, value: Option<&str>) -> EngineResult<()>;
}

/// A parsed statement that can be run, several times if wanted.
pub trait Statement: Send + Sync + 'static {
    /// Properties of the statement.
    fn info(&self) -> &StatementInfo;
    /// Columns of the result once `parameters` (one row) are bound; differs from `dataset_schema` only where a result
    /// column's type depends on a parameter.
    fn bound_schema<'a>(&'a self, parameters: &'a RecordBatch) -> BoxFuture<'a, EngineResult<SchemaRef>>;
    /// Starts the statement as a query. `parameters` has exactly one row, columns in order of position. The rows may have texts and
    /// bytes as `texts` says, or as views.
    fn query(&self, parameters: Option<RecordBatch>, texts: Texts) -> BoxFuture<'_, EngineResult<QueryResult>>;
    /// The same query on the present versions of its tables: each `query` returns the same rows, whatever changes
    /// meanwhile, and may run beside another; their order is that of ORDER BY. `None` where the engine cannot promise that.
    fn pinned(&self) -> BoxFuture<'_, EngineResult<Option<Arc<dyn Statement>>>>;
    /// Runs the statement as an update, once per row of `parameters` and all or nothing where the engine can; returns
    /// rows affected.
    fn update(&self, parameters: Option<RecordBatch>) -> BoxFuture<'_, EngineResult<u64>>;
}
