//! Look-ups of a row, 20 a second at random times, beside background work: OPTIMIZE, backups and moves, one after the other
//! (S3).
//!
//! `part` stays on disk by a rule, and each phase draws its keys anew, so that look-ups read what hardly any has read
//! before. Phases with and without upkeep take turns in beginning a round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::{StoreClone, folder_bytes};
use crate::error::{Error, Result};
use crate::look_ups::{LookUps, RATE};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::{median, percentile};

const SECONDS: u64 = 30;
const QUICK_SECONDS: u64 = 4;

/// Measures phases without and with upkeep in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(2.0);
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let dram = (folder_bytes(&data.store().join("ssd"))? / 10).to_string();
    let threads = format!("query.threads={}", bench.threads);
    let arguments =
        ["--dram-budget", &dram, "--set", &threads, "--set", "tiering.interval=1h", "--set", "tiering.merge=never"];
    let server = Server::start(&store.path(), &arguments)?;
    let backups = StoreClone::empty(bench.scratch("upkeep-latency"))?;
    let duration = Duration::from_secs(if bench.quick { QUICK_SECONDS } else { SECONDS });
    server.statement("ALTER TABLE part EXCLUDE FROM dram")?;
    let mut phases = 0;
    let mut look_ups = |bench: &Bench, duration| {
        phases += 1;
        let seed = bench.seed.wrapping_mul(1_000).wrapping_add(phases);
        LookUps { url: server.url(), scale, seed }.run(duration)
    };
    let points = || server.number("SELECT reads FROM system.io WHERE class = 'point'");
    let mut ratios = Vec::new();
    let mut medians = Vec::new();
    let mut params = json!({});
    look_ups(bench, Duration::from_secs(2))?;
    let mut have_read = true;
    let mut turns = 0;
    while bench.wants_another_round(ratios.len()) {
        let read_before = points()?;
        let alone_first = ratios.len().is_multiple_of(2);
        let mut alone = Vec::new();
        if alone_first {
            alone = look_ups(bench, duration)?;
        }
        let work = Upkeep { turn: AtomicU64::new(turns), ..Upkeep::default() };
        let beside = std::thread::scope(|scope| {
            let upkeep = scope.spawn(|| work.run(&server, &backups.path()));
            let beside = look_ups(bench, duration);
            work.is_over.store(true, Ordering::SeqCst);
            let done = upkeep.join().map_err(|_| Error::failed("the thread of the upkeep panicked"))?;
            done.and(beside)
        })?;
        turns = work.turn.load(Ordering::SeqCst);
        if !alone_first {
            alone = look_ups(bench, duration)?;
        }
        let read = points()? - read_before;
        have_read &= read >= (alone.len() + beside.len()) as f64;
        let p99 = |waits: &[f64]| percentile(waits, 0.99);
        ratios.push(p99(&beside) / p99(&alone));
        medians.push(median(&beside) / median(&alone));
        let count = |done: &AtomicU64| done.load(Ordering::SeqCst);
        params = json!({
            "scale": scale, "threads": bench.threads, "rate": RATE, "points": beside.len(), "point_reads": read,
            "p99_ms_a": p99(&beside), "p99_ms_b": p99(&alone), "p50_ms_a": median(&beside), "p50_ms_b": median(&alone),
            "optimized": count(&work.optimized), "backups": count(&work.backups), "epochs": count(&work.epochs),
        });
        println!("  {params}");
        for (name, waits) in [("beside upkeep", &beside), ("alone", &alone)] {
            bench.record(name, "look-ups", Sample::new(p99(waits)).with("p50_ms", median(waits)));
        }
    }
    if !have_read {
        params["undecided"] = json!("look-ups did not read in class 'point'");
    }
    let sides = ("look-ups beside OPTIMIZE, backup and moves", "look-ups alone");
    bench.add(Finding {
        sides,
        what: "99th percentile",
        values: &ratios,
        target: Target::below(1.2, 1.05),
        params: params.clone(),
    });
    bench.add(Finding { sides, what: "median", values: &medians, target: Target::OPEN, params });
    server.stop()
}

/// Background work, and how much of it was done.
#[derive(Default)]
struct Upkeep {
    is_over: AtomicBool,
    /// Turns so far, of which each deletes other rows.
    turn: AtomicU64,
    optimized: AtomicU64,
    backups: AtomicU64,
    epochs: AtomicU64,
}

impl Upkeep {
    fn run(&self, server: &Server, backups: &std::path::Path) -> Result<()> {
        while !self.is_over.load(Ordering::SeqCst) {
            let turn = self.turn.fetch_add(1, Ordering::SeqCst) + 1;
            // So that there is something to rewrite and to move.
            let pin = if turn.is_multiple_of(2) { "UNPIN" } else { "PIN TO dram" };
            server.statement(&format!("DELETE FROM orders WHERE o_orderkey % 997 = {}", turn % 997))?;
            server.statement("OPTIMIZE TABLE orders")?;
            self.optimized.fetch_add(1, Ordering::SeqCst);
            server.statement(&format!("ALTER TABLE customer {pin}"))?;
            server.run_epoch()?;
            self.epochs.fetch_add(1, Ordering::SeqCst);
            let folder = backups.join(format!("backup-{turn}"));
            server.backup(&folder)?;
            std::fs::remove_dir_all(&folder).map_err(Error::path("delete", &folder))?;
            self.backups.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}
