//! Stops statements: on cancellation, at the time limit, and also within joins and recursive queries that never yield.
//!
//! Tokio stops a task only where it awaits, and a task that never awaits also keeps its thread from all others.
//! DataFusion's joins do not await between their inputs, though a few rows of one side may match all of the other for
//! minutes. So the output of a join, and that of a recursive query, yields after every 128 batches. Scans check the
//! interrupt for every slice, functions that make rows and readers of files for every batch: an aggregation may take
//! gigabytes between two places where it waits. Functions that make large values check it between a few rows
//! (`functions/in_steps.rs`). Where the condition of
//! a hash or nested-loop join drops the pairs before they are output, the condition, which is evaluated for every few
//! thousand pairs, checks the interrupt. Where a single step takes long all the same (groups are sorted before they spill),
//! the client has its error after a moment, and the statement keeps its slot and memory until the step ends. The client waits for the end
//! where changes may become visible all the same: while they are made durable, and in statements other than queries, changes of rows and
//! CREATE TABLE AS.
//! Not covered: a sort-merge join whose condition drops nearly all pairs, and a semi join without condition whose keys
//! repeat on both sides.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/19358> (Join operators don't yield to tokio runtime,
//! preventing query cancellation), open; can go when the test `joins_of_very_many_pairs_stop_when_they_are_cancelled`
//! passes without it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, SortMergeJoinExec,
};
use datafusion::physical_plan::memory::LazyMemoryExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use futures::StreamExt;
use terrace_scan::pause::Pause;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::stream_exec::StreamExec;
use crate::error::{Error, ErrorKind};

/// Time in which nearly every statement stops.
const STOP_PATIENCE: Duration = Duration::from_millis(300);

/// Tells a statement to stop: when someone cancels it, when its client is gone, when its time is over, when the server
/// needs its memory.
#[derive(Debug, Clone)]
pub(super) struct Interrupt {
    token: CancellationToken,
    /// The error with which it ends, if it was not simply cancelled.
    reason: Arc<OnceLock<Error>>,
    commit: Arc<Commit>,
    /// Says when it has to wait.
    pause: Arc<Pause>,
    limit: Option<Duration>,
    started: Instant,
}

/// What is known of the commit of a statement.
#[derive(Debug, Default)]
struct Commit {
    is_expected: AtomicBool,
    /// Whether its changes are being made durable on a thread that nothing stops.
    has_begun: AtomicBool,
}

impl Interrupt {
    /// Makes the interrupt of a statement that starts now.
    pub(super) fn new(limit: Option<Duration>, pause: Arc<Pause>) -> Self {
        Self {
            pause,
            token: CancellationToken::new(),
            reason: Arc::default(),
            commit: Arc::default(),
            limit,
            started: Instant::now(),
        }
    }

    pub(super) fn cancel(&self) {
        self.token.cancel();
    }

    /// The statement promises that no change that it makes from here on becomes visible before [`Interrupt::begin_commit`].
    pub(super) fn expect_commit(&self) {
        self.commit.is_expected.store(true, Ordering::SeqCst);
        self.commit.has_begun.store(false, Ordering::SeqCst);
    }

    /// From here on the changes of the statement may become visible, and the server no longer stops it by itself. The error
    /// of a statement that has to stop: its client may have been told so.
    pub(super) fn begin_commit(&self) -> Result<(), Error> {
        self.commit.has_begun.store(true, Ordering::SeqCst);
        self.check()
    }

    /// Whether the server may stop the statement by itself.
    pub(super) fn may_stop(&self) -> bool {
        !self.is_stopping() && !self.commit.has_begun.load(Ordering::SeqCst)
    }

    /// Makes the statement end with `reason`, if the server may stop it.
    pub(super) fn stop(&self, reason: Error) {
        if self.may_stop() {
            let _ = self.reason.set(reason);
            self.token.cancel();
        }
    }

