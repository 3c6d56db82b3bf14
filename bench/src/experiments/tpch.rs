//! TPC-H with every segment in DRAM, against the peers.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::peers::python;
use super::queries::{self, Placed, Summary};
use crate::bench::{Bench, Target};
use crate::child::Child;
use crate::data::folder_bytes;
use crate::error::Result;
use crate::server::Server;
use crate::side::SideSpec;
use crate::tpch::{QUERIES, TABLES, names};

/// Memory of Terrace and two DuckDB processes per scale factor, with all data in memory and the queries' own memory.
const BYTES_PER_SCALE: u64 = 4_500_000_000;
/// Like [`BYTES_PER_SCALE`], but for the peer `MemTable`, whose Q18 alone takes more.
const MEMTABLE_BYTES_PER_SCALE: u64 = 6_000_000_000;
/// The program of a DuckDB side.
pub(super) const DUCKDB_SIDE: &str = include_str!("../side/duckdb.py");
const CLIENT_SIDE: &str = include_str!("../side/flight_sql.py");
const DUCKDB_MEAN: Target = Target::below(1.0, 0.85);
/// The cost of the thesis' abstraction for TPC-H.
const THESIS_ABSTRACTION: f64 = 1.006;

/// Compares with DataFusion's memory tables.
pub fn memtable(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.check_memory(scale, MEMTABLE_BYTES_PER_SCALE)?;
    bench.dataset(scale)?;
    let spec = SideSpec::MemTable { data_dir: bench.data_dir.clone(), scale, threads: bench.threads };
    let mut peer = Child::start("DataFusion MemTable", &spec)?;
    let mut ours = Placed::start(bench, "Terrace, all in DRAM", scale, 1.0, false)?;
    compare(bench, scale, &mut ours.child, &mut peer, Target::below(1.0, 0.5), Target::below(1.1, 0.5))?;
    storage(bench, scale, &mut ours.child, &mut peer)
}

/// Measures the cost of storage alone: both sides run DataFusion's own plans, which differ only in the leaves. No rule
/// of Terrace applies, and no filter reaches a scan. Dreseler 2021: 0.6 % for the abstraction of where data lies.
fn storage(bench: &mut Bench, scale: f64, ours: &mut Child, peer: &mut Child) -> Result<()> {
    // These plans read columns that Terrace's plans leave out, and only columns that were read are placed.
    for query in names() {
        bench.ask(ours, &format!("leaf {query}"))?;
    }
    bench.ask(ours, "place 1")?;
    let rounds = queries::leaf_rounds(bench, ours, peer)?;
    queries::check_resident(&rounds, |(a, _)| a)?;
    let mean = Target::below(THESIS_ABSTRACTION, 1.0);
    let each = Target::below(1.1, 1.0);
    let sides = ("Terrace's storage, equal plans", "MemTable, equal plans");
    let params = json!({ "scale": scale, "threads": bench.threads, "batch_rows": 8192 });
    queries::add_rows(bench, &Summary { sides, label: "storage ", mean, each, params }, &rounds, |a, b| a.ms / b.ms);
    Ok(())
}

/// Compares with DataFusion on Parquet files.
pub fn parquet(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.dataset(scale)?;
    let spec = SideSpec::Parquet { data_dir: bench.data_dir.clone(), scale, threads: bench.threads };
    let mut peer = Child::start("DataFusion on Parquet", &spec)?;
    let mut ours = Placed::start(bench, "Terrace, all in DRAM", scale, 1.0, false)?;
    compare(bench, scale, &mut ours.child, &mut peer, Target::below(1.0, 0.5), Target::below(1.0, 0.5))
}

/// Compares with the faster of DuckDB in memory and DuckDB on its own file, query by query.
pub fn duckdb(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let mut peers = DuckDb::start(bench, scale)?;
    let mut ours = Placed::start(bench, "Terrace, all in DRAM", scale, 1.0, false)?;
    let rounds = peers.compare(bench, &mut ours.child, scale, DUCKDB_MEAN)?;
    queries::check_resident(&rounds, |(a, _)| a)
}

