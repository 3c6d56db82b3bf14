//! Four streams of TPC-H on a tenth of the DRAM, with so little query memory that joins and groups spill: storage that serves
//! by meaning against storage that serves by arrival (hStorage-DB and Hetero-DB, section 6.4).
//!
//! Both servers are the same program. The peer keeps what was read last in DRAM (`tiering.policy = lru`) and serves all reads
//! in the order of their arrival; a third one has only the order of arrival, so that the two differences can be told apart; a
//! fourth one serves spilled rows before all else that is no point. On two cores the processors are the bottleneck, not the disk: the streams run on a throttled disk, too.

use std::collections::HashMap;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::cgroup::{Cgroup, SLOW_DISK_BYTES_PER_S};
use crate::data::{Dataset, StoreClone, folder_bytes};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::{mean, median, percentile};
use crate::streams::{self, Statement};

const STREAMS: usize = 4;
/// Query memory per scale, and at least.
const QUERY_BYTES: f64 = 25e6;
const LEAST_QUERY_BYTES: f64 = 64e6;
/// Queries that are to spill.
const SPILLING: [&str; 3] = ["q9", "q18", "q21"];
/// So often they spill in a round at least: three times of four, as one that runs beside small ones may not.
const LEAST_SPILLS: f64 = (SPILLING.len() * STREAMS) as f64 * 0.75;
/// Longer than a round, so that a wait is no failure.
const QUEUE_TIMEOUT_S: u64 = 3600;
const BY_ARRIVAL: [&str; 2] = ["io.order=point = needed = spill = prefetch = write = upkeep", "io.turns=arrival"];

/// Name in rows, and the settings; the measured one first.
const SIDES: [(&str, &[&str]); 4] = [
    ("by meaning", &[]),
    ("FIFO and LRU", &[BY_ARRIVAL[0], BY_ARRIVAL[1], "tiering.policy=lru"]),
    ("FIFO", &BY_ARRIVAL),
    // Rule 3 of the paper, as near as the table of ranks comes: points have to be in the first one.
    ("spilled rows first", &["io.order=point > spill > needed > prefetch > write > upkeep"]),
];

/// Measures all servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    run_on(bench, None)
}

/// The same on a throttled disk.
pub fn run_on_slow_disk(bench: &mut Bench) -> Result<()> {
    match Cgroup::slow_disk(&bench.data_dir) {
        Ok(disk) => run_on(bench, Some(&disk)),
        Err(Error::Missing(why)) => {
            bench.leave_out("all streams", &why);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn run_on(bench: &mut Bench, disk: Option<&Cgroup>) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 10.0 });
    let data = bench.dataset(scale)?;
    let query_bytes = (QUERY_BYTES * scale).max(LEAST_QUERY_BYTES) as u64;
    let statements = Statement::tpch();
    let streams = streams::shuffled(&statements, STREAMS, bench.seed);
    let sides = &SIDES[..bench.sides.min(SIDES.len())];
    let mut rounds: Vec<Vec<Measured>> = Vec::new();
    let mut expected = HashMap::new();
    while bench.wants_another_round(rounds.len()) {
        let mut round = Vec::new();
        // Forth and back, so that a drift of the machine meets all sides.
        let forth = rounds.len().is_multiple_of(2);
        for place in 0..sides.len() {
            let place = if forth { place } else { sides.len() - 1 - place };
            let (name, settings) = sides[place];
            // One server at a time: each has the disk and the page cache of spilled rows for itself.
            let side = Side::start(settings, &data, query_bytes, bench.threads, disk)?;
            // Fills DRAM, and calibrates.
            let alone = side.measure(std::slice::from_ref(&statements), &mut expected)?;
            side.server.run_epoch()?;
            let measured = side.measure(&streams, &mut expected)?;
            side.server.stop()?;
            bench.record(name, "alone", alone.sample());
            bench.record(name, "4 streams", measured.sample());
            show(name, &alone, &measured);
            round.push(measured);
        }
        if !forth {
            round.reverse();
        }
        rounds.push(round);
    }
    let params = json!({
        "scale": scale, "threads": bench.threads, "seed": bench.seed, "streams": STREAMS, "query_memory_bytes": query_bytes,
        "dram_budget": "10 % of the stored bytes", "queue_timeout_s": QUEUE_TIMEOUT_S,
        "to_spill": SPILLING.join(" "), "disk_bytes_per_s": disk.map(|_| SLOW_DISK_BYTES_PER_S),
        "simulated": disk.map(|_| "the slow disk is a throttled one"),
    });
    let of_rounds = |side: usize, figure: fn(&Measured) -> f64| -> Vec<f64> {
        rounds.iter().filter_map(|round| round.get(side)).map(figure).collect()
    };
    let ours = SIDES[0].0;
    for (number, (peer, _)) in sides[1..].iter().enumerate() {
        let [a, b] = [0, number + 1].map(|side| of_rounds(side, |measured| measured.makespan_ms));
        let ratios: Vec<f64> = a.iter().zip(&b).map(|(ours, peer)| peer / ours).collect();
        let target = if number == 0 { Target::above(1.2, 1.4) } else { Target::OPEN };
        let mut params = params.clone();
        for (side, place) in [("a", 0), ("b", number + 1)] {
            params[format!("ms_{side}")] = json!(median(&of_rounds(place, |measured| measured.makespan_ms)));
            params[format!("read_bytes_{side}")] = json!(median(&of_rounds(place, |measured| measured.read_bytes)));
            params[format!("spilling_{side}")] = json!(median(&of_rounds(place, |measured| measured.spilling)));
            params[format!("spilled_bytes_{side}")] =
                json!(median(&of_rounds(place, |measured| measured.spilled_bytes)));
        }
        let spill =
            |side: usize| of_rounds(side, |measured| measured.spilling).into_iter().all(|count| count >= LEAST_SPILLS);
        if !(spill(0) && spill(number + 1)) {
            params["undecided"] = json!("queries that are to spill did not: use a larger scale");
        }
        let what = &format!("4 streams: throughput, to {peer}");
        bench.add(Finding { sides: (ours, peer), what, values: &ratios, target, params });
    }
    bench.add(Finding {
        sides: (ours, "all statements"),
        what: "4 streams: answered",
        values: &of_rounds(0, Measured::answered),
        target: Target::above(1.0, 1.0),
        params,
    });
    Ok(())
}

