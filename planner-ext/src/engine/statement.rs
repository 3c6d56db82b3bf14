//! Prepared statements: parsed and planned once, run as often as wanted.
//!
//! A plan is bound to the table versions it was made with. It is used again only while these are still the current
//! ones; otherwise the statement is planned anew, so that every execution sees all earlier commits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use parking_lot::Mutex;
use terrace_sql::command::Action;
use terrace_sql::{Command, StatementKind, parse};

use super::analysis::{ResultColumns, has_order};
use super::catalog::Snapshot;
use super::change::ChangeTarget;
use super::execute::{Execute, Outline, Planning};
use super::interrupt::Interrupt;
use super::parameters::bind_row;
use super::plan_cache::{IsCurrent, MOST_LITERAL_BYTES, literal_bytes};
use super::prepare::{expand, may_take_long};
use super::registry::{Ticket, Touched, is_change};
use super::repeatable::has_same_rows;
use super::session::Session;
use super::skeleton::Skeleton;
use super::tasks::run_on;
use super::transaction::Transaction;
use super::{planning, query, rights, run};
use crate::error::{Error, ErrorKind, Result};

/// How the caller of a query wants texts and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Texts {
    /// As views.
    #[default]
    Views,
    /// As plain arrays, where the rows come from a scan as they are; it makes no views then. Else as views.
    PlainFromScans,
    /// Texts as keys of dictionaries, where the rows come from a scan as they are; stored keys stay keys then. Else as views.
    KeysFromScans,
}

/// A statement ready to run.
pub struct Prepared {
    session: Arc<Session>,
    /// The transaction it was prepared for; `None`: it belongs to the session's current one, if any.
    transaction: Option<Arc<Transaction>>,
    sql: Arc<str>,
    command: Arc<Command>,
    dataset_schema: SchemaRef,
    /// Whether these are the columns for all values of the parameters, and those of each plan so far.
    has_fixed_columns: AtomicBool,
    parameters: SchemaRef,
    is_ordered: bool,
    /// The latest plan with the session's number of changes of options that it was made with; `None` for statements without a
    /// plan, and after one that was made in a transaction.
    planned: Mutex<Option<(u64, Planned)>>,
    /// The plan of all executions, on the table versions of then; `None`: each execution reads the current ones.
    pinned: Option<Planned>,
    /// The objects that it names and reads, as far as the audit trail wants them.
    touched: Arc<Touched>,
}

/// A logical plan with the snapshot that it reads.
#[derive(Clone)]
pub(super) struct Planned {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) plan: LogicalPlan,
    /// The table whose rows it changes.
    pub(super) target: Option<ChangeTarget>,
    /// The optimized plan, once there is one; `None` for a plan that is optimized for each execution.
    optimized: Option<Arc<OnceLock<Arc<LogicalPlan>>>>,
    /// The optimized plan of a query with parameters, where it waits for their values.
    skeleton: Option<Arc<Skeleton>>,
    /// Whether it reads tables of the store and nothing else, and calls immutable functions only.
    is_repeatable: bool,
    /// How the caller of this execution wants texts.
    pub(super) texts: Texts,
}

impl Planned {
    pub(super) fn new(snapshot: Arc<Snapshot>, plan: LogicalPlan, target: Option<ChangeTarget>) -> Self {
        let (optimized, skeleton) = Default::default();
        Self { snapshot, plan, target, optimized, skeleton, is_repeatable: false, texts: Texts::Views }
    }

    /// Lets executions share the optimized plan of a [repeatable](super::plan_cache::is_repeatable) query, and the session state of
    /// the snapshot: they look no names up and ask for no time. A query with parameters is optimized now, where it can be.
    pub(super) fn with_shared_optimization(self) -> Self {
        let skeleton = Skeleton::new(self.snapshot.template(), &self.plan).unwrap_or_else(|error| {
            tracing::debug!(%error, "a query is optimized once its parameters are bound");
            None
        });
        Self { optimized: Some(Arc::default()), skeleton: skeleton.map(Arc::new), is_repeatable: true, ..self }
    }

    /// The same plan for a caller who wants texts so.
    pub(super) fn with_texts(self, texts: Texts) -> Self {
        Self { texts, ..self }
    }

    /// Whether executions share the session state of the snapshot.
    pub(super) fn shares_state(&self) -> bool {
        self.is_repeatable
    }

