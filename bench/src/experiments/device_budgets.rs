//! Images in the memory of a device placed by every policy, at budgets from none to all bytes that kernels could read (G6).
//!
//! The 22 queries of TPC-H run once on a side with a host device, and the reads that its kernels could have made are counted with
//! all others. Every policy then plans by this heat, and the times compared are those that the cost model expects of the
//! placements. Nothing is copied to the device. Its rates are those of a typical GPU ([`DeviceRates::TYPICAL`]), which the
//! processor only stands for: a row says how well the memory is used, not how fast a GPU is.
//!
//! [`DeviceRates::TYPICAL`]: terrace_tier_store::tier::hbm::DeviceRates::TYPICAL

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::SideSpec;
use crate::side::terrace::DEVICE_POLICIES;
use crate::tpch;

/// Shares of the bytes of all images that some scan could use.
const SHARES: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0];
const QUICK_SHARES: [f64; 2] = [0.25, 0.5];
/// As P5: never worse than the best by more than 3 %.
const AGAINST_OTHERS: Target = Target::below(1.03, 1.0);

/// Adds a row per budget, prints a table, and draws a plot of all policies.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let store = bench.dataset(scale)?.clone_store()?;
    let spec = SideSpec::Images { store: store.path(), threads: bench.threads };
    let mut child = Child::start("Terrace", &spec)?;
    for query in tpch::names() {
        child.ask(&query)?;
    }
    let names = DEVICE_POLICIES.map(|policy| policy.name());
    let mut curves: Vec<(&str, Vec<(f64, f64)>)> = names.map(|name| (name, Vec::new())).into();
    println!("  {:<10}{:<10}{:>12}{:>12}{:>12}", "on device", "policy", "reads", "to optimal", "images MB");
    for share in shares {
        let found = bench.ask(&mut child, &format!("images {share}"))?;
        let hot_bytes = found.value("hot_bytes");
        if hot_bytes <= 0.0 {
            return Err(Error::failed("no read was counted that kernels could have made"));
        }
        let us = |name: &str| found.value(&format!("{name} us"));
        let [optimal, others @ ..] = names;
        let best = others.into_iter().min_by(|a, b| us(a).total_cmp(&us(b))).unwrap_or(optimal);
        for (name, curve) in &mut curves {
            println!(
                "  {:<10}{name:<10}{:>9.1} ms{:>12.3}{:>12.1}",
                format!("{:.0} %", share * 100.0),
                us(name) / 1e3,
                us(name) / us(optimal),
                found.value(&format!("{name} bytes")) / 1e6,
            );
            curve.push((share * 100.0, us(name) / 1e3));
        }
        let mut params = json!({
            "scale": scale, "share": share, "hot_bytes": hot_bytes, "emulated": found.value("emulated") > 0.0,
            "optimal_bound_us": found.value(&format!("{optimal} bound us")),
        });
        if let Some(params) = params.as_object_mut() {
            params.extend(names.map(|name| (format!("{name}_us"), json!(us(name)))));
        }
        bench.add(Finding {
            sides: (optimal, best),
            what: &format!("{:.0} % of the hot bytes on the device, against {best}", share * 100.0),
            values: &[us(optimal) / us(best)],
            target: AGAINST_OTHERS,
            params,
        });
    }
    let series: Vec<Series> = curves.into_iter().map(|(name, curve)| Series::measured(name, curve)).collect();
    let x = Axis::linear("% of the bytes that kernels could read, on the device (emulated; rates assumed)");
    let y = Axis::linear("expected reading time, ms");
    bench.draw("TPC-H, images on a device by policy", plot::svg(&x, &y, &series));
    Ok(())
}
