//! The pager: shows a result that is taller than the terminal page by page.
//!
//! A result is held back until it is known to be taller; then the pager starts and gets it as it comes. Users who leave the
//! pager early end the result, which is no failure.

use std::io::{self, ErrorKind, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::error::{Error, Result};
use crate::terminal::{self, Size, errln};

/// What the shell says when there is no such program.
const NOT_FOUND: i32 = 127;

/// The command of the user's pager: `TERRACE_PAGER`, else `PAGER`, else `less` where it is installed. An empty one is none.
pub fn command() -> Option<String> {
    let named = ["TERRACE_PAGER", "PAGER"].into_iter().find_map(|name| std::env::var(name).ok());
    match named {
        Some(command) => Some(command).filter(|command| !command.trim().is_empty()),
        None => is_installed("less").then(|| "less".to_owned()),
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Standard output that goes through a pager once it is taller than the terminal.
#[derive(Debug)]
pub struct Pager {
    command: String,
    size: Size,
    /// Text that nobody has seen yet.
    held: Vec<u8>,
    /// Lines of the terminal that it takes, without the last one.
    lines: usize,
    /// Characters of its last line.
    columns: usize,
    child: Option<Child>,
    has_left: bool,
}

impl Pager {
    /// Runs `command` when there is more than the terminal shows at once.
    pub fn new(command: String, size: Size) -> Self {
        Self { command, size, held: Vec::new(), lines: 0, columns: 0, child: None, has_left: false }
    }

    /// True when the user left the pager before all was written.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Shows what is held back, or waits until the user leaves the pager.
    ///
    /// # Errors
    /// When the pager cannot be run.
    pub fn finish(&mut self) -> Result<()> {
        let Some(child) = self.child.take() else {
            // Failures are remembered by the terminal.
            let _ = terminal::Output.write_all(&std::mem::take(&mut self.held));
            return Ok(());
        };
        let status = Self::wait(child).map_err(|e| Error::System(format!("cannot wait for the pager: {e}")))?;
        if status.code() == Some(NOT_FOUND) {
            errln!("the pager '{}' cannot be run; set PAGER, or switch it off by \\pset pager off", self.command);
        }
        Ok(())
    }

    /// Closes the pager's input and waits until the user leaves it.
    fn wait(mut child: Child) -> io::Result<ExitStatus> {
        drop(child.stdin.take());
        child.wait()
    }

    /// Counts the lines that `bytes` take on the terminal.
    fn count(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    self.lines += 1 + self.columns.saturating_sub(1) / self.size.columns.max(1);
                    self.columns = 0;
                }
                // Bytes within a character of UTF-8 begin with 10.
                byte if byte & 0xc0 != 0x80 => self.columns += 1,
                _ => {}
            }
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).stdin(Stdio::piped());
        if std::env::var_os("LESS").is_none() {
            // Long lines are cut and scrolled sideways, colours are kept, the text stays on the screen.
            command.env("LESS", "-SRX");
        }
        self.child = Some(command.spawn()?);
        let held = std::mem::take(&mut self.held);
        self.send(&held)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(input) = self.child.as_mut().and_then(|child| child.stdin.as_mut()) else { return Ok(()) };
        let sent = input.write_all(bytes);
        self.has_left |= sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe);
        sent
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.child.is_some() {
            self.send(bytes)?;
            return Ok(bytes.len());
        }
        self.held.extend_from_slice(bytes);
        self.count(bytes);
        // The last line is for the prompt.
        if self.lines >= self.size.lines {
            self.start()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Pager {
    /// A result that was cancelled: the pager has the terminal until the user leaves it.
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = Self::wait(child);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pager(command: &str) -> Pager {
        Pager::new(command.to_owned(), Size { columns: 10, lines: 3 })
    }

    #[test]
    fn lines_are_counted_as_the_terminal_breaks_them() {
        let mut short = pager("false");
        short.write_all("aaaaaaaaaa\näöüäöüäöüä\n".as_bytes()).unwrap();
        assert_eq!((short.lines, short.child.is_none()), (2, true));
        let mut tall = pager("cat > /dev/null");
        tall.write_all(b"aaaaaaaaaaa\n").unwrap();
        tall.write_all(b"b\n").unwrap();
        assert!(tall.child.is_some() && tall.held.is_empty());
        tall.finish().unwrap();
        assert!(!tall.has_left());
    }

    #[test]
    fn a_user_who_leaves_is_noticed() {
        let mut pager = pager("exit 0");
        let page = vec![b'\n'; 1 << 20];
        assert_eq!(pager.write_all(&page).unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(pager.has_left());
        pager.finish().unwrap();
    }
}
