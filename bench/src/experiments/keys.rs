//! The cost of enforcing a primary key: bulk loads and inserts, with keys in rising and in random order.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::Result;
use crate::side::SideSpec;
use crate::statistics::median;

/// Measures all orders of keys. Rising keys are outside the bounds of all chunks, so few keys are compared; random keys
/// are within the bounds of all chunks.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.02 } else { 1.0 });
    let many = (10e6 * scale) as u64;
    let some = (1e6 * scale) as u64;
    for (order, random, cold) in [("rising", false, false), ("random", true, false), ("random, on disk", true, true)] {
        let folder = StoreClone::empty(bench.scratch("keys"))?;
        let side = |name: &'static str, enforced: bool| {
            let store = folder.path().join(if enforced { "enforced" } else { "declared" });
            Child::start(name, &SideSpec::Keys { store, enforced, random, cold })
        };
        let mut sides = (side("key enforced", true)?, side("key declared", false)?);
        let ops = [
            (format!("load {many}"), format!("{order}: load of {many} rows"), 1),
            (format!("load {some}"), format!("{order}: {some} more"), bench.runs),
            (insert(bench, 1000), format!("{order}: inserts of 1000"), bench.runs),
            (insert(bench, 1), format!("{order}: inserts of 1"), bench.runs),
        ];
        for (op, what, runs) in ops {
            compare(bench, &mut sides, &op, &what, runs, random)?;
        }
    }
    Ok(())
}

fn insert(bench: &Bench, rows: u32) -> String {
    format!("insert {rows} {}", if bench.quick { 60 } else { 1000 })
}

fn compare(
    bench: &mut Bench,
    sides: &mut (Child, Child),
    op: &str,
    what: &str,
    runs: usize,
    random: bool,
) -> Result<()> {
    let found = bench.in_turn(runs, |bench| {
        let a = bench.ask(&mut sides.0, op)?;
        Ok((a.per_s("rows"), bench.ask(&mut sides.1, op)?.per_s("rows")))
    })?;
    let target = if random { Target::above(0.2, 0.5) } else { Target::above(0.7, 0.95) };
    let params = json!({ "rows_per_s_a": median(&found.a), "rows_per_s_b": median(&found.b) });
    bench.add(Finding { sides: (sides.0.name(), sides.1.name()), what, values: &found.ratios, target, params });
    Ok(())
}
