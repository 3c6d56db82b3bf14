//! The cost of counting accesses: this build against a second build without counters (Dreseler 2021, table 6.2, p. 97:
//! latencies of TPC-H SF 10 with 50 clients on 56 cores).
//!
//! Instructions of a scan differ by a part or two in a thousand from run to run; the time of TPC-H, of one client and of 50, has
//! its spread. The second build has the same sources and the feature `no-counters`; all crates above `terrace-storage` are
//! compiled again for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::queries::{self, Placed, Summary};
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;

const TARGET: Target = Target::below(1.005, 1.001);
/// Table 6.2: per cent that full counters make each query of TPC-H slower.
const THESIS: [f64; 22] = [
    -0.3, 0.8, -0.9, -1.1, -0.5, 0.2, -0.5, -1.3, -0.6, -2.1, -1.0, -0.9, 0.1, -1.4, -0.9, -1.3, -0.8, -2.3, -0.7,
    -0.8, -1.4, -1.8,
];
/// Like [`THESIS`], but for counters that are not atomic.
const THESIS_NOT_ATOMIC: [f64; 22] =
    [1.3, 1.1, -0.3, 0.2, -0.3, 0.4, 0.6, -0.1, 0.1, -0.3, 1.1, 0.4, 1.7, 0.4, 0.3, 1.0, 0.0, 2.5, 1.4, 1.2, 0.2, 0.4];
/// Like the sum in [`THESIS`].
const THESIS_SUM: f64 = 0.989;
/// The thesis' clients, of which many count the same segments at once.
const CLIENTS: usize = 50;
const QUICK_CLIENTS: usize = 10;
const NAMES: (&str, &str) = ("counters on", "counters compiled out");

/// Counts instructions of a scan and of a filtered scan, then times TPC-H of one client and of many.
pub fn run(bench: &mut Bench) -> Result<()> {
    let ours = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
    let twin = twin(&ours)?;
    if !Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success()) {
        return Err(Error::Missing("valgrind is missing: apt-get install valgrind".to_owned()));
    }
    for (op, what) in [("scan", "scan, instructions"), ("filtered", "filtered scan, instructions")] {
        let found = bench.in_turn(bench.runs, |bench| {
            Ok((instructions(bench, NAMES.0, &ours, op)?, instructions(bench, NAMES.1, &twin, op)?))
        })?;
        bench.add(Finding {
            sides: NAMES,
            what,
            values: &found.ratios,
            target: TARGET,
            params: json!({
                "instructions_a": median(&found.a), "instructions_b": median(&found.b), "rows": 1 << 20, "columns": 4,
            }),
        });
    }
    times(bench, &ours, &twin)
}

/// Times TPC-H with all data in DRAM. A build without counters has no heat, so both start from the heat of another run.
fn times(bench: &mut Bench, ours: &Path, twin: &Path) -> Result<()> {
    let scale = bench.scale(1.0);
    let heated = Placed::start(bench, "warm-up", scale, 1.0, false)?.into_store();
    let stores = (StoreClone::from_store(&heated.path())?, StoreClone::from_store(&heated.path())?);
    let start = |name: &str, program: &Path, store: &StoreClone| {
        let spec = SideSpec::terrace(store.path(), bench.threads);
        let mut child = Child::start_twin(name, program, &spec)?;
        child.ask("place 1")?;
        Ok::<_, Error>(child)
    };
    let mut on = start(NAMES.0, ours, &stores.0)?;
    let mut off = start(NAMES.1, twin, &stores.1)?;
    let rounds = queries::rounds(bench, &mut on, &mut off)?;
    queries::check_resident(&rounds, |(a, _)| a)?;
    queries::check_resident(&rounds, |(_, b)| b)?;
    let params = json!({ "scale": scale, "threads": bench.threads });
    let summary = Summary { sides: NAMES, label: "", mean: TARGET, each: TARGET, params };
    queries::add_rows(bench, &summary, &rounds, |a, b| a.ms / b.ms);
    draw(bench, &rounds);
    crowds(bench, &mut on, &mut off, scale)
}

