//! Queries: planned, admitted, executed; their rows go through a bounded channel.
//!
//! A query is executed by one task. The task holds the statement's ticket, execution slot and memory pool, and is aborted
//! when the caller drops its stream. The channel holds two batches: a slow client stops the task, not the server. All rows of a point
//! statement that would fit into the channel go to the caller with the columns, once the statement has ended, so that the caller is woken once.
//!
//! Statements are planned on the runtime of planning. A point statement is executed there too, so that it has processor
//! time beside the others, which go on to the runtime of execution.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::DataFusionError;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use terrace_scan::spilling_join::SpillingHashJoinExec;
use terrace_tier_store::clock::thread_cpu_ns;
use terrace_tier_store::table::row_bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::DropGuard;

use super::Engine;
use super::admission::{Demand, ExecutionSlot};
use super::cluster::runs_on_nodes;
use super::execute::Outline;
use super::interrupt::Interrupt;
use super::memory::credited;
use super::registry::{StatementState, Ticket};
use super::run::{Executable, PlanMemory, acquire_slot, plan_physical};
use super::statement::{Planned, Prepared, RunningQuery, Texts};
use super::tasks::{AbortOnDrop, join_error};
use super::transaction::Running;
use crate::error::{Error, ErrorKind, Result};

/// A statement that has a processor for longer is no point statement.
const POINT_TIME: Duration = Duration::from_millis(50);
/// Nor is one that reads more.
const POINT_READ_BYTES: u64 = 1 << 20;
/// Nor is one whose rows have more; a row may hold a large text.
const POINT_RESULT_BYTES: u64 = 8 << 20;
/// How often a point statement is looked at.
const POINT_CHECK: Duration = Duration::from_millis(10);

/// Time for which a statement keeps its execution slot while its client takes no rows.
const SLOT_PATIENCE: Duration = Duration::from_millis(250);

/// Batches between the task and its client.
const CHANNEL_BATCHES: usize = 2;

/// What the caller of a query gives.
pub(super) struct Request {
    /// At most one row.
    pub(super) parameters: Option<RecordBatch>,
    pub(super) texts: Texts,
}

/// Starts a query and returns as soon as its first rows, or its error, are known.
pub(super) async fn start(prepared: Arc<Prepared>, ticket: Ticket, request: Request) -> Result<RunningQuery> {
    let engine = Arc::clone(prepared.session().engine());
    let id = ticket.id().to_owned();
    let cancel_guard = ticket.interrupt().guard();
    let mut overdue = Box::pin(ticket.interrupt().overdue());
    let (rows, receiver) = mpsc::channel(CHANNEL_BATCHES);
    let (header, opened) = oneshot::channel();
    let results = ResultSender { header: Some(header), rows, all_rows: None };
    let task = engine.options.planning.clone().spawn(run(prepared, ticket, request, results));
    let mut task = AbortOnDrop::new(task);
    let opened = tokio::select! {
        biased;
        opened = opened => opened,
        error = &mut overdue => {
            // It ends by itself, with this error.
            task.detach();
            cancel_guard.disarm();
            return Err(error);
        }
    };
    let opened = match opened {
        Ok(opened) => opened?,
        Err(_) => {
            return Err(task
                .await
                .err()
                .map_or_else(|| Error::new(ErrorKind::Internal, "the statement gave no answer"), |e| join_error(&e)));
        }
    };
    let schema = match opened {
        Opened::Columns(schema) => schema,
        Opened::AllRows { schema, batches } => {
            task.detach();
            cancel_guard.disarm();
            let rows = stream::iter(batches.into_iter().map(Ok::<_, DataFusionError>));
            let stream = RecordBatchStreamAdapter::new(Arc::clone(&schema), rows);
            return Ok(RunningQuery { id, schema, stream: Box::pin(stream) });
        }
    };
    let stream = ResultStream {
        schema: Arc::clone(&schema),
        receiver,
        task,
        overdue,
        ended: false,
        cancel_guard: Some(cancel_guard),
    };
    Ok(RunningQuery { id, schema, stream: Box::pin(stream) })
}

/// The task of a query.
async fn run(prepared: Arc<Prepared>, ticket: Ticket, request: Request, mut results: ResultSender) {
    let admitted = ticket.supervised(async {
        let Some((mut admitted, plan)) = admit(&prepared, &ticket, request, &mut results).await? else {
            return Ok(None);
        };
        let plan = match admitted.slot.is_point() {
            true => admitted.execute_as_point(plan, &ticket, &mut results).await?,
            false => Some(plan),
        };
        Ok(plan.map(|plan| (admitted, plan)))
    });
    match admitted.await {
        Ok(Some((admitted, plan))) => {
            let cpu = admitted.engine.options.cpu.clone();
            let rows = results.rows.clone();
            let task = AbortOnDrop::new(cpu.spawn(execute_admitted(admitted, plan, ticket, results)));
            if let Err(error) = task.await {
                // Its channel closed, which must not look like the end of the rows.
                let cancelled = join_error(&error);
                match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => drop(rows.send(Err(cancelled.into())).await),
                }
            }
        }
        Ok(None) => {
            ticket.end(&Ok(()));
            results.deliver();
        }
        Err(error) => {
            ticket.end::<()>(&Err(error.clone()));
            results.fail(error).await;
        }
    }
}

