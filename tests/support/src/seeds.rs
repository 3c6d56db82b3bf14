//! Seeds of random tests: chooses the seeds that run and reports the seed of a failure.
//!
//! ```text
//! cargo test ..                       the seeds that a test lists, mostly with a fresh one
//! TERRACE_SEED=17 cargo test ..       this seed alone
//! TERRACE_SEEDS=200 cargo test ..     a search: this many fresh seeds instead of the listed ones
//! TERRACE_TEST_DRAW=4711 ..           this is the fresh seed; `tests/run.sh` sets it, so that its runs can be repeated
//! ```
//!
//! Add a seed that failed to the list of its test, so that it runs every time: `seeds((0..30).chain([4711]))`.
#![allow(clippy::panic, clippy::disallowed_methods)]

/// Seeds to run: those of the environment, else `known` and a fresh one.
pub fn seeds(known: impl IntoIterator<Item = u64>) -> Vec<u64> {
    requested_seeds().unwrap_or_else(|| known.into_iter().chain([fresh_seed()]).collect())
}

/// Seeds that the environment asks for (`TERRACE_SEED`, `TERRACE_SEEDS`).
pub fn requested_seeds() -> Option<Vec<u64>> {
    let one = setting("TERRACE_SEED").map(|seed| vec![seed]);
    one.or_else(|| setting("TERRACE_SEEDS").map(|count| (0..count).map(|_| random_seed()).collect()))
}

/// Reads a number from an environment variable.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The new seed of this run.
pub fn fresh_seed() -> u64 {
    setting("TERRACE_TEST_DRAW").unwrap_or_else(random_seed)
}

fn random_seed() -> u64 {
    rand::random::<u32>().into()
}

/// Prints the seed when a test panics while this lives.
pub struct SeedReport(pub u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {0}; TERRACE_SEED={0} runs it alone, and the test's list keeps it", self.0);
        }
    }
}
