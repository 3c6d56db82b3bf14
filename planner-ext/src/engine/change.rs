//! Executes UPDATE, DELETE, MERGE, INSERT and TRUNCATE: the rows of a query become deleted positions and new rows of one
//! transaction.
//!
//! Positions are collected as bitmaps and new rows go to chunk files while the query runs, so memory is bounded. The
//! transaction deletes old rows and adds new ones in one step, after the query has succeeded. A statement outside of a
//! transaction commits by itself. When another transaction committed a conflicting change first, the statement runs
//! again on the new state; that is possible because nothing was sent to the client yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, Int64Array, RecordBatch, UInt64Array, cast::AsArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef, UInt64Type};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::{Alias, Case, Cast};
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, WriteOp, dml::InsertOp,
};
use datafusion::sql::parser::{ExplainStatement, Statement as SqlStatement};
use futures::StreamExt;
use roaring::RoaringTreemap;
use terrace_access::{Authority, Right};
use terrace_scan::sink::IngestWriter;
use terrace_sql::command::{ChangeStatement, TruncateCommand};
use terrace_sql::defaults::default_expr;
use terrace_sql::rewrite::{Change, Effect, MergeEffect, Rewritten, TargetColumn, Write};
use terrace_tier_store::table::{Table, TableName, TableVersion, row_bytes};

use super::catalog::{QueriedTarget, Snapshot};
use super::execute::{Execute, Execution, Outline, Planning};
use super::explain::without_statistics;
use super::ingest::sort_by_cluster_columns;
use super::insert::{bind_many, name_null_column};
use super::parameters::stored_placeholder;
use super::plan::table_name;
use super::policies::{RowCondition, TargetConditions};
use super::query::may_start_again;
use super::registry::Ticket;
use super::rights::Need;
use super::run::PlanMemory;
use super::statement::{Planned, Prepared};
use super::transaction::{Attempt, Transaction};
use super::types::with_columns;
use super::{policies, rights, run};
use crate::error::{Error, ErrorKind, ROW_COLUMN, Result};

/// Most attempts of a statement that commits by itself and meets conflicting commits.
const ATTEMPTS: usize = 10;

/// The table that a plan changes.
#[derive(Debug, Clone)]
pub(super) struct ChangeTarget {
    pub(super) table: Arc<Table>,
    /// The table version that the row positions of the plan refer to.
    pub(super) planned_version: Arc<TableVersion>,
    pub(super) effect: Effect,
    /// What new rows have to fulfil by the policies of the table.
    pub(super) condition: Option<Arc<RowCondition>>,
}

impl Execute for ChangeStatement {
    async fn plan(&self, planning: &Planning<'_>) -> Result<Outline> {
        let planned = plan_change(planning.snapshot()?, &self.change, self.explain.as_ref()).await?;
        Ok(Outline::Plan(Box::new(planned)))
    }

    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        run_change(execution).await
    }
}

/// The rights on its target that a change needs.
fn needed_rights(snapshot: &Snapshot, change: &Change, name: &TableName) -> Result<Vec<Need>> {
    let mut needs = Vec::new();
    for Write { effect, columns } in change.writes() {
        let right = match effect {
            MergeEffect::Insert => Right::Insert,
            MergeEffect::Update => Right::Update,
            MergeEffect::Delete => Right::Delete,
        };
        needs.push(Need { right, columns: (!columns.is_empty()).then(|| columns.into_iter().collect()) });
    }
    match change.reads_target() {
        // It computes new values of all columns.
        true if change.is_merge() => needs.push(Need::whole(Right::Select)),
        true => needs.push(rights::read_need(snapshot, name)?),
        false => {}
    }
    Ok(needs)
}

