//! Implements Flight's `Engine` for the planner's engine: a thin adapter between two crates that do not know each
//! other.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use terrace_access::{Origin, Port};
use terrace_flight as flight;
use terrace_flight::{EngineError, EngineResult, SessionId, StatementId, TransactionId};
use terrace_planner_ext as planner;
use terrace_planner_ext::ErrorKind;
use terrace_planner_ext::engine::{
    CATALOG, ColumnNotes, Engine, EntryKind, IngestMode, IngestRequest, OptionKind, Prepared, Texts,
};
use terrace_tier_store::tier::codec;

// A client waits while a large message is kept, so the store copies what it keeps of each of them.
const _: () = assert!(codec::LARGE_ALLOCATION_BYTES <= flight::LARGE_BODY_BYTES);

/// The planner's engine as an engine of the Flight service.
pub struct FlightEngine(Arc<Engine>);

impl FlightEngine {
    /// Adapts `engine`.
    pub fn new(engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self(engine))
    }

    fn session(&self, id: &SessionId) -> EngineResult<Arc<planner::Session>> {
        self.0.session(&id.0).map_err(error)
    }
}

/// Adds the comments of columns where Flight SQL looks for them.
fn with_remarks(columns: &Schema, notes: &[ColumnNotes]) -> SchemaRef {
    let mut notes = notes.iter();
    let field = |field: &FieldRef| match notes.next().and_then(|note| note.comment.clone()) {
        Some(comment) => {
            let mut metadata = field.metadata().clone();
            metadata.insert("ARROW:FLIGHT:SQL:REMARKS".to_owned(), comment);
            Arc::new(field.as_ref().clone().with_metadata(metadata))
        }
        None => Arc::clone(field),
    };
    Arc::new(Schema::new(columns.fields().iter().map(field).collect::<Vec<_>>()))
}

/// Converts an error to Flight's.
fn error(error: planner::Error) -> EngineError {
    let converted = EngineError::new(error.kind(), error.message());
    match error.retry_after() {
        Some(delay) => converted.with_retry_after(delay),
        None => converted,
    }
}

impl flight::Engine for FlightEngine {
    fn product(&self) -> (String, String) {
        ("Terrace".to_owned(), env!("CARGO_PKG_VERSION").to_owned())
    }

    fn timeouts(&self) -> flight::Timeouts {
        let options = self.0.options();
        flight::Timeouts { statement: options.statement_timeout, transaction: options.idle_transaction_timeout }
    }

    fn message_memory(&self) -> Option<Arc<dyn terrace_ipc::Account>> {
        Some(self.0.message_memory())
    }

    fn open_session(&self, principal: flight::Principal, address: IpAddr) -> EngineResult<SessionId> {
        let origin = Origin::new(Port::Flight, address);
        Ok(SessionId(self.0.open_session_from(origin, principal).id().to_owned()))
    }

    fn close_session(&self, session: &SessionId) {
        self.0.close_session(&session.0);
    }

    fn runs_statement(&self, session: &SessionId) -> bool {
        self.0.runs_statement(&session.0)
    }

