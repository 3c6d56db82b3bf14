//! What placement decides for TPC-H with three tiers: each column and each segment by its size and accesses, and its tier.
//!
//! Dreseler 2021, figure 7.1 (section 7.1.2): 10 % of the bytes in DRAM, 30 % on NVM, the rest on SSD; columns that no
//! query reads have 56 % of the bytes. The figure is a chart; only its text has numbers.

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::tier::codec::FormChoice;

use super::segments::{Segment, share_of_bytes};
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::side::SideSpec;
use crate::tpch::{self, TABLES};

/// Shares of all bytes that DRAM and NVM may take.
const DRAM: f64 = 0.1;
const NVM: f64 = 0.3;
/// The thesis' share of the bytes in columns that nobody reads.
const UNREAD: f64 = 0.56;
const TIERS: [&str; 3] = ["DRAM", "NVM", "SSD"];
const SIDES: (&str, &str) = ("placement", "all bytes");

/// Runs all queries, places once, and shows every segment.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let store = bench.dataset(scale)?.clone_store()?;
    let spec = SideSpec::Terrace {
        store: store.path(),
        threads: bench.threads,
        nvm: true,
        policy: PolicyKind::Optimal,
        form: FormChoice::Plain,
    };
    let mut side = Child::start("Terrace, three tiers", &spec)?;
    for query in tpch::names() {
        bench.ask(&mut side, &query)?;
    }
    side.ask(&format!("limit nvm {NVM}"))?;
    bench.ask(&mut side, &format!("place {DRAM}"))?;
    let all = Segment::all(&side.ask("heat")?);
    if all.iter().any(|segment| segment.tier >= TIERS.len()) {
        return Err(Error::failed("a segment lies on a tier that is not DRAM, NVM or SSD"));
    }
    let columns = Segment::columns(&all);
    let unread = share_of_bytes(&columns, |column| column.accesses == 0.0);
    let params = |paper: Option<f64>| json!({ "scale": scale, "segments": all.len(), "columns": columns.len(), "unit": "share", "paper": paper });
    println!("  {:<8}{:>10}{:>16}{:>22}", "tier", "segments", "of the bytes", "of the bytes read");
    for (tier, name) in TIERS.iter().enumerate() {
        let share = share_of_bytes(&all, |segment| segment.tier == tier);
        let count = all.iter().filter(|segment| segment.tier == tier).count();
        println!("  {name:<8}{count:>10}{:>14.1} %{:>20.1} %", share * 100.0, share_of_reads(&all, tier) * 100.0);
        let what = format!("bytes read that come from {name}");
        let values = [share_of_reads(&all, tier)];
        bench.add(Finding { sides: SIDES, what: &what, values: &values, target: Target::OPEN, params: params(None) });
    }
    bench.add(Finding {
        sides: SIDES,
        what: "bytes of columns that nobody reads",
        values: &[unread],
        target: Target::OPEN,
        params: params(Some(UNREAD)),
    });
    draw(bench, &columns, &all);
    Ok(())
}

/// The share of a tier in all bytes that whole reads of the segments take: accesses times bytes.
fn share_of_reads(all: &[Segment], tier: usize) -> f64 {
    let read = |segment: &Segment| segment.accesses * segment.bytes;
    let there: f64 = all.iter().filter(|segment| segment.tier == tier).map(read).sum();
    there / all.iter().map(read).sum::<f64>().max(1.0)
}

/// Bytes across and accesses up; as in the figure, what nobody reads is drawn with one access.
fn points<'a>(segments: impl Iterator<Item = &'a Segment>) -> Vec<(f64, f64)> {
    segments.filter(|s| s.bytes > 0.0).map(|segment| (segment.bytes, segment.accesses.max(1.0))).collect()
}

fn draw(bench: &mut Bench, columns: &[Segment], all: &[Segment]) {
    let x = Axis::logarithmic("bytes");
    let y = Axis::logarithmic("statements that read it (1: none or one)");
    let of_table = |table: &'static str| columns.iter().filter(move |column| column.table == table);
    let by_table: Vec<Series> =
        TABLES.iter().map(|table| Series::scattered(table.name, points(of_table(table.name)))).collect();
    bench.draw("Columns of TPC-H (compare Dreseler 2021, figure 7.1, top)", plot::svg(&x, &y, &by_table));
    let on_tier = |tier: usize| all.iter().filter(move |segment| segment.tier == tier);
    let by_tier: Vec<Series> =
        TIERS.iter().enumerate().map(|(tier, name)| Series::scattered(name, points(on_tier(tier)))).collect();
    let title = "Segments of TPC-H by tier: 10 % DRAM, 30 % NVM (compare Dreseler 2021, figure 7.1, bottom)";
    bench.draw(title, plot::svg(&x, &y, &by_tier));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_shared_by_bytes_and_accesses() {
        let segment = |bytes, accesses, tier| Segment { bytes, accesses, tier, ..Segment::default() };
        let all = [segment(10.0, 9.0, 0), segment(100.0, 0.0, 2), segment(10.0, 1.0, 1)];
        assert_eq!([0, 1, 2].map(|tier| share_of_reads(&all, tier)), [0.9, 0.1, 0.0]);
        assert_eq!(points(all.iter()), [(10.0, 9.0), (100.0, 1.0), (10.0, 1.0)]);
        assert_eq!(share_of_reads(&[], 0), 0.0);
        assert!(points([segment(0.0, 5.0, 0)].iter()).is_empty());
    }
}
