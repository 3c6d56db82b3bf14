//! What the tests of all crates share.
//!
//! - [`seeds`]: seeds of random tests
//! - [`depth`]: which part of the long tests runs

pub mod depth;
pub mod seeds;
