//! Logs of lines in files: the audit trail, and what other crates record.
//!
//! A thread appends what waits in a queue, so nobody who records waits for the disk. Files are rotated by their size, and where a time is
//! given by their age; what is beyond the number of files or the time is removed. A line that was cut when the machine stopped ends
//! with the next one, and readers leave it out.
//!
//! - `file`: a file that is rotated
//! - `reader`: the lines of a log, the newest first
//! - `writer`: the queue, and the thread that writes

mod file;
mod reader;
mod writer;

pub use file::LogFile;
pub(crate) use file::RotatingFile;
pub use reader::NewestFirst;
pub use writer::{Line, LineLog, LogOptions};
