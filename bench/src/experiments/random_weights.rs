//! Placement by weights of random accesses, as in the thesis, and by the calibrated cost model, with DRAM and NVM.
//!
//! Dreseler 2021, figure 7.5 (p. 110; 7.2.2): the value of a segment is the number of values that were read from it in order, and
//! those that were looked up times a weight; DRAM takes the segments of most value per byte. With 16 % in DRAM a weight of 100
//! leaves 8 points of latency less than a weight of 1, and 10,000 is between them; with 10 % it takes 11.6 % longer than DRAM
//! alone. The thesis proposes a cost model in place of a weight; that is what Terrace has.

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::tier::codec::FormChoice;

use super::segments::Segment;
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::SideSpec;
use crate::statistics::median;
use crate::tpch::{self, TABLES};

/// Shares of all bytes in DRAM.
const SHARES: [f64; 3] = [0.16, 0.1, 0.05];
const QUICK_SHARES: [f64; 1] = [0.16];
/// Names of the sides and their weights; the cost model has none.
const WAYS: [(&str, Option<f64>); 4] =
    [("cost model", None), ("weight 1", Some(1.0)), ("weight 100", Some(100.0)), ("weight 10,000", Some(10_000.0))];
/// The thesis: this share in DRAM, and points of latency that a weight of 100 leaves less than a weight of 1.
const THESIS_GAIN: (f64, f64) = (0.16, 8.0);
/// The thesis: per cent in DRAM, and time relative to all in DRAM. It does not say with which weight.
const THESIS: [(f64, f64); 2] = [(0.0, 1.42), (10.0, 1.116)];
/// Bytes to which a copy in DRAM is rounded up.
const PAGE_BYTES: f64 = 4096.0;
/// Share of the bytes chosen that must have arrived in DRAM.
const ARRIVED: f64 = 0.99;

/// A way to place, with its times per round at the current budget.
struct Way {
    name: &'static str,
    weight: Option<f64>,
    child: Child,
    /// All segments, with the accesses of one round of the queries.
    seen: Vec<Segment>,
    sums_ms: Vec<f64>,
    _store: StoreClone,
}

impl Way {
    fn start(bench: &mut Bench, name: &'static str, weight: Option<f64>, scale: f64) -> Result<Self> {
        let store = bench.dataset(scale)?.clone_store()?;
        let spec = SideSpec::Terrace {
            store: store.path(),
            threads: bench.threads,
            nvm: true,
            policy: PolicyKind::Optimal,
            form: FormChoice::Plain,
        };
        let mut child = Child::start(name, &spec)?;
        for query in tpch::names() {
            child.ask(&query)?;
        }
        let seen = Segment::all(&child.ask("heat")?);
        Ok(Self { name, weight, child, seen, sums_ms: Vec::new(), _store: store })
    }

    /// Puts segments for a share of all bytes into DRAM, and all others on NVM.
    fn place(&mut self, share: f64) -> Result<()> {
        self.sums_ms.clear();
        let Some(weight) = self.weight else { return self.child.ask(&format!("place {share}")).map(drop) };
        self.child.ask("place 0")?;
        let budget = self.child.ask(&format!("limit dram {share}"))?.value("budget_bytes");
        for table in TABLES {
            self.child.ask(&format!("sql BRING BACK {} TO nvm", table.name))?;
        }
        let chosen = choose(&self.seen, weight, budget);
        for statement in statements(&chosen) {
            self.child.ask(&format!("sql {statement}"))?;
        }
        let wanted: f64 = chosen.iter().map(|segment| segment.bytes).sum();
        let now = Segment::all(&self.child.ask("heat")?);
        let there: f64 = now.iter().filter(|segment| segment.tier == 0).map(|segment| segment.bytes).sum();
        if there < wanted * ARRIVED {
            return Err(Error::failed(format!("{}: of {wanted} bytes only {there} came to DRAM", self.name)));
        }
        Ok(())
    }
}

