//! Loading rows into a table, all or nothing: bulk ingest from clients, CREATE TABLE AS, COPY FROM.
//!
//! Rows are matched to columns by name, cast where nothing is lost, sorted by the table's `cluster_by` columns with
//! DataFusion's external sort, and published in one commit.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::task::Poll;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::Column;
use datafusion::datasource::provider_as_source;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use terrace_access::{Principal, Securable};
use terrace_heap::HeapAccount;
use terrace_scan::sink::IngestWriter;
use terrace_sql::{SYSTEM_SCHEMA, StatementKind};
use terrace_tier_store::table::{Table, TableDefinition, TableName, TableOptions, row_bytes};
use terrace_tier_store::tier::codec;

use super::catalog::Snapshot;
use super::policies::RowCondition;
use super::registry::Ticket;
use super::rights::Need;
use super::run::PlanMemory;
use super::session::Session;
use super::statement::Planned;
use super::transaction::{Running, Transaction};
use super::types::{RowAdapter, stored_schema};
use super::{Engine, ddl, defaults, rights, run};
use crate::error::{Error, ErrorKind, Result, missing_table};

/// Rows from a client, in batches.
pub type RowStream = BoxStream<'static, Result<RecordBatch>>;

/// How bulk ingest treats the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngestMode {
    /// Creates it; [`ErrorKind::AlreadyExists`] when it is there.
    Create,
    /// Adds rows; [`ErrorKind::NotFound`] when it is not there.
    Append,
    /// Puts a new table in place of the old one, if any.
    Replace,
    /// Adds rows, to a new table if there is none.
    CreateAppend,
}

/// Where the rows of a bulk ingest go.
#[derive(Debug, Clone)]
pub struct IngestRequest {
    /// Schema of the table; the session's if `None`.
    pub schema: Option<String>,
    /// The table, as it is (no case folding).
    pub table: String,
    /// How to treat the table.
    pub mode: IngestMode,
    /// Options of a new table, as in CREATE TABLE .. WITH; without effect on an existing one.
    pub options: HashMap<String, String>,
}

/// Where loaded rows go.
pub(super) enum LoadTarget {
    /// Rows are added.
    Existing {
        table: Arc<Table>,
        /// The transaction that adds them; `None`: they are committed by themselves.
        transaction: Option<Arc<Transaction>>,
        /// What they have to fulfil by the policies of the table.
        condition: Option<Arc<RowCondition>>,
    },
    New {
        definition: TableDefinition,
        replace: bool,
        /// Who makes it.
        maker: Box<Principal>,
    },
}

impl LoadTarget {
    fn definition(&self) -> TableDefinition {
        match self {
            Self::New { definition, .. } => definition.clone(),
            Self::Existing { table, .. } => table.definition().clone(),
        }
    }
}

impl Engine {
    /// Stores all rows of `rows`, or none, and returns their number. Runs on the CPU runtime; dropping the future aborts it.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] with every column that does not fit those of an existing table, and
    /// [`ErrorKind::InvalidArgument`] with a value that does not fit.
    pub async fn ingest(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: IngestRequest,
        schema: SchemaRef,
        rows: RowStream,
        transaction: Option<&str>,
    ) -> Result<u64> {
        let transaction = match transaction {
            Some(id) => Some(session.transaction(id)?),
            None => session.current(),
        };
        let text: Arc<str> = format!("INGEST INTO {} ({:?})", request.table, request.mode).into();
        self.audit().ready().await;
        let ticket = session.start_statement(&text, StatementKind::Ingest, &Arc::default())?;
        let session = Arc::clone(session);
        let work = async move {
            let result = ticket.supervised(ingest(&session, &ticket, request, schema, rows, transaction)).await;
            ticket.end(&result);
            result
        };
        self.on_cpu(work).await
    }
}

