//! Plans and executes statements: slots, plans of operators, updates.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::datasource::source_as_provider;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use terrace_cluster::NodeRecord;
use terrace_scan::TierTable;
use terrace_scan::scan::{EmittedTexts, TierScanExec};
use terrace_sql::StatementKind;
use terrace_sql::command::Action;
use terrace_tier_store::table::TableOptions;

use super::admission::{Applicant, Demand, ExecutionSlot};
use super::cluster::{Cluster, NodeQuery, Placed};
use super::execute::{Execute, Execution};
use super::explain::{explained_query, with_demand, with_nodes, without_statistics};
use super::interrupt::Interrupt;
use super::operators::{with_announced_types, with_own_operators};
use super::planning::may_take_long;
use super::registry::{Phase, StatementState, Ticket};
use super::small_batches::rows_of_large_values;
use super::statement::{Planned, Prepared, Texts};
use super::tasks::{AbortOnDrop, join_error};
use super::transaction::Running;
use super::{Engine, rights};
use crate::error::Result;

/// The least memory for each of several sorts of one statement.
const SORT_BYTES: usize = 64 << 20;

/// Rows of a batch where memory has run out. A merge reserves four batches for each spill file, and a merge of sorted
/// partitions some for each partition.
const FEW_ROWS: usize = 1_024;

/// What a sort keeps for its merge, as a share of query memory, where memory has run out.
const MERGE_SHARE: usize = 16;

/// Waits for an execution slot and keeps the statement's record up to date.
pub(super) async fn acquire_slot(engine: &Engine, ticket: &Ticket, demand: Arc<Demand>) -> Result<ExecutionSlot> {
    ticket.set_state(StatementState::Queued);
    ticket.set_demand(demand.weighted_bytes());
    let applicant = Applicant {
        session: ticket.session(),
        user: ticket.principal().owner_name().unwrap_or_default(),
        group: ticket.group(),
        demand,
        memory: Arc::clone(ticket.memory()),
    };
    let since_us = ticket.now_us();
    let slot = engine.admission.acquire_slot(applicant).await;
    ticket.count_queue_wait(since_us);
    let slot = slot.inspect_err(|_| ticket.count_rejected())?;
    ticket.set_state(StatementState::Running);
    Ok(slot)
}

/// The demand of a statement whose plan is made once it has a slot: an equal share of query memory.
pub(super) fn unknown_demand(engine: &Engine) -> Arc<Demand> {
    Demand::fixed((engine.memory.limit_bytes() / engine.options.max_running.max(1)) as u64)
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
    /// Small batches, too: memory has run out.
    Least,
}

impl PlanMemory {
    /// Chooses for rows that are loaded into a table: they are sorted by its `cluster_by` columns, if any.
    pub(super) fn for_load(options: &TableOptions) -> Self {
        if options.cluster_by.is_empty() { Self::Full } else { Self::FewSorts }
    }

    /// Changes the options that plans are made with.
    fn apply(self, state: &mut SessionState, limit_bytes: usize) {
        let config = state.config_mut();
        if self != Self::Full {
            let most = (limit_bytes / SORT_BYTES).max(1);
            let execution = &mut config.options_mut().execution;
            execution.target_partitions = execution.target_partitions.min(most);
        }
        if self == Self::Least {
            let rows = config.batch_size().min(FEW_ROWS);
            *config = config.clone().with_batch_size(rows);
            let execution = &mut config.options_mut().execution;
            let merge_bytes = limit_bytes / MERGE_SHARE;
            execution.sort_spill_reservation_bytes = execution.sort_spill_reservation_bytes.min(merge_bytes);
        }
    }
}

/// Executes a plan and returns its rows.
pub(super) async fn execute(
    engine: &Engine,
    ticket: &Ticket,
    planned: &Planned,
    memory: PlanMemory,
) -> Result<SendableRecordBatchStream> {
    let Executable { plan, context } = plan_physical(engine, ticket, planned, memory).await?;
    Ok(execute_stream(plan, context)?)
}

/// A plan of operators and the context to execute it in.
pub(super) struct Executable {
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) context: Arc<TaskContext>,
}

