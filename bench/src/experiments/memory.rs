//! Resident memory of a real server whose DRAM budget is a tenth of the data, under the 22 queries.
//!
//! The bound is meaningful only when a server could exceed it: when all segments in memory would already take more. So
//! query memory is a fifth of that at scale 10, and a smaller scale decides nothing.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::folder_bytes;
use crate::error::{Error, Result};
use crate::server::Server;
use crate::tpch::QUERIES;

const QUERY_BYTES: f64 = 1e9;
const ALLOWANCE_BYTES: f64 = 300e6;

/// Starts the server, runs the queries while it tiers, and looks at its memory.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let stored = folder_bytes(&data.store().join("ssd"))? as f64;
    let budget = (stored / 10.0).floor();
    let settings = ["--set", "tiering.interval=1s", "--set", &format!("memory.query={QUERY_BYTES}")];
    let server = Server::start(&store.path(), &[&settings[..], &["--dram-budget", &budget.to_string()]].concat())?;
    let file = store.path().join("queries.sql");
    std::fs::write(&file, QUERIES.join(";\n")).map_err(Error::path("write", &file))?;
    let mut peaks = Vec::new();
    while bench.wants_another_round(peaks.len()) {
        server.sql(&file)?;
        let sample = server.memory()?;
        bench.record("terrace serve", "22 queries", sample.clone());
        peaks.push(sample.value("peak_bytes"));
    }
    let allowed = budget + QUERY_BYTES + ALLOWANCE_BYTES;
    let ratios: Vec<f64> = peaks.iter().map(|peak| peak / allowed).collect();
    let now = server.memory()?;
    let mut params = json!({
        "scale": scale, "dram_budget_bytes": budget, "query_memory_bytes": QUERY_BYTES, "allowed_bytes": allowed,
        "stored_bytes": stored, "resident_bytes": now.value("resident_bytes"), "peak_bytes": now.value("peak_bytes"),
    });
    if let Some(params) = params.as_object_mut().filter(|_| stored < allowed) {
        let why = "all of the data fits what is allowed; --scale 10 does not";
        params.insert("undecided".to_owned(), json!(why));
    }
    bench.add(Finding {
        sides: ("resident memory of terrace serve (peak)", "DRAM budget + query memory + 300 MB"),
        what: "resident memory",
        values: &ratios,
        target: Target::below(1.0, 1.0),
        params,
    });
    Ok(())
}
