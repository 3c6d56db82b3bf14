//! Plans of statements for people: EXPLAIN without a box, and EXPLAIN ANALYZE as a tree with a line per operator.
//!
//! A line of the tree has the rows that the operator gave, its time over all threads, its name, and as much of its figures and
//! details as the width allows. `--format json` and `\x` show all of them.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;

use super::cells::{cut, padded, texts, width};
use crate::error::Result;

/// Width of a tree where there is no terminal, and its greatest width.
const COLUMNS: usize = 120;
/// Part of a line that figures may take, as a divisor.
const FIGURES_PART: usize = 2;
/// The plan with what its operators did.
const ANALYZED: &str = "Plan with Metrics";

/// Whether rows of this schema are those of an EXPLAIN.
pub fn is_plan(schema: &Schema) -> bool {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    names == ["plan_type", "plan"]
}

/// The rows of an EXPLAIN as text, in at most `columns` columns where it is a tree.
pub fn render(rows: &[RecordBatch], columns: Option<usize>) -> Result<String> {
    let columns = columns.unwrap_or(COLUMNS).clamp(40, COLUMNS);
    let mut out = String::new();
    for batch in rows {
        for row in texts(batch)? {
            let [kind, plan] = row.as_slice() else { continue };
            let plan = plan.trim_end();
            match plan.contains('\n') || kind == ANALYZED {
                false => out.push_str(&format!("{kind}: {plan}\n")),
                true => match operators(plan).filter(|_| kind == ANALYZED) {
                    Some(operators) => out.push_str(&tree(&operators, columns)),
                    None => out.push_str(&format!("{kind}:\n{plan}\n")),
                },
            }
        }
    }
    Ok(out)
}

/// An operator, from a line `Name: details, metrics=[name=value, ..]`.
struct Operator<'a> {
    depth: usize,
    name: &'a str,
    details: &'a str,
    metrics: Vec<Metric<'a>>,
}

#[derive(Clone, Copy)]
struct Metric<'a> {
    name: &'a str,
    value: &'a str,
}

/// The operators of a plan; nothing when a line is none.
fn operators(plan: &str) -> Option<Vec<Operator<'_>>> {
    plan.lines().map(Operator::read).collect()
}

impl<'a> Operator<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let body = line.trim_start_matches(' ');
        let (head, metrics) = body.rsplit_once(", metrics=[")?;
        let metrics = metrics.rsplit_once(']')?.0;
        let end = head.find([':', ' ']).unwrap_or(head.len());
        let (name, details) = head.split_at_checked(end)?;
        let metric = |text: &'a str| text.split_once('=').map(|(name, value)| Metric { name, value });
        Some(Self {
            depth: (line.len() - body.len()) / 2,
            name,
            details: details.trim_start_matches([':', ' ']),
            metrics: metrics.split(", ").filter_map(metric).collect(),
        })
    }

    /// The value of a figure; nothing where it is zero or unknown.
    fn value(&self, name: &str) -> Option<&'a str> {
        let found = self.metrics.iter().find(|metric| metric.name == name)?.value;
        (!is_nothing(found)).then_some(found)
    }

    fn rows(&self) -> &'a str {
        self.metrics.iter().find(|metric| metric.name == "output_rows").map_or("", |metric| metric.value)
    }

    /// The figures in short: of a scan what it skipped and where it read, of others what is not zero.
    fn figures(&self) -> String {
        if self.value("chunks_total").is_some() {
            return self.scan_figures();
        }
        let is_told = |metric: &&Metric<'_>| {
            !metric.name.starts_with("output_") && metric.name != "elapsed_compute" && !is_nothing(metric.value)
        };
        let told = self.metrics.iter().filter(is_told);
        told.map(|metric| format!("{}={}", metric.name, metric.value)).collect::<Vec<_>>().join(", ")
    }

    fn scan_figures(&self) -> String {
        let mut parts = vec![format!("{} chunks", self.value("chunks_total").unwrap_or_default())];
        for (name, what) in
            [("chunks_pruned", "pruned"), ("chunks_pruned_dynamic", "pruned at run time"), ("chunks_cold", "cold")]
        {
            parts.extend(self.value(name).map(|value| format!("{value} {what}")));
        }
        for Metric { name, value } in self.metrics.iter().filter(|metric| !is_nothing(metric.value)) {
            parts.extend(name.strip_prefix("bytes_").map(|tier| format!("{tier} {}", bytes(value))));
        }
        parts.extend(self.value("io_wait").map(|value| format!("waited {value}")));
        parts.join(", ")
    }
}

fn is_nothing(value: &str) -> bool {
    ["0", "0.0 B", "0 B", "NOT RECORDED", "N/A"].contains(&value)
}

/// A count of bytes, as DataFusion writes counts: `12.40 M`.
fn bytes(count: &str) -> String {
    match count.rsplit_once(' ') {
        Some((number, "K")) => format!("{number} kB"),
        Some((number, "B")) => format!("{number} GB"),
        Some((number, unit)) => format!("{number} {unit}B"),
        None => format!("{count} B"),
    }
}

fn tree(operators: &[Operator<'_>], columns: usize) -> String {
    let widest = |text: fn(&Operator<'_>) -> usize| operators.iter().map(text).max().unwrap_or(0);
    let rows = widest(|operator| width(operator.rows())).max(4);
    let time = widest(|operator| operator.value("elapsed_compute").map_or(0, width)).max(4);
    // Deep plans are indented less, so that they leave room.
    let indent = if widest(|operator| operator.depth) * 2 > columns / 3 { 1 } else { 2 };
    let mut out = format!("{}  {}  operator\n", padded("rows", rows, true), padded("time", time, true));
    for operator in operators {
        let mut line = format!(
            "{}  {}  {}{}",
            padded(operator.rows(), rows, true),
            padded(operator.value("elapsed_compute").unwrap_or(""), time, true),
            " ".repeat(operator.depth * indent),
            operator.name
        );
        // What an operator works on comes first: without its table, a scan says nothing.
        let (object, details) = match operator.details.strip_prefix("table=").and_then(|rest| rest.split_once(", ")) {
            Some((table, details)) => (table, details),
            None => ("", operator.details),
        };
        let mut figures = operator.figures();
        // The figures of a scan tell more than the rest of its details.
        if object.is_empty() && !details.is_empty() {
            figures = cut(&figures, columns.saturating_sub(width(&line)) / FIGURES_PART).into_owned();
        }
        for part in [object, figures.as_str(), details] {
            if !part.is_empty() {
                line.push_str("  ");
                line.push_str(part);
            }
        }
        out.push_str(&cut(line.trim_end(), columns));
        out.push('\n');
    }
    out
}