/// The conditions of policies on the rows that a change finds in its target and makes there.
fn target_conditions(authority: &Authority, change: &Change, name: &TableName) -> Result<TargetConditions> {
    if !policies::concern(authority, name) {
        return Ok(TargetConditions::default());
    }
    if change.is_merge() {
        let message =
            "MERGE into a table whose policies concern its user is not supported; use UPDATE, DELETE and INSERT";
        return Err(Error::unimplemented(message));
    }
    let deletes = change.writes().iter().any(|write| write.effect == MergeEffect::Delete);
    let right = if deletes { Right::Delete } else { Right::Update };
    Ok(TargetConditions::new(authority, name, right, change.reads_target()))
}

/// Plans the query of a change on `snapshot`, or EXPLAIN of it.
async fn plan_change(snapshot: Arc<Snapshot>, change: &Change, explain: Option<&ExplainStatement>) -> Result<Planned> {
    let name = change.target.resolve(snapshot.default_schema());
    let needs = needed_rights(&snapshot, change, &name)?;
    let provider = snapshot.writable(&name, &needs)?;
    let conditions = target_conditions(snapshot.authority(), change, &name)?;
    let schema = provider.table().schema();
    let readable = needs.into_iter().find(|need| need.right == Right::Select).and_then(|need| need.columns);
    let columns = schema.fields().iter().zip(&provider.table().definition().columns).map(|(field, column)| {
        let default = default_expr(column.default.as_deref())?;
        let is_hidden = readable.as_ref().is_some_and(|readable| !readable.contains(field.name()));
        Ok(TargetColumn { name: field.name().clone(), default, is_hidden })
    });
    let columns: Vec<TargetColumn> = columns.collect::<Result<_>>()?;
    let Rewritten { mut query, effect, hidden } = change.rewrite(&columns)?;
    let target = QueriedTarget { name, hidden, readable, conditions: conditions.found };
    if let Some(explain) = explain {
        query = SqlStatement::Explain(ExplainStatement { statement: Box::new(query), ..explain.clone() });
        let mut plan = snapshot.plan_on_target(query, &target).await?;
        if let Some(quiet) = without_statistics(&plan)
            && !snapshot.authority().sees_figures(&target.name)
        {
            plan = quiet;
        }
        return Ok(Planned::new(snapshot, plan, None));
    }
    let plan = snapshot.plan_on_target(query, &target).await?;
    let plan = match &effect {
        Effect::Update => cast_to_table_types(plan, schema, 1)?,
        Effect::Merge(_) => cast_to_table_types(refuse_volatile(plan)?, schema, 2)?,
        Effect::Delete | Effect::Insert => plan,
    };
    let table = Arc::clone(provider.table());
    let planned_version = Arc::clone(provider.version());
    let condition = match &effect {
        Effect::Update => snapshot.new_row_condition(&table, &conditions.made)?,
        _ => None,
    };
    Ok(Planned::new(snapshot, plan, Some(ChangeTarget { table, planned_version, effect, condition })))
}

/// Refuses volatile conditions of a MERGE: the plan evaluates them once for each column, and each time they must give the
/// same result.
fn refuse_volatile(plan: LogicalPlan) -> Result<LogicalPlan> {
    match &plan {
        LogicalPlan::Projection(outer) if outer.expr.get(1).is_some_and(Expr::is_volatile) => {
            Err(Error::unimplemented("random() and the like are not supported in the conditions of MERGE"))
        }
        _ => Ok(plan),
    }
}

/// EXPLAIN of an INSERT shows the plan of its rows.
pub(super) fn explained_insert(plan: LogicalPlan) -> LogicalPlan {
    match plan {
        LogicalPlan::Explain(mut explain) => {
            if let LogicalPlan::Dml(dml) = explain.plan.as_ref() {
                explain.plan = Arc::clone(&dml.input);
            }
            LogicalPlan::Explain(explain)
        }
        other => other,
    }
}

