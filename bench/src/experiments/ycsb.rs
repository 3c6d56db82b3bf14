//! YCSB. Workloads A to F: single operations by key from Python, over ADBC to a real server, against DuckDB in the
//! Python process. Workloads with 90 % reads on eight times the memory, by the kind of merging: clients in the process of the
//! engine, as many as cores.

use std::process::Command;

use serde_json::json;
use terrace_tier_store::placement::MergeKind;

use super::peers::python;
use crate::bars::{self, Bar};
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::server::Server;
use crate::side::SideSpec;
use crate::side::ycsb::CHUNK_ROWS;
use crate::statistics::median;

const SIDE: &str = include_str!("../side/ycsb.py");
/// Workloads of the YCSB paper and their operations.
const WORKLOADS: [(&str, &str); 6] = [
    ("a", "half reads, half updates"),
    ("b", "95 % reads, 5 % updates"),
    ("c", "reads"),
    ("d", "95 % reads of late keys, 5 % inserts"),
    ("e", "95 % short scans, 5 % inserts"),
    ("f", "half reads, half read-modify-writes"),
];

/// Loads both sides, runs the workloads in turn, and compares the contents of the tables at the end.
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
        let found = bench.in_turn(bench.runs, |bench| {
            let a = bench.ask(&mut ours, name)?;
            let b = bench.ask(&mut peer, name)?;
            if a.value("rows") != b.value("rows") {
                let rows = (a.value("rows"), b.value("rows"));
                return Err(Error::failed(format!(
                    "workload {name}: {} rows read or changed, DuckDB {}",
                    rows.0, rows.1
                )));
            }
            Ok((a.per_s("operations"), b.per_s("operations")))
        })?;
        bench.add(Finding {
            sides: (ours.name(), peer.name()),
            what: &format!("{}: {about}", name.to_uppercase()),
            values: &found.ratios,
            // The same target as for a point query (P16).
            target: Target::above(0.1, 1.0 / 3.0),
            params: json!({
                "records": records, "operations": operations, "operations_per_s_a": median(&found.a),
                "operations_per_s_b": median(&found.b),
            }),
        });
    }
    let a = ours.ask("digest")?;
    let b = peer.ask("digest")?;
    if a.values != b.values {
        return Err(Error::failed(format!("the tables differ at the end: {:?} and {:?}", a.values, b.values)));
    }
    Ok(())
}

/// Workloads on more data than memory, and their key distribution.
const TIERED: [(&str, &str); 2] = [
    ("still", "frequent keys are neighbours and stay so"),
    ("moving", "frequent keys are neighbours, others in every round"),
];
const MERGES: [(&str, MergeKind); 3] = [
    ("merge = selective", MergeKind::Selective),
    ("merge = never", MergeKind::Never),
    ("merge = always", MergeKind::Always),
];

/// Ma et al. 2016 (slide "Merging threshold"): so many times the operations of always merging has the top 5 %, by
/// device.
const PAPER: [(&str, f64); 4] = [("SMR disk", 1.30), ("SSD", 1.17), ("3D XPoint", 1.21), ("NVRAM", 1.10)];

/// Measures reads and updates by Zipf on eight times the DRAM tier: selective merging between epochs, against never and
/// against always merging.
pub fn merge(bench: &mut Bench) -> Result<()> {
    let (records, operations) = if bench.quick { (8_000, 50) } else { (100_000, 2_000) };
    let mut bars = Vec::new();
    for (name, about) in TIERED {
        let start = |(label, merge): (&str, MergeKind)| {
            let store = StoreClone::empty(bench.scratch(&format!("ycsb-{name}-{}", merge.name())))?;
            let spec = SideSpec::Ycsb {
                store: store.path(),
                records,
                clients: bench.threads,
                merge,
                chunk_rows: CHUNK_ROWS,
                blocking: false,
                nvm: false,
            };
            Ok::<_, Error>((Child::start(label, &spec)?, store))
        };
        let [selective, never, always] = MERGES.map(start);
        let mut sides = [selective?, never?, always?];
        // The first round is not counted: it prepares plans and buffers.
        for (side, _) in &mut sides {
            side.ask(&format!("round {operations}"))?;
        }
        let mut ratios = [const { Vec::new() }; 2];
        let mut rates = [const { Vec::new() }; 3];
        let mut cold = [0.0; 3];
        while bench.wants_another_round(rates[0].len()) {
            let mut ms = Vec::new();
            let mut rows = Vec::new();
            for (((side, _), rates), cold) in sides.iter_mut().zip(&mut rates).zip(&mut cold) {
                if name == "moving" {
                    side.ask("move")?;
                }
                let sample = bench.ask(side, &format!("round {operations}"))?;
                ms.push(sample.ms);
                rows.push(sample.value("rows"));
                rates.push(sample.per_s("operations"));
                *cold += sample.value("cold_bytes");
            }
            if rows.iter().any(|count| Some(count) != rows.first()) {
                return Err(Error::failed(format!(
                    "{name}: the sides read or changed different numbers of rows: {rows:?}"
                )));
            }
            let (own, peers) = ms.split_first().ok_or_else(|| Error::failed("no sides"))?;
            ratios.iter_mut().zip(peers).for_each(|(ratios, peer)| ratios.push(peer / own));
        }
        let rate = rates.map(|rates| median(&rates));
        println!("  {:<10}{:<20}{:>14}{:>14}{:>12}", "keys", "policy", "operations/s", "to always", "cold MB");
        for (((label, _), rate_of), cold) in MERGES.into_iter().zip(rate).zip(cold) {
            let against = rate_of / rate[2];
            println!("  {name:<10}{label:<20}{rate_of:>14.0}{against:>14.2}{:>12.1}", cold / 1e6);
            let paper = PAPER.iter().find(|(device, _)| *device == "SSD" && label == MERGES[0].0);
            let reported = paper.map(|(_, gain)| *gain);
            bars.push(Bar { name: format!("{name} keys, {label}"), value: Some(against), reported });
        }
        for (peer, values) in [1, 2].into_iter().zip(&ratios) {
            let what = format!("{name}, against {}", MERGES[peer].0);
            let params = json!({
                "about": about, "records": records, "operations": operations, "clients": bench.threads,
                "operations_per_s_a": rate[0], "operations_per_s_b": rate[peer],
                "cold_bytes_a": cold[0], "cold_bytes_b": cold[peer],
            });
            let sides = (MERGES[0].0, MERGES[peer].0);
            let target = Target::above(1.0, 1.1);
            bench.add(Finding { sides, what: &what, values, target, params });
        }
        let digests = sides.each_mut().map(|(side, _)| side.ask("digest"));
        let [a, b, c] = digests;
        let a = a?.values;
        let b = b?.values;
        let c = c?.values;
        let same = |other: &std::collections::BTreeMap<String, f64>| other.get("digest") == a.get("digest");
        if !same(&b) || !same(&c) {
            return Err(Error::failed(format!("{name}: the tables differ at the end: {a:?}, {b:?}, {c:?}")));
        }
    }
    let of_paper = |(device, gain): (&str, f64)| Bar {
        name: format!("the paper's top 5 %, {device}"),
        value: None,
        reported: Some(gain),
    };
    bars.extend(PAPER.map(of_paper));
    let svg = bars::svg("operations/s, times those of merge = always", "Ma et al. 2016", &bars);
    bench.draw("YCSB 90/10 by what cold reads may bring into memory (compare Ma et al. 2016, merging threshold)", svg);
    Ok(())
}
