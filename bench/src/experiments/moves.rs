//! Moves (P11): the speed at which an idle server moves everything from tier to tier, and the effect of moves on
//! queries.
//!
//! Moves from SSD are compared with raw reads of the same files, moves between memory tiers with `memcpy` by as many
//! threads as there are cores, measured between the rounds: for moves to NVM (a mapped pool) into mapped memory, for
//! moves to DRAM into newly allocated memory. NVM is emulated and not slowed, so that only the moves are compared.
//! Dreseler 2021, 5.5.5 and 5.5.6 (table 5.5, p. 84): at most 2 GB/s where `memcpy` gives 8, by one thread. Like every
//! side, the moves are warmed up once: in a fresh process the kernel has to find and clear every page first. The
//! queries are TPC-H's Q6 over columns that are pinned to DRAM, while most other columns move to DRAM and back at the
//! default rate of a server, in turn with the same queries and the same changes of rules without moves.

use serde_json::json;

use super::queries::Placed;
use crate::bars::{self, Bar};
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;

const AGAINST_RAW: Target = Target::above(0.8, 0.9);
const NOTICED: Target = Target::below(1.2, 1.05);
const QUERIES: u32 = 1000;
const QUICK_QUERIES: u32 = 100;
const PIN: &str = "sql ALTER TABLE lineitem PIN COLUMNS (l_shipdate, l_discount, l_quantity, l_extendedprice) TO dram";
const DEVICE: &str = "raw io_uring";
const MEMCPY: &str = "memcpy";
const MEMCPY_NEW: &str = "memcpy into new memory";
/// The moves of everything in a round: the target tier, the name of the moves, and the side they are compared with.
/// Moves to the SSD copy nothing and are not measured.
const ROUND: [(&str, Option<(&str, &str)>); 6] = [
    ("dram", Some(("SSD to DRAM", DEVICE))),
    ("nvm", Some(("DRAM to NVM", MEMCPY))),
    ("dram", Some(("NVM to DRAM", MEMCPY_NEW))),
    ("ssd", None),
    ("nvm", Some(("SSD to NVM", DEVICE))),
    ("ssd", None),
];
/// Table 5.5 for TPC-H as a share of the 8 GB/s of its `memcpy`: 3.048 GB uncompressed in 2,137 and 3,094 ms, 1.015 GB
/// compressed in 780 and 2,400 ms (the table says microseconds, which would be terabytes per second).
const THESIS: [(&str, &str, f64); 5] = [
    ("DRAM to NVM", "DRAM to NVM, uncompressed (thesis)", 3.048 / 3.094 / 8.0),
    ("", "DRAM to NVM, compressed (thesis)", 1.015 / 2.400 / 8.0),
    ("", "DRAM to DRAM, uncompressed (thesis)", 3.048 / 2.137 / 8.0),
    ("", "DRAM to DRAM, compressed (thesis)", 1.015 / 0.780 / 8.0),
    ("", "best of single segments (thesis)", 0.25),
];

/// Runs all parts.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    pairs(bench, scale)?;
    let side = Placed::start(bench, "Terrace, filling DRAM", scale, 0.0, false)?;
    noticed(bench, side, scale)
}

/// One kind of moves, round by round, in bytes per millisecond.
struct Pair {
    name: &'static str,
    raw: &'static str,
    speeds: Vec<f64>,
    raw_speeds: Vec<f64>,
    first: f64,
    /// Speed of `memcpy` into memory that is mapped already.
    memcpy: f64,
}