/// Casts the values from output column `first` on to the types of the table's columns. Each branch of a CASE is cast by
/// itself, so that a value that one branch keeps does not take the type of another branch.
fn cast_to_table_types(plan: LogicalPlan, schema: &SchemaRef, first: usize) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(Projection { expr, input, .. }) = plan else {
        return Err(Error::unimplemented("a change of this form is not supported"));
    };
    let fields = std::iter::repeat_n(None, first).chain(schema.fields().iter().map(|f| Some(f.as_ref())));
    let values = expr.into_iter().zip(fields).map(|(expr, field)| match (expr, field) {
        (Expr::Alias(Alias { expr, name, .. }), Some(field)) => Ok(assigned_value(*expr, field, &input)?.alias(name)),
        (other, Some(field)) => Ok(assigned_value(other, field, &input)?.alias(field.name())),
        (other, None) => Ok(other),
    });
    let values = values.collect::<Result<Vec<_>>>()?;
    Ok(LogicalPlanBuilder::from(Arc::unwrap_or_clone(input)).project(values)?.build()?)
}

fn assigned_value(value: Expr, field: &Field, input: &LogicalPlan) -> Result<Expr> {
    match value {
        Expr::Placeholder(placeholder) => Ok(stored_placeholder(placeholder, field)),
        Expr::Case(Case { expr: None, when_then_expr, else_expr }) => {
            let branch =
                |(when, then): (Box<Expr>, Box<Expr>)| Ok((when, Box::new(assigned_value(*then, field, input)?)));
            let branches = when_then_expr.into_iter().map(branch).collect::<Result<Vec<_>>>()?;
            let otherwise = else_expr.map(|e| assigned_value(*e, field, input).map(Box::new)).transpose()?;
            Ok(Expr::Case(Case { expr: None, when_then_expr: branches, else_expr: otherwise }))
        }
        other => {
            let cast = other.cast_to(field.data_type(), input.schema()).map_err(|error| {
                let why = Error::from(error);
                Error::invalid(format!("column '{}' is {}: {}", field.name(), field.data_type(), why.message()))
            })?;
            // The planner may yet widen what seems to have the right type already, as it does in a UNION.
            Ok(match cast {
                Expr::Cast(_) => cast,
                same => Expr::Cast(Cast::new(Box::new(same), field.data_type().clone())),
            })
        }
    }
}

/// The target of a planned INSERT into a table of the store; `None` for others (files take rows by themselves).
pub(super) fn insert_target(snapshot: &Arc<Snapshot>, plan: &LogicalPlan, need: Need) -> Result<Option<ChangeTarget>> {
    let LogicalPlan::Dml(dml) = plan else { return Ok(None) };
    let WriteOp::Insert(op) = &dml.op else { return Ok(None) };
    let name = table_name(&dml.table_name, snapshot.default_schema())?;
    if snapshot.is_external(&name) {
        rights::check_table(snapshot, &name, &[need])?;
        rights::check_server(snapshot.authority(), Right::WriteFiles)?;
        return Ok(None);
    }
    let provider = snapshot.writable(&name, &[need])?;
    if *op != InsertOp::Append {
        return Err(Error::unimplemented(format!("{op} is not supported; use CREATE OR REPLACE TABLE .. AS SELECT")));
    }
    let table = Arc::clone(provider.table());
    let planned_version = Arc::clone(provider.version());
    let condition = snapshot.added_row_condition(&table)?;
    Ok(Some(ChangeTarget { table, planned_version, effect: Effect::Insert, condition }))
}

