//! Throughput over time of YCSB with 90 % reads on eight times the memory, by what cold reads may bring into memory and by device.
//!
//! Ma et al. 2016 (backup slides "Merging threshold", a to f): the top 5 % against merging all, over time, on an SSD, on 3D XPoint
//! and on NVRAM; charts without numbers, beside the gains of the slide of that name: SSD 17, 3D XPoint 21, NVRAM 10 %. Here: the disk
//! as it is and throttled, and NVM emulated by slowed memory, which Terrace reads in place, so that there is nothing to merge.

use serde_json::{Value, json};
use terrace_tier_store::placement::MergeKind;

use super::device_table::DISKS;
use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::{SideSpec, ycsb::CHUNK_ROWS};
use crate::statistics::{median, percentile};

const RECORDS: u64 = 100_000;
const QUICK_RECORDS: u64 = 8_000;
/// Time of each side on a device.
const SECONDS: f64 = 90.0;
const QUICK_SECONDS: f64 = 3.0;
/// Operations of a client between two looks at the clock.
const OPERATIONS: u64 = 200;
const QUICK_OPERATIONS: u64 = 20;
/// The same where a device answers fewer operations a second than this.
const SLOW_OPERATIONS: u64 = 10;
const SLOW_DEVICE_PER_S: u64 = 1_000;
/// Share of the rounds, the last ones, whose throughput is compared: the first ones find nothing in memory.
const LAST: f64 = 1.0 / 3.0;
/// Ma et al. 2016: gain of the top 5 % on an SSD.
const PAPER_SSD: f64 = 1.17;
const SIDES: [(&str, MergeKind); 2] = [("selective", MergeKind::Selective), ("always", MergeKind::Always)];

/// A running side.
struct Course {
    name: &'static str,
    child: Child,
    /// Of each round its end, in seconds of this side's own work, and its operations/s.
    points: Vec<(f64, f64)>,
    _store: StoreClone,
}

impl Course {
    fn start(bench: &Bench, name: &'static str, limit: Option<&Cgroup>, kind: Kind) -> Result<Self> {
        let Kind { merge, nvm } = kind;
        let store = StoreClone::empty(bench.scratch(&format!("ycsb-over-time-{name}")))?;
        let spec = SideSpec::Ycsb {
            store: store.path(),
            records: if bench.quick { QUICK_RECORDS } else { RECORDS },
            clients: bench.threads,
            merge,
            chunk_rows: CHUNK_ROWS,
            blocking: false,
            nvm,
        };
        let child = Child::start_limited(name, limit, &spec)?;
        Ok(Self { name, child, points: Vec::new(), _store: store })
    }

    fn seconds(&self) -> f64 {
        self.points.last().map_or(0.0, |(at, _)| *at)
    }

    /// The operations/s of the rounds that count.
    fn last(&self) -> Vec<f64> {
        let first = first_that_counts(self.points.len());
        self.points.iter().skip(first).map(|(_, per_s)| *per_s).collect()
    }
}

/// What distinguishes sides.
#[derive(Clone, Copy)]
struct Kind {
    merge: MergeKind,
    nvm: bool,
}

/// Position of the first round that counts.
fn first_that_counts(rounds: usize) -> usize {
    ((rounds as f64 * (1.0 - LAST)).floor() as usize).min(rounds.saturating_sub(1))
}

/// Measures one device after the other.
pub fn run(bench: &mut Bench) -> Result<()> {
    let disks = if bench.quick { &DISKS[..1] } else { &DISKS };
    for (name, limit) in disks {
        let group = limit.map(|(bytes_per_s, per_s)| Cgroup::disk_both_ways(&bench.data_dir, bytes_per_s, per_s));
        let group = match group.transpose() {
            Ok(group) => group,
            Err(Error::Missing(why)) => {
                bench.leave_out(name, &why);
                continue;
            }
            Err(error) => return Err(error),
        };
        let is_slow = limit.is_some_and(|(_, per_s)| per_s < SLOW_DEVICE_PER_S);
        let mut both = Vec::new();
        for (side, merge) in SIDES {
            both.push(Course::start(bench, side, group.as_ref(), Kind { merge, nvm: false })?);
        }
        measure(bench, &mut both, operations(bench.quick, is_slow))?;
        add(bench, name, &both);
        draw(bench, name, &both);
    }
    let mut nvm = [Course::start(bench, "in place", None, Kind { merge: MergeKind::Selective, nvm: true })?];
    measure(bench, &mut nvm, operations(bench.quick, false))?;
    add_alone(bench, "NVM, emulated", &nvm);
    draw(bench, "NVM, emulated", &nvm);
    Ok(())
}

