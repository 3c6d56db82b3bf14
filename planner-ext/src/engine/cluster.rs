//! Queries of which several nodes execute parts.
//!
//! [`Cluster`] has the nodes of this process (`cluster.nodes`); an engine without one does nothing here. Most statements stay
//! whole for a reason that is known before they are planned ([`Cluster::reason_to_stay`]): they read few rows, or something
//! else than tables of the store, or they are recursive. The others are planned a second way, in stages. If a stage cannot be
//! sent, the statement is planned as all others are, and EXPLAIN says why.
//!
//! The plan of a task gets the operators of this server at its node, whose session has the memory, the counters, the functions
//! and the interrupt of the statement ([`Tasks`]). Nothing of a statement is executed twice: a plan in stages is planned anew
//! for each execution, and one that runs out of memory starts again as a whole.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::registry::FunctionRegistry;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use terrace_cluster::{
    Distribution, NodeRecord, Nodes, Statement, TaskHost, below_exchange, distribute, planning_state, remote_scans,
    session_config, to_coordinator, with_head, without_seals,
};
use terrace_heap::HeapAccount;
use terrace_scan::joins::part_rules;
use terrace_scan::scan::{StatementScans, TierScanExec};
use terrace_scan::{TierTable, null_if_empty_function};
use tracing::Span;

use super::functions::{self, SessionUser};
use super::interrupt::Interrupt;
use super::memory::credited;
use super::operators::{with_announced_types, with_own_operators};
use super::small_batches::rows_of_large_values;
use super::stream_exec::StreamExec;
use crate::error::Result;

/// The operator at the top of a plan of which nodes execute parts.
const TOP: &str = "NodesExec";

/// The nodes of this process, and how queries are planned for them.
pub(super) struct Cluster {
    nodes: Arc<Nodes>,
    /// To plan in stages with.
    state: SessionState,
    base_state: Arc<SessionState>,
    /// Queries over fewer rows stay whole.
    least_rows: u64,
}

/// A query that may be executed by nodes, with what belongs to its statement.
pub(super) struct NodeQuery {
    /// The plan before the rules of the optimizer.
    pub(super) plan: LogicalPlan,
    /// And after them.
    pub(super) optimized: Arc<LogicalPlan>,
    /// Options and extensions of the statement.
    pub(super) config: SessionConfig,
    pub(super) runtime: Arc<RuntimeEnv>,
    pub(super) scans: Arc<StatementScans>,
    pub(super) interrupt: Interrupt,
    pub(super) heap: Arc<HeapAccount>,
    pub(super) span: Span,
}

/// How a query is executed.
pub(super) enum Placed {
    /// Nodes execute parts of this plan.
    OnNodes { plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext> },
    /// It stays whole, for this reason.
    Whole(String),
}

/// Whether nodes execute parts of a plan.
pub(super) fn runs_on_nodes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.name() == TOP
}

impl Cluster {
    /// Starts nodes, if there are to be several: `count`, whose tasks are executed on `cpu`. Queries over fewer than `least_rows` rows stay
    /// whole.
    ///
    /// # Errors
    /// When no port can be opened.
    pub(super) fn start(
        count: usize,
        least_rows: u64,
        cpu: &tokio::runtime::Handle,
        base_state: &Arc<SessionState>,
    ) -> Result<Option<Self>> {
        if count < 2 {
            return Ok(None);
        }
        let nodes = Nodes::start(count, cpu)?;
        let state = planning_state(SessionState::clone(base_state));
        Ok(Some(Self { nodes, state, base_state: Arc::clone(base_state), least_rows }))
    }

    /// What is known of each node.
    pub(super) fn records(&self) -> Vec<NodeRecord> {
        self.nodes.records()
    }

    /// Statements of which nodes execute parts now.
    pub(super) fn statements(&self) -> usize {
        self.nodes.statements()
    }

