//! Look-ups of a row at a client, 20 a second at random times, beside four cold scans of `lineitem` (S1), and the speed of
//! these scans beside the look-ups (S2).
//!
//! The client asks a server over Flight SQL; nothing is in memory. S1 is the wait for reads of class `point` inside the server,
//! estimated from its histogram of waits. At the client a look-up also waits for its plan and for the processors, which scans use, too.
//! Each server gives the disk another number of bytes of others beside look-ups (`io.beside_points`).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use terrace_tier_store::io::{ClassSums, Depth};

use super::one_scan::COLD;
use crate::bench::{Bench, Finding, Target};
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::look_ups::{LookUps, RATE};
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::{median, percentile};
use crate::streams::{self, Statement};

const SCANS: usize = 4;
const SECONDS: u64 = 30;
const QUICK_SECONDS: u64 = 2;
/// Scans run for so long before they are measured. The queue expects further look-ups for a second at most.
const PAUSE: Duration = Duration::from_millis(1_200);
/// Bytes of others that run beside look-ups: the default, which is the least, more, and as many as without look-ups.
const BESIDE_BYTES: [u64; 4] = [Depth::BESIDE_POINTS, 512 << 10, 1 << 20, 8 << 20];

/// What a server did in a part of a round.
#[derive(Debug, Clone, Default)]
struct Phase {
    ms: f64,
    /// Latencies of the look-ups at the client.
    at_client_ms: Vec<f64>,
    /// Reads of class `point`.
    points: ClassSums,
    /// Bytes read for scans.
    scanned_bytes: f64,
}

/// One round of a server.
#[derive(Debug, Clone, Default)]
struct Measured {
    /// Look-ups without scans.
    alone: Phase,
    /// Scans without look-ups.
    scans: Phase,
    both: Phase,
}

/// What runs in a phase.
#[derive(Debug, Clone, Copy)]
struct Load<'a> {
    scans: usize,
    look_ups: Option<LookUps<'a>>,
}

/// Measures all servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let duration = Duration::from_secs(if bench.quick { QUICK_SECONDS } else { SECONDS });
    let mut rounds: Vec<[Measured; BESIDE_BYTES.len()]> = Vec::new();
    while bench.wants_another_round(rounds.len()) {
        let mut round: [Measured; BESIDE_BYTES.len()] = Default::default();
        let mut servers: Vec<_> = round.iter_mut().zip(BESIDE_BYTES).collect();
        servers.rotate_left(rounds.len() % BESIDE_BYTES.len());
        for (measured, beside_bytes) in servers {
            *measured = measure(bench, &data, beside_bytes, bench.seed + rounds.len() as u64, duration)?;
            for (name, phase) in [("alone", &measured.alone), ("scans", &measured.scans), ("both", &measured.both)] {
                bench.record(&format!("{} beside points", kib(beside_bytes)), name, phase.sample());
            }
        }
        rounds.push(round);
    }
    for (place, beside_bytes) in BESIDE_BYTES.into_iter().enumerate() {
        let measured: Vec<&Measured> = rounds.iter().filter_map(|round| round.get(place)).collect();
        add_rows(bench, &measured, beside_bytes, json!({ "scale": scale, "seconds": duration.as_secs() }));
    }
    draw(bench, &rounds);
    Ok(())
}

