//! Prints what was measured.

use serde::Serialize;
use serde_json::json;
use terrace_device::Properties;

/// A query that was timed.
#[derive(Debug, Serialize)]
pub struct QueryRow {
    /// Benchmark.
    pub benchmark: &'static str,
    /// Name of the query.
    pub query: &'static str,
    /// How columns lie.
    pub lay: String,
    /// Where a block adds up groups: in places of each thread, of the block, or in the output.
    pub places: String,
    /// Rows scanned.
    pub rows: u64,
    /// Rows that passed the filter and the joins.
    pub selected: u64,
    /// Bytes of all columns that the query reads, read in full or not.
    pub bytes: u64,
    /// Bytes of the build sides.
    pub table_bytes: u64,
    /// Time to check the scan and to copy its program to the device.
    pub prepare_us: f64,
    /// The same with the first launch and the result.
    pub first_us: f64,
    /// Time of a launch.
    pub us: f64,
    /// Columns and build sides over the time: 1,000 are 1 GB/s.
    pub bytes_per_us: f64,
    /// That over what the device reads.
    pub share_of_ceiling: f64,
}

/// Lines of output, as text or as JSON.
#[derive(Debug)]
pub struct Report {
    json: bool,
    queries: Vec<QueryRow>,
    facts: Vec<(String, serde_json::Value)>,
}

impl Report {
    /// A report about a device.
    pub fn new(properties: &Properties, json: bool) -> Self {
        let mut report = Self { json, queries: Vec::new(), facts: Vec::new() };
        let emulated = if properties.emulated { ", emulated: this is no GPU" } else { "" };
        report.fact("device", format!("{} ({}{emulated})", properties.name, properties.driver).into());
        report.fact("memory_gib", (properties.memory_bytes as f64 / f64::from(1 << 30)).into());
        report.fact("multiprocessors", properties.multiprocessors.into());
        report
    }

    /// Adds one figure.
    pub fn fact(&mut self, name: &str, value: serde_json::Value) {
        if !self.json {
            match value.as_f64() {
                Some(number) if !value.is_u64() => println!("{name:<24} {number:.2}"),
                _ => println!("{name:<24} {}", value.to_string().trim_matches('"')),
            }
        }
        self.facts.push((name.to_owned(), value));
    }

    /// Adds a query.
    pub fn query(&mut self, row: QueryRow) {
        if !self.json {
            if self.queries.is_empty() {
                println!(
                    "\n{:<10} {:<7} {:<10} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7}",
                    "query", "lay", "places", "rows", "selected", "MB", "tables MB", "first ms", "ms", "GB/s", "share"
                );
            }
            println!(
                "{:<10} {:<7} {:<10} {:>11} {:>11} {:>9.1} {:>9.2} {:>9.2} {:>9.3} {:>8.0} {:>7.2}",
                format!("{} {}", row.benchmark, row.query),
                row.lay,
                row.places,
                row.rows,
                row.selected,
                row.bytes as f64 / 1e6,
                row.table_bytes as f64 / 1e6,
                row.first_us / 1e3,
                row.us / 1e3,
                row.bytes_per_us / 1e3,
                row.share_of_ceiling,
            );
        }
        self.queries.push(row);
    }

    /// Prints what was kept for the end.
    pub fn finish(&self) {
        if self.json {
            let facts: serde_json::Map<_, _> = self.facts.iter().cloned().collect();
            println!("{}", json!({ "facts": facts, "queries": self.queries }));
            return;
        }
        for lay in ["plain", "packed"] {
            for benchmark in ["TPC-H", "SSB"] {
                let rows = self.queries.iter().filter(|row| row.lay == lay && row.benchmark == benchmark);
                let shares: Vec<f64> = rows.map(|row| row.share_of_ceiling).collect();
                let Some(least) = shares.iter().copied().reduce(f64::min) else { continue };
                let mean = (shares.iter().map(|share| share.ln()).sum::<f64>() / shares.len() as f64).exp();
                println!("{benchmark}, {lay}: share of the ceiling {mean:.2} (geometric mean), at least {least:.2}");
            }
        }
    }
}
