//! Addresses of prefixes in object stores, such as `s3://bucket/prefix`.

use object_store::path::Path;
use terrace_model::{Error, Result};

const SCHEME: &str = "s3://";

/// A prefix in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectAddress {
    bucket: String,
    prefix: Path,
}

impl ObjectAddress {
    /// True for a text that is meant as such an address, and not as a folder.
    pub fn is_meant(text: &str) -> bool {
        text.contains("://")
    }

    /// Reads an address.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another scheme, without a bucket, and for a prefix with empty or relative parts.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::Invalid(format!("'{text}' is no address: {why}, as in s3://bucket/prefix"));
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("write the bucket and a prefix after s3://"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        if bucket.is_empty() || !bucket.chars().all(is_name) {
            return Err(wrong("the name of the bucket has letters, digits, '.', '-' and '_'"));
        }
        if prefix.starts_with('/') {
            return Err(wrong("the prefix begins with a slash"));
        }
        let prefix = Path::parse(prefix).map_err(|error| wrong(&error.to_string()))?;
        Ok(Self { bucket: bucket.to_owned(), prefix })
    }

    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The prefix in the bucket; empty for all of it.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// True when one of the two is in the other, or they are the same.
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_nested = self.prefix.prefix_matches(&other.prefix) || other.prefix.prefix_matches(&self.prefix);
        self.bucket == other.bucket && is_nested
    }

    /// The address as text, without a slash at its end.
    pub fn url(&self) -> String {
        let separator = if self.prefix.as_ref().is_empty() { "" } else { "/" };
        format!("{SCHEME}{}{separator}{}", self.bucket, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_has_a_bucket_and_a_prefix() {
        for (text, bucket, prefix) in [
            ("s3://b", "b", ""),
            ("s3://b/", "b", ""),
            ("s3://my.bucket-1/terrace", "my.bucket-1", "terrace"),
            ("s3://b/a/b/", "b", "a/b"),
        ] {
            let address = ObjectAddress::parse(text).unwrap();
            assert_eq!((address.bucket(), address.prefix().as_ref()), (bucket, prefix), "{text}");
            assert_eq!(address.url(), text.trim_end_matches('/'));
            assert!(ObjectAddress::is_meant(text));
        }
        for text in ["s3://", "s3:///a", "s3://b//a", "s3://b/../a", "s3://b c/a", "gs://b/a", "https://b/a", "b/a"] {
            let error = ObjectAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains("s3://bucket/prefix") && error.contains(text), "{error}");
        }
        assert!(!ObjectAddress::is_meant("/data/home"));
    }

    #[test]
    fn addresses_overlap_when_one_has_objects_of_the_other() {
        let address = |text: &str| ObjectAddress::parse(text).unwrap();
        for (one, other, wanted) in [
            ("s3://b/a", "s3://b/a/c", true),
            ("s3://b/a", "s3://b/a", true),
            ("s3://b", "s3://b/a", true),
            ("s3://b/a", "s3://b/ab", false),
            ("s3://b/a", "s3://c/a", false),
        ] {
            let (one, other) = (address(one), address(other));
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (wanted, wanted), "{one:?} {other:?}");
        }
    }
}