/// Executes a query that is no point statement.
async fn execute_admitted(admitted: Admitted, plan: Executable, ticket: Ticket, mut results: ResultSender) {
    let body = async {
        // Moved, so that what the statement holds is free when its record ends.
        let mut admitted = admitted;
        let mut rows = admitted.open_or_wait_for_memory(plan, &ticket).await?;
        results.start(rows.schema())?;
        while let Some(batch) = rows.try_next().await? {
            results.send(batch, &ticket, &admitted.slot).await?;
        }
        Ok(())
    };
    let result = ticket.supervised(body).await;
    ticket.end(&result);
    if let Err(error) = result {
        results.fail(error).await;
    }
}

/// Plans a query and waits for a slot. Sends or keeps the rows of one that needs no plan, and returns `None` then.
async fn admit(
    prepared: &Arc<Prepared>,
    ticket: &Ticket,
    Request { parameters, texts }: Request,
    results: &mut ResultSender,
) -> Result<Option<(Admitted, Executable)>> {
    let transaction = prepared.transaction()?;
    let running = Running::enter(prepared.session(), transaction.as_ref(), prepared.command().privilege())?;
    let engine = prepared.session().engine();
    let planned = match prepared.outline(transaction.as_ref(), &ticket.interrupt()).await? {
        Outline::Plan(planned) => prepared.bind(*planned, parameters.as_ref())?.with_texts(texts),
        Outline::Rows(computed) => {
            prepared.check_parameters(parameters.as_ref())?;
            let slot = acquire_slot(engine, ticket, Demand::point()).await?;
            let schema = computed.schema();
            let compute = engine.blocking(move || computed.compute());
            let batch = demoting(&slot, computes_for_long(ticket), compute).await?;
            results.send_all(schema, vec![batch], ticket, &slot).await?;
            return Ok(None);
        }
        Outline::Count => return Err(Error::new(ErrorKind::Internal, "a query has no plan")),
    };
    let executable = plan_physical(engine, ticket, &planned, PlanMemory::Full).await?;
    let demand = Demand::from_plan(&executable.plan, ticket.memory().limit_bytes() as u64)?;
    // Other runtimes execute its parts.
    let demand = if runs_on_nodes(&executable.plan) { demand.without_point_slot() } else { demand };
    let demand = Arc::new(demand);
    let slot = acquire_slot(engine, ticket, Arc::clone(&demand)).await?;
    let engine = Arc::clone(engine);
    Ok(Some((Admitted { engine, planned, demand, slot, _running: running }, executable)))
}

/// A query that has a plan and a slot.
struct Admitted {
    engine: Arc<Engine>,
    planned: Planned,
    demand: Arc<Demand>,
    slot: ExecutionSlot,
    _running: Option<Running>,
}

impl Admitted {
    /// Executes a point statement. It sends nothing before all of its rows are known, so that one that turns out to be none
    /// can start again among the others: its tasks cannot go on there. Then it gives its slot back, waits for one of theirs
    /// like everybody (unless it reads system tables only), and this returns a new plan, as a plan cannot be executed twice.
    async fn execute_as_point(
        &mut self,
        plan: Executable,
        ticket: &Ticket,
        results: &mut ResultSender,
    ) -> Result<Option<Executable>> {
        let reads_much = reads_much(|| ticket.scans().cold_bytes());
        let few_rows = tokio::select! {
            biased;
            few_rows = demoting(&self.slot, reads_much, self.few_rows(plan)) => match few_rows {
                Err(error) if may_start_again(&ticket.interrupt(), &error) => None,
                few_rows => few_rows?,
            },
            () = computes_for_long(ticket) => None,
        };
        let Some((schema, batches)) = few_rows else {
            ticket.count_restart();
            // Whoever looks what the server does must not wait for it.
            let waits = !self.demand.is_about_system();
            if waits {
                self.slot.free();
                ticket.set_state(StatementState::Planning);
            } else {
                self.slot.demote();
            }
            ticket.memory().wait_until_released().await;
            let again = plan_physical(&self.engine, ticket, &self.planned, PlanMemory::Full).await?;
            if waits {
                let demand = Demand::from_plan(&again.plan, ticket.memory().limit_bytes() as u64)?;
                self.demand = Arc::new(demand.without_point_slot());
                self.slot = acquire_slot(&self.engine, ticket, Arc::clone(&self.demand)).await?;
            }
            return Ok(Some(again));
        };
        results.send_all(schema, batches, ticket, &self.slot).await?;
        Ok(None)
    }

