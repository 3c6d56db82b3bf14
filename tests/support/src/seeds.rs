//! Seeds of random tests: which ones run, and how one that fails is named and kept.
//!
//! A seed that fails is added to what the test lists, so that it runs for ever: `seeds((0..30).chain([4711]))`.

use crate::{depth, setting};

/// The seeds of a test that lists `known`, and a fresh one. A default run has the last of `known`, which found the latest
/// defect, and one in ten of the others.
pub fn seeds(known: impl IntoIterator<Item = u64>) -> Vec<u64> {
    requested().unwrap_or_else(|| {
        let known: Vec<u64> = known.into_iter().collect();
        let last = known.last().copied();
        known.into_iter().filter(|seed| Some(*seed) == last || depth::runs(seed)).chain([fresh()]).collect()
    })
}

/// The seeds that the environment names.
pub fn requested() -> Option<Vec<u64>> {
    let one = setting("TERRACE_SEED").map(|seed| vec![seed]);
    one.or_else(|| setting("TERRACE_SEEDS").map(|count| (0..count).map(|_| fresh()).collect()))
}

fn fresh() -> u64 {
    rand::random::<u32>().into()
}

/// Names the seed when a test fails while this lives.
pub struct Named(pub u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {0}; TERRACE_SEED={0} runs it alone, and the test's list keeps it", self.0);
        }
    }
}