/// Measures every pair of tiers.
fn pairs(bench: &mut Bench, scale: f64) -> Result<()> {
    let store = bench.dataset(scale)?.clone_store()?;
    let spec = SideSpec::Tiers { store: store.path(), threads: bench.threads, single_mover: false };
    let mut side = Child::start("Terrace, moving everything", &spec)?;
    let id = side.ask("table lineitem")?.value("id");
    let folder = bench.dataset(scale)?.store().join("ssd").join(format!("t{id}"));
    let mut device = Child::start(DEVICE, &SideSpec::Device { folder })?;
    let mut copy = Child::start(MEMCPY, &SideSpec::Copy { threads: bench.threads })?;
    let read = "sequential 1048576 8";
    let copied = format!("copy {}", bench.threads);
    let copied_new = format!("copy-new {}", bench.threads);
    device.ask(read)?;
    copy.ask(&copied)?;
    copy.ask(&copied_new)?;
    let speed = |sample: &Sample| sample.value("bytes") / sample.ms;
    let moved = |sample: &Sample| sample.value("bytes") / sample.value("move_ms").max(1e-3);
    let mut found: Vec<Pair> = Vec::new();
    for (tier, name) in ROUND {
        let sample = side.ask(&format!("send {tier}"))?;
        let Some((name, raw)) = name else { continue };
        found.push(Pair { name, raw, speeds: Vec::new(), raw_speeds: Vec::new(), first: moved(&sample), memcpy: 0.0 });
    }
    let mut single = 0.0;
    while bench.wants_another_round(found.first().map_or(0, |pair| pair.speeds.len())) {
        let from_disk = speed(&bench.ask(&mut device, read)?);
        let by_copy = speed(&bench.ask(&mut copy, &copied)?);
        let by_new_copy = speed(&bench.ask(&mut copy, &copied_new)?);
        single = speed(&bench.ask(&mut copy, "copy 1")?);
        let mut pairs = found.iter_mut();
        for (tier, name) in ROUND {
            let sample = bench.ask(&mut side, &format!("send {tier}"))?;
            if name.is_none() {
                continue;
            }
            if let Some(pair) = pairs.next() {
                pair.speeds.push(moved(&sample));
                pair.raw_speeds.push(match pair.raw {
                    MEMCPY => by_copy,
                    MEMCPY_NEW => by_new_copy,
                    _ => from_disk,
                });
                pair.memcpy = by_copy;
            }
        }
    }
    found.sort_by_key(|pair| pair.raw != DEVICE);
    println!(
        "  {:<16}{:>10}{:>12}{:>16}{:>10}{:>22}",
        "moves", "MB/s", "first", "raw, MB/s", "share", "thesis, of memcpy"
    );
    let mut bars = Vec::new();
    for Pair { name, raw, speeds, raw_speeds, first, memcpy } in &found {
        let ratios: Vec<f64> = speeds.iter().zip(raw_speeds).map(|(speed, raw)| speed / raw).collect();
        let thesis = THESIS.iter().find(|(of, ..)| of == name).map(|(_, _, share)| *share);
        println!(
            "  {name:<16}{:>10.0}{:>12.0}{:>16.0}{:>10.2}{:>22}",
            median(speeds) / 1e3,
            first / 1e3,
            median(raw_speeds) / 1e3,
            median(&ratios),
            thesis.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"))
        );
        bars.push(Bar { name: format!("{name}, of {raw}"), value: Some(median(&ratios)), reported: thesis });
        bench.add(Finding {
            sides: ("moves of everything, idle", raw),
            what: name,
            values: &ratios,
            target: AGAINST_RAW,
            params: json!({
                "scale": scale, "moves_mb_per_s": median(speeds) / 1e3, "raw_mb_per_s": median(raw_speeds) / 1e3,
                "first_mb_per_s": first / 1e3, "memcpy_mb_per_s": memcpy / 1e3, "memcpy_by_one_thread_mb_per_s": single / 1e3, "thesis_of_memcpy": thesis,
            }),
        });
    }
    let papers = THESIS.iter().skip(1);
    bars.extend(papers.map(|(_, name, share)| Bar { name: (*name).to_owned(), value: None, reported: Some(*share) }));
    let label = "share of what the device, or memcpy, gives";
    bench.draw("Moves of all of TPC-H (compare Dreseler 2021, table 5.5)", bars::svg(label, "table 5.5", &bars));
    Ok(())
}
/// Compares the 99th percentile of query times during moves with that without moves.
fn noticed(bench: &mut Bench, mut side: Placed, scale: f64) -> Result<()> {
    let queries = if bench.quick { QUICK_QUERIES } else { QUERIES };
    side.child.ask("place 1")?;
    side.child.ask(PIN)?;
    side.child.ask("place 1")?;
    let latency = format!("latency {queries}");
    side.child.ask(&latency)?;
    let mut ratios = Vec::new();
    let mut medians = Vec::new();
    let mut params = json!({});
    while bench.wants_another_round(ratios.len()) {
        let sample = bench.ask(&mut side.child, &latency)?;
        ratios.push(sample.value("moving_p99_ms") / sample.value("still_p99_ms"));
        medians.push(sample.value("moving_p50_ms") / sample.value("still_p50_ms"));
        params = json!({
            "scale": scale, "queries": queries, "still_p99_ms": sample.value("still_p99_ms"),
            "moving_p99_ms": sample.value("moving_p99_ms"), "moved_mb_per_s": sample.value("moved_bytes") / sample.ms / 1e3,
        });
    }
    let sides = ("Q6 beside moves at up to 512 MiB/s", "Q6 without moves, in turn");
    bench.add(Finding { sides, what: "99th percentile", values: &ratios, target: NOTICED, params: params.clone() });
    bench.add(Finding { sides, what: "median", values: &medians, target: NOTICED, params });
    Ok(())
}
