//! TPC-H with a tenth of the bytes in DRAM, the rest on SSD or on slowed memory.
//!
//! On SSD the lower bound of a query's time is its time in DRAM or the time in which the device delivers its cold
//! bytes, whichever is longer. Queries are compared with this bound. The device is measured in the same run, between
//! the rounds, on the same files.

use serde_json::json;

use super::queries::{self, Placed, Summary};
use crate::bench::{Bench, Target};
use crate::child::Child;
use crate::error::{Error, Result};
use crate::side::SideSpec;
use crate::statistics::median;

const SHARE: f64 = 0.1;

/// Measures with the rest on SSD.
pub fn ssd(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let mut tiered = Placed::start(bench, "Terrace, 10 % in DRAM", scale, SHARE, false)?;
    let mut dram = Placed::start(bench, "Terrace, all in DRAM", scale, 1.0, false)?;
    let id = tiered.child.ask("table lineitem")?.value("id");
    let folder = bench.dataset(scale)?.store().join("ssd").join(format!("t{id}"));
    let mut device = Child::start("raw io_uring", &SideSpec::Device { folder })?;
    let mut speeds = Vec::new();
    let measure = |bench: &mut Bench, device: &mut Child, speeds: &mut Vec<f64>| {
        let sample = bench.ask(device, "sequential 1048576 8")?;
        speeds.push(sample.value("bytes") / sample.ms);
        Ok::<_, Error>(())
    };
    measure(bench, &mut device, &mut speeds)?;
    speeds.clear();
    measure(bench, &mut device, &mut speeds)?;
    let rounds = queries::rounds(bench, &mut tiered.child, &mut dram.child)?;
    measure(bench, &mut device, &mut speeds)?;
    queries::check_resident(&rounds, |(_, b)| b)?;
    let bytes_per_ms = median(&speeds);
    let params = json!({
        "scale": scale, "threads": bench.threads, "total_bytes": tiered.total_bytes,
        "dram_bytes": tiered.placed.value("dram_bytes"), "device_mb_per_s": bytes_per_ms / 1e3,
    });
    let each = Target::below(1.25, 1.05);
    let held = "max(all in DRAM, cold bytes / device)";
    let summary = |sides, label| Summary { sides, label, mean: each, each, params: params.clone() };
    let bound = summary((tiered.child.name(), held), "");
    queries::add_rows(bench, &bound, &rounds, |a, b| a.ms / b.ms.max(a.value("cold_bytes") / bytes_per_ms));
    let plain = summary((tiered.child.name(), dram.child.name()), "plain ");
    queries::add_rows(bench, &plain, &rounds, |a, b| a.ms / b.ms);
    Ok(())
}

/// Measures with the rest on emulated NVM with Optane's bandwidth and latency, except for columns that the solver finds
/// cheaper to read from SSD: small or narrow ones, on a fast disk. `cold_bytes` of the rows counts these.
pub fn nvm(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let mut tiered = Placed::start(bench, "Terrace, 10 % in DRAM, rest on NVM", scale, SHARE, true)?;
    let mut dram = Placed::start(bench, "Terrace, all in DRAM", scale, 1.0, false)?;
    let rounds = queries::rounds(bench, &mut tiered.child, &mut dram.child)?;
    queries::check_resident(&rounds, |(_, b)| b)?;
    let params = json!({
        "scale": scale, "threads": bench.threads, "bandwidth_ratio": 0.35, "latency_ratio": 5,
        "dram_bytes": tiered.placed.value("dram_bytes"), "nvm_bytes": tiered.placed.value("nvm_bytes"),
    });
    let each = Target::below(1.1, 1.03);
    let sides = (tiered.child.name(), dram.child.name());
    queries::add_rows(bench, &Summary { sides, label: "", mean: each, each, params }, &rounds, |a, b| a.ms / b.ms);
    Ok(())
}
