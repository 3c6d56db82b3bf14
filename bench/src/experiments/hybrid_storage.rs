//! TPC-H over a fast tier with room for 70 % of the bytes that queries read and a slow disk, in the four set-ups of hStorage-DB (section 6) and
//! Hetero-DB (section 6.4): the slow tier only, an LRU cache, what Terrace does by default, the fast tier only. Seven queries
//! one after another, then all 22 between the two refreshes of the benchmark.
//!
//! The bytes are those of the columns that the seven queries read: a column store reads less than half of TPC-H, so that 70 % of all
//! bytes would be all that anybody asks for. The slow disk is the disk of this machine, throttled by a control group in both directions; the fast tier is DRAM. The
//! refreshes insert and delete about a thousandth of the orders with their items, as copies under keys that the generator
//! leaves free.

use std::collections::HashMap;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::cgroup::{Cgroup, SLOW_DISK_BYTES_PER_S};
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::streams::{self, Answer, Statement};

/// Query memory per scale, and at least: query 18 spills.
const QUERY_BYTES: f64 = 25e6;
const LEAST_QUERY_BYTES: f64 = 64e6;
/// The queries of the paper, by what they mostly ask the storage for.
const GROUPS: [(&str, &[&str]); 3] =
    [("sequential", &["q1", "q5", "q11", "q19"]), ("random", &["q9", "q21"]), ("temporary", &["q18"])];
const STREAM: &str = "stream with refreshes";
const CLASSES: [&str; 6] = ["point", "needed", "spill", "prefetch", "write", "upkeep"];

/// A set-up.
struct SetUp {
    name: &'static str,
    /// The fast tier as a share of the bytes that the queries read.
    fast_share: f64,
    /// Whether a round of the queries and an epoch come before the measured one.
    warms: bool,
    settings: &'static [&'static str],
}

/// The measured one first.
const SET_UPS: [SetUp; 4] = [
    SetUp { name: "by meaning", fast_share: 0.7, warms: true, settings: &[] },
    SetUp {
        name: "LRU",
        fast_share: 0.7,
        warms: true,
        settings: &[
            "tiering.policy=lru",
            "tiering.merge=always",
            "io.order=point = needed = spill = prefetch = write = upkeep",
            "io.turns=arrival",
            "query.spill_tier_percent=0",
        ],
    },
    SetUp {
        name: "slow tier only",
        fast_share: 0.0,
        warms: false,
        settings: &["tiering.enabled=false", "tiering.merge=never", "query.spill_tier_percent=0"],
    },
    // With room for all tables, and spilled rows.
    SetUp { name: "fast tier only", fast_share: 3.0, warms: true, settings: &["query.spill_tier_percent=100"] },
];

/// What a set-up took in one round, in milliseconds, by query and by group.
type Times = HashMap<String, f64>;

