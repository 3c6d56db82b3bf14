//! The engine: sessions and statements over one store.
//!
//! A client opens a [`Session`], prepares a statement ([`Session::prepare`]) and runs it ([`Prepared::query`],
//! [`Prepared::update`]). Every statement has a record in the [`registry`], a memory pool of its own under one limit
//! ([`memory`]), and ends when its stream is dropped, its time is over, or someone cancels it. Callers may live on any
//! runtime: planning and execution happen on [`EngineOptions::cpu`], and blocking store calls on that runtime's blocking
//! threads.
//!
//! Statements, from a [`terrace_sql::Command`] to rows:
//!
//! - [`execute`]: plans and runs a statement by its family
//! - [`plan`]: plans queries and the other statements of DataFusion's grammar
//! - [`session`]: users and the options of their statements
//! - [`users`]: statements on users and tokens
//! - [`grants`]: statements on roles, rights and owners
//! - [`tokens`]: CREATE TOKEN
//! - [`rights`]: what a statement may do
//! - [`cancel`]: CANCEL QUERY, and other orders to end a statement
//! - [`base_config`]: options that every session starts with
//! - [`prepare`]: PREPARE, EXECUTE and DEALLOCATE
//! - [`statement`]: prepared statements and their plans
//! - [`plan_cache`]: plans of queries that come again
//! - [`skeleton`]: optimized plans of queries whose parameters are not bound yet
//! - [`repeatable`]: queries that have the same rows each time
//! - [`parameters`]: binds one row of parameters
//! - [`insert`]: binds many rows of parameters of an INSERT
//! - [`catalog`]: one snapshot of tables, views and files per statement
//! - [`column_rights`]: relations of which some columns may be read, or none
//! - [`policies`]: policies on the rows of tables
//! - [`analysis`]: analyses plans, which decides the types of their columns
//! - [`types`]: column types that tables store, and casts of rows to them
//! - [`functions`]: functions that differ from DataFusion's
//! - [`recursion`]: refuses recursive queries whose types would be narrowed
//! - [`duplicate_columns`]: plans queries with equal names of output columns
//! - [`show`]: SHOW and DESCRIBE as queries
//! - [`information`]: schema `information_schema`
//! - [`transaction`]: transactions of several statements
//!
//! Execution:
//!
//! - [`query`]: plans, admits and executes queries; sends rows to the caller through a bounded channel
//! - [`run`]: plans and executes statements: slots, plans of operators, updates
//! - [`planning`]: limits of planning, and threads for it
//! - [`operators`]: operators of this server in place of DataFusion's
//! - [`cluster`]: queries of which several nodes execute parts
//! - [`workload`]: workload groups of sessions
//! - [`workload_commands`]: statements on workload groups
//! - [`admission`]: limits the statements that execute and wait
//! - [`explain`]: expected memory in EXPLAIN
//! - [`registry`]: records of running and ended statements
//! - [`held_memory`]: what the server asks of statements when memory is short
//! - [`interrupt`]: stops statements, also within long joins
//! - [`memory`]: query memory
//! - [`even_sorts`]: splits batches evenly below sorts
//! - [`small_batches`]: cuts batches below operators that need much memory per row
//! - [`windows`]: computes window functions one partition at a time
//! - [`stream_exec`]: an operator that passes batches through a function
//! - [`spill`]: spill files
//! - [`tasks`]: tasks on other runtimes
//!
//! Changes of data and of the catalog:
//!
//! - [`change`]: executes UPDATE, DELETE and MERGE and applies their rows
//! - [`ingest`]: loads rows into tables
//! - [`copy`]: COPY FROM and COPY TO
//! - [`defaults`]: default values of columns
//! - [`ddl`]: CREATE and DROP
//! - [`alter`]: ALTER TABLE and COMMENT ON
//! - [`optimize`]: OPTIMIZE, the compaction of one table
//!
//! Files that statements name:
//!
//! - [`files`]: which paths statements may name
//! - [`partitions`]: columns in the names of folders
//! - [`arrow_files`]: reads Arrow files within query memory
//! - [`parquet_files`]: validates metadata of Parquet files
//!
//! Placement and hot views:
//!
//! - [`rule`]: placement rules
//! - [`tier`]: ALTER SYSTEM .. TIER
//! - [`tiering_commands`]: queries and orders on placement, commands to the tiering loop
//! - [`computed_rows`]: rows of commands that have no plan
//! - [`advice`]: advice on budgets
//! - [`views_on`]: hot views: statements, runs, mining
//! - `views_off`: the same interface in a build without hot views

