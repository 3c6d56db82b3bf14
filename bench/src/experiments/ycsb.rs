//! YCSB: single operations by key from Python, over ADBC to a real server. A to F against DuckDB in the Python process; 90 %
//! reads on eight times the memory by what a cold read may bring into memory.

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

/// Workloads on more data than memory, and what they do.
const TIERED: [(&str, &str); 2] = [
    ("still", "frequent keys are neighbours and stay so"),
    ("moving", "frequent keys are neighbours, others every three rounds"),
];
/// Bytes of a record of ten fields of 100 bytes, as stored.
const RECORD_BYTES: u64 = 1_170;

/// Reads and updates by Zipf on eight times the DRAM tier: what is worth it comes into memory between epochs, against
/// nothing and against everything.
pub fn merge(bench: &mut Bench) -> Result<()> {
    let python = python(&["pyarrow", "adbc_driver_flightsql"])?;
    let (records, operations) = if bench.quick { (8_000, 12) } else { (100_000, 200) };
    let budget = (records * RECORD_BYTES / 8).to_string();
    for (name, about) in TIERED {
        let start = |merge: &str| {
            let store = StoreClone::empty(bench.scratch(&format!("ycsb-{name}-{merge}")))?;
            let setting = format!("tiering.merge={merge}");
            let server = Server::start(&store.path(), &["--dram-budget", &budget, "--set", &setting])?;
            let spec = json!({
                "url": server.url(), "records": records, "operations": operations, "threads": bench.threads,
                "chunk_rows": 2048,
            });
            let mut command = Command::new(&python);
            command.args(["-c", SIDE, &spec.to_string()]);
            Ok::<_, Error>((Child::start_command(&format!("merge = {merge}"), command)?, server, store))
        };
        let (mut selective, mut never, mut always) = (start("selective")?, start("never")?, start("always")?);
        // Of each peer the ratios of all operations, and those of reads alone.
        let mut ratios = [const { [const { Vec::new() }; 2] }; 2];
        let (mut rates, mut rows, mut rounds) = ([const { Vec::new() }; 3], [0.0; 3], 0);
        while bench.another(rounds) {
            rounds += 1;
            let mut ms = [[0.0; 2]; 3];
            let sides = [&mut selective.0, &mut never.0, &mut always.0];
            for (((side, ms), rate), rows) in sides.into_iter().zip(&mut ms).zip(&mut rates).zip(&mut rows) {
                let sample = bench.ask(side, name)?;
                *ms = [sample.ms, sample.value("read_ms")];
                *rows = sample.value("rows");
                rate.push(sample.value("operations") / sample.ms * 1e3);
            }
            let [own, never, always] = ms;
            if rows.iter().any(|count| Some(count) != rows.first()) {
                return Err(Error::failed(format!(
                    "{name}: the sides read or changed different numbers of rows: {rows:?}"
                )));
            }
            for (ratios, peer) in ratios.iter_mut().zip([never, always]) {
                for ((ratios, peer), own) in ratios.iter_mut().zip(peer).zip(own) {
                    ratios.push(peer / own);
                }
            }
        }
        let [own, never_rate, always_rate] = rates.map(|rates| median(&rates));
        for ((peer, ratios), rate) in [&never.0, &always.0].into_iter().zip(&ratios).zip([never_rate, always_rate]) {
            for (values, part) in ratios.iter().zip(["all", "reads"]) {
                bench.add(Finding {
                    sides: (selective.0.name(), peer.name()),
                    what: &format!("{name}, {part}, against {}", peer.name()),
                    values,
                    target: Target::above(1.0, 1.1),
                    params: json!({
                        "about": about, "records": records, "operations": operations, "operations_per_s_a": own,
                        "operations_per_s_b": rate,
                    }),
                });
            }
        }
        let digests = [&mut selective.0, &mut never.0, &mut always.0].map(|side| side.ask("digest"));
        let [a, b, c] = digests;
        let (a, b, c) = (a?.values, b?.values, c?.values);
        if a != b || a != c {
            return Err(Error::failed(format!("{name}: the tables differ at the end: {a:?}, {b:?}, {c:?}")));
        }
    }
    Ok(())
}
