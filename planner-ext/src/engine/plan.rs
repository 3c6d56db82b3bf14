//! Statements of DataFusion's grammar: the planner plans them, and those with a count run here.

use std::sync::Arc;

use arrow::array::UInt64Array;
use datafusion::common::TableReference;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{DdlStatement, LogicalPlan, Statement as PlanStatement, WriteOp};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{Insert, Statement as Ast, TableObject};
use futures::StreamExt;
use terrace_access::Right;
use terrace_sql::command::{Action, PlannerStatement};
use terrace_sql::{CATALOG, DEFAULT_SCHEMA, NameParts, last_name, parse};
use terrace_tier_store::table::TableName;

use super::catalog::{Object, Snapshot};
use super::change::{explained_insert, insert_target, run_change};
use super::execute::{Execute, Execution, Outline, Planning};
use super::plan_cache::is_repeatable;
use super::registry::Ticket;
use super::rights::Need;
use super::run::{PlanMemory, acquire_slot, execute, unknown_demand};
use super::statement::Planned;
use super::{Engine, copy, ddl, defaults, rights, show};
use crate::error::{Error, ErrorKind, Result};

impl Execute for PlannerStatement {
    /// Plans once more where a table got another one of its name in between.
    async fn plan(&self, planning: &Planning<'_>) -> Result<Outline> {
        let mut is_first = planning.transaction.is_none();
        loop {
            match plan_on(planning.snapshot()?, self).await {
                Err(error) if is_first && error.kind() == ErrorKind::Aborted => is_first = false,
                planned => return planned,
            }
        }
    }

    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let session = execution.session();
        let sql = execution.prepared.sql();
        let planned =
            execution.prepared.current_plan(execution.transaction.as_ref(), &execution.ticket.interrupt()).await?;
        let planned = planned.ok_or_else(|| Error::new(ErrorKind::Internal, "an update has no plan"))?;
        match &planned.plan {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
                let definition = ddl::definition(&planned, create, &self.extras, sql)?;
                ddl::create_table(session, execution.ticket, &planned, create, definition).await
            }
            LogicalPlan::Ddl(other) => ddl::create_object(session, &planned, other, &self.extras, sql).await,
            LogicalPlan::Statement(PlanStatement::SetVariable(set)) => {
                session.set_option(&set.variable, Some(&set.value)).map(|()| 0)
            }
            LogicalPlan::Statement(PlanStatement::ResetVariable(reset)) => {
                session.set_option(&reset.variable, None).map(|()| 0)
            }
            _ if planned.target.is_some() => run_change(execution).await,
            LogicalPlan::Dml(_) if execution.transaction.is_some() => {
                Err(Error::unimplemented("the files of an external table do not take part in transactions"))
            }
            _ => write_files(execution, planned).await,
        }
    }
}

async fn plan_on(snapshot: Arc<Snapshot>, planned: &PlannerStatement) -> Result<Outline> {
    let statement = &planned.statement;
    let mut insert = Need::whole(Right::Insert);
    if !snapshot.authority().is_unlimited() {
        snapshot.note_only_written(planned.only_written(snapshot.default_schema()));
        insert = check_insert(&snapshot, statement)?;
    }
    let mut plan = plan_query(&snapshot, statement.clone()).await?;
    if matches!(statement, SqlStatement::Explain(_)) {
        plan = explained_insert(plan);
    }
    let target = insert_target(&snapshot, &plan, insert)?;
    let planned = Planned::new(snapshot, plan, target);
    let is_query = matches!(statement, SqlStatement::Statement(ast) if matches!(**ast, Ast::Query(_)));
    let is_kept = is_query && !planned.snapshot.in_transaction() && is_repeatable(&planned.plan)?;
    Ok(Outline::Plan(Box::new(if is_kept { planned.with_shared_optimization() } else { planned })))
}

/// Refuses an INSERT before its columns are looked up: errors about them tell what the table has. Returns what it needs.
fn check_insert(snapshot: &Snapshot, statement: &SqlStatement) -> Result<Need> {
    let whole = Need::whole(Right::Insert);
    let ast = match statement {
        SqlStatement::Explain(explain) => return check_insert(snapshot, &explain.statement),
        SqlStatement::Statement(ast) => ast.as_ref(),
        _ => return Ok(whole),
    };
    let Ast::Insert(Insert { table: TableObject::TableName(name), columns, .. }) = ast else { return Ok(whole) };
    let name = NameParts::new(name)?.resolve(snapshot.default_schema());
    let given: Vec<String> = columns.iter().filter_map(last_name).collect();
    // The planner refuses columns with names of another form.
    let need = if given.len() == columns.len() { rights::insert_need(snapshot, &name, &given)? } else { whole };
    rights::check_table(snapshot, &name, std::slice::from_ref(&need))?;
    Ok(need)
}