/// Makes the plan of operators of a statement.
pub(super) async fn plan_physical(
    engine: &Engine,
    ticket: &Ticket,
    planned: &Planned,
    memory: PlanMemory,
) -> Result<Executable> {
    rights::begin_reading(engine, ticket, &planned.snapshot)?;
    let mut nodes = None;
    if let Some(cluster) = &engine.cluster {
        match plan_on_nodes(engine, cluster, ticket, planned, memory).await? {
            Placed::OnNodes { plan, context } => return Ok(Executable { plan, context }),
            Placed::Whole(reason) => tracing::debug!(reason, "a statement is executed as a whole"),
        }
        nodes = explained_nodes(engine, cluster, ticket, planned).await?;
    }
    let mut planned = planned.clone();
    let limit_bytes = ticket.memory().limit_bytes();
    let quiet = without_statistics(&planned.plan).filter(|_| !planned.snapshot.shows_figures());
    let shows_figures = quiet.is_none();
    // Copying a state copies the names of hundreds of functions.
    let shares_state = planned.shares_state() && memory == PlanMemory::Full && shows_figures;
    let mut own_state = (!shares_state).then(|| Box::new(planned.snapshot.state()));
    if let Some(state) = &mut own_state {
        memory.apply(state, limit_bytes);
        if let Some(quiet) = quiet {
            planned = Planned::new(planned.snapshot, quiet, planned.target);
            state.config_mut().options_mut().explain.show_statistics = false;
        }
    }
    let mut context = task_context(engine, ticket, &planned, own_state.as_deref())?;
    let interrupt = ticket.interrupt();
    let may_take_long = may_take_long(ticket.sql(), Some(&planned.plan));
    let spill = matches!(planned.plan, LogicalPlan::Analyze(_)).then(|| Arc::clone(ticket.spill()));
    let limit_bytes = limit_bytes as u64;
    let work = async move {
        let state = own_state.as_deref().unwrap_or_else(|| planned.snapshot.template());
        let Operators { plan, rows } = physical_plan(state, &interrupt, &planned).await?;
        // It follows from the numbers of rows.
        let demand = match shows_figures {
            true => explained_demand(state, &interrupt, &planned, &plan, limit_bytes).await?,
            false => None,
        };
        let plan = match demand {
            Some(demand) => with_demand(plan, &demand, limit_bytes, spill),
            None => plan,
        };
        let plan = match nodes {
            Some(text) => with_nodes(plan, text),
            None => plan,
        };
        Ok(Operators { plan, rows })
    };
    let Operators { plan, rows } = engine.planner.plan(may_take_long, &ticket.interrupt(), work).await?;
    if let Some(rows) = rows {
        let config = context.session_config().clone();
        let rows = rows.min(config.batch_size());
        context = context.with_session_config(config.with_batch_size(rows));
    }
    Ok(Executable { plan, context: Arc::new(context) })
}

/// The demand of the query that an EXPLAIN or EXPLAIN ANALYZE explains, of which `plan` is the plan; `None` for other statements.
async fn explained_demand(
    state: &SessionState,
    interrupt: &Interrupt,
    planned: &Planned,
    plan: &Arc<dyn ExecutionPlan>,
    limit_bytes: u64,
) -> Result<Option<Arc<Demand>>> {
    if planned.target.is_some() {
        return Ok(None);
    }
    if let (LogicalPlan::Analyze(_), [query]) = (&planned.plan, plan.children().as_slice()) {
        return Ok(Some(Arc::new(Demand::from_plan(query, limit_bytes)?)));
    }
    let Some(query) = explained_query(&planned.plan) else { return Ok(None) };
    let query = Planned::new(Arc::clone(&planned.snapshot), query.as_ref().clone(), None);
    // EXPLAIN itself shows why a query cannot be planned.
    let Ok(query) = physical_plan(state, interrupt, &query).await else { return Ok(None) };
    Ok(Some(Arc::new(Demand::from_plan(&query.plan, limit_bytes)?)))
}

/// A plan of operators, and the most rows of the batches that its joins and scans make, if that is limited.
struct Operators {
    plan: Arc<dyn ExecutionPlan>,
    rows: Option<usize>,
}

/// The plan of operators, with all that this server adds to it.
async fn physical_plan(state: &SessionState, interrupt: &Interrupt, planned: &Planned) -> Result<Operators> {
    let optimized = planned.optimized(state)?;
    let plan = match scan_alone(state, &optimized)? {
        Some(plan) => plan,
        None => state.query_planner().create_physical_plan(&optimized, state).await?,
    };
    let rows = rows_of_large_values(&plan)?;
    let plan = with_announced_types(plan, planned.plan.schema().as_arrow())?;
    let plan = with_texts(with_own_operators(plan, &planned.plan, interrupt)?, planned.texts)?;
    Ok(Operators { plan, rows })
}

