//! Snapshots: the catalog as one statement sees it.
//!
//! A [`Snapshot`] pins the version of each table at its first mention, so that a statement that names a table twice
//! reads the same rows twice. Views are planned from their text and external tables opened from their definition when
//! they are mentioned; neither is cached, so a snapshot never refers to itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::{TableType, ViewTable};
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement as SqlStatement;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use terrace_scan::TierTable;
use terrace_sql::NameParts;
use terrace_sql::command::{Action, PlannerStatement};
use terrace_sql::rewrite::HiddenNames;
use terrace_tier_store::Store;
use terrace_tier_store::store::Snapshot as Versions;
use terrace_tier_store::table::{Table, TableDefinition, TableName};

use super::analysis::analysed;
use super::recursion::RecursiveTerms;
use super::{
    CATALOG, ColumnNotes, DEFAULT_SCHEMA, Engine, Entry, EntryKind, INFORMATION_SCHEMA, SYSTEM_SCHEMA, defaults,
    duplicate_columns, functions, information,
};
use crate::error::{Error, ErrorKind, Result, missing_table};
use crate::system::{Live, SystemTable};

/// Kinds of objects in the store's catalog.
const VIEWS: &str = "view";
const EXTERNAL: &str = "external";
const SCHEMAS: &str = "schema";

/// A view or an external table: the statement that made it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Object {
    pub(super) name: TableName,
    /// CREATE VIEW .. or CREATE EXTERNAL TABLE ..
    pub(super) sql: String,
    /// Schema of the names in it that have none.
    pub(super) default_schema: String,
    /// Whether numbers with a point in it are decimals. In texts that were stored without this field they are floats.
    #[serde(default)]
    decimal_literals: bool,
    /// Its comment.
    #[serde(default)]
    pub(super) comment: Option<String>,
    /// Comments of its columns, by name.
    #[serde(default)]
    pub(super) column_comments: BTreeMap<String, String>,
}

impl Object {
    /// Makes an object without comments.
    pub(super) fn new(name: TableName, sql: String, default_schema: &str) -> Self {
        let default_schema = default_schema.to_owned();
        Self { name, sql, default_schema, decimal_literals: false, comment: None, column_comments: BTreeMap::new() }
    }
}

/// All views, external tables and schemas at one version of the store's schema.
#[derive(Debug, Default)]
pub(super) struct Objects {
    version: u64,
    pub(super) views: BTreeMap<TableName, Object>,
    pub(super) external: BTreeMap<TableName, Object>,
    pub(super) schemas: BTreeSet<String>,
}

impl Objects {
    fn load(store: &Store, version: u64) -> Result<Self> {
        let read = |kind| -> Result<BTreeMap<TableName, Object>> {
            let mut found = BTreeMap::new();
            for (name, json) in store.objects(kind)? {
                let object: Object = serde_json::from_str(&json).map_err(|e| {
                    Error::new(ErrorKind::DataLoss, format!("{kind} '{name}' in the catalog is damaged: {e}"))
                })?;
                found.insert(object.name.clone(), object);
            }
            Ok(found)
        };
        let mut schemas: BTreeSet<String> = store.objects(SCHEMAS)?.into_iter().map(|(name, _)| name).collect();
        schemas.insert(DEFAULT_SCHEMA.to_owned());
        schemas.extend(store.tables().iter().map(|t| t.name().schema.clone()));
        Ok(Self { version, views: read(VIEWS)?, external: read(EXTERNAL)?, schemas })
    }
}

/// Writes of objects; the caller holds the engine's lock on names.
impl Engine {
    pub(super) fn put_view(&self, object: &Object) -> Result<()> {
        self.put(VIEWS, object)
    }

    pub(super) fn put_external(&self, object: &Object) -> Result<()> {
        self.put(EXTERNAL, object)
    }

    fn put(&self, kind: &str, object: &Object) -> Result<()> {
        let json = serde_json::to_string(object).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        Ok(self.store.put_object(kind, &object.name.to_string(), &json)?)
    }

    pub(super) fn remove_view(&self, name: &TableName) -> Result<bool> {
        Ok(self.store.remove_object(VIEWS, &name.to_string())?)
    }

    pub(super) fn remove_external(&self, name: &TableName) -> Result<bool> {
        Ok(self.store.remove_object(EXTERNAL, &name.to_string())?)
    }

    pub(super) fn put_schema(&self, name: &str) -> Result<()> {
        Ok(self.store.put_object(SCHEMAS, name, "{}")?)
    }

