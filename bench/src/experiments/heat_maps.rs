//! Heat maps of TPC-H from the access counters of segments: tables and columns down, chunks across.
//!
//! Dreseler 2021, figure 6.3 (p. 95; 6.3.1; query 5 alone): 5 of 22 chunks of `orders` are pruned, in 17 of 91 chunks
//! of `lineitem` some segments are not accessed because the join finds nothing there; section 7.1.2: 55 % of the bytes
//! are never read.

use std::collections::BTreeMap;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::error::Result;
use crate::heat_map::{self, HeatRow};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::tpch::{self, TABLES};

/// The thesis' query.
const QUERY: &str = "q5";
const SIDES: (&str, &str) = ("access counters", "all");

/// In the thesis, half of the bytes were strings that no query reads. Their share depends on encodings, so this row has
/// no reach.
const UNREAD: (f64, f64) = (0.55, 0.0);
/// The thesis' values, which are also the reach: 5 of 22 chunks, 17 of 91.
const PRUNED: (f64, f64) = (0.227, 0.227);
const SPARED: (f64, f64) = (0.187, 0.187);

/// The accesses of one run of some queries.
struct Accesses {
    /// By table and column, in the order of chunks: accesses and bytes.
    columns: BTreeMap<(String, String), Vec<(f64, f64)>>,
}

impl Accesses {
    fn between(before: &Sample, after: &Sample) -> Self {
        let mut columns = BTreeMap::<(String, String), Vec<(f64, f64)>>::new();
        for (name, accesses) in &after.values {
            let Some((rest, position)) = name.strip_prefix("accesses/").and_then(|name| name.rsplit_once('/')) else {
                continue;
            };
            let (Some((table, column)), Ok(position)) = (rest.split_once('/'), position.parse::<usize>()) else {
                continue;
            };
            let chunks = columns.entry((table.to_owned(), column.to_owned())).or_default();
            if chunks.len() <= position {
                chunks.resize(position + 1, (0.0, 0.0));
            }
            if let Some(chunk) = chunks.get_mut(position) {
                *chunk = (accesses - before.value(name), after.value(&format!("bytes/{rest}/{position}")));
            }
        }
        Self { columns }
    }

    /// The rows of the map: tables in the order of the benchmark, the largest last.
    fn rows(&self) -> Vec<HeatRow> {
        let of = |table: &str| {
            let own = self.columns.iter().filter(|((name, _), _)| name == table).collect::<Vec<_>>();
            own.into_iter().map(|((table, column), chunks)| HeatRow {
                name: format!("{table}.{column}"),
                counts: chunks.iter().map(|(accesses, _)| *accesses).collect(),
            })
        };
        TABLES.iter().flat_map(|table| of(table.name)).collect()
    }

    /// The share of the bytes that were not accessed.
    fn unread_bytes(&self) -> f64 {
        let all = || self.columns.values().flatten();
        let unread: f64 = all().filter(|(accesses, _)| *accesses == 0.0).map(|(_, bytes)| bytes).sum();
        unread / all().map(|(_, bytes)| bytes).sum::<f64>().max(1.0)
    }

    /// The share of a table's chunks for which `is_meant` returns true. Its argument is the chunk's accesses by column,
    /// without columns that were never accessed.
    fn chunks(&self, table: &str, is_meant: impl Fn(&[f64]) -> bool) -> f64 {
        let own = self.columns.iter().filter(|((name, _), _)| name == table).map(|(_, chunks)| chunks);
        let read: Vec<_> = own.filter(|chunks| chunks.iter().any(|(accesses, _)| *accesses > 0.0)).collect();
        let count = read.iter().map(|chunks| chunks.len()).max().unwrap_or(0);
        let accesses = |at: usize| -> Vec<f64> { read.iter().filter_map(|c| c.get(at)).map(|(a, _)| *a).collect() };
        (0..count).filter(|at| is_meant(&accesses(*at))).count() as f64 / count.max(1) as f64
    }
}

/// Measures query 5 by itself, then all queries.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let store = bench.dataset(scale)?.clone_store()?;
    let mut child = Child::start(SIDES.0, &SideSpec::terrace(store.path(), bench.threads))?;
    let nothing = child.ask("heat")?;
    bench.ask(&mut child, QUERY)?;
    let after_one = child.ask("heat")?;
    let one = Accesses::between(&nothing, &after_one);
    for query in tpch::names() {
        bench.ask(&mut child, &query)?;
    }
    let all = Accesses::between(&after_one, &child.ask("heat")?);
    bench.draw(
        "Accesses of query 5 (compare Dreseler 2021, figure 6.3: orders pruned at both ends, lineitem by the join)",
        heat_map::svg("accesses", &one.rows()),
    );
    bench.draw("Accesses of the 22 queries", heat_map::svg("accesses", &all.rows()));
    let segments: usize = all.columns.values().map(Vec::len).sum();
    let mut add = |what: &str, value: f64, (papers, reach): (f64, f64)| {
        let params = json!({ "scale": scale, "segments": segments, "unit": "share", "paper": papers });
        bench.add(Finding { sides: SIDES, what, values: &[value], target: Target::above(reach, papers), params });
    };
    add("bytes that nobody reads", all.unread_bytes(), UNREAD);
    let none = |accesses: &[f64]| accesses.iter().all(|count| *count == 0.0);
    add("q5: chunks of orders pruned", one.chunks("orders", none), PRUNED);
    let some_not = |accesses: &[f64]| accesses.contains(&0.0);
    add("q5: chunks of lineitem spared", one.chunks("lineitem", some_not), SPARED);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_the_difference_of_two_looks() {
        let look = |a0: f64, a1: f64, a10: f64| {
            let of = |sample: Sample, name: &str, accesses: f64, bytes: f64| {
                sample.with(&format!("accesses/{name}"), accesses).with(&format!("bytes/{name}"), bytes)
            };
            let sample = of(Sample::default(), "orders/a/0", a0, 10.0);
            let sample = of(of(sample, "orders/a/1", a1, 10.0), "orders/a/2", 7.0, 10.0);
            of(of(sample, "orders/b/1", a10, 30.0), "orders/never/1", 0.0, 40.0)
        };
        let seen = Accesses::between(&look(1.0, 1.0, 5.0), &look(1.0, 3.0, 5.5));
        let rows = seen.rows();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["orders.a", "orders.b", "orders.never"]);
        assert_eq!(rows.first().map(|row| row.counts.clone()), Some(vec![0.0, 2.0, 0.0]));
        assert_eq!(seen.unread_bytes(), (10.0 + 10.0 + 40.0) / 100.0);
        assert_eq!(seen.chunks("orders", |of| of.iter().all(|count| *count == 0.0)), 2.0 / 3.0);
        assert_eq!(seen.chunks("orders", |of| of.contains(&0.0)), 2.0 / 3.0);
    }
}