/// The plan of a query that is a scan of the store and nothing else; `None` for others. Look-ups of keys are such queries, and the rules for
/// plans of operators take as long as the look-up itself.
pub(super) fn scan_alone(state: &SessionState, plan: &LogicalPlan) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let LogicalPlan::TableScan(scan) = plan else { return Ok(None) };
    let provider = source_as_provider(&scan.source)?;
    let Some(table) = provider.downcast_ref::<TierTable>().filter(|_| scan.fetch.is_none()) else { return Ok(None) };
    let filters = unnormalize_cols(scan.filters.iter().cloned());
    Ok(Some(table.plan_alone(state, scan.projection.as_ref(), &filters)?))
}

/// A plan that is a scan, with texts as they are wanted of scans.
fn with_texts(plan: Arc<dyn ExecutionPlan>, texts: Texts) -> Result<Arc<dyn ExecutionPlan>> {
    let emitted = match texts {
        Texts::Views => return Ok(plan),
        Texts::PlainFromScans => EmittedTexts::Plain,
        Texts::KeysFromScans => EmittedTexts::Keys,
    };
    match plan.downcast_ref::<TierScanExec>() {
        Some(scan) => Ok(Arc::new(scan.with_texts(emitted)?)),
        None => Ok(plan),
    }
}

impl Engine {
    /// The nodes of this process that execute parts of queries; none if there are not several.
    pub fn nodes(&self) -> Vec<NodeRecord> {
        self.cluster.as_ref().map(|cluster| cluster.records()).unwrap_or_default()
    }

    /// Statements of which nodes execute parts now.
    pub fn statements_on_nodes(&self) -> usize {
        self.cluster.as_ref().map_or(0, |cluster| cluster.statements())
    }
}

/// The memory and the spill files of a statement, with the caches of the engine.
fn statement_runtime(engine: &Engine, ticket: &Ticket) -> Result<Arc<RuntimeEnv>> {
    Ok(Arc::new(RuntimeEnv {
        memory_pool: ticket.memory().pool(),
        disk_manager: Arc::new(ticket.spill().disk_manager().build()?),
        ..RuntimeEnv::clone(&engine.runtime)
    }))
}

/// Plans a query for nodes, if they are to execute parts of it.
async fn plan_on_nodes(
    engine: &Engine,
    cluster: &Arc<Cluster>,
    ticket: &Ticket,
    planned: &Planned,
    memory: PlanMemory,
) -> Result<Placed> {
    let whole = |reason: &str| Ok(Placed::Whole(reason.to_owned()));
    let snapshot = &planned.snapshot;
    if memory != PlanMemory::Full {
        return whole("memory has run out, or its rows are loaded into a table");
    }
    if planned.target.is_some() {
        return whole("it changes rows");
    }
    if snapshot.in_transaction() {
        return whole("it is in a transaction");
    }
    if snapshot.hides_rows() {
        return whole("policies hide rows of its tables");
    }
    if let Some(reason) = cluster.reason_to_stay(&planned.plan)? {
        return whole(&reason);
    }
    let runtime = statement_runtime(engine, ticket)?;
    let may_take_long = may_take_long(ticket.sql(), Some(&planned.plan));
    let interrupt = ticket.interrupt();
    let scans = ticket.scans();
    let heap = Arc::clone(ticket.memory().heap());
    let span = ticket.span();
    let cluster = Arc::clone(cluster);
    let planned = planned.clone();
    let work = async move {
        let state = planned.snapshot.template();
        let optimized = planned.optimized(state)?;
        let config = state.config().clone();
        let plan = planned.plan.clone();
        let query = NodeQuery { plan, optimized, config, runtime, scans, interrupt, heap, span };
        cluster.plan(query).await
    };
    engine.planner.plan(may_take_long, &ticket.interrupt(), work).await
}