    /// Binds row `row` of `parameters`.
    pub(super) fn bound(self, parameters: &RecordBatch, row: usize) -> Result<Self> {
        if let Some(skeleton) = self.skeleton.clone()
            && let Some(optimized) = skeleton.with_values(parameters, row)?
        {
            let optimized = Some(Arc::new(OnceLock::from(Arc::new(optimized))));
            return Ok(Self { plan: skeleton.analysed().clone(), optimized, ..self });
        }
        let plan = bind_row(self.snapshot.template(), self.plan, parameters, row)?;
        Ok(Self { plan, optimized: None, skeleton: None, ..self })
    }

    /// The plan after the rules of the optimizer.
    pub(super) fn optimized(&self, state: &SessionState) -> Result<Arc<LogicalPlan>> {
        if let Some(plan) = self.optimized.as_ref().and_then(|shared| shared.get()) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(state.optimize(&self.plan)?);
        if let Some(shared) = &self.optimized
            && literal_bytes(&plan)? <= MOST_LITERAL_BYTES
        {
            // Another execution may have been first, with the same plan.
            let _ = shared.set(Arc::clone(&plan));
        }
        Ok(plan)
    }

    /// Columns of its result.
    pub(super) fn result_columns(&self) -> Result<ResultColumns> {
        ResultColumns::new(self.snapshot.template(), &self.plan)
    }
}

/// What a statement may change in its session. The change is gone when the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionPart {
    /// Its transaction: BEGIN, COMMIT, ROLLBACK, savepoints.
    Transaction,
    /// Its prepared statements: PREPARE, DEALLOCATE.
    NamedStatements,
    /// Its options: SET, RESET.
    Options,
}

/// A query of the plan cache.
#[derive(Clone)]
pub(super) struct CachedQuery {
    command: Arc<Command>,
    dataset_schema: SchemaRef,
    has_fixed_columns: bool,
    parameters: SchemaRef,
    planned: Planned,
}

#[cfg(test)]
impl CachedQuery {
    /// Whether its optimized plan is there; `None` where executions do not share it.
    pub(super) fn has_optimized_plan(&self) -> Option<bool> {
        self.planned.optimized.as_ref().map(|shared| shared.get().is_some())
    }

    /// Whether it is optimized before its parameters are bound.
    pub(super) fn has_skeleton(&self) -> bool {
        self.planned.skeleton.is_some()
    }
}

impl IsCurrent for CachedQuery {
    fn is_current(&self) -> bool {
        self.planned.snapshot.is_current()
    }
}

/// A running query. Dropping `stream` cancels it and frees its memory and its execution slot.
pub struct RunningQuery {
    /// Key under which it may be cancelled.
    pub id: String,
    /// Columns of every batch.
    pub schema: SchemaRef,
    /// The rows.
    pub stream: SendableRecordBatchStream,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("sql", &self.sql).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RunningQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningQuery").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Prepared {
    pub(super) async fn new(
        session: Arc<Session>,
        sql: &str,
        transaction: Option<Arc<Transaction>>,
    ) -> Result<Arc<Self>> {
        let sql: Arc<str> = Arc::from(sql.trim());
        let engine = Arc::clone(session.engine());
        engine.audit().ready().await;
        let is_alone = transaction.is_none() && session.current().is_none();
        let place = if is_alone && !planning::may_take_long(&sql, None) { session.plan_place(&sql) } else { None };
        if let Some(place) = &place
            && let Some(query) = engine.plans.find(&place.key)
        {
            return Ok(Arc::new(Self::from_cache(session, sql, place.settings, query)));
        }
        let settings = session.settings();
        // With a ticket, system.queries shows it and CANCEL QUERY stops it while it is planned.
        let touched = Arc::<Touched>::default();
        let ticket = session.start_planning(&sql, &touched)?;
        let interrupt = ticket.interrupt();
        let _cancel_guard = interrupt.guard();
        let overdue = interrupt.clone().overdue();
        let work = {
            let session = Arc::clone(&session);
            let sql = Arc::clone(&sql);
            let touched = Arc::clone(&touched);
            let transaction = transaction.clone().or_else(|| session.current());
            async move {
                let parsed = parse(&sql)?;
                // EXECUTE: the session decides which statement its text means.
                let is_named = matches!(parsed.action, Action::Prepare(_));
                let command = expand(&session, parsed, &sql)?;
                touched.note_named(&command, &session.default_schema());
                rights::authorize(&session, &command.action)?;
                let planning = Planning { session: &session, transaction: transaction.as_ref() };
                let outline = command.action.plan(&planning).await?;
                if let Outline::Plan(planned) = &outline {
                    touched.note_read(&planned.snapshot.readings());
                }
                Ok((command, outline, is_named))
            }
        };
        let planned = tokio::select! {
            biased;
            planned = engine.plan(may_take_long(&session, &sql), &ticket, work) => planned,
            error = overdue => Err(error),
        };
        let planned = planned.and_then(|planned| interrupt.check().map(|()| planned));
        match planned {
            Ok((command, outline, is_named)) => {
                ticket.discard();
                let prepared = Self::from_outline(session, sql, transaction, settings, command, outline)?;
                let prepared = Self { touched, ..prepared };
                if let Some(place) = place.filter(|_| !is_named && prepared.kind() == StatementKind::Query) {
                    engine.plans.count_new();
                    if let Some(query) = prepared.to_cache() {
                        prepared.session.keep_plan(place, query);
                    }
                }
                Ok(Arc::new(prepared))
            }
            Err(error) => {
                // A statement that cannot be planned belongs in the history and the error counts too.
                ticket.end::<()>(&Err(error.clone()));
                Err(error)
            }
        }
    }