    /// Why a query stays whole, as far as its plan tells before it is optimized; `None`: it may be executed by nodes.
    pub(super) fn reason_to_stay(&self, plan: &LogicalPlan) -> Result<Option<String>> {
        let mut rows = 0;
        let mut tables = 0;
        let mut reason = None;
        plan.apply_with_subqueries(|node| {
            reason = match node {
                LogicalPlan::RecursiveQuery(_) => Some("it is recursive".to_owned()),
                LogicalPlan::TableScan(scan) => {
                    let provider = source_as_provider(&scan.source)?;
                    match provider.downcast_ref::<TierTable>() {
                        Some(table) => {
                            rows += table.version().live_rows();
                            tables += 1;
                            None
                        }
                        None => Some(format!("{} is no plain table of the store", scan.table_name)),
                    }
                }
                LogicalPlan::Dml(_)
                | LogicalPlan::Ddl(_)
                | LogicalPlan::Copy(_)
                | LogicalPlan::Statement(_)
                | LogicalPlan::Explain(_)
                | LogicalPlan::Analyze(_)
                | LogicalPlan::DescribeTable(_) => Some("it is no query".to_owned()),
                _ => None,
            };
            Ok(if reason.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        let reason = reason.or_else(|| (tables == 0).then(|| "it reads no table".to_owned()));
        let least = self.least_rows;
        let is_small = || format!("its tables have {rows} rows, fewer than cluster.least_rows = {least}");
        Ok(reason.or_else(|| (rows < least).then(is_small)))
    }

    /// Plans a query in stages.
    ///
    /// # Errors
    /// As of changes to plans. Where the query itself is at fault, it stays whole and has its error then.
    pub(super) async fn plan(&self, query: NodeQuery) -> Result<Placed> {
        let NodeQuery { plan, optimized, config, .. } = &query;
        let tasks = Tasks::new(&query, &self.base_state);
        let statement = self.nodes.register(Arc::new(tasks));
        let config = match session_config(&self.nodes, &statement, config.clone()) {
            Ok(config) => config.with_extension(Arc::clone(&query.scans)),
            Err(error) => return Ok(Placed::Whole(error.strip_backtrace())),
        };
        let state = state_with(&self.state, config)?;
        let subqueries = scalar_subqueries(optimized)?;
        if !subqueries.iter().all(|subquery| has_one_row_at_most(subquery)) {
            return Ok(Placed::Whole("a subquery in it may have more than one row".to_owned()));
        }
        let optimized = match subqueries.is_empty() {
            true => Arc::clone(optimized),
            false => match state.optimize(optimized) {
                Ok(optimized) => Arc::new(optimized),
                Err(error) => return Ok(Placed::Whole(error.strip_backtrace())),
            },
        };
        let staged = match distribute(&state, &optimized).await? {
            Distribution::Stages(staged) => staged,
            Distribution::Whole(why) => return Ok(Placed::Whole(why)),
        };
        if rows_of_large_values(&without_seals(Arc::clone(&staged))?)?.is_some() {
            return Ok(Placed::Whole("it has large literals".to_owned()));
        }
        let scans = remote_scans(&staged)?;
        let staged = with_head(staged, |head| {
            let head = with_part_rules(head, state.config_options())?;
            let head = with_announced_types(head, plan.schema().as_arrow())?;
            with_own_operators(head, plan, &query.interrupt)
        })?;
        let context = TaskContext::from(&state).with_runtime(Arc::clone(&query.runtime));
        Ok(Placed::OnNodes { plan: top(staged, statement, scans), context: Arc::new(context) })
    }
}

/// The state with another configuration, and with the functions that this one means.
fn state_with(base: &SessionState, config: SessionConfig) -> PlanResult<SessionState> {
    let mut state = SessionState::clone(base);
    *state.config_mut() = config;
    functions::configure(&mut state)?;
    state.register_udf(null_if_empty_function())?;
    state.mark_start_execution();
    Ok(state)
}

/// The subqueries of a plan that are computed before the rest: their results could not be sent with the plan, so they become
/// joins.
fn scalar_subqueries(plan: &LogicalPlan) -> PlanResult<Vec<Arc<LogicalPlan>>> {
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::ScalarSubquery(subquery) = part {
                    found.push(Arc::clone(&subquery.subquery));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// Whether a subquery certainly has one row or none. Of several, a join would return each, where there has to be an error.
fn has_one_row_at_most(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Limit(limit) => plan.max_rows().is_some_and(|rows| rows <= 1) || has_one_row_at_most(&limit.input),
        LogicalPlan::Sort(sort) => sort.fetch.is_some_and(|rows| rows <= 1) || has_one_row_at_most(&sort.input),
        LogicalPlan::Projection(projection) => has_one_row_at_most(&projection.input),
        LogicalPlan::Filter(filter) => has_one_row_at_most(&filter.input),
        LogicalPlan::SubqueryAlias(alias) => has_one_row_at_most(&alias.input),
        _ => false,
    }
}

/// A part of a plan after the rules that each part gets where it is executed.
fn with_part_rules(plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> PlanResult<Arc<dyn ExecutionPlan>> {
    part_rules().into_iter().try_fold(plan, |plan, rule| rule.optimize(plan, options))
}

/// The plan that keeps its statement known to the nodes as long as its rows are read, and tells what its scans would tell.
fn top(
    plan: Arc<dyn ExecutionPlan>,
    statement: Arc<Statement>,
    scans: Vec<Arc<dyn ExecutionPlan>>,
) -> Arc<dyn ExecutionPlan> {
    let begin = move |rows: SendableRecordBatchStream, context: &TaskContext| {
        let scans = scans.iter().filter_map(|scan| scan.downcast_ref::<TierScanExec>());
        scans.for_each(|scan| scan.note_remote_execution(context));
        Rows { statement: Arc::clone(&statement), rows }.into_batches()
    };
    Arc::new(StreamExec::new(TOP, plan, begin))
}

/// The rows of a statement, which stays known to the nodes until they have been read.
struct Rows {
    statement: Arc<Statement>,
    rows: SendableRecordBatchStream,
}

impl Rows {
    fn into_batches(self) -> BoxStream<'static, PlanResult<RecordBatch>> {
        let next = |mut own: Self| async move {
            let batch = own.rows.next().await?;
            Some((batch, own))
        };
        stream::unfold(self, next).boxed()
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        tracing::debug!(statement = ?self.statement, "the rows of a statement on nodes have been read, or are not wanted");
    }
}

/// What the tasks of one statement need of it.
struct Tasks {
    base_state: Arc<SessionState>,
    /// What the statement was planned from: it decides about some operators.
    plan: LogicalPlan,
    options: Arc<ConfigOptions>,
    user: Option<Arc<SessionUser>>,
    runtime: Arc<RuntimeEnv>,
    scans: Arc<StatementScans>,
    interrupt: Interrupt,
    heap: Arc<HeapAccount>,
    span: Span,
}

impl Tasks {
    fn new(query: &NodeQuery, base_state: &Arc<SessionState>) -> Self {
        Self {
            base_state: Arc::clone(base_state),
            plan: query.plan.clone(),
            options: Arc::clone(query.config.options()),
            user: query.config.get_extension(),
            runtime: Arc::clone(&query.runtime),
            scans: Arc::clone(&query.scans),
            interrupt: query.interrupt.clone(),
            heap: Arc::clone(&query.heap),
            span: query.span.clone(),
        }
    }
}

impl TaskHost for Tasks {
    fn session_state(&self, config: SessionConfig) -> PlanResult<SessionState> {
        let mut config = config.with_extension(Arc::clone(&self.scans));
        if let Some(user) = &self.user {
            config.set_extension(Arc::clone(user));
        }
        let state = state_with(&self.base_state, config)?;
        Ok(SessionStateBuilder::new_from_existing(state).with_runtime_env(Arc::clone(&self.runtime)).build())
    }

    fn operators(&self, plan: Arc<dyn ExecutionPlan>) -> PlanResult<Arc<dyn ExecutionPlan>> {
        let plan = with_part_rules(plan, &self.options)?;
        let plan = with_own_operators(plan, &self.plan, &self.interrupt)?;
        below_exchange(plan, |part| {
            let (heap, span) = (Arc::clone(&self.heap), self.span.clone());
            let rows = move |rows: SendableRecordBatchStream, _: &TaskContext| {
                rows_of_task(rows, Arc::clone(&heap), span.clone())
            };
            Ok(Arc::new(StreamExec::new("TaskExec", part, rows).with_failure(to_coordinator)))
        })
    }
}

/// The rows of a task, computed for the account of its statement and in its span of the log. They leave the statement: whoever
/// sends them frees them.
fn rows_of_task(
    mut rows: SendableRecordBatchStream,
    heap: Arc<HeapAccount>,
    span: Span,
) -> BoxStream<'static, PlanResult<RecordBatch>> {
    let account = Arc::clone(&heap);
    let computed =
        stream::poll_fn(move |context| span.in_scope(|| account.charge_call(|| rows.poll_next_unpin(context))));
    let leaving = move |batch: PlanResult<RecordBatch>| match batch {
        Ok(batch) => credited(&batch, &heap).map_err(DataFusionError::from),
        Err(error) => Err(to_coordinator(error)),
    };
    computed.map(leaving).boxed()
}
