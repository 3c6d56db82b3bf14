//! Resident memory of a real server whose DRAM budget is a tenth of the data, under the 22 queries.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::folder_bytes;
use crate::error::{Error, Result};
use crate::server::Server;
use crate::tpch::QUERIES;

const QUERY_BYTES_PER_SCALE: f64 = 512e6;
const ALLOWANCE_BYTES: f64 = 300e6;

/// Starts the server, runs the queries while it tiers, and looks at its memory.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let budget = (folder_bytes(&data.store().join("ssd"))? as f64 / 10.0).floor();
    let query = (QUERY_BYTES_PER_SCALE * scale.max(1.0)).floor();
    let settings = ["--set", "tiering.interval=1s", "--set", &format!("memory.query={query}")];
    let server = Server::start(&store.path(), &[&settings[..], &["--dram-budget", &budget.to_string()]].concat())?;
    let file = store.path().join("queries.sql");
    std::fs::write(&file, QUERIES.join(";\n")).map_err(Error::path("write", &file))?;
    let mut peaks = Vec::new();
    while bench.another(peaks.len()) {
        server.sql(&file)?;
        let sample = server.memory()?;
        bench.keep("terrace serve", "22 queries", sample.clone());
        peaks.push(sample.value("peak_bytes"));
    }
    let allowed = budget + query + ALLOWANCE_BYTES;
    let ratios: Vec<f64> = peaks.iter().map(|peak| peak / allowed).collect();
    let now = server.memory()?;
    bench.add(Finding {
        sides: ("resident memory of terrace serve (peak)", "DRAM budget + query memory + 300 MB"),
        what: "resident memory",
        values: &ratios,
        target: Target::below(1.0, 1.0),
        params: json!({
            "scale": scale, "dram_budget_bytes": budget, "query_memory_bytes": query, "allowed_bytes": allowed,
            "resident_bytes": now.value("resident_bytes"), "peak_bytes": now.value("peak_bytes"),
        }),
    });
    Ok(())
}
