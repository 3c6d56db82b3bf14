//! The quality of placements by solving time (Dreseler 2021, figure 7.7, p. 113; section 7.2.4).
//!
//! The gap is the share of the best known bound that an answer fails to save; all methods are compared with the highest
//! bound that any of them proved. The thesis, on 17,816 segments and two tiers: or-tools within 0.2 % after
//! 1 ms, CPLEX within 1 % after 464 ms, at best 0.15 % better than or-tools, which has 1000 s.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::side::quality::Problem;
use crate::statistics::median;

/// Effort of our solver, from hardly any to what a server spends: evaluations of the bound, nodes of the search.
const EFFORTS: [(usize, usize); 9] =
    [(0, 0), (1, 0), (2, 100), (4, 1_000), (8, 4_000), (16, 10_000), (30, 20_000), (60, 40_000), (200, 400_000)];
/// Effort of a server.
const USUAL: (usize, usize) = (60, 40_000);
/// Times at which the exact search is sampled, in milliseconds: the thesis' four per power of ten.
const LIMITS_MS: &str = "1,4.64,10,46.4,100,464,1000,4640,10000";
const QUICK_LIMITS_MS: &str = "1,10,100,464";
/// Time limit of an answer: the default of `tiering.solver_deadline`.
const DEADLINE_MS: f64 = 1_000.0;

/// Answers of one method: milliseconds, and cost of the placement.
struct Method {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// Measures the thesis' problem, and two of our own.
pub fn run(bench: &mut Bench) -> Result<()> {
    let problems =
        [("TPC-H SF 10", Problem::TpcH), ("100 k", Problem::Random(100_000)), ("1 M", Problem::Random(1_000_000))];
    for (name, problem) in problems.into_iter().take(if bench.quick { 2 } else { 3 }) {
        one(bench, name, problem)?;
    }
    Ok(())
}

fn one(bench: &mut Bench, name: &str, problem: Problem) -> Result<()> {
    let mut child = Child::start("solver", &SideSpec::Quality { problem })?;
    let size = child.ask("size")?;
    let home_us = size.value("home_us");
    // The first answer is slower, because it allocates memory.
    child.ask("greedy")?;
    let mut bound_us = f64::NEG_INFINITY;
    let mut ours = Vec::new();
    let mut greedy = Vec::new();
    let mut usual: Vec<Sample> = Vec::new();
    for (evaluations, nodes) in EFFORTS {
        let mut samples = Vec::new();
        while bench.wants_another_round(samples.len()) {
            samples.push(bench.ask(&mut child, &format!("ours {evaluations} {nodes}"))?);
        }
        bound_us = samples.iter().map(|sample| sample.value("bound_us")).fold(bound_us, f64::max);
        ours.push(typical(&samples));
        if (evaluations, nodes) == USUAL {
            usual = samples;
        }
    }
    let mut samples = Vec::new();
    while bench.wants_another_round(samples.len()) {
        samples.push(bench.ask(&mut child, "greedy")?);
    }
    greedy.push(typical(&samples));
    let exact = match problem {
        Problem::TpcH => exact(bench, &mut child, &mut bound_us)?,
        // The exact search is for two tiers only.
        Problem::Random(_) => Vec::new(),
    };
    let gap = |cost_us: f64| ((cost_us - bound_us) / (home_us - bound_us)).max(0.0);
    let methods = [
        Method { name: "Terrace", points: ours },
        Method { name: "greedy, by density", points: greedy },
        Method { name: "branch and bound", points: exact },
    ];
    println!("  {name}: {:.0} segments, {:.0} tiers", size.value("segments"), size.value("tiers"));
    println!("  {:<22}{:>12}{:>12}", "method", "ms", "gap %");
    for method in &methods {
        for (ms, cost_us) in &method.points {
            println!("  {:<22}{ms:>12.2}{:>12.5}", method.name, gap(*cost_us) * 100.0);
        }
    }
    draw(bench, name, &methods, gap, matches!(problem, Problem::TpcH));
    let gaps: Vec<f64> = usual.iter().map(|sample| gap(sample.value("objective_us")) * 100.0).collect();
    let times: Vec<f64> = usual.iter().map(|sample| sample.ms).collect();
    let best_of = |method: &Method, until_ms: f64| {
        let done = method.points.iter().filter(|(ms, _)| *ms <= until_ms);
        done.map(|(_, cost_us)| gap(*cost_us) * 100.0).reduce(f64::min)
    };
    let [_, greedy, exact] = &methods;
    let params = json!({
        "unit": "%", "segments": size.value("segments"), "tiers": size.value("tiers"), "ms": median(&times),
        "greedy_gap": best_of(greedy, f64::INFINITY), "greedy_ms": greedy.points.first().map(|(ms, _)| ms),
        "exact_gap_within_deadline": best_of(exact, DEADLINE_MS), "exact_gap": best_of(exact, f64::INFINITY),
    });
    // The thesis: 0.2 %; P10: 0.02 %.
    let target = Target::below(0.2, 0.02);
    bench.add(Finding {
        sides: ("Terrace, usual effort", "best bound"),
        what: &format!("{name}: gap %"),
        values: &gaps,
        target,
        params,
    });
    Ok(())
}

/// The median time and cost.
fn typical(samples: &[Sample]) -> (f64, f64) {
    let of = |value: fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
    (of(|sample| sample.ms), of(|sample| sample.value("objective_us")))
}

/// The answers that the exact search had by each time.
fn exact(bench: &mut Bench, child: &mut Child, bound_us: &mut f64) -> Result<Vec<(f64, f64)>> {
    let limits = if bench.quick { QUICK_LIMITS_MS } else { LIMITS_MS };
    let sample = bench.ask(child, &format!("exact {limits}"))?;
    if let Some(bound) = sample.values.get("bound_us") {
        *bound_us = bound_us.max(*bound);
    }
    let point = |number: usize| {
        let objective = sample.values.get(&format!("objective_us_{number}"))?;
        Some((sample.value(&format!("ms_{number}")), *objective))
    };
    Ok((0..limits.split(',').count()).filter_map(point).collect())
}

fn draw(bench: &mut Bench, name: &str, methods: &[Method], gap: impl Fn(f64) -> f64, is_papers: bool) {
    // A gap of 0 has no logarithm.
    let shown = |cost_us: f64| (gap(cost_us) * 100.0).max(1e-6);
    let mut series: Vec<Series> = Vec::new();
    for method in methods.iter().filter(|method| !method.points.is_empty()) {
        let points = method.points.iter().map(|(ms, cost_us)| (*ms, shown(*cost_us))).collect();
        series.push(Series::measured(method.name, points));
    }
    if is_papers {
        series.push(Series::reported("or-tools (Dreseler 2021)", vec![(1.0, 0.2), (1e6, 0.15)]));
        series.push(Series::reported("CPLEX (Dreseler 2021)", vec![(464.0, 1.0)]));
    }
    let x = Axis::logarithmic("ms");
    let y = Axis::logarithmic("gap to the best bound, %");
    bench.draw(&format!("{name}: gap by time (compare Dreseler 2021, figure 7.7)"), plot::svg(&x, &y, &series));
}
