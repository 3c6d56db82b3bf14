//! One scan of a cold table on servers that may bring columns into memory between epochs (`tiering.merge = "selective"`: admission
//! is on), against servers that change what is in memory at epochs only. DRAM is full of hot columns, or has room besides them.
//!
//! Full means that the budget is what the hot columns take on a server that has room for more, so by H25 the scan should change
//! nothing, and cost nothing. The room that it finds, and the bytes promoted and evicted, tell whether that was so.
//!
//! Each scan has a new server, as the second one on a server would find what the first one has brought. All servers start at one path, on
//! copies of one data directory: so they have the same heat, and the same calibration, which names the path. Where each server measures the
//! disk for itself, they give it different numbers of bytes at once, and read ahead differently far. The scans of a pair follow each
//! other, and the side that begins one pair is the second in the next. Nothing else works in the servers meanwhile: no compaction and no
//! epoch. Processor time, new pages, and what was promoted and evicted say why the times differ.
//!
//! What fills free room in DRAM takes new pages. In a virtual machine that gives free pages back to its host, the first access to such
//! a page waits for the host, some twenty times as long as clearing it takes. So this process uses pages and frees them right before
//! each scan. That did not lower the ratio on the machine where it was tried (docs/design/io-queue.md).

use memmap2::MmapMut;
use serde_json::{Map, json};

use super::one_scan::{COLD, DRAM_BYTES, SIDES, hot};
use crate::bench::{Bench, Finding, Target};
use crate::data::{Dataset, StoreClone};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::streams::{self, Statement};

/// Pairs of scans in a round: an even number, so that each side begins as often as the other.
const PAIRS: usize = 6;
const QUICK_PAIRS: usize = 1;
/// Rounds of the hot statements before the epoch that precedes a scan.
const WARM: usize = 2;
/// Bytes of used pages that are free when a scan begins: more than a server takes while it scans.
const USED_BYTES: usize = 1 << 30;
/// DRAM is full where at most this share of it has room.
const FULL_SHARE: f64 = 0.02;
/// What a scan counts in the metrics of its server: names in rows, and the series.
const COUNTERS: [(&str, &str); 6] = [
    ("read_bytes", "terrace_io_read_bytes_total"),
    ("promoted_bytes", "terrace_merge_promoted_bytes_total"),
    ("evicted_bytes", "terrace_merge_made_room_bytes_total"),
    ("promoted", "terrace_merge_columns_total{fate=\"promoted\"}"),
    ("declined", "terrace_merge_columns_total{fate=\"declined\"}"),
    ("forgotten", "terrace_merge_columns_total{fate=\"forgotten\"}"),
];

/// The DRAM that a scan finds.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    /// The budget of the servers.
    dram_bytes: u64,
    /// The hot columns need all of it.
    is_full: bool,
}

/// Measures pairs of scans in each case.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let dram_bytes = (DRAM_BYTES * scale) as u64;
    let site = Site::prepare(bench, &bench.dataset(scale)?, dram_bytes)?;
    let cases = [
        Case { name: "DRAM full", dram_bytes: site.hot_bytes, is_full: true },
        Case { name: "DRAM with room", dram_bytes, is_full: false },
    ];
    let pairs = if bench.quick { QUICK_PAIRS } else { PAIRS };
    let mut found: [Found; 2] = Default::default();
    let mut rounds = 0;
    while bench.wants_another_round(rounds) {
        for (case, found) in cases.iter().zip(&mut found) {
            measure(bench, &site, case, pairs, found)?;
        }
        rounds += 1;
    }
    for (case, found) in cases.iter().zip(&found) {
        found.show(case.name);
        let mut params = found.params();
        params.extend([
            ("scale".to_owned(), json!(scale)),
            ("threads".to_owned(), json!(bench.threads)),
            ("dram_budget".to_owned(), json!(case.dram_bytes)),
            ("pairs".to_owned(), json!(pairs)),
        ]);
        if let Some(why) = found.undecided(case) {
            params.insert("undecided".to_owned(), json!(why));
        }
        let [off, on, _] = SIDES;
        let mut add = |what: &str, values: &[f64], target| {
            let what = &format!("{}: {what}, with admission on to off", case.name);
            let params = params.clone().into();
            bench.add(Finding { sides: (on.0, off.0), what, values, target, params });
        };
        add("the scan", &found.times, Target::below(1.02, 1.0));
        add("its processor time", &found.processor_times, Target::OPEN);
    }
    Ok(())
}