/// Runs a statement that changes rows, once per row of `parameters`, atomically. Without a `transaction` the statement
/// commits by itself, even if its session begins a transaction meanwhile. Returns the rows affected.
pub(super) async fn run_change(execution: &Execution<'_>) -> Result<u64> {
    let Execution { prepared, ticket, parameters, transaction } = execution;
    if let Some(transaction) = transaction {
        let attempt = transaction.attempt().await?;
        let count = run_in_transaction(prepared, ticket, transaction, Some(&attempt), *parameters).await?;
        attempt.keep();
        return Ok(count);
    }
    let mut attempt = 1;
    loop {
        let transaction = Transaction::new(ticket.id().to_owned(), prepared.session().engine());
        let count = run_in_transaction(prepared, ticket, &transaction, None, *parameters).await;
        let done = match &count {
            Ok(_) => {
                ticket.begin_commit()?;
                transaction.commit().await
            }
            Err(_) => Ok(()),
        };
        match (done, count) {
            // Another transaction added the key meanwhile: on the next attempt the statement sees it (MERGE may update).
            (Err(error), _) if error.kind() == ErrorKind::AlreadyExists && attempt < ATTEMPTS => attempt += 1,
            (Err(error), _) | (_, Err(error)) if error.kind() == ErrorKind::Aborted && attempt < ATTEMPTS => {
                attempt += 1
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
            (Ok(()), Ok(count)) => {
                ticket.add(count, 0);
                return Ok(count);
            }
        }
    }
}

async fn run_in_transaction(
    prepared: &Arc<Prepared>,
    ticket: &Ticket,
    transaction: &Arc<Transaction>,
    attempt: Option<&Arc<Attempt>>,
    parameters: Option<&RecordBatch>,
) -> Result<u64> {
    let rows = parameters.map_or(1, RecordBatch::num_rows);
    let has_many_rows = rows > 1;
    let interrupt = ticket.interrupt();
    prepared.check_parameters(parameters)?;
    let mut first = match attempt.is_some() || has_many_rows {
        // Each run sees the changes of the one before it.
        true => prepared.plan_in(transaction, &interrupt).await?,
        false => prepared.current_plan(None, &interrupt).await?,
    };
    let takes_parameters = !prepared.parameter_schema().fields().is_empty();
    let mut count = 0;
    for row in 0..rows {
        let planned = match first.take() {
            Some(planned) => Some(planned),
            None => prepared.plan_in(transaction, &interrupt).await?,
        };
        let mut planned = planned.ok_or_else(|| Error::new(ErrorKind::Internal, "a change of rows has no plan"))?;
        match parameters {
            Some(all) if has_many_rows && row == 0 => {
                // An INSERT of VALUES takes all rows at once, as a table of parameters.
                if let Some(joined) = bind_many(planned.snapshot.template(), &planned.plan, all)? {
                    planned.plan = joined;
                    return run_one(prepared, ticket, transaction, attempt, planned).await;
                }
                planned = planned.bound(all, row)?;
            }
            Some(all) if takes_parameters => planned = planned.bound(all, row)?,
            _ => {}
        }
        count += run_one(prepared, ticket, transaction, attempt, planned).await?;
    }
    Ok(count)
}

async fn run_one(
    prepared: &Arc<Prepared>,
    ticket: &Ticket,
    transaction: &Arc<Transaction>,
    attempt: Option<&Arc<Attempt>>,
    mut planned: Planned,
) -> Result<u64> {
    let engine = prepared.session().engine();
    ticket.interrupt().expect_commit();
    let target =
        planned.target.take().ok_or_else(|| Error::new(ErrorKind::Internal, "a change of rows has no table"))?;
    let _slot = run::acquire_slot(engine, ticket, run::unknown_demand(engine)).await?;
    let full_plan = planned.plan.clone();
    let rows = match planned.plan {
        LogicalPlan::Dml(dml) => Arc::unwrap_or_clone(dml.input),
        other => other,
    };
    planned.plan = match target.effect {
        Effect::Delete => rows,
        _ => sort_by_cluster_columns(rows, target.table.options())?,
    };
    let collected = collect(prepared, ticket, &planned, &target).await.map_err(|e| name_null_column(e, &full_plan))?;
    let Collected { positions, count, writer } = collected;
    ticket.begin_commit()?;
    let transaction = Arc::clone(transaction);
    let added = match writer {
        Some(writer) => Some(writer.hand_over().await?),
        None => None,
    };
    let attempt = attempt.cloned();
    let change = move || {
        let _attempt = attempt;
        transaction.change(&target.table, &target.planned_version, &positions, added)
    };
    engine.blocking(change).await?;
    Ok(count)
}

/// Result of the query of a change.
struct Collected {
    positions: RoaringTreemap,
    count: u64,
    writer: Option<IngestWriter>,
}

/// Runs the query. When it exhausts query memory, runs it once more with [`PlanMemory::Least`].
async fn collect(
    prepared: &Arc<Prepared>,
    ticket: &Ticket,
    planned: &Planned,
    target: &ChangeTarget,
) -> Result<Collected> {
    let engine = prepared.session().engine();
    let mut memory = match target.effect {
        Effect::Delete => PlanMemory::Full,
        _ => PlanMemory::for_load(target.table.options()),
    };
    loop {
        let collected = async {
            let mut rows = run::execute(engine, ticket, planned, memory).await?;
            let mut collected = Collected { positions: RoaringTreemap::new(), count: 0, writer: None };
            while let Some(batch) = rows.next().await {
                let batch = batch?;
                if let Some(new) = collected.add_batch(&target.effect, &batch)? {
                    let columns = new.columns().to_vec();
                    let count = new.num_rows();
                    let new = with_columns(target.table.schema(), columns, count)?;
                    if let Some(condition) = &target.condition {
                        condition.check(&new)?;
                    }
                    ticket.memory().heap().release(row_bytes(&new));
                    let store = Arc::clone(&engine.store);
                    let table = Arc::clone(&target.table);
                    let statement = ticket.writing();
                    let open = move || Ok(store.ingest(&table).for_statement(statement));
                    collected.writer.get_or_insert_with(|| IngestWriter::start(open)).write(new).await?;
                }
            }
            Ok::<_, CollectError>(collected)
        };
        match collected.await {
            Err(CollectError::Plan(error))
                if memory != PlanMemory::Least && may_start_again(&ticket.interrupt(), &error) =>
            {
                memory = PlanMemory::Least;
                ticket.count_restart();
                ticket.memory().wait_until_released().await;
            }
            Err(error) => return Err(error.into()),
            Ok(collected) => return Ok(collected),
        }
    }
}

/// An error of [`collect`]; errors of the plan keep their type until the caller has decided whether to try again.
enum CollectError {
    Plan(DataFusionError),
    Engine(Error),
}

impl From<DataFusionError> for CollectError {
    fn from(error: DataFusionError) -> Self {
        Self::Plan(error)
    }
}

impl From<Error> for CollectError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<CollectError> for Error {
    fn from(error: CollectError) -> Self {
        match error {
            CollectError::Plan(error) => error.into(),
            CollectError::Engine(error) => error,
        }
    }
}

impl Collected {
    /// Notes the positions of a batch and returns its new rows, if any.
    fn add_batch(&mut self, effect: &Effect, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
        let new = match effect {
            Effect::Insert => {
                self.count += batch.num_rows() as u64;
                batch.clone()
            }
            Effect::Delete => {
                self.positions.extend(positions(batch)?.values());
                self.count = self.positions.len();
                return Ok(None);
            }
            Effect::Update => {
                let rows = positions(batch)?;
                let fresh: BooleanArray = rows.values().iter().map(|row| Some(self.positions.insert(*row))).collect();
                self.count = self.positions.len();
                let first_rows = if fresh.true_count() == batch.num_rows() {
                    batch.clone()
                } else {
                    filter_record_batch(batch, &fresh)?
                };
                without_first(&first_rows, 1)?
            }
            Effect::Merge(effects) => {
                let is_new_row = self.merge_batch(effects, batch)?;
                without_first(&filter_record_batch(batch, &is_new_row)?, 2)?
            }
        };
        Ok(Some(new).filter(|rows| rows.num_rows() > 0))
    }

    /// Applies the effect of each row of a MERGE and returns which rows of the batch are to be inserted.
    fn merge_batch(&mut self, effects: &[MergeEffect], batch: &RecordBatch) -> Result<BooleanArray> {
        let rows = positions(batch)?;
        let clause_index = batch.columns().get(1).and_then(|c| c.as_primitive_opt::<Int64Type>());
        let clause_index: &Int64Array =
            clause_index.ok_or_else(|| internal("the rows of a MERGE do not name the clause that applies to them"))?;
        let mut is_new_row = Vec::with_capacity(batch.num_rows());
        for (row, clause_index) in rows.iter().zip(clause_index) {
            let effect = clause_index.and_then(|n| effects.get(usize::try_from(n).ok()?));
            if let (Some(MergeEffect::Update | MergeEffect::Delete), Some(row)) = (effect, row)
                && !self.positions.insert(row)
            {
                return Err(Error::invalid(
                    "MERGE would change a row twice: it matches several rows of the source; make their keys unique",
                ));
            }
            self.count += u64::from(effect.is_some());
            is_new_row.push(matches!(effect, Some(MergeEffect::Insert | MergeEffect::Update)));
        }
        Ok(is_new_row.into())
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, message)
}

/// The row positions of a batch, its first column.
fn positions(batch: &RecordBatch) -> Result<&UInt64Array> {
    let column = batch.columns().first().filter(|c| *c.data_type() == DataType::UInt64);
    let column = column.and_then(|c| c.as_primitive_opt::<UInt64Type>());
    column.ok_or_else(|| internal(&format!("the rows to change have no column {ROW_COLUMN}")))
}

fn without_first(batch: &RecordBatch, columns: usize) -> Result<RecordBatch> {
    Ok(batch.project(&(columns..batch.num_columns()).collect::<Vec<_>>())?)
}

impl Execute for TruncateCommand {
    /// Deletes all rows of the tables without reading them, and returns how many there were.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        if let Some(transaction) = &execution.transaction {
            return truncate(self, execution, transaction).await;
        }
        let mut attempt = 1;
        loop {
            let transaction = Transaction::new(execution.ticket.id().to_owned(), execution.engine());
            let count = truncate(self, execution, &transaction).await?;
            match transaction.commit().await {
                Err(error) if error.kind() == ErrorKind::Aborted && attempt < ATTEMPTS => attempt += 1,
                done => return done.map(|()| count),
            }
        }
    }
}

