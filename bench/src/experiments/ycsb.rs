//! YCSB A to F: single operations by key from Python, over ADBC to a real server, against DuckDB in the Python process.

use std::process::Command;

use serde_json::json;

use super::peers::python;
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::server::Server;
use crate::statistics::median;

const SIDE: &str = include_str!("../side/ycsb.py");
/// Workloads of the YCSB paper and what they do.
const WORKLOADS: [(&str, &str); 6] = [
    ("a", "half reads, half updates"),
    ("b", "95 % reads, 5 % updates"),
    ("c", "reads"),
    ("d", "95 % reads of late keys, 5 % inserts"),
    ("e", "95 % short scans, 5 % inserts"),
    ("f", "half reads, half read-modify-writes"),
];

/// Loads both sides, runs the workloads in turn, and compares what the tables hold at the end.
pub fn run(bench: &mut Bench) -> Result<()> {
    let python = python(&["duckdb", "pyarrow", "adbc_driver_flightsql"])?;
    let (records, operations) = if bench.quick { (2_000, 12) } else { (100_000, 1000) };
    let store = StoreClone::empty(bench.scratch("ycsb"))?;
    let server = Server::start(&store.path(), &["--dram-budget", "1GB"])?;
    let start = |name: &str, url: Option<&str>| {
        let spec = json!({ "url": url, "records": records, "operations": operations, "threads": bench.threads });
        let mut command = Command::new(&python);
        command.args(["-c", SIDE, &spec.to_string()]);
        Child::start_command(name, command)
    };
    let mut ours = start("Terrace over ADBC", Some(server.url()))?;
    let mut peer = start("DuckDB in process, in memory", None)?;
    for (name, about) in WORKLOADS {
        let (mut ratios, mut a_rate, mut b_rate) = (Vec::new(), Vec::new(), Vec::new());
        while bench.another(ratios.len()) {
            let (a, b) = (bench.ask(&mut ours, name)?, bench.ask(&mut peer, name)?);
            if a.value("rows") != b.value("rows") {
                let rows = (a.value("rows"), b.value("rows"));
                return Err(Error::failed(format!(
                    "workload {name}: {} rows read or changed, DuckDB {}",
                    rows.0, rows.1
                )));
            }
            ratios.push(b.ms / a.ms);
            a_rate.push(a.value("operations") / a.ms * 1e3);
            b_rate.push(b.value("operations") / b.ms * 1e3);
        }
        bench.add(Finding {
            sides: (ours.name(), peer.name()),
            what: &format!("{}: {about}", name.to_uppercase()),
            values: &ratios,
            // As far from the peer as a point query may be (P16).
            target: Target::above(0.1, 1.0 / 3.0),
            params: json!({
                "records": records, "operations": operations, "operations_per_s_a": median(&a_rate),
                "operations_per_s_b": median(&b_rate),
            }),
        });
    }
    let (a, b) = (ours.ask("digest")?, peer.ask("digest")?);
    if a.values != b.values {
        return Err(Error::failed(format!("the tables differ at the end: {:?} and {:?}", a.values, b.values)));
    }
    Ok(())
}