/// Measures all ways at all budgets, in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let mut ways = Vec::new();
    for (name, weight) in WAYS {
        ways.push(Way::start(bench, name, weight, scale)?);
    }
    let full_ms = all_in_dram(bench, &mut ways)?;
    let mut curves: Vec<Vec<(f64, f64)>> = vec![Vec::new(); ways.len()];
    println!("  {:<9}{:<16}{:>12}{:>10}", "in DRAM", "by", "22 queries", "to all");
    for share in shares {
        for way in &mut ways {
            way.place(*share)?;
        }
        measure(bench, &mut ways)?;
        for (way, curve) in ways.iter().zip(&mut curves) {
            let ms = median(&way.sums_ms);
            curve.push((share * 100.0, ms / full_ms));
            let share = format!("{:.0} %", share * 100.0);
            println!("  {share:<9}{:<16}{ms:>9.0} ms{:>10.3}", way.name, ms / full_ms);
        }
        add(bench, &ways, *share, scale, full_ms);
    }
    draw(bench, curves);
    Ok(())
}

/// The median time of all queries on the first side with all in DRAM.
fn all_in_dram(bench: &mut Bench, ways: &mut [Way]) -> Result<f64> {
    let Some(first) = ways.get_mut(..1) else { return Err(Error::failed("there is no way to place")) };
    for way in &mut *first {
        way.child.ask("place 1")?;
    }
    measure(bench, first)?;
    let full_ms = first.iter().map(|way| median(&way.sums_ms)).sum();
    for way in first {
        way.sums_ms.clear();
    }
    Ok(full_ms)
}

/// Sends each query to all sides in turn, round by round; the first round warms up. Fails when two sides differ.
fn measure(bench: &mut Bench, ways: &mut [Way]) -> Result<()> {
    let mut round = 0;
    while round == 0 || bench.wants_another_round(round - 1) {
        let mut sums = vec![0.0; ways.len()];
        for query in tpch::names() {
            let mut rows = None;
            for (way, sum) in ways.iter_mut().zip(&mut sums) {
                let sample = bench.ask(&mut way.child, &query)?;
                *sum += sample.ms;
                let own = sample.value("rows");
                let first = *rows.get_or_insert(own);
                if own != first {
                    return Err(Error::failed(format!("{query}: {own} rows by {}, {first} before", way.name)));
                }
            }
        }
        if round > 0 {
            ways.iter_mut().zip(sums).for_each(|(way, sum)| way.sums_ms.push(sum));
        }
        round += 1;
    }
    Ok(())
}

/// The segments that DRAM takes: by falling value per byte, each while it fits.
fn choose(all: &[Segment], weight: f64, budget_bytes: f64) -> Vec<&Segment> {
    let per_byte = |segment: &Segment| (segment.scanned + weight * segment.looked_up) / segment.bytes;
    let mut wanted: Vec<&Segment> =
        all.iter().filter(|segment| segment.bytes > 0.0 && per_byte(segment) > 0.0).collect();
    wanted.sort_by(|a, b| per_byte(b).total_cmp(&per_byte(a)));
    let mut room = budget_bytes;
    wanted.retain(|segment| {
        let takes = (segment.bytes / PAGE_BYTES).ceil() * PAGE_BYTES;
        let fits = takes <= room;
        room -= if fits { takes } else { 0.0 };
        fits
    });
    wanted
}

/// The statements that bring segments to DRAM: one for each column.
fn statements(chosen: &[&Segment]) -> Vec<String> {
    let mut columns = std::collections::BTreeMap::<(&str, &str), Vec<String>>::new();
    for segment in chosen {
        columns.entry((segment.table.as_str(), segment.column.as_str())).or_default().push(segment.chunk.to_string());
    }
    let statement = |((table, column), chunks): (&(&str, &str), &Vec<String>)| {
        format!("BRING BACK {table} COLUMNS ({column}) CHUNKS {} TO dram", chunks.join(", "))
    };
    columns.iter().map(statement).collect()
}

