//! Names of statements and views, resolved over a snapshot; and the catalog of the planner, which asks for them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::datasource::{TableType, ViewTable};
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use futures::future::BoxFuture;
use terrace_access::{Authority, PolicyClause, Right, Securable};
use terrace_sql::command::{Action, PlannerStatement};
use terrace_tier_store::table::TableName;

use super::{Object, QueriedTarget, ReadPart, Snapshot};
use crate::engine::analysis::analysed;
use crate::engine::column_rights::{WriteOnly, readable_part};
use crate::engine::policies::{RowCondition, VisibleRows};
use crate::engine::{CATALOG, INFORMATION_SCHEMA, SYSTEM_SCHEMA, information, rights};
use crate::error::{Error, ErrorKind, Result};
use crate::system::SystemTable;

/// Resolves names over a snapshot, also within views: a name that is being expanded is not looked up again.
#[derive(Debug, Clone)]
pub(super) struct NameResolver {
    snapshot: Arc<Snapshot>,
    /// The rights with which relations are read: those of the statement, and within a view those of its owner, unless it says otherwise.
    authority: Authority,
    /// The view whose owner has these rights; `None`: whoever sends the statement.
    owned_view: Option<TableName>,
    /// Views and external tables being planned, outermost first.
    expanding: Vec<TableName>,
    /// The table that the planned statement changes, which is found in a hidden schema and has row positions.
    target: Option<QueriedTarget>,
    /// Whether what is found is read.
    reads: bool,
}

impl NameResolver {
    pub(super) fn new(snapshot: &Arc<Snapshot>) -> Self {
        let authority = snapshot.authority.clone();
        let snapshot = Arc::clone(snapshot);
        Self { snapshot, authority, owned_view: None, expanding: Vec::new(), target: None, reads: true }
    }

    /// Resolves all names, whoever may read them, for what shows no rows.
    pub(super) fn unlimited(snapshot: &Arc<Snapshot>) -> Self {
        Self { authority: Authority::EVERYTHING, reads: false, ..Self::new(snapshot) }
    }

    /// Resolves names for a change of `target`, under whose hidden name the statement reads it.
    pub(super) fn for_change(snapshot: &Arc<Snapshot>, target: &QueriedTarget) -> Self {
        Self { target: Some(target.clone()), ..Self::new(snapshot) }
    }

    pub(super) fn state(self) -> SessionState {
        let mut state = self.snapshot.template.clone();
        state.register_catalog_list(Arc::new(Catalogs(Arc::new(self))));
        state.mark_start_execution();
        state
    }

    pub(super) async fn provider(&self, name: &TableName) -> Result<Option<Arc<dyn TableProvider>>> {
        let snapshot = &self.snapshot;
        if let Some(target) = self.target.as_ref().filter(|target| target.is_called(name)) {
            return self.target_table(target);
        }
        if !rights::may_read(&self.authority, name) {
            if self.expanding.is_empty() && snapshot.is_only_written(name) {
                let found = self.find(name).await?;
                return Ok(found.map(|table| Arc::new(WriteOnly::new(table, name.clone())) as Arc<dyn TableProvider>));
            }
            if self.authority.may_on_some_column(Right::Select, name)
                && let Some(found) = self.find(name).await?
            {
                let rows = self.row_conditions(name);
                let found = self.visible_rows(name, found, rows.as_slice())?;
                return self.with_readable_columns(name, found, rows).map(Some);
            }
            return match rights::refused(snapshot, &self.authority, name) {
                missing if missing.kind() == ErrorKind::NotFound => Ok(None),
                denied => Err(denied),
            };
        }
        let Some(found) = self.find(name).await? else { return Ok(None) };
        let rows = self.row_conditions(name);
        let found = self.visible_rows(name, found, rows.as_slice())?;
        if self.reads {
            snapshot.note_read(name, self.owned_view.as_ref(), ReadPart { columns: None, rows });
        }
        Ok(Some(found))
    }

    /// The target of a change with row positions.
    fn target_table(&self, target: &QueriedTarget) -> Result<Option<Arc<dyn TableProvider>>> {
        let table = self.snapshot.pinned(&target.name)?.map(|table| table.with_positions(&target.hidden.row));
        let Some(table) = table.map(|table| Arc::new(table) as Arc<dyn TableProvider>) else { return Ok(None) };
        let table = self.visible_rows(&target.name, table, &target.conditions)?;
        let Some(readable) = &target.readable else { return Ok(Some(table)) };
        let mut readable = readable.clone();
        readable.insert(target.hidden.row.clone());
        let table = readable_part(table, &target.name, &readable, |name| Some(target.hidden.kept(name)))?;
        self.snapshot.hides_columns.store(true, Ordering::Relaxed);
        Ok(Some(Arc::new(table)))
    }

