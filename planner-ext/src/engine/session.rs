//! Sessions: a user, and the options their statements run with.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datafusion::prelude::SessionConfig;
use parking_lot::Mutex;
use terrace_access::{Origin, Principal};
use terrace_scan::session_options::SessionOptions;
use terrace_sql::prepare::NamedStatement;
use terrace_sql::secrets::without_secrets;
use terrace_sql::{CATALOG, DEFAULT_SCHEMA, StatementKind};

use super::catalog::Snapshot;
use super::functions::SessionUser;
use super::plan_cache::PlanKey;
use super::registry::{NewStatement, Step, Ticket, Touched};
use super::statement::{CachedQuery, Prepared};
use super::transaction::Transaction;
use super::{Engine, Entry};
use crate::error::{Error, ErrorKind, Result};

/// Options a user may set. A name that ends with a dot or an underscore allows all that begin with it.
const ALLOWED: [&str; 29] = [
    "datafusion.catalog.default_schema",
    "datafusion.execution.batch_size",
    "datafusion.execution.coalesce_batches",
    "datafusion.execution.collect_statistics",
    "datafusion.execution.enable_ansi_mode",
    "datafusion.execution.enable_recursive_ctes",
    "datafusion.execution.listing_table_factory_infer_partitions",
    "datafusion.execution.listing_table_ignore_subdirectory",
    "datafusion.execution.parquet.allow_single_file_parallelism",
    "datafusion.execution.parquet.bloom_filter_on_read",
    "datafusion.execution.parquet.coerce_int96",
    "datafusion.execution.parquet.compression",
    "datafusion.execution.parquet.created_by",
    "datafusion.execution.parquet.enable_page_index",
    "datafusion.execution.parquet.max_row_group_size",
    "datafusion.execution.parquet.pruning",
    "datafusion.execution.parquet.pushdown_filters",
    "datafusion.execution.parquet.reorder_filters",
    "datafusion.execution.parquet.statistics_enabled",
    "datafusion.execution.skip_partial_",
    "datafusion.execution.spill_compression",
    "datafusion.execution.split_file_groups_by_statistics",
    "datafusion.execution.target_partitions",
    "datafusion.execution.time_zone",
    "datafusion.explain.",
    "datafusion.format.",
    "datafusion.optimizer.",
    "datafusion.sql_parser.parse_float_as_decimal",
    "terrace.",
];

/// Type of the values of a session option, which SQL writes as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// Text, also of a duration such as 30s.
    Text,
    /// True or false.
    Bool,
    /// A whole number.
    Integer,
    /// A number.
    Double,
    /// Not known, as the option has no default.
    Unknown,
}

impl OptionKind {
    /// The type of an option with this default.
    fn from_default(value: Option<&str>) -> Self {
        match value {
            None => Self::Unknown,
            Some("true" | "false") => Self::Bool,
            Some(number) if number.parse::<i64>().is_ok() => Self::Integer,
            Some(number) if number.contains('.') && number.parse::<f64>().is_ok() => Self::Double,
            Some(_) => Self::Text,
        }
    }
}

/// Options that a session has set.
#[derive(Default)]
struct OptionsSet {
    by_name: BTreeMap<String, String>,
    /// All options, as plans depend on them: one may change others. Empty while none is set.
    of_plans: Arc<BTreeMap<String, Option<String>>>,
}

/// The key of a query in the plan cache. It holds while the session's number of changes of options is `settings`.
pub(super) struct PlanPlace {
    pub(super) key: PlanKey,
    pub(super) settings: u64,
}

/// One connection of one user.
pub struct Session {
    id: String,
    principal: Principal,
    origin: Origin,
    engine: Arc<Engine>,
    config: Mutex<SessionConfig>,
    /// Options set in this session, by full name. Locked before `config`, while both change.
    options_set: Mutex<OptionsSet>,
    /// Incremented by each change of an option.
    settings: AtomicU64,
    /// Statements of PREPARE, by name.
    pub(super) named_statements: Mutex<HashMap<String, NamedStatement>>,
    /// The transaction that SQL began.
    pub(super) current: Mutex<Option<Arc<Transaction>>>,
    /// Transactions that statements name, by id.
    pub(super) transactions: Mutex<HashMap<String, Arc<Transaction>>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("user", &self.principal.user).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(id: String, principal: Principal, origin: Origin, engine: Arc<Engine>) -> Self {
        let user = SessionUser(principal.user.clone());
        let config = engine.base_state.config().clone().with_extension(Arc::new(user));
        Self {
            id,
            principal,
            origin,
            engine,
            config: Mutex::new(config),
            options_set: Mutex::default(),
            settings: AtomicU64::new(0),
            named_statements: Mutex::default(),
            current: Mutex::default(),
            transactions: Mutex::default(),
        }
    }

