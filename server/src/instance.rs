//! A store with its engine, as a server, a load into a folder and the demo need it.
//!
//! The engine's work runs on a runtime of its own, so that network and admin requests never wait behind a query
//! (architecture, decision 11). Opening and closing block: call them from plain threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrace_access::{LogFile, Owner, Trail};
use terrace_objects::ObjectAddress;
use terrace_planner_ext::engine::{
    Engine, EngineOptions, FileAccess, MiningMode, MiningOptions, ObjectAccess, ObjectRoot, pool_file,
};
use terrace_tier_store::io::Depth;
use terrace_tier_store::placement::{HysteresisOptions, MergeKind, TieringMode};
use terrace_tier_store::store::{CompressionChoice, HbmOptions, NvmOptions, ReadGapChoice};
use terrace_tier_store::tier::codec;
use terrace_tier_store::tier::hbm::HbmBacking;
use terrace_tier_store::tier::nvm::{Limiter, NvmBacking};
use terrace_tier_store::tier::reader::ReadGap;
use terrace_tier_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use crate::config::{Compression, Config};
use crate::error::{Error, Result};
use crate::memory::{Limit, MemoryPlan};
use crate::memory_watch::{MemoryWatch, WatchFigures};
use crate::traces;

/// Stack of a thread that parses and plans: planning a chain of conditions takes one nested call per condition.
pub(crate) const STACK_BYTES: usize = 64 << 20;

/// Time that the last lines of the audit trail and of the query log have to be written, if the disk does not take them.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// An open store and the engine above it.
pub struct Instance {
    /// Sessions and statements.
    pub engine: Arc<Engine>,
    /// How memory is divided.
    pub plan: MemoryPlan,
    watch: MemoryWatch,
    runtimes: Option<Runtimes>,
}

/// The threads of the engine. They share the processor: those that plan, and execute point statements, get their part of
/// it however many statements are executed. There are as many as point statements, and more for planning, because a
/// thread is not free for others before a batch of its statement is done.
struct Runtimes {
    execution: Runtime,
    planning: Runtime,
}

fn start_threads(name: &str, threads: usize) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .map_err(|e| Error::System(format!("cannot start the query threads: {e}")))
}

impl Instance {
    /// Opens the data directory of `config`.
    ///
    /// # Errors
    /// When memory does not suffice, the directory is in use or cannot be written, or the NVM path is no such device.
    pub fn open(config: &Config) -> Result<Self> {
        let plan = MemoryPlan::new(config, Limit::detect())?;
        let store = Store::open(store_options(config, &plan)?)?;
        if let (Some(budget), Some(device)) = (config.tiers.hbm.budget, store.device_tier()) {
            let most = device.most_bytes();
            store.tiering().set_first_budget(device.name(), budget.resolve(most).min(most))?;
        }
        if let Some(budget) = config.tiers.nvm.budget {
            let capacity = config.tiers.nvm.capacity.map_or(0, |size| size.resolve(plan.limit.bytes));
            store.tiering().set_first_budget("nvm", budget.resolve(plan.limit.bytes).min(capacity))?;
        }
        // Spill files of a killed process; the store's lock proves that no other process uses the folder.
        let spill = config.data_dir.join("spill");
        if let Err(error) = std::fs::remove_dir_all(&spill)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, folder = %spill.display(), "cannot remove old spill files");
        }
        let threads = match config.query.threads {
            0 => std::thread::available_parallelism().map_or(2, usize::from),
            threads => threads,
        };
        let runtimes = Runtimes {
            execution: start_threads("terrace-cpu", threads)?,
            planning: start_threads("terrace-plan", threads + config.query.point_slots)?,
        };
        let options = engine_options(config, &plan, threads, &runtimes);
        let audit = Trail::start(config.audit.options(), Arc::clone(&options.clock));
        let audit = audit.map_err(|error| {
            let path = config.audit.file.clone().unwrap_or_default();
            Error::file(path, format!("cannot open the file of the audit trail: {error}"))
        })?;
        let files = options.files.clone().with_objects(object_access(config)?);
        let engine = Engine::new(store, EngineOptions { audit, files, ..options })?;
        let watch = MemoryWatch::start(&engine, plan.limit.bytes, plan.limit.group.clone())?;
        Ok(Self { engine, plan, watch, runtimes: Some(runtimes) })
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        self.engine.store()
    }

    /// Memory of the process against its limit.
    pub fn memory_use(&self) -> Arc<WatchFigures> {
        self.watch.figures()
    }

    /// The runtime of queries.
    pub fn cpu(&self) -> Option<&tokio::runtime::Handle> {
        self.runtimes.as_ref().map(|runtimes| runtimes.execution.handle())
    }

    /// Stops background work and flushes; call it when no statement runs any more.
    ///
    /// # Errors
    /// When the catalog cannot be written; acknowledged changes are durable even then.
    pub fn flush(&self) -> Result<()> {
        self.engine.audit().flush(FLUSH_TIME);
        if let Some(query_log) = self.engine.query_log() {
            query_log.flush(FLUSH_TIME);
        }
        Ok(self.store().close()?)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Dropping a runtime waits, which panics inside another runtime.
        if let Some(Runtimes { execution, planning }) = self.runtimes.take() {
            planning.shutdown_background();
            execution.shutdown_background();
        }
    }
}

