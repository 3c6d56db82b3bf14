//! The output of the demo: tables for a person, JSON for a program.

use std::fmt::Write;

use serde::Serialize;
use terrace_tier_store::placement::{EpochReport, MoveRecord, MoveStatus};
use terrace_tier_store::store::TierInfo;

use crate::units::human_bytes;

/// Number of moves that are shown.
const SHOWN_MOVES: usize = 10;

/// One query, before and after.
#[derive(Debug, Clone, Serialize)]
pub struct QueryTimes {
    /// Number, 1 to 22.
    pub q: usize,
    /// Milliseconds with everything in DRAM.
    pub dram_ms: f64,
    /// Milliseconds under the budget.
    pub tiered_ms: f64,
    /// True when both answers hold the same rows.
    pub equal: bool,
}

/// A tier after the epoch, as the JSON report has it.
#[derive(Debug, Clone, Serialize)]
pub struct TierLine {
    name: String,
    kind: String,
    emulated: bool,
    placed_bytes: u64,
    stored_bytes: u64,
    budget_bytes: u64,
}

/// The JSON report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// TPC-H scale factor.
    pub scale: f64,
    /// DRAM budget of the second run.
    pub budget_bytes: u64,
    /// The 22 queries.
    pub queries: Vec<QueryTimes>,
    /// Tiers after the epoch.
    pub tiers: Vec<TierLine>,
    /// Segments that were moved.
    pub moves: usize,
    /// Geometric mean of tiered_ms / dram_ms.
    pub geomean_ratio: f64,
}

impl From<&TierInfo> for TierLine {
    fn from(tier: &TierInfo) -> Self {
        Self {
            name: tier.name.clone(),
            kind: tier.kind.to_string(),
            emulated: tier.emulated,
            placed_bytes: tier.placed_bytes,
            stored_bytes: tier.stored_bytes,
            budget_bytes: tier.budget_bytes,
        }
    }
}

impl Report {
    /// Builds the report.
    pub fn new(
        scale: f64,
        budget_bytes: u64,
        queries: Vec<QueryTimes>,
        after: &[TierInfo],
        epoch: &EpochReport,
    ) -> Self {
        Self {
            scale,
            budget_bytes,
            tiers: after.iter().map(TierLine::from).collect(),
            moves: epoch.moves.iter().filter(|m| m.status == MoveStatus::Done).count(),
            geomean_ratio: geomean(queries.iter().map(|q| q.tiered_ms / q.dram_ms)),
            queries,
        }
    }
}

/// Geometric mean; 1 for an empty list.
fn geomean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = ratios.fold((0.0, 0), |(sum, count), ratio| (sum + ratio.max(1e-9).ln(), count + 1));
    if count == 0 { 1.0 } else { (sum / f64::from(count)).exp() }
}

/// Per query: before, after, ratio.
pub fn query_table(report: &Report) -> String {
    let mut out = String::from("  query    all DRAM      tiered   ratio   answer\n");
    for q in &report.queries {
        let ratio = q.tiered_ms / q.dram_ms;
        let answer = if q.equal { "equal" } else { "DIFFERS" };
        let name = format!("Q{}", q.q);
        let before = q.dram_ms;
        let after = q.tiered_ms;
        let _ = writeln!(out, "  {name:<5}{before:>9.1} ms{after:>9.1} ms{ratio:>8.2}   {answer}");
    }
    let sum = |ms: fn(&QueryTimes) -> f64| report.queries.iter().map(ms).sum::<f64>();
    let before = sum(|q| q.dram_ms);
    let after = sum(|q| q.tiered_ms);
    let _ = writeln!(out, "  {:<5}{before:>9.1} ms{after:>9.1} ms{:>8.2}", "sum", after / before.max(1e-9));
    let _ = writeln!(out, "  {:<5}{:>33.2}", "geomean", report.geomean_ratio);
    out
}

/// Placed bytes per tier, before and after.
pub fn tier_table(before: &[TierInfo], after: &[TierInfo]) -> String {
    let total: u64 = after.iter().map(|t| t.placed_bytes).sum::<u64>().max(1);
    let mut out = String::from("  tier      placed before            placed after               budget\n");
    for (old, new) in before.iter().zip(after) {
        let cell = |bytes: u64| format!("{:>10} {:>5.1} %", human_bytes(bytes), bytes as f64 * 100.0 / total as f64);
        let budget = if new.budget_bytes == u64::MAX { "no limit".to_owned() } else { human_bytes(new.budget_bytes) };
        let note = if new.emulated { "   (emulated in ordinary memory)" } else { "" };
        let name = &new.name;
        let old = cell(old.placed_bytes);
        let new = cell(new.placed_bytes);
        let _ = writeln!(out, "  {name:<6}{old:>17}{new:>24}{budget:>21}{note}");
    }
    out
}

/// The ten largest moves, with their reasons.
pub fn move_table(epoch: &EpochReport) -> String {
    let mut moves: Vec<&MoveRecord> = epoch.moves.iter().filter(|m| m.status == MoveStatus::Done).collect();
    moves.sort_by_key(|m| std::cmp::Reverse(m.bytes));
    let mut out = String::new();
    for m in moves.iter().take(SHOWN_MOVES) {
        let place = format!("{}.{} chunk {}", m.table, m.column, m.chunk);
        let _ = writeln!(out, "  {:>9}  {place}: {} -> {}", human_bytes(m.bytes), m.from, m.to);
        let _ = writeln!(out, "             {}", m.reason);
    }
    if moves.is_empty() {
        out.push_str("  nothing moved: all data fits into the budget\n");
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_json_report_has_exactly_the_promised_keys() {
        let queries = vec![
            QueryTimes { q: 1, dram_ms: 10.0, tiered_ms: 20.0, equal: true },
            QueryTimes { q: 2, dram_ms: 10.0, tiered_ms: 5.0, equal: true },
        ];
        let tier = TierLine {
            name: "dram".to_owned(),
            kind: "dram".to_owned(),
            emulated: false,
            placed_bytes: 1,
            stored_bytes: 2,
            budget_bytes: 3,
        };
        let geomean_ratio = geomean(queries.iter().map(|q| q.tiered_ms / q.dram_ms));
        let report = Report { scale: 1.0, budget_bytes: 3, queries, tiers: vec![tier], moves: 7, geomean_ratio };
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &serde_json::Value| -> Vec<String> {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&json), ["budget_bytes", "geomean_ratio", "moves", "queries", "scale", "tiers"]);
        assert_eq!(keys(&json["queries"][0]), ["dram_ms", "equal", "q", "tiered_ms"]);
        let tier_keys = ["budget_bytes", "emulated", "kind", "name", "placed_bytes", "stored_bytes"];
        assert_eq!(keys(&json["tiers"][0]), tier_keys);
        assert!((report.geomean_ratio - 1.0).abs() < 1e-12);
        assert!(query_table(&report).contains("Q2"));
    }
}