    fn from_outline(
        session: Arc<Session>,
        sql: Arc<str>,
        transaction: Option<Arc<Transaction>>,
        settings: u64,
        command: Command,
        outline: Outline,
    ) -> Result<Self> {
        let nothing = || Arc::new(Schema::empty());
        let ResultColumns { schema: dataset_schema, are_fixed: has_fixed_columns } = match &outline {
            Outline::Plan(planned) if command.returns_rows => planned.result_columns()?,
            Outline::Rows(rows) => ResultColumns::fixed(rows.schema()),
            Outline::Plan(_) | Outline::Count => ResultColumns::fixed(nothing()),
        };
        let planned = outline.plan();
        let is_ordered = planned.as_ref().is_some_and(|planned| has_order(&planned.plan));
        let names = &command.parameter_names;
        let parameters =
            planned.as_ref().map_or_else(|| Ok(nothing()), |planned| parameter_schema(&planned.plan, names))?;
        // A plan on a transaction's snapshot is not cached, or the statement would pin the snapshot beyond its end.
        let planned = planned.filter(|planned| !planned.snapshot.in_transaction()).map(|planned| (settings, planned));
        let (command, planned) = (Arc::new(command), Mutex::new(planned));
        let touched = Arc::default();
        Ok(Self {
            session,
            transaction,
            sql,
            command,
            dataset_schema,
            has_fixed_columns: has_fixed_columns.into(),
            parameters,
            is_ordered,
            planned,
            pinned: None,
            touched,
        })
    }

    fn from_cache(session: Arc<Session>, sql: Arc<str>, settings: u64, query: CachedQuery) -> Self {
        let CachedQuery { command, dataset_schema, has_fixed_columns, parameters, planned } = query;
        let touched = Arc::<Touched>::default();
        if session.engine().audit().records(is_change(command.kind)) {
            touched.note_named(&command, &session.default_schema());
            touched.note_read(&planned.snapshot.readings());
        }
        Self {
            session,
            transaction: None,
            sql,
            command,
            dataset_schema,
            has_fixed_columns: has_fixed_columns.into(),
            parameters,
            is_ordered: has_order(&planned.plan),
            planned: Mutex::new(Some((settings, planned))),
            pinned: None,
            touched,
        }
    }

    /// The same query on the present versions of its tables: each of its executions has the same rows, whatever is
    /// committed meanwhile, in the order of ORDER BY. `None` where that cannot be promised: in a transaction, and where more
    /// than these versions decides the rows (`repeatable.rs`). The versions are kept until it is dropped. An execution
    /// after a change of rights or tiers is an error, [`ErrorKind::FailedPrecondition`].
    pub async fn pinned(self: &Arc<Self>) -> Result<Option<Arc<Self>>> {
        if !self.command.returns_rows || self.transaction()?.is_some() {
            return Ok(None);
        }
        let prepared = Arc::clone(self);
        let work = async move {
            let interrupt = Interrupt::new(None, Arc::default());
            let _cancel_guard = interrupt.guard();
            let planned = prepared.current_plan(None, &interrupt).await?;
            let Some(planned) = planned else { return Ok::<_, Error>(None) };
            let is_repeatable = has_same_rows(&planned.plan)?;
            Ok(is_repeatable.then(|| Arc::new(prepared.with_plan(planned))))
        };
        run_on(&self.session.engine().options.planning, work).await
    }