mod admission;
mod advice;
mod alter;
mod analysis;
mod arrow_files;
mod base_config;
mod cancel;
mod catalog;
mod change;
mod cluster;
mod column_rights;
mod computed_rows;
mod copy;
mod ddl;
mod defaults;
mod duplicate_columns;
mod even_sorts;
mod execute;
mod explain;
mod files;
mod functions;
mod grants;
mod held_memory;
mod information;
mod ingest;
mod insert;
mod interrupt;
mod memory;
mod operators;
mod optimize;
mod parameters;
mod parquet_files;
mod partitions;
mod plan;
mod plan_cache;
mod planning;
mod policies;
mod prepare;
mod query;
mod recursion;
mod registry;
mod repeatable;
mod rights;
mod rule;
mod run;
mod session;
mod show;
mod skeleton;
mod small_batches;
mod spill;
mod statement;
mod stream_exec;
mod tasks;
#[cfg(test)]
mod tests;
mod tier;
mod tiering_commands;
mod tokens;
mod transaction;
pub(crate) mod types;
pub(crate) mod users;
#[cfg(not(feature = "hot-views"))]
pub(crate) mod views_off;
#[cfg(feature = "hot-views")]
pub(crate) mod views_on;
mod windows;
mod workload;
mod workload_commands;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use parking_lot::Mutex;
use terrace_access::{Owner, Trail, Users};
use terrace_heap::HeapAccount;
use terrace_tier_store::Store;
use terrace_tier_store::clock::{Clock, SystemClock};
use terrace_tier_store::io::{Priority, StatementId, with_priority};
use terrace_tier_store::store::NewTierSpec;
use tracing::Instrument;

pub use admission::AdmissionPolicy;
pub use files::{FileAccess, ObjectAccess, ObjectRoot, OutputPath, pool_file};
pub use ingest::{IngestMode, IngestRequest, RowStream};
pub use memory::QueryMemory;
pub use parquet_files::check_parquet;
pub use plan_cache::PlanCacheCounts;
pub(crate) use registry::QueryLogEntry;
pub use registry::{
    Counters, LoggedValues, MemoryUse, Outcome, QueryLog, QueryLogOptions, ReadWaits, StatementRecord, StatementState,
    StatementWork, StopOrder, TraceIdOf,
};
pub use rule::RuleOrder;
pub use session::{OptionKind, Session};
pub use statement::{Prepared, RunningQuery, SessionPart, Texts};
pub use terrace_cluster::NodeRecord;
pub use terrace_scan::hot_views::{MiningCounters, MiningMode, MiningOptions, RunCounters, ViewTally};
pub use terrace_sql::rule::{RowsOrder, ScopeOrder};
pub use terrace_sql::{CATALOG, DEFAULT_SCHEMA, INFORMATION_SCHEMA, SYSTEM_SCHEMA, StatementKind};
pub use transaction::Transaction;
#[cfg(not(feature = "hot-views"))]
pub(crate) use views_off as views;
#[cfg(feature = "hot-views")]
pub(crate) use views_on as views;
pub use workload::{DEFAULT_GROUP, WorkloadGroup, WorkloadGroupRecord};

use crate::error::{Error, ErrorKind, Result};
use admission::{Admission, AdmissionOptions};
use arrow_files::ArrowFiles;
use cluster::Cluster;
use files::{CheckedFiles, REPLACING};
use memory::MessageMemory;
use parquet_files::ValidatedFiles;
use plan_cache::PlanCache;
use planning::{Planner, PlanningOptions};
use registry::{EndedStatements, Registry, Ticket};
use spill::{SpillLimits, SpillSpace};
use statement::CachedQuery;
use tasks::run_on;
use types::ArrowTypes;
use workload::Groups;

