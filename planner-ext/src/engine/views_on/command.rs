//! Executes statements on hot views, and finds the views that a query could use.
//!
//! A hot view is not a relation: it names rows of one table. Its name belongs to the table's schema, in a namespace of
//! its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{LogicalPlan, TableScan};
use datafusion::sql::parser::Statement as SqlStatement;
use terrace_access::Authority;
use terrace_scan::TierTable;
use terrace_scan::hot_views::ProposalState;
use terrace_sql::NameParts;
use terrace_sql::hot_view::{CreateHotView, HotViewCommand};
use terrace_tier_store::table::TableName;
use terrace_views::{Coverage, Definition, Filter, Proposal, USUAL_REFRESH, Verdict, Views};

use super::rows::{Checked, checked_columns};
use super::run_forecast::{self, RunForecast};
use crate::engine::catalog::Snapshot;
use crate::engine::computed_rows::ComputedRows;
use crate::engine::ddl::{refuse_system, short_name};
use crate::engine::plan::check_plan;
use crate::engine::registry::{StatementState, Ticket};
use crate::engine::session::Session;
use crate::engine::{defaults, rights, show};
use crate::error::{Error, ErrorKind, Result, missing_table};

/// The error of a hot view that does not exist.
fn missing(name: &TableName) -> Error {
    Error::new(ErrorKind::NotFound, format!("hot view '{}' does not exist", short_name(name)))
}

/// Executes a statement on hot views.
pub(in crate::engine) async fn run(session: &Session, ticket: &Ticket, command: &HotViewCommand) -> Result<u64> {
    let engine = session.engine();
    if let HotViewCommand::Refresh { name, if_exists } = command {
        let Some(view) = find_view(session, &*session.snapshot()?, name, *if_exists)? else { return Ok(0) };
        ticket.set_state(StatementState::Running);
        return engine.refresh_view(&view).await.map(|()| 0);
    }
    let _name_lock = engine.name_lock.lock().await;
    let snapshot = session.snapshot()?;
    let views = engine.hot_views.views.current()?;
    let writer = Arc::clone(&engine.hot_views.views);
    match command {
        HotViewCommand::Create(create) => {
            let Some(definition) = definition(session, &snapshot, create, &views)? else { return Ok(0) };
            let stored = move || {
                writer.bind(&Arc::new(definition.clone()))?;
                writer.put(&definition)?;
                if definition.version > 1 {
                    writer.forget_unknown(&definition.table);
                }
                Ok(0)
            };
            let stored = engine.blocking(stored).await;
            engine.hot_views.runner.wake();
            stored
        }
        HotViewCommand::Drop { names, if_exists } => {
            let found = names.iter().filter_map(|name| find_view(session, &snapshot, name, *if_exists).transpose());
            let found: Vec<Arc<Definition>> = found.collect::<Result<_>>()?;
            let remove = move || {
                found.iter().try_for_each(|view| writer.remove(&view.name).map(drop))?;
                let tables: BTreeSet<&TableName> = found.iter().map(|view| &view.table).collect();
                tables.into_iter().for_each(|table| writer.forget_unknown(table));
                Ok(0)
            };
            engine.blocking(remove).await
        }
        HotViewCommand::Set { name, if_exists, options } => {
            let Some(known) = find_view(session, &snapshot, name, *if_exists)? else { return Ok(0) };
            let mut next = known.as_ref().clone();
            next.budget_bytes = options.budget.unwrap_or(known.budget_bytes);
            next.refresh_us = options.refresh.map_or(known.refresh_us, |refresh| refresh.as_micros() as u64);
            engine.hot_views.runner.clear_schedule(&next.name);
            let set = engine.blocking(move || writer.put(&next).map(|()| 0)).await;
            engine.hot_views.runner.wake();
            set
        }
        HotViewCommand::Reject { names } => {
            let found = names.iter().map(|name| find_proposal(session, &snapshot, name));
            let found = found.collect::<Result<Vec<TableName>>>()?;
            let store = Arc::clone(&engine.store);
            let reject = move || {
                found.iter().for_each(|view| writer.miner().reject(view));
                writer.miner().store_proposals(&store).map(|()| 0)
            };
            engine.blocking(reject).await
        }
        HotViewCommand::Refresh { .. } => Ok(0),
    }
}