/// Draws latencies and the speed of scans by the bytes of others that run beside look-ups, medians of the rounds.
fn draw(bench: &mut Bench, rounds: &[[Measured; BESIDE_BYTES.len()]]) {
    let line = |name: &str, figure: fn(&Measured) -> f64| {
        let middle = |place: usize| median(&rounds.iter().map(|round| figure(&round[place])).collect::<Vec<_>>());
        let points = BESIDE_BYTES.iter().enumerate().map(|(place, bytes)| ((bytes >> 10) as f64, middle(place)));
        Series::measured(name, points.collect())
    };
    let waits = [
        line("in the store, beside scans", |one| one.both.store_ms(0.99)),
        line("in the store, alone", |one| one.alone.store_ms(0.99)),
        line("at the client, beside scans", |one| one.both.client_ms(0.99)),
        line("at the client, alone", |one| one.alone.client_ms(0.99)),
    ];
    let speeds = [
        line("four scans beside look-ups", |one| one.both.megabytes_per_s()),
        line("four scans alone", |one| one.scans.megabytes_per_s()),
    ];
    let x = Axis::logarithmic("KiB of others that run beside look-ups");
    for (title, y, series) in [("p99 of look-ups", "ms", &waits[..]), ("Speed of four scans", "MB/s", &speeds[..])] {
        bench.draw(&format!("{title} by what runs beside look-ups"), plot::svg(&x, &Axis::linear(y), series));
    }
}

/// One round of a server that lets so many bytes of others run beside look-ups.
fn measure(bench: &Bench, data: &Dataset, beside_bytes: u64, seed: u64, duration: Duration) -> Result<Measured> {
    let store = data.clone_store()?;
    let threads = format!("query.threads={}", bench.threads);
    let beside = format!("io.beside_points={beside_bytes}");
    let mut arguments = vec!["--dram-budget", "1MiB"];
    let settings = [threads.as_str(), &beside, "tiering.enabled=false", "tiering.merge=never"];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    let server = Server::start(&store.path(), &arguments)?;
    // Each phase draws its keys anew, so that hardly any finds what another one has read.
    let look_ups = |phase: u64| {
        let seed = seed.wrapping_mul(3).wrapping_add(phase);
        LookUps { url: server.url(), scale: data.scale, seed }
    };
    // Opens the files.
    look_ups(0).run(PAUSE)?;
    let alone = run_phase(&server, Load { scans: 0, look_ups: Some(look_ups(1)) }, duration)?;
    std::thread::sleep(PAUSE);
    let scans = run_phase(&server, Load { scans: SCANS, look_ups: None }, duration)?;
    let both = run_phase(&server, Load { scans: SCANS, look_ups: Some(look_ups(2)) }, duration)?;
    server.stop()?;
    let measured = Measured { alone, scans, both };
    measured.show(beside_bytes);
    Ok(measured)
}

fn run_phase(server: &Server, load: Load<'_>, duration: Duration) -> Result<Phase> {
    let scans = vec![vec![Statement::new("scan", COLD)]; load.scans];
    std::thread::scope(|scope| {
        let scanning =
            (load.scans > 0).then(|| scope.spawn(|| streams::run_for(server.url(), &scans, PAUSE + duration)));
        if scanning.is_some() {
            std::thread::sleep(PAUSE);
        }
        let before = Counts::read(server)?;
        let start = Instant::now();
        let at_client_ms = match load.look_ups {
            Some(look_ups) => look_ups.run(duration)?,
            None => {
                std::thread::sleep(duration);
                Vec::new()
            }
        };
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let after = Counts::read(server)?;
        if let Some(scanning) = scanning {
            let answers = scanning.join().map_err(|_| Error::failed("the thread of the scans panicked"))??;
            if let Some(error) = answers.all.iter().find_map(|answer| answer.rows.as_ref().err()) {
                return Err(Error::failed(format!("a scan failed: {error}")));
            }
        }
        let waits = after.points.iter().zip(&before.points).map(|(after, before)| after - before).collect();
        let points = ClassSums { waits, ..ClassSums::default() };
        Ok(Phase { ms, at_client_ms, points, scanned_bytes: after.scanned_bytes - before.scanned_bytes })
    })
}

/// Counters of a server since its start.
struct Counts {
    /// Reads of class `point` by their wait, as in [`ClassSums::waits`].
    points: Vec<u64>,
    scanned_bytes: f64,
}

impl Counts {
    fn read(server: &Server) -> Result<Self> {
        Self::parse(&server.metrics()?)
    }