fn engine_options(config: &Config, plan: &MemoryPlan, threads: usize, runtimes: &Runtimes) -> EngineOptions {
    let query = &config.query;
    let spill_bytes = query.spill_limit.resolve(0);
    EngineOptions {
        query_memory_bytes: plan.query_bytes,
        target_partitions: threads,
        admission: query.admission,
        max_running: query.max_running,
        point_slots: query.point_slots,
        workload_groups: config
            .workload_groups
            .iter()
            .map(|(name, group)| group.resolve(name, plan.query_bytes))
            .collect(),
        max_queued: query.max_queued,
        queue_timeout: query.queue_timeout.0,
        statement_timeout: query.timeout.map(|span| span.0),
        idle_transaction_timeout: Some(query.idle_transaction_timeout.0).filter(|timeout| !timeout.is_zero()),
        planning: runtimes.planning.handle().clone(),
        planning_slots: if query.planning_slots == 0 { threads.div_ceil(2) } else { query.planning_slots },
        planning_timeout: query.planning_timeout.0,
        spill_bytes,
        statement_spill_bytes: query.statement_spill_limit.resolve(spill_bytes),
        spill_tier_percent: query.spill_tier_percent,
        history: query.history,
        slow_statement: config.log.slow_statement.map(|span| span.0),
        query_log: config.query_log.options(&config.data_dir),
        trace_id_of: Some(traces::trace_id),
        mining: MiningOptions {
            mode: config.hot_views.mode,
            interval: (config.hot_views.mode != MiningMode::Off).then_some(config.tiering.interval.0),
            half_life_epochs: config.tiering.half_life,
            payback_epochs: config.hot_views.payback_epochs,
            most_views: config.hot_views.most_mined,
            retire_after: config.hot_views.retire_after,
        },
        hot_view_bytes_per_s: config.compaction.rate_limit.resolve(1 << 30),
        nodes: config.cluster.nodes,
        nodes_least_rows: config.cluster.least_rows,
        files: file_access(config),
        owner: config.user.clone().zip(config.password.clone()).map(|(name, password)| Owner { name, password }),
        ..EngineOptions::new(config.data_dir.join("spill"), runtimes.execution.handle().clone())
    }
}

/// Files that statements may name; the engine itself protects the data directory and the spill folder.
fn file_access(config: &Config) -> FileAccess {
    let listed = |folders: &str| -> Vec<PathBuf> {
        folders.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from).collect()
    };
    let roots = |given: &Option<String>| match given {
        Some(folders) => listed(folders),
        None => vec![PathBuf::from("/")],
    };
    let read_roots = roots(&config.files.read_roots);
    let write_roots = roots(&config.files.write_roots);
    let mut protected: Vec<PathBuf> = config.files.protected.as_deref().map_or_else(Vec::new, listed);
    protected.extend(config.tiers.nvm.path.as_deref().map(pool_file));
    let (tls, oidc) = (&config.tls, &config.oidc);
    let named = [&tls.cert, &tls.key, &tls.client_ca, &oidc.keys_file, &oidc.ca, &config.traces.ca];
    protected.extend(named.into_iter().flatten().cloned());
    protected.extend(config.home.folder());
    protected.extend(config.audit.options().file.iter().flat_map(LogFile::paths));
    FileAccess::new(read_roots, write_roots, protected)
        .with_set_roots(config.files.read_roots.is_some(), config.files.write_roots.is_some())
        .with_own_roots(
            config.files.backup_roots.as_deref().map(listed),
            config.files.pool_roots.as_deref().map(listed),
        )
}

