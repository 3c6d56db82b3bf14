//! How much of the long tests a run has.
//!
//! ```text
//! TERRACE_TEST_DEPTH=deep    all of it
//! TERRACE_TEST_DRAW=4711     otherwise: a part, chosen by this number; `tests/run.sh` draws one and prints it
//! ```
#![allow(clippy::panic)]

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::seeds::setting;

/// Share of the deep part that a default run draws: one in this many.
const DRAWN_SHARE: u64 = 10;

/// True when this run has everything.
pub fn is_deep() -> bool {
    std::env::var("TERRACE_TEST_DEPTH").is_ok_and(|depth| depth == "deep")
}

/// `deep` in a deep run, otherwise `default`.
pub fn by_depth<T>(default: T, deep: T) -> T {
    if is_deep() { deep } else { default }
}

/// True when this run has the deep case `name`: always in a deep run, otherwise for one in ten names, other ones for
/// each draw.
pub fn runs(name: &str) -> bool {
    let mut hasher = DefaultHasher::new();
    (setting("TERRACE_TEST_DRAW").unwrap_or(0), name).hash(&mut hasher);
    is_deep() || hasher.finish().is_multiple_of(DRAWN_SHARE)
}
