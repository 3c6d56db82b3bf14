//! The sources of values: the file, the environment, and the command line.

use std::path::PathBuf;

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider, providers::Serialized};

use super::sections::variable;
use crate::error::{Error, Result};

/// Keys that had another name, which is understood in all places, with the name that they have now.
const RENAMED: [(&str, &str); 1] = [("log", "log.level")];

/// The present name of a key.
pub(super) fn present_key(key: &str) -> &str {
    RENAMED.iter().find(|(former, _)| *former == key).map_or(key, |(_, present)| *present)
}

/// The key of a variable that is named after a former name.
pub(super) fn present_variable(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(former, _)| variable(former) == name).map(|(_, present)| *present)
}

/// The values of a file under the present names of their keys. A key may have become a section, so only a single value is moved.
pub(super) fn with_present_keys(mut table: toml::Table) -> toml::Table {
    for (former, present) in RENAMED {
        let Some((section, field)) = present.split_once('.') else { continue };
        if let Some(value) = table.get(former).filter(|value| !value.is_table()).cloned() {
            table.remove(former);
            table.insert(section.to_owned(), toml::Value::Table(toml::Table::from_iter([(field.to_owned(), value)])));
        }
    }
    table
}

/// True for variables with the prefix that are not configuration: variables of clients, tests and benchmarks, and those
/// that Kubernetes sets for a service named "terrace".
pub(super) fn is_foreign_variable(name: &str) -> bool {
    const NAMES: [&str; 13] = [
        "TERRACE_URL",
        "TERRACE_PROFILE",
        "TERRACE_PROFILES",
        "TERRACE_PAGER",
        "TERRACE_COMMIT",
        "TERRACE_CA",
        "TERRACE_CERT",
        "TERRACE_CERT_KEY",
        "TERRACE_CONFIG",
        "TERRACE_HISTORY",
        "TERRACE_PORT",
        "TERRACE_BIN",
        "TERRACE_FLIGHT_URI",
    ];
    const PREFIXES: [&str; 5] =
        ["TERRACE_SERVICE_", "TERRACE_PORT_", "TERRACE_TEST_", "TERRACE_BENCH_", "TERRACE_DAX_"];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The environment variables of this process; leaves out those that are not valid text.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// A value from the command line or the environment, which overrides the file.
#[derive(Debug, Clone)]
pub struct ConfigOverride {
    /// The place of the value, for messages: "--dram-budget".
    pub source: String,
    /// Dotted key.
    pub key: String,
    /// The value as written.
    pub value: String,
}

impl ConfigOverride {
    /// A value given by a flag.
    pub fn flag(flag: &str, key: &str, value: impl ToString) -> Self {
        Self { source: flag.to_owned(), key: key.to_owned(), value: value.to_string() }
    }

    /// Parses `key=value` of `--set`; no password, as every user of the machine may see arguments.
    pub fn assignment(text: &str) -> Result<Self> {
        let (key, value) =
            text.split_once('=').ok_or_else(|| Error::Config(format!("--set {text}: write --set key=value")))?;
        if key.trim() == "password" {
            let message = "--set password: other users of this machine can see it; set TERRACE_PASSWORD, or write it into the file of the configuration";
            return Err(Error::Config(message.to_owned()));
        }
        Ok(Self::flag("--set", key.trim(), value.trim()))
    }
}

impl Provider for ConfigOverride {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let nested = figment::util::nest(&self.key, Value::from(self.value.as_str()));
        Ok(Map::from([(Profile::Default, nested.into_dict().unwrap_or_default())]))
    }
}

/// The values of a file, with its name for messages.
pub(super) struct FileValues {
    pub(super) path: PathBuf,
    pub(super) table: toml::Table,
}

impl Provider for FileValues {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.path.display().to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::defaults(&self.table).data()
    }
}
