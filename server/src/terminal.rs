//! Standard output and standard error of a command: the one place that writes to them.
//!
//! The reader of the output may close it early (`terrace config print | head -1`). That is no failure: later output is
//! dropped, and the command ends as it would have. A command whose only work is its output ends early, with
//! [`Error::OutputClosed`]. Any other fault (a full disk) fails the command at its end, in [`finish`]. Text for a
//! closed standard error is lost; a server goes on serving without either.
//!
//! `println!` and its like panic instead, so this crate does not use them.

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// The first fault of standard output.
static FAULT: Mutex<Option<(ErrorKind, String)>> = Mutex::new(None);

/// Writes to standard output.
macro_rules! out {
    ($($text:tt)*) => { $crate::terminal::write_out(format_args!($($text)*)) };
}

/// Writes a line to standard output.
macro_rules! outln {
    ($($text:tt)*) => { $crate::terminal::write_out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes a line to standard error.
macro_rules! errln {
    ($($text:tt)*) => { $crate::terminal::write_err(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {errln, out, outln};

/// Standard output as a writer; its faults are remembered for [`finish`].
#[derive(Debug, Clone, Copy)]
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        remember_fault(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        remember_fault(io::stdout().flush())
    }
}

/// Writes to standard output; [`finish`] returns whether that worked.
pub fn write_out(text: Arguments<'_>) {
    let _ = remember_fault(io::stdout().lock().write_fmt(text));
}

/// Writes to standard error, and ignores failures.
pub fn write_err(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// True once the reader of standard output has closed it.
pub fn is_closed() -> bool {
    FAULT.lock().as_ref().is_some_and(|(kind, _)| *kind == ErrorKind::BrokenPipe)
}

/// The size of the terminal that standard output shows itself on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Characters of a line.
    pub columns: usize,
    /// Lines.
    pub lines: usize,
}

/// The size of the terminal; nothing when standard output is none, or it does not tell.
pub fn size() -> Option<Size> {
    let (width, height) = terminal_size::terminal_size_of(io::stdout())?;
    Some(Size { columns: usize::from(width.0), lines: usize::from(height.0) })
}

/// Whether text for people may have colours: standard output is a terminal, and `NO_COLOR` does not forbid them.
pub fn has_colours() -> bool {
    may_colour(io::stdout().is_terminal(), std::env::var_os("NO_COLOR").as_deref())
}

/// Ends the output.
///
/// # Errors
/// When some output could not be written although its reader was still there.
pub fn finish() -> Result<()> {
    let _ = remember_fault(io::stdout().flush());
    as_result(FAULT.lock().as_ref())
}

/// Whether output may have colour codes: on a terminal, unless `NO_COLOR` forbids it (<https://no-color.org>).
pub fn may_colour(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

fn as_result(fault: Option<&(ErrorKind, String)>) -> Result<()> {
    match fault {
        None | Some((ErrorKind::BrokenPipe, _)) => Ok(()),
        Some((_, message)) => Err(Error::System(format!("cannot write the output: {message}"))),
    }
}

/// Remembers the first fault of standard output.
fn remember_fault<T>(done: io::Result<T>) -> io::Result<T> {
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
        as_result(None).unwrap();
        as_result(Some(&(ErrorKind::BrokenPipe, "Broken pipe".to_owned()))).unwrap();
        let full = as_result(Some(&(ErrorKind::StorageFull, "No space left on device".to_owned())));
        assert_eq!(full.unwrap_err().to_string(), "cannot write the output: No space left on device");
    }

    #[test]
    fn only_a_terminal_gets_colours() {
        assert!(may_colour(true, None) && may_colour(true, Some(OsStr::new(""))));
        assert!(!may_colour(false, None) && !may_colour(true, Some(OsStr::new("1"))));
    }
}
