//! `terrace demo`: TPC-H before and after most of the data left DRAM.
//!
//! One process is server and client: the queries go through Flight SQL on loopback; the demo sets the budget and runs
//! the epoch on the store itself. All figures are measured in this run.
//!
//! - [`compare`]: compares two results
//! - [`heatmap`]: accesses of a table as characters
//! - [`report`]: tables and the JSON report

mod compare;
mod heatmap;
mod report;

use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use terrace_tier_store::clock::{Clock, SystemClock};
use terrace_tier_store::placement::{EpochReport, EpochRequest};
use terrace_tier_store::store::TierInfo;
use terrace_tier_store::table::TableName;
use terrace_tier_store::tier::TierKind;

use crate::client::{Client, Mode};
use crate::config::{self, Config, ConfigOverride, LogConfig, TlsConfig};
use crate::error::{Error, Result};
use crate::load::generated::Generated;
use crate::load::{self, Target, source};
use crate::logging;
use crate::serve::{self, Server};
use crate::terminal::{errln, out, outln};
use crate::tpch;
use crate::units::{Size, human_bytes};
use report::{QueryTimes, Report};

/// Options of `terrace demo`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// TPC-H scale factor; 1 is about 1.4 GB of Arrow data
    #[arg(long, default_value = "1", value_parser = tpch::parse_scale)]
    scale: f64,
    /// DRAM budget of the second run: a share of the data, or bytes
    #[arg(long, default_value = "10%", value_name = "SIZE")]
    budget: Size,
    /// Measured runs of each query, after one to warm up; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the server running afterwards
    #[arg(long)]
    keep_serving: bool,
    /// Keep the data there [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Add an NVM tier of this size, emulated in ordinary memory
    #[arg(long, value_name = "SIZE")]
    nvm: Option<Size>,
    /// Where Flight SQL listens
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    flight_addr: String,
    /// Where HTTP listens
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    http_addr: String,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let folder = Folder::new(options.data_dir.as_deref())?;
    let mut server = Server::start(configuration(options, &folder.path)?)?;
    let watch =
        server.network().map(|network| network.spawn(remove_when_interrupted(folder.path.clone(), folder.temporary)));
    let wrong = stages(options, &server)?;
    if let Some(watch) = watch {
        watch.abort();
    }
    if options.keep_serving {
        server.start_tiering()?;
        outln!("{}\nThe server is still running. Stop it with Ctrl-C.", server.summary());
        serve::wait_and_stop(server)?;
    } else {
        server.shutdown()?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::AnswersDiffer(wrong.join(", "))) }
}

fn configuration(options: &Options, folder: &Path) -> Result<Config> {
    let mut flags = vec![
        ConfigOverride::flag("--data-dir", "data_dir", folder.display()),
        ConfigOverride::flag("--flight-addr", "flight.addr", &options.flight_addr),
        ConfigOverride::flag("--http-addr", "http.addr", &options.http_addr),
        // The demo itself runs the epoch.
        ConfigOverride::flag("demo", "tiering.enabled", "false"),
    ];
    if let Some(size) = options.nvm {
        flags.push(ConfigOverride::flag("--nvm", "tiers.nvm.emulated", "true"));
        flags.push(ConfigOverride::flag("--nvm", "tiers.nvm.capacity", size));
    }
    let mut config = Config::load(None, config::environment(), flags)?;
    // Its own client connects, on this machine.
    config.tls = TlsConfig::default();
    // Its output is for people, who want no news of each start and session.
    if config.log.level == LogConfig::LEVEL {
        "warn".clone_into(&mut config.log.level);
    }
    logging::start(&config.log, None)?;
    Ok(config)
}

