//! TPC-H at several budgets of DRAM, the rest on SSD or on emulated NVM, placed by every policy (P5).
//!
//! A budget is set, one epoch places, a round warms up. A row is the ratio of the time of all queries under `optimal`
//! to their time under the best other policy. Of Dreseler 2021, figures 7.3 to 7.5 (pp. 108 to 110), only what the text
//! beside them says is drawn: on NVM 42 % longer with nothing in DRAM (7.2.1), 11.6 % longer with 10 %, nothing to see
//! from 50 % on (7.2.2), and placed by chance about linear in between (7.2.1, figure 7.4, a sketch).

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;

use super::contest::{self, Contender};
use crate::bench::Bench;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::statistics::spread;
use crate::tpch;

/// Shares of all bytes.
const SHARES: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
const QUICK_SHARES: [f64; 1] = [0.1];
/// Reported for NVM: per cent in DRAM, and time relative to all in DRAM.
const THESIS: [(f64, f64); 4] = [(0.0, 1.42), (10.0, 1.116), (50.0, 1.0), (100.0, 1.0)];
const THESIS_BY_CHANCE: [(f64, f64); 2] = [(0.0, 1.42), (100.0, 1.0)];
/// TPC-DS on SSD.
const BTW: (f64, f64) = (26.0, 1.52);

/// Measures with the rest on SSD.
pub fn ssd(bench: &mut Bench) -> Result<()> {
    run(bench, false)
}

/// Measures with the rest on emulated, slowed NVM, as in the thesis.
pub fn nvm(bench: &mut Bench) -> Result<()> {
    run(bench, true)
}

/// Adds one row per budget, and prints a table and draws a plot of all policies.
fn run(bench: &mut Bench, nvm: bool) -> Result<()> {
    let scale = bench.scale(1.0);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let queries: Vec<String> = tpch::names().collect();
    let mut all = Vec::new();
    for policy in PolicyKind::BY_TIER {
        let store = bench.dataset(scale)?.clone_store()?;
        all.push(Contender::start(bench, policy, nvm, store, &queries)?);
    }
    let (optimal, _) = all.split_at_mut(1);
    let rows = contest::measure(bench, optimal, &queries, 1.0)?;
    let full_ms = optimal.first().map_or(0.0, Contender::median_ms);
    let mut curves: Vec<Vec<(f64, f64)>> = vec![Vec::new(); all.len()];
    println!("  {:<8}{:<10}{:>12}{:>9}{:>12}{:>12}", "in DRAM", "policy", "22 queries", "spread", "to all", "cold MB");
    for share in shares {
        if contest::measure(bench, &mut all, &queries, *share)? != rows {
            return Err(Error::failed(format!("at a share of {share} a query returns another number of rows")));
        }
        for (one, curve) in all.iter().zip(&mut curves) {
            curve.push((share * 100.0, one.median_ms() / full_ms));
            println!(
                "  {:<8}{:<10}{:>9.0} ms{:>7.1} %{:>12.3}{:>12.1}",
                format!("{:.0} %", share * 100.0),
                one.policy.name(),
                one.median_ms(),
                spread(&one.sums_ms) * 100.0,
                one.median_ms() / full_ms,
                one.cold_bytes / 1e6
            );
        }
        contest::add(bench, &all, *share, json!({ "scale": scale, "all_in_dram_ms": full_ms, "nvm": nvm }));
    }
    let curves = all.iter().map(|one| one.policy.name()).zip(curves).collect();
    draw(bench, nvm, curves);
    Ok(())
}

fn draw(bench: &mut Bench, nvm: bool, curves: Vec<(&str, Vec<(f64, f64)>)>) {
    // With all data in DRAM all policies place alike, so one measurement is valid for all.
    let measured = curves.into_iter().map(|(name, mut curve)| {
        curve.push((100.0, 1.0));
        Series::measured(name, curve)
    });
    let mut series: Vec<Series> = measured.collect();
    series.push(Series::reported("Dreseler 2021, NVM", THESIS.to_vec()));
    match nvm {
        true => series.push(Series::reported("the same, by chance (sketch)", THESIS_BY_CHANCE.to_vec())),
        false => series.push(Series::reported("BTW 2023, TPC-DS, SSD", vec![BTW])),
    }
    let x = Axis::linear("% of all bytes in DRAM");
    let y = Axis::linear("time of 22 queries / all in DRAM");
    let rest = if nvm { "emulated NVM" } else { "SSD" };
    let title = format!("TPC-H, the rest on {rest}, by policy (compare Dreseler 2021, figures 7.3 to 7.5)");
    bench.draw(&title, plot::svg(&x, &y, &series));
}