/// Prefixes of object stores that statements may read and write.
fn object_access(config: &Config) -> Result<ObjectAccess> {
    let options = config.home.s3_options();
    let root = |address: ObjectAddress| -> Result<ObjectRoot> {
        let store = terrace_objects::connect(&address, &options)?;
        Ok(ObjectRoot::new(address.bucket(), address.prefix().clone(), store))
    };
    let roots = |addresses: Vec<ObjectAddress>| addresses.into_iter().map(root).collect::<Result<Vec<_>>>();
    Ok(ObjectAccess::new(roots(config.files.read_addresses()?)?, roots(config.files.write_addresses()?)?))
}

fn store_options(config: &Config, plan: &MemoryPlan) -> Result<StoreOptions> {
    let nvm = &config.tiers.nvm;
    let backing = match (&nvm.path, nvm.emulated) {
        (Some(path), _) => Some(NvmBacking::Path(path.clone())),
        (None, true) => Some(NvmBacking::Emulated),
        (None, false) => None,
    };
    let capacity_bytes = nvm.capacity.map_or(0, |size| size.resolve(plan.limit.bytes));
    let limiter = nvm.slow.then_some(Limiter::SLOW);
    let hbm = &config.tiers.hbm;
    let device = match (hbm.device, hbm.emulated) {
        (Some(number), _) => Some(HbmBacking::Cuda(number)),
        (None, true) => Some(HbmBacking::Emulated { capacity_bytes: plan.hbm_bytes, faults: None }),
        (None, false) => None,
    };
    let mut options = StoreOptions {
        dram_budget_bytes: plan.dram_bytes,
        nvm: backing.map(|backing| NvmOptions { backing, capacity_bytes, limiter }),
        hbm: device.map(|backing| HbmOptions { backing, budget_bytes: None }),
        home: config.home.place()?,
        ssd_budget_bytes: config.tiers.ssd.limit.map(|size| size.resolve(plan.limit.bytes)),
        form: config.tiering.form,
        file_format: config.tiers.ssd.format,
        compression: match config.tiers.ssd.compression {
            Compression::Auto => CompressionChoice::Auto,
            Compression::None => CompressionChoice::None,
            Compression::Lz4 => CompressionChoice::Always(codec::Compression::Lz4),
            Compression::Zstd => CompressionChoice::Always(codec::Compression::Zstd),
        },
        read_gap: config
            .tiers
            .ssd
            .read_gap
            .map_or(ReadGapChoice::Auto, |gap| ReadGapChoice::Fixed(gap.resolve(ReadGap::MOST))),
        io_budget_bytes: plan.io_bytes,
        io_rules: config.io.rules()?,
        io_beside_points_bytes: config.io.beside_points.resolve(Depth::BESIDE_POINTS),
        delta_budget_bytes: plan.delta_bytes,
        ingest_budget_bytes: plan.ingest_bytes,
        filter_budget_bytes: plan.filter_bytes,
        catalog_cache_bytes: (plan.reserve_bytes / 4).min(64 << 20) as usize,
        compaction_bytes_per_s: config.compaction.rate_limit.resolve(1 << 30),
        epoch_interval: Some(config.tiering.interval.0),
        ..StoreOptions::new(&config.data_dir)
    };
    let tiering = &mut options.tiering;
    tiering.half_life_epochs = config.tiering.half_life;
    tiering.payback_epochs = config.tiering.payback_epochs;
    let epochs = config.tiering.flip_back_epochs;
    let factor = config.tiering.flip_back_factor;
    tiering.hysteresis = HysteresisOptions { epochs, factor };
    tiering.policy = config.tiering.policy;
    tiering.solver_deadline = config.tiering.solver_deadline.0;
    tiering.merge.kind = config.tiering.merge.unwrap_or_else(|| MergeKind::default_for(config.tiering.policy));
    tiering.merge.top_percent = config.tiering.merge_top_percent;
    tiering.mode = if config.tiering.enabled { config.tiering.mode } else { Some(TieringMode::Off) };
    tiering.background_bytes_per_s = Some(config.tiering.rate_limit.resolve(1 << 30)).filter(|rate| *rate > 0);
    let rates = config.tiers.rate_limits().into_iter();
    tiering.tier_bytes_per_s = rates.map(|(tier, rate)| (config.tier_name(tier), rate.resolve(0))).collect();
    tiering.max_budget_bytes =
        [("dram".to_owned(), plan.largest_dram_bytes()), ("nvm".to_owned(), capacity_bytes)].into();
    Ok(options)
}
