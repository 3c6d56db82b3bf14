//! How statements execute: each family of statements plans and runs itself, in its own file.
//!
//! A statement with rows has an [`Outline`] of them before it runs; [`super::run`] executes it. A statement with a count
//! does its work in [`Execute::run`]. Both come behind one gate, [`Running::enter`](super::transaction::Running::enter),
//! which refuses what READ ONLY transactions may not do, and behind the checks of [`rights`](super::rights).

use std::sync::Arc;

use arrow::array::RecordBatch;
use terrace_sql::command::Action;
use terrace_sql::hot_view::HotViewCommand;

use super::catalog::Snapshot;
use super::computed_rows::ComputedRows;
use super::registry::Ticket;
use super::session::Session;
use super::statement::{Planned, Prepared};
use super::transaction::Transaction;
use super::{Engine, views};
use crate::error::{Error, Result};

/// The session and the transaction that plan a statement.
pub(super) struct Planning<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) transaction: Option<&'a Arc<Transaction>>,
}

impl Planning<'_> {
    /// The catalog as the statement sees it.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>> {
        self.session.snapshot_in(self.transaction)
    }
}

/// The result of planning a statement.
pub(super) enum Outline {
    /// A plan.
    Plan(Box<Planned>),
    /// Rows that it computes without a plan.
    Rows(ComputedRows),
    /// Nothing: it has no plan, and returns a count.
    Count,
}

impl Outline {
    /// The plan, if there is one.
    pub(super) fn plan(self) -> Option<Planned> {
        match self {
            Self::Plan(planned) => Some(*planned),
            Self::Rows(_) | Self::Count => None,
        }
    }
}

/// The inputs for running a statement that returns a count.
pub(super) struct Execution<'a> {
    pub(super) prepared: &'a Arc<Prepared>,
    pub(super) ticket: &'a Ticket,
    pub(super) parameters: Option<&'a RecordBatch>,
    /// `None`: the statement commits by itself.
    pub(super) transaction: Option<Arc<Transaction>>,
}

impl Execution<'_> {
    pub(super) fn session(&self) -> &Arc<Session> {
        self.prepared.session()
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        self.session().engine()
    }
}

/// A family of statements. A family without plans leaves out `plan`, one that only returns rows leaves out `run`.
pub(super) trait Execute {
    /// Plans the statement; changes nothing.
    async fn plan(&self, _planning: &Planning<'_>) -> Result<Outline> {
        Ok(Outline::Count)
    }

    /// Runs the statement to its end and returns the number of rows that it affected, or 0.
    async fn run(&self, _execution: &Execution<'_>) -> Result<u64> {
        Err(Error::invalid("the statement returns rows; run it as a query"))
    }
}

impl Execute for Action {
    async fn plan(&self, planning: &Planning<'_>) -> Result<Outline> {
        match self {
            Self::Plan(statement) => statement.plan(planning).await,
            Self::Change(statement) => statement.plan(planning).await,
            Self::Placement(statement) => statement.plan(planning).await,
            Self::Alter(_)
            | Self::Comment(_)
            | Self::Truncate(_)
            | Self::Transaction(_)
            | Self::Prepare(_)
            | Self::Drop(_)
            | Self::CopyFrom(_)
            | Self::Optimize(_)
            | Self::Rule(_)
            | Self::HotView(_)
            | Self::Tiering(_)
            | Self::Cancel(_)
            | Self::Access(_)
            | Self::Grant(_)
            | Self::WorkloadGroup(_)
            | Self::Policy(_) => Ok(Outline::Count),
            Self::CreateToken(statement) => statement.plan(planning).await,
        }
    }

    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        match self {
            Self::Plan(statement) => statement.run(execution).await,
            Self::Alter(statement) => statement.run(execution).await,
            Self::Comment(statement) => statement.run(execution).await,
            Self::Change(statement) => statement.run(execution).await,
            Self::Truncate(statement) => statement.run(execution).await,
            Self::Transaction(statement) => statement.run(execution).await,
            Self::Prepare(statement) => statement.run(execution).await,
            Self::Drop(statement) => statement.run(execution).await,
            Self::CopyFrom(statement) => statement.run(execution).await,
            Self::Optimize(statement) => statement.run(execution).await,
            Self::Rule(statement) => statement.run(execution).await,
            Self::HotView(statement) => statement.run(execution).await,
            Self::Placement(statement) => statement.run(execution).await,
            Self::Tiering(statement) => statement.run(execution).await,
            Self::Cancel(statement) => statement.run(execution).await,
            Self::Access(statement) => statement.run(execution).await,
            Self::CreateToken(statement) => statement.run(execution).await,
            Self::Grant(statement) => statement.run(execution).await,
            Self::WorkloadGroup(statement) => statement.run(execution).await,
            Self::Policy(statement) => statement.run(execution).await,
        }
    }
}

impl Execute for HotViewCommand {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        views::run(execution.session(), execution.ticket, self).await
    }
}