/// Like [`duckdb`], but through ADBC and a server, so that the transport of statements and rows counts.
pub fn duckdb_served(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let python = python(&["adbc_driver_flightsql", "pyarrow"])?;
    let mut peers = DuckDb::start(bench, scale)?;
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let dram = 3 * folder_bytes(&data.store().join("ssd"))? + (256 << 20);
    let threads = format!("query.threads={}", bench.threads);
    let arguments = ["--set", "tiering.enabled=false", "--set", &threads, "--dram-budget", &dram.to_string()];
    let server = Server::start(&store.path(), &arguments)?;
    server.pin_in_dram(&TABLES.map(|table| table.name))?;
    let mut command = Command::new(python);
    command.args(["-c", CLIENT_SIDE, &json!({ "url": server.url(), "queries": texts() }).to_string()]);
    let mut ours = Child::start_command("Terrace over ADBC", command)?;
    peers.compare(bench, &mut ours, scale, Target::below(1.15, 0.9))?;
    // Check that all data is still in DRAM.
    server.check_in_dram()
}

/// Query texts by name.
fn texts() -> serde_json::Map<String, serde_json::Value> {
    names().zip(QUERIES).map(|(name, sql)| (name, json!(sql))).collect()
}

/// DuckDB twice: in memory and on a file in its own format.
struct DuckDb {
    memory: Child,
    file: Child,
}

impl DuckDb {
    fn start(bench: &mut Bench, scale: f64) -> Result<Self> {
        bench.check_memory(scale, BYTES_PER_SCALE)?;
        let data = bench.dataset(scale)?;
        let tables: serde_json::Map<_, _> =
            TABLES.iter().map(|t| (t.name.to_owned(), json!(data.parquet(t.name)))).collect();
        let python = python(&["duckdb", "pyarrow"])?;
        let start = |name: &str, folder: Option<&Path>| {
            let spec = json!({ "threads": bench.threads, "tables": tables, "queries": texts(), "folder": folder });
            let mut command = Command::new(&python);
            command.args(["-c", DUCKDB_SIDE, &spec.to_string()]);
            Child::start_command(name, command)
        };
        Ok(Self { memory: start("DuckDB in memory", None)?, file: start("DuckDB on its file", Some(&data.dir))? })
    }

    /// Adds the rows of a side against the faster one.
    fn compare(&mut self, bench: &mut Bench, ours: &mut Child, scale: f64, mean: Target) -> Result<queries::Rounds> {
        let (rounds, on_file) = queries::rounds_against_faster(bench, ours, [&mut self.memory, &mut self.file])?;
        let version = self.memory.ready.value("version");
        let params = json!({
            "scale": scale, "threads": bench.threads, "batch_rows": 8192, "duckdb": format!("{version:.1}"),
            "faster_on_file": on_file.join(" "),
        });
        let sides = (ours.name(), "the faster of DuckDB in memory and on its own file");
        let each = Target::below(1.6, mean.goal);
        queries::add_rows(bench, &Summary { sides, label: "", mean, each, params }, &rounds, |a, b| a.ms / b.ms);
        Ok(rounds)
    }
}

fn compare(
    bench: &mut Bench,
    scale: f64,
    ours: &mut Child,
    peer: &mut Child,
    mean: Target,
    each: Target,
) -> Result<()> {
    let rounds = queries::rounds(bench, ours, peer)?;
    queries::check_resident(&rounds, |(a, _)| a)?;
    let params = json!({ "scale": scale, "threads": bench.threads, "batch_rows": 8192 });
    let sides = (ours.name(), peer.name());
    queries::add_rows(bench, &Summary { sides, label: "", mean, each, params }, &rounds, |a, b| a.ms / b.ms);
    Ok(())
}