/// Measures all set-ups in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let disk = match Cgroup::slow_disk(&bench.data_dir) {
        Ok(disk) => disk,
        Err(Error::Missing(why)) => {
            bench.leave_out("all set-ups", &why);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let query_bytes = (QUERY_BYTES * scale).max(LEAST_QUERY_BYTES) as u64;
    let read_bytes = bytes_that_queries_read(bench, &data)?;
    let mut expected = HashMap::new();
    let mut rounds: Vec<[Times; SET_UPS.len()]> = Vec::new();
    while bench.wants_another_round(rounds.len()) {
        let mut round: [Times; SET_UPS.len()] = Default::default();
        for (times, set_up) in round.iter_mut().zip(&SET_UPS) {
            *times = measure(bench, set_up, &data, [query_bytes, read_bytes], &disk, &mut expected)?;
        }
        rounds.push(round);
    }
    let params = json!({
        "scale": scale, "threads": bench.threads, "query_memory_bytes": query_bytes, "disk_bytes_per_s": SLOW_DISK_BYTES_PER_S,
        "fast_share": SET_UPS[0].fast_share, "bytes_that_queries_read": read_bytes, "simulated": "the slow disk is a throttled one",
        "paper": "TPC-H SF 30, fast tier only to slow tier only: q9 7.2, q21 3.9, q18 1.45 times; LRU: q1 1.16, q19 1.25 of the slow tier's time",
    });
    let whats = GROUPS.iter().flat_map(|(group, queries)| [*group].into_iter().chain(queries.iter().copied()));
    for what in whats.chain([STREAM]) {
        for (peer, set_up) in SET_UPS.iter().enumerate().skip(1) {
            let times =
                |side: usize| rounds.iter().map(move |round| round[side].get(what).copied().unwrap_or(f64::NAN));
            let values: Vec<f64> = times(0).zip(times(peer)).map(|(ours, peer)| peer / ours).collect();
            let mut params = params.clone();
            params["ms_a"] = json!(median(&times(0).collect::<Vec<_>>()));
            params["ms_b"] = json!(median(&times(peer).collect::<Vec<_>>()));
            let what = &format!("{what}: speed, to {}", set_up.name);
            let target = Target::OPEN;
            bench.add(Finding { sides: (SET_UPS[0].name, set_up.name), what, values: &values, target, params });
        }
    }
    Ok(())
}

fn queries() -> Vec<Statement> {
    let tpch = Statement::tpch();
    let find = |name: &&str| tpch.iter().find(|statement| statement.name == **name).cloned();
    GROUPS.iter().flat_map(|(_, names)| *names).filter_map(find).collect()
}

/// Bytes of the columns that the seven queries read, on the disk as it is.
fn bytes_that_queries_read(bench: &Bench, data: &Dataset) -> Result<u64> {
    let store = data.clone_store()?;
    let threads = format!("query.threads={}", bench.threads);
    let server = Server::start(&store.path(), &["--set", &threads, "--set", "tiering.enabled=false"])?;
    check(&streams::run(server.url(), &[queries()])?.all, &mut HashMap::new())?;
    let read = "SELECT sum(bytes) FROM system.segments AS s JOIN (SELECT DISTINCT table_name, column_name FROM system.segments \
                WHERE accesses > 0) AS r USING (table_name, column_name)";
    let bytes = server.number(read)?;
    server.stop()?;
    Ok(bytes as u64)
}

fn measure(
    bench: &mut Bench,
    set_up: &SetUp,
    data: &Dataset,
    [query_bytes, read_bytes]: [u64; 2],
    disk: &Cgroup,
    expected: &mut HashMap<String, usize>,
) -> Result<Times> {
    let store = data.clone_store()?;
    // The server wants some.
    let dram = ((read_bytes as f64 * set_up.fast_share) as u64).max(1 << 20).to_string();
    let common = [
        format!("memory.query={query_bytes}"),
        format!("query.threads={}", bench.threads),
        "tiering.interval=10s".to_owned(),
    ];
    let mut arguments = vec!["--dram-budget", &dram];
    let settings = common.iter().map(String::as_str).chain(set_up.settings.iter().copied());
    arguments.extend(settings.flat_map(|setting| ["--set", setting]));
    let server = Server::start_limited(&store.path(), &arguments, Some(disk))?;
    let queries = queries();
    if set_up.warms {
        check(&streams::run(server.url(), std::slice::from_ref(&queries))?.all, expected)?;
        server.run_epoch()?;
    }
    let mut times = Times::new();
    for query in &queries {
        let before = mix_so_far(&server)?;
        let answers = streams::run(server.url(), &[vec![query.clone()]])?;
        check(&answers.all, expected)?;
        record(bench, set_up, &query.name, answers.ms, [before, mix_so_far(&server)?]);
        times.insert(query.name.clone(), answers.ms);
    }
    for (group, names) in GROUPS {
        times.insert(group.to_owned(), names.iter().filter_map(|name| times.get(*name)).sum());
    }
    let stream = [refresh_inserts(), Statement::tpch(), refresh_deletes()].concat();
    let before = mix_so_far(&server)?;
    let answers = streams::run(server.url(), &[stream])?;
    // Refreshed rows change what queries find, alike on each server.
    let changed: Vec<Answer> =
        answers.all.into_iter().map(|answer| Answer { name: format!("{STREAM} {}", answer.name), ..answer }).collect();
    check(&changed, expected)?;
    record(bench, set_up, STREAM, answers.ms, [before, mix_so_far(&server)?]);
    times.insert(STREAM.to_owned(), answers.ms);
    server.stop()?;
    Ok(times)
}

