//! Simulated crashes: a random workload on a simulated disk that loses power at a random operation, again and again.
//!
//! After each crash the store is opened from the surviving files, and its whole content is compared with a [`model`] of
//! the acknowledged operations: all of them are there, the one operation that was under way is there completely or not
//! at all, and nothing else is. Only one thread works at a time, so a seed replays (docs/design/crash-tests.md).
//!
//! - `faults`: disks that fail while they have power
//! - `model`: the expected content of the store
//! - `objects`: a store whose home is an object store
//! - `workload`: random operations on the store and the model
//!
//! ```text
//! TERRACE_SEED=17 ...                                  this seed alone, with each operation printed
//! TERRACE_CRASHES=1000000 ...                          more crashes
//! TERRACE_TEST_DEPTH=deep ...                          10,000 crashes instead of 400
//! ```

#![allow(clippy::unwrap_used, clippy::panic)]

mod faults;
mod model;
mod objects;
mod workload;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::clock::ManualClock;
use terrace_model::{Error, Result};
use terrace_storage::io::files::{DiskFaults, Outage, SimulatedFiles};
use terrace_storage::io::memory_objects::MemoryObjects;

use model::{Model, State};
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, fresh_seed, setting};
use workload::Operation;

use super::{Store, StoreOptions};

const DATA_DIR: &str = "/srv/terrace";
/// Crashes in a row on one disk.
const CRASHES_PER_SEED: u64 = 20;
/// Number of its seeds that are new in each run.
const FRESH_SEEDS: u64 = 20;
/// Most changes of the disk before a crash.
const LONGEST_RUN: f64 = 1_000.0;

/// A machine with a disk, on which a test opens stores.
struct Machine {
    seed: u64,
    random: StdRng,
    clock: Arc<ManualClock>,
    disk: SimulatedFiles,
    model: Model,
    /// Faults of the disk while it has power.
    faults: Option<DiskFaults>,
    /// The home, if it is no folder of the disk.
    objects: Option<Arc<MemoryObjects>>,
    verbose: bool,
}

fn options(disk: &SimulatedFiles, clock: &Arc<ManualClock>) -> StoreOptions {
    let mut options = StoreOptions::new(DATA_DIR);
    options.files = Arc::new(disk.clone());
    options.io = Some(Arc::new(disk.clone()));
    options.clock = Arc::<ManualClock>::clone(clock);
    options.ingest_threads = 0;
    options.compression = super::CompressionChoice::Always(terrace_storage::tier::codec::Compression::Lz4);
    options.dram_budget_bytes = 48 << 10;
    options.delta_budget_bytes = 128 << 10;
    options.catalog_cache_bytes = 4 << 20;
    // The sealer's own thread never seals.
    options.seal.age_us = u64::MAX;
    options.tiering.patience = Duration::ZERO;
    options
}

impl Machine {
    /// With `template`, the disk is a copy of it, on which a store was opened and closed before; without, it is empty.
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
        Self { seed, random, clock, disk, model, faults: None, objects: None, verbose: false }
    }

    fn options(&self) -> StoreOptions {
        let mut options = options(&self.disk, &self.clock);
        if let Some(objects) = &self.objects {
            options.home = self.home(objects);
        }
        options
    }

    fn open(&self) -> Result<Arc<Store>> {
        Store::open(self.options())
    }

    fn clear_faults(&self) {
        self.disk.set_faults(DiskFaults::default());
    }

    /// Opens the store after an outage, checks all of its content, and updates the model to the state that was found.
    fn recover(&mut self, possible: Vec<State>) -> Option<Arc<Store>> {
        // A failing disk may refuse an open, but nothing is lost: without faults the next open succeeds.
        let opened = self.open().or_else(|error| {
            self.clear_faults();
            if self.disk.is_dead() || self.faults.is_none() { Err(error) } else { self.open() }
        });
        self.clear_faults();
        let store = match opened {
            Ok(store) => store,
            Err(_) if self.disk.is_dead() => {
                self.model.possible = possible;
                return None;
            }
            Err(error) => panic!("seed {}: the store does not open: {error}", self.seed),
        };
        match self.model.check_recovered(&store, possible) {
            Ok(()) => Some(store),
            Err(_) if self.disk.is_dead() => None,
            Err(what) => panic!("seed {}: {what}", self.seed),
        }
    }

    /// Runs operations until the power is cut or the catalog fails; sets the states that are possible afterwards in the
    /// model.
    fn work(&mut self, store: Arc<Store>) {
        let mut open = Some(store);
        while let (Some(store), false) = (open.clone(), self.disk.is_dead()) {
            let operation = Operation::draw(&self.model, &mut self.random);
            if self.verbose {
                println!("  {:>5} {operation:?}", self.disk.operations());
            }
            let before = self.model.state.clone();
            let after = operation.expected(&before);
            let reopened = self.options();
            // The operation must have the only handle, or `Reopen` could not close the store.
            drop(store);
            match operation.run(&mut self.model, &mut open, reopened) {
                Ok(()) => open.iter().for_each(|store| self.model.acknowledge(store, after.clone())),
                Err(error) => {
                    if self.verbose {
                        println!("        {error}");
                    }
                    let stopped = self.disk.is_dead() || matches!(operation, Operation::Reopen);
                    match (&open, &error) {
                        (Some(store), Error::ReadOnly { .. }) if !stopped => {
                            self.model.possible = vec![before, after];
                            faults::check_refusal(self, store);
                            if !faults::check_recovery(self, store) {
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

    /// Crashes `count` times; returns a digest of all operations on the disks.
    fn crash(&mut self, count: u64) -> u32 {
        let _seed_report = SeedReport(self.seed);
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
            self.model.pinned.clear();
            let outage = if self.random.random_bool(0.75) { Outage::Machine } else { Outage::Process };
            if self.verbose {
                println!("seed {}: {outage:?} out after {} changes of the disk", self.seed, self.disk.operations());
            }
            digest = crc32c::crc32c_append(digest, &self.disk.trace().to_le_bytes());
            self.disk = self.disk.restart(outage, self.random.random());
            self.pause();
        }
        let possible = std::mem::take(&mut self.model.possible);
        assert!(self.recover(possible).is_some(), "seed {}: no power on a healthy machine", self.seed);
        digest
    }
}

fn create_root(disk: &SimulatedFiles) {
    use terrace_storage::io::FileSystem;
    // Only the parent: the store itself creates the data directory.
    let root = Path::new(DATA_DIR).parent().unwrap();
    disk.create_folder(root).unwrap();
    disk.sync_folder(Path::new("/")).unwrap();
}

/// Makes a disk with an empty store. Machines copy it, because calibration at a first start takes much longer than a
/// test.
fn template() -> SimulatedFiles {
    let machine = Machine::new(0, None);
    machine.open().unwrap().close().unwrap();
    machine.disk
}

/// Number of crashes in the longest test; `TERRACE_CRASHES` changes it.
fn crashes() -> u64 {
    setting("TERRACE_CRASHES").unwrap_or_else(|| by_depth(400, 10_000))
}

/// Runs machines with known and fresh seeds on two threads until `crashes` happened; with `TERRACE_SEED`, runs only
/// that seed.
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
    let fresh = fresh_seed();
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
    run_seeds(crashes(), |_| None);
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
