//! Heat maps of query 18 over TPC-H and over the same with days that have half of the orders of their year.
//!
//! Dreseler 2021, figure 6.4 (section 6.3.1), by JCC-H: of seven years five have such a day, and "the remaining five Black Fridays
//! can clearly be visually identified" in the 22 chunks of `orders`. The figure is a chart. The data with the skew is ours
//! ([`crate::black_friday`]).

use serde_json::json;

use super::segments::Segment;
use crate::bench::{Bench, Finding, Target};
use crate::black_friday::{BlackFriday, YEARS};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::heat_map::{self, HeatRow};
use crate::row::Sample;
use crate::side::{SideSpec, Workload};

const QUERY: &str = "q18";
/// The column by whose values chunks of `orders` are compared: query 18 reads it only of orders that it found.
const COLUMN: &str = "o_totalprice";
/// Tables of the figure.
const SHOWN: [&str; 2] = ["orders", "lineitem"];

/// Runs the query on both, and compares their maps.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let data = BlackFriday::new(&bench.data_dir, scale);
    if !(data.store().is_dir() && data.even_store().is_dir()) {
        eprintln!("  making TPC-H of scale {scale} with days that have half of the orders of a year");
        bench.prepare(Workload::BlackFriday, scale)?;
    }
    let even = measure(bench, "TPC-H", &StoreClone::from_store(&data.even_store())?)?;
    let skewed = measure(bench, "with skewed dates", &StoreClone::from_store(&data.store())?)?;
    let values = |rows: &[HeatRow]| {
        let row = rows.iter().find(|row| row.name == format!("orders.{COLUMN}"));
        row.map(|row| row.counts.clone()).ok_or_else(|| Error::failed(format!("there is no column {COLUMN}")))
    };
    let even_values = values(&even)?;
    let skewed_values = values(&skewed)?;
    bench.draw(
        "Values that query 18 reads, TPC-H (compare Dreseler 2021, figure 6.4, top)",
        heat_map::svg("values read", &even),
    );
    bench.draw(
        "The same with skewed dates (compare Dreseler 2021, figure 6.4, bottom)",
        heat_map::svg("values read", &skewed),
    );
    let params = json!({
        "scale": scale, "chunks_even": even_values.len(), "chunks_skewed": skewed_values.len(),
        "above_mean_even": peaks(&even_values), "paper": YEARS.len(),
    });
    let found = peaks(&skewed_values) as f64;
    println!("  runs of chunks of orders above the mean: {found} with skewed dates, {} without", peaks(&even_values));
    bench.add(Finding {
        sides: ("peaks in the chunks of orders", "days with half of the orders of a year"),
        what: "q18: days that the counters show, fewer to more",
        values: &[agreement(found, YEARS.len() as f64)],
        target: Target::above(1.0, 1.0),
        params: params.clone(),
    });
    bench.add(Finding {
        sides: ("with skewed dates", "TPC-H"),
        what: "q18: largest chunk to the mean",
        values: &[largest_to_mean(&skewed_values) / largest_to_mean(&even_values)],
        target: Target::OPEN,
        params,
    });
    Ok(())
}

/// The values that one run of the query reads, by column and chunk.
fn measure(bench: &mut Bench, name: &str, store: &StoreClone) -> Result<Vec<HeatRow>> {
    let mut side = Child::start(name, &SideSpec::terrace(store.path(), bench.threads))?;
    let before = side.ask("heat")?;
    bench.ask(&mut side, QUERY)?;
    Ok(rows(&before, &side.ask("heat")?))
}

/// The rows of the map: chunks in the order of their numbers.
fn rows(before: &Sample, after: &Sample) -> Vec<HeatRow> {
    let values = |segment: &Segment| segment.scanned + segment.looked_up;
    let of_table = |table: &str| {
        let mut pairs: Vec<(Segment, f64)> = Segment::all(after)
            .into_iter()
            .zip(Segment::all(before))
            .filter(|(now, _)| now.table == table)
            .map(|(now, then)| {
                let read = values(&now) - values(&then);
                (now, read)
            })
            .collect();
        pairs.sort_by(|(a, _), (b, _)| (&a.column, a.chunk).cmp(&(&b.column, b.chunk)));
        let mut rows: Vec<HeatRow> = Vec::new();
        for (segment, read) in pairs {
            let name = format!("{table}.{}", segment.column);
            match rows.last_mut().filter(|row| row.name == name) {
                Some(row) => row.counts.push(read),
                None => rows.push(HeatRow { name, counts: vec![read] }),
            }
        }
        rows
    };
    SHOWN.iter().flat_map(|table| of_table(table)).collect()
}

/// The number of runs of neighbours above the mean.
fn peaks(counts: &[f64]) -> usize {
    let mean = counts.iter().sum::<f64>() / counts.len().max(1) as f64;
    let above: Vec<bool> = counts.iter().map(|count| *count > mean).collect();
    let begins = above.iter().zip(std::iter::once(&false).chain(&above)).filter(|(now, before)| **now && !**before);
    begins.count()
}

/// The smaller number as a share of the larger one.
fn agreement(a: f64, b: f64) -> f64 {
    a.min(b) / a.max(b).max(1.0)
}

fn largest_to_mean(counts: &[f64]) -> f64 {
    let largest = counts.iter().copied().fold(0.0, f64::max);
    largest * counts.len() as f64 / counts.iter().sum::<f64>().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_runs_above_the_mean() {
        assert_eq!(peaks(&[0.0, 9.0, 8.0, 0.0, 1.0, 7.0, 0.0]), 2);
        assert_eq!(peaks(&[9.0, 0.0, 0.0, 9.0]), 2);
        assert_eq!((peaks(&[3.0, 3.0]), peaks(&[])), (0, 0));
        assert_eq!(largest_to_mean(&[0.0, 6.0, 0.0]), 3.0);
        assert_eq!(largest_to_mean(&[]), 0.0);
        assert_eq!([agreement(4.0, 5.0), agreement(5.0, 4.0), agreement(0.0, 0.0)], [0.8, 0.8, 0.0]);
    }

    #[test]
    fn rows_have_the_values_read_since_the_first_look_in_the_order_of_chunks() {
        let look = |read: [f64; 3]| {
            let of = |sample: Sample, position: usize, chunk: f64, read: f64| {
                let path = format!("orders/a/{position}");
                let sample = sample.with(&format!("accesses/{path}"), 1.0).with(&format!("chunk/{path}"), chunk);
                sample.with(&format!("scanned/{path}"), read).with(&format!("looked-up/{path}"), 1.0)
            };
            // As text, position 10 comes before 9.
            of(of(of(Sample::default(), 0, 1.0, read[0]), 9, 10.0, read[1]), 10, 11.0, read[2])
                .with("accesses/nation/b/0", 5.0)
        };
        let rows = rows(&look([1.0, 1.0, 1.0]), &look([1.0, 5.0, 9.0]));
        assert_eq!(rows.len(), 1);
        let row = rows.first().map(|row| (row.name.as_str(), row.counts.clone()));
        assert_eq!(row, Some(("orders.a", vec![0.0, 4.0, 8.0])));
    }
}