/// Memory that the planning of a statement may hold however small query memory is: three of the largest values.
const LEAST_PLANNING_BYTES: u64 = 192 << 20;

/// Limits, folders and other settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Memory all statements together may reserve, in bytes.
    pub query_memory_bytes: u64,
    /// Folder of spill files; created if missing.
    pub spill_dir: PathBuf,
    /// Bytes that all statements together may have in spill files.
    pub spill_bytes: u64,
    /// Bytes that each statement may have there.
    pub statement_spill_bytes: u64,
    /// Percent of the budget of each memory tier that spilled rows may have while it has room.
    pub spill_tier_percent: f64,
    /// Target number of partitions of a plan; the number of worker threads is a good value.
    pub target_partitions: usize,
    /// Rows per batch.
    pub batch_size: usize,
    /// Which statements execute at the same time.
    pub admission: AdmissionPolicy,
    /// Statements that execute at the same time.
    pub max_running: usize,
    /// Point statements that execute besides: those that read few rows and need little memory.
    pub point_slots: usize,
    /// Workload groups of the configuration; one that is not among them takes the other sessions.
    pub workload_groups: Vec<WorkloadGroup>,
    /// Most statements that wait for a slot; one more is refused.
    pub max_queued: usize,
    /// Longest wait for a slot.
    pub queue_timeout: Duration,
    /// Longest execution; `None` for no limit.
    pub statement_timeout: Option<Duration>,
    /// Longest time for which a transaction stays open without a statement; `None`: for ever.
    pub idle_transaction_timeout: Option<Duration>,
    /// Runtime for execution; network code runs on another.
    pub cpu: tokio::runtime::Handle,
    /// Runtime for planning, and for the execution of point statements, which so have processor time beside the others.
    pub planning: tokio::runtime::Handle,
    /// Statements that are planned at once, of those that may take long; each has a thread of its own.
    pub planning_slots: usize,
    /// Longest time that the planning of a statement may take.
    pub planning_timeout: Duration,
    /// Ended statements kept for `system.queries`.
    pub history: usize,
    /// Statements that take so long, or longer, are logged; `None`: none are.
    pub slow_statement: Option<Duration>,
    /// The query log; `None`: there is none.
    pub query_log: Option<QueryLogOptions>,
    /// Most bytes per second that background runs of hot views read and write; 0: they run on REFRESH only.
    pub hot_view_bytes_per_s: u64,
    /// Options of view mining.
    pub mining: MiningOptions,
    /// Nodes of this process that execute parts of queries; fewer than two: none.
    pub nodes: usize,
    /// Queries whose tables have fewer rows in all stay whole.
    pub nodes_least_rows: u64,
    /// Files that statements may name; the store's own folder is protected besides.
    pub files: FileAccess,
    /// The user of the configuration.
    pub owner: Option<Owner>,
    /// Where statements and orders to end them are recorded.
    pub audit: Arc<Trail>,
    /// Names the traces of spans; `None`: it is not known which traces are recorded.
    pub trace_id_of: Option<TraceIdOf>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
}

impl EngineOptions {
    /// Sensible limits for tests and small servers: 1 GiB of query memory, 8 running statements, no time limit.
    pub fn new(spill_dir: impl Into<PathBuf>, cpu: tokio::runtime::Handle) -> Self {
        Self {
            query_memory_bytes: 1 << 30,
            spill_dir: spill_dir.into(),
            spill_bytes: 64 << 30,
            statement_spill_bytes: 32 << 30,
            spill_tier_percent: 10.0,
            target_partitions: std::thread::available_parallelism().map_or(2, usize::from),
            batch_size: 8192,
            admission: AdmissionPolicy::default(),
            max_running: 8,
            point_slots: 2,
            workload_groups: Vec::new(),
            max_queued: 64,
            queue_timeout: Duration::from_secs(30),
            statement_timeout: None,
            idle_transaction_timeout: Some(Duration::from_secs(600)),
            planning: cpu.clone(),
            planning_slots: 2,
            planning_timeout: Duration::from_secs(30),
            cpu,
            history: 1000,
            slow_statement: None,
            query_log: None,
            hot_view_bytes_per_s: 0,
            mining: MiningOptions::default(),
            nodes: 1,
            nodes_least_rows: 1_000_000,
            files: FileAccess::unrestricted(Vec::new()),
            owner: None,
            audit: Arc::default(),
            trace_id_of: None,
            clock: Arc::new(SystemClock::default()),
        }
    }
}

