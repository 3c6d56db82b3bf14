//! The description of a resumable load, stored as the comment of its staging table, so that another run can tell
//! whether the rows in it are its own.

use serde::{Deserialize, Serialize};

use super::source::Source;
use crate::error::{Error, Result};

/// Longest list of sources; more are summed up by a checksum.
const MOST_LISTED: usize = 1_000;

/// Sources and order of the rows of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format.
    terrace_load: u32,
    /// Files with their sizes and times of change, or the generated table.
    sources: Vec<String>,
    cluster_by: Vec<String>,
}

impl Manifest {
    /// The manifest of a load of `source` now.
    pub fn from_source(source: &Source) -> Result<Self> {
        let mut sources = source.identity()?;
        if sources.len() > MOST_LISTED {
            let more = sources.split_off(MOST_LISTED - 1);
            sources.push(format!("{} more, {:08x}", more.len(), crc32c::crc32c(more.join("\n").as_bytes())));
        }
        Ok(Self { terrace_load: 1, sources, cluster_by: source.cluster_by.clone() })
    }

    /// The comment of the staging table: the manifest as JSON.
    pub fn loading_comment(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::System(format!("cannot record the sources: {e}")))
    }

    /// The comment of the complete table: short, and unique to this load by a checksum.
    pub fn completion_comment(&self) -> Result<String> {
        let what = match self.sources.as_slice() {
            [one] => one.split_once(", ").map_or(one.as_str(), |(name, _)| name).to_owned(),
            [first, ..] => {
                let name = first.split_once(", ").map_or(first.as_str(), |(name, _)| name);
                format!("{} sources, the first {name}", self.sources.len())
            }
            [] => "nothing".to_owned(),
        };
        Ok(format!("terrace load {:08x}: {what}", crc32c::crc32c(self.loading_comment()?.as_bytes())))
    }

    /// The difference between the load that wrote `comment` and this one; `None` when they are equal.
    pub fn difference(&self, comment: &str) -> Option<String> {
        let Ok(before) = serde_json::from_str::<Self>(comment) else {
            return Some(match comment {
                "" => "no load created it".to_owned(),
                comment => format!("its comment says: {comment}"),
            });
        };
        if before == *self {
            return None;
        }
        if before.cluster_by != self.cluster_by {
            let columns = |list: &[String]| if list.is_empty() { "nothing".to_owned() } else { list.join(",") };
            let then = columns(&before.cluster_by);
            let now = columns(&self.cluster_by);
            return Some(format!("it was clustered by {then}, now by {now}"));
        }
        let changed = before.sources.iter().zip(&self.sources).find(|(then, now)| then != now);
        Some(match (changed, before.sources.len(), self.sources.len()) {
            (Some((then, now)), ..) => format!("the source was '{then}', now it is '{now}'"),
            (None, then, now) if then != now => format!("there were {then} sources, now there are {now}"),
            _ => "it was written by another version".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn manifest(sources: &[&str], cluster_by: &[&str]) -> Manifest {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Manifest { terrace_load: 1, sources: owned(sources), cluster_by: owned(cluster_by) }
    }

    #[test]
    fn differences_are_named() {
        let now = manifest(&["/a.csv, 10 bytes", "/b.csv, 20 bytes"], &["k"]);
        assert_eq!(now.difference(&now.loading_comment().unwrap()), None);
        for (before, words) in [
            (manifest(&["/a.csv, 10 bytes", "/b.csv, 21 bytes"], &["k"]).loading_comment().unwrap(), "21 bytes"),
            (manifest(&["/a.csv, 10 bytes"], &["k"]).loading_comment().unwrap(), "1 sources, now there are 2"),
            (
                manifest(&["/a.csv, 10 bytes", "/b.csv, 20 bytes"], &[]).loading_comment().unwrap(),
                "by nothing, now by k",
            ),
            (String::new(), "no load created it"),
            ("mine".to_owned(), "mine"),
        ] {
            assert!(now.difference(&before).unwrap().contains(words), "{before}");
        }
        assert!(now.completion_comment().unwrap().ends_with("2 sources, the first /a.csv"));
        assert_ne!(
            now.completion_comment().unwrap(),
            manifest(&["/a.csv, 10 bytes"], &["k"]).completion_comment().unwrap()
        );
    }
}