/// Finds an open proposal by the name of its view, of a table whose placement may be steered.
fn find_proposal(session: &Session, snapshot: &Snapshot, name: &NameParts) -> Result<TableName> {
    let name = name.resolve(snapshot.default_schema());
    let proposals = session.engine().hot_views.views.miner().proposals();
    let is_meant = |proposal: &Proposal| proposal.view == name && proposal.state == ProposalState::Proposed;
    match proposals.into_iter().find(is_meant) {
        Some(found) if rights::may_steer(snapshot.authority(), &found.table) => Ok(name),
        Some(found) if snapshot.authority().sees_figures(&found.table) => {
            Err(rights::denied(format!("hot view proposal {}", short_name(&name))))
        }
        _ => {
            let name = short_name(&name);
            let message = format!("no open proposal is for a hot view '{name}'; SHOW HOT VIEW PROPOSALS lists them");
            Err(Error::new(ErrorKind::NotFound, message))
        }
    }
}

/// Finds a view by its name, of a table whose placement may be steered; `None` when it does not exist and the statement says IF
/// EXISTS.
fn find_view(
    session: &Session,
    snapshot: &Snapshot,
    name: &NameParts,
    if_exists: bool,
) -> Result<Option<Arc<Definition>>> {
    let name = name.resolve(snapshot.default_schema());
    match session.engine().hot_views.views.current()?.get(&name) {
        Some(status) if rights::may_steer(snapshot.authority(), &status.definition.table) => {
            Ok(Some(Arc::clone(&status.definition)))
        }
        Some(status) if snapshot.authority().sees_figures(&status.definition.table) => {
            Err(rights::denied(format!("hot view {}", short_name(&name))))
        }
        _ if if_exists => Ok(None),
        _ => Err(missing(&name)),
    }
}

/// Forecasts the run that a CREATE or a REFRESH would start, as rows that compute the forecast.
pub(in crate::engine) fn forecast(
    session: &Session,
    snapshot: &Snapshot,
    command: &HotViewCommand,
) -> Result<ComputedRows> {
    let engine = session.engine();
    let definition = match command {
        HotViewCommand::Create(create) => definition(session, snapshot, create, &*engine.hot_views.views.current()?)?,
        HotViewCommand::Refresh { name, if_exists } => {
            find_view(session, snapshot, name, *if_exists)?.map(|view| engine.next_version(&view))
        }
        HotViewCommand::Drop { .. } => return Err(Error::invalid("DROP HOT VIEW runs nothing")),
        HotViewCommand::Set { .. } => return Err(Error::invalid("ALTER HOT VIEW .. SET runs nothing")),
        HotViewCommand::Reject { .. } => return Err(Error::invalid("REJECT HOT VIEW PROPOSAL runs nothing")),
    };
    let definition = definition.map(Arc::new);
    definition.as_ref().map(|definition| engine.hot_views.views.bind(definition)).transpose()?;
    let views = Arc::clone(&engine.hot_views.views);
    let runner = Arc::clone(&engine.hot_views.runner);
    let store = Arc::clone(&engine.store);
    let limit = matches!(command, HotViewCommand::Create(_)).then_some(engine.options.hot_view_bytes_per_s);
    let answer = move || {
        let Some(definition) = definition else { return Ok(Vec::new()) };
        let forecast = views.job(&definition)?.forecast(&|_| !runner.is_stopped())?;
        let us = run_forecast::estimate_us(&forecast, &store, limit);
        Ok(vec![RunForecast { view: definition, forecast, us }])
    };
    Ok(ComputedRows::new(run_forecast::columns(), answer))
}

