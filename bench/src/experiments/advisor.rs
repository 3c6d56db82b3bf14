//! Predictions of the advisor against the clock.
//!
//! All data is in DRAM before the first query runs. From the accesses of these queries, the advisor predicts the time
//! of all queries for five random budgets; the predictions are written to a file before any budget is tried. Then the
//! experiment sets each budget, runs epochs until nothing moves any more, and measures the queries. At the end all data
//! is in DRAM once more, to measure the drift of the machine itself.

use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;
use crate::tpch;

const BUDGETS: usize = 5;
const SIDE: &str = "Terrace";

/// Compares predicted with measured times.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let store = bench.dataset(scale)?.clone_store()?;
    let mut child = Child::start(SIDE, &SideSpec::terrace(store.path(), bench.threads))?;
    let mut rng = StdRng::seed_from_u64(bench.seed);
    let shares: Vec<f64> = (0..BUDGETS).map(|_| (rng.random_range(0.0..1.0_f64) * 1e3).round() / 1e3).collect();
    println!("  seed {}: {shares:?} of all bytes", bench.seed);
    let filled = bench.ask(&mut child, "fill")?;
    round(bench, &mut child)?;
    let list: Vec<String> = shares.iter().map(ToString::to_string).collect();
    let mut hot = Vec::new();
    let mut advices = Vec::new();
    while bench.wants_another_round(hot.len()) {
        child.ask("mark")?;
        hot.push(round(bench, &mut child)?);
        advices.push(bench.ask(&mut child, &format!("advise {}", list.join(",")))?);
    }
    if cold_bytes(&hot) > 0.0 {
        return Err(Error::failed("queries read from disk while everything was to lie in DRAM"));
    }
    child.ask("history")?;
    let advice = advices.last().cloned().unwrap_or_default();
    // A prediction per round: the median ignores a disturbed round, as it does for the measured rounds.
    let predicted = |at: usize| {
        let of = |advice: &Sample| advice.value(&format!("mean_us_{at}")) / 1e3 * tpch::names().count() as f64;
        median(&advices.iter().map(of).collect::<Vec<_>>())
    };
    let all_in_dram = total_ms(&hot);
    write_down(bench, scale, &shares, &advice, &predicted, all_in_dram)?;
    let mut worst: Vec<f64> = Vec::new();
    for (at, share) in shares.iter().enumerate() {
        let budget = advice.value(&format!("budget_{at}"));
        bench.ask(&mut child, &format!("budget {budget}"))?;
        round(bench, &mut child)?;
        let measured = rounds(bench, &mut child)?;
        let errors: Vec<f64> = measured.iter().map(|round| error(predicted(at), sum_ms(round))).collect();
        let measured_ms = total_ms(&measured);
        let params = json!({
            "scale": scale, "threads": bench.threads, "seed": bench.seed, "share": share, "budget_bytes": budget,
            "predicted_ms": predicted(at), "measured_ms": measured_ms, "all_in_dram_ms": all_in_dram,
            "error_of_no_change": error(all_in_dram, measured_ms), "cold_bytes": cold_bytes(&measured) / measured.len() as f64,
        });
        println!(
            "  {:.1} %: predicted {:.0} ms, measured {measured_ms:.0} ms, all in DRAM {all_in_dram:.0} ms",
            share * 100.0,
            predicted(at)
        );
        let what = format!("error at {:.1} % of the bytes", share * 100.0);
        add(bench, &what, &errors, params);
        worst = if median(&errors) >= median(&worst) || worst.is_empty() { errors } else { worst };
    }
    add(bench, "worst error", &worst, json!({ "scale": scale, "seed": bench.seed }));
    bench.ask(&mut child, &format!("budget {}", filled.value("budget_bytes")))?;
    round(bench, &mut child)?;
    let again = rounds(bench, &mut child)?;
    let drift: Vec<f64> = again.iter().map(|round| error(all_in_dram, sum_ms(round))).collect();
    add(bench, "all in DRAM, before and after", &drift, json!({ "scale": scale, "measured_ms": total_ms(&again) }));
    Ok(())
}

fn add(bench: &mut Bench, what: &str, values: &[f64], params: serde_json::Value) {
    let sides = ("predicted", "measured");
    bench.add(Finding { sides, what, values, target: Target::below(0.2, 0.1), params });
}

/// Writes the predictions to a file before anything else is run.
fn write_down(
    bench: &Bench,
    scale: f64,
    shares: &[f64],
    advice: &Sample,
    predicted: &impl Fn(usize) -> f64,
    all_in_dram_ms: f64,
) -> Result<()> {
    let folder: PathBuf = bench.report_dir.clone().unwrap_or_else(|| bench.data_dir.clone());
    std::fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
    let file = folder.join(format!("advisor-predictions-sf{scale}-seed{}.json", bench.seed));
    let points: Vec<_> = shares
        .iter()
        .enumerate()
        .map(|(at, share)| {
            let budget_bytes = advice.value(&format!("budget_{at}"));
            json!({ "share": share, "budget_bytes": budget_bytes, "predicted_ms": predicted(at) })
        })
        .collect();
    let all = json!({
        "scale": scale, "seed": bench.seed, "all_in_dram_ms": all_in_dram_ms, "points": points, "advice": advice.values,
    });
    std::fs::write(&file, serde_json::to_string_pretty(&all)?).map_err(Error::path("write", &file))?;
    println!("  predictions written to {}", file.display());
    Ok(())
}

/// All queries once, to warm up.
fn round(bench: &mut Bench, child: &mut Child) -> Result<Vec<Sample>> {
    tpch::names().map(|query| bench.ask(child, &query)).collect()
}

fn rounds(bench: &mut Bench, child: &mut Child) -> Result<Vec<Vec<Sample>>> {
    let mut rounds = Vec::new();
    while bench.wants_another_round(rounds.len()) {
        rounds.push(round(bench, child)?);
    }
    Ok(rounds)
}

fn sum_ms(round: &[Sample]) -> f64 {
    round.iter().map(|sample| sample.ms).sum()
}

fn total_ms(rounds: &[Vec<Sample>]) -> f64 {
    median(&rounds.iter().map(|round| sum_ms(round)).collect::<Vec<_>>())
}

fn cold_bytes(rounds: &[Vec<Sample>]) -> f64 {
    rounds.iter().flatten().map(|sample| sample.value("cold_bytes")).sum()
}

/// Error of a prediction as a share of the measured time.
fn error(predicted: f64, measured: f64) -> f64 {
    (predicted / measured - 1.0).abs()
}
