//! The context of an experiment: options, time, children, and the rows that it adds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::child::Child;
use crate::data::Dataset;
use crate::db_benchmark::{self, DbBenchmark};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::row::{RawSample, Row, Sample, Verdict};
use crate::side::{SideSpec, Workload};
use crate::statistics::{median, spread};

/// The target of a row.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The value at which the row is fulfilled.
    pub reach: f64,
    /// The value to aim at.
    pub goal: f64,
    /// True when larger values are better.
    pub higher_is_better: bool,
}

impl Target {
    /// No figure asks for a reach: the row is published as it is.
    pub const OPEN: Self = Self { reach: 0.0, goal: 0.0, higher_is_better: true };

    /// The value at which the row is fulfilled; `None` when no figure sets one.
    pub fn reach(self) -> Option<f64> {
        (self.reach > 0.0).then_some(self.reach)
    }

    /// Smaller is better.
    pub const fn below(reach: f64, goal: f64) -> Self {
        Self { reach, goal, higher_is_better: false }
    }

    /// Larger is better.
    pub const fn above(reach: f64, goal: f64) -> Self {
        Self { reach, goal, higher_is_better: true }
    }
}

/// The values of two sides, one per round.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Those of the first side as shares of those of the second.
    pub ratios: Vec<f64>,
    /// Those of the first side.
    pub a: Vec<f64>,
    /// Those of the second side.
    pub b: Vec<f64>,
}

/// A row before its statistics.
#[derive(Debug)]
pub struct Finding<'a> {
    /// The two sides.
    pub sides: (&'a str, &'a str),
    /// Name of the measured operation.
    pub what: &'a str,
    /// One value per run.
    pub values: &'a [f64],
    /// The target of the row.
    pub target: Target,
    /// Further parameters, an object; `undecided` says why the row could not have missed its reach.
    pub params: Value,
}

/// A drawing for the report.
#[derive(Debug)]
pub struct Drawing {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Title of the drawing.
    pub title: String,
    /// The drawing.
    pub svg: String,
}

/// The state of one invocation.
#[derive(Debug)]
pub struct Bench {
    /// Scale from the command line.
    pub scale: Option<f64>,
    /// Prefix of row names when several scales run.
    pub label: String,
    /// Rows of the tables of `db-benchmark` from the command line.
    pub table_rows: Option<u64>,
    /// True for small data and few rounds; after [`Bench::QUICK`] each experiment measures only one round.
    pub quick: bool,
    /// Measured rounds of a comparison.
    pub runs: usize,
    /// Threads and partitions of each side.
    pub threads: usize,
    /// Sides of experiments that have several peers and may leave some out.
    pub sides: usize,
    /// Seed of the random numbers of experiments.
    pub seed: u64,
    /// Folder of the report, if one is written.
    pub report_dir: Option<PathBuf>,
    /// Folder of generated data.
    pub data_dir: PathBuf,
    /// All rows.
    pub rows: Vec<Row>,
    /// All samples.
    pub raw: Vec<RawSample>,
    /// All drawings.
    pub drawings: Vec<Drawing>,
    /// Rows that are left out because something outside of this crate is missing.
    pub left_out: Vec<String>,
    environment: Arc<Environment>,
    experiment: (&'static str, &'static str),
    until: Instant,
}

impl Bench {
    /// The time in which a quick run measures more than one round.
    pub const QUICK: Duration = Duration::from_secs(43);

    /// A run that keeps its data in `data_dir`.
    pub fn new(data_dir: PathBuf, quick: bool, runs: usize, threads: usize) -> Self {
        Self {
            scale: None,
            label: String::new(),
            table_rows: None,
            quick,
            runs,
            threads,
            sides: usize::MAX,
            seed: 1,
            report_dir: None,
            rows: Vec::new(),
            raw: Vec::new(),
            drawings: Vec::new(),
            left_out: Vec::new(),
            environment: Arc::new(Environment::detect(&data_dir)),
            experiment: ("", ""),
            until: Instant::now(),
            data_dir,
        }
    }

    /// Starts an experiment; in a quick run it should end at `until`.
    pub fn begin(&mut self, name: &'static str, figure: &'static str, until: Instant) {
        self.experiment = (name, figure);
        self.until = until;
    }

    /// The machine.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The scale for a figure that asks for scale `full`.
    pub fn scale(&self, full: f64) -> f64 {
        self.scale.unwrap_or(if self.quick { 0.02 } else { full })
    }

    /// Fails when the sides, which hold all data in memory, do not fit into this machine together.
    pub fn check_memory(&self, scale: f64, bytes_per_scale: u64) -> Result<()> {
        let needed = (scale * bytes_per_scale as f64) as u64;
        let there = self.environment.memory_bytes;
        if needed <= there {
            return Ok(());
        }
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let needed = gb(needed);
        let there = gb(there);
        Err(Error::Missing(format!(
            "both sides hold all of scale {scale} in memory, about {needed:.0} GB; this machine has {there:.0} GB"
        )))
    }

