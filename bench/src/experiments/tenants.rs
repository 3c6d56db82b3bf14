//! Ten tenants with a TPC-H each in the same tables, queries by binomial shares, at several budgets of DRAM (Dreseler
//! 2021, section 7.2.3 and figure 7.6), placed by every policy.
//!
//! A policy for whole columns cannot distinguish tenants; a policy for whole chunks cannot leave out columns that no
//! query reads. The thesis, on NVM (7.2.3, the text; figure 7.6 on p. 112 has the lines): by segments at 10 % 7 points
//! of latency below by columns, at 6 % 16 points below by chunks.

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use terrace_tier_store::placement::PolicyKind;

use super::contest::{self, Contender};
use crate::bench::{Bench, Finding, Target};
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::Workload;
use crate::tenants::{self, Tenants};

/// Shares of all bytes.
const SHARES: [f64; 6] = [0.02, 0.06, 0.1, 0.2, 0.3, 0.4];
const QUICK_SHARES: [f64; 2] = [0.06, 0.1];
const QUICK_POLICIES: [PolicyKind; 3] = [PolicyKind::Optimal, PolicyKind::Column, PolicyKind::Chunk];
/// How often each of the 22 queries runs before the first placement, and in a round.
const SEEN: usize = 10;
const MEASURED: usize = 4;
/// The thesis' values: policy, share, and points of latency above placement by segments.
const THESIS: [(PolicyKind, f64, f64); 2] = [(PolicyKind::Column, 0.1, 7.0), (PolicyKind::Chunk, 0.06, 16.0)];

/// Adds one row per budget and two rows for the thesis' figures; prints a table and draws a plot of all policies.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    tenants::check_scale(scale)?;
    let data = Tenants::new(&bench.data_dir, scale);
    if !data.store().is_dir() {
        eprintln!("  making ten tenants' TPC-H of scale {scale} together");
        bench.prepare(Workload::Tenants, scale)?;
    }
    let (shares, policies): (&[f64], &[PolicyKind]) =
        if bench.quick { (&QUICK_SHARES, &QUICK_POLICIES) } else { (&SHARES, &PolicyKind::BY_TIER) };
    let seen = operations(bench.seed, if bench.quick { 2 } else { SEEN })?;
    let mut all = Vec::new();
    for policy in policies {
        all.push(Contender::start(bench, *policy, false, StoreClone::from_store(&data.store())?, &seen)?);
    }
    // Measure other queries than those that decided the placement, and the same ones for all policies and budgets.
    let queries = operations(bench.seed + 1, if bench.quick { 1 } else { MEASURED })?;
    let (optimal, _) = all.split_at_mut(1);
    let rows = contest::measure(bench, optimal, &queries, 1.0)?;
    let full_ms = optimal.first().map_or(0.0, Contender::median_ms);
    let mut curves: Vec<Vec<(f64, f64)>> = vec![Vec::new(); all.len()];
    println!("  {:<8}{:<10}{:>12}{:>12}{:>14}", "in DRAM", "policy", "mean", "to all", "cold MB/query");
    for share in shares {
        if contest::measure(bench, &mut all, &queries, *share)? != rows {
            return Err(Error::failed(format!("at a share of {share} a query returns another number of rows")));
        }
        for (one, curve) in all.iter().zip(&mut curves) {
            curve.push((share * 100.0, one.median_ms() / full_ms));
            println!(
                "  {:<8}{:<10}{:>9.2} ms{:>12.3}{:>14.2}",
                format!("{:.0} %", share * 100.0),
                one.policy.name(),
                one.median_ms() / queries.len() as f64,
                one.median_ms() / full_ms,
                one.cold_bytes / queries.len() as f64 / 1e6
            );
        }
        contest::add(bench, &all, *share, json!({ "scale": scale, "all_in_dram_ms": full_ms }));
        add_thesis(bench, scale, *share, full_ms, &all);
    }
    let curves = all.iter().map(|one| one.policy.name()).zip(curves).collect();
    draw(bench, curves);
    Ok(())
}

/// Requests for queries of random tenants.
fn operations(seed: u64, times: usize) -> Result<Vec<String>> {
    let drawn = tenants::draw(&mut StdRng::seed_from_u64(seed), times);
    let text = |(tenant, number): (i8, usize)| {
        let sql = tenants::query(tenant, number).ok_or_else(|| Error::failed("there are 22 queries"))?;
        Ok(format!("sql {sql}"))
    };
    drawn.into_iter().map(text).collect()
}

/// Adds rows for the thesis' distances from placement by segments, if it has one at this budget.
fn add_thesis(bench: &mut Bench, scale: f64, share: f64, full_ms: f64, all: &[Contender]) {
    let Some((optimal, others)) = all.split_first() else { return };
    for (policy, at, points) in THESIS.into_iter().filter(|(_, at, _)| *at == share) {
        let Some(other) = others.iter().find(|other| other.policy == policy) else { continue };
        let points_of = |(ours, theirs): (f64, f64)| (theirs - ours) / full_ms * 100.0;
        let values: Vec<f64> = optimal.paired_ms(other).map(points_of).collect();
        bench.add(Finding {
            sides: ("placement by segments", "placement by whole columns or chunks"),
            what: &format!("{:.0} %: points below {}", at * 100.0, policy.name()),
            values: &values,
            target: Target::above(0.0, points),
            params: json!({ "scale": scale, "unit": "points of the all-in-DRAM latency", "thesis_on_nvm": points }),
        });
    }
}

fn draw(bench: &mut Bench, curves: Vec<(&str, Vec<(f64, f64)>)>) {
    // The thesis gives distances from placement by segments only.
    let ours = |share: f64| curves.first()?.1.iter().find(|(at, _)| *at == share * 100.0).map(|(_, time)| *time);
    let thesis = THESIS.into_iter().filter_map(|(policy, share, points)| {
        let name = format!("{}: ours + {points:.0} (thesis)", policy.name());
        Some(Series::reported(&name, vec![(share * 100.0, ours(share)? + points / 100.0)]))
    });
    let measured = curves.iter().map(|(name, curve)| Series::measured(name, curve.clone()));
    let series: Vec<Series> = measured.chain(thesis).collect();
    let x = Axis::linear("% of all bytes in DRAM");
    let y = Axis::linear("mean latency / all in DRAM");
    bench.draw("Ten tenants with binomial shares (compare Dreseler 2021, figure 7.6)", plot::svg(&x, &y, &series));
}
