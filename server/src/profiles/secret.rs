//! Passwords that are kept elsewhere: in a file, or by a program such as a password manager.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::terminal::errln;

/// Bits of a file's mode by which others than its owner may read or change it.
const OPEN_TO_OTHERS: u32 = 0o077;

/// The first line of a file. Warns when other users may read the file.
///
/// # Errors
/// When it cannot be read, or its first line is empty.
pub fn read(path: &Path) -> Result<String> {
    let text =
        std::fs::read_to_string(path).map_err(|e| Error::file(path, format!("cannot read the password: {e}")))?;
    if is_open_to_others(path) {
        errln!("warning: {} has a password, and other users may read it; chmod 600 it", path.display());
    }
    first_line(&text).ok_or_else(|| Error::file(path, "its first line, the password, is empty"))
}

fn is_open_to_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.mode() & OPEN_TO_OTHERS != 0)
}

/// The first line that a command of the shell prints. It may ask the user at the terminal.
///
/// # Errors
/// When it cannot be run, fails, or prints nothing.
pub fn ask(command: &str) -> Result<String> {
    let failed = |what: String| Error::System(format!("password_command '{command}' {what}"));
    let output = Command::new("sh").args(["-c", command]).stdin(Stdio::inherit()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| failed(format!("cannot be run: {e}")))?;
    if !output.status.success() {
        return Err(failed(format!("failed: {}", output.status)));
    }
    let text = String::from_utf8(output.stdout).map_err(|_| failed("printed what is no text".to_owned()))?;
    first_line(&text).ok_or_else(|| failed("printed no password".to_owned()))
}

fn first_line(text: &str) -> Option<String> {
    text.lines().next().filter(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_password_is_the_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "se cret\r\nnot this\n").unwrap();
        assert_eq!(read(&file).unwrap(), "se cret");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!is_open_to_others(&file));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(is_open_to_others(&file));
        std::fs::write(&file, "\nlater").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("is empty"));
    }

    #[test]
    fn a_command_gives_it_or_says_why_not() {
        assert_eq!(ask("echo 'se cret'; echo no").unwrap(), "se cret");
        assert!(ask("exit 3").unwrap_err().to_string().contains("failed"));
        assert!(ask("true").unwrap_err().to_string().contains("no password"));
    }
}
