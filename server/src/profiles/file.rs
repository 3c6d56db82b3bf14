//! The file of profiles: `TERRACE_PROFILES`, else `$XDG_CONFIG_HOME/terrace/profiles.toml`, else
//! `~/.config/terrace/profiles.toml`.
//!
//! ```toml
//! [prod]
//! url = "grpc+tls://db.example:31337"
//! http_addr = "https://db.example:8080"
//! user = "ann"
//! password_command = "pass show terrace/prod"
//! ```
//!
//! The profile `default` holds where none is named. Relative paths begin at the folder of the file, `~/` at the home.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::secret;
use crate::error::{Error, Result};

/// The profile that holds where none is named.
const USUAL: &str = "default";
/// Bits of a file's mode by which others than its owner may change it.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Settings of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Address of Flight SQL.
    pub url: Option<String>,
    /// Address of HTTP.
    pub http_addr: Option<String>,
    /// User.
    pub user: Option<String>,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// Command whose first line of output is the password.
    pub password_command: Option<String>,
    /// Certificates to trust.
    pub ca: Option<PathBuf>,
    /// Certificate to show.
    pub cert: Option<PathBuf>,
    /// Private key of the certificate.
    pub cert_key: Option<PathBuf>,
}

/// The profile that holds.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub profile: Profile,
    /// True when an option named it, so that it wins over the environment.
    pub is_named: bool,
    /// The file that has it.
    pub file: PathBuf,
}

impl Chosen {
    /// The profile `name`, else the one that `TERRACE_PROFILE` names, else `default` where there is one.
    ///
    /// # Errors
    /// For a file that cannot be read or has faults, and a named profile that is missing.
    pub fn find(name: Option<&str>, environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let variable = environment("TERRACE_PROFILE").filter(|name| !name.is_empty());
        let wanted = name.map(str::to_owned).or(variable);
        let Some(file) = file(environment) else {
            let Some(name) = wanted else { return Ok(None) };
            let message = format!("profile '{name}': there is no home to look for its file; set TERRACE_PROFILES");
            return Err(Error::Usage(message));
        };
        if wanted.is_none() && !file.exists() {
            return Ok(None);
        }
        let mut profiles = read(&file)?;
        let wanted_name = wanted.as_deref().unwrap_or(USUAL);
        match profiles.remove(wanted_name) {
            Some(profile) => Ok(Some(Self { name: wanted_name.to_owned(), profile, is_named: name.is_some(), file })),
            None if wanted.is_none() => Ok(None),
            None => {
                let names: Vec<&str> = profiles.keys().map(String::as_str).collect();
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Err(Error::file(file, format!("it has no profile '{wanted_name}'; there are: {known}")))
            }
        }
    }

    /// An address, by its key.
    pub fn address(&self, key: &str) -> Option<String> {
        if key == "url" { self.profile.url.clone() } else { self.profile.http_addr.clone() }
    }

    /// Whether it names a server.
    pub fn has_address(&self) -> bool {
        self.profile.url.is_some() || self.profile.http_addr.is_some()
    }

    /// A path of it, from the folder of its file.
    pub fn path(&self, path: &Option<PathBuf>) -> Option<PathBuf> {
        let path = path.as_ref()?;
        match (path.strip_prefix("~"), std::env::home_dir()) {
            (Ok(rest), Some(home)) => Some(home.join(rest)),
            _ => Some(self.file.parent().unwrap_or(Path::new(".")).join(path)),
        }
    }

    /// Its password, where it says where to find one.
    ///
    /// # Errors
    /// When it cannot be had, or others may change what the command is.
    pub fn password(&self) -> Result<Option<String>> {
        let Profile { password_file, password_command, .. } = &self.profile;
        match (self.path(password_file), password_command) {
            (None, None) => Ok(None),
            (Some(path), None) => secret::read(&path).map(Some),
            (None, Some(command)) => {
                let mode = std::fs::metadata(&self.file).map_or(0, |meta| meta.mode());
                if mode & WRITABLE_BY_OTHERS != 0 {
                    let message =
                        "other users may change it, and so the command that gives the password; chmod go-w it";
                    return Err(Error::file(&self.file, message));
                }
                secret::ask(command).map(Some)
            }
            (Some(_), Some(_)) => {
                let message =
                    format!("profile '{}' has both password_file and password_command: leave one out", self.name);
                Err(Error::file(&self.file, message))
            }
        }
    }
}

/// Where the file is, if there is any place for it.
fn file(environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("TERRACE_PROFILES").or_else(|| {
        let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
        Some(folder.join("terrace").join("profiles.toml"))
    })
}

fn read(file: &Path) -> Result<BTreeMap<String, Profile>> {
    let text =
        std::fs::read_to_string(file).map_err(|e| Error::file(file, format!("cannot read the profiles: {e}")))?;
    parse(&text).map_err(|message| Error::file(file, message))
}

/// The profiles of a text, by name.
fn parse(text: &str) -> std::result::Result<BTreeMap<String, Profile>, String> {
    let table = text.parse::<toml::Table>().map_err(|e| e.to_string())?;
    let mut profiles = BTreeMap::new();
    for (name, value) in table {
        if value.get("password").is_some() {
            return Err(format!(
                "profile '{name}' has a password in plain text: name a file by password_file, or a command by password_command"
            ));
        }
        let profile = value.try_into::<Profile>().map_err(|e| format!("profile '{name}': {}", e.message()))?;
        profiles.insert(name, profile);
    }
    Ok(profiles)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn profiles_are_read_and_faults_are_named() {
        let profiles = parse("[a]\nurl = 'grpc://h:1'\n[b]\nuser = 'ann'\npassword_command = 'true'").unwrap();
        assert_eq!(profiles["a"].url.as_deref(), Some("grpc://h:1"));
        assert_eq!(profiles["b"].password_command.as_deref(), Some("true"));
        for (text, part) in [
            ("[a]\npassword = 'x'", "password_file"),
            ("[a]\nuri = 'x'", "unknown field `uri`"),
            ("[a]\nurl = 7", "profile 'a'"),
            ("[a", "TOML parse error"),
        ] {
            let fault = parse(text).unwrap_err();
            assert!(fault.contains(part), "{fault}");
        }
    }

    #[test]
    fn the_file_is_where_the_environment_says() {
        let file_of = |pairs: &[(&str, &str)]| {
            file(&|name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(file_of(&[("TERRACE_PROFILES", "/p"), ("HOME", "/h")]), Some("/p".into()));
        assert_eq!(file_of(&[("XDG_CONFIG_HOME", "/x")]), Some("/x/terrace/profiles.toml".into()));
        assert_eq!(file_of(&[("HOME", "/h")]), Some("/h/.config/terrace/profiles.toml".into()));
        assert_eq!(file_of(&[]), None);
    }
}
