//! Skewed reads of a vector with memory for a part of it: statements on a Terrace that keeps the hot part in DRAM, and a map of a
//! file in a control group with as large a share of memory.
//!
//! Meyer et al. 2015, figures 3 and 4 (section 3.2): of the sequential reads a share takes the hot tenth alone, the rest all of the
//! vector; of the random ones the rest takes the warm 30 %. Figure 3, 80 % hot only, in order: malloc with swap 21 to 44
//! times as long as with all in memory, EMT 3.4 times; of EMT with colours the text says "a 2.9x speedup for higher memory
//! limits" and not against what. Figure 4 is a chart: the more reads are for hot data alone, the less memory matters. Every
//! side is compared with itself with all in memory, as statements and reads of a map differ in what they cost there. The
//! file is random bytes of the same shares; `lru` has no colours.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::tier::codec::FormChoice;

use super::access;
use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::side::{SideSpec, Workload};
use crate::statistics::median;
use crate::vector::{PARTS, Vector};

/// Shares of the data that memory has room for, falling.
const LIMITS: [f64; 3] = [0.9, 0.6, 0.3];
const QUICK_LIMITS: [f64; 1] = [0.6];
/// Per cent of the reads that take hot data alone.
const SKEWS: [u32; 4] = [50, 65, 80, 95];
const QUICK_SKEWS: [u32; 1] = [80];
/// The skew of figure 3.
const FIGURE_3: u32 = 80;
/// Reads of a sequence; skews are multiples of a twentieth.
const SCANS: u32 = 20;
const POINTS: u32 = 200;
/// Blocks that a map reads in place of one statement: else the times are too short to measure.
const BLOCKS_PER_POINT: u32 = 50;
/// The first round at a limit; the one before it has all in memory.
const FIRST_ROUND: u64 = 1;
/// Most rounds: more would take longer than a quarter of an hour.
const RUNS: usize = 2;
/// Meyer et al., figure 3a and its text.
const PAPER: &str = "in order, 80 % hot only: malloc 21 to 44, EMT 3.4 times as long; with colours a 2.9x speedup";

/// Patterns of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Sequential,
    Random,
}

impl Pattern {
    const ALL: [Self; 2] = [Self::Sequential, Self::Random];

    fn name(self) -> &'static str {
        match self {
            Self::Sequential => "in order",
            Self::Random => "random",
        }
    }

    fn reads(self) -> u32 {
        match self {
            Self::Sequential => SCANS,
            Self::Random => POINTS,
        }
    }
}

/// Reads that take hot data alone (true) and others, in a random order that the seed decides.
fn draw(pattern: Pattern, skew: u32, seed: u64) -> Vec<bool> {
    let reads = pattern.reads();
    let hot = reads * skew / 100;
    let mut drawn: Vec<bool> = (0..reads).map(|read| read < hot).collect();
    drawn.shuffle(&mut StdRng::seed_from_u64(seed));
    drawn
}

/// Requests to a Terrace.
fn statements(pattern: Pattern, skew: u32, scale: f64, seed: u64) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let [(_, hot), (_, warm), _] = PARTS;
    let statement = |is_hot: bool| match (pattern, is_hot) {
        (Pattern::Sequential, true) => "sql SELECT sum(v) FROM hot".to_owned(),
        (Pattern::Sequential, false) => {
            let parts = PARTS.map(|(name, _)| format!("SELECT sum(v) AS v FROM {name}"));
            format!("sql SELECT sum(v) FROM ({}) AS parts", parts.join(" UNION ALL "))
        }
        (Pattern::Random, _) => {
            let (part, share) = if is_hot { ("hot", hot) } else { ("warm", warm) };
            let values = Vector::values_of(random.random_range(0..Vector::rows(scale, share)));
            format!("sql SELECT v FROM {part} WHERE v >= {} AND v < {}", values.start, values.end)
        }
    };
    draw(pattern, skew, seed).into_iter().map(statement).collect()
}

/// Requests to a map.
fn map_requests(pattern: Pattern, skew: u32, seed: u64) -> Vec<String> {
    let request = |(number, is_hot): (u64, bool)| match (pattern, is_hot) {
        (Pattern::Sequential, true) => "scan 0 100".to_owned(),
        (Pattern::Sequential, false) => "scan 0 1000".to_owned(),
        (Pattern::Random, true) => format!("touch 0 100 {BLOCKS_PER_POINT} {}", seed * 1000 + number),
        (Pattern::Random, false) => format!("touch 100 400 {BLOCKS_PER_POINT} {}", seed * 1000 + number),
    };
    (0..).zip(draw(pattern, skew, seed)).map(request).collect()
}

/// A side with its times.
struct Reader {
    name: &'static str,
    child: Child,
    is_map: bool,
    /// Times of sequences with all in memory, by [`Cell`]'s position.
    in_memory_ms: Vec<f64>,
}

