//! Moves (P11): how fast an idle server fills DRAM from SSD, and what its queries notice of moves.
//!
//! Filling is held against raw reads of the same files, measured between the rounds. Dreseler 2021, table 5.5: migration
//! to NVM reached 25 % of `memcpy`. As every side, the moves are warmed once: in a fresh process the kernel has to find and
//! clear every page first; that speed is in the report too. The queries are TPC-H's Q6 over columns that are pinned to DRAM,
//! while most other columns go to DRAM and back at the rate that a server has by default.

use serde_json::json;

use super::queries::Placed;
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::row::Sample;
use crate::side::SideSpec;

const AGAINST_DEVICE: Target = Target::above(0.8, 0.9);
const NOTICED: Target = Target::below(1.2, 1.05);
const QUERIES: u32 = 1000;
const QUICK_QUERIES: u32 = 100;
const PIN: &str = "sql ALTER TABLE lineitem PIN COLUMNS (l_shipdate, l_discount, l_quantity, l_extendedprice) TO dram";

/// Both parts.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let mut side = Placed::start(bench, "Terrace, filling DRAM", scale, 0.0, false)?;
    let id = side.child.ask("table lineitem")?.value("id");
    let folder = bench.dataset(scale)?.store().join("ssd").join(format!("t{id}"));
    let mut device = Child::start("raw io_uring", &SideSpec::Device { folder })?;
    device.ask("sequential 1048576 8")?;
    let speed = |filled: &Sample| filled.value("moved_home_bytes") / filled.value("move_ms");
    let first = speed(&side.child.ask("place 1")?);
    side.child.ask("place 0")?;
    let mut ratios = Vec::new();
    let mut params = json!({ "scale": scale });
    while bench.another(ratios.len()) {
        let raw = bench.ask(&mut device, "sequential 1048576 8")?;
        let raw = raw.value("bytes") / raw.ms;
        let filled = bench.ask(&mut side.child, "place 1")?;
        ratios.push(speed(&filled) / raw);
        bench.ask(&mut side.child, "place 0")?;
        params = json!({
            "scale": scale, "device_mb_per_s": raw / 1e3, "moves_mb_per_s": speed(&filled) / 1e3,
            "first_mb_per_s": first / 1e3, "moves": filled.value("moves"), "image_mb_per_s": filled.value("moved_bytes") / filled.value("move_ms") / 1e3,
        });
    }
    bench.add(Finding {
        sides: ("moves from SSD to DRAM, idle", device.name()),
        what: "filling DRAM",
        values: &ratios,
        target: AGAINST_DEVICE,
        params,
    });
    noticed(bench, side, scale)
}

/// The 99th percentile of queries beside moves, to that without.
fn noticed(bench: &mut Bench, mut side: Placed, scale: f64) -> Result<()> {
    let queries = if bench.quick { QUICK_QUERIES } else { QUERIES };
    side.child.ask("place 1")?;
    side.child.ask(PIN)?;
    side.child.ask("place 1")?;
    side.child.ask(&format!("latency {queries} still"))?;
    side.child.ask(&format!("latency {queries} moving"))?;
    let (mut ratios, mut medians) = (Vec::new(), Vec::new());
    let mut params = json!({});
    while bench.another(ratios.len()) {
        let still = bench.ask(&mut side.child, &format!("latency {queries} still"))?;
        let moving = bench.ask(&mut side.child, &format!("latency {queries} moving"))?;
        ratios.push(moving.value("p99_ms") / still.value("p99_ms"));
        medians.push(moving.value("p50_ms") / still.value("p50_ms"));
        params = json!({
            "scale": scale, "queries": queries, "still_p99_ms": still.value("p99_ms"),
            "moving_p99_ms": moving.value("p99_ms"), "moved_mb_per_s": moving.value("moved_bytes") / moving.ms / 1e3,
        });
    }
    let sides = ("Q6 beside moves at up to 512 MiB/s", "Q6 without moves");
    bench.add(Finding { sides, what: "99th percentile", values: &ratios, target: NOTICED, params: params.clone() });
    bench.add(Finding { sides, what: "median", values: &medians, target: NOTICED, params });
    Ok(())
}
