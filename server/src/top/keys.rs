//! Single keys from the terminal, without Enter and without an echo.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};

use crate::error::{Error, Result};

/// A terminal that gives each key at once. Dropping it brings the earlier mode back.
pub struct Keys {
    earlier: Termios,
}

impl Keys {
    /// Switches the terminal of standard input.
    ///
    /// # Errors
    /// When it is none.
    pub fn open() -> Result<Self> {
        let earlier = tcgetattr(io::stdin()).map_err(failed)?;
        let mut mode = earlier.clone();
        // Ctrl-C comes as a key, too, so that the screen is left in order.
        mode.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        for (index, value) in [(SpecialCharacterIndices::VMIN, 1), (SpecialCharacterIndices::VTIME, 0)] {
            if let Some(slot) = mode.control_chars.get_mut(index as usize) {
                *slot = value;
            }
        }
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &mode).map_err(failed)?;
        Ok(Self { earlier })
    }

    /// Waits for a key; nothing when `limit` is over, or the terminal's size has changed.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn wait(&self, limit: Duration) -> Result<Option<u8>> {
        let input = io::stdin();
        let limit = u16::try_from(limit.as_millis()).unwrap_or(u16::MAX);
        let mut waited = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, PollTimeout::from(limit)) {
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
        let mut key = [0];
        match input.lock().read(&mut key) {
            Ok(0) => Err(Error::System("the terminal is gone".to_owned())),
            Ok(_) => Ok(key.first().copied()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(Error::System(format!("cannot read from the terminal: {error}"))),
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.earlier);
    }
}

fn failed(error: Errno) -> Error {
    Error::System(format!("cannot switch the terminal: {error}"))
}
