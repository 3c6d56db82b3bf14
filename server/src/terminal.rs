//! Standard output and standard error of a command: the one place that writes to them.
//!
//! Whoever reads the output may leave before its end (`terrace config print | head -1`). That is no failure: what is said
//! afterwards goes nowhere, and the command ends as it would have. A command whose whole work is its output ends early, with
//! [`Error::OutputClosed`]. Any other fault (a full disk) fails the command at its end, in [`finish`]. Words for standard
//! error that nobody takes are lost; a server goes on serving without either.
//!
//! `println!` and its like panic instead, so this crate does not use them.

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// The first fault of standard output.
static FAULT: Mutex<Option<(ErrorKind, String)>> = Mutex::new(None);

/// Writes to standard output.
macro_rules! out {
    ($($words:tt)*) => { $crate::terminal::write_out(format_args!($($words)*)) };
}

/// Writes a line to standard output.
macro_rules! outln {
    ($($words:tt)*) => { $crate::terminal::write_out(format_args!("{}\n", format_args!($($words)*))) };
}

/// Writes a line to standard error.
macro_rules! errln {
    ($($words:tt)*) => { $crate::terminal::write_err(format_args!("{}\n", format_args!($($words)*))) };
}

pub(crate) use {errln, out, outln};

/// Standard output for those who need a writer; its faults are remembered for [`finish`].
#[derive(Debug, Clone, Copy)]
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        noted(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        noted(io::stdout().flush())
    }
}

/// Writes to standard output; [`finish`] tells whether that worked.
pub fn write_out(words: Arguments<'_>) {
    let _ = noted(io::stdout().lock().write_fmt(words));
}

/// Writes to standard error, if somebody takes it.
pub fn write_err(words: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(words);
}

/// True once nobody reads standard output any more.
pub fn is_closed() -> bool {
    FAULT.lock().as_ref().is_some_and(|(kind, _)| *kind == ErrorKind::BrokenPipe)
}

/// Ends the output.
///
/// # Errors
/// When some of it could not be written though somebody was there to read it.
pub fn finish() -> Result<()> {
    let _ = noted(io::stdout().flush());
    judged(FAULT.lock().as_ref())
}

/// Whether log lines may have colour codes: on a terminal, unless `NO_COLOR` forbids it (<https://no-color.org>).
pub fn may_colour(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

fn judged(fault: Option<&(ErrorKind, String)>) -> Result<()> {
    match fault {
        None | Some((ErrorKind::BrokenPipe, _)) => Ok(()),
        Some((_, message)) => Err(Error::System(format!("cannot write the output: {message}"))),
    }
}

fn noted<T>(done: io::Result<T>) -> io::Result<T> {
    if let Err(error) = &done
        && error.kind() != ErrorKind::Interrupted
    {
        FAULT.lock().get_or_insert_with(|| (error.kind(), error.to_string()));
    }
    done
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is_one() {
        judged(None).unwrap();
        judged(Some(&(ErrorKind::BrokenPipe, "Broken pipe".to_owned()))).unwrap();
        let full = judged(Some(&(ErrorKind::StorageFull, "No space left on device".to_owned())));
        assert_eq!(full.unwrap_err().to_string(), "cannot write the output: No space left on device");
    }

    #[test]
    fn only_a_terminal_gets_colours() {
        assert!(may_colour(true, None) && may_colour(true, Some(OsStr::new(""))));
        assert!(!may_colour(false, None) && !may_colour(true, Some(OsStr::new("1"))));
    }
}