/// Requests and bytes of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Mix {
    reads: f64,
    read_bytes: f64,
    writes: f64,
    written_bytes: f64,
}

/// Requests and bytes so far, by [`CLASSES`].
fn mix_so_far(server: &Server) -> Result<[Mix; CLASSES.len()]> {
    let mut mixes = [Mix::default(); CLASSES.len()];
    for (class, mix) in CLASSES.iter().zip(&mut mixes) {
        let sql = format!("SELECT reads, bytes, writes, written_bytes FROM system.io WHERE class = '{class}'");
        let columns = server.columns(&sql)?;
        let value = |at: usize| columns.get(at).and_then(|values| values.first()).copied().unwrap_or(f64::NAN);
        *mix = Mix { reads: value(0), read_bytes: value(1), writes: value(2), written_bytes: value(3) };
    }
    Ok(mixes)
}

/// Shows and keeps the time of what a set-up ran, and its requests by class (hStorage-DB and Hetero-DB, figure 11).
fn record(bench: &mut Bench, set_up: &SetUp, what: &str, ms: f64, [before, after]: [[Mix; CLASSES.len()]; 2]) {
    let mut sample = Sample::new(ms);
    let mut shown = String::new();
    for ((class, before), after) in CLASSES.iter().zip(before).zip(after) {
        for (name, requests, bytes) in [
            ("read", after.reads - before.reads, after.read_bytes - before.read_bytes),
            ("written", after.writes - before.writes, after.written_bytes - before.written_bytes),
        ] {
            sample = sample.with(&format!("{class}_{name}_requests"), requests);
            sample = sample.with(&format!("{class}_{name}_bytes"), bytes);
            if requests > 0.0 {
                shown += &format!("   {class} {name} {requests:.0}: {:.0} MB", bytes / 1e6);
            }
        }
    }
    println!("  {:<16}{what:<24}{:>9.1} s{shown}", set_up.name, ms / 1e3);
    bench.record(set_up.name, what, sample);
}

/// Fails when a statement failed, or returned another number of rows than on the first server.
fn check(answers: &[Answer], expected: &mut HashMap<String, usize>) -> Result<()> {
    for Answer { name, rows, .. } in answers {
        let rows = *rows.as_ref().map_err(|error| Error::failed(format!("{name}: {error}")))?;
        let known = *expected.entry(name.clone()).or_insert(rows);
        if rows != known {
            return Err(Error::failed(format!("{name} returns {rows} rows, and {known} before")));
        }
    }
    Ok(())
}

/// Inserts copies of some orders and their items. Of each 32 keys the generator uses the first eight.
fn refresh_inserts() -> Vec<Statement> {
    [("orders", "o_orderkey"), ("lineitem", "l_orderkey")]
        .map(|(table, key)| {
            let sql = format!(
                "INSERT INTO {table} SELECT * REPLACE ({key} + 8 AS {key}) FROM {table} WHERE {key} % 32000 BETWEEN 1 AND 7"
            );
            Statement::new(&format!("insert into {table}"), &sql)
        })
        .to_vec()
}

/// Deletes the orders of which there are copies now, with their items.
fn refresh_deletes() -> Vec<Statement> {
    [("lineitem", "l_orderkey"), ("orders", "o_orderkey")]
        .map(|(table, key)| {
            let sql = format!("DELETE FROM {table} WHERE {key} % 32000 BETWEEN 1 AND 7");
            Statement::new(&format!("delete from {table}"), &sql)
        })
        .to_vec()
}