    fn prepare<'a>(
        &'a self,
        session: &'a SessionId,
        transaction: Option<&'a TransactionId>,
        sql: &'a str,
    ) -> BoxFuture<'a, EngineResult<Arc<dyn flight::Statement>>> {
        Box::pin(async move {
            let session = self.session(session)?;
            let prepared = match transaction {
                Some(id) => session.prepare_in(&id.0, sql).await,
                None => session.prepare(sql).await,
            };
            let prepared = prepared.map_err(error)?;
            let info = flight::StatementInfo {
                dataset_schema: if prepared.is_update() { Schema::empty().into() } else { prepared.dataset_schema() },
                parameter_schema: prepared.parameter_schema(),
                is_update: prepared.is_update(),
                is_ordered: prepared.is_ordered(),
            };
            Ok(Arc::new(FlightStatement { prepared, info }) as Arc<dyn flight::Statement>)
        })
    }

    fn ingest<'a>(
        &'a self,
        session: &'a SessionId,
        transaction: Option<&'a TransactionId>,
        target: flight::IngestTarget,
        schema: SchemaRef,
        batches: flight::BatchStream,
    ) -> BoxFuture<'a, EngineResult<u64>> {
        Box::pin(async move {
            let session = self.session(session)?;
            let request = ingest_request(target)?;
            let rows = batches.map_err(|e| planner::Error::new(e.kind, e.message)).boxed();
            self.0.ingest(&session, request, schema, rows, transaction.map(|id| id.0.as_str())).await.map_err(error)
        })
    }

    fn begin_transaction(&self, session: &SessionId) -> EngineResult<TransactionId> {
        let session = self.session(session)?;
        Ok(TransactionId(self.0.begin(&session).map_err(error)?.id().to_owned()))
    }

    fn end_transaction<'a>(
        &'a self,
        session: &'a SessionId,
        id: &'a TransactionId,
        commit: bool,
    ) -> BoxFuture<'a, EngineResult<()>> {
        Box::pin(async move { self.session(session)?.end_transaction(&id.0, commit).await.map_err(error) })
    }

    fn begin_savepoint(&self, session: &SessionId, id: &TransactionId, name: &str) -> EngineResult<()> {
        self.session(session)?.transaction(&id.0).and_then(|t| t.savepoint(name)).map_err(error)
    }

    fn end_savepoint<'a>(
        &'a self,
        session: &'a SessionId,
        id: &'a TransactionId,
        name: &'a str,
        roll_back: bool,
    ) -> BoxFuture<'a, EngineResult<()>> {
        Box::pin(async move {
            let transaction = self.session(session)?.transaction(&id.0).map_err(error)?;
            transaction.end_savepoint(name, roll_back).await.map_err(error)
        })
    }

    fn cancel(&self, session: &SessionId, statement: &StatementId) -> EngineResult<bool> {
        let session = self.session(session)?;
        self.0.cancel_for(session.principal(), session.origin(), &statement.0).map_err(error)
    }

    fn catalogs(&self, _session: &SessionId) -> EngineResult<Vec<String>> {
        Ok(vec![CATALOG.to_owned()])
    }

    fn schemas(&self, session: &SessionId) -> EngineResult<Vec<(String, String)>> {
        let schemas = self.session(session)?.schemas().map_err(error)?;
        Ok(schemas.into_iter().map(|schema| (CATALOG.to_owned(), schema)).collect())
    }

    fn tables<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, EngineResult<Vec<flight::TableEntry>>> {
        Box::pin(async move {
            let entries = self.session(session)?.entries().await.map_err(error)?;
            let table = |entry: planner::engine::Entry| flight::TableEntry {
                catalog: CATALOG.to_owned(),
                schema: entry.schema,
                name: entry.name,
                kind: match entry.kind {
                    EntryKind::Table => flight::TableKind::BaseTable,
                    EntryKind::View => flight::TableKind::View,
                    EntryKind::System => flight::TableKind::SystemTable,
                    EntryKind::External => flight::TableKind::External,
                },
                columns: with_remarks(&entry.columns, &entry.notes),
                primary_key: entry.primary_key,
            };
            Ok(entries.into_iter().map(table).collect())
        })
    }

    fn session_options(&self, session: &SessionId) -> EngineResult<HashMap<String, String>> {
        Ok(self.session(session)?.options().into_iter().collect())
    }

    fn option_kind(&self, session: &SessionId, name: &str) -> EngineResult<flight::OptionKind> {
        Ok(match self.session(session)?.option_kind(name).map_err(error)? {
            OptionKind::Text => flight::OptionKind::Text,
            OptionKind::Bool => flight::OptionKind::Bool,
            OptionKind::Integer => flight::OptionKind::Integer,
            OptionKind::Double => flight::OptionKind::Double,
            OptionKind::Unknown => flight::OptionKind::Unknown,
        })
    }

    fn set_session_option(&self, session: &SessionId, name: &str, value: Option<&str>) -> EngineResult<()> {
        let set = self.session(session)?.set_option(name, value).map_err(error);
        // For these options "not found" means that the value does not exist.
        let names_a_place = ["schema", "catalog", "datafusion.catalog.default_schema"];
        set.map_err(|error| match names_a_place.contains(&name.to_ascii_lowercase().as_str()) {
            true if error.kind == ErrorKind::NotFound => EngineError::new(ErrorKind::InvalidArgument, error.message),
            _ => error,
        })
    }
}

