//! Snapshots: the catalog as one statement sees it.
//!
//! A [`Snapshot`] pins the version of each table at its first mention, so that a statement that names a table twice
//! reads the same rows twice. Views are planned from their text and external tables opened from their definition when
//! they are mentioned; neither is cached, so a snapshot never refers to itself.
//!
//! - [`hypothetical`]: a table as it would be after a change
//! - [`listing`]: what there is, as far as one may see it
//! - [`name_resolver`]: the catalog of the planner, over a snapshot
//! - [`objects`]: views, external tables and schemas in the store's catalog

mod hypothetical;
mod listing;
mod name_resolver;
mod objects;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use datafusion::catalog::TableProvider;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement as SqlStatement;
use parking_lot::Mutex;
use terrace_access::{Authority, PolicyClause, Principal, Right};
use terrace_scan::TierTable;
use terrace_sql::NameParts;
use terrace_sql::rewrite::HiddenNames;
use terrace_tier_store::Store;
use terrace_tier_store::store::Snapshot as Versions;
use terrace_tier_store::table::{FileFormat, Table, TableDefinition, TableName};

use self::hypothetical::HypotheticalTable;
use self::name_resolver::NameResolver;
pub(super) use self::objects::{Object, Objects};
use super::analysis::analysed;
use super::functions::SessionUser;
use super::policies::{RowCondition, TargetConditions};
use super::recursion::RecursiveTerms;
use super::registry::Reading;
use super::rights::Need;
use super::{
    Engine, INFORMATION_SCHEMA, SYSTEM_SCHEMA, column_rights, defaults, duplicate_columns, functions, information,
    rights,
};
use crate::error::{Error, ErrorKind, Result, missing_table};
use crate::system::{Live, SystemTable};