    /// The conditions of the policies on the rows that are read of a relation.
    fn row_conditions(&self, name: &TableName) -> Option<BTreeSet<String>> {
        self.authority.row_conditions(name, Right::Select, PolicyClause::Using)
    }

    /// The rows of a table that fulfil one condition of each set.
    fn visible_rows(
        &self,
        name: &TableName,
        table: Arc<dyn TableProvider>,
        conditions: &[BTreeSet<String>],
    ) -> Result<Arc<dyn TableProvider>> {
        if conditions.is_empty() {
            return Ok(table);
        }
        let state = self.snapshot.condition_state()?;
        let condition = RowCondition::new(&state, name, &table.schema(), conditions)?;
        self.snapshot.hides_rows.store(true, Ordering::Relaxed);
        Ok(Arc::new(VisibleRows::new(table, condition)))
    }

    /// A relation of which not all columns may be read.
    fn with_readable_columns(
        &self,
        name: &TableName,
        found: Arc<dyn TableProvider>,
        rows: Option<BTreeSet<String>>,
    ) -> Result<Arc<dyn TableProvider>> {
        let schema = found.schema();
        let names = schema.fields().iter().map(|field| field.name());
        let readable = rights::readable_columns(&self.authority, name, names);
        if readable.is_empty() {
            return Err(rights::refused(&self.snapshot, &self.authority, name));
        }
        let table = readable_part(found, name, &readable, |_| None)?;
        self.snapshot.hides_columns.store(true, Ordering::Relaxed);
        if self.reads {
            self.snapshot.note_read(name, self.owned_view.as_ref(), ReadPart { columns: Some(readable), rows });
        }
        Ok(Arc::new(table))
    }

    /// The relation of that name, whoever may read it.
    async fn find(&self, name: &TableName) -> Result<Option<Arc<dyn TableProvider>>> {
        let snapshot = &self.snapshot;
        if name.schema == SYSTEM_SCHEMA {
            let table = SystemTable::open(&name.name, snapshot.live.clone());
            return Ok(table.map(|t| Arc::new(t) as Arc<dyn TableProvider>));
        }
        if let Some(hypothetical) = &snapshot.hypothetical {
            if *name == hypothetical.after {
                return Ok(Some(Arc::clone(&hypothetical.table)));
            }
            if *name == hypothetical.before {
                return Ok(None);
            }
        }
        if let Some(table) = snapshot.pinned(name)? {
            return Ok(Some(table));
        }
        if self.expanding.contains(name) {
            // The planner also looks up the name that a definition defines.
            return Ok(None);
        }
        if let Some(view) = snapshot.objects.views.get(name) {
            return self
                .view(view)
                .await
                .map(Some)
                .map_err(|e| Error::new(e.kind(), format!("view '{}' cannot be planned: {}", view.name, e.message())));
        }
        match snapshot.objects.external.get(name) {
            Some(external) => self.external(external).await.map(Some).map_err(|e| {
                Error::new(e.kind(), format!("external table '{}' cannot be read: {}", external.name, e.message()))
            }),
            None => Ok(None),
        }
    }

    async fn view(&self, view: &Object) -> Result<Arc<dyn TableProvider>> {
        match self.plan_object(view).await? {
            LogicalPlan::Ddl(DdlStatement::CreateView(create)) => {
                self.snapshot.check_columns(&create.input)?;
                let plan = analysed(&self.snapshot.template, create.input.as_ref().clone())?;
                Ok(Arc::new(ViewTable::new(plan, Some(view.sql.clone()))))
            }
            _ => Err(Error::new(ErrorKind::DataLoss, "its definition in the catalog is not a view")),
        }
    }

    async fn external(&self, external: &Object) -> Result<Arc<dyn TableProvider>> {
        self.snapshot.reads_files.store(true, Ordering::Relaxed);
        match self.plan_object(external).await? {
            LogicalPlan::Ddl(DdlStatement::CreateExternalTable(create)) => {
                crate::engine::ddl::open_external(&self.snapshot.state(), &create).await
            }
            _ => Err(Error::new(ErrorKind::DataLoss, "its definition in the catalog is not an external table")),
        }
    }

