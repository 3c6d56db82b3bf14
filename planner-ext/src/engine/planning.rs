//! Planning, within limits of time and memory.
//!
//! Planning never pauses: a join of some hundred tables keeps its thread for seconds, and literals may be folded into
//! large values. So statements are planned on threads of their own, which also execute point statements, CANCEL, SET and
//! RESET, and nothing else. A statement whose planning may take long waits for one of a few slots and gets a thread of its
//! own, which shares the processor with all others. The rules of the planner check the limits as they visit the nodes of a
//! plan ([`with_checks`]): planning ends when its time is over, when it holds too much memory, and when nobody waits for
//! it any more.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result as PlanResult;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::Analyzer;
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::{PhysicalOptimizer, PhysicalOptimizerContext};
use datafusion::physical_plan::ExecutionPlan;
use terrace_heap::HeapAccount;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::Instrument;

use super::interrupt::Interrupt;
use super::tasks::join_error;
use crate::error::{Error, ErrorKind, Result};

/// A longer statement may take long to plan.
const SHORT_SQL_BYTES: usize = 8 << 10;
/// So may a plan of more nodes.
const SHORT_PLAN_NODES: usize = 64;
/// Rules check the limits at every so many nodes.
const NODES_PER_CHECK: u32 = 16;

/// Limits of planning.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanningOptions {
    /// Statements that are planned at once, of those that may take long.
    pub(super) slots: usize,
    /// Longest wait for a slot.
    pub(super) queue_timeout: Duration,
    /// Longest time that the planning of one statement may take.
    pub(super) most_time: Duration,
    /// Most memory that the planning of one statement may hold.
    pub(super) most_bytes: u64,
}

/// Plans statements.
#[derive(Debug)]
pub(super) struct Planner {
    options: PlanningOptions,
    slots: Arc<Semaphore>,
    runtime: tokio::runtime::Handle,
}

/// Whether a statement may take long to plan, from what is known before.
pub(super) fn may_take_long(sql: &str, plan: Option<&LogicalPlan>) -> bool {
    sql.len() > SHORT_SQL_BYTES || plan.is_some_and(has_many_nodes)
}

