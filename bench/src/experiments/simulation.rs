//! Placement policies on virtual time: [`terrace_simulate`], all workloads by all policies.
//!
//! Regret is the reading time of a policy above that of a clairvoyant policy, which has the best placement for every
//! epoch. A row is the ratio of the reading time under `optimal` to that under the best other policy.

use std::time::Instant;

use serde_json::json;
use terrace_simulate::{Course, Outcome, Scenario};
use terrace_tier_store::placement::{MergeKind, PolicyKind};

use crate::bench::{Bench, Finding, Target};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::statistics::median;

/// As P5: never worse than the best by more than 3 %.
const AGAINST_OTHERS: Target = Target::below(1.03, 1.0);
const EPOCHS: u32 = 400;
const QUICK_EPOCHS: u32 = 60;

/// Simulates all workloads; prints one table per workload with a line per policy.
pub fn run(bench: &mut Bench) -> Result<()> {
    let epochs = if bench.quick { QUICK_EPOCHS } else { EPOCHS };
    for scenario in Scenario::ALL {
        head(scenario.name());
        let mut all: Vec<(PolicyKind, Vec<f64>)> = Vec::new();
        for policy in PolicyKind::BY_TIER {
            let mut ratios = Vec::new();
            let mut seed = 0;
            while bench.wants_another_round(ratios.len()) {
                seed += 1;
                let course = Course::new(scenario, seed, epochs).map_err(fault)?;
                let start = Instant::now();
                let outcome = terrace_simulate::run(&course, policy).map_err(fault)?;
                let seconds = start.elapsed().as_secs_f64();
                record(bench, scenario.name(), policy.name(), &outcome, seconds);
                if seed == 1 {
                    line(policy.name(), &outcome, f64::from(epochs) / seconds);
                }
                ratios.push(1.0 + outcome.regret());
            }
            all.push((policy, ratios));
        }
        add(bench, scenario.name(), epochs, &all);
        merging(bench, scenario, epochs, &all)?;
    }
    Ok(())
}

/// Simulates `optimal` again, with reads from home that may bring their segments into memory at once. Prints a line per
/// kind of merging, and adds a row of `selective` against `never`.
fn merging(bench: &mut Bench, scenario: Scenario, epochs: u32, all: &[(PolicyKind, Vec<f64>)]) -> Result<()> {
    let Some((policy, never)) = all.first() else { return Ok(()) };
    for (kind, name) in [(MergeKind::Always, "always"), (MergeKind::Selective, "selective")] {
        let mut ratios = Vec::new();
        for seed in 1..=never.len() as u64 {
            let course = Course::new(scenario, seed, epochs).map_err(fault)?;
            let start = Instant::now();
            let outcome = terrace_simulate::run_merging(&course, *policy, kind).map_err(fault)?;
            let seconds = start.elapsed().as_secs_f64();
            record(bench, scenario.name(), &format!("{} merge {name}", policy.name()), &outcome, seconds);
            if seed == 1 {
                line(&format!("+{name}"), &outcome, f64::from(epochs) / seconds);
            }
            ratios.push(1.0 + outcome.regret());
        }
        if kind == MergeKind::Selective {
            let values: Vec<f64> = ratios.iter().zip(never).map(|(merged, never)| merged / never).collect();
            bench.add(Finding {
                sides: ("optimal, merge selective", "optimal, merge never"),
                what: &format!("{}, merge selective", scenario.name()),
                values: &values,
                target: AGAINST_OTHERS,
                params: json!({ "epochs": epochs, "scenario": scenario.name() }),
            });
        }
    }
    Ok(())
}

/// Prints the names of the figures of [`line()`].
pub(super) fn head(name: &str) {
    println!(
        "  {name:<13}{:<10}{:>9}{:>10}{:>8}{:>11}{:>7}{:>10}{:>9}{:>10}",
        "policy", "regret %", "to fixed", "moves", "MB moved", "flips", "unearned", "merged", "epochs/s"
    );
}

/// Prints the outcome of a policy, and the epochs that a second simulated.
pub(super) fn line(policy: &str, outcome: &Outcome, rate: f64) {
    println!(
        "  {:<13}{:<10}{:>9.1}{:>10.1}{:>8}{:>11.1}{:>7}{:>10}{:>9}{rate:>10.0}",
        "",
        policy,
        outcome.regret() * 100.0,
        outcome.regret_to_fixed() * 100.0,
        outcome.moves,
        outcome.moved_bytes as f64 / 1e6,
        outcome.flips,
        outcome.unearned_flips,
        outcome.promoted
    );
}

/// Records the outcome of a policy.
pub(super) fn record(bench: &mut Bench, scenario: &str, policy: &str, outcome: &Outcome, seconds: f64) {
    let sample = Sample::new(seconds * 1e3)
        .with("regret", outcome.regret())
        .with("regret_to_fixed", outcome.regret_to_fixed())
        .with("moves", outcome.moves as f64)
        .with("moved_bytes", outcome.moved_bytes as f64)
        .with("flips", outcome.flips as f64)
        .with("unearned_flips", outcome.unearned_flips as f64)
        .with("promoted", outcome.promoted as f64)
        .with("made_room", outcome.made_room as f64);
    bench.record(policy, scenario, sample);
}

/// Adds the row; each seed is a run.
pub(super) fn add(bench: &mut Bench, scenario: &str, epochs: u32, all: &[(PolicyKind, Vec<f64>)]) {
    let Some((optimal, others)) = all.split_first() else { return };
    let Some(best) = others.iter().min_by(|a, b| median(&a.1).total_cmp(&median(&b.1))) else { return };
    let values: Vec<f64> = optimal.1.iter().zip(&best.1).map(|(ours, theirs)| ours / theirs).collect();
    bench.add(Finding {
        sides: (optimal.0.name(), best.0.name()),
        what: &format!("{scenario}, against {}", best.0.name()),
        values: &values,
        target: AGAINST_OTHERS,
        params: json!({ "epochs": epochs, "scenario": scenario }),
    });
}

/// A fault of the simulation.
pub(super) fn fault(error: terrace_tier_store::Error) -> Error {
    Error::failed(error.to_string())
}
