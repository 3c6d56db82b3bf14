//! The section on files that statements and requests may name.

use std::path::Path;

use serde::{Deserialize, Serialize};
use terrace_objects::ObjectAddress;

use super::{Docs, HomeConfig};
use crate::error::{Error, Result};

section! {
    /// Files of this machine that statements (COPY, external tables) and requests (backups, tiers) may name. What belongs
    /// to the server itself is never among them.
    pub struct FilesConfig {
        /// Folders below which files may be read, with `:` between them. Default: `/` while the server has no user, none once it has
        /// one.
        pub read_roots: Option<String> = None,
        /// The same for files to be written.
        pub write_roots: Option<String> = None,
        /// Folders below which backups may be made, and nowhere else. Default: `write_roots`.
        pub backup_roots: Option<String> = None,
        /// The same for the pools of tiers that are added, and their devices.
        pub pool_roots: Option<String> = None,
        /// Prefixes of object stores below which statements may read files, with spaces between them, such as
        /// `s3://bucket/sales`; none may overlap the home. Address, region, credentials and time limits are those of `home`.
        pub object_roots: Option<String> = None,
        /// The same for files to be written.
        pub object_write_roots: Option<String> = None,
        /// Further files and folders of the server's own (keys, passwords), with `:` between them. The file of the
        /// configuration is among them.
        pub protected: Option<String> = None,
    }
}

impl FilesConfig {
    /// The prefixes of object stores that statements may read.
    ///
    /// # Errors
    /// When one is none.
    pub fn read_addresses(&self) -> Result<Vec<ObjectAddress>> {
        addresses("files.object_roots", self.object_roots.as_deref())
    }

    /// The prefixes of object stores that statements may write.
    ///
    /// # Errors
    /// When one is none.
    pub fn write_addresses(&self) -> Result<Vec<ObjectAddress>> {
        addresses("files.object_write_roots", self.object_write_roots.as_deref())
    }

    /// Whether statements may name objects.
    pub(crate) fn has_objects(&self) -> bool {
        self.object_roots.is_some() || self.object_write_roots.is_some()
    }

    /// Fails when a prefix is none, or has objects of the home.
    pub(crate) fn check(&self, home: &HomeConfig) -> Result<()> {
        let home = home.url.as_deref().and_then(|url| ObjectAddress::parse(url).ok());
        let roots =
            [("files.object_roots", self.read_addresses()?), ("files.object_write_roots", self.write_addresses()?)];
        for (setting, addresses) in roots {
            for root in addresses {
                if home.as_ref().is_some_and(|home| root.overlaps(home)) {
                    let message = "has objects of home.url, which belong to the server: name another prefix";
                    return Err(Error::Config(format!("{setting}: {} {message}", root.url())));
                }
            }
        }
        Ok(())
    }

    /// Adds a file or folder that no statement and no request may name.
    pub fn protect(&mut self, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        self.protected = Some(self.protected.take().map_or_else(|| path.clone(), |before| format!("{before}:{path}")));
    }
}

/// The addresses in the text of a setting.
fn addresses(setting: &str, text: Option<&str>) -> Result<Vec<ObjectAddress>> {
    let wrong = |error: terrace_tier_store::Error| Error::Config(format!("{setting}: {error}"));
    let roots = text.unwrap_or_default().split_whitespace();
    roots.map(|root| ObjectAddress::parse(root).map_err(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_object_stores_are_addresses_apart_from_the_home() {
        let check = |roots: &str, home: Option<&str>| {
            let roots = Some(roots.to_owned());
            let home = HomeConfig { url: home.map(str::to_owned), ..HomeConfig::default() };
            let read = FilesConfig { object_roots: roots.clone(), ..FilesConfig::default() };
            let written = FilesConfig { object_write_roots: roots, ..FilesConfig::default() };
            let [read, written] = [read, written].map(|files| files.check(&home).map_err(|error| error.to_string()));
            assert_eq!(read.is_ok(), written.is_ok());
            read
        };
        assert_eq!(check("s3://b/sales  s3://c", Some("s3://b/home")), Ok(()));
        assert_eq!(check("", Some("/srv/home")), Ok(()));
        for (roots, home, why) in [
            ("s3://b/home/t1", Some("s3://b/home"), "home.url"),
            ("s3://c s3://b", Some("s3://b/home"), "home.url"),
            ("gs://b/sales", None, "s3://bucket/prefix"),
            ("/srv/sales", None, "s3://bucket/prefix"),
        ] {
            assert!(check(roots, home).is_err_and(|error| error.contains(why)), "{roots}");
        }
    }
}
