//! Ways to the bytes of a file: direct reads, io_uring, the store's I/O engine, maps, the page cache, each against a
//! bare io_uring that reads blocks of the same size in the same pattern; with memory taken away, and on a slowed disk.
//!
//! Repeats figures 5.4 and 5.5 of Dreseler's thesis (random reads by block size and threads; maps with 16 MB of memory)
//! and figure 2 of Meyer et al., ADMS 2015 (reads with less and less memory: their time, and major page faults).
//! `docs/benchmarks.md` has both beside ours.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use serde_json::json;

use super::io;
use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::SideSpec;
use crate::statistics::median;

const KIB: u64 = 1 << 10;
/// A page of memory.
const PAGE: u64 = 4 * KIB;
const BLOCKS: [u64; 6] = [512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 << 20];
const RANDOM: &str = "random";
const SEQUENTIAL: &str = "sequential";
/// Reads in flight of the reference side.
const DEPTH: usize = 32;
/// Most rounds: more would take longer than three minutes.
const RUNS: usize = 3;
/// The target of a comparison that no figure depends on.
const OPEN: Target = Target::OPEN;
/// A slowed disk.
#[derive(Clone, Copy)]
struct DiskSpeed {
    name: &'static str,
    bytes_per_s: u64,
    reads_per_s: u64,
}

const SPEEDS: [DiskSpeed; 2] = [
    DiskSpeed { name: "SATA", bytes_per_s: 500_000_000, reads_per_s: 75_000 },
    DiskSpeed { name: "disk", bytes_per_s: 150_000_000, reads_per_s: 150 },
];

/// A way to read a file.
#[derive(Debug, Clone, Copy)]
struct Way {
    method: &'static str,
    /// State of the page cache.
    state: &'static str,
    threads: usize,
    /// Reads in flight per thread.
    depth: usize,
}

impl Way {
    const fn new(method: &'static str, state: &'static str, threads: usize, depth: usize) -> Self {
        Self { method, state, threads, depth }
    }
}

/// Ways to read one pattern in one block size, measured in turn.
struct Group<'a> {
    label: &'a str,
    pattern: &'static str,
    block: u64,
    ways: &'a [Way],
    ms: u64,
    runs: usize,
    /// Limits, as parameters of the rows.
    limits: serde_json::Value,
}

/// The two sides.
struct Sides {
    ways: Child,
    raw: Child,
}

/// Medians of a way.
#[derive(Debug, Clone, Copy)]
struct Rate {
    bytes_per_s: f64,
    /// Major page faults per page that was read.
    faults_per_page: f64,
}

/// Bytes/s with everything in memory, by method, pattern and block.
type InMemory = BTreeMap<(&'static str, &'static str, u64), f64>;

/// Runs all parts.
pub fn run(bench: &mut Bench) -> Result<()> {
    let (file, file_bytes) = make_file(bench)?;
    println!("all rows of access-methods: {}", bench.environment().device);
    let spec = SideSpec::Access { file: file.clone() };
    let start = || {
        Ok::<_, Error>(Sides {
            ways: Child::start("ways to read a file", &spec)?,
            raw: Child::start("raw io_uring, depth 32", &spec)?,
        })
    };
    let in_memory = plain(bench, &mut start()?)?;
    let done = under_pressure(bench, file_bytes, &in_memory, &start);
    leave_out(bench, done, "with less memory")?;
    for speed in SPEEDS {
        if bench.quick && speed.name != "SATA" {
            continue;
        }
        let done = slowed(bench, speed, &start);
        leave_out(bench, done, &format!("on a disk slowed to {}", speed.name))?;
    }
    Ok(())
}

/// Leaves out `rows` when this machine cannot set their limit; returns other errors.
fn leave_out(bench: &mut Bench, done: Result<()>, rows: &str) -> Result<()> {
    match done {
        Err(Error::Missing(why)) => {
            bench.leave_out(rows, &why);
            Ok(())
        }
        done => done,
    }
}

