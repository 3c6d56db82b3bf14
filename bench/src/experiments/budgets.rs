//! TPC-H at several budgets of DRAM, the rest on SSD, placed by every policy (P5).
//!
//! All sides run the same queries in turn, each in its own process over its own copy of the data; a budget is set, one epoch
//! places, a round warms up. A row is the time of all queries under `optimal` to that under the best of the others.
//! Dreseler 2021, figures 7.3 to 7.5: on NVM, a budget of 10 % took 1.116 times as long as all in DRAM, other policies 7 to
//! 16 points longer.

use std::collections::BTreeMap;

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;

use super::queries::Placed;
use crate::bench::{Bench, Finding, Target};
use crate::error::{Error, Result};
use crate::statistics::{median, spread};
use crate::tpch;

/// Shares of all bytes.
const SHARES: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
const QUICK_SHARES: [f64; 1] = [0.1];
const AGAINST_OTHERS: Target = Target::below(1.03, 1.0);

/// A policy's side and the time of each of its rounds.
struct Contender {
    policy: PolicyKind,
    side: Placed,
    sums_ms: Vec<f64>,
    cold_bytes: f64,
}

/// One row per budget; a table of all policies beside it.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let mut all = Vec::new();
    for policy in PolicyKind::ALL {
        let side = Placed::start_with(bench, policy.name(), (scale, 0.0), (policy, false))?;
        all.push(Contender { policy, side, sums_ms: Vec::new(), cold_bytes: 0.0 });
    }
    let (optimal, _) = all.split_at_mut(1);
    let rows = measure(bench, optimal, 1.0)?;
    let full = optimal.first().map_or(0.0, |optimal| median(&optimal.sums_ms));
    println!("  {:<8}{:<10}{:>12}{:>9}{:>12}{:>12}", "in DRAM", "policy", "22 queries", "spread", "to all", "cold MB");
    for share in shares {
        if measure(bench, &mut all, *share)? != rows {
            return Err(Error::failed(format!("at a share of {share} a query returns another number of rows")));
        }
        for one in &all {
            println!(
                "  {:<8}{:<10}{:>9.0} ms{:>7.1} %{:>12.3}{:>12.1}",
                format!("{:.0} %", share * 100.0),
                one.policy.name(),
                median(&one.sums_ms),
                spread(&one.sums_ms) * 100.0,
                median(&one.sums_ms) / full,
                one.cold_bytes / 1e6
            );
        }
        add(bench, (scale, *share, full), &all);
    }
    Ok(())
}

/// Gives every side the budget and runs the queries, round by round, on all of them in turn; the rows that each query
/// returns.
fn measure(bench: &mut Bench, all: &mut [Contender], share: f64) -> Result<BTreeMap<String, f64>> {
    let mut rows = BTreeMap::new();
    for one in all.iter_mut() {
        bench.ask(&mut one.side.child, &format!("place {share}"))?;
        one.sums_ms.clear();
    }
    let mut round = 0;
    while round == 0 || bench.another(round - 1) {
        for one in all.iter_mut() {
            let (mut sum_ms, mut cold_bytes) = (0.0, 0.0);
            for query in tpch::names() {
                let sample = bench.ask(&mut one.side.child, &query)?;
                (sum_ms, cold_bytes) = (sum_ms + sample.ms, cold_bytes + sample.value("cold_bytes"));
                let known = *rows.entry(query.clone()).or_insert(sample.value("rows"));
                if known != sample.value("rows") {
                    let (policy, rows) = (one.policy.name(), sample.value("rows"));
                    return Err(Error::failed(format!("{query} under {policy}: {rows} rows, {known} elsewhere")));
                }
            }
            // The first round warms up.
            if round > 0 {
                one.sums_ms.push(sum_ms);
                one.cold_bytes = cold_bytes;
            }
        }
        round += 1;
    }
    Ok(rows)
}

fn add(bench: &mut Bench, (scale, share, full): (f64, f64, f64), all: &[Contender]) {
    let Some((optimal, others)) = all.split_first() else { return };
    let by_time = |a: &&Contender, b: &&Contender| median(&a.sums_ms).total_cmp(&median(&b.sums_ms));
    let Some(best) = others.iter().min_by(by_time) else { return };
    let values: Vec<f64> = optimal.sums_ms.iter().zip(&best.sums_ms).map(|(ours, theirs)| ours / theirs).collect();
    let mut params = json!({ "scale": scale, "share": share, "threads": bench.threads, "all_in_dram_ms": full });
    if let Some(params) = params.as_object_mut() {
        for one in all {
            params.insert(format!("{}_ms", one.policy.name()), json!(median(&one.sums_ms)));
        }
    }
    bench.add(Finding {
        sides: (optimal.policy.name(), "the best of the other policies"),
        what: &format!("{:.0} % in DRAM, against {}", share * 100.0, best.policy.name()),
        values: &values,
        target: AGAINST_OTHERS,
        params,
    });
}
