//! TPC-H with every segment in DRAM, against the peers.

use std::process::Command;

use serde_json::json;

use super::peers::python;
use super::queries::{self, Placed, Summary};
use crate::bench::{Bench, Target};
use crate::child::Child;
use crate::error::Result;
use crate::side::SideSpec;
use crate::tpch::{QUERIES, TABLES, names};

/// What Terrace and a peer take per scale factor, everything in memory and the work of the queries included.
const BYTES_PER_SCALE: u64 = 3_200_000_000;
/// The same where the peer is `MemTable`, whose Q18 alone takes more than that.
const MEMTABLE_BYTES_PER_SCALE: u64 = 6_000_000_000;
const DUCKDB_SIDE: &str = include_str!("../side/duckdb.py");

/// Against DataFusion's memory tables.
pub fn memtable(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.check_memory(scale, MEMTABLE_BYTES_PER_SCALE)?;
    bench.dataset(scale)?;
    let spec = SideSpec::MemTable { data_dir: bench.data_dir.clone(), scale, threads: bench.threads };
    let peer = Child::start("DataFusion MemTable", &spec)?;
    compare(bench, scale, peer, Target::below(1.0, 0.5), Target::below(1.1, 0.5))
}

/// Against DataFusion on Parquet files.
pub fn parquet(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.dataset(scale)?;
    let spec = SideSpec::Parquet { data_dir: bench.data_dir.clone(), scale, threads: bench.threads };
    let peer = Child::start("DataFusion on Parquet", &spec)?;
    compare(bench, scale, peer, Target::below(1.0, 0.5), Target::below(1.0, 0.5))
}

/// Against DuckDB.
pub fn duckdb(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.check_memory(scale, BYTES_PER_SCALE)?;
    let data = bench.dataset(scale)?;
    let tables: serde_json::Map<_, _> =
        TABLES.iter().map(|t| (t.name.to_owned(), json!(data.parquet(t.name)))).collect();
    let queries: serde_json::Map<_, _> = names().zip(QUERIES).map(|(name, sql)| (name, json!(sql))).collect();
    let spec = json!({ "threads": bench.threads, "tables": tables, "queries": queries });
    let mut command = Command::new(python(&["duckdb", "pyarrow"])?);
    command.args(["-c", DUCKDB_SIDE, &spec.to_string()]);
    let peer = Child::start_command("DuckDB", command)?;
    compare(bench, scale, peer, Target::below(1.6, 1.0), Target::below(1.6, 1.0))
}

fn compare(bench: &mut Bench, scale: f64, mut peer: Child, mean: Target, each: Target) -> Result<()> {
    let mut ours = Placed::start(bench, "Terrace, all in DRAM", scale, 1.0, false)?;
    let rounds = queries::rounds(bench, &mut ours.child, &mut peer)?;
    queries::check_resident(&rounds, |(a, _)| a)?;
    let mut params = json!({ "scale": scale, "threads": bench.threads, "batch_rows": 8192 });
    if let (Some(params), Some(version)) = (params.as_object_mut(), peer.ready.values.get("version")) {
        params.insert("duckdb".to_owned(), json!(format!("{version:.1}")));
    }
    let sides = (ours.child.name(), peer.name());
    queries::add_rows(bench, &Summary { sides, label: "", mean, each, params }, &rounds, |a, b| a.ms / b.ms);
    Ok(())
}
