//! Executes statements: planning, admission, execution on the CPU runtime, results through a bounded channel.
//!
//! A query is executed by one task. The task holds the statement's ticket, execution slot and memory pool, and is aborted
//! when the caller drops its stream. The channel holds two batches: a slow client stops the task, not the server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNode;
use datafusion::error::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{self, Column as PhysicalColumn};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{FutureExt, Stream, TryStreamExt};
use terrace_scan::spilling_join::{SpillingHashJoinExec, with_spilling_joins};
use terrace_sql::StatementKind;
use terrace_tier_store::table::{TableOptions, row_bytes};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;

use super::Engine;
use super::admission::{Applicant, Demand, ExecutionSlot};
use super::even_sorts::with_even_sorts;
use super::execute::{Execute, Execution, Outline};
use super::grouping_sets::with_small_batches;
use super::interrupt::interruptible;
use super::registry::{StatementState, Ticket};
use super::statement::{Planned, Prepared, RunningQuery};
use super::transaction::Running;
use crate::error::{Error, ErrorKind, Result};

/// The least memory for each of several sorts of one statement.
const SORT_BYTES: usize = 64 << 20;

/// A statement that executes longer is no point statement.
const POINT_TIME: Duration = Duration::from_millis(50);

/// Time for which a statement keeps its execution slot while its client takes no rows.
const SLOT_PATIENCE: Duration = Duration::from_millis(250);

/// Batches between the task and its client.
const CHANNEL_BATCHES: usize = 2;

/// A task that is aborted when this is dropped.
pub(super) struct AbortOnDrop<T>(pub(super) JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The error of a task that was cancelled or panicked.
pub(super) fn join_error(error: &tokio::task::JoinError) -> Error {
    if error.is_cancelled() {
        Error::new(ErrorKind::Cancelled, "the statement was cancelled")
    } else {
        tracing::error!(%error, "a statement panicked");
        Error::new(ErrorKind::Internal, "the server hit a defect while it ran the statement; its log says where")
    }
}

/// Waits for an execution slot and keeps the statement's record up to date.
pub(super) async fn acquire_slot(engine: &Engine, ticket: &Ticket, demand: Arc<Demand>) -> Result<ExecutionSlot> {
    ticket.set_state(StatementState::Queued);
    ticket.set_demand(demand.weighted_bytes());
    let applicant = Applicant { session: ticket.session(), demand, pool: ticket.memory().pool() };
    let slot = engine.admission.acquire_slot(applicant).await.inspect_err(|_| ticket.count_rejected())?;
    ticket.set_state(StatementState::Running);
    Ok(slot)
}

/// The demand of a statement whose plan is made once it has a slot: an equal share of query memory.
pub(super) fn unknown_demand(engine: &Engine) -> Arc<Demand> {
    Demand::fixed((engine.memory.limit_bytes() / engine.options.max_running.max(1)) as u64)
}

/// Does `work`, and takes the slot of a point statement away from it after [`POINT_TIME`].
async fn demoting<T>(slot: &ExecutionSlot, work: impl Future<Output = T>) -> T {
    if !slot.is_point() {
        return work.await;
    }
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => done,
        () = tokio::time::sleep(POINT_TIME) => {
            slot.demote();
            work.await
        }
    }
}

/// Starts a query and returns as soon as its first rows, or its error, are known.
pub(super) async fn query(
    prepared: Arc<Prepared>,
    ticket: Ticket,
    parameters: Option<RecordBatch>,
) -> Result<RunningQuery> {
    let engine = Arc::clone(prepared.session().engine());
    let id = ticket.id().to_owned();
    let cancel_guard = ticket.interrupt().guard();
    let (rows, receiver) = mpsc::channel(CHANNEL_BATCHES);
    let (header, opened) = oneshot::channel();
    let task = engine.options.cpu.clone().spawn(async move {
        let mut results = ResultSender { header: Some(header), rows };
        let body = run_query(&prepared, &ticket, parameters, &mut results);
        let result = ticket.interrupt().guarded(ticket.memory().heap().charge(body)).await;
        ticket.end(&result);
        if let Err(error) = result {
            results.fail(error).await;
        }
    });
    let mut task = AbortOnDrop(task);
    let schema: SchemaRef = match opened.await {
        Ok(opened) => opened?,
        Err(_) => {
            return Err((&mut task.0)
                .await
                .err()
                .map_or_else(|| Error::new(ErrorKind::Internal, "the statement gave no answer"), |e| join_error(&e)));
        }
    };
    let stream =
        ResultStream { schema: Arc::clone(&schema), receiver, task, ended: false, _cancel_guard: cancel_guard };
    Ok(RunningQuery { id, schema, stream: Box::pin(stream) })
}

/// The sending side of a result: first its columns, then its rows.
struct ResultSender {
    /// `None` once the columns were sent.
    header: Option<oneshot::Sender<Result<SchemaRef>>>,
    rows: mpsc::Sender<Result<RecordBatch, DataFusionError>>,
}

impl ResultSender {
    fn start(&mut self, schema: SchemaRef) -> Result<()> {
        let sent = self.header.take().is_some_and(|header| header.send(Ok(schema)).is_ok());
        if sent { Ok(()) } else { Err(client_gone()) }
    }

