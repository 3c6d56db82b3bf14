//! Moves of single segments between two memory tiers, by size and by type of the column, one after the other.
//!
//! Dreseler 2021, figure 5.8 (section 5.5.5): uncompressed TPC-H from one pool in DRAM to another, by one thread. The
//! larger a segment, the faster; integers and short texts reach 2 GB/s, where `memcpy` gives 8; texts on the heap are
//! slower. Terrace copies the image of a segment whatever its type, so the type should not matter here. The second tier is NVM
//! emulated by memory that is not slowed.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;
use crate::tpch::TABLES;

/// Share of `memcpy` that integers and short texts reach in the thesis: 2 of 8 GB/s.
const THESIS: f64 = 0.25;
/// Segments from this size on count in the rows: smaller ones are mostly overhead.
const LARGE_BYTES: f64 = 100e3;
/// Largest segments in a quick run, where chunks are few.
const QUICK_LARGE_BYTES: f64 = 10e3;
/// Texts in segments of more bytes are long.
const LONG_TEXTS_BYTES: f64 = 16.0 * 65_536.0;
/// NVM is mapped in advance, as the target of these copies.
const MEMCPY: &str = "memcpy by one thread, into mapped memory";

/// Kinds of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Numbers,
    Decimals,
    ShortTexts,
    LongTexts,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Numbers, Self::Decimals, Self::ShortTexts, Self::LongTexts];

    /// The kind of a column whose largest segment has so many bytes.
    fn new(data_type: &DataType, largest_bytes: f64) -> Self {
        match data_type {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View if largest_bytes > LONG_TEXTS_BYTES => {
                Self::LongTexts
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::ShortTexts,
            DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => Self::Decimals,
            _ => Self::Numbers,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Numbers => "integers and dates",
            Self::Decimals => "decimals",
            Self::ShortTexts => "short texts",
            Self::LongTexts => "long texts",
        }
    }
}

/// A move: bytes of the image, and bytes per microsecond, which are MB/s.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moved {
    bytes: f64,
    mb_per_s: f64,
}

/// The moves of an answer to `send-each`, by table and column; those that took no time that the clock shows are left out.
fn moves(sample: &Sample) -> BTreeMap<(String, String), Vec<Moved>> {
    let mut columns = BTreeMap::<(String, String), Vec<Moved>>::new();
    for (name, us) in &sample.values {
        let Some(path) = name.strip_prefix("us/") else { continue };
        let bytes = sample.value(&format!("bytes/{path}"));
        let mut words = path.split('/');
        let (Some(table), Some(column)) = (words.next(), words.next()) else { continue };
        if *us > 0.0 && bytes > 0.0 {
            let moved = Moved { bytes, mb_per_s: bytes / us };
            columns.entry((table.to_owned(), column.to_owned())).or_default().push(moved);
        }
    }
    columns
}

/// The moves by kind of their columns.
fn by_kind(columns: BTreeMap<(String, String), Vec<Moved>>) -> BTreeMap<Kind, Vec<Moved>> {
    let mut kinds = BTreeMap::<Kind, Vec<Moved>>::new();
    for ((table, column), moves) in columns {
        let schema = TABLES.iter().find(|known| known.name == table).map(|known| known.schema());
        let field = schema.as_ref().and_then(|schema| schema.field_with_name(&column).ok());
        let largest = moves.iter().map(|moved| moved.bytes).fold(0.0, f64::max);
        let kind = field.map_or(Kind::Numbers, |field| Kind::new(field.data_type(), largest));
        kinds.entry(kind).or_default().extend(moves);
    }
    kinds
}

