//! The placement solver: milliseconds and proven gap in per cent, held against fixed limits, and eight options a segment
//! held against four.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::side::SideSpec;

/// Options of a segment: four tiers, or those with forms.
const OPTIONS: [usize; 2] = [4, 8];

/// Solves 100 k segments, 1 M segments, and 1 M again after one heat in a hundred changed, with the second bound of each; and
/// the same with eight options a segment, held against four.
pub fn run(bench: &mut Bench) -> Result<()> {
    let gap = Target::below(0.02, 0.005);
    let sizes = [
        (100_000, vec![("solve", Target::below(200.0, 50.0)), ("certify", Target::OPEN)]),
        (
            1_000_000,
            vec![
                ("solve", Target::below(2000.0, 500.0)),
                ("certify", Target::OPEN),
                ("resolve", Target::below(200.0, 50.0)),
            ],
        ),
    ];
    for (segments, ops) in sizes {
        let [mut four, mut eight] = children(segments)?;
        for (op, time) in ops {
            four.ask(op)?;
            eight.ask(op)?;
            let (mut times, mut gaps, mut ratios, mut wide_gaps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            while bench.wants_another_round(times.len()) {
                let sample = bench.ask(&mut four, op)?;
                let wide = bench.ask(&mut eight, op)?;
                times.push(sample.ms);
                gaps.push(sample.value("gap") * 100.0);
                ratios.push(wide.ms / sample.ms);
                wide_gaps.push(wide.value("gap") * 100.0);
            }
            let size = if segments == 100_000 { "100 k" } else { "1 M" };
            let verb = if op == "resolve" { "re-solve" } else { op };
            let ratio = if op == "certify" { Target::OPEN } else { Target::below(2.0, 1.5) };
            let findings = [
                ("clock", format!("{verb} {size} x 4, ms"), &times, time, 4, "ms"),
                ("bound", format!("{verb} {size} x 4, gap %"), &gaps, gap, 4, "%"),
                ("4 options", format!("{verb} {size} x 8, time"), &ratios, ratio, 8, "ratio"),
                ("bound", format!("{verb} {size} x 8, gap %"), &wide_gaps, gap, 8, "%"),
            ];
            for (against, what, values, target, options, unit) in findings {
                let params = json!({ "segments": segments, "options": options, "unit": unit });
                bench.add(Finding { sides: ("solver", against), what: &what, values, target, params });
            }
        }
    }
    Ok(())
}

/// A child for each number of options.
fn children(segments: usize) -> Result<[Child; 2]> {
    let [four, eight] = OPTIONS.map(|options| Child::start("solver", &SideSpec::Solver { segments, options }));
    Ok([four?, eight?])
}