/// One round of a case.
fn measure(bench: &mut Bench, site: &Site, case: &Case, pairs: usize, found: &mut Found) -> Result<()> {
    let mut times = Vec::new();
    let mut processor_times = Vec::new();
    for pair in 0..pairs {
        let mut scans = [Sample::default(), Sample::default()];
        for step in 0..2 {
            let side = (pair + step) % 2;
            scans[side] = site.scan(case, SIDES[side].1)?;
            bench.record(SIDES[side].0, case.name, scans[side].clone());
        }
        let [without, with] = &scans;
        times.push(with.ms / without.ms);
        processor_times.push(with.value("cpu_ms") / without.value("cpu_ms"));
        found.scans.iter_mut().zip(scans).for_each(|(all, scan)| all.push(scan));
    }
    found.times.push(median(&times));
    found.processor_times.push(median(&processor_times));
    Ok(())
}

/// Ratios of the rounds, with admission to without, and the scans of both sides, those without first.
#[derive(Default)]
struct Found {
    times: Vec<f64>,
    processor_times: Vec<f64>,
    scans: [Vec<Sample>; 2],
}

impl Found {
    /// The median of a count over the scans of a side; of the time where the count has no name.
    fn middle(&self, side: usize, name: &str) -> f64 {
        let value = |scan: &Sample| if name.is_empty() { scan.ms } else { scan.value(name) };
        median(&self.scans[side].iter().map(value).collect::<Vec<_>>())
    }

    /// Why the scans say nothing about a case.
    fn undecided(&self, case: &Case) -> Option<&'static str> {
        let room_bytes = self.middle(1, "dram_room_before");
        let some_bytes = FULL_SHARE * case.dram_bytes as f64;
        let promoted_bytes = self.middle(1, "promoted_bytes");
        if self.middle(0, "read_bytes") < 4.0 * case.dram_bytes as f64 {
            Some("the scan was too small: use another scale")
        } else if case.is_full && room_bytes > some_bytes {
            Some("the hot columns left room in DRAM")
        } else if !case.is_full && promoted_bytes <= some_bytes {
            Some("the scan brought nothing into DRAM")
        } else {
            None
        }
    }

    fn show(&self, case: &str) {
        for (side, (name, _)) in SIDES.iter().enumerate().take(2) {
            let megabytes = |count| self.middle(side, count) / 1e6;
            println!(
                "  {case:<16}{name:<10}{:>7.0} ms, processor {:>7.0} ms, {:>6.0} MB read, {:>5.0} MB promoted, {:>5.0} MB evicted, {:>7.0} page faults",
                self.middle(side, ""),
                self.middle(side, "cpu_ms"),
                megabytes("read_bytes"),
                megabytes("promoted_bytes"),
                megabytes("evicted_bytes"),
                self.middle(side, "page_faults"),
            );
        }
    }

    /// The medians of both sides, as `ms_a` of the side with admission, and `ms_b` of the one without.
    fn params(&self) -> Map<String, serde_json::Value> {
        let others = ["", "cpu_ms", "page_faults", "dram_bytes_before", "dram_room_before"];
        let names = COUNTERS.iter().map(|(name, _)| *name).chain(others);
        let both = names.flat_map(|name| {
            let label = if name.is_empty() { "ms" } else { name };
            [(1, "a"), (0, "b")].map(|(side, mark)| (format!("{label}_{mark}"), json!(self.middle(side, name))))
        });
        both.collect()
    }
}

/// The path at which all servers start, and what they find there.
struct Site {
    folder: StoreClone,
    /// The data directory of a server that has calibrated its disk and run the hot statements.
    base: StoreClone,
    /// Bytes of DRAM that its hot columns took there.
    hot_bytes: u64,
    /// Arguments of all servers.
    arguments: Vec<String>,
}

impl Site {
    fn prepare(bench: &Bench, data: &Dataset, dram_bytes: u64) -> Result<Self> {
        let threads = format!("query.threads={}", bench.threads);
        let mut arguments: Vec<String> = Vec::new();
        for setting in [&threads, "tiering.interval=1h", "compaction.rate_limit=0"] {
            arguments.extend(["--set".to_owned(), setting.to_owned()]);
        }
        let folder = data.clone_store()?;
        let server = start(&folder, &arguments, dram_bytes, &[])?;
        warm_up(&server)?;
        let hot_bytes = used_dram(&server)? as u64;
        server.stop()?;
        if hot_bytes == 0 || hot_bytes >= dram_bytes {
            return Err(Error::failed(format!("hot columns take {hot_bytes} bytes of DRAM: use another scale")));
        }
        let base = StoreClone::from_store(&folder.path())?;
        Ok(Self { folder, base, hot_bytes, arguments })
    }