    /// Its identifier.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The user that opened it.
    pub fn user(&self) -> &str {
        &self.principal.user
    }

    /// For whom its statements run.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Where its client is.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Schema of names without one.
    pub(super) fn default_schema(&self) -> String {
        self.config.lock().options().catalog.default_schema.clone()
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Number of changes of options so far; plans made under another number are stale.
    pub(super) fn settings(&self) -> u64 {
        self.settings.load(Ordering::Acquire)
    }

    /// The key of a query of this session in the plan cache; `None` when `terrace.plan_cache` is off.
    pub(super) fn plan_place(&self, sql: &Arc<str>) -> Option<PlanPlace> {
        let options_set = self.options_set.lock();
        let is_wanted = SessionOptions::from_config(self.config.lock().options()).plan_cache;
        let options = || Arc::clone(&options_set.of_plans);
        let key = || PlanKey {
            user: self.user().to_owned(),
            is_superuser: self.principal.is_superuser,
            scope: self.principal.scope().cloned(),
            options: options(),
            sql: Arc::clone(sql),
        };
        is_wanted.then(|| PlanPlace { key: key(), settings: self.settings() })
    }

    /// Keeps the plan of a query for the next one, unless options have changed since.
    pub(super) fn keep_plan(&self, place: PlanPlace, query: CachedQuery) {
        let PlanPlace { key, settings } = place;
        let options_set = self.options_set.lock();
        let replaced = if self.settings() == settings { self.engine.plans.keep(key, query) } else { None };
        drop(options_set);
        self.engine.drop_plans(replaced.into_iter().collect());
    }

    /// A snapshot of the catalog as it is now, whatever a transaction of this session sees.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>> {
        self.snapshot_in(None)
    }

    /// A snapshot of the catalog as a statement of this session sees it now, in a transaction or outside of any.
    pub(super) fn snapshot_in(&self, transaction: Option<&Arc<Transaction>>) -> Result<Arc<Snapshot>> {
        let config = self.config.lock().clone();
        let versions = transaction.map(|t| t.versions()).transpose()?;
        self.engine.snapshot(config, &self.principal, versions)
    }

    /// All tables, views, system and external tables that its user may see.
    pub async fn entries(self: &Arc<Self>) -> Result<Vec<Entry>> {
        let session = Arc::clone(self);
        self.engine.on_cpu(async move { session.snapshot()?.entries().await }).await
    }

    /// Names of the schemas that its user may see, `system` and `information_schema` included.
    pub fn schemas(&self) -> Result<Vec<String>> {
        Ok(self.snapshot()?.schema_names())
    }

    /// Longest time for which its transactions stay open without a statement; `None`: as the server allows.
    pub(super) fn idle_transaction_timeout(&self) -> Option<Duration> {
        let timeout = SessionOptions::from_config(self.config.lock().options()).idle_transaction_timeout.0;
        Some(timeout).filter(|timeout| !timeout.is_zero())
    }

    /// Registers a statement of this session that starts.
    pub(super) fn start_statement(
        &self,
        sql: &Arc<str>,
        kind: StatementKind,
        touched: &Arc<Touched>,
    ) -> Result<Ticket> {
        self.register(Step::Run, sql, kind, touched)
    }

    /// Registers a statement that is planned only. Its kind is known once it is parsed.
    pub(super) fn start_planning(&self, sql: &Arc<str>, touched: &Arc<Touched>) -> Result<Ticket> {
        self.register(Step::Prepare, sql, StatementKind::Query, touched)
    }

    fn register(&self, step: Step, sql: &Arc<str>, kind: StatementKind, touched: &Arc<Touched>) -> Result<Ticket> {
        let options = SessionOptions::from_config(self.config.lock().options());
        let time_limit = Some(options.statement_timeout.0).filter(|timeout| !timeout.is_zero());
        let authority = self.engine.users().authority(&self.principal);
        let group = self.engine.groups.find(&options.workload_group, self.user(), &authority);
        let shown = match without_secrets(sql) {
            Cow::Borrowed(_) => Arc::clone(sql),
            Cow::Owned(shown) => shown.into(),
        };
        self.engine.registry.start(&NewStatement {
            session: &self.id,
            principal: &self.principal,
            origin: self.origin,
            touched,
            group,
            sql: &shown,
            kind,
            step,
            trace_id_of: self.engine.options.trace_id_of,
            time_limit,
        })
    }

