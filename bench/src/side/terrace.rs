//! The engine over a store in this process: runs SQL text to the end of the stream, as the Flight service would.
//!
//! - [`advice`]: predictions, of the advisor and for several ways to place
//! - [`costs`]: costs of accesses by tier
//! - [`crowd`]: many clients at the same time
//! - [`heat`]: access counters and places of segments; limits of tiers
//! - [`plain`]: DataFusion's own plans over the store's tables
//! - [`send`]: moves of all tables, and the read gap

mod advice;
mod costs;
mod crowd;
mod heat;
mod plain;
mod send;

pub use advice::{APPROACHES, DEVICE_POLICIES};

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type};
use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use roaring::RoaringTreemap;
use terrace_planner_ext::engine::{Engine, EngineOptions, MiningOptions, Session};
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::placement::tiering::EpochRequest;
use terrace_tier_store::store::{HbmOptions, NvmOptions, ReadGapChoice};
use terrace_tier_store::table::{ChunkEntry, TableName};
use terrace_tier_store::tier::TierId;
use terrace_tier_store::tier::codec::FormChoice;
use terrace_tier_store::tier::hbm::HbmBacking;
use terrace_tier_store::tier::nvm::{Limiter, NvmBacking};
use terrace_tier_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use super::datafusion::leaf_query;
use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::{db_benchmark, ssb, tpch};

/// Optane's bandwidth as a share of DRAM's, and its latency above DRAM's 80 ns at five times that.
pub(super) const NVM: Limiter = Limiter { bandwidth_ratio: 0.35, base_bytes_per_us: 9_800.0, random_latency_ns: 320 };
/// Time between two epochs of a loop that always has enough to move.
const EPOCH: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of alternations between queries without moves and queries during moves.
const TURNS: usize = 4;
const NOT_IN_Q6: [&str; 5] = [
    "lineitem PIN COLUMNS (l_orderkey, l_partkey, l_suppkey, l_tax, l_commitdate, l_receiptdate, l_comment)",
    "orders PIN",
    "partsupp PIN",
    "part PIN",
    "customer PIN",
];
const QUERY_MEMORY_BYTES: u64 = 8 << 30;
/// Memory of the host device: enough to measure it with. No image is made there.
const DEVICE_BYTES: u64 = 64 << 20;

/// The NVM tier of a side; it holds all data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nvm {
    /// None.
    Absent,
    /// Memory, slowed down to Optane's speed.
    Slowed,
    /// Memory as it is, all mapped in advance like a device's, so that moves to it cost only the copying.
    Plain,
}

/// The side.
pub struct Terrace {
    pub(super) runtime: Runtime,
    pub(super) engine: Arc<Engine>,
    session: Arc<Session>,
    threads: usize,
    marked: Option<Instant>,
}

impl Terrace {
    /// Opens a data directory with nothing resident.
    pub fn open(data_dir: &Path, threads: usize, nvm: Nvm, policy: PolicyKind, form: FormChoice) -> Result<Self> {
        let options = StoreOptions { form, ..StoreOptions::new(data_dir) };
        Self::open_with(options, threads, nvm, policy, MiningOptions::default())
    }

    /// Like [`Self::open`], with an NVM tier as fast as memory; moves by one thread, or by as many as a server has.
    pub fn open_tiers(data_dir: &Path, threads: usize, single_mover: bool) -> Result<Self> {
        let mut options = StoreOptions::new(data_dir);
        if single_mover {
            options.tiering.movers = 0;
        }
        Self::open_with(options, threads, Nvm::Plain, PolicyKind::Optimal, MiningOptions::default())
    }

    /// Like [`Self::open`], but with options for an engine that learns hot views from statements.
    pub fn open_mining(data_dir: &Path, threads: usize, mining: MiningOptions) -> Result<Self> {
        Self::open_with(StoreOptions::new(data_dir), threads, Nvm::Absent, PolicyKind::Optimal, mining)
    }

    /// Like [`Self::open`], but with a host device: reads are counted that its kernels could make.
    pub fn open_with_device(data_dir: &Path, threads: usize) -> Result<Self> {
        let backing = HbmBacking::Emulated { capacity_bytes: DEVICE_BYTES, faults: None };
        let hbm = Some(HbmOptions { backing, budget_bytes: None });
        let options = StoreOptions { hbm, ..StoreOptions::new(data_dir) };
        Self::open_with(options, threads, Nvm::Absent, PolicyKind::Optimal, MiningOptions::default())
    }