/// Runs and prints all stages; returns the queries whose answers differ.
fn stages(options: &Options, server: &Server) -> Result<Vec<String>> {
    let Some(network) = server.network().cloned() else { return Ok(Vec::new()) };
    let mut client = network.block_on(Client::connect(&server.connection()))?;

    outln!("1  TPC-H at scale {}, lineitem by ship date, orders by order date", options.scale);
    let mut target = Target::Engine(server.engine().clone());
    for table in tpch::TABLES {
        let rows = source::generated(Generated::tpch(table, options.scale));
        network.block_on(load::load(&mut target, rows, Mode::Replace))?;
    }
    let before = server.store().tier_infos();
    let data_bytes = all_in_dram(&before, options.scale)?;

    outln!("\n2  The 22 queries with all {} in DRAM, through Flight SQL", human_bytes(data_bytes));
    let first = network.block_on(run_queries(&mut client, options.runs))?;

    let budget_bytes = options.budget.resolve(data_bytes);
    outln!("\n3  DRAM budget {} ({}), one epoch of the tiering loop", human_bytes(budget_bytes), options.budget);
    let epoch = lower_budget(server, budget_bytes)?;
    let after = server.store().tier_infos();
    out!("{}", report::tier_table(&before, &after));

    outln!("\n4  The 22 queries again");
    let second = network.block_on(run_queries(&mut client, options.runs))?;
    let mut queries = Vec::new();
    for (number, (a, b)) in first.into_iter().zip(second).enumerate() {
        let equal = compare::equal(&a.rows, &b.rows)?;
        queries.push(QueryTimes { q: number + 1, dram_ms: a.median_ms, tiered_ms: b.median_ms, equal });
    }
    let report = Report::new(options.scale, budget_bytes, queries, &after, &epoch);
    out!("{}", report::query_table(&report));
    show_why(server, &epoch)?;
    show_next(options, server);
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| Error::System(e.to_string()))?;
        std::fs::write(path, text + "\n").map_err(|e| Error::file(path, e))?;
    }
    Ok(report.queries.iter().filter(|q| !q.equal).map(|q| format!("Q{}", q.q)).collect())
}

/// Prints the largest moves with their reasons, and the heat map.
fn show_why(server: &Server, epoch: &EpochReport) -> Result<()> {
    let e = &epoch.epoch;
    outln!(
        "\n5  The largest of {} moves, and why (solved in {:.1} ms, at most {:.3} % from the best placement)",
        e.moves_done,
        e.solve_us as f64 / 1e3,
        e.gap * 100.0
    );
    out!("{}", report::move_table(epoch));
    outln!("\n6  Accesses to lineitem");
    let lineitem = TableName { schema: "public".to_owned(), name: "lineitem".to_owned() };
    out!("{}", heatmap::draw(&heatmap::counts(&*server.store().table(&lineitem)?), width()));
    Ok(())
}

/// Prints how to go on: only a server that stays can be connected to.
fn show_next(options: &Options, server: &Server) {
    if !options.keep_serving {
        outln!(
            "\n7  Look around: terrace demo --keep-serving keeps the server running, for the cockpit, terrace sql and Python"
        );
        return;
    }
    outln!("\n7  Connect from Python");
    for line in serve::python_lines(&server.connection()) {
        outln!("  {line}");
    }
}

/// Characters left for the heat map.
fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse::<usize>().ok());
    columns.unwrap_or(100).clamp(40, 300) - 20
}

/// Fails unless all data is in DRAM, as the first run must read from no other tier; returns the bytes of the data.
fn all_in_dram(tiers: &[TierInfo], scale: f64) -> Result<u64> {
    let below: u64 = tiers.iter().filter(|t| t.kind != TierKind::Dram).map(|t| t.placed_bytes).sum();
    let data_bytes: u64 = tiers.iter().map(|t| t.placed_bytes).sum();
    if below == 0 {
        return Ok(data_bytes);
    }
    let dram: u64 = tiers.iter().filter(|t| t.kind == TierKind::Dram).map(|t| t.budget_bytes).sum();
    Err(Error::Memory(format!(
        "the first run wants all data in DRAM, but scale {scale} has {} and the DRAM tier of this machine {}: choose a \
         smaller --scale",
        human_bytes(data_bytes),
        human_bytes(dram)
    )))
}