async fn truncate(command: &TruncateCommand, execution: &Execution<'_>, transaction: &Arc<Transaction>) -> Result<u64> {
    let attempt = transaction.attempt().await?;
    let snapshot = execution.session().snapshot_in(Some(transaction))?;
    let mut count = 0;
    let mut changes = Vec::new();
    let names = command.names.iter().map(|name| name.resolve(snapshot.default_schema()));
    for name in names.collect::<BTreeSet<TableName>>() {
        match snapshot.writable(&name, &[Need::whole(Right::Truncate)]) {
            Err(error) if command.if_exists && error.kind() == ErrorKind::NotFound => {}
            provider => {
                let provider = provider?;
                // How many there were is not for those who may not see them.
                if snapshot.authority().sees_figures(&name) {
                    count += provider.version().live_rows();
                }
                changes.push((Arc::clone(provider.table()), Arc::clone(provider.version())));
            }
        }
    }
    let worker = Arc::clone(transaction);
    // The thread keeps the attempt alive if this future is dropped: when it ends, its changes are undone.
    let worker_attempt = Arc::clone(&attempt);
    let change = move || {
        let _attempt = worker_attempt;
        changes.iter().try_for_each(|(table, planned_version)| {
            worker.change(table, planned_version, &planned_version.live_positions(), None)
        })
    };
    execution.engine().blocking(change).await?;
    attempt.keep();
    Ok(count)
}
