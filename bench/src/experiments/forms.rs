//! TPC-H with columns in memory in the packed form, against the plain one (E2, E3).

use serde_json::json;
use terrace_tier_store::tier::codec::Form;

use super::queries::{self, Placed, Summary};
use crate::bench::{Bench, Target};
use crate::error::Result;

const SHARE: f64 = 0.1;

/// Measures with all segments in DRAM.
pub fn memory(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    measure(bench, scale, 1.0, Target::below(1.02, 0.9))
}

/// Measures with DRAM for a tenth of the bytes in the plain form.
pub fn tenth(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    measure(bench, scale, SHARE, Target::below(0.85, 0.7))
}

fn measure(bench: &mut Bench, scale: f64, share: f64, mean: Target) -> Result<()> {
    let mut packed = Placed::in_form(bench, "Terrace, packed", scale, share, Form::Packed)?;
    let mut plain = Placed::in_form(bench, "Terrace, plain", scale, share, Form::Plain)?;
    let rounds = queries::rounds(bench, &mut packed.child, &mut plain.child)?;
    if share >= 1.0 {
        queries::check_resident(&rounds, |(a, _)| a)?;
        queries::check_resident(&rounds, |(_, b)| b)?;
    }
    let params = json!({
        "scale": scale, "threads": bench.threads, "plain_bytes": plain.total_bytes,
        "dram_bytes_a": packed.placed.value("dram_bytes"), "dram_bytes_b": plain.placed.value("dram_bytes"),
    });
    let sides = (packed.child.name(), plain.child.name());
    let summary = Summary { sides, label: "", mean, each: Target::OPEN, params };
    queries::add_rows(bench, &summary, &rounds, |a, b| a.ms / b.ms);
    Ok(())
}