/// Moves all of TPC-H from DRAM to NVM and back, round by round.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let store = bench.dataset(scale)?.clone_store()?;
    let spec = SideSpec::Tiers { store: store.path(), threads: bench.threads, single_mover: true };
    let mut side = Child::start("Terrace, moves one after the other", &spec)?;
    let mut copy = Child::start(MEMCPY, &SideSpec::Copy { threads: 1 })?;
    let large = if bench.quick { QUICK_LARGE_BYTES } else { LARGE_BYTES };
    // The first moves fault in memory that later ones have.
    for tier in ["dram", "nvm", "dram"] {
        side.ask(&format!("send {tier}"))?;
    }
    copy.ask("copy 1")?;
    let mut shares = BTreeMap::<Kind, Vec<f64>>::new();
    let mut shown = BTreeMap::<Kind, Vec<Moved>>::new();
    let mut rounds = 0;
    while bench.wants_another_round(rounds) {
        let memcpy = bench.ask(&mut copy, "copy 1")?;
        let memcpy_mb_per_s = memcpy.value("bytes") / memcpy.ms / 1e3;
        let kinds = by_kind(moves(&side.ask("send-each nvm")?));
        side.ask("send dram")?;
        for (kind, moved) in &kinds {
            let speeds: Vec<f64> = moved.iter().filter(|m| m.bytes >= large).map(|m| m.mb_per_s).collect();
            if speeds.is_empty() {
                continue;
            }
            shares.entry(*kind).or_default().push(median(&speeds) / memcpy_mb_per_s);
            let sample = Sample::new(0.0).with("mb_per_s", median(&speeds)).with("memcpy_mb_per_s", memcpy_mb_per_s);
            bench.record(side.name(), kind.name(), sample);
        }
        shown = kinds;
        rounds += 1;
    }
    println!("  {:<22}{:>10}{:>14}{:>18}", "columns", "segments", "of memcpy", "thesis, at most");
    for kind in Kind::ALL {
        let (Some(values), Some(moved)) = (shares.get(&kind), shown.get(&kind)) else {
            bench.leave_out(kind.name(), "no segment of it is large enough; use a larger scale");
            continue;
        };
        println!("  {:<22}{:>10}{:>14.2}{THESIS:>18.2}", kind.name(), moved.len(), median(values));
        let params = json!({ "scale": scale, "segments": moved.len(), "from_bytes": large, "paper": THESIS });
        let what = format!("moves of {}", kind.name());
        bench.add(Finding { sides: (side.name(), MEMCPY), what: &what, values, target: Target::OPEN, params });
    }
    draw(bench, &shown);
    Ok(())
}

fn draw(bench: &mut Bench, moves: &BTreeMap<Kind, Vec<Moved>>) {
    let series: Vec<Series> = moves
        .iter()
        .map(|(kind, moves)| {
            Series::scattered(kind.name(), moves.iter().map(|moved| (moved.bytes, moved.mb_per_s)).collect())
        })
        .collect();
    let x = Axis::logarithmic("bytes of a segment");
    let y = Axis::logarithmic("MB/s");
    bench
        .draw("Moves of segments between memory tiers (compare Dreseler 2021, figure 5.8)", plot::svg(&x, &y, &series));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_read_by_column_and_sorted_by_kind() {
        let with = |sample: Sample, path: &str, bytes: f64, us: f64| {
            sample.with(&format!("bytes/{path}"), bytes).with(&format!("us/{path}"), us)
        };
        let sample = with(Sample::default(), "lineitem/l_orderkey/0", 262_144.0, 131_072.0);
        let sample = with(sample, "lineitem/l_comment/1", 3e6, 1e3);
        let sample = with(sample, "lineitem/l_tax/2", 100.0, 0.0);
        let sample = with(sample, "lineitem/l_shipmode/3", 1000.0, 10.0);
        let columns = moves(&sample);
        assert_eq!(columns.len(), 3);
        let kinds = by_kind(columns);
        assert_eq!(kinds.get(&Kind::Numbers), Some(&vec![Moved { bytes: 262_144.0, mb_per_s: 2.0 }]));
        assert_eq!(kinds.get(&Kind::LongTexts), Some(&vec![Moved { bytes: 3e6, mb_per_s: 3000.0 }]));
        assert_eq!(kinds.get(&Kind::ShortTexts), Some(&vec![Moved { bytes: 1000.0, mb_per_s: 100.0 }]));
        assert_eq!(kinds.get(&Kind::Decimals), None);
        assert_eq!(Kind::new(&DataType::Decimal128(15, 2), 1e9), Kind::Decimals);
        assert_eq!(Kind::new(&DataType::Date32, 1e9), Kind::Numbers);
    }
}
