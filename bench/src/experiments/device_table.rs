//! The devices under Terrace: reads of tuples of 1 KiB and durable writes of pages of 4 KiB, in order and at random, one at a time.
//!
//! Ma et al. 2016 (slide "Storage technologies"): ten million tuples of 1 KB, with synchronization, on disks with an arm, shingled
//! disks, SSDs, 3D XPoint and NVRAM. The slide is a chart without numbers. Here: the disk as it is and throttled to the
//! rates of a SATA SSD and of a disk with an arm, by reads and writes around the page cache, because a throttle does not limit
//! others, nor the file system's journal; DRAM, and NVM emulated by slowed memory, by the costs that Terrace measures of its
//! tiers. A throttle limits rates and adds no latency. Devices of other kinds are not emulated.

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::tier::codec::FormChoice;

use super::access;
use crate::bars::{self, Bar};
use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;

/// Devices that are this disk, some slower, with bytes/s and operations/s.
pub(super) const DISKS: [(&str, Option<(u64, u64)>); 3] = [
    ("disk as it is", None),
    ("SATA SSD", Some((500_000_000, 75_000))),
    ("disk with an arm", Some((150_000_000, 150))),
];
/// Tiers of memory, with their names in the store.
const MEMORY: [(&str, &str); 2] = [("DRAM", "dram"), ("NVM, emulated", "nvm")];
const TUPLE_BYTES: u64 = 1024;
const PAGE_BYTES: u64 = 4096;
const MS: u64 = 2_000;
const QUICK_MS: u64 = 200;
/// Columns of the table.
const COLUMNS: [&str; 4] = ["reads in order", "random reads", "durable appends", "durable random writes"];

/// Operations/s of a device per round, by column; empty where they are not measured.
struct Device {
    name: &'static str,
    simulated: Option<String>,
    /// Bytes of a read: a tuple, or a block of the device where it reads no less.
    read_bytes: u64,
    per_s: [Vec<f64>; COLUMNS.len()],
}

impl Device {
    fn new(name: &'static str, simulated: Option<String>) -> Self {
        Self { name, simulated, read_bytes: TUPLE_BYTES, per_s: [const { Vec::new() }; COLUMNS.len()] }
    }

    fn add(&mut self, column: usize, per_s: f64) {
        if let Some(values) = self.per_s.get_mut(column) {
            values.push(per_s);
        }
    }
}

/// Operations/s of a tier of memory for tuples, in order (`pattern` = sequential) or at random.
fn tuples_per_s(costs: &Sample, tier: &str, pattern: &str) -> f64 {
    let value = |what: &str| costs.value(&format!("{tier}/{pattern}/{what}"));
    let bytes_us = TUPLE_BYTES as f64 / value("mb_per_s");
    // Reads in order pay the latency once for all of them.
    let latency_us = if pattern == "sequential" { 0.0 } else { value("us") };
    1e6 / (latency_us + bytes_us)
}

/// Measures all devices, the disks in turn with their throttles.
pub fn run(bench: &mut Bench) -> Result<()> {
    let mut devices = memory(bench)?;
    for (name, limit) in DISKS {
        let group = limit.map(|(bytes_per_s, per_s)| Cgroup::disk_both_ways(&bench.data_dir, bytes_per_s, per_s));
        let group = match group.transpose() {
            Ok(group) => group,
            Err(Error::Missing(why)) => {
                bench.leave_out(name, &why);
                continue;
            }
            Err(error) => return Err(error),
        };
        let simulated =
            limit.map(|(bytes_per_s, per_s)| format!("throttled to {bytes_per_s} bytes/s, {per_s} operations/s"));
        let mut device = Device::new(name, simulated);
        disk(bench, &mut device, group.as_ref())?;
        devices.push(device);
    }
    add(bench, &devices);
    Ok(())
}

/// The memory tiers of a store, by its own measurements.
fn memory(bench: &mut Bench) -> Result<Vec<Device>> {
    let scale = if bench.quick { 0.02 } else { 0.1 };
    let store = bench.dataset(scale)?.clone_store()?;
    let spec = SideSpec::Terrace {
        store: store.path(),
        threads: bench.threads,
        nvm: true,
        policy: PolicyKind::Optimal,
        form: FormChoice::Plain,
    };
    let mut side = Child::start("Terrace, its tiers", &spec)?;
    // An epoch with room in DRAM measures the tiers.
    side.ask("place 0.5")?;
    side.ask("sql ALTER SYSTEM CALIBRATE TIERS")?;
    let costs = bench.ask(&mut side, "costs")?;
    let device = |(name, tier): (&'static str, &str)| {
        let simulated =
            (tier == "nvm").then(|| "memory at 0.35 of the bandwidth and 5 times the latency of DRAM".to_owned());
        let mut device = Device::new(name, simulated);
        device.add(0, tuples_per_s(&costs, tier, "sequential"));
        device.add(1, tuples_per_s(&costs, tier, "random"));
        device
    };
    Ok(MEMORY.map(device).into())
}