impl Engine {
    /// Makes a snapshot for one statement of `principal`; in a transaction, of the table versions that the transaction sees.
    pub(super) fn snapshot(
        &self,
        config: SessionConfig,
        principal: &Principal,
        transaction: Option<Versions>,
    ) -> Result<Arc<Snapshot>> {
        // First: rights that change meanwhile make the snapshot stale.
        let rights_version = self.users.rights_version();
        let authority = self.users.authority(principal);
        let mut template = SessionState::clone(&self.base_state);
        *template.config_mut() = config;
        functions::configure(&mut template)?;
        template.mark_start_execution();
        let registry = Arc::clone(&self.registry);
        let groups = Arc::clone(&self.groups);
        let admission = Arc::clone(&self.admission);
        let cluster = self.cluster.clone();
        let live = Live {
            store: Arc::clone(&self.store),
            users: Arc::clone(&self.users),
            viewer: authority.clone(),
            audit: Arc::clone(&self.options.audit),
            query_log: self.query_log().cloned(),
            statements: Arc::new(move || registry.statements()),
            workload_groups: Arc::new(move || admission.group_records(&groups)),
            nodes: Arc::new(move || cluster.as_ref().map(|cluster| cluster.records()).unwrap_or_default()),
            hot_views: self.hot_views.clone(),
        };
        let schema_version = self.store.schema_version();
        let tiers_changed_unix_us = self.store.tiering().tiers_changed_unix_us();
        let in_transaction = transaction.is_some();
        let versions = transaction.unwrap_or_else(|| self.store.snapshot());
        Ok(Arc::new(Snapshot {
            in_transaction,
            versions: Mutex::new(Some(versions)),
            objects: self.objects()?,
            store: Arc::clone(&self.store),
            live,
            template,
            authority,
            rights_version,
            only_written: OnceLock::new(),
            readings: Mutex::default(),
            schema_version,
            tiers_changed_unix_us,
            pins: Mutex::default(),
            reads_files: AtomicBool::new(false),
            hides_columns: AtomicBool::new(false),
            hides_rows: AtomicBool::new(false),
            base_state: Arc::clone(&self.base_state),
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
    /// What whoever sends the statement may do.
    authority: Authority,
    rights_version: u64,
    /// Relations that the statement writes or makes and does not read, which it may name without the right to.
    only_written: OnceLock<Vec<TableName>>,
    /// Relations that the statement reads, and those that views among them read.
    readings: Mutex<Arc<BTreeSet<Reading>>>,
    schema_version: u64,
    /// The last change of the set of tiers, whose names scans know.
    tiers_changed_unix_us: u64,
    /// Whether it belongs to a transaction, whose uncommitted changes it sees.
    in_transaction: bool,
    /// Versions of all tables, from which tables are pinned until the statement is planned. Taken at once, so that the
    /// statement sees every commit completely or not at all.
    versions: Mutex<Option<Versions>>,
    /// Tables mentioned so far, each with the version this statement reads.
    pins: Mutex<HashMap<TableName, Pin>>,
    /// Whether an external table was opened: its files may change at any time.
    reads_files: AtomicBool,
    /// Whether it has a relation of which not all columns may be read.
    hides_columns: AtomicBool,
    /// Whether it has a table of which policies hide rows.
    hides_rows: AtomicBool,
    /// Functions and options of the server, for the conditions of policies.
    base_state: Arc<SessionState>,
    hypothetical: Option<HypotheticalTable>,
}

/// The table that a statement changes, which its query finds under a hidden name and with row positions.
#[derive(Debug, Clone)]
pub(super) struct QueriedTarget {
    pub(super) name: TableName,
    pub(super) hidden: HiddenNames,
    /// The columns that may be read; `None`: all.
    pub(super) readable: Option<BTreeSet<String>>,
    /// Of each set of conditions, rows that it finds fulfil one.
    pub(super) conditions: Vec<BTreeSet<String>>,
}

/// What may be read of a relation.
#[derive(Debug, Default)]
struct ReadPart {
    /// These columns; `None`: all.
    columns: Option<BTreeSet<String>>,
    /// The rows that fulfil one of these conditions; `None`: all.
    rows: Option<BTreeSet<String>>,
}

impl QueriedTarget {
    /// Whether its query calls it so.
    fn is_called(&self, name: &TableName) -> bool {
        name.schema == self.hidden.target && name.name == self.hidden.target
    }
}

struct Pin {
    table: Arc<Table>,
    version: u64,
    provider: Arc<TierTable>,
}

/// Whether no column of an earlier definition of a table has a name that is that of another one now: rights on columns and policies go by
/// names.
fn keeps_column_names(before: &TableDefinition, now: &TableDefinition) -> bool {
    before.schema.fields().iter().zip(&before.columns).all(|(field, column)| {
        let at = now.schema.index_of(field.name()).ok();
        at.and_then(|at| now.columns.get(at)).is_none_or(|found| found.id == column.id)
    })
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("schema_version", &self.schema_version).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// True while a plan made on this snapshot may be used again, in sessions with the same user and options.
    pub(super) fn is_current(&self) -> bool {
        !self.in_transaction
            && self.schema_version == self.store.schema_version()
            && self.is_permitted()
            && !self.reads_files.load(Ordering::Relaxed)
            && self.pins.lock().values().all(|pin| pin.table.version().number == pin.version)
    }

    /// True while a plan made on this snapshot may read its table versions, although there may be later ones: nobody's
    /// rights have changed, nor the tiers.
    pub(super) fn is_permitted(&self) -> bool {
        self.has_current_rights() && self.tiers_changed_unix_us == self.store.tiering().tiers_changed_unix_us()
    }

    /// Whether it belongs to a transaction, whose uncommitted changes it sees.
    pub(super) fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    pub(super) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// What whoever sends the statement may do.
    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Notes which relations the statement writes or makes and does not read.
    pub(super) fn note_only_written(&self, names: Vec<TableName>) {
        self.only_written.get_or_init(|| names);
    }

    /// The relations that the statement reads, and those that views among them read, as far as it has been planned.
    pub(super) fn readings(&self) -> Arc<BTreeSet<Reading>> {
        Arc::clone(&self.readings.lock())
    }

    /// Notes that a relation, or the part of it that may be read, is read: by the owner of a view, or by whoever sends the statement.
    fn note_read(&self, name: &TableName, view: Option<&TableName>, part: ReadPart) {
        let table = self.pins.lock().get(name).map(|pin| pin.table.id());
        let ReadPart { columns, rows } = part;
        let monitors = name.schema == SYSTEM_SCHEMA && self.authority.may_on_server(Right::Monitor);
        let reading = Reading { name: name.clone(), table, view: view.cloned(), columns, rows, monitors };
        let mut readings = self.readings.lock();
        Arc::make_mut(&mut readings).insert(reading);
    }

    /// Whether policies hide rows of a table that the statement reads or changes.
    pub(super) fn hides_rows(&self) -> bool {
        self.hides_rows.load(Ordering::Relaxed)
    }

    /// Whether figures of all relations that the statement names or reads, also through views, are shown to who sends it.
    pub(super) fn shows_figures(&self) -> bool {
        self.readings().iter().all(|reading| self.authority.sees_figures(&reading.name))
            && self.pins.lock().keys().all(|name| self.authority.sees_figures(name))
    }

    /// State to plan the conditions of policies with: that of the server, whatever the session has set, with the session's user.
    pub(super) fn condition_state(&self) -> Result<SessionState> {
        let mut state = SessionState::clone(&self.base_state);
        if let Some(user) = self.template.config().get_extension::<SessionUser>() {
            state.config_mut().set_extension(user);
        }
        functions::configure(&mut state)?;
        state.mark_start_execution();
        Ok(state)
    }

    /// What new rows of a table fulfil, of each set of conditions one; `None`: nothing.
    pub(super) fn new_row_condition(
        &self,
        table: &Table,
        conditions: &[BTreeSet<String>],
    ) -> Result<Option<Arc<RowCondition>>> {
        if conditions.is_empty() {
            return Ok(None);
        }
        let condition = RowCondition::new(&self.condition_state()?, table.name(), table.schema(), conditions)?;
        Ok(Some(Arc::new(condition)))
    }

    /// [`Self::new_row_condition`] of rows that are added to a table.
    pub(super) fn added_row_condition(&self, table: &Table) -> Result<Option<Arc<RowCondition>>> {
        let conditions = TargetConditions::new(&self.authority, table.name(), Right::Insert, false);
        self.new_row_condition(table, &conditions.made)
    }

    /// Whether nobody's rights have changed since it was made.
    pub(super) fn has_current_rights(&self) -> bool {
        self.rights_version == self.live.users.rights_version()
    }

    fn is_only_written(&self, name: &TableName) -> bool {
        self.only_written.get().is_some_and(|names| names.contains(name))
    }

    /// Whether there is a table, view, system or external table of this name, whoever may see it.
    pub(super) fn has(&self, name: &TableName) -> bool {
        match name.schema.as_str() {
            SYSTEM_SCHEMA => SystemTable::names().any(|known| known == name.name),
            INFORMATION_SCHEMA => information::NAMES.contains(&name.name.as_str()),
            _ => {
                self.store.table(name).is_ok()
                    || self.objects.views.contains_key(name)
                    || self.objects.external.contains_key(name)
            }
        }
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
        target: &QueriedTarget,
    ) -> Result<LogicalPlan> {
        let planned = self.plan_in(NameResolver::for_change(self, target), statement).await;
        planned.map_err(|error| target.hidden.explain_conflict(error))
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
        self.check_columns(&planned)?;
        Ok(planned)
    }

    /// Refuses a plan that mentions a column which may not be read.
    fn check_columns(&self, plan: &LogicalPlan) -> Result<()> {
        if self.hides_columns.load(Ordering::Relaxed) { column_rights::check(plan) } else { Ok(()) }
    }

    /// True for an external table.
    pub(super) fn is_external(&self, name: &TableName) -> bool {
        self.objects.external.contains_key(name)
    }

    /// The table of the store with this name, to be changed by whoever holds the rights that the change needs.
    ///
    /// # Errors
    /// For system tables, views, external tables and unknown names, and where a right is not held.
    pub(super) fn writable(&self, name: &TableName, needs: &[Need]) -> Result<Arc<TierTable>> {
        if name.schema != SYSTEM_SCHEMA && name.schema != INFORMATION_SCHEMA {
            rights::check_table(self, name, needs)?;
        }
        if let Some(table) = self.pinned(name)? {
            if let Some(read) = needs.iter().find(|need| need.right == Right::Select) {
                let rows = self.authority.row_conditions(name, Right::Select, PolicyClause::Using);
                self.note_read(name, None, ReadPart { columns: read.columns.clone(), rows });
            }
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
        // Rights belong to the name: they are those of the table that has it now, and of its columns.
        let is_same = |now: &Arc<Table>| {
            Arc::ptr_eq(now, &table)
                || now.id() == table.id() && keeps_column_names(table.definition(), now.definition())
        };
        if !self.authority.is_unlimited() && !self.store.table(name).is_ok_and(|now| is_same(&now)) {
            let message = format!("table '{name}' was dropped, renamed or replaced meanwhile; begin again");
            return Err(Error::new(ErrorKind::Aborted, message));
        }
        let number = version.number;
        let defaults = defaults::table_defaults(&self.template, table.definition())?;
        let provider = TierTable::new(Arc::clone(&self.store), Arc::clone(&table), version).with_defaults(defaults);
        let shown = if self.authority.sees_figures(name) { provider } else { provider.without_figures() };
        let provider = Arc::new(shown.with_oracle(self.live.hot_views.oracle()));
        pins.insert(name.clone(), Pin { table, version: number, provider: Arc::clone(&provider) });
        Ok(Some(provider))
    }

    /// The names of the columns of a table of the store.
    pub(super) fn columns(&self, name: &TableName) -> Result<Option<Vec<String>>> {
        let names = |table: Arc<TierTable>| {
            let fields = table.table().schema().fields();
            fields.iter().map(|field| field.name().clone()).collect()
        };
        Ok(self.pinned(name)?.map(names))
    }

    /// The format of the files of tables that are created without one.
    pub(super) fn file_format(&self) -> FileFormat {
        self.store.file_format()
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

    /// The table, view, system or external table of that name.
    pub(super) async fn provider(self: &Arc<Self>, name: &TableName) -> Result<Option<Arc<dyn TableProvider>>> {
        if name.schema == INFORMATION_SCHEMA {
            return information::table(self, &name.name).await;
        }
        NameResolver::new(self).provider(name).await
    }

    /// Like [`Self::provider`], also for a relation that lists show and whose rows may not be read.
    pub(super) async fn shown(self: &Arc<Self>, name: &TableName) -> Result<Option<Arc<dyn TableProvider>>> {
        match self.authority.sees_table(name) && name.schema != SYSTEM_SCHEMA && name.schema != INFORMATION_SCHEMA {
            true => NameResolver::unlimited(self).provider(name).await,
            false => self.provider(name).await,
        }
    }
}