async fn ingest(
    session: &Session,
    ticket: &Ticket,
    request: IngestRequest,
    schema: SchemaRef,
    rows: RowStream,
    transaction: Option<Arc<Transaction>>,
) -> Result<u64> {
    let engine = session.engine();
    let _running = Running::enter(session, transaction.as_ref(), StatementKind::Ingest.privilege())?;
    let snapshot = session.snapshot_in(transaction.as_ref())?;
    let default = snapshot.default_schema().to_owned();
    let name = TableName::new(request.schema.clone().unwrap_or(default), request.table.clone());
    ticket.touched().note_written(&name);
    let target = match ingest_target(session, &snapshot, &name, &request, &schema)? {
        // A transaction writes to the table that it reads.
        LoadTarget::Existing { condition, .. } if transaction.is_some() => {
            let table = snapshot.writable(&name, &[ingest_need(&snapshot, &name, &schema)?])?;
            LoadTarget::Existing { table: Arc::clone(table.table()), transaction: transaction.clone(), condition }
        }
        existing @ LoadTarget::Existing { .. } => existing,
        new => {
            transaction.as_ref().map(|transaction| transaction.allow_ddl()).transpose()?;
            new
        }
    };
    let definition = target.definition();
    let rows = taken_over(Arc::clone(ticket.memory().heap()), rows);
    // A sort keeps rows until all are there, and columns that defaults compute are computed in partitions, which join batches.
    let mut columns = definition.columns.iter().zip(definition.schema.fields());
    let computes = columns.any(|(c, field)| c.default.is_some() && schema.field_with_name(field.name()).is_err());
    let keeps_rows = !definition.options.cluster_by.is_empty() || computes;
    let rows = if keeps_rows { copied(rows) } else { rows };
    let source = OneStream { schema: Arc::clone(&schema), rows: Mutex::new(Some(rows)) };
    let table = StreamingTable::try_new(schema, vec![Arc::new(source)])?;
    let input = LogicalPlanBuilder::scan("rows", provider_as_source(Arc::new(table)), None)?.build()?;
    // Checks all columns before the first row is requested.
    let filled = defaults::add_missing_columns(snapshot.template(), input.clone(), &definition)?;
    let creates = matches!(target, LoadTarget::New { .. });
    let fits = RowAdapter::new(&name.to_string(), filled.schema().as_arrow(), &definition.schema);
    fits.map_err(|error| match creates {
        true => error,
        // ADBC demands this error when a table of another shape exists (adbc.h, ADBC_INGEST_OPTION_MODE_APPEND).
        false => Error::new(ErrorKind::AlreadyExists, error.message()),
    })?;
    let done = load(engine, ticket, Planned::new(snapshot, input, None), target).await;
    if let Some(transaction) = transaction.filter(|_| creates) {
        transaction.allow_ddl()?;
    }
    done
}

/// What adding rows with these columns needs.
fn ingest_need(snapshot: &Snapshot, name: &TableName, schema: &SchemaRef) -> Result<Need> {
    let given: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    rights::insert_need(snapshot, name, &given)
}

fn ingest_target(
    session: &Session,
    snapshot: &Snapshot,
    name: &TableName,
    request: &IngestRequest,
    schema: &SchemaRef,
) -> Result<LoadTarget> {
    let existing = session.engine().store.table(name).ok();
    let checked = match request.mode {
        IngestMode::Append => rights::check_table(snapshot, name, &[ingest_need(snapshot, name, schema)?]),
        IngestMode::CreateAppend if existing.is_some() => {
            rights::check_table(snapshot, name, &[ingest_need(snapshot, name, schema)?])
        }
        IngestMode::Replace => rights::check_owner(snapshot, name),
        IngestMode::CreateAppend | IngestMode::Create => Ok(()),
    };
    if request.mode != IngestMode::Append && checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        // The answer where there is no table of this name.
        ddl::check_schema(snapshot, &name.schema)?;
    }
    checked?;
    let already_exists = || Error::new(ErrorKind::AlreadyExists, format!("table '{name}' already exists"));
    match (existing, request.mode) {
        (Some(_), IngestMode::Create) => {
            ddl::check_schema(snapshot, &name.schema)?;
            return Err(already_exists());
        }
        (Some(table), IngestMode::Append | IngestMode::CreateAppend) => {
            let condition = snapshot.added_row_condition(&table)?;
            return Ok(LoadTarget::Existing { table, transaction: None, condition });
        }
        (None, IngestMode::Append) => {
            ddl::refuse_view_or_external(snapshot.objects(), name)?;
            return Err(missing_table(&name.to_string()));
        }
        _ => {}
    }
    ddl::check_schema(snapshot, &name.schema)?;
    ddl::refuse_view_or_external(snapshot.objects(), name)?;
    let pairs: Vec<_> = request.options.iter().map(|(k, v)| (k.to_lowercase(), v.clone())).collect();
    let mut definition = TableDefinition::new(name.clone(), stored_schema(schema, &[])?);
    definition.comment = ddl::apply_options(&mut definition.options, &pairs)?;
    definition.check()?;
    let maker = Box::new(session.principal().clone());
    Ok(LoadTarget::New { definition, replace: request.mode == IngestMode::Replace, maker })
}

