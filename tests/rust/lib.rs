//! Tests that cross crates; see `rust/main.rs`, `python`, `java`, `browser` and the other folders beside this one.