    /// Takes the counters from metrics in the Prometheus text format.
    fn parse(metrics: &str) -> Result<Self> {
        let values = |name: &str, class: &str| -> Vec<f64> {
            let label = format!("class=\"{class}\"");
            let is_named = |line: &&str| line.strip_prefix(name).is_some_and(|labels| labels.starts_with('{'));
            let lines = metrics.lines().filter(is_named).filter(|line| line.contains(&label));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
        };
        // A bucket has all waits up to its bound.
        let up_to = values("terrace_io_wait_seconds_bucket", "point");
        let before = std::iter::once(0.0).chain(up_to.iter().copied());
        let points: Vec<u64> = up_to.iter().zip(before).map(|(up_to, before)| (up_to - before) as u64).collect();
        if points.len() != ClassSums::bounds_us().count() + 1 {
            return Err(Error::failed("the metrics of the server have no waits for reads of class 'point'"));
        }
        let bytes = |class: &str| values("terrace_io_class_read_bytes_total", class).iter().sum::<f64>();
        Ok(Self { points, scanned_bytes: bytes("needed") + bytes("prefetch") })
    }
}

impl Phase {
    fn client_ms(&self, share: f64) -> f64 {
        percentile(&self.at_client_ms, share)
    }

    /// The wait inside the server that this share of the points did not exceed; not a number without any.
    fn store_ms(&self, share: f64) -> f64 {
        self.points.wait_us_at(share).map_or(f64::NAN, |us| us / 1e3)
    }

    fn megabytes_per_s(&self) -> f64 {
        self.scanned_bytes / self.ms / 1e3
    }

    fn sample(&self) -> Sample {
        let mut sample = Sample::new(self.ms).with("scanned_bytes", self.scanned_bytes);
        if !self.at_client_ms.is_empty() {
            let count = self.at_client_ms.len() as f64;
            sample = sample.with("look_ups", count).with("point_reads", self.points.operations() as f64);
            sample = sample.with("p50_ms", self.client_ms(0.5)).with("p99_ms", self.client_ms(0.99));
        }
        if self.points.operations() > 0 {
            sample = sample.with("store_p50_ms", self.store_ms(0.5)).with("store_p99_ms", self.store_ms(0.99));
        }
        sample
    }
}

impl Measured {
    /// Whether each look-up has read as a point: else the waits of points say little about look-ups.
    fn has_points(&self) -> bool {
        let have = |phase: &Phase| phase.points.operations() >= phase.at_client_ms.len() as u64;
        have(&self.alone) && have(&self.both)
    }

    fn show(&self, beside_bytes: u64) {
        for (name, phase) in [("alone", &self.alone), ("beside scans", &self.both)] {
            println!(
                "  {:>8} of others   look-ups {name:<14}p50, p99 at the client {:>7.2} {:>7.2} ms, in the store {:>6.2} {:>6.2} ms",
                kib(beside_bytes),
                phase.client_ms(0.5),
                phase.client_ms(0.99),
                phase.store_ms(0.5),
                phase.store_ms(0.99),
            );
        }
        let [alone, both] = [&self.scans, &self.both].map(Phase::megabytes_per_s);
        let beside = kib(beside_bytes);
        println!("  {beside:>8} of others   scans beside look-ups {both:>6.0} MB/s, alone {alone:>6.0} MB/s");
    }
}

