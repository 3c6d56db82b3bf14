//! Hot views on ORDER_LINE of CH-benCHmark: all in memory and tiered, with and without views, by the share of queries
//! that ask for hot lines only (Meyer et al., ADMS 2015, section 5 and figure 6).
//!
//! The paper gives figure 6 as a picture; the factors below are from its text, which does not say which share
//! has which factor.
//!
//! - [`mined`]: views that the server mines

mod mined;

use serde_json::{Value, json};

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::order_line::{OrderLine, Shape};
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::side::{SideSpec, Workload};
use crate::statistics::median;

/// Shares of hot lines, with the paper's factors of tiered memory with views to all in memory with views.
const HOT: [(f64, [f64; 2]); 2] = [(0.1, [1.8, 1.3]), (0.2, [1.7, 1.2])];
/// Shares of the queries that ask for hot lines only.
const SHARES: [f64; 4] = [0.5, 0.65, 0.8, 0.95];
const QUICK_SHARES: [f64; 2] = [0.5, 0.95];
/// DRAM of a tiered side relative to the hot share: more than 1 for bits, padding, and partly hot chunks.
const ROOM: f64 = 1.1;
/// The paper's page cache: 2.5 GB beside the hot partition, of a table of 19 GB (section 5.1).
const CACHE: f64 = 2.5 / 19.0;
/// Rounds of queries in one measurement; the paper has 200, in one run.
const ROUNDS: usize = 21;
const QUICK_ROUNDS: usize = 3;
const PLANS: usize = 300;
const QUICK_PLANS: usize = 30;
/// Memory of five sides per scale, three of which hold everything in memory at times.
const BYTES_PER_SCALE: u64 = 5_000_000_000;

/// The paper's configurations.
const MEMORY: usize = 0;
const MEMORY_VIEWS: usize = 1;
const TIERED: usize = 2;
const TIERED_VIEWS: usize = 3;
const NAMES: [&str; 4] = ["all in memory", "all in memory, views", "tiered", "tiered, views"];

/// A running configuration.
struct Contender {
    child: Child,
    tiered: bool,
    /// Time and counts of creating its views; `None` without views.
    views: Option<Sample>,
    _store: StoreClone,
}

/// The size of a tiered side's DRAM.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dram {
    /// As in the paper: the hot share, and a part for cold data.
    Paper,
    /// The hot share alone: harder than the paper.
    HotOnly,
}

/// Samples of all four sides at one share of queries for hot lines only, one per round.
struct Measured {
    share: f64,
    dram: Dram,
    dram_bytes: f64,
    samples: [Vec<Sample>; 4],
}

/// Measures both hot shares, one after the other.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.check_memory(scale, BYTES_PER_SCALE)?;
    let data = OrderLine::new(&bench.data_dir, scale);
    if !data.store().is_dir() {
        eprintln!("  making ORDER_LINE of {:?}", Shape::for_scale(scale));
        bench.prepare(Workload::OrderLine, scale)?;
    }
    let hot = if bench.quick { HOT.get(..1) } else { HOT.get(..) };
    hot.unwrap_or_default().iter().try_for_each(|(hot, paper)| run_hot_share(bench, &data, scale, *hot, *paper))
}

/// Measures one share of hot lines: four sides, and all shares of queries.
fn run_hot_share(bench: &mut Bench, data: &OrderLine, scale: f64, hot: f64, paper: [f64; 2]) -> Result<()> {
    let start = |number| Contender::start(bench, data.store(), scale, hot, number);
    let [a, b, c, d] = [MEMORY, MEMORY_VIEWS, TIERED, TIERED_VIEWS].map(start);
    let mut all = [a?, b?, c?, d?];
    let shape = Shape::for_scale(scale);
    let about = json!({
        "scale": scale, "threads": bench.threads, "hot": hot, "warehouses": shape.warehouses, "orders": shape.orders,
    });
    add_views(bench, &all, &about);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    for dram in [Dram::Paper, Dram::HotOnly] {
        let percent = dram.share(hot) * 100.0;
        println!(
            "  {:<10}{:<24}{:>12}{:>12}{:>12}{:>12}",
            "hot only",
            format!("{percent:.0} % in DRAM"),
            "ms/round",
            "to memory",
            "to views",
            "cold MB"
        );
        let mut measured = Vec::new();
        for share in shares {
            let of_share = measure(bench, &mut all, hot, dram, *share)?;
            of_share.print(rounds(bench));
            measured.push(of_share);
        }
        add_shares(bench, &measured, &about, paper);
        draw(bench, hot, dram, &measured, paper);
    }
    add_plans(bench, &mut all, &about)?;
    // One point of the grid is enough to measure the views that the server mines.
    if hot == mined::HOT {
        mined::add(bench, data, &mut all, &about)?;
    }
    Ok(())
}

fn rounds(bench: &Bench) -> usize {
    if bench.quick { QUICK_ROUNDS } else { ROUNDS }
}