/// Kind of a catalog entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A table of the store.
    Table,
    /// A view.
    View,
    /// A table of schema `system` or `information_schema`.
    System,
    /// Files read in place.
    External,
}

/// One table, view, system or external table.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: EntryKind,
    /// Its columns; empty for a view or external table that can no longer be read.
    pub columns: SchemaRef,
    /// Default and comment of each column; may be shorter than `columns`.
    pub notes: Vec<ColumnNotes>,
    /// Names of the primary key's columns.
    pub primary_key: Vec<String>,
    /// Whether no two rows can have the same key.
    pub key_enforced: bool,
    /// Its comment.
    pub comment: Option<String>,
}

/// Default and comment of a column.
#[derive(Debug, Clone, Default)]
pub struct ColumnNotes {
    /// SQL text of its default.
    pub default: Option<String>,
    /// Its comment.
    pub comment: Option<String>,
}

/// Sessions and statements over one store.
pub struct Engine {
    users: Arc<Users>,
    files: Arc<FileAccess>,
    store: Arc<Store>,
    options: EngineOptions,
    /// Functions, rules, file formats and default options; statements clone it.
    base_state: Arc<SessionState>,
    runtime: Arc<RuntimeEnv>,
    spill_space: Arc<SpillSpace>,
    memory: Arc<QueryMemory>,
    planner: Arc<Planner>,
    plans: PlanCache<CachedQuery>,
    admission: Arc<Admission>,
    registry: Arc<Registry>,
    groups: Arc<Groups>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    next_session: AtomicU64,
    next_transaction: AtomicU64,
    /// Held while a name is looked up and then created or dropped.
    name_lock: tokio::sync::Mutex<()>,
    /// Views, external tables and schemas as last read from the store.
    objects: Mutex<Option<Arc<catalog::Objects>>>,
    hot_views: views::EngineViews,
    /// `None` without nodes.
    cluster: Option<Arc<Cluster>>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine over `store`. Fails when the spill folder cannot be created or written.
    pub fn new(store: Arc<Store>, options: EngineOptions) -> Result<Arc<Self>> {
        let spill = &options.spill_dir;
        std::fs::create_dir_all(spill).map_err(|e| {
            Error::new(ErrorKind::FailedPrecondition, format!("cannot create spill folder {}: {e}", spill.display()))
        })?;
        memory::charge_spawned_tasks();
        let memory = QueryMemory::new(options.query_memory_bytes);
        let (all_bytes, statement_bytes) = (options.spill_bytes, options.statement_spill_bytes);
        let limits = SpillLimits { all_bytes, statement_bytes, tier_share: options.spill_tier_percent / 100.0 };
        let spill_space = SpillSpace::new(spill, limits, &store, Arc::clone(&options.clock));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(memory.statement_pool(None))
            .with_disk_manager_builder(spill_space.for_statement(StatementId::NONE).disk_manager())
            // A cached listing would hide files added to an external table.
            .with_object_list_cache_limit(0)
            .build_arc()?;
        let server_paths = [store.data_dir().to_owned(), options.spill_dir.clone()];
        let files = Arc::new(options.files.clone().with_protected(server_paths));
        for (url, replace) in [(ObjectStoreUrl::local_filesystem(), false), (ObjectStoreUrl::parse(REPLACING)?, true)] {
            runtime.register_object_store(url.as_ref(), Arc::new(CheckedFiles::new(Arc::clone(&files), replace)));
        }
        for (url, objects) in files.objects().stores()? {
            runtime.register_object_store(url.as_ref(), objects);
        }
        let builder = SessionStateBuilder::new()
            .with_expr_planners(functions::expr_planners())
            .with_default_features()
            .with_type_planner(Arc::new(ArrowTypes))
            .with_runtime_env(Arc::clone(&runtime))
            .with_config(
                base_config::base_config(options.target_partitions, options.batch_size, &store)
                    .with_extension(Arc::clone(&files))
                    .with_extension(Arc::new(ValidatedFiles::default())),
            );
        let clock = Arc::clone(&options.clock);
        let mut base_state = terrace_scan::joins::with_rules(builder).build();
        functions::repair(&mut base_state, options.query_memory_bytes)?;
        base_state.register_file_format(Arc::new(ArrowFiles::new(MessageMemory(Arc::clone(&memory)))), true)?;
        let base_state = Arc::new(planning::with_checks(base_state));
        let planner = Planner::new(
            PlanningOptions {
                slots: options.planning_slots,
                queue_timeout: options.queue_timeout,
                most_time: options.planning_timeout,
                most_bytes: (options.query_memory_bytes / 4).max(LEAST_PLANNING_BYTES),
            },
            options.planning.clone(),
        );
        let records = Arc::new(users::CatalogRecords(Arc::clone(&store)));
        let users = Users::open(records, options.owner.clone(), Arc::clone(&clock)).map_err(users::access_error)?;
        let engine = Arc::new(Self {
            users,
            planner: Arc::new(planner),
            plans: PlanCache::default(),
            hot_views: views::EngineViews::new(&store, &base_state, &options)?,
            cluster: Cluster::start(options.nodes, options.nodes_least_rows, &options.cpu, &base_state)?.map(Arc::new),
            base_state,
            files,
            runtime,
            admission: Admission::new(
                AdmissionOptions {
                    policy: options.admission,
                    max_running: options.max_running,
                    point_slots: options.point_slots,
                    max_queued: options.max_queued,
                    timeout: options.queue_timeout,
                    memory_bytes: options.query_memory_bytes,
                },
                Arc::clone(&clock),
            ),
            registry: Registry::new(
                EndedStatements::new(options.history, Arc::clone(&options.audit))
                    .with_slow_log(options.slow_statement)
                    .with_query_log(options.query_log.clone(), &clock)?,
                options.statement_timeout,
                Arc::clone(&memory),
                Arc::clone(&spill_space),
                Arc::clone(&clock),
            ),
            spill_space,
            groups: Arc::new(Groups::load(&store, &options.workload_groups, options.query_memory_bytes)?),
            memory,
            sessions: Mutex::new(HashMap::new()),
            next_session: AtomicU64::new(1),
            next_transaction: AtomicU64::new(1),
            name_lock: tokio::sync::Mutex::new(()),
            objects: Mutex::default(),
            clock,
            store,
            options,
        });
        engine.close_default_roots();
        transaction::watch_idle(&engine);
        views::start(&engine);
        Ok(engine)
    }

