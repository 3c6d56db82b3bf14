//! Simulated crashes: a drawn workload on a simulated disk that dies at a drawn operation, again and again.
//!
//! After each crash the store is opened from what the disk kept, and everything it says is compared with a [`model`] of
//! what was acknowledged: what was is there, the one operation that was under way is there whole or not at all, nothing
//! else is. All work is done on one thread after the other, so a seed replays (docs/design/crash-tests.md).
//!
//! ```text
//! TERRACE_SEED=17 ...                                  this seed alone, with each operation printed
//! TERRACE_CRASHES=1000000 ...                          more of them
//! ```

#![allow(clippy::unwrap_used, clippy::panic)]

mod faults;
mod model;
mod workload;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Store, StoreOptions};
use crate::clock::ManualClock;
use crate::error::{Error, Result};
use crate::io::files::{DiskFaults, Outage, SimulatedFiles};
use crate::seeds::{Named, setting};
use model::{Model, State};
use workload::Operation;

const DATA_DIR: &str = "/srv/terrace";
/// Crashes in a row on one disk.
const CRASHES_PER_SEED: u64 = 20;
/// Crashes that the test suite runs; `TERRACE_CRASHES` changes it.
const CRASHES: u64 = 10_000;
/// Of its seeds, so many are new in each run.
const FRESH_SEEDS: u64 = 20;
/// A crash comes after at most so many changes of the disk.
const LONGEST_RUN: f64 = 1_000.0;

/// A machine with a disk: what a test opens stores on.
struct Machine {
    seed: u64,
    random: StdRng,
    clock: Arc<ManualClock>,
    disk: SimulatedFiles,
    model: Model,
    /// What the disk does wrong while it has power.
    faults: Option<DiskFaults>,
    verbose: bool,
}

fn options(disk: &SimulatedFiles, clock: &Arc<ManualClock>) -> StoreOptions {
    let mut options = StoreOptions::new(DATA_DIR);
    options.files = Arc::new(disk.clone());
    options.io = Some(Arc::new(disk.clone()));
    options.clock = Arc::<ManualClock>::clone(clock);
    options.ingest_threads = 0;
    options.compression = super::CompressionChoice::Always(crate::tier::codec::Compression::Lz4);
    options.dram_budget_bytes = 48 << 10;
    options.delta_budget_bytes = 128 << 10;
    options.catalog_cache_bytes = 4 << 20;
    // The sealer's own thread never wakes.
    options.seal.age_us = u64::MAX;
    options.tiering.patience = Duration::ZERO;
    options
}

impl Machine {
    /// With `template`, a disk on which a store was opened and closed before; without, an empty one.
    fn new(seed: u64, template: Option<&SimulatedFiles>) -> Self {
        let clock = Arc::<ManualClock>::default();
        let disk = match template {
            Some(template) => template.copy(seed, Arc::<ManualClock>::clone(&clock)),
            None => SimulatedFiles::new(seed, Arc::<ManualClock>::clone(&clock)),
        };
        if template.is_none() {
            create_root(&disk);
        }
        let random = StdRng::seed_from_u64(seed);
        let model = Model::default();
        Self { seed, random, clock, disk, model, faults: None, verbose: false }
    }

    fn open(&self) -> Result<Arc<Store>> {
        Store::open(options(&self.disk, &self.clock))
    }

    fn calm(&self) {
        self.disk.set_faults(DiskFaults::default());
    }

    /// Opens the store after an outage, checks all of it, and takes up which of the possible states it is.
    fn recover(&mut self, possible: Vec<State>) -> Option<Arc<Store>> {
        // A disk that fails may refuse an open, but nothing is lost by that.
        let opened = self.open().or_else(|error| {
            self.calm();
            if self.disk.is_dead() || self.faults.is_none() { Err(error) } else { self.open() }
        });
        self.calm();
        let store = match opened {
            Ok(store) => store,
            Err(_) if self.disk.is_dead() => {
                self.model.possible = possible;
                return None;
            }
            Err(error) => panic!("seed {}: the store does not open: {error}", self.seed),
        };
        match self.model.recovered(&store, possible) {
            Ok(()) => Some(store),
            Err(_) if self.disk.is_dead() => None,
            Err(what) => panic!("seed {}: {what}", self.seed),
        }
    }