/// Builds the definition that a CREATE stores; `None` when the view exists and the statement says IF NOT EXISTS.
fn definition(
    session: &Session,
    snapshot: &Snapshot,
    create: &CreateHotView,
    views: &Views,
) -> Result<Option<Definition>> {
    let engine = session.engine();
    let name = create.name.resolve(snapshot.default_schema());
    let table = create.table.resolve(snapshot.default_schema());
    refuse_system(&table)?;
    rights::check_steering(snapshot, &table)?;
    let objects = snapshot.objects();
    if objects.views.contains_key(&table) || objects.external.contains_key(&table) {
        return Err(Error::invalid(format!(
            "'{}' is a view or an external table; hot views are for tables",
            short_name(&table)
        )));
    }
    if engine.store.table(&table).is_err() {
        return Err(missing_table(&table.to_string()));
    }
    if name.schema != table.schema {
        let schema = &table.schema;
        return Err(Error::invalid(format!(
            "a hot view lies in the schema of its table; call it {schema}.{}",
            create.name.name
        )));
    }
    let decimal_literals = snapshot.template().config_options().sql_parser.parse_float_as_decimal;
    let mut version = 1;
    let mut published = None;
    if let Some(found) = views.get(&name) {
        let found = &found.definition;
        match (create.if_not_exists, create.or_replace) {
            (true, _) => return Ok(None),
            (_, true) if rights::may_steer(snapshot.authority(), &found.table) => {
                version = found.version + 1;
                // Marks of chunks stay valid as long as the condition is the same.
                let same = found.table == table
                    && found.predicate == create.predicate
                    && found.decimal_literals == decimal_literals;
                published = found.published.clone().filter(|_| same);
            }
            _ => {
                let message = format!(
                    "hot view '{}' already exists; use IF NOT EXISTS or OR REPLACE, or drop it first",
                    short_name(&name)
                );
                return Err(Error::new(ErrorKind::AlreadyExists, message));
            }
        }
    }
    let now_us = engine.clock.unix_us();
    Ok(Some(Definition {
        name,
        table,
        columns: create.columns.clone(),
        select: create.select.clone(),
        predicate: create.predicate.clone(),
        decimal_literals,
        version,
        bound_at_us: now_us,
        made_at_us: now_us,
        mark: None,
        published,
        refresh_us: create.options.refresh.unwrap_or(USUAL_REFRESH).as_micros() as u64,
        budget_bytes: create.options.budget.flatten(),
        mined: None,
    }))
}

/// Checks a query against every hot view of the tables that it scans, as rows with one for each scan and view.
pub(in crate::engine) async fn explain_query(
    session: &Session,
    snapshot: &Arc<Snapshot>,
    statement: SqlStatement,
) -> Result<ComputedRows> {
    let statement = defaults::expand_defaults(snapshot, statement)?;
    let statement = show::as_query(snapshot, statement).await?;
    let plan = snapshot.plan(statement).await?;
    check_plan(&plan)?;
    let plan = snapshot.state().optimize(&plan)?;
    let hot_views = &session.engine().hot_views.views;
    let views = hot_views.current()?;
    let same_zone = hot_views.means_the_same(snapshot.template().config_options());
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            found.extend(check_scan(&views, scan, same_zone, snapshot.authority())?);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(ComputedRows::new(checked_columns(), || Ok(found)))
}

/// Checks a scan against every hot view of its table: whether its filter implies the view's condition, and how much of
/// the table the view's mark covers.
fn check_scan(
    views: &Views,
    scan: &TableScan,
    same_zone: bool,
    authority: &Authority,
) -> datafusion::common::Result<Vec<Checked>> {
    let provider = source_as_provider(&scan.source)?;
    let Some(table) = provider.downcast_ref::<TierTable>() else { return Ok(Vec::new()) };
    if !authority.sees_figures(table.table().name()) {
        return Ok(Vec::new());
    }
    let filter = Filter::for_scan(&scan.filters, &table.table().definition().schema)?;
    let filtered = scan.filters.iter().flat_map(|filter| filter.column_refs());
    let read = scan.projected_schema.fields().iter().map(|field| field.name().as_str());
    let mut needed: Vec<&str> = read.chain(filtered.map(|column| column.name.as_str())).collect();
    needed.sort_unstable();
    needed.dedup();
    let checked = views.for_table(table.table().name()).iter().map(|newest| {
        // Scans use the published version, whose marks the chunks carry.
        let published = views.published(&newest.definition().name, table.table());
        let view = published.map_or(newest, |published| published.view());
        let coverage = published.map(|known| Coverage::new(table.version(), view.definition(), Some(known.mark())));
        // In another time zone, functions of the condition may give other values.
        let lacks = match filter.check(view) {
            _ if !same_zone => Some("the time zone of the session is not the server's".to_owned()),
            Verdict::Implied => None,
            Verdict::Lacks(conjunct) => Some(format!("not proven: {conjunct}")),
        };
        let outside = view.missing_columns(needed.iter().copied()).join(", ");
        Checked { definition: Arc::clone(view.definition()), lacks, outside, coverage }
    });
    Ok(checked.collect())
}