impl Dram {
    /// DRAM as a share of the bytes of the table.
    fn share(self, hot: f64) -> f64 {
        hot * ROOM + if self == Self::Paper { CACHE } else { 0.0 }
    }

    /// Its description in rows.
    fn name(self) -> &'static str {
        if self == Self::Paper { "" } else { ", no DRAM for cold data" }
    }
}

impl Contender {
    fn start(bench: &Bench, store: std::path::PathBuf, scale: f64, hot: f64, number: usize) -> Result<Self> {
        let store = StoreClone::from_store(&store)?;
        let spec = SideSpec::OrderLine { store: store.path(), threads: bench.threads, scale, hot, mining: false };
        let mut child = Child::start(NAMES.get(number).copied().unwrap_or_default(), &spec)?;
        let views = match number {
            MEMORY_VIEWS | TIERED_VIEWS => Some(child.ask("views")?),
            _ => None,
        };
        let tiered = matches!(number, TIERED | TIERED_VIEWS);
        if !tiered {
            child.ask("fill")?;
        }
        Ok(Self { child, tiered, views, _store: store })
    }
}

impl Measured {
    fn median(&self, side: usize, value: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.samples[side].iter().map(value).collect::<Vec<_>>())
    }

    fn ms(&self, side: usize) -> f64 {
        self.median(side, |sample| sample.ms)
    }

    fn cold_mb(&self, side: usize) -> f64 {
        self.median(side, |sample| sample.value("cold_bytes")) / 1e6
    }

    /// Ratios of the times of tiered memory with views to those of another side, round by round.
    fn ratios_to(&self, other: usize) -> Vec<f64> {
        let pairs = self.samples[TIERED_VIEWS].iter().zip(&self.samples[other]);
        pairs.map(|(own, other)| own.ms / other.ms).collect()
    }

    fn print(&self, rounds: usize) {
        let label = format!("{:.0} %", self.share * 100.0);
        for (side, name) in NAMES.into_iter().enumerate() {
            let ms = self.ms(side);
            let cold = self.cold_mb(side);
            let to_memory = ms / self.ms(MEMORY);
            let to_views = ms / self.ms(MEMORY_VIEWS);
            let per_round = ms / rounds as f64;
            println!("  {label:<10}{name:<24}{per_round:>12.1}{to_memory:>12.3}{to_views:>12.3}{cold:>12.1}");
        }
    }
}

/// Lets the tiered sides place by one measurement, then measures all in turn. Fails when two sides answer differently,
/// when a side that holds everything in memory reads from disk, or when views serve other queries than those for hot
/// lines only.
fn measure(bench: &mut Bench, all: &mut [Contender; 4], hot: f64, dram: Dram, share: f64) -> Result<Measured> {
    let rounds = rounds(bench);
    let seed = bench.seed * 1000;
    let op = |number: usize| format!("rounds {share} {rounds} {}", seed + number as u64);
    let mut measured = Measured { share, dram, dram_bytes: 0.0, samples: Default::default() };
    for one in all.iter_mut() {
        one.child.ask(&op(0))?;
        if one.tiered {
            // Move everything to disk first, so that the placement does not depend on the previous share.
            one.child.ask("place 0")?;
            let placed = bench.ask(&mut one.child, &format!("place {}", dram.share(hot)))?;
            measured.dram_bytes = placed.value("dram_bytes");
        }
    }
    let mut round = 0;
    while bench.wants_another_round(round) {
        round += 1;
        let op = op(round);
        let mut first = None;
        for (one, samples) in all.iter_mut().zip(&mut measured.samples) {
            let sample = bench.ask(&mut one.child, &op)?;
            let name = one.child.name();
            let answer = (sample.value("rows"), sample.value("digest"));
            let expected = *first.get_or_insert(answer);
            if answer != expected {
                return Err(Error::failed(format!("{name}, '{op}': answers {answer:?}, others {expected:?}")));
            }
            let cold = sample.value("cold_bytes");
            if !one.tiered && cold > 0.0 {
                return Err(Error::failed(format!("{name}, '{op}': {cold} bytes were read from disk")));
            }
            let hits = sample.value("views_hits");
            let hot = sample.value("hot_queries");
            if hits != if one.views.is_some() { hot } else { 0.0 } {
                let what = format!("{name}, '{op}': views served {hits} of {hot} queries for hot lines");
                return Err(Error::failed(what));
            }
            samples.push(sample);
        }
    }
    Ok(measured)
}

/// Adds the row of the bytes that creating the views wrote, relative to the table.
fn add_views(bench: &mut Bench, all: &[Contender; 4], about: &Value) {
    let made: Vec<&Sample> = all.iter().filter_map(|one| one.views.as_ref()).collect();
    let Some(first) = made.first() else { return };
    let values: Vec<f64> = made.iter().map(|s| s.value("written_bytes") / s.value("table_bytes")).collect();
    let seconds: Vec<f64> = made.iter().map(|s| s.ms / 1e3).collect();
    bench.add(Finding {
        sides: ("bytes that the runs of three views write", "bytes of the table"),
        what: &format!("{}: write amplification", hot_label(about)),
        values: &values,
        target: Target::below(3.0, 1.0),
        params: extended(
            about,
            json!({
                "seconds": median(&seconds), "table_bytes": first.value("table_bytes"),
                "table_bytes_after": first.value("table_bytes_after"), "chunks_after": first.value("chunks"),
            }),
        ),
    });
}

