//! Ten tenants with a TPC-H each in the same tables, queries by binomial shares, at several budgets of DRAM (Dreseler 2021,
//! section 7.2.3 and figure 7.6), placed by every policy.
//!
//! A policy that sees whole columns cannot tell tenants apart, one that sees whole chunks not the columns that nobody reads.
//! The thesis, on NVM: by segments at 10 % 7 points of latency below by columns, at 6 % 16 points below by chunks.

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use terrace_tier_store::placement::PolicyKind;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::{SideSpec, Workload};
use crate::statistics::median;
use crate::tenants::{self, Tenants};

/// Shares of all bytes.
const SHARES: [f64; 6] = [0.02, 0.06, 0.1, 0.2, 0.3, 0.4];
const QUICK_SHARES: [f64; 2] = [0.06, 0.1];
const QUICK_POLICIES: [PolicyKind; 3] = [PolicyKind::Optimal, PolicyKind::Column, PolicyKind::Chunk];
/// How often each of the 22 queries runs before the first placement, and in a round.
const SEEN: usize = 10;
const MEASURED: usize = 4;
const AGAINST_OTHERS: Target = Target::below(1.03, 1.0);
/// What the thesis has: policy, share, points of latency that it costs more than placement by segments.
const THESIS: [(PolicyKind, f64, f64); 2] = [(PolicyKind::Column, 0.1, 7.0), (PolicyKind::Chunk, 0.06, 16.0)];

/// A policy's side.
struct Contender {
    policy: PolicyKind,
    child: Child,
    /// Mean latency in each round at the budget of the moment.
    means_ms: Vec<f64>,
    cold_bytes: f64,
    /// Share of all bytes in DRAM and median latency, for the plot.
    curve: Vec<(f64, f64)>,
    _store: StoreClone,
}

/// One row per budget, two of the thesis' figures, a table and a plot of all policies.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    tenants::check_scale(scale)?;
    let data = Tenants::new(&bench.data_dir, scale);
    if !data.store().is_dir() {
        eprintln!("  making ten tenants' TPC-H of scale {scale} together");
        bench.prepare(Workload::Tenants, scale)?;
    }
    let (shares, policies): (&[f64], &[PolicyKind]) =
        if bench.quick { (&QUICK_SHARES, &QUICK_POLICIES) } else { (&SHARES, &PolicyKind::ALL) };
    let seen = operations(bench.seed, if bench.quick { 2 } else { SEEN })?;
    let mut all = Vec::new();
    for policy in policies {
        let store = StoreClone::of(&data.store())?;
        let spec = SideSpec::Terrace { store: store.path(), threads: bench.threads, nvm: false, policy: *policy };
        let mut child = Child::start(policy.name(), &spec)?;
        for query in &seen {
            child.ask(query)?;
        }
        let (means_ms, curve) = (Vec::new(), Vec::new());
        all.push(Contender { policy: *policy, child, means_ms, cold_bytes: 0.0, curve, _store: store });
    }
    // Others than those that placement was decided by, and the same ones for all policies and budgets.
    let queries = operations(bench.seed + 1, if bench.quick { 1 } else { MEASURED })?;
    let (optimal, _) = all.split_at_mut(1);
    measure(bench, optimal, &queries, 1.0)?;
    // The first time warmed up.
    let rows = measure(bench, optimal, &queries, 1.0)?;
    let full_ms = optimal.first().map_or(0.0, |optimal| median(&optimal.means_ms));
    println!("  {:<8}{:<10}{:>12}{:>12}{:>14}", "in DRAM", "policy", "mean", "to all", "cold MB/query");
    for share in shares {
        if measure(bench, &mut all, &queries, *share)? != rows {
            return Err(Error::failed(format!("at a share of {share} a query returns another number of rows")));
        }
        for one in &mut all {
            let mean_ms = median(&one.means_ms);
            one.curve.push((share * 100.0, mean_ms / full_ms));
            println!(
                "  {:<8}{:<10}{mean_ms:>9.2} ms{:>12.3}{:>14.2}",
                format!("{:.0} %", share * 100.0),
                one.policy.name(),
                mean_ms / full_ms,
                one.cold_bytes / queries.len() as f64 / 1e6
            );
        }
        add(bench, (scale, *share, full_ms), &all);
    }
    draw(bench, &all);
    Ok(())
}

/// Requests for queries of drawn tenants.
fn operations(seed: u64, times: usize) -> Result<Vec<String>> {
    let drawn = tenants::draw(&mut StdRng::seed_from_u64(seed), times);
    let text = |(tenant, number): (i8, usize)| {
        let sql = tenants::query(tenant, number).ok_or_else(|| Error::failed("there are 22 queries"))?;
        Ok(format!("sql {sql}"))
    };
    drawn.into_iter().map(text).collect()
}

