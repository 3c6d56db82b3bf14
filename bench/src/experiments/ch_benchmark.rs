//! Hot views on ORDER_LINE of CH-benCHmark: all in memory and tiered, with and without views, by the share of queries that
//! ask for hot lines only (Meyer et al., ADMS 2015, section 5 and figure 6).
//!
//! The paper gives figure 6 as a picture; the factors below are those of its text, which does not say which share has which.

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

/// Shares of the lines that are hot, with what the paper says of tiered memory with views against all in memory with views.
const HOT: [(f64, [f64; 2]); 2] = [(0.1, [1.8, 1.3]), (0.2, [1.7, 1.2])];
/// Shares of the queries that ask for hot lines only.
const SHARES: [f64; 4] = [0.5, 0.65, 0.8, 0.95];
const QUICK_SHARES: [f64; 2] = [0.5, 0.95];
/// What DRAM holds of a tiered side beyond the hot share: bits, padding, and chunks that are hot in part.
const ROOM: f64 = 1.1;
/// Rounds of queries in one measurement; the paper has 200, in one run.
const ROUNDS: usize = 21;
const QUICK_ROUNDS: usize = 7;
const PLANS: usize = 300;
const QUICK_PLANS: usize = 30;
/// What four sides take per scale, two of them with everything in memory.
const BYTES_PER_SCALE: u64 = 4_000_000_000;

/// The paper's configurations.
const MEMORY: usize = 0;
const MEMORY_VIEWS: usize = 1;
const TIERED: usize = 2;
const TIERED_VIEWS: usize = 3;
const NAMES: [&str; 4] = ["all in memory", "all in memory, views", "tiered", "tiered, views"];

/// A configuration at work.
struct Contender {
    child: Child,
    tiered: bool,
    /// Of each round of measurements at the share of the moment.
    samples: Vec<Sample>,
    /// What making its views took; `None` without any.
    views: Option<Sample>,
    dram_bytes: f64,
    _store: StoreClone,
}

/// Both hot shares, one after the other.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    bench.check_memory(scale, BYTES_PER_SCALE)?;
    let data = OrderLine::new(&bench.data_dir, scale);
    if !data.store().is_dir() {
        eprintln!("  making ORDER_LINE of {:?}", Shape::of(scale));
        bench.prepare(Workload::OrderLine, scale)?;
    }
    let hot = if bench.quick { HOT.get(..1) } else { HOT.get(..) };
    hot.unwrap_or_default().iter().try_for_each(|(hot, paper)| at(bench, &data, (scale, *hot), *paper))
}

/// One share of hot lines: four sides, and all shares of queries.
fn at(bench: &mut Bench, data: &OrderLine, (scale, hot): (f64, f64), paper: [f64; 2]) -> Result<()> {
    let start = |number| Contender::start(bench, data.store(), (scale, hot), number);
    let [a, b, c, d] = [MEMORY, MEMORY_VIEWS, TIERED, TIERED_VIEWS].map(start);
    let mut all = [a?, b?, c?, d?];
    let shape = Shape::of(scale);
    let about = json!({
        "scale": scale, "threads": bench.threads, "hot": hot, "warehouses": shape.warehouses, "orders": shape.orders,
    });
    add_views(bench, &all, &about);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let mut curves: [Vec<(f64, f64)>; 4] = Default::default();
    println!("  {:<10}{:<24}{:>12}{:>12}{:>12}{:>12}", "hot only", "", "ms/round", "to memory", "to views", "cold MB");
    for share in shares {
        measure(bench, &mut all, (hot, *share))?;
        let ms = all.each_ref().map(|one| one.median(|sample| sample.ms));
        for (((name, one), ms_of), curve) in NAMES.iter().zip(&all).zip(ms).zip(&mut curves) {
            let (label, to_views) = (format!("{:.0} %", share * 100.0), ms_of / ms[MEMORY_VIEWS]);
            let cold = one.median(|sample| sample.value("cold_bytes")) / 1e6;
            let per_round = ms_of / rounds(bench) as f64;
            println!(
                "  {label:<10}{name:<24}{per_round:>12.1}{:>12.3}{to_views:>12.3}{cold:>12.1}",
                ms_of / ms[MEMORY]
            );
            curve.push((share * 100.0, to_views));
        }
        add_shares(bench, &all, (hot, *share), &about, paper);
    }
    add_plans(bench, &mut all, hot, &about)?;
    draw(bench, hot, curves, paper);
    Ok(())
}