/// Operations of a client in a round.
fn operations(quick: bool, is_slow: bool) -> u64 {
    match (quick, is_slow) {
        (true, _) => QUICK_OPERATIONS,
        (false, true) => SLOW_OPERATIONS,
        (false, false) => OPERATIONS,
    }
}

/// Runs rounds on all sides in turn until each has had its time. Fails when they read other rows, or differ at the end.
fn measure(bench: &mut Bench, courses: &mut [Course], operations: u64) -> Result<()> {
    let seconds = if bench.quick { QUICK_SECONDS } else { SECONDS };
    while courses.iter().any(|course| course.seconds() < seconds) {
        let mut rows = None;
        for course in &mut *courses {
            let sample = bench.ask(&mut course.child, &format!("round {operations}"))?;
            let seen = sample.value("rows");
            let first = *rows.get_or_insert(seen);
            if seen != first {
                return Err(Error::failed(format!("{}: {seen} rows, others {first}", course.name)));
            }
            let at = course.seconds() + sample.ms / 1e3;
            course.points.push((at, sample.per_s("operations")));
        }
    }
    let digests = courses.iter_mut().map(|course| Ok(course.child.ask("digest")?.value("digest")));
    let digests = digests.collect::<Result<Vec<f64>>>()?;
    if digests.iter().any(|digest| Some(digest) != digests.first()) {
        return Err(Error::failed(format!("the tables differ at the end: {digests:?}")));
    }
    Ok(())
}

/// The parameters of a row about sides.
fn params(courses: &[Course]) -> Value {
    let mut params = json!({
        "paper_ssd": PAPER_SSD, "rounds": courses.iter().map(|course| course.points.len()).max(),
        "seconds": courses.iter().map(Course::seconds).fold(0.0, f64::max), "share_of_rounds": LAST,
    });
    for course in courses {
        let last = course.last();
        params[format!("operations_per_s {}", course.name)] = json!(median(&last));
        params[format!("slowest_to_median {}", course.name)] = json!(percentile(&last, 0.05) / median(&last));
    }
    params
}

/// Adds the throughput of the first side to that of the second, round by round.
fn add(bench: &mut Bench, device: &str, courses: &[Course]) {
    let [selective, always] = courses else { return };
    let ratios: Vec<f64> = selective.last().iter().zip(always.last()).map(|(ours, other)| ours / other).collect();
    bench.add(Finding {
        sides: ("merge = selective", "merge = always"),
        what: &format!("{device}: operations/s, last third"),
        values: &ratios,
        target: Target::OPEN,
        params: params(courses),
    });
}

/// Adds the throughput of a side without a peer.
fn add_alone(bench: &mut Bench, device: &str, courses: &[Course]) {
    let mut params = params(courses);
    params["unit"] = json!("operations/s");
    params["simulated"] = json!("memory at 0.35 of the bandwidth and 5 times the latency of DRAM");
    for course in courses {
        bench.add(Finding {
            sides: (course.name, "eight times the DRAM tier"),
            what: &format!("{device}: last third"),
            values: &course.last(),
            target: Target::OPEN,
            params: params.clone(),
        });
    }
}

fn draw(bench: &mut Bench, device: &str, courses: &[Course]) {
    let series: Vec<Series> =
        courses.iter().map(|course| Series::measured(course.name, course.points.clone())).collect();
    let title = format!("YCSB 90/10 over time, {device} (compare Ma et al. 2016, merging threshold, a to f)");
    let x = Axis::linear("s of the side's own work");
    bench.draw(&title, plot::svg(&x, &Axis::linear("operations/s"), &series));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_third_of_the_rounds_counts() {
        assert_eq!([0, 1, 2, 3, 9, 10].map(first_that_counts), [0, 0, 1, 2, 6, 6]);
        assert_eq!(
            [(true, true), (false, true), (false, false)].map(|(quick, slow)| operations(quick, slow)),
            [20, 10, 200]
        );
    }
}
