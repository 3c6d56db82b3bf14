//! The DRAM that can be saved at equal latency: the queries of TPC-H or TPC-DS at smaller and smaller budgets of DRAM,
//! the rest on SSD, against all in DRAM, in turn.
//!
//! Hurdelhey, Weisgut, Boissier (BTW 2023), TPC-DS, DRAM and SSD: 74 % less DRAM for tables took 52 % longer. Dreseler
//! 2021, figure 7.3, TPC-H, DRAM and NVM: a budget of 10 % took 11.6 % longer.

use serde_json::json;

use super::peers;
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::{SideSpec, Workload};
use crate::statistics::{geomean, median};
use crate::tpcds::{self, TpcDs};
use crate::tpch;

/// Shares of all bytes, falling.
const TPCH_SHARES: [f64; 9] = [0.6, 0.45, 0.35, 0.26, 0.2, 0.15, 0.1, 0.05, 0.0];
const TPCDS_SHARES: [f64; 5] = [0.5, 0.26, 0.15, 0.1, 0.05];
const QUICK_SHARES: [f64; 2] = [0.26, 0.1];
/// A quick run uses every seventh query of TPC-DS.
const QUICK_STEP: usize = 7;
/// Latency that counts as equal.
const EQUAL: f64 = 1.1;
/// BTW 2023: this share of the bytes left in DRAM, and the time that it took.
const BTW_SHARE: f64 = 0.26;
const BTW_TIME: f64 = 1.52;

/// A benchmark suite.
struct Suite {
    name: &'static str,
    scale: f64,
    store: std::path::PathBuf,
    shares: &'static [f64],
    /// Requests to a side.
    queries: Vec<String>,
}

/// One budget: per round, the geometric mean of the queries' times relative to all in DRAM, and the ratio of their
/// sums.
struct Budget {
    share: f64,
    geomeans: Vec<f64>,
    sums: Vec<f64>,
    cold_bytes: f64,
}

/// The 22 queries of TPC-H.
pub fn tpch(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let store = bench.dataset(scale)?.store();
    run(bench, &Suite { name: "TPC-H", scale, store, shares: &TPCH_SHARES, queries: tpch::names().collect() })
}

/// The 99 queries of TPC-DS.
pub fn tpcds(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.01 } else { 1.0 });
    let queries = tpcds::queries()?;
    let data = tpcds_data(bench, scale)?;
    let every = if bench.quick { QUICK_STEP } else { 1 };
    let queries = queries.into_iter().step_by(every).map(|(_, sql)| format!("sql {sql}")).collect();
    run(bench, &Suite { name: "TPC-DS", scale, store: data.store(), shares: &TPCDS_SHARES, queries })
}

/// The data of TPC-DS at a scale, made if it is not there.
pub(super) fn tpcds_data(bench: &Bench, scale: f64) -> Result<TpcDs> {
    let data = TpcDs::new(&bench.data_dir, scale);
    data.generate(peers::tpcds_generator)?;
    if !data.store().is_dir() {
        eprintln!("  loading TPC-DS {scale}");
        bench.prepare(Workload::TpcDs, scale)?;
    }
    Ok(data)
}

fn run(bench: &mut Bench, suite: &Suite) -> Result<()> {
    let start = |bench: &mut Bench, name: &str| {
        let store = StoreClone::from_store(&suite.store)?;
        let mut child = Child::start(name, &SideSpec::terrace(store.path(), bench.threads))?;
        for query in &suite.queries {
            child.ask(query)?;
        }
        Ok::<_, Error>((child, store))
    };
    let (mut tiered, _tiered_store) = start(bench, "Terrace, tiered")?;
    let (mut dram, _dram_store) = start(bench, "Terrace, all in DRAM")?;
    // Pin all data: filters from joins come earlier or later, so a round may read segments that another one did not.
    bench.ask(&mut dram, "send dram")?;
    for query in &suite.queries {
        dram.ask(query)?;
    }
    let shares = if bench.quick { &QUICK_SHARES } else { suite.shares };
    println!("  {:<8}{:>12}{:>12}{:>12}", "in DRAM", "geomean", "sum", "cold MB");
    let mut budgets = Vec::new();
    for share in shares {
        bench.ask(&mut tiered, &format!("place {share}"))?;
        let budget = measure(bench, suite, &mut tiered, &mut dram, *share)?;
        println!(
            "  {:<8}{:>12.3}{:>12.3}{:>12.1}",
            format!("{:.0} %", share * 100.0),
            median(&budget.geomeans),
            median(&budget.sums),
            budget.cold_bytes / 1e6
        );
        budgets.push(budget);
    }
    add(bench, suite, &budgets);
    draw(bench, suite, &budgets);
    Ok(())
}

