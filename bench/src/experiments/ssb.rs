//! The Star Schema Benchmark with every segment in DRAM, against DataFusion's memory tables and DuckDB in memory.

use std::process::Command;

use serde_json::{Map, Value, json};

use super::peers::python;
use super::queries::{self, Summary};
use super::tpch::DUCKDB_SIDE;
use crate::bench::{Bench, Target};
use crate::child::Child;
use crate::data::Dataset;
use crate::error::Result;
use crate::side::SideSpec;
use crate::ssb;

/// Memory of the three sides per scale factor, with all data in memory and the queries' own memory.
const BYTES_PER_SCALE: u64 = 4_000_000_000;

/// Compares the times of the 13 queries.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.check_memory(scale, BYTES_PER_SCALE)?;
    let data = bench.star(scale)?;
    let store = data.clone_store()?;
    let mut duckdb = duckdb(bench, &data)?;
    let spec = SideSpec::StarTables { data_dir: bench.data_dir.clone(), scale, threads: bench.threads };
    let mut tables = Child::start("DataFusion MemTable", &spec)?;
    let mut ours = Child::start("Terrace, all in DRAM", &SideSpec::terrace(store.path(), bench.threads))?;
    bench.ask(&mut ours, "send dram")?;
    let names: Vec<String> = ssb::names().collect();
    let all = queries::rounds_of_requests(bench, &mut [&mut ours, &mut tables, &mut duckdb], &names)?;
    let params = json!({ "scale": scale, "threads": bench.threads, "batch_rows": 8192 });
    for (position, label, peer) in [(1, "MemTable, ", &tables), (2, "DuckDB, ", &duckdb)] {
        let rounds = queries::against(&all, position);
        queries::check_resident(&rounds, |(a, _)| a)?;
        let sides = (ours.name(), peer.name());
        let summary = Summary { sides, label, mean: Target::OPEN, each: Target::OPEN, params: params.clone() };
        queries::add_named_rows(bench, &summary, &names, &rounds, |a, b| a.ms / b.ms);
    }
    Ok(())
}

/// DuckDB with the tables in memory.
fn duckdb(bench: &Bench, data: &Dataset) -> Result<Child> {
    let tables: Map<String, Value> = data.tables().map(|name| (name.to_owned(), json!(data.parquet(name)))).collect();
    let queries: Map<String, Value> = ssb::names().map(|name| (name.clone(), json!(ssb::query(&name)))).collect();
    let spec = json!({ "threads": bench.threads, "tables": tables, "queries": queries, "folder": Value::Null });
    let mut command = Command::new(python(&["duckdb", "pyarrow"])?);
    command.args(["-c", DUCKDB_SIDE, &spec.to_string()]);
    Child::start_command("DuckDB in memory", command)
}
