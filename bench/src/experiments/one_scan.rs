//! Statements on hot columns before and after one scan of a cold table several times larger than DRAM, which an LRU cache
//! would keep instead of them (hStorage-DB, section 6.3.1: +16 % and +25 % of the time of Q1 and Q19), and after a load of as many
//! fresh rows, which its rule 4 would give a part of the fast tier before everything else.
//!
//! The servers change what is in memory at epochs only, as they do by default; or take columns in between epochs, too, that are
//! worth more than what has to make room for them (`tiering.merge = "selective"`: admission is on); or as an LRU cache does. An epoch
//! ends the scan and the load, so that what it learned from them can push hot columns out. One more server is neither scanned nor
//! loaded: times are shares of what its hot statements take at the same time. What admission costs the scan itself:
//! [`super::scan_admission`].

use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::{Dataset, StoreClone};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::streams::{self, Statement};

/// DRAM per scale: the hot columns, and somewhat more.
pub(super) const DRAM_BYTES: f64 = 35e6;
const HOT: [&str; 3] = [
    "SELECT o_orderpriority, count(*), sum(o_totalprice) FROM orders GROUP BY o_orderpriority",
    "SELECT o_orderdate, max(o_totalprice) FROM orders GROUP BY o_orderdate",
    "SELECT count(*) FROM orders WHERE o_totalprice < 100000 AND o_orderdate < DATE '1995-01-01'",
];
/// Reads all columns of a table; `max` alone would be answered by statistics.
pub(super) const COLD: &str = "SELECT sum(l_orderkey % 7), sum(l_partkey % 7), sum(l_suppkey % 7), sum(l_linenumber % 7), sum(l_quantity), \
                    sum(l_extendedprice), sum(l_discount), sum(l_tax), count(DISTINCT l_returnflag), \
                    count(DISTINCT l_linestatus), count(DISTINCT l_shipdate), count(DISTINCT l_commitdate), \
                    count(DISTINCT l_receiptdate), sum(length(l_shipinstruct)), sum(length(l_shipmode)), \
                    sum(length(l_comment)) FROM lineitem";
/// Fresh rows, several times as many as DRAM holds.
const LOAD: &str = "CREATE TABLE fresh AS SELECT * FROM lineitem";
const HOT_BYTES: &str =
    "SELECT coalesce(sum(bytes), 0) FROM system.segments WHERE tier = 'dram' AND table_name = 'orders'";
/// Rounds of the hot statements before an epoch, and measured.
const WARM: usize = 10;
const MEASURED: usize = 30;
/// Name in rows, and the settings; the last one is there to compare with.
pub(super) const SIDES: [(&str, &[&str]); 3] = [
    ("default", &[]),
    ("selective", &["tiering.merge=selective"]),
    ("LRU", &["tiering.policy=lru", "tiering.merge=always"]),
];

/// Nobody scans or loads here: what its hot statements take tells a drift of the machine from a loss.
const UNTOUCHED: (&str, &[&str]) = ("untouched", &[]);

#[derive(Default)]
struct Measured {
    /// Time of the hot statements after the scan to that before it, each as a share of that on a server that nobody scans.
    ratios: Vec<f64>,
    /// The same after the load to that before it.
    load_ratios: Vec<f64>,
    /// Hot bytes that are still in memory after the scan, and after the load, as shares of those before.
    kept: Vec<f64>,
    load_kept: Vec<f64>,
    scan_ms: Vec<f64>,
    load_ms: Vec<f64>,
    evicted_bytes: f64,
    load_evicted_bytes: f64,
    hot_bytes: f64,
    cold_bytes: f64,
}

