//! Look-ups of a row, 20 a second at random times, beside background work: OPTIMIZE, backups and moves, one after the other
//! (S3).
//!
//! `part` stays on disk by a rule, and each phase draws its keys anew, so that look-ups read what hardly any has read
//! before. Phases with and without upkeep take turns in beginning a round. A client deletes rows in both, as often: OPTIMIZE
//! needs something to rewrite, and such a statement is no upkeep. Nor is the deletion of backups, which takes place between
//! the phases, as does that of files that the server has put off: `waiting_files` counts these at the end of a phase.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::{StoreClone, folder_bytes};
use crate::error::{Error, Result};
use crate::look_ups::{LookUps, RATE};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::{median, percentile};

/// Of a phase: 12 of its look-ups lie above its 99th percentile.
const SECONDS: u64 = 60;
const QUICK_SECONDS: u64 = 4;
/// After deletions, for the disk to take note of them.
const SETTLE: Duration = Duration::from_secs(2);
/// The longest wait for the server to delete files.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

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
    let mut look_ups = |bench: &Bench| {
        phases += 1;
        let seed = bench.seed.wrapping_mul(1_000).wrapping_add(phases);
        LookUps { url: server.url(), scale, seed }.run(duration)
    };
    let folder = backups.path();
    let turns = Turns::default();
    let work = |is_upkeep, least| Work { is_upkeep, least, ..Work::new(&server, &folder, &turns) };
    let points = || server.number("SELECT reads FROM system.io WHERE class = 'point'");
    let mut ratios = Vec::new();
    let mut medians = Vec::new();
    let (mut all_beside, mut all_alone) = (Vec::new(), Vec::new());
    let mut params = json!({});
    // Look-ups and a turn that warm the server up; the turn tells how often rows are deleted.
    LookUps { url: server.url(), scale, seed: bench.seed }.run(Duration::from_secs(2))?;
    let start = Instant::now();
    work(true, Duration::ZERO).turn()?;
    let mut turn_time = start.elapsed();
    settle(&server, &folder)?;
    let mut have_read = true;
    while bench.wants_another_round(ratios.len()) {
        let read_before = points()?;
        let alone_first = ratios.len().is_multiple_of(2);
        let mut alone = Vec::new();
        if alone_first {
            alone = work(false, turn_time).beside(|| look_ups(bench))?;
        }
        let start = Instant::now();
        let upkeep = work(true, Duration::ZERO);
        let beside = upkeep.beside(|| look_ups(bench))?;
        turn_time = start.elapsed() / u32::try_from(upkeep.done.load(Ordering::SeqCst)).unwrap_or(1).max(1);
        settle(&server, &folder)?;
        if !alone_first {
            alone = work(false, turn_time).beside(|| look_ups(bench))?;
        }
        let read = points()? - read_before;
        have_read &= read >= (alone.len() + beside.len()) as f64;
        let p99 = |waits: &[f64]| percentile(waits, 0.99);
        ratios.push(p99(&beside) / p99(&alone));
        medians.push(median(&beside) / median(&alone));
        all_beside.extend_from_slice(&beside);
        all_alone.extend_from_slice(&alone);
        params = json!({
            "scale": scale, "threads": bench.threads, "rate": RATE, "points": beside.len(), "point_reads": read,
            "p99_ms_a": p99(&beside), "p99_ms_b": p99(&alone), "p50_ms_a": median(&beside), "p50_ms_b": median(&alone),
            "upkeep_turns": upkeep.done.load(Ordering::SeqCst), "turn_s": turn_time.as_secs_f64(),
            "waiting_files": upkeep.waiting_files.load(Ordering::SeqCst),
            "p99_ratio_of_all": p99(&all_beside) / p99(&all_alone),
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

/// Deletes the backups of a phase, and waits until the server has deleted what it has put off.
fn settle(server: &Server, backups: &Path) -> Result<()> {
    for entry in std::fs::read_dir(backups).map_err(Error::path("read", backups))? {
        let backup = entry.map_err(Error::path("read", backups))?.path();
        std::fs::remove_dir_all(&backup).map_err(Error::path("delete", &backup))?;
    }
    let start = Instant::now();
    while server.unowned_files()? > 0.0 && start.elapsed() < LONGEST_WAIT {
        std::thread::sleep(Duration::from_millis(100));
    }
    // A journal tells the disk once it is written.
    std::fs::File::open(backups).and_then(|folder| folder.sync_all()).map_err(Error::path("sync", backups))?;
    std::thread::sleep(SETTLE);
    Ok(())
}

/// Turns of all phases so far.
#[derive(Default)]
struct Turns {
    /// All, of which each deletes other rows.
    all: AtomicU64,
    /// Those with upkeep, of which every other one pins a table.
    upkeep: AtomicU64,
}

/// Work beside look-ups, and how much of it was done.
struct Work<'a> {
    server: &'a Server,
    backups: &'a Path,
    turns: &'a Turns,
    /// Upkeep follows each deletion of rows.
    is_upkeep: bool,
    /// The least time from one turn to the next one.
    least: Duration,
    is_over: AtomicBool,
    /// Turns that were carried out.
    done: AtomicU64,
    /// Files that waited for their deletion when the look-ups had ended.
    waiting_files: AtomicU64,
}

impl<'a> Work<'a> {
    fn new(server: &'a Server, backups: &'a Path, turns: &'a Turns) -> Self {
        let least = Duration::ZERO;
        Self {
            server,
            backups,
            turns,
            is_upkeep: true,
            least,
            is_over: AtomicBool::new(false),
            done: AtomicU64::new(0),
            waiting_files: AtomicU64::new(0),
        }
    }

    /// Takes turns until the look-ups have ended; returns their latencies.
    fn beside(&self, look_ups: impl FnOnce() -> Result<Vec<f64>>) -> Result<Vec<f64>> {
        std::thread::scope(|scope| {
            let work = scope.spawn(|| self.take_turns());
            let waits = look_ups();
            let waiting = self.server.unowned_files();
            self.is_over.store(true, Ordering::SeqCst);
            let done = work.join().map_err(|_| Error::failed("the thread of the work panicked"))?;
            self.waiting_files.store(waiting? as u64, Ordering::SeqCst);
            done.and(waits)
        })
    }

    fn take_turns(&self) -> Result<()> {
        while !self.is_over.load(Ordering::SeqCst) {
            let start = Instant::now();
            self.turn()?;
            while start.elapsed() < self.least && !self.is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn turn(&self) -> Result<()> {
        let turn = self.turns.all.fetch_add(1, Ordering::SeqCst) + 1;
        self.server.statement(&format!("DELETE FROM orders WHERE o_orderkey % 997 = {}", turn % 997))?;
        if self.is_upkeep {
            self.server.statement("OPTIMIZE TABLE orders")?;
            // So that there is something to move.
            let is_pinned = self.turns.upkeep.fetch_add(1, Ordering::SeqCst) % 2 == 1;
            let pin = if is_pinned { "UNPIN" } else { "PIN TO dram" };
            self.server.statement(&format!("ALTER TABLE customer {pin}"))?;
            self.server.run_epoch()?;
            self.server.backup(&self.backups.join(format!("backup-{turn}")))?;
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}
