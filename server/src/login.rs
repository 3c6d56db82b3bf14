//! Who asks a server: user and password of the command line.
//!
//! Every user of a machine may see the arguments of its processes. So the password comes from a file or the environment, and where
//! neither has it, whoever sits at the terminal is asked. As an argument it is taken with a warning.

use std::ffi::OsString;
use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::terminal::errln;

/// The variable that has the password.
const PASSWORD: &str = "TERRACE_PASSWORD";

/// Options that say who asks.
#[derive(Clone, Default, clap::Args)]
pub struct Login {
    /// User, where the server wants one; TERRACE_PASSWORD has the password, or --password-file, else a terminal is asked for it
    #[arg(long, env = "TERRACE_USER", value_name = "NAME")]
    pub user: Option<String>,
    /// File whose first line is the password of the user, or a token
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
    /// Password of the user, for others of the machine to see
    #[arg(long, value_name = "PASSWORD", hide = true, requires = "user", conflicts_with = "password_file")]
    pub password: Option<String>,
    /// The password, once it is known.
    #[arg(skip)]
    known: Arc<Mutex<Option<String>>>,
}

/// User and password.
pub(crate) struct Credentials {
    /// The user.
    pub(crate) user: String,
    /// The password.
    pub(crate) password: String,
}

/// Where a password may come from beside the command line.
struct Surroundings {
    /// The variable of the environment.
    variable: Option<OsString>,
    /// Whether somebody reads the messages of this process.
    has_terminal: bool,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    /// A login whose password is known already.
    pub fn known(user: Option<String>, password: Option<String>) -> Self {
        Self { user, known: Arc::new(Mutex::new(password)), ..Self::default() }
    }

    /// User and password; `None` without a user. Asks for the password where it has to, the first time.
    ///
    /// # Errors
    /// [`Error::File`] for a file of a password that cannot be read; [`Error::Usage`] for a variable that is no text;
    /// [`Error::System`] where the terminal cannot be read.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>> {
        let Some(user) = self.user.clone() else { return Ok(None) };
        // The lock is held while somebody types: connections of one command ask once.
        let mut known = self.known.lock();
        let password = match &*known {
            Some(password) => password.clone(),
            None => {
                let has_terminal = std::io::stderr().is_terminal();
                self.find(&user, Surroundings { variable: std::env::var_os(PASSWORD), has_terminal })?
            }
        };
        *known = Some(password.clone());
        Ok(Some(Credentials { user, password }))
    }

    fn find(&self, user: &str, around: Surroundings) -> Result<String> {
        if let Some(password) = &self.password {
            errln!(
                "warning: other users of this machine can see the argument --password; use {PASSWORD} or --password-file, or \
                 give none to be asked for it"
            );
            return Ok(password.clone());
        }
        if let Some(path) = &self.password_file {
            return first_line(path);
        }
        match around.variable {
            Some(password) => password.into_string().map_err(|_| Error::Usage(format!("{PASSWORD} is not valid text"))),
            None if around.has_terminal => rpassword::prompt_password(format!("Password of '{user}': "))
                .map_err(|error| Error::System(format!("cannot read the password: {error}"))),
            // A server without users wants none.
            None => Ok(String::new()),
        }
    }
}

/// The first line of a file that has a password.
fn first_line(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Error::file(path, format!("cannot read the password: {error}")))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(Error::file(path, "its first line has no password")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The password of a login beside a variable of the environment, without a terminal.
    fn found(login: &Login, variable: Option<&str>) -> Result<String> {
        login.find("ann", Surroundings { variable: variable.map(OsString::from), has_terminal: false })
    }

    #[test]
    fn the_command_line_comes_before_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "of the file\r\nmore\n").unwrap();
        let of_file = Login { password_file: Some(file.clone()), ..Login::default() };
        let given = Login { password: Some("given".into()), ..Login::default() };
        assert_eq!(found(&of_file, Some("of the environment")).unwrap(), "of the file");
        assert_eq!(found(&given, Some("of the environment")).unwrap(), "given");
        assert_eq!(found(&Login::default(), Some("of the environment")).unwrap(), "of the environment");
        assert_eq!(found(&Login::default(), None).unwrap(), "");
        std::fs::write(&file, "\nsecond").unwrap();
        assert!(found(&of_file, None).unwrap_err().to_string().contains("no password"));
        std::fs::remove_file(&file).unwrap();
        let missing = found(&of_file, Some("of the environment")).unwrap_err().to_string();
        assert!(missing.contains("password") && !missing.contains("of the environment"), "{missing}");
    }

    #[test]
    fn a_password_is_found_once_and_not_shown() {
        let login = Login::known(Some("ann".into()), Some("geheim".into()));
        let copy = login.clone();
        assert!(copy.credentials().unwrap().is_some_and(|found| (&*found.user, &*found.password) == ("ann", "geheim")));
        assert!(Login::known(None, Some("geheim".into())).credentials().unwrap().is_none());
        let given = Login { password: Some("geheim".into()), ..login };
        assert!(!format!("{given:?}").contains("geheim"));
    }
}
