//! Placement problems answered in several ways with more and more time: by our solver, by falling density, and exactly,
//! by branch and bound.
//!
//! - [`knapsack`]: branch and bound for two tiers
//!
//! The TPC-H problem is that of the thesis (Dreseler 2021, section 7.2.4): scale 10 in chunks of 65,536 rows, 17,816
//! segments, DRAM or not. The heat of a column is the number of queries that name it; the heat of chunks of the
//! clustered tables varies randomly, as ranges of dates do.

mod knapsack;

use std::sync::Arc;
use std::time::Instant;

use arrow::compute::cast;
use arrow::datatypes::DataType;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use terrace_tier_store::placement::solver::{Effort, Instance, greedy, solve};

use self::knapsack::{Item, Knapsack};
use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::tpch::{BATCH_ROWS, QUERIES, TABLES, Table, order};

const CHUNK_ROWS: usize = 65_536;
/// Scale of the generated rows that column widths are taken from.
const SMALL: f64 = 0.01;
/// The scale of the problem.
const SCALE: f64 = 10.0;
/// The share of all bytes that fits into DRAM.
const SHARE: f64 = 0.1;
/// Bytes per microsecond and microseconds per access, in DRAM and on an SSD.
const DEVICES: [(f64, f64); 2] = [(10_000.0, 0.1), (2_500.0, 100.0)];

/// The placement problem.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// TPC-H, DRAM or SSD.
    TpcH,
    /// So many random segments on four tiers.
    Random(usize),
}

/// The side.
pub struct Quality {
    instance: Instance,
}

impl Quality {
    /// Generates the problem.
    pub fn new(problem: Problem) -> Result<Self> {
        let instance = match problem {
            Problem::TpcH => tpch()?,
            Problem::Random(segments) => super::solver::random(&mut StdRng::seed_from_u64(1), segments),
        };
        Ok(Self { instance })
    }

    /// Cost with everything at home, the number of segments and of tiers.
    fn size(&self) -> Sample {
        let home = self.instance.options.home() as u8;
        let all_at_home = vec![home; self.instance.segments()];
        Sample::default()
            .with("home_us", self.instance.objective(&all_at_home))
            .with("segments", self.instance.segments() as f64)
            .with("tiers", self.instance.options.count() as f64)
    }

    fn ours(&self, evaluations: usize, nodes: usize) -> Result<Sample> {
        let start = Instant::now();
        let solution = solve(&self.instance, None, Effort { evaluations, nodes })?;
        let sample = Sample::new(ms_since(start));
        Ok(sample.with("objective_us", solution.objective).with("bound_us", solution.bound))
    }

    fn greedy(&self) -> Result<Sample> {
        let start = Instant::now();
        let choice = greedy(&self.instance);
        let sample = Sample::new(ms_since(start));
        if !self.instance.is_feasible(&choice) {
            return Err(Error::failed("the greedy answer is not feasible"));
        }
        Ok(sample.with("objective_us", self.instance.objective(&choice)))
    }

    /// One search, interrupted at each of these times: "ms_0", "objective_us_0" where there is an answer by then,
    /// "ms_1".. For two tiers only.
    fn exact(&self, limits_ms: &[f64]) -> Result<Sample> {
        let (true, Some(capacity)) = (self.instance.options.count() == 2, self.instance.capacities.first()) else {
            return Err(Error::failed("the exact search is for two tiers"));
        };
        let start = Instant::now();
        let rows = self.instance.costs.chunks_exact(2).zip(&self.instance.bytes).enumerate();
        let item = |(segment, (costs, bytes)): (usize, (&[f64], &f64))| {
            Some(Item { segment, value: costs.last()? - costs.first()?, bytes: *bytes })
        };
        let mut search = Knapsack::new(rows.filter_map(item).collect(), *capacity);
        let mut sample = Sample::default();
        for (number, limit_ms) in limits_ms.iter().enumerate() {
            search.search(|| ms_since(start) >= *limit_ms);
            let mut choice = vec![1; self.instance.segments()];
            search.best().for_each(|segment| choice.iter_mut().skip(segment).take(1).for_each(|tier| *tier = 0));
            if !self.instance.is_feasible(&choice) {
                return Err(Error::failed("the exact answer is not feasible"));
            }
            let objective_us = self.instance.objective(&choice);
            sample = sample
                .with(&format!("ms_{number}"), ms_since(start))
                .with(&format!("objective_us_{number}"), objective_us);
            if search.is_done() {
                sample = sample.with("bound_us", objective_us);
                break;
            }
        }
        sample.ms = ms_since(start);
        Ok(sample)
    }
}