/// Adds the rows of the figure, against the three other configurations.
fn add_shares(bench: &mut Bench, measured: &[Measured], about: &Value, paper: [f64; 2]) {
    let against =
        [(MEMORY_VIEWS, Target::below(1.5, 1.1)), (MEMORY, Target::below(1.0, 0.5)), (TIERED, Target::below(1.0, 0.5))];
    for (other, target) in against {
        for of_share in measured {
            let mut params = extended(about, json!({ "hot_only": of_share.share, "dram_bytes": of_share.dram_bytes }));
            let pruned = of_share.median(TIERED_VIEWS, |s| s.value("views_pruned_chunks") / s.value("hot_queries"));
            params = extended(&params, json!({ "chunks_pruned_per_hot_query": pruned }));
            for (side, name) in NAMES.into_iter().enumerate() {
                let name = name.replace(", ", "_").replace(' ', "_");
                let own = json!({
                    format!("{name}_ms"): of_share.ms(side),
                    format!("{name}_cpu_ms"): of_share.median(side, |sample| sample.value("cpu_ms")),
                    format!("{name}_cold_mb"): of_share.cold_mb(side),
                });
                params = extended(&params, own);
            }
            let reported = match other {
                MEMORY_VIEWS => format!("{} to {}", paper[1], paper[0]),
                MEMORY => "less than 1".to_owned(),
                _ => "not told".to_owned(),
            };
            bench.add(Finding {
                sides: (NAMES[TIERED_VIEWS], NAMES[other]),
                what: &format!(
                    "{}, {:.0} % hot only{}",
                    hot_label(about),
                    of_share.share * 100.0,
                    of_share.dram.name()
                ),
                values: &of_share.ratios_to(other),
                target,
                params: extended(&params, json!({ "paper": reported })),
            });
        }
    }
}

/// Adds the row of the cost of checking a query against the views, relative to the time to plan it.
fn add_plans(bench: &mut Bench, all: &mut [Contender; 4], about: &Value) -> Result<()> {
    let count = if bench.quick { QUICK_PLANS } else { PLANS };
    let ops = ["off", "on"].map(|views| format!("plan {count} {views}"));
    let mut times: [Vec<f64>; 2] = Default::default();
    let child = &mut all[MEMORY_VIEWS].child;
    for op in &ops {
        child.ask(op)?;
    }
    while bench.wants_another_round(times[0].len()) {
        for (op, times) in ops.iter().zip(&mut times) {
            times.push(bench.ask(child, op)?.value("median_us"));
        }
    }
    let values: Vec<f64> = times[1].iter().zip(&times[0]).map(|(views, none)| views / none).collect();
    bench.add(Finding {
        sides: ("planning a query by key that none of three views serves", "the same with views switched off"),
        what: &format!("{}: the check", hot_label(about)),
        values: &values,
        target: Target::below(1.1, 1.02),
        params: extended(about, json!({ "us_a": median(&times[1]), "us_b": median(&times[0]) })),
    });
    Ok(())
}

fn hot_label(about: &Value) -> String {
    format!("{:.0} % hot", about.get("hot").and_then(Value::as_f64).unwrap_or_default() * 100.0)
}

fn extended(params: &Value, further: Value) -> Value {
    let mut params = params.clone();
    if let (Some(params), Value::Object(further)) = (params.as_object_mut(), further) {
        params.extend(further);
    }
    params
}

fn draw(bench: &mut Bench, hot: f64, dram: Dram, measured: &[Measured], factors: [f64; 2]) {
    let [most, least] = factors;
    let ours = NAMES.into_iter().enumerate().rev().map(|(side, name)| {
        let point = |at: &Measured| (at.share * 100.0, at.ms(side) / at.ms(MEMORY_VIEWS));
        Series::measured(name, measured.iter().map(point).collect())
    });
    let paper = format!("tiered, views: {least} to {most} (paper)");
    let paper = Series::reported(&paper, vec![(SHARES[0] * 100.0, most), (SHARES[3] * 100.0, least)]);
    let series: Vec<Series> = ours.chain([paper]).collect();
    let x = Axis::linear("% of the queries ask for hot lines only");
    let y = Axis::linear("time / all in memory, views");
    let title = format!(
        "ORDER_LINE of CH-benCHmark, {:.0} % hot, {:.0} % in DRAM (compare Meyer et al. 2015, figure 6; which share has which of \
         the paper's factors is a guess)",
        hot * 100.0,
        dram.share(hot) * 100.0
    );
    bench.draw(&title, plot::svg(&x, &y, &series));
}
