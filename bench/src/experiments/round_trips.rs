//! Round trips of the smallest statements over one ADBC connection (P16): a real server with resident data against a
//! bare arrow-flight server with canned answers, by the same driver. PostgreSQL's primary-key select by its own driver
//! is reported beside it, where `TERRACE_BENCH_POSTGRES` says how to connect.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::peers::python;
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::side::SideSpec;
use crate::statistics::median;

const SIDE: &str = include_str!("../side/round_trips.py");
const TABLE: &str = "terrace_bench_points";

/// A statement that all sides run.
struct Statement {
    op: &'static str,
    what: &'static str,
    /// Target against the bare server.
    target: Target,
}

const STATEMENTS: [Statement; 2] = [
    Statement { op: "select", what: "SELECT 1", target: Target::below(1.5, 1.15) },
    Statement { op: "point", what: "point query, prepared", target: Target::below(2.0, 1.5) },
];

/// Measures both statements on all sides, in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let driver = python(&["adbc_driver_flightsql", "pyarrow"])?;
    let (records, operations) = if bench.quick { (2_000, 50) } else { (100_000, 1_000) };
    let start = |name: &str, python: &Path, at: serde_json::Value| {
        let mut spec = json!({ "records": records, "operations": operations });
        if let (Some(spec), serde_json::Value::Object(at)) = (spec.as_object_mut(), at) {
            spec.extend(at);
        }
        let mut command = Command::new(python);
        command.args(["-c", SIDE, &spec.to_string()]);
        Child::start_command(name, command)
    };
    let store = StoreClone::empty(bench.scratch("round-trips"))?;
    let server = Server::start(&store.path(), &["--dram-budget", "1GB", "--set", "tiering.enabled=false"])?;
    let mut ours = start("Terrace over ADBC", &driver, json!({ "url": server.url() }))?;
    ours.ask("load")?;
    server.pin_in_dram(&[TABLE])?;
    let mut canned = Child::start("canned answers", &SideSpec::Canned)?;
    let url = format!("grpc://127.0.0.1:{}", canned.ask("port")?.value("port"));
    let bare = start("a bare arrow-flight server with canned answers", &driver, json!({ "url": url }))?;
    let mut peers = vec![bare];
    match postgres() {
        Ok((python, at)) => {
            let mut side = start("PostgreSQL", &python, json!({ "postgres": at }))?;
            side.ask("load")?;
            peers.push(side);
        }
        Err(Error::Missing(why)) => println!("  PostgreSQL, which is only reported, is not measured: {why}"),
        Err(error) => return Err(error),
    }
    for statement in &STATEMENTS {
        compare(bench, &mut ours, &mut peers, statement, records)?;
    }
    server.check_in_dram()
}

/// Compares one statement with each peer; the row of the first peer has the target.
fn compare(
    bench: &mut Bench,
    ours: &mut Child,
    peers: &mut [Child],
    statement: &Statement,
    records: u32,
) -> Result<()> {
    let Statement { op, what, target } = *statement;
    ours.ask(op)?;
    for peer in &mut *peers {
        peer.ask(op)?;
    }
    let mut samples = Vec::new();
    let mut others = vec![Vec::new(); peers.len()];
    while bench.wants_another_round(samples.len()) {
        samples.push(bench.ask(ours, op)?);
        for (peer, of_peer) in peers.iter_mut().zip(&mut others) {
            of_peer.push(bench.ask(peer, op)?);
        }
    }
    for (number, (peer, of_peer)) in peers.iter().zip(&others).enumerate() {
        let ratios: Vec<f64> = samples.iter().zip(of_peer).map(|(a, b)| a.ms / b.ms).collect();
        let median_of =
            |samples: &[Sample], what: fn(&Sample) -> f64| median(&samples.iter().map(what).collect::<Vec<_>>());
        bench.add(Finding {
            sides: (ours.name(), peer.name()),
            what: &if number == 0 { what.to_owned() } else { format!("{what}, to {}", peer.name()) },
            values: &ratios,
            target: if number == 0 { target } else { Target::OPEN },
            params: json!({
                "records": records, "ms_a": median_of(&samples, |s| s.ms), "ms_b": median_of(of_peer, |s| s.ms),
                "p99_ms_a": median_of(&samples, |s| s.value("p99_ms")),
                "p99_ms_b": median_of(of_peer, |s| s.value("p99_ms")), "version_b": peer.ready.value("version"),
            }),
        });
    }
    Ok(())
}

/// A Python with PostgreSQL's driver, and its connection string.
fn postgres() -> Result<(PathBuf, String)> {
    let at = std::env::var("TERRACE_BENCH_POSTGRES")
        .map_err(|_| Error::Missing("TERRACE_BENCH_POSTGRES does not say how to connect".to_owned()))?;
    Ok((python(&["psycopg"])?, at))
}