fn rounds(bench: &Bench) -> usize {
    if bench.quick { QUICK_ROUNDS } else { ROUNDS }
}

impl Contender {
    fn start(bench: &Bench, store: std::path::PathBuf, (scale, hot): (f64, f64), number: usize) -> Result<Self> {
        let store = StoreClone::of(&store)?;
        let spec = SideSpec::OrderLine { store: store.path(), threads: bench.threads, scale, hot };
        let mut child = Child::start(NAMES.get(number).copied().unwrap_or_default(), &spec)?;
        let views = match number {
            MEMORY_VIEWS | TIERED_VIEWS => Some(child.ask("views")?),
            _ => None,
        };
        let tiered = matches!(number, TIERED | TIERED_VIEWS);
        if !tiered {
            child.ask("fill")?;
        }
        Ok(Self { child, tiered, samples: Vec::new(), views, dram_bytes: 0.0, _store: store })
    }

    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.samples.iter().map(of).collect::<Vec<_>>())
    }

    /// Its times over another's, round by round.
    fn over(&self, other: &Self) -> Vec<f64> {
        self.samples.iter().zip(&other.samples).map(|(own, other)| own.ms / other.ms).collect()
    }
}

/// Lets the tiered sides place by one measurement, then measures all in turn. Fails where two sides answer differently, or
/// one that holds everything in memory reads from disk.
fn measure(bench: &mut Bench, all: &mut [Contender], (hot, share): (f64, f64)) -> Result<()> {
    let rounds = rounds(bench);
    let op = |number: u64| format!("rounds {share} {rounds} {}", number);
    for one in all.iter_mut() {
        one.samples.clear();
        one.child.ask(&op(bench.seed * 1000))?;
        if one.tiered {
            one.dram_bytes = bench.ask(&mut one.child, &format!("place {}", hot * ROOM))?.value("dram_bytes");
        }
    }
    while bench.another(all.first().map_or(0, |one| one.samples.len())) {
        let mut first = None;
        for one in all.iter_mut() {
            let op = op(bench.seed * 1000 + 1 + one.samples.len() as u64);
            let sample = bench.ask(&mut one.child, &op)?;
            let answer = (sample.value("rows"), sample.value("digest"));
            let expected = *first.get_or_insert(answer);
            if answer != expected {
                let name = one.child.name();
                return Err(Error::failed(format!("{name}, '{op}': answers {answer:?}, others {expected:?}")));
            }
            if !one.tiered && sample.value("cold_bytes") > 0.0 {
                let (name, bytes) = (one.child.name(), sample.value("cold_bytes"));
                return Err(Error::failed(format!("{name}, '{op}': {bytes} bytes were read from disk")));
            }
            one.samples.push(sample);
        }
    }
    Ok(())
}

/// What making the views wrote, against the table.
fn add_views(bench: &mut Bench, all: &[Contender; 4], about: &Value) {
    let made: Vec<&Sample> = all.iter().filter_map(|one| one.views.as_ref()).collect();
    let Some(first) = made.first() else { return };
    let hot = about.get("hot").and_then(Value::as_f64).unwrap_or_default();
    let values: Vec<f64> = made.iter().map(|s| s.value("written_bytes") / s.value("table_bytes")).collect();
    let seconds: Vec<f64> = made.iter().map(|s| s.ms / 1e3).collect();
    bench.add(Finding {
        sides: ("bytes that the runs of three views write", "bytes of the table"),
        what: &format!("{:.0} % hot: write amplification", hot * 100.0),
        values: &values,
        target: Target::below(3.0, 1.0),
        params: with(
            about,
            json!({
                "seconds": median(&seconds), "table_bytes": first.value("table_bytes"),
                "table_bytes_after": first.value("table_bytes_after"), "chunks_after": first.value("chunks"),
            }),
        ),
    });
}

