//! What the Rust tests of all crates share: how deep they go, and the seeds of the random ones.
//!
//! - [`depth`]: default runs have a part of the long tests, drawn anew each time; deep runs have all of them
//! - [`seeds`]: which seeds a random test runs, and how one that fails is named and kept
//!
//! Settings, all in the environment; `tests/run.sh` sets the first two:
//!
//! ```text
//! TERRACE_TEST_DEPTH=deep    everything
//! TERRACE_TEST_DRAW=42       the number that decides which part a default run has
//! TERRACE_SEED=17            this seed alone
//! TERRACE_SEEDS=200          a search: so many fresh seeds instead
//! ```
#![allow(clippy::panic, clippy::disallowed_methods)]

pub mod depth;
pub mod seeds;

/// A number among the settings of tests.
///
/// # Panics
/// When the setting is no number.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