    /// The same query, whose executions all have this plan.
    fn with_plan(&self, planned: Planned) -> Self {
        Self {
            session: Arc::clone(&self.session),
            transaction: None,
            sql: Arc::clone(&self.sql),
            command: Arc::clone(&self.command),
            dataset_schema: self.dataset_schema(),
            has_fixed_columns: self.has_fixed_columns().into(),
            parameters: self.parameter_schema(),
            is_ordered: self.is_ordered,
            planned: Mutex::default(),
            pinned: Some(planned),
            touched: Arc::clone(&self.touched),
        }
    }

    /// The query for the cache of plans; `None` where its plan may not be used again, or is large.
    fn to_cache(&self) -> Option<CachedQuery> {
        let (_, planned) = self.planned.lock().clone()?;
        if planned.optimized.is_none() || planning::may_take_long(&self.sql, Some(&planned.plan)) {
            return None;
        }
        Some(CachedQuery {
            command: Arc::clone(&self.command),
            dataset_schema: self.dataset_schema(),
            has_fixed_columns: self.has_fixed_columns(),
            parameters: self.parameter_schema(),
            planned,
        })
    }

    /// Columns of the result; empty for an update.
    pub fn dataset_schema(&self) -> SchemaRef {
        Arc::clone(&self.dataset_schema)
    }

    /// One field per parameter: `$1`, `$2`, ..., or `$name` in order of first appearance; type Null where any type will do.
    pub fn parameter_schema(&self) -> SchemaRef {
        Arc::clone(&self.parameters)
    }

    /// Columns of the result with `parameters` (one row) bound; their types may determine those of the result.
    pub async fn bound_schema(self: &Arc<Self>, parameters: &RecordBatch) -> Result<SchemaRef> {
        if !self.command.returns_rows || self.parameters.fields().is_empty() {
            return Ok(self.dataset_schema());
        }
        // In this order: a plan with other columns comes after the note of them.
        if self.has_current_plan()? && self.has_fixed_columns() {
            self.check_parameters(Some(parameters))?;
            return Ok(self.dataset_schema());
        }
        let prepared = Arc::clone(self);
        let parameters = parameters.clone();
        let work = async move {
            let interrupt = Interrupt::new(None, Arc::default());
            let _cancel_guard = interrupt.guard();
            let planned = prepared.current_plan(prepared.transaction()?.as_ref(), &interrupt).await?;
            let planned = planned.ok_or_else(|| Error::new(ErrorKind::Internal, "a query has no plan"))?;
            Ok(prepared.bind(planned, Some(&parameters))?.result_columns()?.schema)
        };
        let engine = self.session.engine();
        run_on(&engine.options.planning, work).await
    }

    fn has_fixed_columns(&self) -> bool {
        self.has_fixed_columns.load(Ordering::Acquire)
    }