/// How nodes would execute the query that an EXPLAIN explains, or why it stays whole; `None` for other statements.
async fn explained_nodes(
    engine: &Engine,
    cluster: &Arc<Cluster>,
    ticket: &Ticket,
    planned: &Planned,
) -> Result<Option<String>> {
    if !planned.snapshot.shows_figures() || planned.target.is_some() {
        return Ok(None);
    }
    if matches!(planned.plan, LogicalPlan::Analyze(_)) {
        return Ok(Some("executed as a whole: EXPLAIN ANALYZE measures the operators of one process".to_owned()));
    }
    let Some(query) = explained_query(&planned.plan) else { return Ok(None) };
    let query = Planned::new(Arc::clone(&planned.snapshot), query.as_ref().clone(), None);
    let text = match plan_on_nodes(engine, cluster, ticket, &query, PlanMemory::Full).await? {
        Placed::OnNodes { plan, .. } => terrace_cluster::shown(&plan),
        Placed::Whole(reason) => format!("executed as a whole: {reason}"),
    };
    Ok(Some(text))
}

/// Builds the context of one execution, with its own memory pool, spill files and scan records; caches are shared.
/// Without a state of its own it has no functions: only tables of `information_schema` look functions up.
fn task_context(
    engine: &Engine,
    ticket: &Ticket,
    planned: &Planned,
    own_state: Option<&SessionState>,
) -> Result<TaskContext> {
    let runtime = statement_runtime(engine, ticket)?;
    let state = own_state.unwrap_or_else(|| planned.snapshot.template());
    let config = state.config().clone().with_extension(ticket.scans());
    if own_state.is_some() {
        return Ok(TaskContext::from(state).with_runtime(runtime).with_session_config(config));
    }
    Ok(TaskContext::new(
        None,
        state.session_id().to_owned(),
        config,
        HashMap::new(),
        HashMap::new(),
        HashMap::new(),
        HashMap::new(),
        runtime,
    ))
}

/// Runs an update to its end and returns the rows affected.
pub(super) async fn update(prepared: Arc<Prepared>, ticket: Ticket, parameters: Option<RecordBatch>) -> Result<u64> {
    let engine = Arc::clone(prepared.session().engine());
    // CANCEL, SET and RESET.
    let is_brief = prepared.kind() == StatementKind::Setting
        && matches!(prepared.command().action, Action::Cancel(_) | Action::Plan(_));
    let cancel_guard = ticket.interrupt().guard();
    let overdue = ticket.interrupt().overdue_before_commit();
    let work = async move {
        let result = ticket.supervised(run_update(&prepared, &ticket, parameters.as_ref())).await;
        prepared.session().engine().drop_stale_plans();
        ticket.end(&result);
        result
    };
    // Steps of other statements may keep all threads of `cpu` for seconds, and one that stops them must not wait for that.
    let runtime = if is_brief { &engine.options.planning } else { &engine.options.cpu };
    let mut task = AbortOnDrop::new(runtime.spawn(work));
    tokio::select! {
        biased;
        done = &mut task => done.unwrap_or_else(|error| Err(join_error(&error))),
        error = overdue => {
            // It ends by itself, with this error.
            task.detach();
            cancel_guard.disarm();
            Err(error)
        }
    }
}

async fn run_update(prepared: &Arc<Prepared>, ticket: &Ticket, parameters: Option<&RecordBatch>) -> Result<u64> {
    let transaction = prepared.transaction()?;
    let _running = Running::enter(prepared.session(), transaction.as_ref(), prepared.command().privilege())?;
    let action = &prepared.command().action;
    rights::authorize(prepared.session(), action)?;
    let execution = |transaction| Execution { prepared, ticket, parameters, transaction };
    // Statements of other kinds are planned first, and wait for a slot.
    if matches!(prepared.kind(), StatementKind::Setting | StatementKind::Ddl | StatementKind::Tiering) {
        ticket.enter(Phase::Execute);
    }
    // Users, rights and workload groups are no part of what a transaction sees.
    let is_of_access =
        matches!(action, Action::Access(_) | Action::Grant(_) | Action::Policy(_) | Action::WorkloadGroup(_));
    let is_ddl = prepared.kind() == StatementKind::Ddl && !is_of_access;
    if let Some(transaction) = transaction.as_ref().filter(|_| is_ddl) {
        transaction.allow_ddl()?;
        let done = action.run(&execution(None)).await;
        transaction.allow_ddl()?;
        return done;
    }
    action.run(&execution(transaction)).await
}