/// Adds the rows of a server; only the default has the targets of S1 and S2, the others are there for the curve.
fn add_rows(bench: &mut Bench, measured: &[&Measured], beside_bytes: u64, mut params: Value) {
    let all = |figure: &dyn Fn(&Measured) -> f64| measured.iter().map(|one| figure(one)).collect::<Vec<f64>>();
    params["threads"] = json!(bench.threads);
    params["beside_bytes"] = json!(beside_bytes);
    params["rate"] = json!(RATE);
    params["scans"] = json!(SCANS);
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        params[format!("{name}_ms_a")] = json!(median(&all(&|one| one.both.client_ms(share))));
        params[format!("{name}_ms_b")] = json!(median(&all(&|one| one.alone.client_ms(share))));
        params[format!("store_{name}_ms_a")] = json!(median(&all(&|one| one.both.store_ms(share))));
        params[format!("store_{name}_ms_b")] = json!(median(&all(&|one| one.alone.store_ms(share))));
    }
    params["megabytes_per_s_a"] = json!(median(&all(&|one| one.both.megabytes_per_s())));
    params["megabytes_per_s_b"] = json!(median(&all(&|one| one.scans.megabytes_per_s())));
    let is_default = beside_bytes == Depth::BESIDE_POINTS;
    let only_default = |target: Target| if is_default { target } else { Target::OPEN };
    let mut add = |sides, what: &str, values: Vec<f64>, target: Target, params: Value| {
        let what = &format!("{what}, {} of others", kib(beside_bytes));
        bench.add(Finding { sides, what, values: &values, target, params });
    };
    let sides = ("look-ups beside four cold scans", "look-ups alone");
    let ratio = |figure: fn(&Phase) -> f64| all(&|one| figure(&one.both) / figure(&one.alone));
    let mut store_params = params.clone();
    if !measured.iter().all(|one| one.has_points()) {
        store_params["undecided"] = json!("look-ups did not read in class 'point'");
    }
    let in_store = ratio(|phase| phase.store_ms(0.99));
    add(sides, "S1: p99 in the store", in_store, only_default(Target::below(3.0, 1.5)), store_params);
    add(sides, "p99 at the client", ratio(|phase| phase.client_ms(0.99)), Target::OPEN, params.clone());
    add(sides, "p50 at the client", ratio(|phase| phase.client_ms(0.5)), Target::OPEN, params.clone());
    let speed = all(&|one| one.both.megabytes_per_s() / one.scans.megabytes_per_s());
    let sides = ("four cold scans beside look-ups", "the scans alone");
    add(sides, "S2: speed of the scans", speed, only_default(Target::above(0.6, 0.95)), params);
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fmt::Write as _;

    use super::*;

    /// Metrics of a server with `early` points of at most 64 us, and `late` ones of at most 128 us.
    fn metrics(early: u64, late: u64) -> String {
        let mut text = String::from("# TYPE terrace_io_wait_seconds histogram\n");
        for class in ["needed", "point"] {
            let (early, late) = if class == "point" { (early, late) } else { (70, 7) };
            for (place, bound_us) in ClassSums::bounds_us().enumerate() {
                let count = if place == 0 { early } else { early + late };
                let bound = bound_us as f64 / 1e6;
                writeln!(text, "terrace_io_wait_seconds_bucket{{class=\"{class}\",le=\"{bound}\"}} {count}").unwrap();
            }
            let all = early + late;
            writeln!(text, "terrace_io_wait_seconds_bucket{{class=\"{class}\",le=\"+Inf\"}} {all}").unwrap();
            writeln!(text, "terrace_io_class_read_bytes_total{{class=\"{class}\"}} 1000").unwrap();
        }
        text + "terrace_io_class_read_bytes_total{class=\"prefetch\"} 2e6\n"
    }

    #[test]
    fn waits_are_those_of_the_class_point() {
        let counts = Counts::parse(&metrics(5, 3)).unwrap();
        assert_eq!((counts.points.len(), &counts.points[..3]), (24, &[5, 3, 0][..]));
        assert_eq!(counts.scanned_bytes, 2e6 + 1000.0, "points are no scans");
        let points = ClassSums { waits: counts.points, ..ClassSums::default() };
        let phase = Phase { points, at_client_ms: vec![1.0; 8], ..Phase::default() };
        assert_eq!((phase.store_ms(1.0), Phase::default().store_ms(0.5).is_nan()), (0.128, true));
        let measured = Measured { alone: phase.clone(), both: phase, ..Measured::default() };
        assert!(measured.has_points());
        let few = Phase { at_client_ms: vec![1.0; 9], ..measured.both.clone() };
        assert!(!Measured { both: few, ..measured }.has_points());
        assert!(Counts::parse("terrace_io_wait_seconds_sum{class=\"point\"} 1\n").is_err());
    }
}
