//! Moves segments between tiers: copy, swap, release.
//!
//! A move copies a segment's image to its new tier (charged there first), swaps the segment's handle in the chunk, and
//! lets the old copy end with its last reader (Dreseler 2021, section 5.4). Readers never wait.
//!
//! - `device_rate`: limits the bytes per second that moves read from and write to each device
//! - [`health`]: tracks which devices fail, and pauses their moves
//! - [`image`]: copies a segment to the memory of a device, or drops that copy
//! - [`mover`]: carries out one move
//! - [`queue`]: carries out a plan of moves, in order, at the rates of the devices
//! - `testing`: chunks and a home in memory, for tests

mod device_rate;
pub mod health;
pub mod image;
pub mod mover;
pub mod queue;
#[doc(hidden)]
pub mod testing;

pub use device_rate::DeviceRates;
pub use health::{Failing, Health};
pub use image::{ImageChange, ImageOutcome, change_image};
pub use mover::{MoveError, MoveResult, Outcome, Relocation, try_move, try_promote};
pub use queue::{MoveExecutor, MoveQueue, Verdict};