/// Executes COPY TO, and INSERT into an external table.
async fn write_files(execution: &Execution<'_>, planned: Planned) -> Result<u64> {
    let engine = execution.engine();
    let mut bound = execution.prepared.bind(planned, execution.parameters)?;
    copy::check_external_insert(engine, &bound.snapshot, &bound.plan)?;
    bound.plan = copy::checked_copy_to(engine, bound.plan).await?;
    let _slot = acquire_slot(engine, execution.ticket, unknown_demand(engine)).await?;
    let rows = run_count(engine, execution.ticket, &bound).await?;
    execution.ticket.add(rows, 0);
    Ok(rows)
}

/// Executes a plan that ends in a sink and returns the number of rows that the sink reports.
async fn run_count(engine: &Engine, ticket: &Ticket, planned: &Planned) -> Result<u64> {
    let mut stream = execute(engine, ticket, planned, PlanMemory::Full).await?;
    let mut count = 0;
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        let numbers = batch.columns().first().and_then(|c| c.as_any().downcast_ref::<UInt64Array>());
        count += numbers.map_or(0, |n| n.iter().flatten().sum::<u64>());
    }
    Ok(count)
}

/// Plans a statement of DataFusion's grammar; refuses plans that are not supported.
pub(super) async fn plan_query(snapshot: &Arc<Snapshot>, statement: SqlStatement) -> Result<LogicalPlan> {
    let statement = defaults::expand_defaults(snapshot, statement)?;
    let statement = show::as_query(snapshot, statement).await?;
    let plan = snapshot.plan(statement).await?;
    check_plan(&plan)?;
    Ok(plan)
}

/// Checks the plan too, so that no plan that writes passes as a query.
pub(super) fn check_plan(plan: &LogicalPlan) -> Result<()> {
    match plan {
        LogicalPlan::Dml(dml) if !matches!(dml.op, WriteOp::Insert(_)) => {
            Err(Error::unimplemented(format!("{} is not supported", dml.op.name())))
        }
        LogicalPlan::Ddl(
            DdlStatement::CreateCatalog(_)
            | DdlStatement::CreateIndex(_)
            | DdlStatement::CreateFunction(_)
            | DdlStatement::DropFunction(_),
        ) => Err(Error::unimplemented("the statement is not supported")),
        LogicalPlan::Statement(PlanStatement::SetVariable(_) | PlanStatement::ResetVariable(_)) => Ok(()),
        LogicalPlan::Statement(other) => Err(Error::unimplemented(format!("{} is not supported", other.name()))),
        LogicalPlan::Explain(explain) => check_plan(&explain.plan),
        LogicalPlan::Analyze(analyze) => match analyze.input.as_ref() {
            LogicalPlan::Dml(_) | LogicalPlan::Ddl(_) | LogicalPlan::Copy(_) | LogicalPlan::Statement(_) => {
                Err(Error::unimplemented("EXPLAIN ANALYZE runs queries only"))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The name of a table from a reference of the planner.
pub(super) fn table_name(reference: &TableReference, default_schema: &str) -> Result<TableName> {
    if let Some(catalog) = reference.catalog()
        && catalog != CATALOG
    {
        return Err(Error::invalid(format!("catalog '{catalog}' does not exist; the only one is '{CATALOG}'")));
    }
    let schema = reference.schema().unwrap_or(if default_schema.is_empty() { DEFAULT_SCHEMA } else { default_schema });
    Ok(TableName::new(schema, reference.table()))
}

/// Names of the relations that the query of a view mentions.
pub(super) fn relations(state: &SessionState, view: &Object) -> Result<Vec<TableName>> {
    let Action::Plan(PlannerStatement { statement: SqlStatement::Statement(ast), .. }) = parse(&view.sql)?.action
    else {
        return Ok(Vec::new());
    };
    let Ast::CreateView(create) = *ast else { return Ok(Vec::new()) };
    let query = SqlStatement::Statement(Box::new(Ast::Query(create.query)));
    let references = state.resolve_table_references(&query)?;
    references.iter().map(|r| table_name(r, &view.default_schema)).collect()
}