/// One sequence of reads.
#[derive(Debug, Clone, Copy)]
struct Cell {
    pattern: Pattern,
    skew: u32,
}

impl Reader {
    /// The time of one sequence; in the first rounds after another one, which warms up.
    fn measure(&mut self, bench: &mut Bench, cell: Cell, scale: f64, round: u64) -> Result<f64> {
        let Cell { pattern, skew } = cell;
        let mut ms = 0.0;
        let sequences = [(2 * round, false), (2 * round + 1, true)];
        for (seed, counts) in sequences.into_iter().filter(|(_, counts)| *counts || round <= FIRST_ROUND) {
            let requests =
                if self.is_map { map_requests(pattern, skew, seed) } else { statements(pattern, skew, scale, seed) };
            for request in requests {
                let sample = self.child.ask(&request)?;
                ms += if counts { sample.ms } else { 0.0 };
            }
        }
        let what = format!("{}, {skew} % hot only", pattern.name());
        bench.record(self.name, &what, Sample::new(ms));
        Ok(ms)
    }
}

/// Measures all sides at all limits.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let data = Vector::new(&bench.data_dir, scale);
    if !data.store().is_dir() {
        eprintln!("  making a vector of {} MB", (Vector::rows(scale, 1.0) * 8) >> 20);
        bench.prepare(Workload::Vector, scale)?;
    }
    let (file, file_bytes) = access::make_file(bench)?;
    let limits: &[f64] = if bench.quick { &QUICK_LIMITS } else { &LIMITS };
    let skews: &[u32] = if bench.quick { &QUICK_SKEWS } else { &SKEWS };
    let cells = Pattern::ALL.map(|pattern| skews.iter().map(move |skew| Cell { pattern, skew: *skew }));
    let cells: Vec<Cell> = cells.into_iter().flatten().collect();
    let mut found = Vec::new();
    for (name, policy) in [("Terrace", PolicyKind::Optimal), ("Terrace, LRU", PolicyKind::Lru)] {
        let store = StoreClone::from_store(&data.store())?;
        let spec = SideSpec::Terrace {
            store: store.path(),
            threads: bench.threads,
            nvm: false,
            policy,
            form: FormChoice::Plain,
        };
        let child = Child::start(name, &spec)?;
        let mut reader = Reader { name, child, is_map: false, in_memory_ms: Vec::new() };
        reader.child.ask("fill")?;
        reader.child.ask("sql ALTER TABLE hot PIN TO dram")?;
        found.extend(slowdowns(bench, &mut reader, &cells, limits, scale, &mut |reader, limit| {
            reader.child.ask(&format!("place {limit}")).map(drop)
        })?);
    }
    let start = || Child::start("a map", &SideSpec::Access { file: file.clone() });
    // Before the side, so that it is dropped after it: a group can be removed when no process is in it.
    let mut groups = Vec::new();
    let mut reader = Reader { name: "a map", child: start()?, is_map: true, in_memory_ms: Vec::new() };
    reader.child.ask("fill")?;
    let done = slowdowns(bench, &mut reader, &cells, limits, scale, &mut |reader, limit| {
        let group = Cgroup::memory((file_bytes as f64 * limit) as u64)?;
        // Pages belong to the group of the process that brought them in.
        reader.child = start()?;
        reader.child.ask("drop")?;
        group.add(reader.child.id())?;
        reader.child.ask("fill")?;
        groups.push(group);
        Ok(())
    });
    match done {
        Ok(slow) => found.extend(slow),
        Err(Error::Missing(why)) => bench.leave_out("a map with less memory", &why),
        Err(error) => return Err(error),
    }
    drop(reader);
    drop(groups);
    show(&found);
    add(bench, &found, scale);
    figures(bench, &found, skews);
    Ok(())
}

/// A side at a limit: times as long as with all in memory, per round.
struct Slowdown {
    side: &'static str,
    cell: Cell,
    limit: f64,
    times: Vec<f64>,
}

/// Measures a side with all in memory, then at each limit, which `set` sets.
fn slowdowns(
    bench: &mut Bench,
    reader: &mut Reader,
    cells: &[Cell],
    limits: &[f64],
    scale: f64,
    set: &mut dyn FnMut(&mut Reader, f64) -> Result<()>,
) -> Result<Vec<Slowdown>> {
    for cell in cells {
        let ms = reader.measure(bench, *cell, scale, 0)?;
        reader.in_memory_ms.push(ms);
    }
    let mut found = Vec::new();
    for limit in limits {
        set(reader, *limit)?;
        for (number, cell) in cells.iter().enumerate() {
            let whole = reader.in_memory_ms.get(number).copied().unwrap_or(f64::NAN);
            let mut times = Vec::new();
            while times.len() < RUNS && bench.wants_another_round(times.len()) {
                let ms = reader.measure(bench, *cell, scale, FIRST_ROUND + times.len() as u64)?;
                times.push(ms / whole);
            }
            found.push(Slowdown { side: reader.name, cell: *cell, limit: *limit, times });
        }
    }
    Ok(found)
}