/// Runs `input` and stores its rows. Waits for an execution slot first.
pub(super) async fn load(engine: &Arc<Engine>, ticket: &Ticket, input: Planned, target: LoadTarget) -> Result<u64> {
    ticket.interrupt().expect_commit();
    let definition = target.definition();
    if definition.name.schema == SYSTEM_SCHEMA {
        return Err(Error::new(ErrorKind::PermissionDenied, "tables of schema 'system' cannot be written"));
    }
    let _slot = run::acquire_slot(engine, ticket, run::unknown_demand(engine)).await?;
    let plan = defaults::add_missing_columns(input.snapshot.template(), input.plan, &definition)?;
    let plan = sort_by_cluster_columns(plan, &definition.options)?;
    let planned = Planned::new(input.snapshot, plan, input.target);
    let rows = run::execute(engine, ticket, &planned, PlanMemory::for_load(&definition.options)).await?;
    let store = Arc::clone(&engine.store);
    let schema = rows.schema();
    let adapter = RowAdapter::new(&definition.name.to_string(), &schema, &definition.schema)?;
    // What is converted is in no account until it is written, so large batches are converted part by part.
    let rows = match adapter.converts(&schema) {
        true => {
            let rows = rows.map_ok(|batch| futures::stream::iter(parts(batch).map(Ok))).try_flatten();
            Box::pin(RecordBatchStreamAdapter::new(schema, rows)) as SendableRecordBatchStream
        }
        false => rows,
    };
    let (maker, condition) = match &target {
        LoadTarget::New { maker, .. } => (Some(maker.clone()), None),
        LoadTarget::Existing { condition, .. } => (None, condition.clone()),
    };
    let mut pending_commit = None;
    let statement = ticket.writing();
    let mut writer = match target {
        LoadTarget::Existing { table, transaction, .. } => {
            pending_commit = transaction.map(|transaction| (transaction, Arc::clone(&table)));
            IngestWriter::start(move || Ok(store.ingest(&table).for_statement(statement)))
        }
        LoadTarget::New { definition, replace, .. } => {
            IngestWriter::start(move || Ok(store.ingest_new(definition, replace)?.for_statement(statement)))
        }
    };
    let adapt = |batch: &RecordBatch| {
        let bytes = row_bytes(batch);
        ticket.add(batch.num_rows() as u64, bytes);
        // From here on they belong to the threads that write.
        ticket.memory().heap().release(bytes);
        let adapted = adapter.adapt(batch)?;
        condition.as_ref().map_or(Ok(()), |condition| condition.check(&adapted))?;
        Ok(adapted)
    };
    writer.write_all(rows, adapt).await?;
    ticket.begin_commit()?;
    if let Some((transaction, table)) = pending_commit {
        let rows = writer.hand_over().await?;
        let attempt = transaction.attempt().await?;
        let worker = Arc::clone(&transaction);
        // The thread keeps the attempt alive if this future is dropped: when it ends, its rows are removed.
        let worker_attempt = Arc::clone(&attempt);
        let add = move || {
            let _attempt = worker_attempt;
            worker.add(&table, rows)
        };
        let count = engine.blocking(add).await?;
        attempt.keep();
        return Ok(count);
    }
    // Another statement may have made a table or view of this name meanwhile.
    let _name_lock = engine.name_lock.lock().await;
    ddl::refuse_view_or_external(engine.objects()?.as_ref(), &definition.name)?;
    let Some(maker) = maker else { return writer.finish().await };
    let table = Securable::Table(definition.name.clone());
    let is_new = engine.store.table(&definition.name).is_err();
    if !is_new && !engine.users.authority(&maker).owns(&table) {
        return Err(rights::denied(format!("table {}", ddl::short_name(&definition.name))));
    }
    let count = writer.finish().await?;
    if is_new {
        let worker = Arc::clone(engine);
        engine.blocking(move || worker.note_made(&maker, &table)).await?;
    }
    Ok(count)
}

