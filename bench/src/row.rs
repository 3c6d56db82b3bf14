//! Results: one row per comparison, in the form that all reports share, and the raw samples behind them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::environment::Environment;

/// One comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the experiment.
    pub experiment: String,
    /// The figure it measures.
    pub figure: String,
    /// What was measured.
    pub side_a: String,
    /// What it was measured against.
    pub side_b: String,
    /// Median over the runs, in the unit that `params.unit` names; a plain ratio A / B where it names none.
    pub ratio: f64,
    /// (largest - smallest) / median over the runs.
    pub spread: f64,
    /// What may be called done.
    pub reach: f64,
    /// Where it should go.
    pub goal: f64,
    /// Whether larger ratios are better.
    pub higher_is_better: bool,
    /// What was run: `what`, scale, threads, runs, medians of both sides.
    pub params: serde_json::Map<String, serde_json::Value>,
    /// The machine.
    pub environment: Arc<Environment>,
}

impl Row {
    /// True when the ratio is within its reach.
    pub fn is_within_reach(&self) -> bool {
        if self.higher_is_better { self.ratio >= self.reach } else { self.ratio <= self.reach }
    }

    /// What was run, for people.
    pub fn what(&self) -> &str {
        self.params.get("what").and_then(serde_json::Value::as_str).unwrap_or("")
    }
}

/// One run of one side.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Wall time in milliseconds.
    pub ms: f64,
    /// What else the side counted: rows, bytes.
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
}

/// A sample with where it came from.
#[derive(Debug, Clone, Serialize)]
pub struct RawSample {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the side.
    pub side: String,
    /// What it was asked.
    pub op: String,
    /// The answer.
    #[serde(flatten)]
    pub sample: Sample,
}