    fn open_with(
        mut options: StoreOptions,
        threads: usize,
        nvm: Nvm,
        policy: PolicyKind,
        mining: MiningOptions,
    ) -> Result<Self> {
        let data_dir = options.data_dir.clone();
        options.dram_budget_bytes = 0;
        options.io_budget_bytes = 256 << 20;
        // As a server does.
        options.read_gap = ReadGapChoice::Auto;
        // One epoch should place like many epochs: the cost of moves is ignored.
        options.tiering.payback_epochs = 1e6;
        options.tiering.hysteresis.epochs = 1_000_000;
        options.tiering.policy = policy;
        let pool = PathBuf::from(format!("/dev/shm/terrace-bench-{}.pool", std::process::id()));
        if nvm != Nvm::Absent {
            // Images are larger than the bytes in files, and padded.
            let store = Store::open(options.clone())?;
            let capacity_bytes = total_bytes(&store).next_multiple_of(1 << 21) * 5 / 4 + (64 << 20);
            store.close()?;
            let (backing, limiter) = match nvm {
                Nvm::Plain => (NvmBacking::Path(pool.clone()), None),
                _ => (NvmBacking::Emulated, Some(NVM)),
            };
            options.nvm = Some(NvmOptions { backing, capacity_bytes, limiter });
        }
        let store = Store::open(options)?;
        if nvm == Nvm::Plain {
            // The pool is mapped, so its memory is freed with the process.
            std::fs::remove_file(&pool).map_err(Error::path("remove", &pool))?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .map_err(Error::io("cannot start a runtime"))?;
        let options = EngineOptions {
            query_memory_bytes: QUERY_MEMORY_BYTES,
            target_partitions: threads,
            // Many clients may wait for one another for long.
            max_queued: 4096,
            queue_timeout: Duration::from_secs(3600),
            mining,
            ..EngineOptions::new(data_dir.join("spill"), runtime.handle().clone())
        };
        let engine = Engine::new(store, options)?;
        let session = engine.open_session("bench");
        Ok(Self { runtime, engine, session, threads, marked: None })
    }

    pub(super) fn sql(&self, sql: &str) -> Result<Sample> {
        let counters = self.engine.store().home().counters();
        let cold_before = counters.read_bytes.load(Ordering::Relaxed);
        let start = Instant::now();
        let rows = self.runtime.block_on(async {
            let mut running = self.session.prepare(sql).await?.query(None).await?;
            let mut rows = 0;
            while let Some(batch) = running.stream.next().await {
                rows += batch?.num_rows();
            }
            Ok::<_, Error>(rows)
        })?;
        let ms = ms_since(start);
        let cold = counters.read_bytes.load(Ordering::Relaxed) - cold_before;
        Ok(Sample::new(ms).with("rows", rows as f64).with("cold_bytes", cold as f64))
    }

    /// Sets the DRAM budget to a share of all bytes and runs one epoch, which places by the accesses so far.
    fn place(&self, share: f64) -> Result<Sample> {
        let start = Instant::now();
        let store = self.engine.store();
        let total = total_bytes(store) as f64;
        let home_before = unplaced_home_bytes(store);
        // Images are padded on their tier, so all of them need a little more than the sum of their bytes.
        let budget = if share >= 1.0 { total * 1.1 + 67e6 } else { total * share };
        store.tiering().set_budget("dram", budget as u64)?;
        let report = store.tiering().run_epoch(EpochRequest::now("benchmark"))?;
        let mut sample = Sample::new(ms_since(start))
            .with("moves", f64::from(report.epoch.moves_done))
            .with("move_ms", report.epoch.move_us as f64 / 1e3)
            .with("moved_bytes", report.epoch.moved_bytes as f64)
            .with("moved_home_bytes", (home_before - unplaced_home_bytes(store)).max(0.0))
            .with("total_bytes", total)
            .with("budget_bytes", budget.floor());
        for tier in store.tier_infos() {
            sample = sample.with(&format!("{}_bytes", tier.name), tier.placed_bytes as f64);
        }
        Ok(sample)
    }

    fn table(&self, name: &str) -> Result<Sample> {
        let table = self.engine.store().table(&TableName::new("public", name))?;
        let chunks = &table.version().chunks;
        let bytes: u64 = chunks.iter().flat_map(|c| c.chunk.segments.iter()).map(|s| s.home.len).sum();
        Ok(Sample::new(0.0).with("id", table.id().0 as f64).with("bytes", bytes as f64))
    }
}

/// Bytes of all segments in memory.
fn total_bytes(store: &Store) -> u64 {
    let tables = store.tables();
    let chunks = tables.iter().flat_map(|t| t.version().chunks.to_vec());
    chunks.map(|c| c.chunk.segments.iter().map(|s| s.bytes()).sum::<u64>()).sum()
}

/// Bytes in files of the segments without a copy in memory.
fn unplaced_home_bytes(store: &Store) -> f64 {
    let tables = store.tables();
    let chunks = tables.iter().flat_map(|t| t.version().chunks.to_vec());
    let home = |chunk: &ChunkEntry| {
        let cold = chunk.chunk.segments.iter().filter(|segment| segment.resident.load().is_none());
        cold.map(|segment| segment.home.len).sum::<u64>()
    };
    chunks.map(|chunk| home(&chunk) as f64).sum()
}

impl Side for Terrace {
    fn run(&mut self, op: &str) -> Result<Sample> {
        if let Some(sql) = tpch::query(op).or_else(|| ssb::query(op)).or_else(|| db_benchmark::query(op)) {
            return self.sql(sql);
        }
        if let Some(sql) = db_benchmark::check(op) {
            return self.numbers(&sql);
        }
        if let Some(sql) = leaf_query(op) {
            return self.leaf(sql);
        }
        match op.split_once(' ') {
            Some(("sql", sql)) => self.sql(sql),
            Some(("limit", what)) => self.limit(what),
            Some(("place", share)) => self.place(share.parse().map_err(|_| unknown(op))?),
            Some(("advise", shares)) => self.advise(shares),
            Some(("compare", share)) => self.compare(share.parse().map_err(|_| unknown(op))?),
            Some(("images", share)) => self.images(share.parse().map_err(|_| unknown(op))?),
            Some(("budget", bytes)) => self.budget(bytes.parse().map_err(|_| unknown(op))?),
            Some(("table", name)) => self.table(name),
            Some(("delete", what)) => self.delete(what).ok_or_else(|| unknown(op))?,
            Some(("latency", count)) => self.latency(count.parse().map_err(|_| unknown(op))?),
            Some(("optimize", name)) => self.optimize(name),
            Some(("show", sql)) => self.show(sql),
            Some(("crowd", what)) => self.crowd(what),
            Some(("send", tier)) => self.send(tier),
            Some(("send-each", tier)) => self.send_each(tier),
            Some(("gap", bytes)) => self.fix_gap(bytes.parse().map_err(|_| unknown(op))?),
            None if op == "gap" => Ok(self.gap()),
            None if op == "fill" => self.bring_all_to_dram(),
            None if op == "costs" => self.costs(),
            None if op == "heat" => Ok(self.heat()),
            None if op == "mark" => Ok(self.mark()),
            None if op == "history" => self.check_history(),
            _ => Err(unknown(op)),
        }
    }
}

impl Terrace {
    /// "TABLE FROM TO": deletes the rows whose random number below 1, always the same for a row, is from FROM up to TO.
    fn delete(&self, what: &str) -> Option<Result<Sample>> {
        let words: Vec<&str> = what.split(' ').collect();
        let [name, from, to] = words.as_slice() else { return None };
        let from = from.parse::<f64>().ok()?;
        let to = to.parse::<f64>().ok()?;
        Some(self.delete_between(name, from, to))
    }