/// Sorts by the table's `cluster_by` columns.
pub(super) fn sort_by_cluster_columns(plan: LogicalPlan, options: &TableOptions) -> Result<LogicalPlan> {
    if options.cluster_by.is_empty() {
        return Ok(plan);
    }
    let columns: Vec<Column> = plan.schema().columns();
    let mut order = Vec::new();
    for name in &options.cluster_by {
        let found = columns
            .iter()
            .find(|c| c.name() == name)
            .or_else(|| columns.iter().find(|c| c.name().eq_ignore_ascii_case(name)));
        // A column that the rows lack is null in all of them, so it does not affect the order.
        if let Some(column) = found {
            order.push(Expr::Column(column.clone()).sort(true, false));
        }
    }
    if order.is_empty() {
        return Ok(plan);
    }
    Ok(LogicalPlanBuilder::from(plan).sort(order)?.build()?)
}

/// The rows, which are charged to an account once they are there: the network counts what it receives. It allocates a message when
/// its first bytes come, and the others may wait then for the memory of other uploads.
fn taken_over(account: Arc<HeapAccount>, mut rows: RowStream) -> RowStream {
    futures::stream::poll_fn(move |context| {
        let polled = HeapAccount::uncharged(|| rows.poll_next_unpin(context));
        if let Poll::Ready(Some(Ok(batch))) = &polled {
            account.take_over(row_bytes(batch));
        }
        polled
    })
    .boxed()
}

/// The rows, copied out of large messages part by part: clients wait while a message is kept, and this plan keeps rows while it waits
/// for more.
fn copied(rows: RowStream) -> RowStream {
    let copy = |part: RecordBatch| codec::without_large_allocations(&part).map_err(Error::from);
    rows.map_ok(move |batch| futures::stream::iter(parts(batch).map(copy))).try_flatten().boxed()
}

/// The rows of a batch, cut where they are larger than messages that may be kept ([`codec::LARGE_ALLOCATION_BYTES`]).
fn parts(batch: RecordBatch) -> impl Iterator<Item = RecordBatch> + Send {
    let all = batch.num_rows();
    let cuts = row_bytes(&batch) / codec::LARGE_ALLOCATION_BYTES as u64 + 1;
    let rows = all.div_ceil(cuts as usize).max(1);
    (0..all).step_by(rows).map(move |start| batch.slice(start, rows.min(all - start)))
}

/// A client's stream as the one partition of a table; it can be read once.
struct OneStream {
    schema: SchemaRef,
    rows: Mutex<Option<RowStream>>,
}

impl fmt::Debug for OneStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneStream")
    }
}

impl PartitionStream for OneStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let rows = self.rows.lock().take().unwrap_or_else(|| {
            futures::stream::iter([Err(Error::new(ErrorKind::Internal, "the rows were read twice"))]).boxed()
        });
        let declared = Arc::clone(&schema);
        let checked = rows.map(move |batch| {
            let batch = batch?;
            let same = batch.num_columns() == declared.fields().len()
                && batch.columns().iter().zip(declared.fields()).all(|(c, f)| c.data_type() == f.data_type());
            if !same {
                return Err(Error::invalid("a batch of rows does not have the columns that were announced").into());
            }
            let rows = batch.num_rows();
            Ok(super::types::with_columns(&declared, batch.columns().to_vec(), rows)?)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, checked))
    }
}
