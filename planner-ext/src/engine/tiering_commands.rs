//! Explanations of placement, epochs and one-time orders, which return rows, and commands to the tiering loop.
//!
//! None of them has a plan, except the query of EXPLAIN PLACEMENT: statements with rows compute them ([`ComputedRows`]).

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement as SqlStatement;
use terrace_access::Principal;
use terrace_scan::scan::{FetchExec, TierScanExec};
use terrace_sql::NameParts;
use terrace_sql::rule::ScopeOrder;
use terrace_sql::tiering_commands::{PlacementStatement, TieringCommand, explained_query};
use terrace_tier_store::Store;
use terrace_tier_store::placement::{
    EpochReport, EpochRequest, Explanation, Order, OrderReport, QueryCost, Scope, TieringMode,
};
use terrace_tier_store::table::{Alteration, Chunk, TableName};

use super::catalog::Snapshot;
use super::computed_rows::ComputedRows;
use super::ddl::refuse_system;
use super::execute::{Execute, Execution, Outline, Planning};
use super::plan::plan_query;
use super::{Engine, rights, views};
use crate::error::{Result, missing_table};
use crate::system::explanations::{self, QueryCostRow};
use crate::system::moves;

impl Execute for TieringCommand {
    /// Applies the command to the tiering loop, on a blocking thread.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = Arc::clone(execution.engine());
        let command = self.clone();
        let apply_command = move || {
            let store = engine.store();
            match &command {
                Self::CancelEpoch => _ = store.tiering().cancel_epoch()?,
                Self::Freeze => store.tiering().freeze()?,
                Self::Unfreeze => store.tiering().unfreeze()?,
                Self::Mode(mode) => store.tiering().set_mode(*mode)?,
                Self::Tier(command) => engine.run_tier_command(command)?,
            }
            tracing::info!(?command, "tiering loop");
            Ok(0)
        };
        execution.engine().blocking(apply_command).await
    }
}

impl Execute for PlacementStatement {
    /// Resolves the names; computing the rows does the work.
    async fn plan(&self, planning: &Planning<'_>) -> Result<Outline> {
        let session = planning.session;
        let snapshot = planning.snapshot()?;
        let engine = session.engine();
        let store = Arc::clone(engine.store());
        let rows = match self {
            Self::Explain { table, scope } => {
                let (name, scope) = engine.named_scope(&snapshot, table, scope, rights::check_figures)?;
                let rows = move || Ok(store.tiering().explain(&name, &scope)?);
                ComputedRows::new(explanations::segment_columns(), rows)
            }
            Self::ExplainQuery(statement) => {
                let reads = segments_read_by(&snapshot, statement.clone()).await?;
                let rows = move || Ok(QueryCostRow::all(store.tiering().query_cost(&reads)?));
                ComputedRows::new(explanations::query_cost_columns(), rows)
            }
            Self::ExplainViews(statement) => views::explain_query(session, &snapshot, statement.clone()).await?,
            Self::ForecastView(command) => views::forecast(session, &snapshot, command)?,
            Self::Epoch { dry_run } => {
                let dry_run = *dry_run;
                ComputedRows::new(moves::columns(), move || Ok(run_epoch(&store, dry_run, "sql")?.moves))
            }
            Self::BringBack { table, scope, tier } => {
                let (table, scope) = engine.named_scope(&snapshot, table, scope, rights::check_steering)?;
                order_rows(store, Order::BringBack { table, scope, tier: tier.clone() })
            }
            Self::WarmUp { table, scope } => {
                let (table, scope) = engine.named_scope(&snapshot, table, scope, rights::check_steering)?;
                order_rows(store, Order::WarmUp { table, scope })
            }
            Self::RollBack(epoch) => order_rows(store, Order::RollBack { epoch: *epoch }),
        };
        Ok(Outline::Rows(rows))
    }
}

/// Builds rows whose computation carries out an order and reports its outcome.
fn order_rows(store: Arc<Store>, order: Order) -> ComputedRows {
    ComputedRows::new(explanations::outcome_columns(), move || Ok(store.tiering().order(&order)?.outcome))
}

fn run_epoch(store: &Store, dry_run: bool, reason: &str) -> Result<EpochReport> {
    let request = if dry_run { EpochRequest::dry_run(reason) } else { EpochRequest::now(reason) };
    Ok(store.tiering().run_epoch(request)?)
}