fn has_many_nodes(plan: &LogicalPlan) -> bool {
    let mut nodes = 0;
    let counted = plan.apply_with_subqueries(|_| {
        nodes += 1;
        Ok(if nodes > SHORT_PLAN_NODES { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    counted.is_err() || nodes > SHORT_PLAN_NODES
}

impl Planner {
    pub(super) fn new(options: PlanningOptions, runtime: tokio::runtime::Handle) -> Self {
        Self { options, slots: Arc::new(Semaphore::new(options.slots.max(1))), runtime }
    }

    /// Does the planning `work` of a statement within the limits; on a thread of its own if it `may_take_long`.
    pub(super) async fn plan<T, F>(&self, may_take_long: bool, interrupt: &Interrupt, work: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let account = HeapAccount::current().unwrap_or_default();
        let slot = match may_take_long {
            true => Some(self.slot().await?),
            false => None,
        };
        let limits = Limits {
            held_before_bytes: account.bytes(),
            account: Arc::clone(&account),
            interrupt: interrupt.clone(),
            started: Instant::now(),
            options: self.options,
            nodes: Cell::new(0),
        };
        let work = account.charge(LIMITS.scope(limits, async move {
            let planned = work.await?;
            check()?;
            Ok(planned)
        }));
        if !may_take_long {
            return work.await;
        }
        let work = work.in_current_span();
        let runtime = self.runtime.clone();
        let planning = move || {
            // The slot is free when the thread is, not when nobody waits any more.
            let _slot = slot;
            runtime.block_on(work)
        };
        self.runtime.spawn_blocking(planning).await.unwrap_or_else(|error| Err(join_error(&error)))
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit> {
        let wait = tokio::time::timeout(self.options.queue_timeout, Arc::clone(&self.slots).acquire_owned());
        match wait.await {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "the server is stopping; try again")),
            Err(_) => {
                let PlanningOptions { slots, queue_timeout, .. } = self.options;
                let message = format!(
                    "the statement waited {queue_timeout:?} for one of {slots} slots in which long statements are \
                     planned; the server is busy, try again"
                );
                let busy = Error::new(ErrorKind::ResourceExhausted, message);
                Err(busy.with_retry_after(self.options.most_time.min(queue_timeout)))
            }
        }
    }
}

tokio::task_local! {
    /// The limits of the statement that this thread plans.
    static LIMITS: Limits;
}

/// The limits of the planning of one statement.
struct Limits {
    interrupt: Interrupt,
    started: Instant,
    account: Arc<HeapAccount>,
    held_before_bytes: u64,
    options: PlanningOptions,
    /// Nodes visited so far.
    nodes: Cell<u32>,
}

impl Limits {
    fn check(&self) -> Result<()> {
        let PlanningOptions { most_time, most_bytes, .. } = self.options;
        self.interrupt.check()?;
        if self.started.elapsed() > most_time {
            let message =
                format!("planning the statement took longer than {most_time:?} (query.planning_timeout); simplify it");
            return Err(Error::new(ErrorKind::DeadlineExceeded, message));
        }
        let held = self.account.bytes().saturating_sub(self.held_before_bytes);
        if held > most_bytes {
            let message = format!(
                "planning the statement took {held} bytes of memory, the limit is {most_bytes}; simplify it, or make fewer \
                 large values of literals"
            );
            return Err(Error::new(ErrorKind::ResourceExhausted, message));
        }
        Ok(())
    }

    /// Checks at some of the nodes.
    fn check_at_node(&self) -> Result<()> {
        let nodes = self.nodes.get().wrapping_add(1);
        self.nodes.set(nodes);
        if nodes.is_multiple_of(NODES_PER_CHECK) { self.check() } else { Ok(()) }
    }
}

/// The error of a planning that has to end.
fn check() -> Result<()> {
    LIMITS.try_with(Limits::check).unwrap_or(Ok(()))
}

/// Lets the rules of a planner check the limits.
pub(super) fn with_checks(state: SessionState) -> SessionState {
    let mut builder = SessionStateBuilder::new_from_existing(state);
    let analyzer = builder.analyzer().get_or_insert_with(Analyzer::default);
    for rule in &mut analyzer.rules {
        *rule = Arc::new(CheckedAnalyzerRule(Arc::clone(rule)));
    }
    let optimizer = builder.optimizer().get_or_insert_with(Optimizer::default);
    for rule in &mut optimizer.rules {
        *rule = Arc::new(CheckedOptimizerRule(Arc::clone(rule)));
    }
    let physical = builder.physical_optimizers().get_or_insert_with(PhysicalOptimizer::default);
    for rule in &mut physical.rules {
        *rule = Arc::new(CheckedPhysicalRule(Arc::clone(rule)));
    }
    builder.build()
}

#[derive(Debug)]
struct CheckedAnalyzerRule(Arc<dyn AnalyzerRule + Send + Sync>);

impl AnalyzerRule for CheckedAnalyzerRule {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> PlanResult<LogicalPlan> {
        check()?;
        self.0.analyze(plan, config)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

#[derive(Debug)]
struct CheckedOptimizerRule(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for CheckedOptimizerRule {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        match self.0.apply_order() {
            Some(_) => LIMITS.try_with(Limits::check_at_node).unwrap_or(Ok(()))?,
            None => check()?,
        }
        self.0.rewrite(plan, config)
    }
}

#[derive(Debug)]
struct CheckedPhysicalRule(Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for CheckedPhysicalRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> PlanResult<Arc<dyn ExecutionPlan>> {
        check()?;
        self.0.optimize(plan, config)
    }

    fn optimize_with_context(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        check()?;
        self.0.optimize_with_context(plan, context)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}