    /// Sends a batch. While the client takes none, the statement leaves its slot to others.
    async fn send(&self, batch: RecordBatch, ticket: &Ticket, slot: &ExecutionSlot) -> Result<()> {
        ticket.add_sent(batch.num_rows() as u64, row_bytes(&batch));
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if let Ok(room) = tokio::time::timeout(SLOT_PATIENCE, self.rows.reserve()).await {
            room.map_err(|_| client_gone())?.send(Ok(batch));
            return Ok(());
        }
        slot.give_back();
        ticket.set_state(StatementState::Stalled);
        self.rows.reserve().await.map_err(|_| client_gone())?.send(Ok(batch));
        ticket.set_state(StatementState::Queued);
        slot.take_again().await;
        ticket.set_state(StatementState::Running);
        Ok(())
    }

    /// Sends an error in place of what is still to come.
    async fn fail(self, error: Error) {
        // A client that went away needs no error.
        match self.header {
            Some(header) => drop(header.send(Err(error))),
            None => drop(self.rows.send(Err(error.into())).await),
        }
    }
}

fn client_gone() -> Error {
    Error::new(ErrorKind::Cancelled, "the client went away")
}

async fn run_query(
    prepared: &Prepared,
    ticket: &Ticket,
    parameters: Option<RecordBatch>,
    results: &mut ResultSender,
) -> Result<()> {
    let transaction = prepared.transaction()?;
    let _running = Running::enter(transaction.as_ref(), prepared.command().privilege())?;
    let engine = prepared.session().engine();
    let planned = match prepared.outline(transaction.as_ref()).await? {
        Outline::Plan(planned) => prepared.bind(*planned, parameters.as_ref())?,
        Outline::Rows(computed) => {
            prepared.check_parameters(parameters.as_ref())?;
            let slot = acquire_slot(engine, ticket, Demand::point()).await?;
            let schema = computed.schema();
            let batch = demoting(&slot, engine.blocking(move || computed.compute())).await?;
            results.start(schema)?;
            return results.send(batch, ticket, &slot).await;
        }
        Outline::Count => return Err(Error::new(ErrorKind::Internal, "a query has no plan")),
    };
    let (plan, context) = prepare_plan(engine, ticket, &planned, PlanMemory::Full).await?;
    let demand = Demand::from_plan(&plan, engine.memory.limit_bytes() as u64)?;
    let slot = acquire_slot(engine, ticket, Arc::clone(&demand)).await?;
    let send_rows = async {
        let may_retry = has_joins_or_sorts(&plan)?;
        let mut stream = execute_stream(plan, context)?;
        let mut first = stream.try_next();
        let polled = futures::poll!(&mut first);
        // The plan must not outlive this: it would keep what its operators have let go of.
        demand.release_plan();
        let first = match polled {
            Poll::Ready(first) => first,
            Poll::Pending => first.await,
        };
        let (mut stream, first) = match first {
            Err(error) if may_retry && is_out_of_memory(&error) => retry(engine, ticket, &planned, stream).await?,
            first => (stream, first?),
        };
        results.start(stream.schema())?;
        let mut next = first;
        while let Some(batch) = next {
            results.send(batch, ticket, &slot).await?;
            next = stream.try_next().await?;
        }
        Ok(())
    };
    demoting(&slot, send_rows).await
}

/// How a plan is shaped to limit its query memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PlanMemory {
    /// As much as the settings of the session allow.
    #[default]
    Full,
    /// Few partitions where query memory is small: each sort needs room for a batch and its merge beside the memory of the
    /// others.
    FewSorts,
    /// Like `FewSorts`, and with sort-merge joins in place of hash joins.
    SortMergeJoins,
}

impl PlanMemory {
    /// Chooses for rows that are loaded into a table: they are sorted by its `cluster_by` columns, if any.
    pub(super) fn for_load(options: &TableOptions) -> Self {
        if options.cluster_by.is_empty() { Self::Full } else { Self::FewSorts }
    }

    /// Changes the options that plans are made with.
    fn apply(self, state: &mut SessionState, engine: &Engine) {
        let options = state.config_mut().options_mut();
        if self != Self::Full {
            let most = (engine.memory.limit_bytes() / SORT_BYTES).max(1);
            options.execution.target_partitions = options.execution.target_partitions.min(most);
        }
        if self == Self::SortMergeJoins {
            options.optimizer.prefer_hash_join = false;
        }
    }
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Plans and executes a statement that exhausted query memory before its first batch once more, with
/// [`PlanMemory::SortMergeJoins`]; later the client may already have rows.
async fn retry(
    engine: &Engine,
    ticket: &Ticket,
    planned: &Planned,
    failed: SendableRecordBatchStream,
) -> Result<(SendableRecordBatchStream, Option<RecordBatch>)> {
    drop(failed);
    tracing::info!("query memory ran out; trying again with sort-merge joins and few partitions");
    let mut stream = execute(engine, ticket, planned, PlanMemory::SortMergeJoins).await?;
    let first = stream.try_next().await?;
    Ok((stream, first))
}

/// Executes a plan and returns its rows.
pub(super) async fn execute(
    engine: &Engine,
    ticket: &Ticket,
    planned: &Planned,
    memory: PlanMemory,
) -> Result<SendableRecordBatchStream> {
    let (plan, context) = prepare_plan(engine, ticket, planned, memory).await?;
    Ok(execute_stream(plan, context)?)
}

async fn prepare_plan(
    engine: &Engine,
    ticket: &Ticket,
    planned: &Planned,
    memory: PlanMemory,
) -> Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>)> {
    let mut state = planned.snapshot.state();
    memory.apply(&mut state, engine);
    let plan = physical_plan(&state, ticket, planned).await?;
    Ok((plan, task_context(engine, ticket, &state)?))
}