    fn delete_between(&self, name: &str, from: f64, to: f64) -> Result<Sample> {
        let table = self.engine.store().table(&TableName::new("public", name))?;
        let seen = table.version();
        let mut rng = StdRng::seed_from_u64(1);
        let mut rows = RoaringTreemap::new();
        for (item, entry) in (0_u64..).zip(seen.chunks.iter()) {
            let chosen = (0..u64::from(entry.chunk.rows)).filter(|_| (from..to).contains(&rng.random::<f64>()));
            rows.extend(chosen.map(|row| item << 32 | row));
        }
        let start = Instant::now();
        let mut transaction = self.engine.store().begin();
        transaction.change(&table, &seen, &rows, None)?;
        transaction.commit()?;
        Ok(Sample::new(ms_since(start)).with("rows", rows.len() as f64))
    }

    /// The latency of Q6, `count` times without moves and as often during moves, alternating every few seconds, so that
    /// other load of the machine affects both. The statements that change rules run all the time.
    fn latency(&self, count: usize) -> Result<Sample> {
        let tiering = self.engine.store().tiering();
        let query = tpch::query("q6").unwrap_or_default();
        // Moves to the SSD copy nothing.
        let moved = || tiering.metrics().moved_bytes(TierId(1), TierId(0));
        let before = moved();
        let stop = AtomicBool::new(false);
        let mut moving_ms = 0.0;
        let [mut still, mut moving] = std::thread::scope(|scope| {
            let rules = scope.spawn(|| self.send_to_and_fro(&stop));
            let mut take_turns = || -> Result<[Vec<f64>; 2]> {
                let mut times = [Vec::new(), Vec::new()];
                for turn in 0..2 * TURNS {
                    let moves = turn % 2;
                    let start = Instant::now();
                    if moves == 1 {
                        tiering.start(EPOCH)?;
                    }
                    for _ in 0..count.div_ceil(TURNS) {
                        times[moves].push(self.sql(query)?.ms);
                    }
                    if moves == 1 {
                        tiering.stop();
                        moving_ms += ms_since(start);
                    }
                }
                Ok(times)
            };
            let times = take_turns();
            stop.store(true, Ordering::Relaxed);
            rules.join().map_err(|_| Error::failed("the thread that changes rules ended abnormally".to_owned()))??;
            times
        })?;
        let at = |times: &mut [f64], share: f64| {
            times.sort_by(f64::total_cmp);
            times.get(((times.len() as f64 * share) as usize).min(times.len() - 1)).copied().unwrap_or(f64::NAN)
        };
        Ok(Sample::new(moving_ms)
            .with("still_p50_ms", at(&mut still, 0.5))
            .with("still_p99_ms", at(&mut still, 0.99))
            .with("moving_p50_ms", at(&mut moving, 0.5))
            .with("moving_p99_ms", at(&mut moving, 0.99))
            .with("moved_bytes", (moved() - before) as f64))
    }