    /// Plans the text of an object with the default schema it was written under.
    async fn plan_object(&self, object: &Object) -> Result<LogicalPlan> {
        let mut inner = self.clone();
        inner.expanding.push(object.name.clone());
        inner.target = None;
        let Action::Plan(PlannerStatement { statement, extras }) = terrace_sql::parse(&object.sql)?.action else {
            return Err(Error::new(ErrorKind::DataLoss, "its definition in the catalog cannot be planned"));
        };
        // With security_invoker it has the rights of whoever reads it: the sender, or the owner of a view around it.
        if !extras.security_invoker {
            inner.authority = self.snapshot.live.users.owner_authority(&Securable::Table(object.name.clone()));
            inner.owned_view = Some(object.name.clone());
        }
        let mut state = inner.state();
        let options = state.config_mut().options_mut();
        options.catalog.default_schema = object.default_schema.clone();
        options.sql_parser.parse_float_as_decimal = object.decimal_literals;
        Ok(state.statement_to_plan(statement).await?)
    }
}

/// The list of catalogs, which holds the one catalog.
#[derive(Debug)]
struct Catalogs(Arc<NameResolver>);

impl CatalogProviderList for Catalogs {
    fn register_catalog(&self, _: String, _: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![CATALOG.to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        (name == CATALOG).then(|| Arc::new(Catalog(Arc::clone(&self.0))) as _)
    }
}

/// Catalog `terrace`.
#[derive(Debug)]
struct Catalog(Arc<NameResolver>);

impl CatalogProvider for Catalog {
    fn schema_names(&self) -> Vec<String> {
        self.0.snapshot.schema_names()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let target = self.0.target.as_ref().is_some_and(|target| name == target.hidden.target);
        let known = target
            || [SYSTEM_SCHEMA, INFORMATION_SCHEMA].contains(&name)
            || self.0.snapshot.objects.schemas.contains(name);
        let tables: Arc<dyn Tables> = Arc::clone(&self.0) as _;
        known.then(|| Arc::new(SchemaView { tables, name: name.to_owned() }) as _)
    }
}

/// The answers of [`NameResolver`] to a [`SchemaView`]. A trait object stands between the two, because the compiler proves
/// anew for each `async` method of [`SchemaProvider`] that all types in `Self` may be shared between threads, which takes
/// seconds for those of a snapshot (docs/design/build-times.md).
trait Tables: fmt::Debug + Send + Sync {
    /// Names of the tables and views of a schema.
    fn names_in(&self, schema: &str) -> Vec<String>;
    fn is_view(&self, name: &TableName) -> bool;
    fn table(&self, name: TableName) -> BoxFuture<'_, Result<Option<Arc<dyn TableProvider>>>>;
}

impl Tables for NameResolver {
    fn names_in(&self, schema: &str) -> Vec<String> {
        self.snapshot.names_in(schema)
    }

    fn is_view(&self, name: &TableName) -> bool {
        self.snapshot.objects.views.contains_key(name)
    }

    fn table(&self, name: TableName) -> BoxFuture<'_, Result<Option<Arc<dyn TableProvider>>>> {
        Box::pin(async move {
            match name.schema.as_str() {
                INFORMATION_SCHEMA => information::table(&self.snapshot, &name.name).await,
                _ => self.provider(&name).await,
            }
        })
    }
}

/// One schema.
#[derive(Debug)]
struct SchemaView {
    tables: Arc<dyn Tables>,
    name: String,
}

#[async_trait]
impl SchemaProvider for SchemaView {
    fn table_names(&self) -> Vec<String> {
        self.tables.names_in(&self.name)
    }

    async fn table(&self, name: &str) -> PlanResult<Option<Arc<dyn TableProvider>>, DataFusionError> {
        Ok(self.tables.table(TableName::new(self.name.clone(), name)).await?)
    }

    async fn table_type(&self, name: &str) -> PlanResult<Option<TableType>> {
        if self.tables.is_view(&TableName::new(self.name.clone(), name)) {
            return Ok(Some(TableType::View));
        }
        Ok(self.table_exist(name).then_some(TableType::Base))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.table_names().iter().any(|n| n == name)
    }
}
