//! Default runs keep a part of every long test and draw a tenth of the rest; deep runs have all of it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use crate::setting;

/// One in so many of what is left to deep runs is drawn by a default run.
const DRAWN_SHARE: u64 = 10;

static DEEP: LazyLock<bool> = LazyLock::new(|| match std::env::var("TERRACE_TEST_DEPTH").as_deref() {
    Ok("deep") => true,
    Ok("default") | Err(_) => false,
    Ok(other) => panic!("TERRACE_TEST_DEPTH={other}: use default or deep"),
});

static DRAW: LazyLock<u64> = LazyLock::new(|| {
    let draw = setting("TERRACE_TEST_DRAW").unwrap_or_else(|| rand::random::<u32>().into());
    eprintln!("a part of the long tests runs: TERRACE_TEST_DRAW={draw} repeats it, TERRACE_TEST_DEPTH=deep runs all");
    draw
});

/// True when everything runs.
pub fn is_deep() -> bool {
    *DEEP
}

/// True when everything runs, and for one in ten names otherwise, other ones for each draw.
pub fn runs(name: impl Hash) -> bool {
    let chosen = || {
        let mut hasher = DefaultHasher::new();
        (*DRAW, name).hash(&mut hasher);
        hasher.finish().is_multiple_of(DRAWN_SHARE)
    };
    is_deep() || chosen()
}

/// How many cases a random test runs: `deep`, or a tenth of them and at least one.
pub fn cases(deep: u32) -> u32 {
    if is_deep() { deep } else { deep.div_ceil(10) }
}