    /// Pins the columns that Q6 does not read to DRAM and to the SSD in turn, until `stop` is set; the loop moves them
    /// at the default rate of a server. It uses rules, not heat, so that every epoch has something to move: five
    /// statements a second.
    fn send_to_and_fro(&self, stop: &AtomicBool) -> Result<()> {
        for tier in ["dram", "ssd"].into_iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            for what in NOT_IN_Q6 {
                self.sql(&format!("ALTER TABLE {what} TO {tier}"))?;
            }
            let changed = Instant::now();
            while changed.elapsed() < EPOCH && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    fn optimize(&self, name: &str) -> Result<Sample> {
        let table = self.engine.store().table(&TableName::new("public", name))?;
        let start = Instant::now();
        let done = self.engine.store().optimize(&table)?;
        Ok(Sample::new(ms_since(start))
            .with("bytes", done.written_bytes as f64)
            .with("rows_dropped", done.rows_dropped as f64)
            .with("chunks_in", done.chunks_in as f64)
            .with("chunks_out", done.chunks_out as f64))
    }

    /// Writes the rows of a statement to stderr: for looking at plans.
    fn show(&self, sql: &str) -> Result<Sample> {
        let sql = sql
            .rsplit_once(' ')
            .filter(|(_, q)| tpch::query(q).is_some())
            .map_or(sql.to_owned(), |(head, q)| format!("{head} {}", tpch::query(q).unwrap_or_default()));
        let batches = self.batches(&sql)?;
        eprintln!("{}", arrow::util::pretty::pretty_format_batches(&batches)?);
        Ok(Sample::default())
    }

    /// The numbers of a statement's one row, by the names of their columns; 0 for null.
    fn numbers(&self, sql: &str) -> Result<Sample> {
        let start = Instant::now();
        let batches = self.batches(sql)?;
        let mut sample = Sample::new(ms_since(start));
        for batch in &batches {
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                let numbers = arrow::compute::cast(column, &DataType::Float64)?;
                if let Some(number) = numbers.as_primitive::<Float64Type>().iter().next() {
                    sample = sample.with(field.name(), number.unwrap_or_default());
                }
            }
        }
        Ok(sample)
    }

    fn batches(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        self.runtime.block_on(async {
            let running = self.session.prepare(sql).await?.query(None).await?;
            let batches: Vec<_> = running.stream.collect().await;
            batches.into_iter().map(|b| Ok(b?)).collect::<Result<Vec<_>>>()
        })
    }
}