/// Measures with all memory and the disk as it is.
fn plain(bench: &mut Bench, sides: &mut Sides) -> Result<InMemory> {
    let (all, quick): ([Way; 13], [Way; 3]) = (
        [
            Way::new("pread", "kept", 1, 1),
            Way::new("pread", "kept", 2, 1),
            Way::new("pread", "kept", 4, 1),
            Way::new("pread", "kept", 8, 1),
            Way::new("uring", "kept", 1, 1),
            Way::new("uring", "kept", 1, 4),
            Way::new("uring", "kept", 1, 16),
            Way::new("uring", "kept", 1, 64),
            Way::new("engine", "kept", 1, DEPTH),
            Way::new("map", "cold", 1, 1),
            Way::new("map", "cold", 2, 1),
            Way::new("map", "cold", 8, 1),
            Way::new("map-plain", "cold", 1, 1),
        ],
        [Way::new("pread", "kept", 1, 1), Way::new("engine", "kept", 1, DEPTH), Way::new("map", "cold", 1, 1)],
    );
    let sequential = [
        Way::new("pread", "kept", 1, 1),
        Way::new("engine", "kept", 1, DEPTH),
        Way::new("map", "cold", 1, 1),
        Way::new("map-plain", "cold", 1, 1),
        Way::new("buffered", "cold", 1, 1),
    ];
    let warm = [
        Way::new("map", "warm", 1, 1),
        Way::new("map", "warm", 2, 1),
        Way::new("buffered", "warm", 1, 1),
        Way::new("buffered", "warm", 2, 1),
    ];
    let (blocks, in_order, ms): (&[u64], &[u64], u64) = match bench.quick {
        true => (&[4 * KIB], &[1 << 20], 10),
        false => (&BLOCKS, &[4 * KIB, 64 * KIB, 1 << 20], 80),
    };
    let smallest = if sides.raw.ask("read pread kept random 512 1 1 1").is_ok() { 512 } else { 4 * KIB };
    let mut in_memory = InMemory::new();
    // Cold reads first: then nothing has to be dropped between warm reads.
    sides.ways.ask("drop")?;
    for &block in blocks.iter().filter(|b| **b >= smallest) {
        let ways: &[Way] = if bench.quick { &quick } else { &all };
        let group = Group { label: "", pattern: RANDOM, block, ways, ms, runs: RUNS, limits: json!({}) };
        measure(bench, sides, &group, None)?;
    }
    for &block in in_order {
        let group =
            Group { label: "", pattern: SEQUENTIAL, block, ways: &sequential, ms, runs: RUNS, limits: json!({}) };
        measure(bench, sides, &group, None)?;
    }
    sides.ways.ask("fill")?;
    let warm_random = blocks.iter().filter(|b| **b >= smallest).map(|b| (RANDOM, *b, warm.as_slice()));
    let [map, _, buffered, _] = warm;
    let one_thread = [map, buffered];
    let warm_in_order = in_order.iter().map(|b| (SEQUENTIAL, *b, one_thread.as_slice()));
    for (pattern, block, ways) in warm_random.chain(warm_in_order) {
        let group = Group { label: "", pattern, block, ways, ms, runs: RUNS, limits: json!({}) };
        let rates = measure(bench, sides, &group, None)?;
        let one = ways.iter().zip(rates).filter(|(way, _)| way.threads == 1);
        in_memory.extend(one.map(|(way, rate)| ((way.method, pattern, block), rate.bytes_per_s)));
    }
    sides.ways.ask("drop")?;
    Ok(in_memory)
}

/// Measures with memory for a part of the file, as in the paper, and for 16 MiB of it, as in the thesis.
fn under_pressure(
    bench: &mut Bench,
    file_bytes: u64,
    in_memory: &InMemory,
    start: &impl Fn() -> Result<Sides>,
) -> Result<()> {
    let map = Way::new("map", "kept", 1, 1);
    let buffered = Way::new("buffered", "kept", 1, 1);
    let engine = Way::new("engine", "kept", 1, DEPTH);
    let (ms, runs) = if bench.quick { (20, 1) } else { (200, RUNS) };
    let shares: &[u64] = if bench.quick { &[25] } else { &[80, 67, 50, 25] };
    // Of maps, in the order of `cells`: per cent that do not fit into memory, and faults per page.
    let mut faults = [const { Vec::new() }; 2];
    let cells = [(RANDOM, 4 * KIB), (SEQUENTIAL, 1 << 20)];
    for &share in shares {
        let limit = file_bytes * share / 100;
        let group = Cgroup::memory(limit)?;
        let mut sides = start()?;
        sides.ways.ask("drop")?;
        group.add(sides.ways.id())?;
        sides.ways.ask("fill")?;
        let limits = json!({ "memory_limit_bytes": limit, "memory_share": share as f64 / 100.0 });
        for ((pattern, block), faults) in cells.into_iter().zip(&mut faults) {
            // The engine's own memory does not fit where the file is small.
            let label = format!("{share} % memory, ");
            let ways = [map, buffered, engine];
            let ways = if bench.quick { &ways[..2] } else { &ways };
            let group = Group { label: &label, pattern, block, ways, ms, runs, limits: limits.clone() };
            let rates = measure(bench, &mut sides, &group, Some(in_memory))?;
            faults.extend(rates.first().map(|rate| ((100 - share) as f64, rate.faults_per_page)));
        }
        sides.ways.ask("drop")?;
    }
    draw_faults(bench, faults);
    if bench.quick {
        return Ok(());
    }
    let limit = 16 << 20;
    let group = Cgroup::memory(limit)?;
    let mut sides = start()?;
    sides.ways.ask("drop")?;
    group.add(sides.ways.id())?;
    for block in [4 * KIB, 64 * KIB, 1 << 20] {
        let ways = [map, Way::new("map", "kept", 8, 1)];
        let limits = json!({ "memory_limit_bytes": limit });
        let group = Group { label: "16 MiB memory, ", pattern: RANDOM, block, ways: &ways, ms, runs, limits };
        measure(bench, &mut sides, &group, Some(in_memory))?;
    }
    Ok(())
}