    /// The store below.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The audit trail.
    pub fn audit(&self) -> &Arc<Trail> {
        &self.options.audit
    }

    /// The query log, where there is one.
    pub fn query_log(&self) -> Option<&Arc<QueryLog>> {
        self.registry.query_log()
    }

    /// The files that statements and requests may name.
    pub fn files(&self) -> &FileAccess {
        &self.files
    }

    /// Adds a tier, on a pool file or device that requests may name.
    ///
    /// # Errors
    /// Those of [`FileAccess::check_pool`] and of [`Store::add_tier`].
    pub fn add_tier(&self, order: NewTierSpec) -> Result<()> {
        let pool = order.path.as_deref().map(|path| self.files.check_pool(path)).transpose()?;
        self.store.add_tier(order.resolve(self.store.data_bytes())?)?;
        pool.into_iter().for_each(|pool| self.files.protect(pool));
        Ok(())
    }

    /// Its options.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Query memory: limit and use.
    pub fn memory(&self) -> &Arc<QueryMemory> {
        &self.memory
    }

    /// Query memory, as the account that decompressed messages and foreign files are charged to.
    pub fn message_memory(&self) -> Arc<dyn terrace_ipc::Account> {
        Arc::new(MessageMemory(Arc::clone(&self.memory)))
    }

    /// Bytes in spill files now.
    pub fn spilled_bytes(&self) -> u64 {
        self.spill_space.used_bytes()
    }