    /// Whether the statement was told to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns a guard that cancels the statement when it is dropped.
    pub(super) fn guard(&self) -> DropGuard {
        self.token.clone().drop_guard()
    }

    /// Runs `body` until it ends or the statement has to stop, except while it commits: its changes may become visible. Drops
    /// `body` before it returns.
    pub(super) async fn guarded<T>(&self, body: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut body = std::pin::pin!(body);
        let result = tokio::select! {
            // A cancelled statement ends as cancelled even if its result is ready.
            biased;
            stopped = self.stopped() => match self.commit.has_begun.load(Ordering::SeqCst) {
                true => body.await,
                false => return Err(stopped),
            },
            result = &mut body => result,
        };
        // One that was told to stop during a long step may fail after it because its client no longer waits.
        result.map_err(|error| self.check().err().unwrap_or(error))
    }

    /// Waits until the statement has to stop. Returns the error with which it ends.
    async fn stopped(&self) -> Error {
        let late = async {
            match self.limit {
                Some(limit) => tokio::time::sleep(limit.saturating_sub(self.started.elapsed())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.token.cancelled() => self.reason(),
            () = late => self.time_limit_error(),
        }
    }

    /// Waits until the statement should have stopped, but has not: it is within a long step. Returns the error with which it
    /// will end.
    pub(super) async fn overdue(self) -> Error {
        let error = self.stopped().await;
        tokio::time::sleep(STOP_PATIENCE).await;
        error
    }

    /// Like [`Interrupt::overdue`], for a statement that changes something; waits for ever where its changes may become visible
    /// all the same.
    pub(super) async fn overdue_before_commit(self) -> Error {
        let commit = Arc::clone(&self.commit);
        let error = self.overdue().await;
        // A commit that begins later finds that the statement has to stop.
        if commit.is_expected.load(Ordering::SeqCst) && !commit.has_begun.load(Ordering::SeqCst) {
            return error;
        }
        std::future::pending().await
    }

    /// The error of a statement that has to stop.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.limit {
            _ if self.is_stopping() => Err(self.reason()),
            Some(limit) if self.started.elapsed() > limit => Err(self.time_limit_error()),
            _ => Ok(()),
        }
    }

    /// Waits while statements have to. The error of a statement that has to stop.
    pub(super) async fn passed(&self) -> Result<(), Error> {
        self.pause.passed().await;
        self.check()
    }

    fn reason(&self) -> Error {
        let cancelled = || Error::new(ErrorKind::Cancelled, "the statement was cancelled");
        self.reason.get().cloned().unwrap_or_else(cancelled)
    }

    fn time_limit_error(&self) -> Error {
        let limit = self.limit.unwrap_or_default();
        let message = format!(
            "the statement ran longer than {limit:?}, its time limit (query.timeout of the server, or statement_timeout \
             of the session)"
        );
        Error::new(ErrorKind::DeadlineExceeded, message)
    }
}

/// Makes the joins and recursive queries of a plan stop when the statement has to.
pub(super) fn interruptible(
    plan: Arc<dyn ExecutionPlan>,
    interrupt: &Interrupt,
) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    let checked_filter = |filter: &JoinFilter| {
        let condition =
            InterruptibleCondition { condition: Arc::clone(filter.expression()), interrupt: interrupt.clone() };
        let columns = filter.column_indices().to_vec();
        let schema = Arc::clone(filter.schema());
        Some(JoinFilter::new(Arc::new(condition), columns, schema))
    };
    let with_interrupt_checks = |plan: Arc<dyn ExecutionPlan>| {
        let join: Arc<dyn ExecutionPlan> = if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
            match join.filter() {
                Some(filter) => {
                    Arc::new(NestedLoopJoinExecBuilder::from(join).with_filter(checked_filter(filter)).build()?)
                }
                None => plan,
            }
        } else if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            match join.filter() {
                Some(filter) => Arc::new(join.builder().with_filter(checked_filter(filter)).build()?),
                None => plan,
            }
        } else if plan.is::<SortMergeJoinExec>() || plan.is::<CrossJoinExec>() || plan.is::<RecursiveQueryExec>() {
            plan
        } else if plan.is::<LazyMemoryExec>() || plan.is::<DataSourceExec>() {
            return Ok(Transformed::yes(checked_batches(plan, interrupt)));
        } else {
            return Ok(Transformed::no(plan));
        };
        Ok(Transformed::yes(Arc::new(CooperativeExec::new(join)) as Arc<dyn ExecutionPlan>))
    };
    plan.transform_up(with_interrupt_checks).data()
}

