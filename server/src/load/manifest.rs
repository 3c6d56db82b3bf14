//! What a resumable load loads: written down as the comment of the table that collects its rows, so that another run
//! can tell whether these are its rows.

use serde::{Deserialize, Serialize};

use super::source::Source;
use crate::error::{Error, Result};

/// Most sources that are listed one by one.
const MOST_LISTED: usize = 1_000;

/// Sources and order of the rows of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this form.
    terrace_load: u32,
    /// Files with their sizes and times of change, or what is generated.
    sources: Vec<String>,
    cluster_by: Vec<String>,
}

impl Manifest {
    /// What loading `source` now would load.
    pub fn of(source: &Source) -> Result<Self> {
        let mut sources = source.identity()?;
        if sources.len() > MOST_LISTED {
            let more = sources.split_off(MOST_LISTED - 1);
            sources.push(format!("{} more, {:08x}", more.len(), crc32c::crc32c(more.join("\n").as_bytes())));
        }
        Ok(Self { terrace_load: 1, sources, cluster_by: source.cluster_by.clone() })
    }

    /// The comment of the table while it is loaded.
    pub fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::System(format!("cannot write down the sources: {e}")))
    }

    /// The comment of the table when it is complete: few words, but those of this load only.
    pub fn words(&self) -> Result<String> {
        let what = match self.sources.as_slice() {
            [one] => one.split_once(", ").map_or(one.as_str(), |(name, _)| name).to_owned(),
            [first, ..] => {
                let name = first.split_once(", ").map_or(first.as_str(), |(name, _)| name);
                format!("{} sources, the first {name}", self.sources.len())
            }
            [] => "nothing".to_owned(),
        };
        Ok(format!("terrace load {:08x}: {what}", crc32c::crc32c(self.text()?.as_bytes())))
    }

    /// In what the load that wrote `comment` differs from this one; `None` when it does not.
    pub fn difference(&self, comment: &str) -> Option<String> {
        let Ok(before) = serde_json::from_str::<Self>(comment) else {
            return Some(match comment {
                "" => "it was not made by a load".to_owned(),
                words => format!("its comment says: {words}"),
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
        assert_eq!(now.difference(&now.text().unwrap()), None);
        for (before, words) in [
            (manifest(&["/a.csv, 10 bytes", "/b.csv, 21 bytes"], &["k"]).text().unwrap(), "21 bytes"),
            (manifest(&["/a.csv, 10 bytes"], &["k"]).text().unwrap(), "1 sources, now there are 2"),
            (manifest(&["/a.csv, 10 bytes", "/b.csv, 20 bytes"], &[]).text().unwrap(), "by nothing, now by k"),
            (String::new(), "not made by a load"),
            ("mine".to_owned(), "mine"),
        ] {
            assert!(now.difference(&before).unwrap().contains(words), "{before}");
        }
        assert!(now.words().unwrap().ends_with("2 sources, the first /a.csv"));
        assert_ne!(now.words().unwrap(), manifest(&["/a.csv, 10 bytes"], &["k"]).words().unwrap());
    }
}