impl Side for Quality {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let words: Vec<&str> = op.split(' ').collect();
        let number = |word: &str| word.parse::<usize>().map_err(|_| unknown(op));
        match words.as_slice() {
            ["size"] => Ok(self.size()),
            ["greedy"] => self.greedy(),
            ["ours", evaluations, nodes] => self.ours(number(evaluations)?, number(nodes)?),
            ["exact", limits] => {
                let limits: Option<Vec<f64>> = limits.split(',').map(|limit| limit.parse().ok()).collect();
                self.exact(&limits.ok_or_else(|| unknown(op))?)
            }
            _ => Err(unknown(op)),
        }
    }
}

/// The problem of the thesis.
fn tpch() -> Result<Instance> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut instance = Instance::by_tier(vec![0.0]);
    let mut total = 0.0;
    for table in TABLES {
        let (rows, columns) = widths(&table)?;
        let chunks = rows.div_ceil(CHUNK_ROWS).max(1);
        let mut dates: Vec<f64> = (0..chunks).map(|_| rng.random_range(0.2..1.8)).collect();
        if order(&table).is_empty() {
            dates.fill(1.0);
        }
        for (name, width) in columns {
            let queries = QUERIES.iter().filter(|sql| sql.contains(&name)).count() as f64;
            for (chunk, date) in dates.iter().enumerate() {
                let rows = CHUNK_ROWS.min(rows - (chunk * CHUNK_ROWS).min(rows));
                let bytes = (rows as f64 * width).ceil();
                total += bytes;
                let accesses = queries * date * rng.random_range(0.9..1.1);
                instance.costs.extend(DEVICES.map(|(speed, latency)| accesses * (latency + bytes / speed)));
                instance.bytes.push(bytes);
            }
        }
    }
    instance.capacities = vec![(total * SHARE).floor()];
    Ok(instance)
}

/// Rows of a table at the scale of the problem, and the bytes per row of its columns.
fn widths(table: &Table) -> Result<(usize, Vec<(String, f64)>)> {
    let mut rows = 0;
    let mut sums = Vec::<(String, f64)>::new();
    for batch in table.generate_part(SMALL, 1, 1, BATCH_ROWS) {
        let batch = batch?;
        rows += batch.num_rows();
        sums.resize_with(batch.num_columns(), Default::default);
        for ((sum, column), field) in sums.iter_mut().zip(batch.columns()).zip(batch.schema().fields()) {
            // The size of a view array counts only its 16 bytes per row: cast it to measure its text.
            let plain = match column.data_type() {
                DataType::Utf8View => cast(column, &DataType::Utf8)?,
                _ => Arc::clone(column),
            };
            *sum = (field.name().clone(), sum.1 + plain.to_data().get_slice_memory_size()? as f64);
        }
    }
    let grown = match table.name {
        "nation" | "region" => rows,
        // The only table whose number of rows is random; this is its number at scale 10.
        "lineitem" => 59_986_052,
        _ => (rows as f64 * SCALE / SMALL).round() as usize,
    };
    Ok((grown, sums.into_iter().map(|(name, bytes)| (name, bytes / rows.max(1) as f64)).collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn the_problem_has_as_many_segments_as_that_of_the_thesis() {
        let segments = tpch().unwrap().segments();
        assert_eq!(segments, 17_816);
    }

    #[test]
    fn all_ways_agree_on_small_problems() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let four = super::super::solver::random(&mut rng, 1 + seed as usize % 24);
            let ends = |row: &[f64]| [row[0], row[3]];
            let bytes: Vec<f64> = four.bytes.iter().step_by(3).copied().collect();
            let capacity = (bytes.iter().sum::<f64>() * 0.3).floor();
            let costs = four.costs.chunks_exact(4).flat_map(ends).collect();
            let two = Instance { costs, bytes, ..Instance::by_tier(vec![capacity]) };
            let side = Quality { instance: two };
            let exact = side.exact(&[10_000.0]).unwrap();
            let optimum = exact.value("objective_us_0");
            let ours = side.ours(60, 40_000).unwrap();
            assert_eq!(exact.value("bound_us"), optimum, "the search ended, seed {seed}");
            assert!((ours.value("objective_us") / optimum - 1.0).abs() < 1e-9, "seed {seed}: {ours:?} {exact:?}");
            assert!(side.greedy().unwrap().value("objective_us") >= optimum * (1.0 - 1e-9), "seed {seed}");
        }
    }
}