    pub(super) fn remove_schema(&self, name: &str) -> Result<bool> {
        Ok(self.store.remove_object(SCHEMAS, name)?)
    }

    /// Returns views, external tables and schemas; reads them again when the catalog changed.
    pub(super) fn objects(&self) -> Result<Arc<Objects>> {
        let version = self.store.schema_version();
        let mut cached = self.objects.lock();
        if let Some(objects) = cached.as_ref().filter(|o| o.version == version) {
            return Ok(Arc::clone(objects));
        }
        let fresh = Arc::new(Objects::load(&self.store, version)?);
        *cached = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Makes a snapshot for one statement; in a transaction, of the table versions that the transaction sees. `settings` is
    /// the session's number of changes of options.
    pub(super) fn snapshot(
        &self,
        config: SessionConfig,
        settings: u64,
        transaction: Option<Versions>,
    ) -> Result<Arc<Snapshot>> {
        let mut template = self.base_state.clone();
        *template.config_mut() = config;
        functions::configure(&mut template)?;
        template.mark_start_execution();
        let registry = Arc::clone(&self.registry);
        let live = Live {
            store: Arc::clone(&self.store),
            statements: Arc::new(move || registry.statements()),
            hot_views: self.hot_views.clone(),
        };
        let schema_version = self.store.schema_version();
        let in_transaction = transaction.is_some();
        let versions = transaction.unwrap_or_else(|| self.store.snapshot());
        Ok(Arc::new(Snapshot {
            in_transaction,
            versions: Mutex::new(Some(versions)),
            objects: self.objects()?,
            store: Arc::clone(&self.store),
            live,
            template,
            schema_version,
            settings,
            pins: Mutex::default(),
            reads_files: AtomicBool::new(false),
            hypothetical: None,
        }))
    }
}

/// The catalog as one statement sees it.
pub(super) struct Snapshot {
    store: Arc<Store>,
    objects: Arc<Objects>,
    live: Live,
    /// Functions, rules and options; its catalog list is not used.
    template: SessionState,
    schema_version: u64,
    settings: u64,
    /// Whether it belongs to a transaction, whose uncommitted changes it sees.
    in_transaction: bool,
    /// Versions of all tables, from which tables are pinned until the statement is planned. Taken at once, so that the
    /// statement sees every commit completely or not at all.
    versions: Mutex<Option<Versions>>,
    /// Tables mentioned so far, each with the version this statement reads.
    pins: Mutex<HashMap<TableName, Pin>>,
    /// Whether an external table was opened: its files may change at any time.
    reads_files: AtomicBool,
    hypothetical: Option<HypotheticalTable>,
}

/// A table as it would be after a change, to test which views would still plan.
struct HypotheticalTable {
    before: TableName,
    after: TableName,
    table: Arc<dyn TableProvider>,
}

struct Pin {
    table: Arc<Table>,
    version: u64,
    provider: Arc<TierTable>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("schema_version", &self.schema_version).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// True while a plan made on this snapshot may be used again.
    pub(super) fn is_current(&self, settings: u64) -> bool {
        !self.in_transaction
            && self.settings == settings
            && self.schema_version == self.store.schema_version()
            && !self.reads_files.load(Ordering::Relaxed)
            && self.pins.lock().values().all(|pin| pin.table.version().number == pin.version)
    }

    /// Whether it belongs to a transaction, whose uncommitted changes it sees.
    pub(super) fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    pub(super) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Schema of names without one.
    pub(super) fn default_schema(&self) -> &str {
        &self.template.config_options().catalog.default_schema
    }

    /// Makes an object whose text keeps the meaning that it has in this session.
    pub(super) fn object(&self, name: TableName, sql: String) -> Object {
        let decimal_literals = self.template.config_options().sql_parser.parse_float_as_decimal;
        Object { decimal_literals, ..Object::new(name, sql, self.default_schema()) }
    }

    /// The planner's session state over this snapshot.
    pub(super) fn state(self: &Arc<Self>) -> SessionState {
        NameResolver::new(self).state()
    }

    /// Plans and analyses a statement.
    pub(super) async fn plan(self: &Arc<Self>, statement: SqlStatement) -> Result<LogicalPlan> {
        analysed(&self.template, self.plan_in(NameResolver::new(self), statement).await?)
    }

