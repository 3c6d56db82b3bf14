//! TPC-H with columns in memory in the packed form, against the plain one (E2, E3), and with forms that placement chooses.

use serde_json::json;
use terrace_tier_store::tier::codec::FormChoice;

use super::queries::{self, Placed, Summary};
use crate::bench::{Bench, Target};
use crate::error::Result;

const SHARE: f64 = 0.1;

/// Measures with all segments in DRAM.
pub fn memory(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    measure(bench, scale, 1.0, [FormChoice::Packed, FormChoice::Plain], Target::below(1.02, 0.9))
}

/// Measures with DRAM for a tenth of the bytes in the plain form.
pub fn tenth(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    measure(bench, scale, SHARE, [FormChoice::Packed, FormChoice::Plain], Target::below(0.85, 0.7))
}

/// Measures with as much DRAM, the form of each copy chosen with its tier, against all copies packed.
pub fn chosen_tenth(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    measure(bench, scale, SHARE, [FormChoice::Auto, FormChoice::Packed], Target::below(1.02, 0.95))
}

/// Compares two settings of the form by the times of the queries.
fn measure(bench: &mut Bench, scale: f64, share: f64, forms: [FormChoice; 2], mean: Target) -> Result<()> {
    let mut start = |form: FormChoice| Placed::in_form(bench, &format!("Terrace, {form}"), scale, share, form);
    let [a, b] = forms;
    let mut a = start(a)?;
    let mut b = start(b)?;
    let rounds = queries::rounds(bench, &mut a.child, &mut b.child)?;
    if share >= 1.0 {
        queries::check_resident(&rounds, |(a, _)| a)?;
        queries::check_resident(&rounds, |(_, b)| b)?;
    }
    let params = json!({
        "scale": scale, "threads": bench.threads, "plain_bytes": b.total_bytes,
        "dram_bytes_a": a.placed.value("dram_bytes"), "dram_bytes_b": b.placed.value("dram_bytes"),
    });
    let sides = (a.child.name(), b.child.name());
    let summary = Summary { sides, label: "", mean, each: Target::OPEN, params };
    queries::add_rows(bench, &summary, &rounds, |a, b| a.ms / b.ms);
    Ok(())
}
