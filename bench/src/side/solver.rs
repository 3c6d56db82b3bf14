//! Placement problems of a given size: solved from scratch, and again after a few heats changed.
//!
//! Sizes are those of column images, heat falls off steeply as in real workloads, tiers are ten times slower each, and
//! the capacities of the faster ones hold about a third of the bytes. With eight options a segment may also lie packed on
//! each of the faster tiers, or plain on the first two at once.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_tier_store::placement::solver::{Effort, Instance, Options, Solution, certify, solve};

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

const TIERS: usize = 4;
/// Tiers of the options besides the home: plain, packed, on two tiers at once.
const FORMS: [&[u8]; 7] = [&[0], &[1], &[2], &[0], &[1], &[2], &[0, 1]];

/// The side.
pub struct Solver {
    rng: StdRng,
    instance: Instance,
    last: Option<Solution>,
}

/// A random problem with so many segments on four tiers.
pub fn random(rng: &mut StdRng, segments: usize) -> Instance {
    let mut instance = Instance::by_tier(vec![0.0; TIERS - 1]);
    let mut total = 0.0;
    for _ in 0..segments {
        let bytes = rng.random_range(4e3..1e6_f64).floor();
        total += bytes;
        instance.bytes.extend([bytes; TIERS - 1]);
        instance.costs.extend(costs(rng, bytes));
    }
    instance.capacities = vec![total * 0.05, total * 0.1, total * 0.2];
    instance
}

fn costs(rng: &mut StdRng, bytes: f64) -> [f64; TIERS] {
    let heat = rng.random_range(0.0..1.0_f64).powi(4) * 50.0;
    std::array::from_fn(|tier| {
        let slower = 10_f64.powi(tier as i32);
        heat * (0.1 * slower + bytes / 10_000.0 * slower) * rng.random_range(0.8..1.2)
    })
}

/// A problem like [`random`] in which every segment has eight options.
fn random_forms(rng: &mut StdRng, segments: usize) -> Instance {
    let plain = random(rng, segments);
    let mut instance = Instance { options: Options::new(FORMS), ..Instance::by_tier(plain.capacities.clone()) };
    for (segment, costs) in plain.costs.chunks_exact(TIERS).enumerate() {
        let bytes = plain.cells(segment).first().copied().unwrap_or(0.0);
        let packed = (bytes * rng.random_range(0.15..0.9_f64)).ceil();
        instance.bytes.extend([bytes, bytes, bytes, packed, packed, packed, bytes, bytes]);
        instance.costs.extend(costs_of_forms(rng, costs, packed / bytes));
    }
    instance
}

/// Costs by option: packed, a segment is read faster where its tier is slow, and decoded.
fn costs_of_forms(rng: &mut StdRng, costs: &[f64], packed: f64) -> [f64; FORMS.len() + 1] {
    let cost = |tier: usize| costs.get(tier).copied().unwrap_or(0.0);
    let decoded = cost(0) * rng.random_range(0.1..2.0);
    let of_packed = |tier: usize| cost(tier) * packed + decoded;
    [cost(0), cost(1), cost(2), of_packed(0), of_packed(1), of_packed(2), cost(0) * 0.8, cost(TIERS - 1)]
}

impl Solver {
    /// A problem of so many segments, each with four or eight options.
    pub fn new(segments: usize, options: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let instance = if options > TIERS { random_forms(&mut rng, segments) } else { random(&mut rng, segments) };
        Self { rng, instance, last: None }
    }

    /// Changes the heat of one segment in a hundred.
    fn disturb(&mut self) {
        let segments = self.instance.segments();
        let options = self.instance.options.count();
        for _ in 0..segments / 100 {
            let segment = self.rng.random_range(0..segments);
            let cells = self.instance.cells(segment);
            let bytes = cells.first().copied().unwrap_or(0.0);
            let packed = cells.get(TIERS - 1).map(|packed| packed / bytes);
            let costs = costs(&mut self.rng, bytes);
            if let Some(row) = self.instance.costs.get_mut(segment * options..(segment + 1) * options) {
                match packed {
                    Some(packed) => row.copy_from_slice(&costs_of_forms(&mut self.rng, &costs, packed)),
                    None => row.copy_from_slice(&costs),
                }
            }
        }
    }

    /// Has the last solution bounded by the other solver.
    fn certify(&self) -> Result<Sample> {
        let solution = self.last.as_ref().ok_or_else(|| Error::failed("nothing is solved yet"))?;
        let start = Instant::now();
        let bound = certify(&self.instance, &solution.bound_prices);
        let sample = Sample::new(ms_since(start));
        let bound = bound.ok_or_else(|| Error::failed("the other solver has no answer"))?;
        Ok(sample.with("gap", (solution.objective - bound) / solution.objective))
    }
}

impl Side for Solver {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let prices = match op {
            "certify" => return self.certify(),
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
