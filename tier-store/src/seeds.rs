//! Seeds of random tests: which ones run, and how one that fails is named and kept.
//!
//! ```text
//! cargo test ..                       those that a test lists, mostly with a fresh one
//! TERRACE_SEED=17 cargo test ..       this one alone
//! TERRACE_SEEDS=200 cargo test ..     a search: so many fresh ones instead
//! ```
//!
//! A seed that fails is added to what the test lists, so that it runs for ever: `seeds((0..30).chain([4711]))`.
#![allow(clippy::panic, clippy::disallowed_methods)]

/// The seeds of a test that lists `known`, and a fresh one.
pub(crate) fn seeds(known: impl IntoIterator<Item = u64>) -> Vec<u64> {
    asked_for().unwrap_or_else(|| known.into_iter().chain([fresh()]).collect())
}

/// Those that somebody asks for.
pub(crate) fn asked_for() -> Option<Vec<u64>> {
    let one = setting("TERRACE_SEED").map(|seed| vec![seed]);
    one.or_else(|| setting("TERRACE_SEEDS").map(|count| (0..count).map(|_| fresh()).collect()))
}

/// A number among the settings of tests.
pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn fresh() -> u64 {
    rand::random::<u32>().into()
}

/// Names the seed when a test fails while it lives.
pub(crate) struct Named(pub(crate) u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {0}; TERRACE_SEED={0} runs it alone, and the test's list keeps it", self.0);
        }
    }
}
