//! Growth of a server's resident memory while one large statement runs, against the query memory that it takes.
//!
//! What the pools do not count (buffers that nobody reserves, freed memory that the allocator keeps) is resident all the same,
//! and the limit of the process has to leave room for it. A row beside compares with what the statement's work allocated.
//! Freed memory in an idle server would hide growth, because a statement reuses it. So each statement runs on a new
//! server, whose store knows its device already, and which has been idle for longer than the allocator keeps freed
//! memory. The table is pinned to DRAM: memory of cold reads is a part of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::streams::{self, Statement};

const LIMIT: &str = "4GiB";
/// The most query memory that a statement took, and the most that its work had allocated.
const RESERVED: &str = "reserved_peak_bytes";
const ALLOCATED: &str = "allocated_peak_bytes";
/// A statement counts when one of the two is at least this.
const LEAST_PEAK_BYTES: f64 = 512.0 * 1024.0 * 1024.0;
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The allocator keeps freed memory for ten seconds (`server/src/allocator.rs`).
const IDLE: Duration = Duration::from_secs(11);
/// Some megabytes of freed memory may be left then.
const QUICK_IDLE: Duration = Duration::from_millis(500);
/// At least so many rows of `lineitem` per scale.
const LINEITEM_ROWS: f64 = 5_990_000.0;
const TARGET: Target = Target::below(1.15, 1.05);

/// Measures all statements.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.2 } else { 2.0 });
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    // The first start measures the device, and leaves much freed memory.
    start(&store, bench.threads)?.stop()?;
    let idle = if bench.quick { QUICK_IDLE } else { IDLE };
    let statements = statements(scale);
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); statements.len()];
    let mut round = 0;
    while bench.wants_another_round(round) {
        for (statement, samples) in statements.iter().zip(&mut samples) {
            let sample = measure(&store, bench.threads, idle, statement)?;
            bench.record("terrace serve", &statement.name, sample.clone());
            samples.push(sample);
        }
        round += 1;
    }
    show(&statements, &samples);
    for (statement, samples) in statements.iter().zip(&samples) {
        add(bench, scale, statement, samples);
    }
    Ok(())
}

/// Statements of which each needs much memory in another operator and returns few rows.
fn statements(scale: f64) -> Vec<Statement> {
    let skipped = (LINEITEM_ROWS * scale) as u64;
    vec![
        Statement::new(
            "sort",
            &format!("SELECT l_orderkey, l_comment FROM lineitem ORDER BY l_comment, l_orderkey OFFSET {skipped}"),
        ),
        Statement::new(
            "group by",
            "SELECT count(*), max(n) FROM (SELECT l_orderkey, l_partkey, l_comment, count(*) AS n FROM lineitem \
             GROUP BY l_orderkey, l_partkey, l_comment) AS g",
        ),
        Statement::new(
            "distinct",
            "SELECT count(*) FROM (SELECT DISTINCT l_partkey, l_suppkey, l_comment FROM lineitem) AS d",
        ),
        Statement::new(
            "count distinct",
            "SELECT count(DISTINCT l_comment), count(DISTINCT l_orderkey), count(DISTINCT l_extendedprice) FROM lineitem",
        ),
        Statement::new(
            "hash join",
            "SELECT count(*), max(length(a.l_comment) + length(b.l_comment)) FROM lineitem AS a JOIN lineitem AS b \
             ON a.l_orderkey = b.l_orderkey AND a.l_linenumber = b.l_linenumber",
        ),
        Statement::new(
            "window",
            "SELECT max(r) FROM (SELECT row_number() OVER (PARTITION BY l_suppkey ORDER BY l_comment) AS r \
             FROM lineitem) AS w",
        ),
        Statement::new(
            "window of partitions",
            "SELECT max(s), max(length(c)) FROM (SELECT l_comment AS c, sum(l_quantity) OVER (PARTITION BY \
             l_returnflag) AS s FROM lineitem) AS w",
        ),
        Statement::new(
            "string_agg",
            "SELECT max(length(s)) FROM (SELECT l_suppkey, string_agg(l_comment, ',') AS s FROM lineitem \
             GROUP BY l_suppkey) AS g",
        ),
    ]
}

fn start(store: &StoreClone, threads: usize) -> Result<Server> {
    let limit = format!("memory.limit={LIMIT}");
    let threads = format!("query.threads={threads}");
    // Spilled rows on the DRAM tier are memory of the tier.
    let settings = [&limit, &threads, "tiering.enabled=false", "hot_views.mode=off", "query.spill_tier_percent=0"];
    Server::start(&store.path(), &settings.map(|setting| ["--set", setting]).concat())
}

/// Runs one statement on a new server, and looks at its memory meanwhile.
fn measure(store: &StoreClone, threads: usize, idle: Duration, statement: &Statement) -> Result<Sample> {
    let store = StoreClone::from_store(&store.path())?;
    let server = start(&store, threads)?;
    server.pin_in_dram(&["lineitem"])?;
    streams::run(server.url(), &[vec![Statement::new("one", "SELECT 1")]])?;
    std::thread::sleep(idle);
    let idle_bytes = server.anonymous_bytes()?;
    let placed_before = server.placed_bytes("dram")?;
    let written_before = server.written_bytes()?;
    let (answers, peak_bytes) = with_peak(&server, || streams::run(server.url(), &[vec![statement.clone()]]))?;
    let spilled_bytes = server.written_bytes()? - written_before;
    let placed_bytes = server.placed_bytes("dram")?;
    let answer = answers.all.into_iter().next().ok_or_else(|| Error::failed("the statement has no answer"))?;
    let name = &statement.name;
    let rows = answer.rows.map_err(|error| Error::failed(format!("{name}: {error}")))?;
    let sql = statement.sql.replace('\'', "''");
    let most = |column| server.number(&format!("SELECT max({column}) FROM system.queries WHERE sql = '{sql}'"));
    Ok(Sample::new(answer.ms)
        .with("rows", rows as f64)
        .with("idle_bytes", idle_bytes)
        .with("resident_peak_bytes", peak_bytes)
        .with("placed_bytes", placed_bytes)
        .with("placed_growth_bytes", placed_bytes - placed_before)
        .with(RESERVED, most(RESERVED)?)
        .with(ALLOCATED, most(ALLOCATED)?)
        .with("spilled_bytes", spilled_bytes))
}