    /// The rows of a plan; `None` when they have more bytes than those of a point statement.
    async fn few_rows(&self, plan: Executable) -> Result<Option<(SchemaRef, Vec<RecordBatch>)>, DataFusionError> {
        let mut rows = self.open(plan).await?;
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while let Some(batch) = rows.try_next().await? {
            bytes += row_bytes(&batch);
            if bytes > POINT_RESULT_BYTES {
                return Ok(None);
            }
            batches.push(batch);
        }
        Ok(Some((rows.schema(), batches)))
    }

    /// Executes a plan until its first rows are known. The plan does not outlive this, or it would keep what its operators
    /// let go of.
    async fn open(&self, plan: Executable) -> Result<SendableRecordBatchStream, DataFusionError> {
        let Executable { plan, context } = plan;
        let mut stream = execute_stream(plan, context)?;
        let schema = stream.schema();
        let mut first = stream.try_next();
        let polled = futures::poll!(&mut first);
        self.demand.release_plan();
        let first = match polled {
            Poll::Ready(first) => first?,
            Poll::Pending => first.await?,
        };
        // One that has ended is not polled again.
        let rest = first.is_some().then_some(stream);
        let rows = stream::iter(first.map(Ok)).chain(stream::iter(rest).flatten());
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// Executes a plan that is no point statement until its first rows are known. Where query memory runs out before, the
    /// statement starts again with a plan of few partitions and small batches: at once, or if others hold the memory, when it can have most of
    /// it. Later its client may already have rows.
    async fn open_or_wait_for_memory(
        &mut self,
        plan: Executable,
        ticket: &Ticket,
    ) -> Result<SendableRecordBatchStream> {
        let has_joins_or_sorts = has_joins_or_sorts(&plan.plan)?;
        ticket.memory().take_crowded_out();
        let error = match self.open(plan).await {
            Err(error) if may_start_again(&ticket.interrupt(), &error) => error,
            opened => return opened.map_err(Into::into),
        };
        let was_crowded_out = ticket.memory().take_crowded_out();
        if !was_crowded_out && !has_joins_or_sorts {
            return Err(error.into());
        }
        tracing::info!(was_crowded_out, "query memory ran out; the statement starts again with more");
        ticket.count_restart();
        if was_crowded_out {
            self.slot.free();
            let most = ticket.memory().limit_bytes() as u64 / 4 * 3;
            match acquire_slot(&self.engine, ticket, Demand::required(most)).await {
                Ok(slot) => self.slot = slot,
                // The queue is full, or the wait was too long.
                Err(busy) if busy.kind() == ErrorKind::ResourceExhausted => return Err(error.into()),
                Err(stopped) => return Err(stopped),
            }
        }
        ticket.memory().wait_until_released().await;
        let again = plan_physical(&self.engine, ticket, &self.planned, PlanMemory::Least).await?;
        self.open(again).await.map_err(Into::into)
    }
}

/// Whether a statement that failed with an error may start again with more memory. One that has to stop may not: some operators
/// say of any memory that they are refused that there was too little (DataFusion 55 aggregates/grouped_hash_stream.rs `spill`).
pub(super) fn may_start_again(interrupt: &Interrupt, error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) && interrupt.check().is_ok()
}

/// Whether a plan has a hash join or a sort without a limit.
fn has_joins_or_sorts(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|node| {
        let sorts = || node.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_none());
        Ok(node.is::<SpillingHashJoinExec>() || node.is::<HashJoinExec>() || sorts())
    })
    .map_err(Into::into)
}

/// Returns once a statement has computed for longer than a point statement may; the time that planning took does not count.
async fn computes_for_long(ticket: &Ticket) {
    let heap = ticket.memory().heap();
    heap.measure_processor_time(thread_cpu_ns);
    let planned = heap.processor_time();
    while heap.processor_time().saturating_sub(planned) <= POINT_TIME {
        tokio::time::sleep(POINT_CHECK).await;
    }
}

/// Returns once a statement has read more than a point statement may; `read_bytes` says what it has read of the home tier.
async fn reads_much(read_bytes: impl Fn() -> u64) {
    while read_bytes() <= POINT_READ_BYTES {
        tokio::time::sleep(POINT_CHECK).await;
    }
}

/// Does `work`, and takes the slot of a point statement away from it once it has `exceeded` what such a one may use.
async fn demoting<T>(slot: &ExecutionSlot, exceeded: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    if !slot.is_point() {
        return work.await;
    }
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => done,
        () = exceeded => {
            slot.demote();
            work.await
        }
    }
}