/// Checks the interrupt before every batch of a leaf, and waits while the statement has to.
fn checked_batches(leaf: Arc<dyn ExecutionPlan>, interrupt: &Interrupt) -> Arc<dyn ExecutionPlan> {
    let interrupt = interrupt.clone();
    let check = move |batches: SendableRecordBatchStream, _: &TaskContext| {
        let interrupt = interrupt.clone();
        let checked = batches.then(move |batch| {
            let interrupt = interrupt.clone();
            async move {
                interrupt.passed().await?;
                batch
            }
        });
        checked.boxed()
    };
    Arc::new(StreamExec::new("InterruptExec", leaf, check))
}

/// A join condition that returns an error when its statement has to stop.
#[derive(Debug, Clone)]
struct InterruptibleCondition {
    condition: Arc<dyn PhysicalExpr>,
    interrupt: Interrupt,
}

impl PartialEq for InterruptibleCondition {
    fn eq(&self, other: &Self) -> bool {
        self.condition.eq(&other.condition)
    }
}

impl Eq for InterruptibleCondition {}

impl Hash for InterruptibleCondition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
    }
}

impl fmt::Display for InterruptibleCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt(f)
    }
}

impl PhysicalExpr for InterruptibleCondition {
    fn return_field(&self, input: &Schema) -> Result<FieldRef, DataFusionError> {
        self.condition.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue, DataFusionError> {
        self.interrupt.check()?;
        self.condition.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.condition]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
        match children.into_iter().next() {
            Some(condition) => Ok(Arc::new(Self { condition, interrupt: self.interrupt.clone() })),
            None => Err(DataFusionError::Internal("a condition needs one child".into())),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt_sql(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const STEP: Duration = Duration::from_millis(20);

    /// Runs `body`, tells it to stop after a step, and returns its result.
    async fn stopped_in<T>(body: impl AsyncFnOnce(&Interrupt) -> Result<T, Error>) -> (Interrupt, Result<T, Error>) {
        let interrupt = Interrupt::new(None, Arc::default());
        let stop = async {
            tokio::time::sleep(STEP).await;
            interrupt.cancel();
        };
        let (result, ()) = tokio::join!(interrupt.guarded(body(&interrupt)), stop);
        (interrupt, result)
    }

    #[tokio::test]
    async fn a_commit_that_has_begun_is_waited_for() {
        let (_, done) = stopped_in(async |interrupt| {
            interrupt.expect_commit();
            interrupt.begin_commit()?;
            tokio::time::sleep(STEP * 3).await;
            Ok(7)
        })
        .await;
        assert_eq!(done.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_statement_that_was_told_to_stop_does_not_begin_to_commit() {
        let (interrupt, stopped) = stopped_in(async |interrupt| {
            interrupt.begin_commit()?;
            // Its next row: nothing of it is visible.
            interrupt.expect_commit();
            std::future::pending().await
        })
        .await;
        let stopped: Result<(), Error> = stopped;
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(interrupt.clone().overdue_before_commit().await.kind(), ErrorKind::Cancelled);
        assert_eq!(interrupt.begin_commit().unwrap_err().kind(), ErrorKind::Cancelled);
        let waits = tokio::time::timeout(STOP_PATIENCE * 2, interrupt.overdue_before_commit());
        assert!(waits.await.is_err(), "its client waits once it commits");
    }
}
