//! db-benchmark's queries with every segment in DRAM, and with a tenth of the bytes there, against DuckDB on its own file.

use std::process::Command;

use serde_json::{Map, Value, json};

use super::peers::python;
use super::queries::{self, Rounds, Summary};
use super::tpch::DUCKDB_SIDE;
use crate::bench::{Bench, Target};
use crate::child::Child;
use crate::db_benchmark::{DbBenchmark, GROUP_BY, JOINS, Query, ROWS};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::SideSpec;

/// Memory of the three sides for ten million rows, with all data in two of them and the largest joins.
const BYTES_PER_SCALE: u64 = 14_000_000_000;
/// The bytes in DRAM of the tiered side.
const SHARE: f64 = 0.1;
/// Sums of floats depend on the order of the rows.
const TOLERANCE: f64 = 1e-8;

/// Compares the answers, then the times.
pub fn run(bench: &mut Bench) -> Result<()> {
    let data = bench.db_benchmark()?;
    bench.check_memory(data.rows as f64 / ROWS as f64, BYTES_PER_SCALE)?;
    let stores = [data.clone_store()?, data.clone_store()?];
    let [first, second] = stores.each_ref().map(|store| SideSpec::terrace(store.path(), bench.threads));
    let mut duckdb = duckdb(bench, &data)?;
    let mut dram = Child::start("Terrace, all in DRAM", &first)?;
    let mut tiered = Child::start("Terrace, 10 % in DRAM", &second)?;
    bench.ask(&mut dram, "send dram")?;
    for query in all() {
        check(query, &mut [&mut duckdb, &mut dram, &mut tiered])?;
        tiered.ask(query.name)?;
    }
    let placed = bench.ask(&mut tiered, &format!("place {SHARE}"))?;
    let names: Vec<String> = all().map(|query| query.name.to_owned()).collect();
    let rounds = queries::rounds_of_requests(bench, &mut [&mut duckdb, &mut dram, &mut tiered], &names)?;
    let version = duckdb.ready.value("version");
    let params = json!({
        "rows": data.rows, "threads": bench.threads, "duckdb": format!("{version:.1}"),
        "tiered_dram_bytes": placed.value("dram_bytes"), "total_bytes": placed.value("total_bytes"),
    });
    for (position, label, ours) in [(1, "", &dram), (2, "tiered ", &tiered)] {
        let rounds = against_first(&rounds, position);
        if position == 1 {
            queries::check_resident(&rounds, |(ours, _)| ours)?;
        }
        let sides = (ours.name(), duckdb.name());
        for (part, asked, skipped) in [("groupby ", &GROUP_BY[..], 0), ("join ", &JOINS[..], GROUP_BY.len())] {
            let rounds: Rounds =
                rounds.iter().map(|round| round.iter().skip(skipped).take(asked.len()).cloned().collect()).collect();
            let names: Vec<String> = (1..=asked.len()).map(|number| format!("q{number}")).collect();
            let label = format!("{label}{part}");
            let summary =
                Summary { sides, label: &label, mean: Target::OPEN, each: Target::OPEN, params: params.clone() };
            queries::add_named_rows(bench, &summary, &names, &rounds, |ours, peer| ours.ms / peer.ms);
        }
    }
    Ok(())
}

fn all() -> impl Iterator<Item = &'static Query> {
    GROUP_BY.iter().chain(&JOINS)
}

/// Fails when the sums over the answer to a query are others on another side.
fn check(query: &Query, sides: &mut [&mut Child]) -> Result<()> {
    let request = format!("check {}", query.name);
    let mut answers: Vec<(String, Sample)> = Vec::new();
    for side in sides {
        let answer = side.ask(&request)?;
        answers.push((side.name().to_owned(), answer));
    }
    let Some(((peer, expected), others)) = answers.split_first() else { return Ok(()) };
    for (name, answer) in others {
        let compared = expected.values.keys().filter(|sum| *sum != "cpu_ms");
        for sum in compared {
            let ours = answer.values.get(sum);
            let theirs = expected.value(sum);
            let near = |ours: &f64| (ours - theirs).abs() <= TOLERANCE * theirs.abs().max(1.0);
            if !ours.is_some_and(near) {
                return Err(Error::failed(format!("{}: {sum} is {ours:?} on {name}, {theirs} on {peer}", query.name)));
            }
        }
    }
    Ok(())
}

/// The samples of the side at a position, and of the first one.
fn against_first(all: &[Vec<Vec<Sample>>], position: usize) -> Rounds {
    let pair = |samples: &Vec<Sample>| Some((samples.get(position)?.clone(), samples.first()?.clone()));
    all.iter().map(|round| round.iter().filter_map(pair).collect()).collect()
}

/// DuckDB on a file in its own format.
fn duckdb(bench: &Bench, data: &DbBenchmark) -> Result<Child> {
    let tables: Map<String, Value> =
        DbBenchmark::tables().map(|name| (name.to_owned(), json!(data.parquet(name)))).collect();
    let texts = all().flat_map(|query| {
        let text = (query.name.to_owned(), json!(query.sql));
        [text, (format!("check {}", query.name), json!(query.check()))]
    });
    let queries: Map<String, Value> = texts.collect();
    let spec = json!({
        "threads": bench.threads, "tables": tables, "queries": queries, "folder": data.dir, "large": true,
    });
    let mut command = Command::new(python(&["duckdb", "pyarrow"])?);
    command.args(["-c", DUCKDB_SIDE, &spec.to_string()]);
    Child::start_command("DuckDB on its own file", command)
}