    /// Plans the query of a change of `target`, under whose hidden name the query reads it.
    pub(super) async fn plan_on_target(
        self: &Arc<Self>,
        statement: SqlStatement,
        target: &TableName,
        hidden: &HiddenNames,
    ) -> Result<LogicalPlan> {
        let target = Some((target.clone(), hidden.clone()));
        self.plan_in(NameResolver { target, ..NameResolver::new(self) }, statement).await
    }

    async fn plan_in(&self, resolver: NameResolver, statement: SqlStatement) -> Result<LogicalPlan> {
        let recursive = RecursiveTerms::new(&statement);
        let query = duplicate_columns::select_query(&statement);
        let mut planned = resolver.clone().state().statement_to_plan(statement).await;
        if let (Some(query), Err(error)) = (query, &planned)
            && duplicate_columns::is_duplicate_name_error(error)
            && let Some(plan) = duplicate_columns::plan_with_unique_names(&resolver.state(), &query).await
        {
            planned = Ok(plan);
        }
        // Frees the versions of tables that the statement does not mention.
        *self.versions.lock() = None;
        let planned = planned?;
        recursive.check(&planned)?;
        Ok(planned)
    }

    /// True for an external table.
    pub(super) fn is_external(&self, name: &TableName) -> bool {
        self.objects.external.contains_key(name)
    }

    /// The table of the store with this name, to be changed.
    ///
    /// # Errors
    /// For system tables, views, external tables and unknown names.
    pub(super) fn writable(&self, name: &TableName) -> Result<Arc<TierTable>> {
        if let Some(table) = self.pinned(name)? {
            return Ok(table);
        }
        let refused = |what: &str| Err(Error::invalid(format!("'{name}' is {what}; its rows cannot be changed")));
        match () {
            () if name.schema == SYSTEM_SCHEMA || name.schema == INFORMATION_SCHEMA => {
                Err(Error::new(ErrorKind::PermissionDenied, format!("'{name}' belongs to the system")))
            }
            () if self.objects.views.contains_key(name) => refused("a view"),
            () if self.is_external(name) => refused("an external table"),
            () => Err(missing_table(&name.to_string())),
        }
    }

    pub(super) fn schema_names(&self) -> Vec<String> {
        let mut names: BTreeSet<String> = self.objects.schemas.clone();
        names.insert(SYSTEM_SCHEMA.to_owned());
        names.insert(INFORMATION_SCHEMA.to_owned());
        names.into_iter().collect()
    }

    pub(super) fn tables(&self) -> Vec<Arc<Table>> {
        self.store.tables()
    }

    pub(super) fn names_in(&self, schema: &str) -> Vec<String> {
        if schema == SYSTEM_SCHEMA {
            return SystemTable::names().map(str::to_owned).collect();
        }
        if schema == INFORMATION_SCHEMA {
            return information::NAMES.iter().map(|n| (*n).to_owned()).collect();
        }
        let tables = self.store.tables();
        let mut names: BTreeSet<&str> =
            tables.iter().filter(|t| t.name().schema == schema).map(|t| t.name().name.as_str()).collect();
        let objects = self.objects.views.keys().chain(self.objects.external.keys());
        names.extend(objects.filter(|n| n.schema == schema).map(|n| n.name.as_str()));
        names.into_iter().map(str::to_owned).collect()
    }

    /// The table of the store, pinned at the version of its first mention.
    fn pinned(&self, name: &TableName) -> Result<Option<Arc<TierTable>>> {
        let mut pins = self.pins.lock();
        if let Some(pin) = pins.get(name) {
            return Ok(Some(Arc::clone(&pin.provider)));
        }
        let versions = self.versions.lock();
        let found = match versions.as_ref() {
            // The store sorts the tables of a snapshot by name.
            Some(all) => {
                all.binary_search_by(|(table, _)| table.name().cmp(name)).ok().and_then(|at| all.get(at)).cloned()
            }
            None => self.store.table(name).ok().map(|table| {
                let version = table.version();
                (table, version)
            }),
        };
        let Some((table, version)) = found else { return Ok(None) };
        let number = version.number;
        let defaults = defaults::table_defaults(&self.template, table.definition())?;
        let provider = TierTable::new(Arc::clone(&self.store), Arc::clone(&table), version).with_defaults(defaults);
        let provider = Arc::new(provider.with_oracle(self.live.hot_views.oracle()));
        pins.insert(name.clone(), Pin { table, version: number, provider: Arc::clone(&provider) });
        Ok(Some(provider))
    }

