//! The placement solver: milliseconds and proven gap in per cent, held against fixed limits.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::side::SideSpec;

/// Solves 100 k segments, 1 M segments, and 1 M again after one heat in a hundred changed.
pub fn run(bench: &mut Bench) -> Result<()> {
    let gap = Target::below(0.02, 0.005);
    let sizes = [
        (100_000, vec![("solve", Target::below(200.0, 50.0))]),
        (1_000_000, vec![("solve", Target::below(2000.0, 500.0)), ("resolve", Target::below(200.0, 50.0))]),
    ];
    for (segments, ops) in sizes {
        let mut child = Child::start("solver", &SideSpec::Solver { segments })?;
        for (op, time) in ops {
            child.ask(op)?;
            let mut times = Vec::new();
            let mut gaps = Vec::new();
            while bench.wants_another_round(times.len()) {
                let sample = bench.ask(&mut child, op)?;
                times.push(sample.ms);
                gaps.push(sample.value("gap") * 100.0);
            }
            let size = if segments == 100_000 { "100 k" } else { "1 M" };
            let params = |unit| json!({ "segments": segments, "tiers": 4, "unit": unit });
            let verb = if op == "solve" { "solve" } else { "re-solve" };
            bench.add(Finding {
                sides: ("solver", "clock"),
                what: &format!("{verb} {size} x 4, ms"),
                values: &times,
                target: time,
                params: params("ms"),
            });
            bench.add(Finding {
                sides: ("solver", "bound"),
                what: &format!("{verb} {size} x 4, gap %"),
                values: &gaps,
                target: gap,
                params: params("%"),
            });
        }
    }
    Ok(())
}
