//! Placement on virtual time: the real tiering loop over simulated devices, with seeded or recorded reads.
//!
//! ```text
//!   Scenario, seed or Recording -> Course (reads and events of every epoch, and their cost under the best placement)
//!   Course, policy -> World (chunks, tiers, a home, a clock) -> Tiering::run_epoch, again and again -> Outcome
//! ```
//!
//! Nothing of the loop is copied: counters, heat, survey, policy, merging, queue and mover are those of a server; only
//! the devices and the clock are stand-ins, so thousands of epochs take a second. A segment of 8 KB stands for one of
//! 1 MiB. The same scenario, seed and policy give the same outcome. The crate
//! is for tests and for `terrace-bench run simulation`; nothing of the server depends on it. It knows placement, storage
//! and the model.
//!
//! - [`course`]: the reads of a run, and their cost at best
//! - [`merging`]: reads one by one, with merging between epochs
//! - [`outcome`]: runs a policy over a course and sums up
//! - [`recording`]: reads that a server has counted
//! - [`scenario`]: the workloads
//! - [`mod@trace`]: renders a run as text
//! - [`world`]: the simulated store

mod course;
mod merging;
mod outcome;
mod recording;
mod scenario;
mod trace;
mod world;

pub use course::Course;
pub use outcome::{FLIP_EPOCHS, FLIP_FACTOR, Outcome, run, run_merging};
pub use recording::Recording;
pub use scenario::Scenario;
pub use trace::trace;

#[cfg(test)]
mod tests;