    /// Parses and plans one SQL statement. Runs nothing.
    pub async fn prepare(self: &Arc<Self>, sql: &str) -> Result<Arc<Prepared>> {
        Prepared::new(Arc::clone(self), sql, None).await
    }

    /// Like [`Session::prepare`], for a statement of the transaction `id`.
    pub async fn prepare_in(self: &Arc<Self>, id: &str, sql: &str) -> Result<Arc<Prepared>> {
        let transaction = self.transaction(id)?;
        Prepared::new(Arc::clone(self), sql, Some(transaction)).await
    }

    /// Catalog, schema, and the options set in this session.
    pub fn options(&self) -> HashMap<String, String> {
        let mut options: HashMap<String, String> = self.options_set.lock().by_name.clone().into_iter().collect();
        let schema = self.default_schema();
        options.insert("catalog".to_owned(), CATALOG.to_owned());
        options.insert("schema".to_owned(), schema);
        options
    }

    /// Sets an option, or returns it to its default with `None`. Also takes `catalog` and `schema`.
    /// Errors: [`ErrorKind::InvalidArgument`] for a bad value, [`ErrorKind::NotFound`] for an option, a schema or a catalog
    /// that does not exist, [`ErrorKind::PermissionDenied`] for an option that users may not set.
    pub fn set_option(&self, name: &str, value: Option<&str>) -> Result<()> {
        let name = name.trim().to_ascii_lowercase();
        if name == "catalog" {
            return match value {
                None => Ok(()),
                Some(v) if v.eq_ignore_ascii_case(CATALOG) => Ok(()),
                Some(v) => {
                    let message = format!("catalog '{v}' does not exist; the only one is '{CATALOG}'");
                    Err(Error::new(ErrorKind::NotFound, message))
                }
            };
        }
        let full = full_name(&name);
        if !ALLOWED.iter().any(|a| full == *a || (a.ends_with(['.', '_']) && full.starts_with(a))) {
            if !full.starts_with("datafusion.") {
                self.default_value(full)?;
            }
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                format!("option '{full}' cannot be set in a session; these can: {}", ALLOWED.join(", ")),
            ));
        }
        let default = self.default_value(full)?;
        let new = match value {
            Some(v) => v.trim().to_owned(),
            None => default.unwrap_or_default(),
        };
        check_value(full, &new)?;
        if full == "terrace.workload_group" && !new.is_empty() {
            let authority = self.engine.users().authority(&self.principal);
            self.engine.groups.check(&new, self.user(), &authority)?;
        }
        if full == "datafusion.catalog.default_schema" && !self.schemas()?.contains(&new) {
            return Err(Error::new(ErrorKind::NotFound, format!("schema '{new}' does not exist")));
        }
        let mut options_set = self.options_set.lock();
        {
            let mut config = self.config.lock();
            let set = config.options_mut().set(full, &new);
            set.map_err(|error| Error::invalid(Error::from(error).message()))?;
            if full == "datafusion.execution.time_zone" && new.is_empty() {
                config.options_mut().execution.time_zone = None;
            }
        }
        match value {
            Some(_) => options_set.by_name.insert(full.to_owned(), new),
            None => options_set.by_name.remove(full),
        };
        options_set.of_plans = match options_set.by_name.is_empty() {
            true => Arc::default(),
            false => {
                let entries = self.config.lock().options().entries();
                Arc::new(entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
            }
        };
        self.settings.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Type of the values of an option; an unknown name is an error, [`ErrorKind::NotFound`].
    pub fn option_kind(&self, name: &str) -> Result<OptionKind> {
        let name = name.trim().to_ascii_lowercase();
        if name == "catalog" {
            return Ok(OptionKind::Text);
        }
        Ok(OptionKind::from_default(self.default_value(full_name(&name))?.as_deref()))
    }

    /// The engine's default value of an option; an unknown name is an error.
    fn default_value(&self, name: &str) -> Result<Option<String>> {
        let entries = self.engine.base_state.config().options().entries();
        let found = entries.into_iter().find(|e| e.key == name);
        found.map(|e| e.value).ok_or_else(|| {
            let message = format!("option '{name}' does not exist; SHOW ALL lists the options there are");
            Error::new(ErrorKind::NotFound, message)
        })
    }
}

