//! Cold scans and random reads, compared with raw reads of the device.

use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;

fn megabytes_per_s(sample: &Sample, bytes: &str) -> f64 {
    sample.value(bytes) / sample.ms / 1e3
}

/// `SELECT *` of lineitem with nothing resident, against raw reads of the same files.
pub fn cold_scan(bench: &mut Bench) -> Result<()> {
    scan(bench, 10.0, None)
}

/// A disk slowed down for both sides.
pub struct Slowed<'a> {
    /// The limit.
    pub limit: &'a Cgroup,
    /// Prefix of its row names.
    pub label: &'a str,
    /// Most rounds.
    pub runs: usize,
    /// The limit, as parameters of the row.
    pub params: serde_json::Value,
}

/// The cold scan at a scale factor, on the disk as it is or slowed down.
pub fn scan(bench: &mut Bench, scale: f64, slowed: Option<&Slowed<'_>>) -> Result<()> {
    let scale = bench.scale(scale);
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let spec = SideSpec::terrace(store.path(), bench.threads);
    let mut scan = Child::start("Terrace, cold scan", &spec)?;
    let table = scan.ask("table lineitem")?;
    let folder = data.store().join("ssd").join(format!("t{}", table.value("id")));
    let mut raw = Child::start("raw io_uring", &SideSpec::Device { folder })?;
    let query = "sql SELECT * FROM lineitem";
    let read = "sequential 1048576 8";
    scan.ask(query)?;
    raw.ask(read)?;
    for side in [&scan, &raw] {
        slowed.map_or(Ok(()), |slowed| slowed.limit.add(side.id()))?;
    }
    let runs = slowed.map_or(usize::MAX, |slowed| slowed.runs);
    let found = bench.in_turn(runs, |bench| {
        let a = bench.ask(&mut scan, query)?;
        let b = bench.ask(&mut raw, read)?;
        if a.value("cold_bytes") < table.value("bytes") * 0.99 {
            return Err(Error::failed("the scan did not read the whole table from disk"));
        }
        Ok((megabytes_per_s(&a, "cold_bytes"), megabytes_per_s(&b, "bytes")))
    })?;
    let mut params = json!({
        "scale": scale, "threads": bench.threads, "bytes": table.value("bytes"), "block_bytes": 1 << 20, "depth": 8,
        "mb_per_s_a": median(&found.a), "mb_per_s_b": median(&found.b), "disk": bench.environment().device,
    });
    if let (Some(params), Some(limits)) = (params.as_object_mut(), slowed.and_then(|s| s.params.as_object())) {
        params.extend(limits.clone());
    }
    bench.add(Finding {
        sides: (scan.name(), raw.name()),
        what: &format!("{}lineitem, all columns", slowed.map_or("", |slowed| slowed.label)),
        values: &found.ratios,
        target: Target::above(0.85, 0.95),
        params,
    });
    Ok(())
}

/// Random reads by the store's engine, against raw ones.
pub fn point_reads(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let folder = largest_folder(&data.store().join("ssd"))?;
    let mut engine = Child::start("store I/O engine", &SideSpec::Engine { folder: folder.clone() })?;
    let mut raw = Child::start("raw io_uring", &SideSpec::Device { folder })?;
    for (block, depth) in [(4096, 1), (4096, 32), (16_384, 32)] {
        let count = if bench.quick { 4000 } else { 40_000 };
        let op = format!("random {block} {depth} {count}");
        engine.ask(&op)?;
        raw.ask(&op)?;
        let found = bench.in_turn(bench.runs, |bench| {
            let a = bench.ask(&mut engine, &op)?;
            Ok((a.per_s("reads"), bench.ask(&mut raw, &op)?.per_s("reads")))
        })?;
        bench.add(Finding {
            sides: (engine.name(), raw.name()),
            what: &format!("{} KiB, depth {depth}", block / 1024),
            values: &found.ratios,
            target: Target::above(0.8, 0.95),
            params: json!({
                "scale": scale, "block_bytes": block, "depth": depth, "reads": count,
                "reads_per_s_a": median(&found.a), "reads_per_s_b": median(&found.b),
            }),
        });
    }
    Ok(())
}

/// Bytes of large reads that run beside small ones.
const BESIDE_KIB: [u64; 6] = [256, 512, 1024, 2048, 4096, 8192];