/// Measures all servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let dram_bytes = (DRAM_BYTES * scale) as u64;
    let mut found: [Measured; 3] = Default::default();
    let mut rounds = 0;
    while bench.wants_another_round(rounds) {
        measure(bench, &data, dram_bytes, &mut found)?;
        rounds += 1;
    }
    let threads = bench.threads;
    let params_of = |measured: &Measured| {
        json!({
            "scale": scale, "threads": threads, "dram_budget": dram_bytes, "hot_bytes": measured.hot_bytes,
            "evicted_hot_bytes": measured.evicted_bytes, "evicted_hot_bytes_load": measured.load_evicted_bytes,
            "cold_bytes": measured.cold_bytes, "scan_ms": median(&measured.scan_ms), "load_ms": median(&measured.load_ms),
        })
    };
    for ((name, _), measured) in SIDES.iter().zip(&found) {
        println!(
            "  {name:<22}after the scan {:>6.3} of before   evicted {:>6.1} of {:>6.1} MB   scan {:>7.0} ms of {:>6.0} MB",
            median(&measured.ratios),
            measured.evicted_bytes / 1e6,
            measured.hot_bytes / 1e6,
            median(&measured.scan_ms),
            measured.cold_bytes / 1e6,
        );
        println!(
            "  {:<22}after the load {:>6.3} of before   evicted {:>6.1} MB   load {:>7.0} ms",
            "",
            median(&measured.load_ratios),
            measured.load_evicted_bytes / 1e6,
            median(&measured.load_ms),
        );
    }
    let [default, selective, lru] = &found;
    for ((name, _), measured) in SIDES.iter().zip([default, selective, lru]) {
        let is_ours = !std::ptr::eq(measured, lru);
        let load_params = params_of(measured);
        let mut params = params_of(measured);
        if is_ours && (measured.hot_bytes == 0.0 || measured.cold_bytes < 4.0 * dram_bytes as f64) {
            params["undecided"] = json!("nothing was hot, or the scan was too small: use another scale");
        }
        let target = if is_ours { Target::below(1.02, 1.0) } else { Target::OPEN };
        let what = &format!("hot statements after a scan, {name}");
        bench.add(Finding { sides: (name, "before"), what, values: &measured.ratios, target, params: params.clone() });
        let what = &format!("hot statements after a load, {name}");
        let target = Target::OPEN;
        bench.add(Finding {
            sides: (name, "before"),
            what,
            values: &measured.load_ratios,
            target,
            params: load_params,
        });
        let sides = (*name, "hot bytes before");
        let what = &format!("hot bytes kept in memory through the scan, {name}");
        let target = if is_ours { Target::above(1.0, 1.0) } else { Target::OPEN };
        bench.add(Finding { sides, what, values: &measured.kept, target, params: params.clone() });
        let what = &format!("hot bytes kept in memory through the load, {name}");
        bench.add(Finding { sides, what, values: &measured.load_kept, target: Target::OPEN, params });
    }
    Ok(())
}

/// One round: all servers live at the same time, and those that are compared take turns, so that a drift of the machine meets all.
fn measure(bench: &mut Bench, data: &Dataset, dram_bytes: u64, found: &mut [Measured; 3]) -> Result<()> {
    let sides = SIDES.iter().copied().chain([UNTOUCHED]);
    let running: Vec<Running> =
        sides.map(|(_, settings)| Running::start(bench, data, settings, dram_bytes)).collect::<Result<_>>()?;
    for _ in 0..3 {
        for one in &running {
            hot(&one.server, WARM)?;
            one.server.run_epoch()?;
        }
    }
    let before_ms = hot_in_turn(&running)?;
    let scanned = phase(&running, "scan", COLD)?;
    let loaded = phase(&running, "load", LOAD)?;
    for (place, ((name, _), found)) in SIDES.iter().zip(found.iter_mut()).enumerate() {
        let untouched = |ms: &[f64]| ms.last().copied().unwrap_or(f64::NAN);
        let to_untouched = |ms: &[f64]| ms[place] / untouched(ms);
        let (scan, load) = (&scanned[place], &loaded[place]);
        let after_ms = scanned.iter().map(|done| done.hot_ms).collect::<Vec<_>>();
        let after_load_ms = loaded.iter().map(|done| done.hot_ms).collect::<Vec<_>>();
        found.ratios.push(to_untouched(&after_ms) / to_untouched(&before_ms));
        found.load_ratios.push(to_untouched(&after_load_ms) / to_untouched(&after_ms));
        found.kept.push(1.0 - scan.evicted_bytes / scan.hot_bytes.max(1.0));
        found.load_kept.push(1.0 - load.evicted_bytes / load.hot_bytes.max(1.0));
        found.scan_ms.push(scan.ms);
        found.load_ms.push(load.ms);
        found.evicted_bytes = found.evicted_bytes.max(scan.evicted_bytes);
        found.load_evicted_bytes = found.load_evicted_bytes.max(load.evicted_bytes);
        (found.hot_bytes, found.cold_bytes) = (scan.hot_bytes, scan.cold_bytes);
        let sample = Sample::new(scan.ms)
            .with("hot_before_ms", before_ms[place])
            .with("hot_after_ms", after_ms[place])
            .with("untouched_before_ms", untouched(&before_ms))
            .with("untouched_after_ms", untouched(&after_ms))
            .with("hot_bytes", scan.hot_bytes)
            .with("evicted_hot_bytes", scan.evicted_bytes)
            .with("hot_after_load_ms", after_load_ms[place])
            .with("load_ms", load.ms)
            .with("evicted_hot_bytes_load", load.evicted_bytes);
        bench.record(name, "scan", sample);
    }
    for one in running {
        one.server.stop()?;
    }
    Ok(())
}