/// A server, and then its data.
struct Side {
    server: Server,
    _store: StoreClone,
}

/// What a workload took.
#[derive(Debug, Clone, Default)]
struct Measured {
    makespan_ms: f64,
    latencies_ms: Vec<f64>,
    failed: usize,
    /// Bytes that scans read from the SSD tier.
    read_bytes: f64,
    /// Bytes written to spill files.
    spilled_bytes: f64,
    /// How often queries that are to spill did.
    spilling: f64,
}

impl Measured {
    fn answered(&self) -> f64 {
        let answered = self.latencies_ms.len() as f64;
        answered / (answered + self.failed as f64)
    }

    fn sample(&self) -> Sample {
        Sample::new(self.makespan_ms)
            .with("mean_ms", mean(&self.latencies_ms))
            .with("p95_ms", percentile(&self.latencies_ms, 0.95))
            .with("read_bytes", self.read_bytes)
            .with("spilled_bytes", self.spilled_bytes)
            .with("spilling", self.spilling)
            .with("failed", self.failed as f64)
    }
}

impl Side {
    fn start(
        settings: &[&str],
        data: &Dataset,
        query_bytes: u64,
        threads: usize,
        disk: Option<&Cgroup>,
    ) -> Result<Self> {
        let store = data.clone_store()?;
        let common = [
            format!("memory.query={query_bytes}"),
            format!("query.threads={threads}"),
            format!("query.queue_timeout={QUEUE_TIMEOUT_S}s"),
            "query.history=100000".to_owned(),
            "tiering.interval=10s".to_owned(),
        ];
        let dram = (folder_bytes(&data.store().join("ssd"))? / 10).to_string();
        let mut arguments = vec!["--dram-budget", &dram];
        let settings = common.iter().map(String::as_str).chain(settings.iter().copied());
        arguments.extend(settings.flat_map(|setting| ["--set", setting]));
        Ok(Self { server: Server::start_limited(&store.path(), &arguments, disk)?, _store: store })
    }

    /// Runs streams at the same time. Fails when a statement returns another number of rows than the first time.
    fn measure(&self, streams: &[Vec<Statement>], expected: &mut HashMap<String, usize>) -> Result<Measured> {
        let before = self.sums()?;
        let answers = streams::run(self.server.url(), streams)?;
        let after = self.sums()?;
        let [read_bytes, spilled_bytes, spilling] = std::array::from_fn(|at| after[at] - before[at]);
        let mut measured =
            Measured { makespan_ms: answers.ms, read_bytes, spilled_bytes, spilling, ..Measured::default() };
        for answer in answers.all {
            let known = expected.get(&answer.name).copied();
            match (answer.rows, known) {
                (Ok(rows), Some(known)) if rows != known => {
                    let name = &answer.name;
                    return Err(Error::failed(format!("{name} returns {rows} rows, and {known} before")));
                }
                (Ok(rows), _) => {
                    expected.insert(answer.name, rows);
                    measured.latencies_ms.push(answer.ms);
                }
                (Err(error), _) => {
                    if measured.failed == 0 {
                        eprintln!("  {}, first of those that failed: {error}", answer.name);
                    }
                    measured.failed += 1;
                }
            }
        }
        Ok(measured)
    }

    /// Bytes that statements have read from the SSD tier and spilled so far, and how many of those that are to spill did.
    fn sums(&self) -> Result<[f64; 3]> {
        let texts = Statement::tpch().into_iter().filter(|statement| SPILLING.contains(&statement.name.as_str()));
        let texts: Vec<String> = texts.map(|statement| format!("'{}'", statement.sql.replace('\'', "''"))).collect();
        let spilling = format!("count(*) FILTER (WHERE spilled_bytes > 0 AND sql IN ({}))", texts.join(", "));
        let mut sums = [0.0; 3];
        for (sum, what) in sums.iter_mut().zip(["sum(cold_bytes)", "sum(spilled_bytes)", &spilling]) {
            *sum = self.server.number(&format!("SELECT coalesce({what}, 0) FROM system.queries"))?;
        }
        Ok(sums)
    }
}

fn show(name: &str, alone: &Measured, streams: &Measured) {
    for (what, measured) in [("alone", alone), ("4 streams", streams)] {
        println!(
            "  {name:<20}{what:<11}{:>9.1} s   p95 {:>7.1} s   read {:>8.0} MB   spilled {:>8.0} MB, {:>2.0} of {} times by {}   failed {}",
            measured.makespan_ms / 1e3,
            percentile(&measured.latencies_ms, 0.95) / 1e3,
            measured.read_bytes / 1e6,
            measured.spilled_bytes / 1e6,
            measured.spilling,
            SPILLING.len() * if what == "alone" { 1 } else { STREAMS },
            SPILLING.join(", "),
            measured.failed,
        );
    }
}
