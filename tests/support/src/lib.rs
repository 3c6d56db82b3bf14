//! What the tests of all crates share.
//!
//! - [`seeds`]: seeds of random tests
//! - [`depth`]: which part of the long tests runs
//! - [`fuzz`](mod@fuzz): decoders that must take any bytes
//! - `residence`: the memory that a process holds

pub mod depth;
pub mod fuzz;
mod residence;
pub mod seeds;