/// Plans a query and returns the segments that it reads unless run-time filters exclude them, of the tables whose figures are shown to
/// who sends it.
async fn segments_read_by(snapshot: &Arc<Snapshot>, statement: SqlStatement) -> Result<Vec<(Arc<Chunk>, usize)>> {
    let plan = plan_query(snapshot, statement).await?;
    let plan: Arc<dyn ExecutionPlan> = snapshot.state().create_physical_plan(&plan).await?;
    let mut found = Vec::new();
    plan.apply(|node| {
        if let Some(scan) = node.downcast_ref::<TierScanExec>()
            && scan.config().source.shows_figures()
        {
            found.extend(scan.segments());
        }
        if let Some(fetch) = node.downcast_ref::<FetchExec>()
            && fetch.source().shows_figures()
        {
            found.extend(fetch.segments()?);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

impl Engine {
    /// Resolves a scope of the table that a statement names, after `check` of its rights.
    fn named_scope(
        &self,
        snapshot: &Snapshot,
        table: &NameParts,
        scope: &ScopeOrder,
        check: fn(&Snapshot, &TableName) -> Result<()>,
    ) -> Result<(String, Scope)> {
        let name = table.resolve(snapshot.default_schema());
        refuse_system(&name)?;
        check(snapshot, &name)?;
        Ok((name.to_string(), self.placement_scope(&name, scope)?))
    }

    /// Resolves the columns and the condition of a scope of a table.
    fn placement_scope(&self, name: &TableName, scope: &ScopeOrder) -> Result<Scope> {
        let (columns, rows) = self.resolve_scope(name, scope)?;
        Ok(Scope { columns, rows })
    }

    /// Explains why segments of a table are on their tiers; see [`terrace_tier_store::placement::Tiering::explain`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] for table and column; [`crate::ErrorKind::InvalidArgument`] for an invalid
    /// scope.
    pub async fn explain_placement(&self, name: &TableName, scope: &ScopeOrder) -> Result<Vec<Explanation>> {
        let scope = self.placement_scope(name, scope)?;
        let store = Arc::clone(&self.store);
        let name = name.to_string();
        self.blocking(move || Ok(store.tiering().explain(&name, &scope)?)).await
    }

    /// Reports the segments that a query of `principal` would read, and their tiers; not those of tables whose figures it may not see.
    ///
    /// # Errors
    /// The errors of planning the query.
    pub async fn explain_query_placement(self: &Arc<Self>, sql: &str, principal: Principal) -> Result<QueryCost> {
        let statement = explained_query(sql)?;
        let session = self.open_session_for(principal);
        let snapshot = session.snapshot();
        self.close_session(session.id());
        let snapshot = snapshot?;
        let store = Arc::clone(&self.store);
        let reads = self.on_cpu(async move { segments_read_by(&snapshot, statement).await }).await?;
        self.blocking(move || Ok(store.tiering().query_cost(&reads)?)).await
    }

    /// Brings a scope of a table to a tier, now and once.
    ///
    /// # Errors
    /// Those of [`Engine::explain_placement`]; [`crate::ErrorKind::InvalidArgument`] with the figures when it does not fit.
    pub async fn bring_back(&self, name: &TableName, scope: &ScopeOrder, tier: String) -> Result<OrderReport> {
        let scope = self.placement_scope(name, scope)?;
        self.order_placement(Order::BringBack { table: name.to_string(), scope, tier }).await
    }

    /// Brings a scope of a table into memory as far as it pays.
    ///
    /// # Errors
    /// Those of [`Engine::explain_placement`].
    pub async fn warm_up(&self, name: &TableName, scope: &ScopeOrder) -> Result<OrderReport> {
        let scope = self.placement_scope(name, scope)?;
        self.order_placement(Order::WarmUp { table: name.to_string(), scope }).await
    }

    /// Carries out an order on placement.
    ///
    /// # Errors
    /// See [`terrace_tier_store::placement::Tiering::order`].
    pub async fn order_placement(&self, order: Order) -> Result<OrderReport> {
        let store = Arc::clone(&self.store);
        self.blocking(move || Ok(store.tiering().order(&order)?)).await
    }

    /// Sets the tiering mode of a table.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] for the table.
    pub async fn set_table_tiering(&self, name: &TableName, mode: TieringMode) -> Result<()> {
        let _name_lock = self.name_lock.lock().await;
        let table = self.store.table(name).map_err(|_| missing_table(&name.to_string()))?;
        let mut options = table.options().clone();
        options.tiering = mode;
        let store = Arc::clone(&self.store);
        let name = name.clone();
        self.blocking(move || Ok(store.alter_table(&name, &[Alteration::SetOptions(options)]).map(drop)?)).await
    }
}
