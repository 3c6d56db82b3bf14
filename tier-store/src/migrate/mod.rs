//! Moves: copy, swap, release.
//!
//! A move copies a segment's image to its new tier (charged there first), swaps the chunk's handle, and lets the old
//! copy die with its last reader (Dreseler 2021, section 5.4). Readers never wait. [`mover`] carries out one move,
//! [`queue`] a plan of them in order, at the rates of devices, [`health`] says which devices fail.

pub mod health;
mod home;
pub mod mover;
mod pace;
pub mod queue;
#[cfg(test)]
pub(crate) mod testing;

pub use health::{Failing, Health};
pub use mover::{Failed, HomeTier, Moved, Outcome, Relocation, try_move, try_promote};
pub use pace::Rates;
pub use queue::{Crew, MoveQueue, Verdict};