    /// True while another round should be measured.
    pub fn wants_another_round(&self, done: usize) -> bool {
        done == 0 || (done < self.runs && !(self.quick && Instant::now() > self.until))
    }

    /// Measures rounds of a comparison, at most `most`: `round` asks both sides and returns the value of each.
    pub fn in_turn(
        &mut self,
        most: usize,
        mut round: impl FnMut(&mut Self) -> Result<(f64, f64)>,
    ) -> Result<Comparison> {
        let mut found = Comparison::default();
        while found.ratios.len() < most && self.wants_another_round(found.ratios.len()) {
            let (a, b) = round(self)?;
            found.ratios.push(a / b);
            found.a.push(a);
            found.b.push(b);
        }
        Ok(found)
    }

    /// TPC-H of a scale; generates it when it is missing.
    pub fn dataset(&self, scale: f64) -> Result<Dataset> {
        self.complete(Dataset::new(&self.data_dir, scale), Workload::TpcH)
    }

    /// The Star Schema Benchmark of a scale; generates it when it is missing.
    pub fn star(&self, scale: f64) -> Result<Dataset> {
        self.complete(Dataset::star(&self.data_dir, scale), Workload::Star)
    }

    /// The tables of db-benchmark with the rows of the command line; draws them when they are missing.
    pub fn db_benchmark(&self) -> Result<DbBenchmark> {
        let scale = self.table_rows.map_or_else(|| self.scale(1.0), |rows| rows as f64 / db_benchmark::ROWS as f64);
        let data = DbBenchmark::new(&self.data_dir, scale);
        if !data.is_complete() {
            eprintln!("  making {}", data.dir.display());
            self.prepare(Workload::DbBenchmark, scale)?;
        }
        Ok(data)
    }

    fn complete(&self, data: Dataset, workload: Workload) -> Result<Dataset> {
        if !data.is_complete() {
            eprintln!("  making {}", data.dir.display());
            self.prepare(workload, data.scale)?;
        }
        Ok(data)
    }

    /// Makes data of a scale, in a process of its own.
    pub fn prepare(&self, data: Workload, scale: f64) -> Result<()> {
        Child::start("prepare", &SideSpec::Prepare { data, data_dir: self.data_dir.clone(), scale }).map(drop)
    }

    /// Asks a side and records the sample.
    pub fn ask(&mut self, child: &mut Child, op: &str) -> Result<Sample> {
        let sample = child.ask(op)?;
        self.record(child.name(), op, sample.clone());
        Ok(sample)
    }

    /// Records a sample that was measured elsewhere.
    pub fn record(&mut self, side: &str, op: &str, sample: Sample) {
        let experiment = self.experiment.0.to_owned();
        let side = side.to_owned();
        let op = op.to_owned();
        self.raw.push(RawSample { experiment, side, op, sample });
    }

    /// Adds the row of a comparison and prints it.
    pub fn add(&mut self, result: Finding<'_>) {
        let mut params = Map::new();
        params.insert("what".to_owned(), json!(format!("{}{}", self.label, result.what)));
        params.insert("runs".to_owned(), json!(result.values.len()));
        if let Value::Object(further) = result.params {
            params.extend(further);
        }
        let ratio = median(result.values);
        let spread = spread(result.values);
        let verdict = match params.contains_key("undecided") {
            true => Verdict::NotDecided,
            false => Verdict::from_ratio(ratio, spread, result.target),
        };
        let row = Row {
            experiment: self.experiment.0.to_owned(),
            figure: self.experiment.1.to_owned(),
            side_a: result.sides.0.to_owned(),
            side_b: result.sides.1.to_owned(),
            ratio,
            spread,
            reach: result.target.reach,
            goal: result.target.goal,
            higher_is_better: result.target.higher_is_better,
            verdict,
            params,
            environment: Arc::clone(&self.environment),
        };
        let sign = if row.higher_is_better { ">=" } else { "<=" };
        println!(
            "{:<16}{:<5}{:<34}{:>10.4}  +-{:<5.0}%  {sign} {:<8}{}",
            row.experiment,
            row.figure,
            row.what(),
            row.ratio,
            row.spread * 50.0,
            row.reach,
            row.verdict.label()
        );
        self.rows.push(row);
    }

    /// Records what is left out and why; the run ends with an error that names it.
    pub fn leave_out(&mut self, what: &str, why: &str) {
        let name = [self.experiment.0, what].join(" ").trim_end().to_owned();
        eprintln!("{name} is left out: {why}");
        self.left_out.push(name);
    }

    /// Adds a drawing to the report.
    pub fn draw(&mut self, title: &str, svg: String) {
        let title = format!("{}{title}", self.label);
        self.drawings.push(Drawing { experiment: self.experiment.0, title, svg });
    }

    /// A folder for files of an experiment.
    pub fn scratch(&self, name: &str) -> PathBuf {
        Path::new(&self.data_dir).join(format!("{name}-{}", std::process::id()))
    }
}