fn show(found: &[Slowdown]) {
    println!("  {:<16}{:<12}{:>10}{:>12}{:>26}", "side", "reads", "hot only", "memory", "times as long as in memory");
    for Slowdown { side, cell, limit, times } in found {
        let hot = format!("{} %", cell.skew);
        let memory = format!("{:.0} %", limit * 100.0);
        println!("  {side:<16}{:<12}{hot:>10}{memory:>12}{:>26.2}", cell.pattern.name(), median(times));
    }
}

/// Adds figure 3: the slowdown of Terrace to that of a map.
fn add(bench: &mut Bench, found: &[Slowdown], scale: f64) {
    let ours = found.iter().filter(|one| one.side == "Terrace" && one.cell.skew == FIGURE_3);
    for one in ours {
        let same = |other: &&Slowdown| {
            (other.cell.pattern, other.cell.skew, other.limit) == (one.cell.pattern, one.cell.skew, one.limit)
        };
        let times_of =
            |side: &str| found.iter().filter(|other| other.side == side).find(same).map(|o| median(&o.times));
        let params = json!({
            "scale": scale, "memory_share": one.limit, "slowdown": median(&one.times), "slowdown_lru": times_of("Terrace, LRU"),
            "slowdown_map": times_of("a map"), "paper": PAPER,
        });
        let name = one.cell.pattern.name();
        let what = format!("{name}, {:.0} % of memory", one.limit * 100.0);
        let sides = ("Terrace, hot part pinned", "all in memory");
        let target = Target::OPEN;
        bench.add(Finding { sides, what: &what, values: &one.times, target, params: params.clone() });
        let Some(map) = times_of("a map") else { continue };
        let values: Vec<f64> = one.times.iter().map(|times| times / map).collect();
        bench.add(Finding {
            sides: ("Terrace's slowdown", "that of a map"),
            what: &format!("{what}, to a map"),
            values: &values,
            target,
            params,
        });
    }
}

/// Draws figure 3 (all sides at one skew) and figure 4 (Terrace at all skews).
fn figures(bench: &mut Bench, found: &[Slowdown], skews: &[u32]) {
    let x = Axis::linear("memory for % of the data");
    let y = Axis::logarithmic("times as long as with all in memory");
    let points = |side: &str, pattern: Pattern, skew: u32| {
        let own = found.iter().filter(|one| one.side == side && one.cell.pattern == pattern && one.cell.skew == skew);
        own.map(|one| (one.limit * 100.0, median(&one.times))).collect::<Vec<_>>()
    };
    for pattern in Pattern::ALL {
        let name = pattern.name();
        let sides = ["Terrace", "Terrace, LRU", "a map"];
        let mut series: Vec<Series> = sides.map(|side| Series::measured(side, points(side, pattern, FIGURE_3))).into();
        if pattern == Pattern::Sequential {
            // The text says "all three actual memory limits" and does not name them; those of figure 2 are 50, 67 and 80 %.
            series.push(Series::reported("EMT (Meyer et al.)", vec![(50.0, 3.4), (80.0, 3.4)]));
        }
        let title = format!("80 % of the reads for hot data alone, {name} (compare Meyer et al. 2015, figure 3)");
        bench.draw(&title, plot::svg(&x, &y, &series));
        let of_skew = |skew: &u32| Series::measured(&format!("{skew} % hot only"), points("Terrace", pattern, *skew));
        let series: Vec<Series> = skews.iter().map(of_skew).collect();
        let title =
            format!("Terrace by the share of reads for hot data alone, {name} (compare Meyer et al. 2015, figure 4)");
        bench.draw(&title, plot::svg(&x, &y, &series));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_have_as_many_hot_reads_as_the_skew_says() {
        for pattern in Pattern::ALL {
            for skew in SKEWS {
                let drawn = draw(pattern, skew, 3);
                let hot = drawn.iter().filter(|is_hot| **is_hot).count() as f64;
                assert_eq!(hot / drawn.len() as f64, f64::from(skew) / 100.0);
                let asked = statements(pattern, skew, 0.01, 3);
                let mapped = map_requests(pattern, skew, 3);
                assert_eq!((asked.len(), mapped.len()), (drawn.len(), drawn.len()));
                assert_eq!(asked, statements(pattern, skew, 0.01, 3));
            }
        }
        assert_ne!(draw(Pattern::Random, 50, 3), draw(Pattern::Random, 50, 4));
        let all = statements(Pattern::Sequential, 50, 0.01, 1);
        assert!(all.iter().any(|sql| sql.matches("UNION ALL").count() == 2));
        let mapped = map_requests(Pattern::Sequential, 95, 1);
        assert_eq!(mapped.iter().filter(|request| *request == "scan 0 1000").count(), 1);
    }
}
