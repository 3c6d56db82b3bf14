//! Nothing but dependencies: cargo unifies their features over the packages it is asked to build, so testing one crate
//! alone would build DataFusion a second time. The library crates depend on this one for their tests only.