/// Gives every side the budget and runs the queries on all of them in turn; the rows that each query returns.
fn measure(bench: &mut Bench, all: &mut [Contender], queries: &[String], share: f64) -> Result<Vec<f64>> {
    for one in all.iter_mut() {
        bench.ask(&mut one.child, &format!("place {share}"))?;
        one.means_ms.clear();
    }
    let mut rows = Vec::with_capacity(queries.len());
    let mut round = 0;
    while bench.another(round) {
        let mut sums = vec![(0.0, 0.0); all.len()];
        for (number, query) in queries.iter().enumerate() {
            for (one, (ms, cold_bytes)) in all.iter_mut().zip(&mut sums) {
                let sample = bench.ask(&mut one.child, query)?;
                (*ms, *cold_bytes) = (*ms + sample.ms, *cold_bytes + sample.value("cold_bytes"));
                match rows.get(number) {
                    None => rows.push(sample.value("rows")),
                    Some(known) if *known == sample.value("rows") => {}
                    Some(known) => {
                        let (policy, rows) = (one.policy.name(), sample.value("rows"));
                        return Err(Error::failed(format!("{policy}: {rows} rows, {known} elsewhere: {query}")));
                    }
                }
            }
        }
        for (one, (ms, cold_bytes)) in all.iter_mut().zip(sums) {
            one.means_ms.push(ms / queries.len() as f64);
            one.cold_bytes = cold_bytes;
        }
        round += 1;
    }
    Ok(rows)
}

fn add(bench: &mut Bench, (scale, share, full_ms): (f64, f64, f64), all: &[Contender]) {
    let Some((optimal, others)) = all.split_first() else { return };
    let by_time = |a: &&Contender, b: &&Contender| median(&a.means_ms).total_cmp(&median(&b.means_ms));
    let Some(best) = others.iter().min_by(by_time) else { return };
    let pairs = |other: &Contender| optimal.means_ms.iter().copied().zip(other.means_ms.clone()).collect::<Vec<_>>();
    let values: Vec<f64> = pairs(best).iter().map(|(ours, theirs)| ours / theirs).collect();
    let mut params = json!({ "scale": scale, "share": share, "threads": bench.threads, "all_in_dram_ms": full_ms });
    if let Some(params) = params.as_object_mut() {
        for one in all {
            params.insert(format!("{}_ms", one.policy.name()), json!(median(&one.means_ms)));
            params.insert(format!("{}_cold_mb", one.policy.name()), json!(one.cold_bytes / 1e6));
        }
    }
    bench.add(Finding {
        sides: (optimal.policy.name(), "the best of the other policies"),
        what: &format!("{:.0} % in DRAM, against {}", share * 100.0, best.policy.name()),
        values: &values,
        target: AGAINST_OTHERS,
        params,
    });
    for (policy, at, points) in THESIS.into_iter().filter(|(_, at, _)| *at == share) {
        let Some(other) = others.iter().find(|other| other.policy == policy) else { continue };
        let values: Vec<f64> = pairs(other).iter().map(|(ours, theirs)| (theirs - ours) / full_ms * 100.0).collect();
        bench.add(Finding {
            sides: ("placement by segments", "placement by whole columns or chunks"),
            what: &format!("{:.0} %: points below {}", at * 100.0, policy.name()),
            values: &values,
            target: Target::above(0.0, points),
            params: json!({ "scale": scale, "unit": "points of the all-in-DRAM latency", "thesis_on_nvm": points }),
        });
    }
}

fn draw(bench: &mut Bench, all: &[Contender]) {
    let mut series: Vec<Series> =
        all.iter().map(|one| Series::measured(one.policy.name(), one.curve.clone())).collect();
    // The thesis gives distances from placement by segments only.
    let ours = |share: f64| all.first()?.curve.iter().find(|(at, _)| *at == share * 100.0).map(|(_, time)| *time);
    for (policy, share, points) in THESIS {
        if let Some(ours) = ours(share) {
            let name = format!("{}: ours + {points:.0} (thesis)", policy.name());
            series.push(Series::reported(&name, vec![(share * 100.0, ours + points / 100.0)]));
        }
    }
    let (x, y) = (Axis::linear("% of all bytes in DRAM"), Axis::linear("mean latency / all in DRAM"));
    bench.draw("Ten tenants with binomial shares (compare Dreseler 2021, figure 7.6)", plot::svg(&x, &y, &series));
}