    /// Scans on a new server with these settings in addition.
    fn scan(&self, case: &Case, settings: &[&str]) -> Result<Sample> {
        self.folder.replace_by(&self.base.path())?;
        let server = start(&self.folder, &self.arguments, case.dram_bytes, settings)?;
        warm_up(&server)?;
        let used_bytes = used_dram(&server)?;
        let counts_before = counts(&server.metrics()?)?;
        let work_before = server.work()?;
        free_used_pages()?;
        let answers = streams::run(server.url(), &[vec![Statement::new("scan", COLD)]])?;
        let work = server.work()?;
        if let Some(error) = answers.all.iter().find_map(|answer| answer.rows.as_ref().err()) {
            return Err(Error::failed(format!("the scan failed: {error}")));
        }
        let counts = counts(&server.metrics()?)?;
        server.stop()?;
        let mut sample = Sample::new(answers.ms)
            .with("dram_bytes_before", used_bytes)
            .with("dram_room_before", case.dram_bytes as f64 - used_bytes);
        for (name, value) in counts.values.iter().chain(&work.values) {
            let before = counts_before.value(name) + work_before.value(name);
            sample = sample.with(name, value - before);
        }
        Ok(sample)
    }
}

fn start(folder: &StoreClone, arguments: &[String], dram_bytes: u64, settings: &[&str]) -> Result<Server> {
    let dram_bytes = dram_bytes.to_string();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--dram-budget", &dram_bytes]);
    arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    Server::start(&folder.path(), &arguments)
}

/// Bytes of DRAM that are taken, as the budget counts them.
fn used_dram(server: &Server) -> Result<f64> {
    server.number("SELECT used_bytes FROM system.tiers WHERE tier = 'dram'")
}

/// Brings the hot columns into memory.
fn warm_up(server: &Server) -> Result<()> {
    hot(server, WARM)?;
    server.run_epoch()
}

/// Uses pages and frees them, so that the kernel hands out those next.
fn free_used_pages() -> Result<()> {
    let mut pages =
        MmapMut::map_anon(USED_BYTES).map_err(|error| Error::failed(format!("cannot map memory: {error}")))?;
    pages.fill(1);
    Ok(())
}

/// The counters of a server since its start, from its metrics in the Prometheus text format.
fn counts(metrics: &str) -> Result<Sample> {
    let value = |series: &str| -> Option<f64> {
        metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    };
    COUNTERS.iter().try_fold(Sample::default(), |sample, (name, series)| {
        let value = value(series);
        let value = value.ok_or_else(|| Error::failed(format!("the metrics of the server have no series {series}")))?;
        Ok(sample.with(name, value))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn scans_tell_whether_they_found_what_their_case_says() {
        let found = |room_bytes: f64, promoted_bytes: f64| {
            let scan = Sample::new(1.0).with("read_bytes", 5e6).with("dram_room_before", room_bytes);
            let scan = scan.with("promoted_bytes", promoted_bytes);
            Found { scans: [vec![scan.clone()], vec![scan]], ..Found::default() }
        };
        let full = Case { name: "full", dram_bytes: 1_000_000, is_full: true };
        let room = Case { name: "room", is_full: false, ..full };
        assert_eq!(found(19_000.0, 0.0).undecided(&full), None);
        assert_eq!(found(21_000.0, 0.0).undecided(&full), Some("the hot columns left room in DRAM"));
        assert_eq!(found(500_000.0, 400_000.0).undecided(&room), None);
        assert_eq!(found(500_000.0, 0.0).undecided(&room), Some("the scan brought nothing into DRAM"));
        let small = Case { dram_bytes: 2_000_000, ..full };
        assert_eq!(found(0.0, 0.0).undecided(&small), Some("the scan was too small: use another scale"));
    }

    #[test]
    fn each_counter_is_found_among_the_metrics() {
        let lines = COUNTERS.iter().enumerate().map(|(at, (_, series))| format!("{series} {at}\n"));
        let metrics = format!("# TYPE terrace_io_read_bytes_total counter\n{}", lines.collect::<String>());
        let found = counts(&metrics).unwrap();
        for (at, (name, _)) in COUNTERS.iter().enumerate() {
            assert_eq!(found.value(name), at as f64, "{name}");
        }
        let error = counts("terrace_io_read_bytes_total 1\n").unwrap_err().to_string();
        assert!(error.contains("terrace_merge_promoted_bytes_total"), "{error}");
    }
}
