//! Placement problems of a given size: solved from scratch, and again after a few heats changed.
//!
//! Sizes are those of column images, heat falls off steeply as in real workloads, tiers are ten times slower each, and
//! the capacities of the faster ones hold about a third of the bytes.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_tier_store::placement::solver::{Effort, Instance, Solution, solve};

use super::{Side, ms_since, unknown};
use crate::error::Result;
use crate::row::Sample;

const TIERS: usize = 4;

/// The side.
pub struct Solver {
    rng: StdRng,
    instance: Instance,
    last: Option<Solution>,
}

/// A random problem with so many segments on four tiers.
pub fn random(rng: &mut StdRng, segments: usize) -> Instance {
    let mut instance = Instance::default();
    let mut total = 0.0;
    for _ in 0..segments {
        let bytes = rng.random_range(4e3..1e6_f64).floor();
        total += bytes;
        // At home a segment takes nothing more.
        instance.bytes.extend((1..=TIERS).map(|tier| if tier < TIERS { bytes } else { 0.0 }));
        instance.costs.extend(costs(rng, bytes));
    }
    instance.capacities = vec![total * 0.05, total * 0.1, total * 0.2, f64::INFINITY];
    instance
}

fn costs(rng: &mut StdRng, bytes: f64) -> [f64; TIERS] {
    let heat = rng.random_range(0.0..1.0_f64).powi(4) * 50.0;
    std::array::from_fn(|tier| {
        let slower = 10_f64.powi(tier as i32);
        heat * (0.1 * slower + bytes / 10_000.0 * slower) * rng.random_range(0.8..1.2)
    })
}

impl Solver {
    /// A problem of so many segments.
    pub fn new(segments: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let instance = random(&mut rng, segments);
        Self { rng, instance, last: None }
    }

    /// Changes the heat of one segment in a hundred.
    fn disturb(&mut self) {
        let segments = self.instance.segments();
        for _ in 0..segments / 100 {
            let segment = self.rng.random_range(0..segments);
            let bytes = self.instance.bytes.get(segment * TIERS).copied().unwrap_or(0.0);
            let costs = costs(&mut self.rng, bytes);
            if let Some(row) = self.instance.costs.get_mut(segment * TIERS..(segment + 1) * TIERS) {
                row.copy_from_slice(&costs);
            }
        }
    }
}

impl Side for Solver {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let prices = match op {
            "solve" => None,
            "resolve" => {
                self.disturb();
                self.last.as_ref().map(|s| s.prices.clone())
            }
            _ => return Err(unknown(op)),
        };
        let start = Instant::now();
        let solution = solve(&self.instance, prices.as_deref(), Effort::default())?;
        let sample = Sample::new(ms_since(start)).with("gap", solution.gap);
        self.last = Some(solution);
        Ok(sample)
    }
}
