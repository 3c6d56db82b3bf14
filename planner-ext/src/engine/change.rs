//! Running changes: rows of a query become deleted positions and new rows of one transaction.
//!
//! Positions are collected as bitmaps and new rows go to chunk files while the query runs, so memory is bounded. Old and
//! new rows change hands together, when the query has ended well. A statement outside of a transaction commits by
//! itself; when another transaction was faster it runs again on what that one left, because nothing was sent to the
//! client yet.

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
use terrace_tier_store::table::{Table, TableName, TableVersion};

use super::catalog::Snapshot;
use super::ingest::clustered;
use super::insert::{bind_many, name_null_column};
use super::parameters::stored;
use super::parse::{NameParts, table_name};
use super::registry::Ticket;
use super::rewrite::{Change, Effect, MergeEffect, Rewritten, TargetColumn};
use super::run::PlanMemory;
use super::statement::{Planned, Prepared};
use super::transaction::{Attempt, Transaction};
use super::types::with_columns;
use super::{defaults, run};
use crate::error::{Error, ErrorKind, Result};
use crate::scan::ROW_COLUMN;
use crate::sink::IngestWriter;

/// How often a statement that commits by itself runs until it gives up against faster ones.
const ATTEMPTS: usize = 10;

/// The table that a plan changes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) table: Arc<Table>,
    /// The version that positions in the plan's rows mean.
    pub(super) seen: Arc<TableVersion>,
    pub(super) effect: Effect,
}

/// Plans the query of a change on `snapshot`, or EXPLAIN of it.
pub(super) async fn plan_change(
    snapshot: Arc<Snapshot>,
    change: &Change,
    explain: Option<&ExplainStatement>,
) -> Result<Planned> {
    let name = change.target.resolve(snapshot.default_schema());
    let provider = snapshot.writable(&name)?;
    let schema = provider.table().schema();
    let columns = schema.fields().iter().zip(&provider.table().definition().columns).map(|(field, column)| {
        let default = defaults::tree(column.default.as_deref())?;
        Ok(TargetColumn { name: field.name().clone(), default })
    });
    let columns: Vec<TargetColumn> = columns.collect::<Result<_>>()?;
    let Rewritten { mut query, effect, hidden } = change.rewrite(&columns)?;
    if let Some(explain) = explain {
        query = SqlStatement::Explain(ExplainStatement { statement: Box::new(query), ..explain.clone() });
        let plan = snapshot.plan_on_target(query, &name, &hidden).await.map_err(|e| hidden.explained(e))?;
        return Ok(Planned { snapshot, plan, target: None });
    }
    let plan = snapshot.plan_on_target(query, &name, &hidden).await.map_err(|e| hidden.explained(e))?;
    let plan = match &effect {
        Effect::Update => typed(plan, schema, 1)?,
        Effect::Merge(_) => typed(refuse_volatile(plan)?, schema, 2)?,
        Effect::Delete | Effect::Insert => plan,
    };
    let table = Arc::clone(provider.table());
    let seen = Arc::clone(provider.version());
    Ok(Planned { snapshot, plan, target: Some(Target { table, seen, effect }) })
}

/// The conditions of a MERGE stand in the plan once for each column, and have to decide alike each time.
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

/// Casts the values from output column `first` on to the types of the table's columns, in every branch by itself: a value
/// that one branch leaves alone must not take the type of another's.
fn typed(plan: LogicalPlan, schema: &SchemaRef, first: usize) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(Projection { expr, input, .. }) = plan else {
        return Err(Error::unimplemented("a change of this form is not supported"));
    };
    let fields = std::iter::repeat_n(None, first).chain(schema.fields().iter().map(|f| Some(f.as_ref())));
    let typed = expr.into_iter().zip(fields).map(|(expr, field)| match (expr, field) {
        (Expr::Alias(Alias { expr, name, .. }), Some(field)) => Ok(assign(*expr, field, &input)?.alias(name)),
        (other, Some(field)) => Ok(assign(other, field, &input)?.alias(field.name())),
        (other, None) => Ok(other),
    });
    let typed = typed.collect::<Result<Vec<_>>>()?;
    Ok(LogicalPlanBuilder::from(Arc::unwrap_or_clone(input)).project(typed)?.build()?)
}