/// Converts Flight's two choices (table exists, does not exist) to one mode.
fn ingest_request(target: flight::IngestTarget) -> EngineResult<IngestRequest> {
    use flight::{IfExists, IfNotExists};
    if target.temporary {
        let kind = ErrorKind::Unimplemented;
        return Err(EngineError::new(kind, "temporary tables are not supported; ingest into a table and drop it"));
    }
    if let Some(catalog) = target.catalog.as_deref().filter(|name| !name.is_empty() && *name != CATALOG) {
        let message = format!("catalog '{catalog}' does not exist; the only one is '{CATALOG}'");
        return Err(EngineError::new(ErrorKind::NotFound, message));
    }
    let mode = match (target.if_exists, target.if_not_exists) {
        (IfExists::Fail, IfNotExists::Create) => IngestMode::Create,
        (IfExists::Append, IfNotExists::Fail) => IngestMode::Append,
        (IfExists::Append, IfNotExists::Create) => IngestMode::CreateAppend,
        (IfExists::Replace, IfNotExists::Create) => IngestMode::Replace,
        (IfExists::Replace | IfExists::Fail, IfNotExists::Fail) => {
            let message = "this combination of modes is not supported: use create, append, replace or create_append";
            return Err(EngineError::new(ErrorKind::Unimplemented, message));
        }
    };
    let schema = target.schema.filter(|name| !name.is_empty());
    Ok(IngestRequest { schema, table: target.table, mode, options: target.options })
}

struct FlightStatement {
    prepared: Arc<Prepared>,
    info: flight::StatementInfo,
}

impl flight::Statement for FlightStatement {
    fn info(&self) -> &flight::StatementInfo {
        &self.info
    }

    fn bound_schema<'a>(&'a self, parameters: &'a RecordBatch) -> BoxFuture<'a, EngineResult<SchemaRef>> {
        Box::pin(async move { self.prepared.bound_schema(parameters).await.map_err(error) })
    }

    fn query(
        &self,
        parameters: Option<RecordBatch>,
        texts: flight::Texts,
    ) -> BoxFuture<'_, EngineResult<flight::QueryResult>> {
        let texts = match texts {
            flight::Texts::Views => Texts::Views,
            flight::Texts::Plain => Texts::PlainFromScans,
            flight::Texts::Keys => Texts::KeysFromScans,
        };
        Box::pin(async move {
            let running = self.prepared.query_with_texts(parameters, texts).await.map_err(error)?;
            let batches = running.stream.map_err(|e| error(planner::Error::from(e))).boxed();
            Ok(flight::QueryResult { id: StatementId(running.id), schema: running.schema, batches })
        })
    }

    fn pinned(&self) -> BoxFuture<'_, EngineResult<Option<Arc<dyn flight::Statement>>>> {
        Box::pin(async move {
            let pinned = self.prepared.pinned().await.map_err(error)?;
            let statement =
                |prepared| Arc::new(Self { prepared, info: self.info.clone() }) as Arc<dyn flight::Statement>;
            Ok(pinned.map(statement))
        })
    }

    fn update(&self, parameters: Option<RecordBatch>) -> BoxFuture<'_, EngineResult<u64>> {
        Box::pin(async move { self.prepared.update(parameters).await.map_err(error) })
    }
}
