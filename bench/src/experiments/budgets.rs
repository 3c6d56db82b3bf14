//! TPC-H at several budgets of DRAM, the rest on SSD, placed by every policy (P5).
//!
//! A budget is set, one epoch places, a round warms up. A row is the time of all queries under `optimal` to that under the
//! best of the others. Dreseler 2021, figures 7.3 to 7.5: on NVM, a budget of 10 % took 1.116 times as long as all in DRAM,
//! other policies 7 to 16 points longer.

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;

use super::contest::{self, Contender};
use crate::bench::Bench;
use crate::error::{Error, Result};
use crate::statistics::spread;
use crate::tpch;

/// Shares of all bytes.
const SHARES: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
const QUICK_SHARES: [f64; 1] = [0.1];

/// One row per budget; a table of all policies beside it.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let queries: Vec<String> = tpch::names().collect();
    let mut all = Vec::new();
    for policy in PolicyKind::ALL {
        let store = bench.dataset(scale)?.clone_store()?;
        all.push(Contender::start(bench, policy, store, &queries)?);
    }
    let (optimal, _) = all.split_at_mut(1);
    let rows = contest::measure(bench, optimal, &queries, 1.0)?;
    let full_ms = optimal.first().map_or(0.0, Contender::median_ms);
    println!("  {:<8}{:<10}{:>12}{:>9}{:>12}{:>12}", "in DRAM", "policy", "22 queries", "spread", "to all", "cold MB");
    for share in shares {
        if contest::measure(bench, &mut all, &queries, *share)? != rows {
            return Err(Error::failed(format!("at a share of {share} a query returns another number of rows")));
        }
        for one in &all {
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
        contest::add(bench, &all, *share, json!({ "scale": scale, "all_in_dram_ms": full_ms }));
    }
    Ok(())
}