    /// Works until the power goes or the catalog fails; leaves in the model what may be there afterwards.
    fn work(&mut self, store: Arc<Store>) {
        let mut open = Some(store);
        while let (Some(store), false) = (open.clone(), self.disk.is_dead()) {
            let operation = Operation::draw(&self.model, &mut self.random);
            if self.verbose {
                println!("  {:>5} {operation:?}", self.disk.operations());
            }
            let before = self.model.state.clone();
            let after = operation.expected(&before);
            let reopened = options(&self.disk, &self.clock);
            // The operation holds the only handle, or it could not close the store.
            drop(store);
            match operation.run(&mut self.model, &mut open, reopened) {
                Ok(()) => open.iter().for_each(|store| self.model.acknowledged(store, after.clone())),
                Err(error) => {
                    if self.verbose {
                        println!("        {error}");
                    }
                    let stopped = self.disk.is_dead() || matches!(operation, Operation::Reopen);
                    match (&open, &error) {
                        (Some(store), Error::ReadOnly { .. }) if !stopped => {
                            self.model.possible = vec![before, after];
                            faults::check_refusal(self, store);
                            if !faults::goes_on(self, store) {
                                return;
                            }
                        }
                        (Some(store), _) if !stopped => faults::check_failure(self, store, &operation, &error),
                        _ => {
                            self.model.possible = vec![before, after];
                            return;
                        }
                    }
                }
            }
        }
        self.model.possible = vec![self.model.state.clone()];
    }

    /// Crashes `count` times; returns a digest of all that happened to the disks.
    fn crash(&mut self, count: u64) -> u32 {
        let _named = Named(self.seed);
        let mut digest = 0;
        for _ in 0..count {
            let run = LONGEST_RUN.powf(self.random.random_range(0.0..1.0)) as u64;
            self.disk.cut_power_after(run);
            let possible = std::mem::take(&mut self.model.possible);
            self.disk.set_faults(self.faults.clone().unwrap_or_default());
            if let Some(store) = self.recover(possible) {
                self.disk.set_faults(self.faults.clone().unwrap_or_default());
                self.work(store);
            }
            self.model.held.clear();
            let outage = if self.random.random_bool(0.75) { Outage::Machine } else { Outage::Process };
            if self.verbose {
                println!("seed {}: {outage:?} out after {} changes of the disk", self.seed, self.disk.operations());
            }
            digest = crc32c::crc32c_append(digest, &self.disk.trace().to_le_bytes());
            self.disk = self.disk.restart(outage, self.random.random());
        }
        let possible = std::mem::take(&mut self.model.possible);
        assert!(self.recover(possible).is_some(), "seed {}: no power on a healthy machine", self.seed);
        digest
    }
}

fn create_root(disk: &SimulatedFiles) {
    use crate::io::FileSystem;
    // The data directory itself is the store's to make.
    let root = Path::new(DATA_DIR).parent().unwrap();
    disk.create_folder(root).unwrap();
    disk.sync_folder(Path::new("/")).unwrap();
}

/// A disk with an empty store: measuring the devices at a first start takes much longer than all the rest.
fn template() -> SimulatedFiles {
    let machine = Machine::new(0, None);
    machine.open().unwrap().close().unwrap();
    machine.disk
}

/// Runs machines with known and fresh seeds on two threads until there were `crashes`; with `TERRACE_SEED` that one.
fn run_seeds(crashes: u64, faults: impl Fn(u64) -> Option<DiskFaults> + Sync) {
    let template = template();
    let machine = |seed: u64| {
        let mut machine = Machine::new(seed, (!seed.is_multiple_of(10)).then_some(&template));
        machine.faults = faults(seed);
        machine
    };
    if let Some(seed) = setting("TERRACE_SEED") {
        let mut machine = machine(seed);
        machine.verbose = true;
        machine.crash(CRASHES_PER_SEED);
        return;
    }
    let seeds = crashes.div_ceil(CRASHES_PER_SEED);
    let fresh = RandomState::new().build_hasher().finish() >> 1;
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds {
                return;
            }
            let known = number < seeds.saturating_sub(FRESH_SEEDS.min(seeds / 2));
            machine(if known { number } else { fresh + number }).crash(CRASHES_PER_SEED);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
}

#[test]
fn what_was_acknowledged_survives_thousands_of_crashes() {
    run_seeds(setting("TERRACE_CRASHES").unwrap_or(CRASHES), |_| None);
}

#[test]
fn a_seed_replays() {
    let template = template();
    let run = |seed| Machine::new(seed, Some(&template)).crash(5);
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(0), run(1));
}
