//! The configuration: one documented structure, read from four places.
//!
//! Command line > environment (`TERRACE_...`) > TOML file > default. A key `tiers.dram.budget` is `[tiers.dram] budget`
//! in the file and `TERRACE_TIERS_DRAM_BUDGET` in the environment. Unknown keys are refused with the nearest known one.
//! The documentation comments of the structure are the comments that `terrace config print` writes.
//!
//! - [`sections`]: keys, defaults and documentation
//! - [`source`]: the file, the environment and the command line
//! - [`toml_text`]: the configuration as documented TOML
//! - [`validate`]: rules between values

mod sections;
mod source;
mod toml_text;
mod validate;

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;

use std::path::Path;

use figment::{Figment, providers::Serialized};

pub use sections::*;
pub use source::{ConfigOverride, environment};
use source::{FileValues, is_foreign_variable, present_key, present_variable, with_present_keys};

use crate::error::{Error, Result};

impl Config {
    /// Reads the configuration: `flags` over `environment` (all variables; others are ignored) over `file` over
    /// defaults.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: Vec<ConfigOverride>,
    ) -> Result<Self> {
        let known = keys();
        let mut faults = Vec::new();
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(path) = file {
            let table = with_present_keys(read_toml(path)?);
            check_table(&table, "", &known, &path.display().to_string(), &mut faults);
            figment = figment.merge(FileValues { path: path.to_owned(), table });
        }
        for (name, value) in environment {
            if !name.starts_with("TERRACE_") || is_foreign_variable(&name) {
                continue;
            }
            let key = known.iter().map(String::as_str).find(|key| variable(key) == name);
            match key.or_else(|| present_variable(&name)) {
                Some(key) => figment = figment.merge(ConfigOverride { source: name, key: key.to_owned(), value }),
                None => faults.push(unknown("environment variable", &name, known.iter().map(|k| variable(k)), "")),
            }
        }
        for given in flags {
            let given = ConfigOverride { key: present_key(&given.key).to_owned(), ..given };
            if !known.contains(&given.key) && group_field(&given.key).is_none() {
                let known = known.iter().cloned().chain(group_keys(&given.key));
                faults.push(unknown("key", &given.key, known, &given.source));
                continue;
            }
            figment = figment.merge(given);
        }
        if faults.is_empty() {
            match figment.extract_lossy::<Self>() {
                Ok(config) => return config.checked(),
                Err(error) => faults.extend(error.into_iter().map(|e| describe(&e))),
            }
        }
        Err(Error::Config(faults.join("\n  ")))
    }
}

fn read_toml(path: &Path) -> Result<toml::Table> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::file(path, format!("cannot read it: {e}")))?;
    text.parse::<toml::Table>().map_err(|e| Error::Config(format!("{}: {e}", path.display())))
}

fn check_table(table: &toml::Table, prefix: &str, known: &[String], source: &str, faults: &mut Vec<String>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let is_section = SECTIONS.iter().any(|(section, _)| *section == key);
        match value {
            toml::Value::Table(inner) if is_section => check_table(inner, &key, known, source, faults),
            toml::Value::Table(inner) if key == GROUPS || prefix == GROUPS => {
                check_table(inner, &key, known, source, faults);
            }
            _ if known.contains(&key) || group_field(&key).is_some() => {}
            _ => faults.push(unknown("key", &key, known.iter().cloned().chain(group_keys(&key)), source)),
        }
    }
}

/// The keys of the workload group that `key` belongs to, if it belongs to one.
fn group_keys(key: &str) -> impl Iterator<Item = String> {
    let group = key.strip_prefix(GROUPS).and_then(|rest| Some(rest.strip_prefix('.')?.split_once('.')?.0));
    let fields = WorkloadGroupConfig::DOCS.iter();
    group.map(|name| fields.map(move |(field, _)| format!("{GROUPS}.{name}.{field}"))).into_iter().flatten()
}

fn unknown(kind: &str, name: &str, known: impl Iterator<Item = String>, source: &str) -> String {
    let place = if source.is_empty() { String::new() } else { format!(" in {source}") };
    let nearest = known.min_by_key(|k| strsim::damerau_levenshtein(k, name)).unwrap_or_default();
    format!("unknown {kind} '{name}'{place}; did you mean '{nearest}'?")
}

fn describe(error: &figment::Error) -> String {
    let source = error.metadata.as_ref().map(|m| format!(" ({})", m.name)).unwrap_or_default();
    format!("{}: {}{source}", error.path.join("."), error.kind)
}