    /// The definition of the table of the store that this statement reads.
    pub(super) fn definition(&self, name: &NameParts) -> Result<Option<TableDefinition>> {
        let pinned = self.pinned(&name.resolve(self.default_schema()))?;
        Ok(pinned.map(|provider| provider.table().definition().clone()))
    }

    /// The placement rules of a table of the store, as the statements that make them.
    pub(super) fn placement_rules(&self, name: &NameParts) -> Result<Vec<String>> {
        let pinned = self.pinned(&name.resolve(self.default_schema()))?;
        let Some(provider) = pinned else { return Ok(Vec::new()) };
        let names = |column| provider.table().definition().column_name(column);
        Ok(provider.version().rules.iter().map(|rule| rule.sql(&names)).collect())
    }

    /// The hot views of a table, as the statements that make them.
    pub(super) fn hot_views(&self, table: &TableName) -> Result<Vec<String>> {
        self.live.hot_views.statements(table)
    }

    /// Session state with functions and options, without the catalog.
    pub(super) fn template(&self) -> &SessionState {
        &self.template
    }

    /// Views that plan now and would not if the table `before` had the columns and the name of `after`. `None` for `after`
    /// means that the table is dropped.
    pub(super) async fn views_broken_by(
        self: &Arc<Self>,
        before: &TableName,
        after: Option<&TableDefinition>,
    ) -> Result<Vec<TableName>> {
        let (name, schema) = match after {
            Some(after) => (after.name.clone(), Arc::clone(&after.schema)),
            None => (TableName::new("", ""), Arc::new(Schema::empty())),
        };
        let changed = Arc::new(Self {
            store: Arc::clone(&self.store),
            objects: Arc::clone(&self.objects),
            live: self.live.clone(),
            template: self.template.clone(),
            schema_version: self.schema_version,
            settings: self.settings,
            in_transaction: self.in_transaction,
            versions: Mutex::default(),
            pins: Mutex::default(),
            reads_files: AtomicBool::new(false),
            hypothetical: Some(HypotheticalTable {
                before: before.clone(),
                after: name,
                table: Arc::new(EmptyTable::new(schema)),
            }),
        });
        let mut broken = Vec::new();
        for view in self.objects.views.keys() {
            let plannable = async |snapshot: &Arc<Self>| snapshot.provider(view).await.is_ok();
            if plannable(self).await && !plannable(&changed).await {
                broken.push(view.clone());
            }
        }
        Ok(broken)
    }

    /// The table, view, system or external table of that name.
    pub(super) async fn provider(self: &Arc<Self>, name: &TableName) -> Result<Option<Arc<dyn TableProvider>>> {
        if name.schema == INFORMATION_SCHEMA {
            return information::table(self, &name.name).await;
        }
        NameResolver::new(self).provider(name).await
    }

    /// All tables, views, system and external tables.
    pub(super) async fn entries(self: &Arc<Self>) -> Result<Vec<Entry>> {
        let resolver = NameResolver::new(self);
        let mut entries = Vec::new();
        for table in self.store.tables() {
            let definition = table.definition();
            let notes = definition.columns.iter();
            let notes = notes.map(|c| ColumnNotes { default: c.default.clone(), comment: c.comment.clone() });
            entries.push(Entry {
                schema: table.name().schema.clone(),
                name: table.name().name.clone(),
                kind: EntryKind::Table,
                columns: Arc::clone(table.schema()),
                notes: notes.collect(),
                primary_key: table.primary_key().to_vec(),
                key_enforced: table.options().enforce_primary_key,
                comment: definition.comment.clone(),
            });
        }
        let views = self.objects.views.values().map(|view| (view, EntryKind::View));
        let external = self.objects.external.values().map(|external| (external, EntryKind::External));
        for (object, kind) in views.chain(external) {
            // A view or external table that cannot be planned or opened now is listed without columns.
            let columns = match resolver.provider(&object.name).await {
                Ok(Some(provider)) => provider.schema(),
                _ => Arc::new(Schema::empty()),
            };
            let comment = |name: &String| object.column_comments.get(name).cloned();
            let notes = columns.fields().iter().map(|f| ColumnNotes { default: None, comment: comment(f.name()) });
            entries.push(Entry {
                schema: object.name.schema.clone(),
                name: object.name.name.clone(),
                kind,
                notes: notes.collect(),
                columns,
                primary_key: Vec::new(),
                key_enforced: false,
                comment: object.comment.clone(),
            });
        }
        let system = |schema: &str, name: &str, columns: SchemaRef| Entry {
            schema: schema.to_owned(),
            name: name.to_owned(),
            kind: EntryKind::System,
            notes: Vec::new(),
            columns,
            primary_key: Vec::new(),
            key_enforced: false,
            comment: None,
        };
        for name in SystemTable::names() {
            if let Some(table) = SystemTable::open(name, self.live.clone()) {
                entries.push(system(SYSTEM_SCHEMA, name, table.schema()));
            }
        }
        for name in information::NAMES {
            entries.push(system(INFORMATION_SCHEMA, name, information::schema(self, name).await?));
        }
        Ok(entries)
    }
}

/// Resolves names over a snapshot, also within views: a name that is being expanded is not looked up again.
#[derive(Debug, Clone)]
struct NameResolver {
    snapshot: Arc<Snapshot>,
    /// Views and external tables being planned, outermost first.
    expanding: Vec<TableName>,
    /// The table that the planned statement changes, which is found in a hidden schema and has row positions.
    target: Option<(TableName, HiddenNames)>,
}

impl NameResolver {
    fn new(snapshot: &Arc<Snapshot>) -> Self {
        Self { snapshot: Arc::clone(snapshot), expanding: Vec::new(), target: None }
    }

