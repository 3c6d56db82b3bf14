//! The section on the place of the table files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_objects::{ObjectAddress, ObjectClient, S3Options};
use terrace_tier_store::store::HomePlace;

use super::Docs;
use crate::error::{Error, Result};
use crate::units::Span;

/// Most requests that may be under way: each has a thread.
const MOST_REQUESTS: usize = 1_024;

section! {
    /// The home: where the table files lie.
    pub struct HomeConfig {
        /// A folder, or `s3://bucket/prefix` in a store that speaks S3's protocol; one home for each data directory, which keeps
        /// the catalog. Default: the folder `ssd` in `data_dir`.
        pub url: Option<String> = None,
        /// Address of the service, such as `https://minio.example:9000`; one with `http://` is not encrypted. Default: that of
        /// `AWS_ENDPOINT_URL`, else AWS. Credentials come from the places of AWS (docs/operations.md).
        pub endpoint: Option<String> = None,
        /// Region of the bucket. Default: `AWS_REGION`, else us-east-1.
        pub region: Option<String> = None,
        /// Time that one try of a request may take, its body included.
        pub timeout: Span = Span(Duration::from_secs(10)),
        /// Time for which a request that fails is tried again, after pauses that grow to five seconds.
        pub retry_time: Span = Span(Duration::from_secs(60)),
        /// Most reads that are under way at once.
        pub requests: usize = 32,
    }
}

impl HomeConfig {
    /// Fails when the settings are none or do not fit together. `serves_files`: whether statements reach objects by them.
    pub(crate) fn check(&self, serves_files: bool) -> Result<()> {
        let wrong = |what: String| Err(Error::Config(what));
        match self.url.as_deref() {
            Some("") => return wrong("home.url is empty: name a folder, or s3://bucket/prefix".to_owned()),
            Some(url) if ObjectAddress::is_meant(url) => {
                ObjectAddress::parse(url).map_err(|error| Error::Config(format!("home.url: {error}")))?;
            }
            _ if !serves_files && (self.endpoint.is_some() || self.region.is_some()) => {
                return wrong(
                    "home.endpoint and home.region are of no use unless home.url is s3://bucket/prefix, or \
                     files.object_roots or files.object_write_roots is set"
                        .to_owned(),
                );
            }
            _ => {}
        }
        let has_scheme = |endpoint: &String| ["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme));
        if self.endpoint.as_ref().is_some_and(|endpoint| !has_scheme(endpoint)) {
            return wrong("home.endpoint begins with https:// or http://".to_owned());
        }
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.contains('@')) {
            return wrong(
                "home.endpoint has no user and no password: name credentials in the places of AWS".to_owned(),
            );
        }
        if self.timeout.0.is_zero() || self.retry_time.0.is_zero() {
            return wrong("home.timeout and home.retry_time must be above 0".to_owned());
        }
        if !(1..=MOST_REQUESTS).contains(&self.requests) {
            return wrong(format!("home.requests must be from 1 to {MOST_REQUESTS}"));
        }
        Ok(())
    }

    /// The folder, if it is one outside of the data directory.
    pub fn folder(&self) -> Option<PathBuf> {
        self.url.as_ref().filter(|url| !ObjectAddress::is_meant(url)).map(PathBuf::from)
    }

    /// The name of the tier of the home.
    pub fn tier(&self) -> &'static str {
        if self.url.as_deref().is_some_and(ObjectAddress::is_meant) { "object" } else { "ssd" }
    }

    /// The home of a store. An object store is not asked for anything yet.
    ///
    /// # Errors
    /// When the client cannot be made of the settings.
    pub fn place(&self) -> Result<HomePlace> {
        let url = match self.url.as_deref() {
            None => return Ok(HomePlace::DataDir),
            Some(folder) if !ObjectAddress::is_meant(folder) => return Ok(HomePlace::Folder(folder.into())),
            Some(url) => url,
        };
        let client = ObjectClient::open(&ObjectAddress::parse(url)?, &self.s3_options())?;
        Ok(HomePlace::Objects { objects: Arc::new(client), requests: self.requests })
    }

    /// The options of clients of object stores.
    pub fn s3_options(&self) -> S3Options {
        S3Options {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            timeout: self.timeout.0,
            retry_time: self.retry_time.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> HomeConfig {
        HomeConfig { url: Some(url.to_owned()), ..HomeConfig::default() }
    }

    #[test]
    fn a_home_is_a_folder_or_a_prefix_of_a_bucket() {
        assert_eq!((HomeConfig::default().folder(), HomeConfig::default().tier()), (None, "ssd"));
        assert_eq!(
            (config("/srv/home").folder(), config("/srv/home").tier()),
            (Some(PathBuf::from("/srv/home")), "ssd")
        );
        assert_eq!((config("s3://b/p").folder(), config("s3://b/p").tier()), (None, "object"));
        for good in [config("s3://b/p"), config("home"), HomeConfig::default()] {
            assert!(good.check(false).is_ok(), "{good:?}");
        }
        let endpoint = || Some("https://here".to_owned());
        for (wrong, why) in [
            (config(""), "empty"),
            (config("gs://b/p"), "s3://bucket/prefix"),
            (HomeConfig { endpoint: endpoint(), ..config("/srv/home") }, "no use"),
            (HomeConfig { endpoint: Some("here".to_owned()), ..config("s3://b") }, "begins with"),
            (HomeConfig { endpoint: Some("https://user:secret@here".to_owned()), ..config("s3://b") }, "no password"),
            (HomeConfig { timeout: Span(Duration::ZERO), ..config("s3://b") }, "above 0"),
            (HomeConfig { requests: 0, ..config("s3://b") }, "from 1 to"),
        ] {
            let error = wrong.check(false).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(why)), "{wrong:?}: {error:?}");
            assert!(error.is_err_and(|error| !error.contains("secret")));
        }
        let served = HomeConfig { endpoint: endpoint(), ..config("/srv/home") };
        assert!(served.check(true).is_ok(), "the address serves files of statements");
    }
}