/// Draws the page faults of maps: those of random reads, and of reads in order. The paper expects random ones to grow linearly
/// with what is not in memory.
fn draw_faults(bench: &mut Bench, faults: [Vec<(f64, f64)>; 2]) {
    let evicted: Vec<(f64, f64)> = faults[0].iter().map(|(percent, _)| (*percent, percent / 100.0)).collect();
    let [random, sequential] = faults;
    let series = [
        Series::measured("map, random 4 KiB", random),
        Series::measured("map, in order, 1 MiB", sequential),
        Series::reported("random, linear as Meyer et al. expect", evicted),
    ];
    let x = Axis::linear("% of the data that does not fit into memory");
    let y = Axis::linear("major page faults / page read");
    let title = "Page faults of maps with less memory (compare Meyer et al. 2015, figures 2b and 2d: random ones grow linearly)";
    bench.draw(title, plot::svg(&x, &y, &series));
}

/// Measures cold reads and a scan by Terrace on a disk slowed to `speed`.
fn slowed(bench: &mut Bench, speed: DiskSpeed, start: &impl Fn() -> Result<Sides>) -> Result<()> {
    let DiskSpeed { name, bytes_per_s, reads_per_s } = speed;
    let limit = Cgroup::disk(&bench.data_dir, bytes_per_s, reads_per_s)?;
    let limits = json!({ "limit_bytes_per_s": bytes_per_s, "limit_reads_per_s": reads_per_s });
    let label = format!("{name}: ");
    let ways = [
        Way::new("pread", "kept", 1, 1),
        Way::new("engine", "kept", 1, DEPTH),
        Way::new("map", "cold", 1, 1),
        Way::new("map", "cold", 8, 1),
        Way::new("buffered", "cold", 1, 1),
    ];
    let mut sides = start()?;
    for side in [&sides.ways, &sides.raw] {
        limit.add(side.id())?;
    }
    let (ms, runs) = if bench.quick { (100, 1) } else { (400, RUNS) };
    let cells = [(RANDOM, 4 * KIB), (RANDOM, 64 * KIB), (SEQUENTIAL, 1 << 20)];
    for (pattern, block) in cells.into_iter().take(if bench.quick { 1 } else { 3 }) {
        let ways = if bench.quick { &ways[1..3] } else { &ways };
        let group = Group { label: &label, pattern, block, ways, ms, runs, limits: limits.clone() };
        measure(bench, &mut sides, &group, None)?;
    }
    drop(sides);
    io::scan(bench, 1.0, Some(&io::Slowed { limit: &limit, label: &label, runs, params: limits }))
}