    fn state(self) -> SessionState {
        let mut state = self.snapshot.template.clone();
        state.register_catalog_list(Arc::new(Catalogs(Arc::new(self))));
        state.mark_start_execution();
        state
    }

    async fn provider(&self, name: &TableName) -> Result<Option<Arc<dyn TableProvider>>> {
        let snapshot = &self.snapshot;
        if let Some((target, hidden)) =
            self.target.as_ref().filter(|(_, hidden)| name.schema == hidden.target && name.name == hidden.target)
        {
            let table = snapshot.pinned(target)?.map(|table| table.with_positions(&hidden.row));
            return Ok(table.map(|t| Arc::new(t) as Arc<dyn TableProvider>));
        }
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
                super::ddl::open_external(&self.snapshot.state(), &create).await
            }
            _ => Err(Error::new(ErrorKind::DataLoss, "its definition in the catalog is not an external table")),
        }
    }

    /// Plans the text of an object with the default schema it was written under.
    async fn plan_object(&self, object: &Object) -> Result<LogicalPlan> {
        let mut inner = self.clone();
        inner.expanding.push(object.name.clone());
        inner.target = None;
        let mut state = inner.state();
        let options = state.config_mut().options_mut();
        options.catalog.default_schema = object.default_schema.clone();
        options.sql_parser.parse_float_as_decimal = object.decimal_literals;
        match terrace_sql::parse(&object.sql)?.action {
            Action::Plan(PlannerStatement { statement, .. }) => Ok(state.statement_to_plan(statement).await?),
            _ => Err(Error::new(ErrorKind::DataLoss, "its definition in the catalog cannot be planned")),
        }
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
        let target = self.0.target.as_ref().is_some_and(|(_, hidden)| name == hidden.target);
        let known = target
            || [SYSTEM_SCHEMA, INFORMATION_SCHEMA].contains(&name)
            || self.0.snapshot.objects.schemas.contains(name);
        known.then(|| Arc::new(SchemaView { resolver: Arc::clone(&self.0), name: name.to_owned() }) as _)
    }
}

/// One schema.
#[derive(Debug)]
struct SchemaView {
    resolver: Arc<NameResolver>,
    name: String,
}

#[async_trait]
impl SchemaProvider for SchemaView {
    fn table_names(&self) -> Vec<String> {
        self.resolver.snapshot.names_in(&self.name)
    }

    async fn table(&self, name: &str) -> PlanResult<Option<Arc<dyn TableProvider>>, DataFusionError> {
        if self.name == INFORMATION_SCHEMA {
            return Ok(information::table(&self.resolver.snapshot, name).await?);
        }
        let name = TableName::new(self.name.clone(), name);
        Ok(self.resolver.provider(&name).await?)
    }

    async fn table_type(&self, name: &str) -> PlanResult<Option<TableType>> {
        let name = TableName::new(self.name.clone(), name);
        if self.resolver.snapshot.objects.views.contains_key(&name) {
            return Ok(Some(TableType::View));
        }
        Ok(self.table_exist(&name.name).then_some(TableType::Base))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.table_names().iter().any(|n| n == name)
    }
}