/// The first that the caller of a query gets.
enum Opened {
    /// The columns; the rows come through the channel.
    Columns(SchemaRef),
    /// The columns and all rows of a statement that has ended.
    AllRows { schema: SchemaRef, batches: Vec<RecordBatch> },
}

/// The sending side of a result: first its columns, then its rows; or both at once.
struct ResultSender {
    /// `None` once the columns were sent.
    header: Option<oneshot::Sender<Result<Opened>>>,
    rows: mpsc::Sender<Result<RecordBatch, DataFusionError>>,
    /// What is sent once the statement has ended.
    all_rows: Option<Opened>,
}

impl ResultSender {
    fn start(&mut self, schema: SchemaRef) -> Result<()> {
        let sent = self.header.take().is_some_and(|header| header.send(Ok(Opened::Columns(schema))).is_ok());
        if sent { Ok(()) } else { Err(client_gone()) }
    }

    /// Sends all rows of a result, or keeps them for [`Self::deliver`], where no more are kept than may wait for the client anyway.
    async fn send_all(
        &mut self,
        schema: SchemaRef,
        mut batches: Vec<RecordBatch>,
        ticket: &Ticket,
        slot: &ExecutionSlot,
    ) -> Result<()> {
        batches.retain(|batch| batch.num_rows() > 0);
        if batches.len() > CHANNEL_BATCHES {
            self.start(schema)?;
            for batch in batches {
                self.send(batch, ticket, slot).await?;
            }
            return Ok(());
        }
        let batches = batches.iter().map(|batch| leaving(batch, ticket)).collect::<Result<_>>()?;
        self.all_rows = Some(Opened::AllRows { schema, batches });
        Ok(())
    }

    /// Sends what was kept, after the statement has ended.
    fn deliver(self) {
        if let (Some(header), Some(all_rows)) = (self.header, self.all_rows) {
            // A client that went away needs no rows.
            drop(header.send(Ok(all_rows)));
        }
    }

    /// Sends a batch. While the client takes none, the statement leaves its slot to others.
    async fn send(&self, batch: RecordBatch, ticket: &Ticket, slot: &ExecutionSlot) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = leaving(&batch, ticket)?;
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

/// A batch that leaves its statement, counted.
fn leaving(batch: &RecordBatch, ticket: &Ticket) -> Result<RecordBatch> {
    ticket.add(batch.num_rows() as u64, row_bytes(batch));
    Ok(credited(batch, ticket.memory().heap())?)
}

fn client_gone() -> Error {
    Error::new(ErrorKind::Cancelled, "the client went away")
}

/// The stream of a query's rows that the caller reads.
struct ResultStream {
    schema: SchemaRef,
    receiver: mpsc::Receiver<Result<RecordBatch, DataFusionError>>,
    task: AbortOnDrop<()>,
    /// Ends when the statement should have stopped, but has not.
    overdue: Pin<Box<dyn Future<Output = Error> + Send>>,
    ended: bool,
    /// Cancels the statement when the stream is dropped.
    cancel_guard: Option<DropGuard>,
}

impl Stream for ResultStream {
    type Item = Result<RecordBatch, DataFusionError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some(item)) => return Poll::Ready(Some(item)),
            Poll::Ready(None) => {}
            Poll::Pending => {
                let error = futures::ready!(self.overdue.poll_unpin(context));
                // It ends by itself, with this error.
                self.task.detach();
                self.cancel_guard.take().map(DropGuard::disarm);
                self.ended = true;
                return Poll::Ready(Some(Err(error.into())));
            }
        }
        // The channel also closes when the task panics, which must not look like the end of the rows.
        let joined = futures::ready!(self.task.poll_unpin(context));
        self.ended = true;
        Poll::Ready(joined.err().map(|e| Err(join_error(&e).into())))
    }
}

impl RecordBatchStream for ResultStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_statement_that_has_to_stop_does_not_start_again() {
        let interrupt = Interrupt::new(None, Arc::default());
        let little = DataFusionError::ResourcesExhausted("too little".into()).context("while it sorted");
        assert!(may_start_again(&interrupt, &little));
        assert!(!may_start_again(&interrupt, &DataFusionError::Execution("no such row".into())));
        interrupt.cancel();
        assert!(!may_start_again(&interrupt, &little));
    }

    #[tokio::test]
    async fn more_than_a_mebibyte_of_the_home_is_much() {
        let read = AtomicU64::new(1 << 20);
        let much = reads_much(|| read.load(Ordering::Relaxed));
        tokio::pin!(much);
        assert!(tokio::time::timeout(5 * POINT_CHECK, &mut much).await.is_err());
        read.fetch_add(1, Ordering::Relaxed);
        tokio::time::timeout(Duration::from_secs(10), much).await.unwrap();
    }
}