    /// Notes whether a query with parameters has other columns in a new plan than before.
    fn note_columns(&self, planned: &Planned) -> Result<()> {
        let may_change = self.command.returns_rows && !self.parameters.fields().is_empty() && self.has_fixed_columns();
        if may_change && planned.result_columns()?.schema != self.dataset_schema {
            self.has_fixed_columns.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Whether an execution that starts now would use the plan that is there.
    fn has_current_plan(&self) -> Result<bool> {
        if self.pinned.is_some() || self.transaction()?.is_some() {
            return Ok(false);
        }
        let planned = self.planned.lock();
        let is_current = |(settings, planned): &(u64, Planned)| {
            *settings == self.session.settings() && planned.snapshot.is_current()
        };
        Ok(planned.as_ref().is_some_and(is_current))
    }

    /// True for statements that return a count instead of rows.
    pub fn is_update(&self) -> bool {
        !self.command.returns_rows
    }

    /// True for a query whose rows come in an order that its text gives (ORDER BY).
    pub fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Kind of the statement.
    pub fn kind(&self) -> StatementKind {
        self.command.kind
    }

    /// The part of its session that it changes, where it changes nothing else; `None` for all other statements.
    pub fn session_part(&self) -> Option<SessionPart> {
        match &self.command.action {
            Action::Transaction(_) => Some(SessionPart::Transaction),
            Action::Prepare(_) => Some(SessionPart::NamedStatements),
            Action::Plan(_) if self.kind() == StatementKind::Setting => Some(SessionPart::Options),
            _ => None,
        }
    }

    /// Its text.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(super) fn command(&self) -> &Command {
        &self.command
    }

    /// The transaction it belongs to now; `None`: the statement commits by itself, or reads versions of its own.
    pub(super) fn transaction(&self) -> Result<Option<Arc<Transaction>>> {
        if self.pinned.is_some() {
            return Ok(None);
        }
        match &self.transaction {
            Some(original) => self.session.successor(original),
            None => Ok(self.session.current()),
        }
    }

    /// Registers an execution, once the audit trail has room for its end.
    async fn start(&self) -> Result<Ticket> {
        self.session.engine().audit().ready().await;
        self.session.start_statement(&self.sql, self.command.kind, &self.touched)
    }

    /// Starts the statement with at most one row of parameters and returns its rows. An update runs to its end and
    /// returns one row with the column `rows_affected`.
    pub async fn query(self: &Arc<Self>, parameters: Option<RecordBatch>) -> Result<RunningQuery> {
        self.query_with_texts(parameters, Texts::Views).await
    }

    /// [`Self::query`], with texts as the caller wants them.
    pub async fn query_with_texts(
        self: &Arc<Self>,
        parameters: Option<RecordBatch>,
        texts: Texts,
    ) -> Result<RunningQuery> {
        if parameters.as_ref().is_some_and(|p| p.num_rows() > 1) {
            return Err(Error::invalid("a query takes one row of parameters"));
        }
        let ticket = self.start().await?;
        if self.command.returns_rows {
            return query::start(Arc::clone(self), ticket, query::Request { parameters, texts }).await;
        }
        let id = ticket.id().to_owned();
        let count = run::update(Arc::clone(self), ticket, parameters).await?;
        let schema = rows_affected_schema();
        let column = Arc::new(Int64Array::from(vec![i64::try_from(count).unwrap_or(i64::MAX)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![column])?;
        let rows = futures::stream::iter([Ok(batch)]);
        let stream = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), rows));
        Ok(RunningQuery { id, schema, stream })
    }

    /// Runs the statement for every row of `parameters` (once without), atomically, and returns the rows affected.
    pub async fn update(self: &Arc<Self>, parameters: Option<RecordBatch>) -> Result<u64> {
        if self.command.returns_rows {
            return Err(Error::invalid("the statement returns rows; run it as a query"));
        }
        if parameters.as_ref().is_some_and(|p| p.num_columns() > 0 && p.num_rows() == 0) {
            return Ok(0);
        }
        let ticket = self.start().await?;
        run::update(Arc::clone(self), ticket, parameters).await
    }

    /// Returns the plan on current table versions, or the rows that are computed without one. Plans anew when the catalog
    /// changed, and always in a transaction. The caller names the transaction, as the session may begin or end one while a
    /// statement runs.
    pub(super) async fn outline(
        self: &Arc<Self>,
        transaction: Option<&Arc<Transaction>>,
        interrupt: &Interrupt,
    ) -> Result<Outline> {
        if let Some(pinned) = &self.pinned {
            if !pinned.snapshot.is_permitted() {
                let message = "rights or tiers changed since the query was planned: run it again";
                return Err(Error::new(ErrorKind::FailedPrecondition, message));
            }
            return Ok(Outline::Plan(Box::new(pinned.clone())));
        }
        if transaction.is_some() {
            return self.plan_anew(transaction, interrupt).await;
        }
        let settings = self.session.settings();
        let cached = self.planned.lock().take();
        if let Some((made_with, cached)) = cached
            && made_with == settings
            && cached.snapshot.is_current()
        {
            *self.planned.lock() = Some((settings, cached.clone()));
            return Ok(Outline::Plan(Box::new(cached)));
        }
        let fresh = self.plan_anew(None, interrupt).await?;
        if let Outline::Plan(fresh) = &fresh {
            self.note_columns(fresh)?;
            *self.planned.lock() = Some((settings, fresh.as_ref().clone()));
        }
        Ok(fresh)
    }

