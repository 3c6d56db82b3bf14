//! Tiers and forms of copies chosen together, against other ways to choose them, at the budgets of P5 (E4).
//!
//! The 22 queries of TPC-H run once on a side whose DRAM is empty, and their counted reads are the heat. Every way then plans by
//! this heat within the same budget, and the times compared are those that the calibrated cost model expects of the placements:
//! counted work, the same in every run on a machine. A row is the ratio of the joint choice to the best other way. The others: one
//! form for all copies, forms before tiers (Boissier 2021), one tier and form per column (Mosaic, Vogel 2020), plain alone and
//! packed alone.

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::tier::codec::FormChoice;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::plot::{self, Axis, Series};
use crate::side::SideSpec;
use crate::side::terrace::APPROACHES;
use crate::tpch;

/// Shares of all bytes in the plain form, as in P5.
const SHARES: [f64; 7] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
const QUICK_SHARES: [f64; 2] = [0.05, 0.1];
/// The joint choice may do what each other way does, so it may be worse only by what the solver leaves open.
const AGAINST_OTHERS: Target = Target::below(1.001, 0.95);

/// Adds a row per budget, prints a table, and draws a plot of all ways.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let store = bench.dataset(scale)?.clone_store()?;
    let spec = SideSpec::Terrace {
        store: store.path(),
        threads: bench.threads,
        nvm: false,
        policy: PolicyKind::Optimal,
        form: FormChoice::Auto,
    };
    let mut child = Child::start("Terrace", &spec)?;
    for query in tpch::names() {
        child.ask(&query)?;
    }
    let mut curves: Vec<(&str, Vec<(f64, f64)>)> = APPROACHES.map(|name| (name, Vec::new())).into();
    println!("  {:<8}{:<12}{:>12}{:>10}{:>12}{:>12}", "in DRAM", "way", "reads", "to joint", "DRAM MB", "packed MB");
    for share in shares {
        let found = bench.ask(&mut child, &format!("compare {share}"))?;
        let us = |name: &str| found.value(&format!("{name} us"));
        let [joint, others @ ..] = APPROACHES;
        let best = others.into_iter().min_by(|a, b| us(a).total_cmp(&us(b))).unwrap_or(joint);
        for (name, curve) in &mut curves {
            let megabytes = |what: &str| found.value(&format!("{name} {what}")) / 1e6;
            println!(
                "  {:<8}{name:<12}{:>9.1} ms{:>10.3}{:>12.1}{:>12.1}",
                format!("{:.0} %", share * 100.0),
                us(name) / 1e3,
                us(name) / us(joint),
                megabytes("bytes"),
                megabytes("packed bytes"),
            );
            curve.push((share * 100.0, us(name) / 1e3));
        }
        let mut params = json!({ "scale": scale, "share": share, "plain_bytes": found.value("total_bytes") });
        if let Some(params) = params.as_object_mut() {
            params.insert("joint_bound_us".to_owned(), json!(found.value("joint bound us")));
            if *share == 0.0 {
                params.insert("undecided".to_owned(), json!("nothing has room in DRAM"));
            }
            params.extend(APPROACHES.map(|name| (format!("{}_us", name.replace(' ', "_")), json!(us(name)))));
        }
        bench.add(Finding {
            sides: (joint, best),
            what: &format!("{:.0} % in DRAM, against {best}", share * 100.0),
            values: &[us(joint) / us(best)],
            target: AGAINST_OTHERS,
            params,
        });
    }
    let series: Vec<Series> = curves.into_iter().map(|(name, curve)| Series::measured(name, curve)).collect();
    let x = Axis::linear("% of all plain bytes in DRAM");
    let y = Axis::linear("expected reading time, ms");
    bench.draw("TPC-H, the rest on SSD: tiers and forms chosen together and otherwise", plot::svg(&x, &y, &series));
    Ok(())
}