/// A server, and then its data.
struct Running {
    server: Server,
    _store: StoreClone,
}

impl Running {
    fn start(bench: &Bench, data: &Dataset, settings: &[&str], dram_bytes: u64) -> Result<Self> {
        let store = data.clone_store()?;
        let threads = format!("query.threads={}", bench.threads);
        let dram = dram_bytes.to_string();
        let mut arguments = vec!["--dram-budget", &dram, "--set", &threads, "--set", "tiering.interval=1h"];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        Ok(Self { server: Server::start(&store.path(), &arguments)?, _store: store })
    }
}

/// What a server did in one phase.
#[derive(Debug, Clone, Default)]
struct Done {
    /// Time of the statement of the phase.
    ms: f64,
    /// Bytes that it read from disk.
    cold_bytes: f64,
    /// Bytes of the hot columns in memory before it, and those of them that left.
    hot_bytes: f64,
    evicted_bytes: f64,
    /// Time of the hot statements afterwards.
    hot_ms: f64,
}

/// Runs a statement on all servers but the last one, which stays untouched, and an epoch on all; then the hot statements in turn.
fn phase(running: &[Running], name: &str, sql: &str) -> Result<Vec<Done>> {
    let read = "SELECT coalesce(sum(cold_bytes), 0) FROM system.queries";
    let mut done = vec![Done::default(); running.len()];
    for (place, (one, done)) in running.iter().zip(&mut done).enumerate() {
        done.hot_bytes = one.server.number(HOT_BYTES)?;
        if place + 1 == running.len() {
            continue;
        }
        let read_before = one.server.number(read)?;
        let answers = streams::run(one.server.url(), &[vec![Statement::new(name, sql)]])?;
        if let Some(error) = answers.all.iter().find_map(|answer| answer.rows.as_ref().err()) {
            return Err(Error::failed(format!("the {name} failed: {error}")));
        }
        done.ms = answers.ms;
        done.cold_bytes = one.server.number(read)? - read_before;
    }
    // What was read comes into memory in the background.
    std::thread::sleep(Duration::from_secs(3));
    for (one, done) in running.iter().zip(&mut done) {
        one.server.run_epoch()?;
        done.evicted_bytes = done.hot_bytes - one.server.number(HOT_BYTES)?;
    }
    for (done, ms) in done.iter_mut().zip(hot_in_turn(running)?) {
        done.hot_ms = ms;
    }
    Ok(done)
}

/// Median time of the hot statements on each server.
fn hot_in_turn(running: &[Running]) -> Result<Vec<f64>> {
    let mut times = vec![Vec::new(); running.len()];
    for _ in 0..MEASURED {
        for (one, times) in running.iter().zip(&mut times) {
            times.extend(hot(&one.server, 1)?);
        }
    }
    Ok(times.iter().map(|times| median(times)).collect())
}

/// Times of rounds of the hot statements.
pub(super) fn hot(server: &Server, rounds: usize) -> Result<Vec<f64>> {
    let statements: Vec<Statement> = HOT.iter().map(|sql| Statement::new("hot", sql)).collect();
    let mut times = Vec::new();
    for _ in 0..rounds {
        let answers = streams::run(server.url(), std::slice::from_ref(&statements))?;
        if let Some(error) = answers.all.iter().find_map(|answer| answer.rows.as_ref().err()) {
            return Err(Error::failed(format!("a hot statement failed: {error}")));
        }
        times.push(answers.ms);
    }
    Ok(times)
}
