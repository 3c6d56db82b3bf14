//! Arrow IPC messages and files from outside, read within limits.
//!
//! A message says how long its buffers are once they are decompressed, how many rows it has, where its parts lie; Arrow's
//! reader believes it and allocates, which ends the process when the memory is not there. Here nothing is allocated
//! because a message says so: what it announces is summed before a byte is decompressed, refused beyond a limit, counted
//! by whoever counts memory, and asked for in a way that can fail.
//!
//! ```text
//!   Flight upload ---------------> Inflater -> messages without compression -> arrow-flight -> check_expanded
//!   .arrow file -> FileReader ---> Inflater -> messages without compression -> arrow-ipc ----> check_expanded
//! ```
//!
//! The crate knows Arrow and nothing of Terrace: `flight`, `planner-ext` and `server` use it.

mod account;
mod bytes;
mod decoder;
mod error;
mod expanded;
mod file;
mod inflate;
mod wanted;

pub use account::{Account, Charge, Limits};
pub use bytes::AlignedBytes;
pub use error::Error;
pub use expanded::check_expanded;
pub use file::{FileReader, read_schema};
pub use inflate::{Inflater, Message};

#[cfg(test)]
mod testing;
