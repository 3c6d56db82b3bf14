//! Placement on virtual time: the real tiering loop over simulated devices and seeded workloads.
//!
//! ```text
//!   Scenario, seed -> Course (reads and events of every epoch, and what a clairvoyant would pay for them)
//!   Course, policy -> World (chunks, tiers, a home, a clock) -> Tiering::run_epoch, again and again -> Outcome
//! ```
//!
//! Nothing of the loop is copied: counters, heat, survey, policy, merging, queue and mover are those of a server; only the devices
//! and the clock are stand-ins, so thousands of epochs take a second. A segment of 8 KB stands for one of 1 MiB. The same
//! scenario, seed and policy give the same outcome. For tests of the crate, and for `terrace-bench run simulation`.

mod course;
mod merging;
mod outcome;
mod scenario;
mod trace;
mod world;

pub use course::Course;
pub use outcome::{FLIP_EPOCHS, FLIP_FACTOR, Outcome, run, run_merging};
pub use scenario::Scenario;
pub use trace::trace;

#[cfg(test)]
mod tests;
