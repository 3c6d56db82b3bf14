//! Results: one row per comparison, in the form that all reports share, and the raw samples behind them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bench::Target;
use crate::environment::Environment;

/// One comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the experiment.
    pub experiment: String,
    /// The figure it measures.
    pub figure: String,
    /// The measured side.
    pub side_a: String,
    /// The side that it was compared with.
    pub side_b: String,
    /// Median over the runs, in the unit that `params.unit` names; a plain ratio A / B where it names none.
    pub ratio: f64,
    /// (largest - smallest) / median over the runs.
    pub spread: f64,
    /// The value at which the row is fulfilled.
    pub reach: f64,
    /// The value to aim at.
    pub goal: f64,
    /// True when larger ratios are better.
    pub higher_is_better: bool,
    /// The comparison of the ratio with the reach.
    pub verdict: Verdict,
    /// Parameters: `what` was run, scale, threads, runs, medians of both sides.
    pub params: serde_json::Map<String, serde_json::Value>,
    /// The machine.
    pub environment: Arc<Environment>,
}

/// The comparison of a ratio with its reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Within reach.
    Ok,
    /// Worse than the reach.
    Short,
    /// The runs differ by more than the ratio lies from the reach, or the row could not have missed it.
    NotDecided,
    /// No figure asks for a reach.
    Reported,
}

impl Verdict {
    /// The verdict on a ratio. `spread` is the difference between its runs as a share of the ratio. The margin is the
    /// distance of the ratio from the reach, also as a share of the ratio.
    pub fn from_ratio(ratio: f64, spread: f64, target: Target) -> Self {
        let Some(reach) = target.reach() else { return Self::Reported };
        let margin = (ratio - reach).abs() / ratio.abs();
        let reached = if target.higher_is_better { ratio >= reach } else { ratio <= reach };
        match reached {
            _ if spread > margin => Self::NotDecided,
            true => Self::Ok,
            // Not a number is within no reach.
            false => Self::Short,
        }
    }

    /// The verdict as reports show it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Short => "short",
            Self::NotDecided => "not decided",
            Self::Reported => "reported",
        }
    }
}

impl Row {
    /// Name of the measured operation.
    pub fn what(&self) -> &str {
        self.params.get("what").and_then(serde_json::Value::as_str).unwrap_or("")
    }
}

/// One run of one side.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Wall time in milliseconds.
    pub ms: f64,
    /// Other counts of the side: rows, bytes.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
}

impl Sample {
    /// A time without counts.
    pub fn new(ms: f64) -> Self {
        Self { ms, values: BTreeMap::new() }
    }

    /// Adds a count.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    /// A count; 0 when the side did not give it.
    pub fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
    }

    /// A count per second.
    pub fn per_s(&self, name: &str) -> f64 {
        self.value(name) / self.ms * 1e3
    }
}

/// A sample with its origin.
#[derive(Debug, Clone, Serialize)]
pub struct RawSample {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the side.
    pub side: String,
    /// The request.
    pub op: String,
    /// The answer.
    #[serde(flatten)]
    pub sample: Sample,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_above_the_margin_decides_nothing() {
        let below = Target::below(1.0, 0.5);
        assert_eq!(Verdict::from_ratio(0.4, 0.2, below), Verdict::Ok);
        assert_eq!(Verdict::from_ratio(1.3, 0.2, below), Verdict::Short);
        assert_eq!(Verdict::from_ratio(0.9, 0.2, below), Verdict::NotDecided);
        assert_eq!(Verdict::from_ratio(1.1, 0.2, below), Verdict::NotDecided);
        assert_eq!(Verdict::from_ratio(1.0, 0.0, below), Verdict::Ok);
        let above = Target::above(0.85, 0.95);
        assert_eq!(Verdict::from_ratio(0.7, 0.05, above), Verdict::Short);
        assert_eq!(Verdict::from_ratio(0.86, 0.05, above), Verdict::NotDecided);
        assert_eq!(Verdict::from_ratio(0.95, 0.05, above), Verdict::Ok);
        assert_eq!(Verdict::from_ratio(7.0, 9.0, Target::OPEN), Verdict::Reported);
        assert_eq!(Verdict::from_ratio(f64::NAN, 0.0, below), Verdict::Short);
    }
}