fn assign(value: Expr, field: &Field, input: &LogicalPlan) -> Result<Expr> {
    match value {
        Expr::Placeholder(placeholder) => Ok(stored(placeholder, field)),
        Expr::Case(Case { expr: None, when_then_expr, else_expr }) => {
            let branch = |(when, then): (Box<Expr>, Box<Expr>)| Ok((when, Box::new(assign(*then, field, input)?)));
            let branches = when_then_expr.into_iter().map(branch).collect::<Result<Vec<_>>>()?;
            let otherwise = else_expr.map(|e| assign(*e, field, input).map(Box::new)).transpose()?;
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
pub(super) fn insert_target(snapshot: &Arc<Snapshot>, plan: &LogicalPlan) -> Result<Option<Target>> {
    let LogicalPlan::Dml(dml) = plan else { return Ok(None) };
    let WriteOp::Insert(op) = &dml.op else { return Ok(None) };
    let name = table_name(&dml.table_name, snapshot.default_schema())?;
    if snapshot.is_external(&name) {
        return Ok(None);
    }
    let provider = snapshot.writable(&name)?;
    if *op != InsertOp::Append {
        return Err(Error::unimplemented(format!("{op} is not supported; use CREATE OR REPLACE TABLE .. AS SELECT")));
    }
    let table = Arc::clone(provider.table());
    let seen = Arc::clone(provider.version());
    Ok(Some(Target { table, seen, effect: Effect::Insert }))
}

/// Runs a statement that changes rows, once per row of `parameters`: all of it happens, or nothing. Without a
/// `transaction` it commits by itself, also if its session begins one meanwhile. Returns the rows affected.
pub(super) async fn run_change(
    prepared: &Prepared,
    ticket: &Ticket,
    parameters: Option<&RecordBatch>,
    transaction: Option<Arc<Transaction>>,
) -> Result<u64> {
    if let Some(transaction) = transaction {
        let attempt = transaction.attempt().await?;
        let count = run_in(prepared, ticket, &transaction, Some(&attempt), parameters).await?;
        attempt.keep();
        return Ok(count);
    }
    let mut attempt = 1;
    loop {
        let transaction = Transaction::new(ticket.id().to_owned(), prepared.session().engine());
        let count = run_in(prepared, ticket, &transaction, None, parameters).await;
        let done = match &count {
            Ok(_) => transaction.commit().await,
            Err(_) => Ok(()),
        };
        match (done, count) {
            // A key that another one added meanwhile: the statement decides again what to do with it (MERGE may update).
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

async fn run_in(
    prepared: &Prepared,
    ticket: &Ticket,
    transaction: &Arc<Transaction>,
    attempt: Option<&Arc<Attempt>>,
    parameters: Option<&RecordBatch>,
) -> Result<u64> {
    let rows = parameters.map_or(1, RecordBatch::num_rows);
    let several = rows > 1;
    prepared.check_parameters(parameters)?;
    let mut first = match attempt.is_some() || several {
        // Each run sees what the one before it did.
        true => prepared.plan_in(transaction).await?,
        false => prepared.current_plan(None).await?,
    };
    let takes_parameters = !prepared.parameter_schema().fields().is_empty();
    let mut count = 0;
    for row in 0..rows {
        let planned = match first.take() {
            Some(planned) => Some(planned),
            None => prepared.plan_in(transaction).await?,
        };
        let mut planned = planned.ok_or_else(|| Error::new(ErrorKind::Internal, "a change without a plan"))?;
        match parameters {
            Some(all) if several && row == 0 => {
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
    prepared: &Prepared,
    ticket: &Ticket,
    transaction: &Arc<Transaction>,
    attempt: Option<&Arc<Attempt>>,
    mut planned: Planned,
) -> Result<u64> {
    let engine = prepared.session().engine();
    let target = planned.target.take().ok_or_else(|| Error::new(ErrorKind::Internal, "a change without a table"))?;
    let _turn = run::turn(engine, ticket).await?;
    let whole = planned.plan.clone();
    let rows = match planned.plan {
        LogicalPlan::Dml(dml) => Arc::unwrap_or_clone(dml.input),
        other => other,
    };
    planned.plan = match target.effect {
        Effect::Delete => rows,
        _ => clustered(rows, target.table.options())?,
    };
    let collected = collect(prepared, ticket, &planned, &target).await.map_err(|e| name_null_column(e, &whole))?;
    let Collected { positions, count, writer } = collected;
    let transaction = Arc::clone(transaction);
    let added = match writer {
        Some(writer) => Some(writer.hand_over().await?),
        None => None,
    };
    let attempt = attempt.cloned();
    let change = move || {
        let _attempt = attempt;
        transaction.change(&target.table, &target.seen, &positions, added)
    };
    engine.blocking(change).await?;
    Ok(count)
}

/// What a query of a change gave.
struct Collected {
    positions: RoaringTreemap,
    count: u64,
    writer: Option<IngestWriter>,
}

/// Runs the query; when query memory ends, once more with [`PlanMemory::SortMergeJoins`].
async fn collect(prepared: &Prepared, ticket: &Ticket, planned: &Planned, target: &Target) -> Result<Collected> {
    let engine = prepared.session().engine();
    let mut memory = match target.effect {
        Effect::Delete => PlanMemory::Full,
        _ => PlanMemory::of_load(target.table.options()),
    };
    loop {
        let collected = async {
            let mut rows = run::execute(engine, ticket, planned, memory).await?;
            let mut collected = Collected { positions: RoaringTreemap::new(), count: 0, writer: None };
            while let Some(batch) = rows.next().await {
                let batch = batch?;
                if let Some(new) = collected.take(&target.effect, &batch)? {
                    let columns = new.columns().to_vec();
                    let count = new.num_rows();
                    let new = with_columns(target.table.schema(), columns, count)?;
                    let store = Arc::clone(&engine.store);
                    let table = Arc::clone(&target.table);
                    let open = move || Ok(store.ingest(&table));
                    collected.writer.get_or_insert_with(|| IngestWriter::start(open)).write(new).await?;
                }
            }
            Ok::<_, DataFusionOrOurs>(collected)
        };
        match collected.await {
            Err(DataFusionOrOurs::Plan(error))
                if memory != PlanMemory::SortMergeJoins
                    && matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) =>
            {
                memory = PlanMemory::SortMergeJoins;
            }
            Err(error) => return Err(error.into()),
            Ok(collected) => return Ok(collected),
        }
    }
}

/// Errors of the plan keep their type until it is decided whether to try again.
enum DataFusionOrOurs {
    Plan(DataFusionError),
    Ours(Error),
}

impl From<DataFusionError> for DataFusionOrOurs {
    fn from(error: DataFusionError) -> Self {
        Self::Plan(error)
    }
}

impl From<Error> for DataFusionOrOurs {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl From<DataFusionOrOurs> for Error {
    fn from(error: DataFusionOrOurs) -> Self {
        match error {
            DataFusionOrOurs::Plan(error) => error.into(),
            DataFusionOrOurs::Ours(error) => error,
        }
    }
}

impl Collected {
    /// Notes the positions of a batch and returns its new rows, if any.
    fn take(&mut self, effect: &Effect, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
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
                let kept = if fresh.true_count() == batch.num_rows() {
                    batch.clone()
                } else {
                    filter_record_batch(batch, &fresh)?
                };
                without_first(&kept, 1)?
            }
            Effect::Merge(effects) => {
                let stays = self.merge(effects, batch)?;
                without_first(&filter_record_batch(batch, &stays)?, 2)?
            }
        };
        Ok(Some(new).filter(|rows| rows.num_rows() > 0))
    }

    /// Which rows of a batch are new ones.
    fn merge(&mut self, effects: &[MergeEffect], batch: &RecordBatch) -> Result<BooleanArray> {
        let rows = positions(batch)?;
        let which = batch.columns().get(1).and_then(|c| c.as_primitive_opt::<Int64Type>());
        let which: &Int64Array = which.ok_or_else(|| internal("the rows of a MERGE do not say what to do"))?;
        let mut stays = Vec::with_capacity(batch.num_rows());
        for (row, which) in rows.iter().zip(which) {
            let effect = which.and_then(|n| effects.get(usize::try_from(n).ok()?));
            if let (Some(MergeEffect::Update | MergeEffect::Delete), Some(row)) = (effect, row)
                && !self.positions.insert(row)
            {
                return Err(Error::invalid(
                    "MERGE would change a row twice: it matches several rows of the source; make their keys unique",
                ));
            }
            self.count += u64::from(effect.is_some());
            stays.push(matches!(effect, Some(MergeEffect::Insert | MergeEffect::Update)));
        }
        Ok(stays.into())
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, message)
}

/// The row positions of a batch, its first column.
fn positions(batch: &RecordBatch) -> Result<&UInt64Array> {
    let column = batch.columns().first().filter(|c| *c.data_type() == DataType::UInt64);
    let column = column.and_then(|c| c.as_primitive_opt::<UInt64Type>());
    column.ok_or_else(|| internal(&format!("a change without column {ROW_COLUMN}")))
}

fn without_first(batch: &RecordBatch, columns: usize) -> Result<RecordBatch> {
    Ok(batch.project(&(columns..batch.num_columns()).collect::<Vec<_>>())?)
}

/// TRUNCATE: deletes all rows of the tables without reading them; returns how many there were.
pub(super) async fn truncate(
    prepared: &Prepared,
    ticket: &Ticket,
    (names, if_exists): (&[NameParts], bool),
    explicit: Option<Arc<Transaction>>,
) -> Result<u64> {
    let engine = prepared.session().engine();
    let mut attempt = 1;
    loop {
        let own = Transaction::new(ticket.id().to_owned(), engine);
        let transaction = Arc::clone(explicit.as_ref().unwrap_or(&own));
        let alone = transaction.attempt().await?;
        let snapshot = prepared.session().snapshot_in(Some(&transaction))?;
        let mut count = 0;
        let mut changes = Vec::new();
        let names: BTreeSet<TableName> = names.iter().map(|name| name.resolve(snapshot.default_schema())).collect();
        for name in names {
            match snapshot.writable(&name) {
                Err(error) if if_exists && error.kind() == ErrorKind::NotFound => {}
                provider => {
                    let provider = provider?;
                    count += provider.version().live_rows();
                    changes.push((Arc::clone(provider.table()), Arc::clone(provider.version())));
                }
            }
        }
        let worker = Arc::clone(&transaction);
        let held = Arc::clone(&alone);
        let change = move || {
            let _held = held;
            changes.iter().try_for_each(|(table, seen)| worker.change(table, seen, &seen.live_positions(), None))
        };
        engine.blocking(change).await?;
        alone.keep();
        drop(alone);
        let done = if explicit.is_some() { Ok(()) } else { own.commit().await };
        match done {
            Err(error) if error.kind() == ErrorKind::Aborted && attempt < ATTEMPTS => attempt += 1,
            done => return done.map(|()| count),
        }
    }
}
