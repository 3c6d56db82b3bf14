//! Restart: from the start of a process until its first query over cold data has answered, for ten times the data.

use std::time::Instant;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::Result;
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;

const FIRST_QUERY: &str = "sql SELECT l_orderkey, l_comment FROM lineitem LIMIT 1";

/// Restarts on a tenth of the data and on all of it, in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let large = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 10.0 });
    let small = large / 10.0;
    let stores = (bench.dataset(large)?.clone_store()?, bench.dataset(small)?.clone_store()?);
    let (name_a, name_b) = (format!("scale {large}"), format!("scale {small}"));
    restart(bench, &stores.0, &name_a)?;
    restart(bench, &stores.1, &name_b)?;
    let (mut ratios, mut a_ms, mut b_ms) = (Vec::new(), Vec::new(), Vec::new());
    while bench.another(ratios.len()) {
        let (a, b) = (restart(bench, &stores.0, &name_a)?, restart(bench, &stores.1, &name_b)?);
        ratios.push(a / b);
        a_ms.push(a);
        b_ms.push(b);
    }
    bench.add(Finding {
        sides: (&name_a, &name_b),
        what: "start to first answer",
        values: &ratios,
        target: Target::below(2.0, 1.0),
        params: json!({ "scale_a": large, "scale_b": small, "ms_a": median(&a_ms), "ms_b": median(&b_ms) }),
    });
    Ok(())
}

fn restart(bench: &mut Bench, store: &StoreClone, name: &str) -> Result<f64> {
    let start = Instant::now();
    let mut child = Child::start(name, &SideSpec::terrace(store.path(), bench.threads))?;
    let first = child.ask(FIRST_QUERY)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let sample = Sample::new(ms).with("open_ms", child.ready.ms).with("query_ms", first.ms);
    bench.keep(name, "restart", sample);
    Ok(ms)
}