/// Runs `work`; returns its result and the largest resident memory of the server meanwhile.
fn with_peak<T>(server: &Server, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = server.anonymous_bytes()?;
            while !is_done.load(Ordering::Relaxed) {
                std::thread::sleep(POLL_INTERVAL);
                peak = peak.max(server.anonymous_bytes()?);
            }
            Ok::<_, Error>(peak)
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        let peak = watch.join().map_err(|_| Error::failed("the thread that watches memory panicked"))?;
        Ok((result?, peak?))
    })
}

/// Growth of resident memory without that of the DRAM tier.
fn growth_bytes(sample: &Sample) -> f64 {
    sample.value("resident_peak_bytes") - sample.value("idle_bytes") - sample.value("placed_growth_bytes")
}

/// Growth as a share of a peak of the statement.
fn ratio(sample: &Sample, peak: &str) -> f64 {
    growth_bytes(sample) / sample.value(peak)
}

/// Prints a line per statement, in megabytes.
fn show(statements: &[Statement], samples: &[Vec<Sample>]) {
    let head = ["time", "idle", "growth", "reserved", "allocated", "spilled", "to reserved", "to allocated"];
    let head: String = head.iter().map(|name| format!("{name:>14}")).collect();
    println!("  {:<22}{head}", "");
    for (statement, samples) in statements.iter().zip(samples) {
        let median_of = |figure: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(figure).collect::<Vec<_>>());
        let megabytes = |figure: &dyn Fn(&Sample) -> f64| format!("{:>11.0} MB", median_of(figure) / 1e6);
        println!(
            "  {:<22}{:>12.2} s{}{}{}{}{}{:>14.3}{:>14.3}",
            statement.name,
            median_of(&|sample| sample.ms) / 1e3,
            megabytes(&|sample| sample.value("idle_bytes")),
            megabytes(&growth_bytes),
            megabytes(&|sample| sample.value(RESERVED)),
            megabytes(&|sample| sample.value(ALLOCATED)),
            megabytes(&|sample| sample.value("spilled_bytes")),
            median_of(&|sample| ratio(sample, RESERVED)),
            median_of(&|sample| ratio(sample, ALLOCATED))
        );
    }
}

/// Adds a row against the query memory that the statement took, and one against what its work allocated.
fn add(bench: &mut Bench, scale: f64, statement: &Statement, samples: &[Sample]) {
    let median_of = |name: &str| median(&samples.iter().map(|sample| sample.value(name)).collect::<Vec<_>>());
    let mut params = json!({
        "scale": scale, "threads": bench.threads, "memory_limit": LIMIT, "sql": statement.sql,
        "ms": median(&samples.iter().map(|sample| sample.ms).collect::<Vec<_>>()),
        "growth_bytes": median(&samples.iter().map(growth_bytes).collect::<Vec<_>>()),
    });
    let counts = [
        "idle_bytes",
        "resident_peak_bytes",
        "placed_bytes",
        "placed_growth_bytes",
        RESERVED,
        ALLOCATED,
        "spilled_bytes",
    ];
    if let Some(params) = params.as_object_mut() {
        params.extend(counts.iter().map(|name| ((*name).to_owned(), json!(median_of(name)))));
        if median_of(RESERVED).max(median_of(ALLOCATED)) < LEAST_PEAK_BYTES {
            params.insert("undecided".to_owned(), json!("both peaks are below 512 MiB; use a larger scale"));
        }
    }
    let peaks = [
        ("", RESERVED, "the most query memory that it took", TARGET),
        (", to allocated", ALLOCATED, "the most that its work had allocated", Target::OPEN),
    ];
    for (label, peak, side, target) in peaks {
        let mut params = params.clone();
        if let Some(params) = params.as_object_mut() {
            params.insert("peak".to_owned(), json!(peak));
        }
        bench.add(Finding {
            sides: ("growth of resident memory by a statement", side),
            what: &format!("{}{label}", statement.name),
            values: &samples.iter().map(|sample| ratio(sample, peak)).collect::<Vec<_>>(),
            target,
            params,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_of_the_dram_tier_is_not_the_statements() {
        let sample = Sample::new(1.0)
            .with("idle_bytes", 100.0)
            .with("resident_peak_bytes", 400.0)
            .with("placed_growth_bytes", 60.0)
            .with(RESERVED, 200.0)
            .with(ALLOCATED, 240.0);
        assert_eq!((ratio(&sample, RESERVED), ratio(&sample, ALLOCATED)), (1.2, 1.0));
    }

    #[test]
    fn statements_have_different_names_and_skip_less_than_all_rows() {
        let statements = statements(2.0);
        assert!(statements[0].sql.ends_with("OFFSET 11980000"), "{}", statements[0].sql);
        for (at, statement) in statements.iter().enumerate() {
            assert!(statements.iter().skip(at + 1).all(|other| other.name != statement.name));
        }
    }
}