fn add(bench: &mut Bench, ways: &[Way], share: f64, scale: f64, full_ms: f64) {
    let [model, one, hundred, _] = ways else { return };
    let mut params = json!({ "scale": scale, "threads": bench.threads, "share": share, "all_in_dram_ms": full_ms });
    for way in ways {
        params[format!("{} ms", way.name)] = json!(median(&way.sums_ms));
    }
    let percent = share * 100.0;
    let pairs = |a: &Way, b: &Way, figure: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        a.sums_ms.iter().zip(&b.sums_ms).map(|(a, b)| figure(*a, *b)).collect()
    };
    for peer in [hundred, one] {
        bench.add(Finding {
            sides: (model.name, peer.name),
            what: &format!("{percent:.0} % in DRAM, cost model against {}", peer.name),
            values: &pairs(model, peer, &|a, b| a / b),
            target: Target::below(1.03, 1.0),
            params: params.clone(),
        });
    }
    if share == THESIS_GAIN.0 {
        params["unit"] = json!("points of the all-in-DRAM latency");
        params["paper"] = json!(THESIS_GAIN.1);
        bench.add(Finding {
            sides: (one.name, hundred.name),
            what: &format!("{percent:.0} %: points that weight 100 saves"),
            values: &pairs(one, hundred, &|a, b| (a - b) / full_ms * 100.0),
            target: Target::OPEN,
            params,
        });
    }
}

fn draw(bench: &mut Bench, curves: Vec<Vec<(f64, f64)>>) {
    let measured = WAYS.iter().zip(curves).map(|((name, _), mut curve)| {
        curve.reverse();
        Series::measured(name, curve)
    });
    let mut series: Vec<Series> = measured.collect();
    series.push(Series::reported("Dreseler 2021", THESIS.to_vec()));
    let x = Axis::linear("% of all bytes in DRAM");
    let y = Axis::linear("time of 22 queries / all in DRAM");
    bench.draw("Weights of random accesses (compare Dreseler 2021, figure 7.5)", plot::svg(&x, &y, &series));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(column: &str, chunk: u64, bytes: f64, scanned: f64, looked_up: f64) -> Segment {
        let table = "t".to_owned();
        Segment { table, column: column.to_owned(), chunk, bytes, scanned, looked_up, ..Segment::default() }
    }

    #[test]
    fn a_weight_decides_which_segments_come_first() {
        let all = [
            segment("scanned", 1, 4096.0, 1000.0, 0.0),
            segment("random", 2, 4096.0, 0.0, 100.0),
            segment("random", 5, 8192.0, 0.0, 150.0),
            segment("never", 3, 4096.0, 0.0, 0.0),
        ];
        let names = |weight, budget| -> Vec<u64> { choose(&all, weight, budget).iter().map(|s| s.chunk).collect() };
        assert_eq!(names(1.0, 4096.0), [1]);
        assert_eq!(names(100.0, 4096.0), [2]);
        assert_eq!(names(100.0, 12_288.0), [2, 5]);
        // The second does not fit, so the third comes.
        assert_eq!(names(100.0, 8192.0), [2, 1]);
        assert_eq!(names(1.0, 1e9).len(), 3);
        assert!(names(1.0, 0.0).is_empty());
    }

    #[test]
    fn one_statement_brings_all_chunks_of_a_column() {
        let all = [segment("b", 2, 1.0, 1.0, 0.0), segment("a", 4, 1.0, 1.0, 0.0), segment("b", 7, 1.0, 1.0, 0.0)];
        let chosen: Vec<&Segment> = all.iter().collect();
        let expected = ["BRING BACK t COLUMNS (a) CHUNKS 4 TO dram", "BRING BACK t COLUMNS (b) CHUNKS 2, 7 TO dram"];
        assert_eq!(statements(&chosen), expected);
    }
}
