//! Nothing but dependencies: cargo unifies their features over the packages it is asked to build, so that building the
//! server alone, or testing one crate alone, would build DataFusion a second time. Every binary and every crate's tests
//! depend on this one.