/// The figure, against the three other configurations.
fn add_shares(bench: &mut Bench, all: &[Contender; 4], (hot, share): (f64, f64), about: &Value, paper: [f64; 2]) {
    let mut params = with(
        about,
        json!({
            "hot_only": share, "dram_bytes": all[TIERED_VIEWS].dram_bytes,
            "paper": format!("{} to {} against all in memory with views, less than 1 against all in memory", paper[1], paper[0]),
        }),
    );
    for (name, one) in NAMES.iter().zip(all) {
        let name = name.replace(", ", "_").replace(' ', "_");
        let own = json!({
            format!("{name}_ms"): one.median(|sample| sample.ms),
            format!("{name}_cpu_ms"): one.median(|sample| sample.value("cpu_ms")),
            format!("{name}_cold_mb"): one.median(|sample| sample.value("cold_bytes")) / 1e6,
        });
        params = with(&params, own);
    }
    let against =
        [(MEMORY_VIEWS, Target::below(1.5, 1.1)), (MEMORY, Target::below(1.0, 0.5)), (TIERED, Target::below(1.0, 0.5))];
    for (other, target) in against {
        bench.add(Finding {
            sides: (NAMES[TIERED_VIEWS], NAMES[other]),
            what: &format!("{:.0} % hot, {:.0} % hot only", hot * 100.0, share * 100.0),
            values: &all[TIERED_VIEWS].over(&all[other]),
            target,
            params: params.clone(),
        });
    }
}

/// What holding a query against the views costs, as part of the time to plan it.
fn add_plans(bench: &mut Bench, all: &mut [Contender; 4], hot: f64, about: &Value) -> Result<()> {
    let op = format!("plan {}", if bench.quick { QUICK_PLANS } else { PLANS });
    let mut times: [Vec<f64>; 2] = Default::default();
    let [without, with_views, ..] = all;
    for one in [&mut *without, &mut *with_views] {
        one.child.ask(&op)?;
    }
    while bench.another(times[0].len()) {
        for (one, times) in [&mut *without, &mut *with_views].into_iter().zip(&mut times) {
            times.push(bench.ask(&mut one.child, &op)?.value("median_us"));
        }
    }
    let values: Vec<f64> = times[1].iter().zip(&times[0]).map(|(views, none)| views / none).collect();
    bench.add(Finding {
        sides: ("planning a query by key that three views do not serve", "the same without views"),
        what: &format!("{:.0} % hot: the check", hot * 100.0),
        values: &values,
        target: Target::below(1.1, 1.02),
        params: with(about, json!({ "us_a": median(&times[1]), "us_b": median(&times[0]) })),
    });
    Ok(())
}

fn with(params: &Value, further: Value) -> Value {
    let mut params = params.clone();
    if let (Some(params), Value::Object(further)) = (params.as_object_mut(), further) {
        params.extend(further);
    }
    params
}

fn draw(bench: &mut Bench, hot: f64, curves: [Vec<(f64, f64)>; 4], [most, least]: [f64; 2]) {
    let measured = NAMES.iter().zip(curves).rev().map(|(name, curve)| Series::measured(name, curve));
    let paper = format!("tiered, views: {least} to {most} (paper)");
    let paper = Series::reported(&paper, vec![(SHARES[0] * 100.0, most), (SHARES[3] * 100.0, least)]);
    let series: Vec<Series> = measured.chain([paper]).collect();
    let (x, y) = (Axis::linear("% of the queries ask for hot lines only"), Axis::linear("time / all in memory, views"));
    let title = format!(
        "ORDER_LINE of CH-benCHmark, {:.0} % hot (compare Meyer et al. 2015, figure 6; the shares of the paper's factors are a guess)",
        hot * 100.0
    );
    bench.draw(&title, plot::svg(&x, &y, &series));
}