    /// Bytes of spill files that lie on memory tiers.
    pub fn spilled_tier_bytes(&self) -> u64 {
        self.spill_space.tier_bytes()
    }

    /// Begins to send spilled rows to the disk from tiers that want room. Unless memory is ample, none come to DRAM.
    pub fn give_tiers_room(&self, is_memory_ample: bool) {
        self.spill_space.leave_tiers(is_memory_ample);
    }

    /// How often queries found the plan of an earlier one.
    pub fn plan_cache(&self) -> &PlanCacheCounts {
        self.plans.counts()
    }

    /// Counts of statements by kind and outcome, durations, refusals.
    pub fn counters(&self) -> &Counters {
        self.registry.counters()
    }

    /// Counts of scans that used hot views, since the server started.
    pub fn view_tally(&self) -> &ViewTally {
        self.hot_views.tally()
    }

    /// Counters of runs of hot views.
    pub fn view_runs(&self) -> &RunCounters {
        self.hot_views.runs()
    }

    /// Counters of view mining since the server started.
    pub fn mining_counters(&self) -> &MiningCounters {
        self.hot_views.mining()
    }

    /// Statements waiting for a slot now.
    pub fn queued(&self) -> usize {
        self.admission.queued()
    }

    /// Query memory that the running statements are expected to need, weighted by time.
    pub fn demand_bytes(&self) -> u64 {
        self.admission.demand_bytes()
    }

    /// All workload groups and what their statements do now; the default group is the last one.
    pub fn workload_groups(&self) -> Vec<WorkloadGroupRecord> {
        self.admission.group_records(&self.groups)
    }

    /// Running statements, then ended ones, newest first.
    pub fn statements(&self) -> Vec<StatementRecord> {
        self.registry.statements()
    }

    /// Refuses new statements, waits up to `grace` for running ones, cancels those left and waits for their end.
    pub async fn drain(&self, grace: Duration) {
        self.hot_views.stop();
        self.registry.refuse_new();
        if tokio::time::timeout(grace, self.registry.wait_until_idle()).await.is_err() {
            self.registry.cancel_all();
            let _ = tokio::time::timeout(Duration::from_secs(5), self.registry.wait_until_idle()).await;
        }
    }

    /// Runs `work` on the CPU runtime; dropping the returned future aborts it.
    async fn on_cpu<T, F>(&self, work: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        run_on(&self.options.cpu, work).await
    }

    /// Does the planning `work` of a statement that is not executed yet. The caller holds a guard of its interrupt.
    async fn plan<T, F>(&self, may_take_long: bool, ticket: &Ticket, work: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let planner = Arc::clone(&self.planner);
        let interrupt = ticket.interrupt();
        let account = Arc::clone(ticket.memory().heap());
        let work = async move { account.charge(planner.plan(may_take_long, &interrupt, work)).await };
        run_on(&self.options.planning, work.instrument(ticket.span())).await
    }

    /// Drops the plans of the cache that are not current any more.
    fn drop_stale_plans(&self) {
        self.drop_plans(self.plans.take_stale());
    }

    /// Drops plans, and with them old versions of tables and their files, on a thread that may wait.
    fn drop_plans<P: Send + 'static>(&self, plans: Vec<P>) {
        if !plans.is_empty() {
            drop(self.options.cpu.spawn_blocking(move || drop(plans)));
        }
    }

    /// Runs a blocking store call on the CPU runtime's blocking threads.
    async fn blocking<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let work = HeapAccount::carry(tasks::in_current_span(work));
        self.options.cpu.spawn_blocking(work).await.unwrap_or_else(|e| Err(tasks::join_error(&e)))
    }

    /// Runs a blocking store call that other statements should not wait for, as [`Self::blocking`] does but at a low priority.
    async fn blocking_upkeep<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let work = HeapAccount::carry(tasks::in_current_span(work));
        // The thread that waits computes nothing, so it works for no account.
        let wait = move || with_priority(Priority::Planning, work)?;
        self.options.cpu.spawn_blocking(wait).await.unwrap_or_else(|e| Err(tasks::join_error(&e)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.hot_views.stop();
    }
}