/// One disk, under a limit.
fn disk(bench: &mut Bench, device: &mut Device, limit: Option<&Cgroup>) -> Result<()> {
    let (file, _) = access::make_file(bench)?;
    let folder = StoreClone::empty(bench.scratch("device-table"))?;
    let mut reads = Child::start_limited(device.name, limit, &SideSpec::Access { file })?;
    let mut writes = Child::start_limited(device.name, limit, &SideSpec::Disk { folder: folder.path() })?;
    let ms = if bench.quick { QUICK_MS } else { MS };
    let read = |pattern: &str, bytes: u64, ms: u64| format!("read pread kept {pattern} {bytes} 1 1 {ms}");
    // Devices of blocks of 4 KiB read no less.
    let bytes = if reads.ask(&read("random", TUPLE_BYTES, 1)).is_ok() { TUPLE_BYTES } else { PAGE_BYTES };
    device.read_bytes = bytes;
    let mut done = 0;
    while bench.wants_another_round(done) {
        for (column, pattern) in ["sequential", "random"].into_iter().enumerate() {
            let sample = bench.ask(&mut reads, &read(pattern, bytes, ms))?;
            device.add(column, sample.per_s("reads"));
        }
        let sample = bench.ask(&mut writes, &format!("appends {ms}"))?;
        device.add(2, sample.per_s("appends"));
        let sample = bench.ask(&mut writes, &format!("updates {ms}"))?;
        device.add(3, sample.per_s("updates"));
        done += 1;
    }
    Ok(())
}

fn add(bench: &mut Bench, devices: &[Device]) {
    println!("  {:<20}{:>18}{:>18}{:>18}{:>24}", "operations/s", COLUMNS[0], COLUMNS[1], COLUMNS[2], COLUMNS[3]);
    let mut bars = Vec::new();
    for Device { name, simulated, read_bytes, per_s } in devices {
        let [a, b, c, d] = per_s.each_ref().map(|values| match values.is_empty() {
            true => "-".to_owned(),
            false => format!("{:.0}", median(values)),
        });
        println!("  {name:<20}{a:>18}{b:>18}{c:>18}{d:>24}");
        for (what, values) in COLUMNS.iter().zip(per_s).filter(|(_, values)| !values.is_empty()) {
            let us = 1e6 / median(values);
            bars.push(Bar { name: format!("{name}: {what}"), value: Some(us.log10().max(0.0)), reported: None });
            let params = json!({
                "unit": "operations/s", "us_per_operation": us, "read_bytes": read_bytes, "write_bytes": PAGE_BYTES, "simulated": simulated,
                "disk": bench.environment().device, "paper": "a chart without numbers",
            });
            bench.add(Finding {
                sides: (*name, "one operation at a time"),
                what: &format!("{name}: {what}"),
                values,
                target: Target::OPEN,
                params,
            });
        }
    }
    let label = "powers of ten of microseconds per operation";
    bench.draw("Devices (compare Ma et al. 2016, storage technologies)", bars::svg(label, "", &bars));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_of_memory_pay_latency_only_at_random() {
        let costs = Sample::default()
            .with("nvm/sequential/us", 5.0)
            .with("nvm/sequential/mb_per_s", 1024.0)
            .with("nvm/random/us", 3.0)
            .with("nvm/random/mb_per_s", 1024.0);
        assert_eq!(tuples_per_s(&costs, "nvm", "sequential"), 1e6);
        assert_eq!(tuples_per_s(&costs, "nvm", "random"), 250_000.0);
    }

    #[test]
    fn columns_that_are_not_measured_stay_empty() {
        let mut device = Device::new("DRAM", None);
        device.add(1, 5.0);
        device.add(COLUMNS.len(), 7.0);
        assert_eq!(device.per_s.each_ref().map(Vec::len), [0, 1, 0, 0]);
    }
}