/// Compares the latencies of many clients at once, as in the thesis; once, because it takes minutes.
fn crowds(bench: &mut Bench, on: &mut Child, off: &mut Child, scale: f64) -> Result<()> {
    let clients = if bench.quick { QUICK_CLIENTS } else { CLIENTS };
    let op = format!("crowd {clients} {}", bench.seed);
    let found = bench.in_turn(1, |bench| {
        let a = bench.ask(on, &op)?;
        Ok((a.value("sum_ms"), bench.ask(off, &op)?.value("sum_ms")))
    })?;
    let params = json!({
        "scale": scale, "threads": bench.threads, "clients": clients, "sum_ms_a": median(&found.a),
        "sum_ms_b": median(&found.b), "paper": THESIS_SUM,
    });
    let what = format!("{clients} clients, sum of mean latencies");
    bench.add(Finding { sides: NAMES, what: &what, values: &found.ratios, target: Target::OPEN, params });
    Ok(())
}

/// Draws our queries and those of the thesis side by side.
fn draw(bench: &mut Bench, rounds: &queries::Rounds) {
    let percent = |index: usize| {
        let pairs = rounds.iter().filter_map(|round| round.get(index));
        (median(&pairs.map(|(a, b)| a.ms / b.ms).collect::<Vec<_>>()) - 1.0) * 100.0
    };
    let ours: Vec<f64> = (0..THESIS.len()).map(percent).collect();
    println!("  {:<8}{:>10}{:>18}{:>22}", "query", "here, %", "thesis, full, %", "thesis, not atomic, %");
    for (((number, ours), full), plain) in (1..).zip(&ours).zip(THESIS).zip(THESIS_NOT_ATOMIC) {
        println!("  {:<8}{ours:>10.1}{full:>18.1}{plain:>22.1}", format!("q{number}"));
    }
    let points = |values: &[f64]| (1..).zip(values).map(|(number, value)| (f64::from(number), *value)).collect();
    let series = [
        Series::measured("counters, here", points(&ours)),
        Series::reported("full counters (thesis)", points(&THESIS)),
        Series::reported("not atomic (thesis)", points(&THESIS_NOT_ATOMIC)),
    ];
    let x = Axis::linear("query of TPC-H");
    let y = Axis::linear("% longer with counters");
    bench.draw("What counters cost (compare Dreseler 2021, table 6.2)", plot::svg(&x, &y, &series));
}

fn twin(ours: &Path) -> Result<PathBuf> {
    let asked = std::env::var_os("TERRACE_BENCH_NO_COUNTERS").map(PathBuf::from);
    let twin = asked.unwrap_or_else(|| ours.with_file_name("terrace-bench-no-counters"));
    if twin.is_file() {
        return Ok(twin);
    }
    Err(Error::Missing(format!(
        "{} is missing. Build it, then this program again: cargo build --release -p terrace-bench --features no-counters \
         && cp target/release/terrace-bench{{,-no-counters}} && cargo build --release -p terrace-bench",
        twin.display()
    )))
}

/// Instructions of the measured part of the scan.
fn instructions(bench: &mut Bench, name: &str, program: &Path, op: &str) -> Result<f64> {
    let folder = bench.scratch("callgrind");
    let store = folder.join("store");
    let out = folder.join("out");
    std::fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
    let mut command = Command::new("valgrind");
    command
        .args(["-q", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_scan*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["side", &serde_json::to_string(&SideSpec::Micro { store })?]);
    let mut child = Child::start_command(name, command)?;
    child.ask(op)?;
    drop(child);
    let text = std::fs::read_to_string(&out).map_err(Error::path("read", &out))?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse::<f64>().ok());
    std::fs::remove_dir_all(&folder).map_err(Error::path("remove", &folder))?;
    let count = totals.filter(|t| *t > 0.0).ok_or_else(|| Error::failed("callgrind counted nothing"))?;
    bench.record(name, &format!("{op}, instructions"), Sample::new(0.0).with("instructions", count));
    Ok(count)
}