async fn physical_plan(state: &SessionState, ticket: &Ticket, planned: &Planned) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = state.create_physical_plan(&planned.plan).await?;
    let plan = with_announced_types(plan, planned.plan.schema().as_arrow())?;
    let plan = with_small_batches(with_even_sorts(plan)?)?;
    Ok(with_spilling_joins(interruptible(plan, &ticket.interrupt())?)?)
}

/// Casts numeric columns of a plan to the announced types where the optimizer has changed them (`decimal * 0` becomes a 0
/// of another precision). A number that does not fit is an error.
fn with_announced_types(plan: Arc<dyn ExecutionPlan>, announced: &Schema) -> Result<Arc<dyn ExecutionPlan>> {
    let found = plan.schema();
    let differs = |have: &Field, want: &Field| {
        have.data_type() != want.data_type() && have.data_type().is_numeric() && want.data_type().is_numeric()
    };
    let pairs = || found.fields().iter().zip(announced.fields());
    if found.fields().len() != announced.fields().len() || !pairs().any(|(have, want)| differs(have, want)) {
        return Ok(plan);
    }
    let columns = pairs().enumerate().map(|(index, (have, want))| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(PhysicalColumn::new(have.name(), index));
        let expr = match differs(have, want) {
            true => expressions::cast(column, &found, want.data_type().clone())?,
            false => column,
        };
        Ok(ProjectionExpr { expr, alias: have.name().clone() })
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ProjectionExec::try_new(columns, plan)?))
}

/// Whether a plan has a hash join or a sort without a limit.
fn has_joins_or_sorts(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|node| {
        let sorts = || node.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_none());
        Ok(node.is::<SpillingHashJoinExec>() || sorts())
    })
    .map_err(Into::into)
}

/// Builds the context of one execution, with its own memory pool and scan records; spill files and caches are shared.
fn task_context(engine: &Engine, ticket: &Ticket, state: &SessionState) -> Result<Arc<TaskContext>> {
    let runtime =
        RuntimeEnvBuilder::from_runtime_env(&engine.runtime).with_memory_pool(ticket.memory().pool()).build_arc()?;
    let context = TaskContext::from(state).with_runtime(runtime);
    let config = context.session_config().clone().with_extension(ticket.scans());
    Ok(Arc::new(context.with_session_config(config)))
}

/// Runs an update to its end and returns the rows affected.
pub(super) async fn update(prepared: Arc<Prepared>, ticket: Ticket, parameters: Option<RecordBatch>) -> Result<u64> {
    let engine = Arc::clone(prepared.session().engine());
    let _cancel_guard = ticket.interrupt().guard();
    let work = async move {
        let body = run_update(&prepared, &ticket, parameters.as_ref());
        let result = ticket.interrupt().guarded(ticket.memory().heap().charge(body)).await;
        ticket.end(&result);
        result
    };
    engine.on_cpu(work).await
}

async fn run_update(prepared: &Prepared, ticket: &Ticket, parameters: Option<&RecordBatch>) -> Result<u64> {
    let transaction = prepared.transaction()?;
    let _running = Running::enter(transaction.as_ref(), prepared.command().privilege())?;
    let action = &prepared.command().action;
    let execution = |transaction| Execution { prepared, ticket, parameters, transaction };
    if let Some(transaction) = transaction.as_ref().filter(|_| prepared.kind() == StatementKind::Ddl) {
        transaction.allow_ddl()?;
        let done = action.run(&execution(None)).await;
        transaction.allow_ddl()?;
        return done;
    }
    action.run(&execution(transaction)).await
}

/// The stream of a query's rows that the caller reads.
struct ResultStream {
    schema: SchemaRef,
    receiver: mpsc::Receiver<Result<RecordBatch, DataFusionError>>,
    task: AbortOnDrop<()>,
    ended: bool,
    _cancel_guard: DropGuard,
}

impl Stream for ResultStream {
    type Item = Result<RecordBatch, DataFusionError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(item) = futures::ready!(self.receiver.poll_recv(context)) {
            return Poll::Ready(Some(item));
        }
        // The channel also closes when the task panics, which must not look like the end of the rows.
        let joined = futures::ready!(self.task.0.poll_unpin(context));
        self.ended = true;
        Poll::Ready(joined.err().map(|e| Err(join_error(&e).into())))
    }
}

impl RecordBatchStream for ResultStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