    /// The plan of [`Prepared::outline`], if there is one.
    pub(super) async fn current_plan(
        self: &Arc<Self>,
        transaction: Option<&Arc<Transaction>>,
        interrupt: &Interrupt,
    ) -> Result<Option<Planned>> {
        Ok(self.outline(transaction, interrupt).await?.plan())
    }

    /// Plans the statement on the snapshot of a transaction.
    pub(super) async fn plan_in(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        interrupt: &Interrupt,
    ) -> Result<Option<Planned>> {
        Ok(self.plan_anew(Some(transaction), interrupt).await?.plan())
    }

    /// Plans within the limits of planning, as the first time.
    async fn plan_anew(
        self: &Arc<Self>,
        transaction: Option<&Arc<Transaction>>,
        interrupt: &Interrupt,
    ) -> Result<Outline> {
        let work = {
            let prepared = Arc::clone(self);
            let transaction = transaction.cloned();
            async move {
                rights::authorize(&prepared.session, &prepared.command.action)?;
                let planning = Planning { session: &prepared.session, transaction: transaction.as_ref() };
                prepared.command.action.plan(&planning).await
            }
        };
        let planner = &self.session.engine().planner;
        let outline = planner.plan(may_take_long(&self.session, &self.sql), interrupt, work).await?;
        if let Outline::Plan(planned) = &outline {
            self.check_columns(planned)?;
            self.touched.note_read(&planned.snapshot.readings());
        }
        Ok(outline)
    }

    /// Refuses a plan whose columns differ from those that were sent to the client.
    fn check_columns(&self, planned: &Planned) -> Result<()> {
        if self.command.returns_rows
            && self.parameters.fields().is_empty()
            && !same_columns(planned.result_columns()?.schema.as_ref(), &self.dataset_schema)
        {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                "the tables of this statement changed since it was prepared; prepare it again",
            ));
        }
        Ok(())
    }

    /// Refuses another number of parameters than the statement has.
    pub(super) fn check_parameters(&self, parameters: Option<&RecordBatch>) -> Result<()> {
        let wanted = self.parameters.fields().len();
        let given = parameters.map_or(0, RecordBatch::num_columns);
        if wanted != given {
            return Err(Error::invalid(format!("the statement takes {wanted} parameters, but {given} were bound")));
        }
        if given > 0 && parameters.is_some_and(|rows| rows.num_rows() == 0) {
            return Err(Error::invalid("no row of parameters was bound"));
        }
        Ok(())
    }

    /// Binds the first row of `parameters`.
    pub(super) fn bind(&self, planned: Planned, parameters: Option<&RecordBatch>) -> Result<Planned> {
        self.check_parameters(parameters)?;
        match parameters.filter(|_| !self.parameters.fields().is_empty()) {
            Some(rows) => planned.bound(rows, 0),
            None => Ok(planned),
        }
    }
}

/// The schema of the result of an update: one row with the column `rows_affected`.
fn rows_affected_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("rows_affected", DataType::Int64, false)]))
}

/// Parameters in order of their number, with the types the planner inferred, and with the names of those that have some.
fn parameter_schema(plan: &LogicalPlan, names: &[String]) -> Result<SchemaRef> {
    let mut numbered = Vec::new();
    for (name, field) in plan.get_parameter_fields()? {
        let number = name.strip_prefix('$').and_then(|n| n.parse::<usize>().ok()).filter(|n| *n > 0);
        let Some(number) = number else {
            return Err(Error::invalid(format!("parameter {name} has no number; write $1, $2, ..., ? or $name")));
        };
        numbered.push((number, field));
    }
    numbered.sort_by_key(|(number, _)| *number);
    let last = numbered.last().map_or(0, |(number, _)| *number);
    if last != numbered.len() {
        return Err(Error::invalid(format!("parameters must be numbered from $1 without gaps; the last is ${last}")));
    }
    let field = |(number, field): (usize, Option<Arc<Field>>)| {
        let data_type = field.map_or(DataType::Null, |f| f.data_type().clone());
        let name = names.get(number - 1).map_or_else(|| format!("${number}"), |name| format!("${name}"));
        Field::new(name, data_type, true)
    };
    Ok(Arc::new(Schema::new(numbered.into_iter().map(field).collect::<Vec<_>>())))
}

/// Equal names and types, in order.
fn same_columns(a: &Schema, b: &Schema) -> bool {
    a.fields().len() == b.fields().len()
        && a.fields().iter().zip(b.fields()).all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type())
}
