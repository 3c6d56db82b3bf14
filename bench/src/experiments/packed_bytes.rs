//! Bytes of TPC-H and TPC-DS in the packed form, against Vortex's default compression of the same rows in memory (E1).

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::dram_saved::tpcds_data;
use super::peers::python;
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::Result;
use crate::server::Server;

const SIDE: &str = include_str!("../side/vortex.py");

/// Counts the bytes of both.
pub fn run(bench: &mut Bench) -> Result<()> {
    let python = python(&["adbc_driver_flightsql", "pyarrow", "vortex"])?;
    let scale = bench.scale(1.0);
    let tpch = bench.dataset(scale)?.clone_store()?;
    compare(bench, "TPC-H", scale, &tpch, &python)?;
    let tpcds = StoreClone::from_store(&tpcds_data(bench, scale)?.store())?;
    compare(bench, "TPC-DS", scale, &tpcds, &python)
}

fn compare(bench: &mut Bench, what: &str, scale: f64, store: &StoreClone, python: &Path) -> Result<()> {
    // One partition returns rows in their order.
    let arguments = ["--dram-budget", "64MB", "--set", "tiering.enabled=false", "--set", "query.threads=1"];
    let server = Server::start(&store.path(), &arguments)?;
    let mut command = Command::new(python);
    command.args(["-c", SIDE, &json!({ "url": server.url() }).to_string()]);
    let mut vortex = Child::start_command("Vortex", command)?;
    let counted = bench.ask(&mut vortex, "compress")?;
    let [plain, packed, theirs] = ["plain_bytes", "packed_bytes", "vortex_bytes"].map(|name| counted.value(name));
    bench.add(Finding {
        sides: ("bytes in the packed form", "bytes of Vortex's default compression"),
        what,
        values: &[packed / theirs],
        target: Target::below(1.15, 1.0),
        params: json!({ "scale": scale, "plain_bytes": plain, "packed_bytes": packed, "vortex_bytes": theirs }),
    });
    server.stop()
}