/// Small reads beside four streams of large ones, by how many bytes of these run at once.
pub fn points_beside_scans(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let folder = largest_folder(&data.store().join("ssd"))?;
    let mut engine = Child::start("store I/O engine", &SideSpec::Engine { folder })?;
    let ms = if bench.quick { 1_000 } else { 20_000 };
    let op = |class: &str, streams: u64, kib: u64| format!("points {class} beside {streams} of {} {ms}", kib << 10);
    // As it was before points were a class: those that are needed go first, behind all that was submitted.
    let kinds = [("needed", 8192)].into_iter().chain(BESIDE_KIB.map(|kib| ("point", kib))).collect::<Vec<_>>();
    let (mut alone, mut scans, mut both) = (Vec::new(), vec![Vec::new(); kinds.len()], vec![Vec::new(); kinds.len()]);
    while bench.wants_another_round(alone.len()) {
        alone.push(bench.ask(&mut engine, &op("point", 0, 8192))?);
        for (((class, kib), scans), both) in kinds.iter().zip(&mut scans).zip(&mut both) {
            // Look-ups are expected for a second after the last ones.
            std::thread::sleep(Duration::from_secs(1));
            scans.push(bench.ask(&mut engine, &op("none", 4, 8192))?);
            both.push(bench.ask(&mut engine, &op(class, 4, *kib))?);
        }
    }
    let speed = |sample: &Sample| megabytes_per_s(sample, "bytes");
    let ratios = |a: &[Sample], b: &[Sample], figure: fn(&Sample) -> f64| {
        a.iter().zip(b).map(|(a, b)| figure(a) / figure(b)).collect::<Vec<_>>()
    };
    let p99 = |sample: &Sample| sample.value("p99_ms");
    let of = |samples: &[Sample], figure: fn(&Sample) -> f64| median(&samples.iter().map(figure).collect::<Vec<_>>());
    let (mut waits, mut speeds) = (Vec::new(), Vec::new());
    for (((class, kib), scans), samples) in kinds.iter().zip(&scans).zip(&both) {
        let params = json!({
            "scale": scale, "class": class, "beside_bytes": kib << 10, "ms": ms, "points_per_s": 20, "streams": 4,
            "p50_ms": of(samples, |s| s.value("p50_ms")), "p99_ms": of(samples, p99), "p99_ms_alone": of(&alone, p99),
            "megabytes_per_s": of(samples, speed), "megabytes_per_s_alone": of(scans, speed),
        });
        println!(
            "  {class:<8}{kib:>6} KiB of others   p50, p99 {:>7.2} {:>7.2} ms, alone {:>6.2} ms   streams {:>6.0} MB/s, alone {:>6.0} MB/s",
            of(samples, |s| s.value("p50_ms")),
            of(samples, p99),
            of(&alone, p99),
            of(samples, speed),
            of(scans, speed),
        );
        if *class == "point" {
            waits.push((*kib as f64, of(samples, p99)));
            speeds.push((*kib as f64, of(samples, speed)));
        }
        let what = format!("{class}, {kib} KiB of others");
        let mut add = |sides, what: &str, values: &[f64], target| {
            bench.add(Finding { sides, what, values, target, params: params.clone() });
        };
        let sides = ("p99 of small reads beside four streams", "without them");
        add(sides, &what, &ratios(samples, &alone, p99), Target::OPEN);
        let sides = ("speed of four streams beside small reads", "without them");
        add(sides, &what, &ratios(samples, scans, speed), Target::OPEN);
    }
    let x = Axis::logarithmic("KiB of others that run beside points");
    for (y, name, points) in [("ms", "p99 of points", waits), ("MB/s", "four streams", speeds)] {
        let series = [Series::measured(name, points)];
        bench.draw(&format!("{name} by what runs beside points"), plot::svg(&x, &Axis::linear(y), &series));
    }
    Ok(())
}

fn largest_folder(dir: &std::path::Path) -> Result<std::path::PathBuf> {
    let mut largest = (0, dir.to_path_buf());
    for entry in std::fs::read_dir(dir).map_err(Error::path("read", dir))? {
        let path = entry.map_err(Error::path("read", dir))?.path();
        let files = path.is_dir().then(|| std::fs::read_dir(&path).map(Iterator::count));
        let count = files.transpose().map_err(Error::path("read", &path))?.unwrap_or(0);
        largest = largest.max((count, path));
    }
    Ok(largest.1)
}
