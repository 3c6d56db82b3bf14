//! Prefixes of object stores whose objects statements may name, such as `s3://bucket/sales`.
//!
//! The server is configured with the prefixes and has a client of each bucket; without a prefix no statement reaches an
//! object store. [`ObjectAccess`] checks a location as the statement wrote it. All requests of DataFusion are checked again
//! by [`CheckedBucket`], so that no other spelling leads elsewhere.

use std::fmt;
use std::sync::Arc;

use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::session_state::SessionState;
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use futures::TryStreamExt;

use super::PATTERN;
use super::bucket::CheckedBucket;
use crate::error::{Error, ErrorKind, Result};

/// The scheme of locations in object stores.
pub(super) const SCHEME: &str = "s3://";
/// The scheme under which objects are replaced; no user can write it.
const REPLACING: &str = "s3-replace://";
/// The settings that have the prefixes.
pub(super) const READ_SETTING: &str = "files.object_roots";
pub(super) const WRITE_SETTING: &str = "files.object_write_roots";

/// True for a location in an object store.
pub(in crate::engine) fn is_object(location: &str) -> bool {
    location.starts_with(SCHEME)
}

/// The location of an object in the object store that replaces objects.
pub(in crate::engine) fn replacing_object(location: &str) -> String {
    location.replacen(SCHEME, REPLACING, 1)
}

/// The error of a location outside of the prefixes of a setting.
pub(super) fn outside_prefixes(location: &str, setting: &str) -> Error {
    let message = format!("location '{location}' is not below any of the prefixes of the setting {setting}");
    Error::new(ErrorKind::PermissionDenied, message)
}

/// The objects at a location, of which there is one at least.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is none, and those of the store.
pub(in crate::engine) async fn objects_at(state: &SessionState, location: &str) -> Result<Vec<ObjectMeta>> {
    let url = ListingTableUrl::parse(location)?;
    let store = state.runtime_env().object_store(&url)?;
    let found: Vec<ObjectMeta> = url.list_all_files(state, store.as_ref(), "").await?.try_collect().await?;
    // DataFusion takes a name without a slash for a folder, too, and then refuses its objects for their endings.
    let is_there = |object: &ObjectMeta| url.is_collection() || object.location == *url.prefix();
    if found.iter().any(is_there) {
        return Ok(found);
    }
    let hint = if url.is_collection() { "" } else { "; the name of a folder ends with a slash" };
    Err(Error::new(ErrorKind::NotFound, format!("there is no object at {location}{hint}")))
}

/// A prefix of an object store that statements may name.
#[derive(Clone)]
pub struct ObjectRoot {
    bucket: String,
    prefix: ObjectPath,
    store: Arc<dyn ObjectStore>,
}

impl ObjectRoot {
    /// The objects of a bucket below a prefix, all of them below an empty one; `store` is a client of that bucket.
    pub fn new(bucket: impl Into<String>, prefix: ObjectPath, store: Arc<dyn ObjectStore>) -> Self {
        Self { bucket: bucket.into(), prefix, store }
    }
}

/// Without the client, which has the credentials.
impl fmt::Debug for ObjectRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.prefix)
    }
}

/// The prefixes of object stores that statements may read and write; none by default.
#[derive(Debug, Clone, Default)]
pub struct ObjectAccess {
    read: Vec<ObjectRoot>,
    write: Vec<ObjectRoot>,
}

impl ObjectAccess {
    /// Allows reading, and writing, below these prefixes.
    pub fn new(read: Vec<ObjectRoot>, write: Vec<ObjectRoot>) -> Self {
        Self { read, write }
    }

    /// Checks a location to be read.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the location and the setting that forbids it, and
    /// [`ErrorKind::InvalidArgument`] for a pattern.
    pub(in crate::engine) fn check_read(&self, location: &str) -> Result<()> {
        check(&self.read, READ_SETTING, location)
    }

    /// Checks a location to be written.
    ///
    /// # Errors
    /// Those of [`ObjectAccess::check_read`].
    pub(in crate::engine) fn check_write(&self, location: &str) -> Result<()> {
        check(&self.write, WRITE_SETTING, location)
    }

    /// Refuses a checked location at which there is an object already. The store refuses it, too, but DataFusion's writers of text
    /// drop the errors with which a file ends.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`], and those of the store.
    pub(in crate::engine) async fn refuse_existing(&self, location: &str) -> Result<()> {
        let url = ListingTableUrl::parse(location)?;
        // Files in a folder get names of their own.
        if url.is_collection() {
            return Ok(());
        }
        let name = bucket_name(&url);
        let Some(bucket) = self.buckets().into_iter().find(|bucket| bucket.bucket == name) else { return Ok(()) };
        let refused = bucket.refuse_existing(url.prefix()).await;
        refused.map_err(|error| Error::from(DataFusionError::from(error)))
    }

    /// The stores of each bucket, with the URLs under which DataFusion finds them: one that replaces no object, and one that
    /// does.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a bucket whose name is none.
    pub(in crate::engine) fn stores(&self) -> Result<Vec<(ObjectStoreUrl, Arc<dyn ObjectStore>)>> {
        let mut stores = Vec::new();
        for bucket in self.buckets() {
            for (scheme, replace) in [(SCHEME, false), (REPLACING, true)] {
                let url = ObjectStoreUrl::parse(format!("{scheme}{}", bucket.bucket))?;
                let store: Arc<dyn ObjectStore> = Arc::new(CheckedBucket { replace, ..bucket.clone() });
                stores.push((url, store));
            }
        }
        Ok(stores)
    }

    /// Each bucket once, with its prefixes.
    fn buckets(&self) -> Vec<CheckedBucket> {
        let mut buckets: Vec<CheckedBucket> = Vec::new();
        for root in self.read.iter().chain(&self.write) {
            if buckets.iter().any(|known| known.bucket == root.bucket) {
                continue;
            }
            let prefixes = |roots: &[ObjectRoot]| -> Vec<ObjectPath> {
                roots.iter().filter(|other| other.bucket == root.bucket).map(|other| other.prefix.clone()).collect()
            };
            buckets.push(CheckedBucket {
                bucket: root.bucket.clone(),
                read: prefixes(&self.read),
                write: prefixes(&self.write),
                store: Arc::clone(&root.store),
                replace: false,
            });
        }
        buckets
    }
}

/// The name of the bucket of a location.
fn bucket_name(url: &ListingTableUrl) -> String {
    url.object_store().as_str().trim_start_matches(SCHEME).trim_end_matches('/').to_owned()
}

/// Checks that a location is below one of the prefixes of a setting.
fn check(roots: &[ObjectRoot], setting: &str, location: &str) -> Result<()> {
    if location.contains(PATTERN) || location.contains('#') {
        return Err(Error::invalid(format!(
            "location '{location}': names in object stores have no pattern and no '#'; name an object, or a folder with a \
             slash at its end"
        )));
    }
    let url = ListingTableUrl::parse(location)?;
    let bucket = bucket_name(&url);
    let is_below = |root: &ObjectRoot| root.bucket == bucket && url.prefix().prefix_matches(&root.prefix);
    if roots.iter().any(is_below) { Ok(()) } else { Err(outside_prefixes(location, setting)) }
}