/// Measures rounds of all queries on both sides in turn.
fn measure(bench: &mut Bench, suite: &Suite, tiered: &mut Child, dram: &mut Child, share: f64) -> Result<Budget> {
    let mut budget = Budget { share, geomeans: Vec::new(), sums: Vec::new(), cold_bytes: 0.0 };
    while bench.wants_another_round(budget.geomeans.len()) {
        let mut ratios = Vec::new();
        let mut sums = (0.0, 0.0);
        let mut cold_bytes = 0.0;
        for query in &suite.queries {
            let a = bench.ask(tiered, query)?;
            let b = bench.ask(dram, query)?;
            if a.value("rows") != b.value("rows") {
                let a = a.value("rows");
                let b = b.value("rows");
                return Err(Error::failed(format!("at a share of {share} {a} rows, in DRAM {b}: {query}")));
            }
            if b.value("cold_bytes") > 0.0 {
                return Err(Error::failed("the side that should hold all in DRAM read from disk"));
            }
            ratios.push(a.ms / b.ms);
            sums = (sums.0 + a.ms, sums.1 + b.ms);
            cold_bytes += a.value("cold_bytes");
        }
        budget.geomeans.push(geomean(&ratios));
        budget.sums.push(sums.0 / sums.1);
        budget.cold_bytes = cold_bytes;
    }
    Ok(budget)
}

/// The share of DRAM that is saved in each round: by the smallest budget at which, as at all larger ones, the times
/// stay `within` the limit.
fn saved(budgets: &[Budget], within: f64, times: fn(&Budget) -> &Vec<f64>) -> Vec<f64> {
    let rounds = budgets.iter().map(|budget| times(budget).len()).min().unwrap_or(0);
    let of = |round: usize| {
        let keeps = |budget: &&Budget| times(budget).get(round).is_some_and(|time| *time <= within);
        budgets.iter().take_while(keeps).last().map_or(0.0, |budget| 1.0 - budget.share)
    };
    (0..rounds).map(of).collect()
}

fn add(bench: &mut Bench, suite: &Suite, budgets: &[Budget]) {
    let sides = ("Terrace, tiered", "Terrace, all in DRAM");
    let params = |unit: &str| {
        json!({
            "scale": suite.scale, "threads": bench.threads, "unit": unit,
            "paper": "BTW 2023, TPC-DS on SSD: 0.74 saved, 1.52 times as long",
        })
    };
    let [share, ratio] = ["share of DRAM saved", "ratio"].map(params);
    let rows = [
        ("saved, geomean within 10 %", saved(budgets, EQUAL, |budget| &budget.geomeans)),
        ("saved, sum within 52 %", saved(budgets, BTW_TIME, |budget| &budget.sums)),
    ];
    let target = Target::above(1.0 - BTW_SHARE, 0.9);
    for (what, values) in rows {
        bench.add(Finding { sides, what, values: &values, target, params: share.clone() });
    }
    if let Some(budget) = budgets.iter().find(|budget| budget.share == BTW_SHARE) {
        let target = Target::below(BTW_TIME, EQUAL);
        bench.add(Finding { sides, what: "time with 26 % in DRAM", values: &budget.sums, target, params: ratio });
    }
}

fn draw(bench: &mut Bench, suite: &Suite, budgets: &[Budget]) {
    let line = |times: fn(&Budget) -> &Vec<f64>| {
        budgets.iter().rev().map(|budget| (budget.share * 100.0, median(times(budget)))).collect::<Vec<_>>()
    };
    let series = [
        Series::measured("geomean of the queries", line(|budget| &budget.geomeans)),
        Series::measured("sum of the queries", line(|budget| &budget.sums)),
        Series::reported("BTW 2023, TPC-DS, SSD", vec![(BTW_SHARE * 100.0, BTW_TIME)]),
        Series::reported("Dreseler 2021, TPC-H, NVM", vec![(0.0, 1.42), (10.0, 1.116)]),
    ];
    let x = Axis::linear("% of all bytes in DRAM");
    let y = Axis::linear("time / all in DRAM");
    bench.draw(&format!("{}: time by budget of DRAM", suite.name), plot::svg(&x, &y, &series));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_ends_at_the_first_budget_that_is_too_slow() {
        let budget = |share: f64, time: f64| Budget { share, geomeans: vec![time, 1.0], sums: vec![], cold_bytes: 0.0 };
        let budgets = [budget(0.5, 1.02), budget(0.25, 1.1), budget(0.1, 1.2), budget(0.0, 1.05)];
        assert_eq!(saved(&budgets, 1.1, |budget| &budget.geomeans), [0.75, 1.0]);
        assert_eq!(saved(&budgets, 1.01, |budget| &budget.geomeans), [0.0, 1.0]);
        assert!(saved(&budgets, 1.1, |budget| &budget.sums).is_empty());
    }
}
