//! Reads Arrow IPC messages and files from outside within memory limits, and gives texts the form that a client reads: plain arrays in
//! place of views, or keys of a dictionary.
//!
//! A message announces the decompressed lengths of its buffers, its number of rows and the offsets of its parts.
//! Arrow's reader trusts these numbers and allocates, which ends the process when the memory is not there. This crate
//! sums the announced lengths before it decompresses a byte, refuses sums beyond a limit, charges them to an
//! [`Account`], and allocates in a way that can fail.
//!
//! ```text
//!   Flight upload ---------------> Inflater -> messages without compression -> arrow-flight -> check_expanded
//!   .arrow file -> FileReader ---> Inflater -> messages without compression -> arrow-ipc ----> check_expanded
//! ```
//!
//! The crate knows Arrow and nothing of Terrace: `flight`, `planner-ext`, its scans and `server` use it.
//!
//! - `account`: limits of a message, and the trait that counts memory
//! - `buffer_selection`: selects the buffers of a message that belong to projected columns
//! - `bytes`: aligned memory whose allocation can fail
//! - `decoder`: decodes messages of one schema into rows
//! - `error`: the error type
//! - `expanded`: bounds the size of rows once dictionaries, views and runs are written out
//! - `file`: reads Arrow files and streams
//! - `flatten`: views of texts as plain arrays
//! - `inflate`: decompresses messages
//! - `schema`: reads schemas, and refuses types that cannot be used
//! - `text_dictionary`: texts as keys of a dictionary
//!
//! Upstream: <https://github.com/apache/arrow-rs/issues/10921> (`arrow-ipc`: a footer block's declared body length is
//! zero-filled before it is read), open, and <https://github.com/apache/arrow-rs/pull/10959> (Expose IPC decompressed
//! size and bound LZ4 output), open; can go when arrow-ipc takes a limit for all that a message may allocate, and the
//! tests of this crate pass with its reader.

mod account;
mod buffer_selection;
mod bytes;
mod decoder;
mod error;
mod expanded;
mod file;
mod flatten;
mod inflate;
mod schema;
mod text_dictionary;

pub use account::{Account, Charge, Limits};
pub use bytes::AlignedBytes;
pub use error::Error;
pub use expanded::check_expanded;
pub use file::{FileReader, read_schema};
pub use flatten::{flat_bytes, flat_texts};
pub use inflate::{Inflater, Message};
pub use schema::{check_type, read_header, read_schema_message};
pub use text_dictionary::{TextDictionary, keyed_text_type};

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod testing;
