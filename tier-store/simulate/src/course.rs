//! The reads and events of one run, and their cost under the best placements: the same for every policy.

use terrace_model::{Pattern, Result};
use terrace_placement::Extent;
use terrace_placement::heat::SegmentHeat;
use terrace_placement::solver::{Effort, Instance, solve};

use super::recording::Recording;
use super::scenario::{Event, Scenario};
use super::world::{Shape, TIERS, World};

/// The reads and events of a run.
#[derive(Debug)]
pub struct Course {
    /// Its scenario; `None` where the reads were recorded.
    pub scenario: Option<Scenario>,
    /// Seed of the draws.
    pub seed: u64,
    /// The segments that are read.
    pub(super) shape: Shape,
    /// Scans per epoch and segment.
    pub(super) reads: Vec<Vec<u32>>,
    /// Reading time of each epoch under the best placement for it, with free moves, in microseconds.
    pub(super) best_us: Vec<f64>,
    /// Reading time of each epoch under the one placement that is best for the whole run.
    pub(super) fixed_us: Vec<f64>,
}

impl Course {
    /// Draws the reads of `epochs` epochs. Fails only on a fault of the simulation.
    pub fn new(scenario: Scenario, seed: u64, epochs: u32) -> Result<Self> {
        Self::with(Some(scenario), seed, Shape::drawn(), scenario.reads(seed, epochs))
    }

    /// Takes the reads that a server has counted. Fails only on a fault of the simulation.
    pub fn recorded(recording: Recording) -> Result<Self> {
        Self::with(None, 0, Shape::recorded(&recording.bytes), recording.scans)
    }

    fn with(scenario: Option<Scenario>, seed: u64, shape: Shape, reads: Vec<Vec<u32>>) -> Result<Self> {
        let world = World::new(&shape)?;
        let mut best_us = Vec::with_capacity(reads.len());
        for (epoch, reads) in (0..).zip(&reads) {
            best_us.push(solve(&instance(&world, scenario, epoch, reads), None, Effort::default())?.bound);
        }
        let mut all = vec![0; shape.segments()];
        reads.iter().for_each(|reads| all.iter_mut().zip(reads).for_each(|(sum, reads)| *sum += reads));
        // Epoch 0 is before the first event, so this placement has all devices.
        let fixed = solve(&instance(&world, scenario, 0, &all), None, Effort::default())?.choice;
        let fixed_us =
            reads.iter().map(|reads| reading_us(&world, reads, |at| fixed.get(at).map_or(0, |t| (*t).into())));
        let fixed_us = fixed_us.collect();
        Ok(Self { scenario, seed, shape, reads, best_us, fixed_us })
    }

    /// Its name in tables and files.
    pub fn name(&self) -> &'static str {
        self.scenario.map_or("recorded", Scenario::name)
    }

    /// The changes of devices before an epoch, by tier.
    pub(super) fn events(&self, epoch: u32) -> impl Iterator<Item = (usize, Event)> + use<> {
        self.scenario.into_iter().flat_map(move |scenario| scenario.events(epoch))
    }

    /// Number of epochs.
    pub fn epochs(&self) -> usize {
        self.reads.len()
    }
}

/// Microseconds that the scans in `reads` take with the placement `place`.
pub(super) fn reading_us(world: &World, reads: &[u32], place: impl Fn(usize) -> usize) -> f64 {
    reads.iter().enumerate().map(|(at, scans)| scan_us(world, at, *scans, place(at))).sum()
}

/// Microseconds that `scans` scans of one segment take on a tier.
pub(super) fn scan_us(world: &World, at: usize, scans: u32, tier: usize) -> f64 {
    let mut heat = SegmentHeat::default();
    let sequential = Pattern::Sequential as usize;
    let rows = world.rows(at);
    if let (Some(accesses), Some(values)) = (heat.accesses.get_mut(sequential), heat.values.get_mut(sequential)) {
        (*accesses, *values) = (scans as f32, scans as f32 * rows as f32);
    }
    let bytes = world.read_bytes(at, tier);
    world.cost(tier).map_or(0.0, |cost| cost.expected_us(&heat, Extent { bytes, rows, whole: true }))
}

/// The placement problem of one epoch with known reads: without costs of moves, with the devices that are not lost.
fn instance(world: &World, scenario: Option<Scenario>, epoch: u32, reads: &[u32]) -> Instance {
    let budget = |(tier, bytes): (usize, &u64)| {
        if scenario.is_some_and(|scenario| scenario.is_lost(tier, epoch)) { 0.0 } else { *bytes as f64 }
    };
    let capacities = world.budgets().iter().enumerate().map(budget).collect();
    let cells = |tiers: usize| (0..world.segments()).flat_map(move |at| (0..tiers).map(move |tier| (at, tier)));
    let scans = |at: usize| reads.get(at).copied().unwrap_or(0);
    let costs = cells(TIERS.len()).map(|(at, tier)| scan_us(world, at, scans(at), tier)).collect();
    let bytes = cells(TIERS.len() - 1).map(|(at, tier)| world.charged_bytes(at, tier) as f64).collect();
    Instance { costs, bytes, ..Instance::by_tier(capacities) }
}
