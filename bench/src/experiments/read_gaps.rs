//! Reads of scattered rows of cold columns, by the longest gap that is read rather than skipped, on the disk as it is
//! and slowed.
//!
//! Ma et al. 2016 (slides "Cold tuple retrieval" and "Configuration comparison") find 1024 KiB blocks best for disks
//! with an arm and 16 KiB for SSDs. Terrace reads pages of 16 KiB and joins near ones; the distance is derived from
//! measurements of the device. A row is the ratio of the time with the measured distance to that with 16 KiB, and to
//! that with the best tried.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::SideSpec;
use crate::statistics::median;

/// The disk as it is, and slowed disks with bytes/s and reads/s.
const SPEEDS: [(&str, Option<(u64, u64)>); 3] =
    [("as it is", None), ("SATA", Some((500_000_000, 75_000))), ("arm", Some((150_000_000, 150)))];
const GAPS: [u64; 6] = [0, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const QUICK_GAPS: [u64; 3] = [0, 16 << 10, 1 << 20];
const USUAL: u64 = 16 << 10;
/// Chunks have 65,536 rows, of which a statement wants about four: one in four pages of a column.
const PARTS_PER_SCALE: f64 = 12.0;
const PARTS: f64 = 200_000.0;
/// Position of "no gap" on a logarithmic axis.
const NONE_KIB: f64 = 4.0;

/// Measures one disk after another.
pub fn run(bench: &mut Bench) -> Result<()> {
    let speeds = if bench.quick { &SPEEDS[..1] } else { &SPEEDS };
    for (name, speed) in speeds {
        let limit =
            match speed.map(|(bytes_per_s, reads_per_s)| Cgroup::disk(&bench.data_dir, bytes_per_s, reads_per_s)) {
                None => None,
                Some(Ok(limit)) => Some(limit),
                Some(Err(Error::Missing(what))) => {
                    bench.leave_out(&format!("on a disk slowed to {name}"), &what);
                    continue;
                }
                Some(Err(error)) => return Err(error),
            };
        one(bench, name, limit.as_ref())?;
    }
    Ok(())
}

fn one(bench: &mut Bench, disk: &str, limit: Option<&Cgroup>) -> Result<()> {
    let scale = bench.scale(1.0);
    let store = bench.dataset(scale)?.clone_store()?;
    // The side starts under the limit, so that it measures the slowed device.
    let mut side = Child::start_limited(
        "Terrace, nothing but the filter's column in DRAM",
        limit,
        &SideSpec::terrace(store.path(), bench.threads),
    )?;
    let measured = side.ask("gap")?.value("bytes") as u64;
    // No query has run yet, so this moves nothing and only sets the budget.
    side.ask("place 0.2")?;
    side.ask("sql ALTER TABLE lineitem PIN COLUMNS (l_partkey) TO dram")?;
    side.ask("sql ALTER TABLE lineitem PIN COLUMNS (l_suppkey, l_extendedprice, l_orderkey) TO ssd")?;
    side.ask("place 0.2")?;
    let mut gaps = if bench.quick { QUICK_GAPS.to_vec() } else { GAPS.to_vec() };
    gaps.push(measured);
    let mut random = StdRng::seed_from_u64(bench.seed);
    let mut found: Vec<(Vec<f64>, Vec<f64>)> = vec![(Vec::new(), Vec::new()); gaps.len()];
    side.ask(&query(&mut random, scale))?;
    while bench.wants_another_round(found.first().map_or(0, |(times, _)| times.len())) {
        let query = query(&mut random, scale);
        let mut rows = None;
        for (gap, (times, bytes)) in gaps.iter().zip(&mut found) {
            side.ask(&format!("gap {gap}"))?;
            let sample = bench.ask(&mut side, &query)?;
            let seen = sample.value("rows");
            let first = *rows.get_or_insert(sample.value("rows"));
            if seen != first {
                return Err(Error::failed(format!("with a gap of {gap} there are {seen} rows, else {first}: {query}")));
            }
            if sample.value("cold_bytes") == 0.0 {
                return Err(Error::failed(format!("nothing is read from disk: {query}")));
            }
            times.push(sample.ms);
            bytes.push(sample.value("cold_bytes") / 1e6);
        }
    }
    println!("  {disk}: {measured} bytes are measured as the longest hole worth reading");
    println!("  {:>12}{:>12}{:>12}", "hole, KiB", "ms", "MB read");
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (gap, (times, bytes)) in gaps.iter().zip(&found) {
        println!("  {:>12.1}{:>12.2}{:>12.2}", *gap as f64 / 1024.0, median(times), median(bytes));
        points.push(((*gap as f64 / 1024.0).max(NONE_KIB), median(times)));
    }
    let auto = points.pop();
    let series = [
        Series::measured("always the same", points),
        Series::measured("as measured of the device", auto.into_iter().collect()),
    ];
    let x = Axis::logarithmic("longest hole that is read through, KiB (none: 4)");
    let y = Axis::linear("ms");
    bench.draw(
        &format!("Scattered rows, disk {disk} (Ma et al. 2016: SSD 16 KiB, arm 1024 KiB)"),
        plot::svg(&x, &y, &series),
    );
    add(bench, disk, scale, measured, &gaps, &found);
    Ok(())
}

fn add(bench: &mut Bench, disk: &str, scale: f64, measured: u64, gaps: &[u64], found: &[(Vec<f64>, Vec<f64>)]) {
    let Some(((own, own_bytes), fixed)) = found.split_last() else { return };
    let best = fixed.iter().zip(gaps).min_by(|a, b| median(&a.0.0).total_cmp(&median(&b.0.0)));
    let usual = fixed.iter().zip(gaps).find(|(_, gap)| **gap == USUAL);
    // The measured distance may equal one of the others; then their times differ only by noise.
    let targets = [("the usual 16 KiB", usual, Target::below(1.1, 1.0)), ("the best", best, Target::below(1.2, 1.0))];
    for (name, other, target) in targets {
        let Some(((times, bytes), gap)) = other else { continue };
        let values: Vec<f64> = own.iter().zip(times).map(|(own, other)| own / other).collect();
        bench.add(Finding {
            sides: ("holes read through as measured of the disk", "always the same"),
            what: &format!("{disk}: against {name}"),
            values: &values,
            target,
            params: json!({
                "scale": scale, "gap_bytes_a": measured, "gap_bytes_b": gap, "ms_a": median(own), "ms_b": median(times),
                "cold_mb_a": median(own_bytes), "cold_mb_b": median(bytes),
            }),
        });
    }
}

/// Sums three columns of the lines of some parts, which lie scattered.
fn query(random: &mut StdRng, scale: f64) -> String {
    let count = (PARTS_PER_SCALE * scale.min(1.0)).max(1.0) as u64;
    let parts = (PARTS * scale) as u64;
    let first = random.random_range(1..parts.saturating_sub(count).max(2));
    format!(
        "sql SELECT count(*), sum(l_suppkey), sum(l_extendedprice), sum(l_orderkey) FROM lineitem \
         WHERE l_partkey BETWEEN {first} AND {}",
        first + count - 1
    )
}