/// Measures the ways in turn with the reference side and adds their rows; returns the medians of each.
fn measure(bench: &mut Bench, sides: &mut Sides, group: &Group<'_>, in_memory: Option<&InMemory>) -> Result<Vec<Rate>> {
    let Group { pattern, block, ms, .. } = *group;
    let op = |way: Way, ms: u64| {
        let Way { method, state, threads, depth } = way;
        format!("read {method} {state} {pattern} {block} {threads} {depth} {ms}")
    };
    let yardstick = Way::new("uring", "kept", 1, DEPTH);
    sides.raw.ask(&op(yardstick, ms / 8))?;
    for way in group.ways.iter().filter(|way| way.state != "cold") {
        sides.ways.ask(&op(*way, ms / 8))?;
    }
    let mut raw = Vec::new();
    let mut found = vec![(Vec::new(), Vec::new(), Vec::new()); group.ways.len()];
    while raw.len() < group.runs && bench.wants_another_round(raw.len()) {
        let b = bench.ask(&mut sides.raw, &op(yardstick, ms))?;
        for (way, (ratios, rates, faults)) in group.ways.iter().zip(&mut found) {
            if way.state == "cold" {
                sides.ways.ask("drop")?;
            }
            let a = bench.ask(&mut sides.ways, &op(*way, ms))?;
            ratios.push(a.per_s("bytes") / b.per_s("bytes"));
            rates.push(a.per_s("bytes"));
            faults.push(a.value("major_faults") / a.value("reads").max(1.0));
        }
        raw.push(b.per_s("bytes"));
    }
    for (way, (ratios, rates, faults)) in group.ways.iter().zip(&found) {
        let Way { method, state, threads, depth } = *way;
        let a = median(rates);
        let b = median(&raw);
        let mut params = json!({
            "method": method, "state": state, "pattern": pattern, "block_bytes": block, "threads": threads,
            "depth": depth, "mb_per_s_a": a / 1e6, "mb_per_s_b": b / 1e6, "reads_per_s_a": a / block as f64,
            "reads_per_s_b": b / block as f64, "disk": bench.environment().device,
        });
        if let (Some(params), Some(limits)) = (params.as_object_mut(), group.limits.as_object()) {
            params.extend(limits.clone());
            if method.starts_with("map") {
                params.insert("major_faults_per_read".to_owned(), json!(median(faults)));
            }
            if let Some(whole) = in_memory.and_then(|m| m.get(&(method, pattern, block))).filter(|_| threads == 1) {
                params.insert("times_slower_than_in_memory".to_owned(), json!(whole / a));
            }
        }
        let target = if method == "engine" { Target::above(0.8, 0.95) } else { OPEN };
        let what = format!("{}{} {pattern} {}", group.label, size(block), way_name(*way));
        let sides = (sides.ways.name(), sides.raw.name());
        bench.add(Finding { sides, what: &what, values: ratios, target, params });
    }
    let pages = pages_per_read(block);
    let rate =
        |rates: &[f64], faults: &[f64]| Rate { bytes_per_s: median(rates), faults_per_page: median(faults) / pages };
    Ok(found.iter().map(|(_, rates, faults)| rate(rates, faults)).collect())
}

/// Pages that a read of a block touches.
fn pages_per_read(block: u64) -> f64 {
    block.div_ceil(PAGE) as f64
}

fn way_name(way: Way) -> String {
    let Way { method, state, threads, depth } = way;
    let state = if state == "kept" { String::new() } else { format!(" {state}") };
    match (threads, depth) {
        (1, 1) => format!("{method}{state}"),
        (1, depth) => format!("{method}{state} d{depth}"),
        (threads, _) => format!("{method}{state} x{threads}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..0x10_0000 => format!("{} KiB", bytes / KIB),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// A file of random bytes, kept for the next run, and its length: 1 to 4 GiB by scale, 64 MiB in a quick run.
pub(super) fn make_file(bench: &Bench) -> Result<(PathBuf, u64)> {
    let gib = (bench.scale(1.0).ceil() as u64).clamp(1, 4).next_power_of_two();
    let bytes = if bench.quick { 64 << 20 } else { gib << 30 };
    let path = bench.data_dir.join(format!("access-{}.bin", bytes >> 20));
    if path.metadata().is_ok_and(|m| m.len() == bytes) {
        return Ok((path, bytes));
    }
    eprintln!("  making {} MiB of random bytes in {}", bytes >> 20, path.display());
    let partial = path.with_extension("tmp");
    let failed = || Error::path("write", &partial);
    let mut file = File::create(&partial).map_err(failed())?;
    let mut rng = StdRng::seed_from_u64(1);
    let mut piece = vec![0; 4 << 20];
    for _ in 0..bytes / piece.len() as u64 {
        rng.fill_bytes(&mut piece);
        file.write_all(&piece).map_err(failed())?;
    }
    file.sync_all().map_err(failed())?;
    std::fs::rename(&partial, &path).map_err(Error::path("create", &path))?;
    Ok((path, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_touch_one_page() {
        assert_eq!([512, 4 * KIB, 16 * KIB, 1 << 20].map(pages_per_read), [1.0, 1.0, 4.0, 256.0]);
    }

    #[test]
    fn ways_and_sizes_are_named() {
        assert_eq!(way_name(Way::new("map", "cold", 8, 1)), "map cold x8");
        assert_eq!(way_name(Way::new("engine", "kept", 1, DEPTH)), "engine d32");
        assert_eq!([512, 4 * KIB, 1 << 20].map(size), ["512 B", "4 KiB", "1 MiB"]);
    }
}