/// Lowers the budget, runs the epoch, and checks that DRAM use is within the budget.
fn lower_budget(server: &Server, budget_bytes: u64) -> Result<EpochReport> {
    let tiering = server.store().tiering();
    let dram = server.store().tier_infos().into_iter().find(|t| t.kind == TierKind::Dram);
    let Some(dram) = dram else { return Err(Error::System("there is no DRAM tier".to_owned())) };
    tiering.set_budget(&dram.name, budget_bytes)?;
    let epoch = tiering.run_epoch(EpochRequest::now("demo: the DRAM budget was lowered"))?;
    let used: u64 = server.store().tier_infos().iter().filter(|t| t.kind == TierKind::Dram).map(|t| t.used_bytes).sum();
    if used > budget_bytes {
        return Err(Error::Memory(format!(
            "after the epoch {} are in DRAM, more than the budget of {}",
            human_bytes(used),
            human_bytes(budget_bytes)
        )));
    }
    Ok(epoch)
}

/// One query's answer and time.
struct Answer {
    rows: Vec<RecordBatch>,
    median_ms: f64,
}

/// Runs each query once to warm up, then `runs` times.
async fn run_queries(client: &mut Client, runs: u32) -> Result<Vec<Answer>> {
    let clock = SystemClock::default();
    let mut answers = Vec::new();
    for (number, sql) in tpch::QUERIES.iter().enumerate() {
        let failed = |e: Error| Error::System(format!("Q{}: {e}", number + 1));
        let rows = client.query(sql).await.map_err(failed)?;
        let mut times_ms = Vec::new();
        for _ in 0..runs {
            let start_us = clock.now_us();
            client.query(sql).await.map_err(failed)?;
            times_ms.push((clock.now_us() - start_us) as f64 / 1e3);
        }
        let median_ms = median(&mut times_ms);
        errln!("   Q{:<3}{median_ms:>9.1} ms", number + 1);
        answers.push(Answer { rows, median_ms });
    }
    Ok(answers)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied().unwrap_or_default();
    match values.len() % 2 {
        0 => (values.get(middle.wrapping_sub(1)).copied().unwrap_or(upper) + upper) / 2.0,
        _ => upper,
    }
}

/// The data directory: the user's, or one that is removed with the demo.
struct Folder {
    path: PathBuf,
    temporary: bool,
}

impl Folder {
    fn new(given: Option<&Path>) -> Result<Self> {
        if let Some(path) = given {
            return Ok(Self { path: path.to_owned(), temporary: false });
        }
        let name = format!("terrace-demo-{}-{}", std::process::id(), crate::unix_us());
        let shared = std::env::temp_dir();
        // On tmpfs the SSD tier would be memory, and the measured times wrong.
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let parent = if is_memory(&shared, &mounts) { PathBuf::from(".") } else { shared };
        let path = parent.join(name);
        std::fs::create_dir_all(&path).map_err(|e| Error::file(&path, format!("cannot create it: {e}")))?;
        Ok(Self { path, temporary: true })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            errln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes the folder after Ctrl-C, so that an interrupted demo leaves no data behind.
async fn remove_when_interrupted(folder: PathBuf, temporary: bool) {
    if serve::signal().await.is_ok() {
        // The load may write a new file meanwhile, which makes the removal fail: try again.
        let mut tries = if temporary { 0..50 } else { 0..0 };
        while tries.next().is_some() && folder.exists() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        std::process::exit(130);
    }
}

/// True when the mount that holds `path` is a memory file system.
fn is_memory(path: &Path, mounts: &str) -> bool {
    let holding = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        let kind = words.next()?;
        path.starts_with(place).then_some((place.len(), kind))
    });
    holding.max_by_key(|(len, _)| *len).is_some_and(|(_, kind)| kind == "tmpfs" || kind == "ramfs")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_memory_file_system_is_known_by_its_longest_mount() {
        let mounts = "overlay / overlay rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/sda /tmp/disk ext4 rw 0 0\n";
        assert!(is_memory(Path::new("/tmp/x"), mounts));
        assert!(!is_memory(Path::new("/tmp/disk/x"), mounts) && !is_memory(Path::new("/tmpx"), mounts));
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