impl Engine {
    /// Opens a session in which everything is allowed, for a program that has the engine inside; it lives until closed.
    pub fn open_session(self: &Arc<Self>, user: &str) -> Arc<Session> {
        self.open_session_for(Principal::inside(user))
    }

    /// Opens a session for whom a client has shown to be; it lives until closed.
    pub fn open_session_for(self: &Arc<Self>, principal: Principal) -> Arc<Session> {
        self.open_session_from(Origin::default(), principal)
    }

    /// Like [`Self::open_session_for`], for a client elsewhere.
    pub fn open_session_from(self: &Arc<Self>, origin: Origin, principal: Principal) -> Arc<Session> {
        let number = self.next_session.fetch_add(1, Ordering::Relaxed);
        let id = format!("s{:x}-{number}", self.clock.unix_us());
        let session = Arc::new(Session::new(id.clone(), principal, origin, Arc::clone(self)));
        self.sessions.lock().insert(id, Arc::clone(&session));
        session
    }

    /// The open session `id`; [`ErrorKind::NotFound`] when there is none.
    pub fn session(&self, id: &str) -> Result<Arc<Session>> {
        let found = self.sessions.lock().get(id).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "the session is closed or unknown; connect again"))
    }

    /// Closes a session, cancels its statements and rolls its transactions back; an unknown `id` is fine.
    pub fn close_session(&self, id: &str) {
        let closed = self.sessions.lock().remove(id);
        if let Some(session) = closed {
            self.registry.cancel_session(id);
            session.roll_back_all();
        }
    }

    /// Whether a statement of the session `id` has not ended.
    pub fn runs_statement(&self, id: &str) -> bool {
        self.registry.runs_in(id)
    }
}

/// The full name of an option that may have a short one; both are in lower case.
fn full_name(name: &str) -> &str {
    match name {
        "schema" => "datafusion.catalog.default_schema",
        "timezone" | "time.zone" | "time_zone" => "datafusion.execution.time_zone",
        "statement_timeout" => "terrace.statement_timeout",
        "workload_group" => "terrace.workload_group",
        "idle_transaction_timeout" | "idle_in_transaction_session_timeout" => "terrace.idle_transaction_timeout",
        other => other,
    }
}

/// Refuses values with which one session could exhaust the server.
fn check_value(name: &str, value: &str) -> Result<()> {
    let bound = match name {
        "datafusion.execution.batch_size" => 65_536,
        "datafusion.execution.target_partitions" => 1_024,
        "datafusion.execution.parquet.max_row_group_size" => 1 << 20,
        "datafusion.catalog.default_schema" if value.is_empty() => {
            return Err(Error::invalid(format!("a schema needs a name; the default is '{DEFAULT_SCHEMA}'")));
        }
        _ => return Ok(()),
    };
    match value.parse::<u32>() {
        Ok(number) if (1..=bound).contains(&number) => Ok(()),
        _ => Err(Error::invalid(format!("option '{name}' takes a number from 1 to {bound}, not '{value}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_of_an_option_says_its_type() {
        let config = terrace_scan::joins::session_config(SessionConfig::new());
        let entries = config.options().entries();
        let kind = |name: &str| {
            let entry = entries.iter().find(|entry| entry.key == name);
            entry.map(|entry| OptionKind::from_default(entry.value.as_deref()))
        };
        for (name, expected) in [
            ("datafusion.execution.batch_size", OptionKind::Integer),
            ("datafusion.execution.skip_partial_aggregation_probe_ratio_threshold", OptionKind::Double),
            ("datafusion.optimizer.enable_topk_aggregation", OptionKind::Bool),
            ("datafusion.catalog.default_schema", OptionKind::Text),
            ("datafusion.format.null", OptionKind::Text),
            ("terrace.plan_cache", OptionKind::Bool),
            ("terrace.statement_timeout", OptionKind::Text),
            ("terrace.workload_group", OptionKind::Text),
        ] {
            assert_eq!(kind(name), Some(expected), "{name}");
        }
        assert_eq!(OptionKind::from_default(None), OptionKind::Unknown);
    }
}
