//! Prefixes of object stores whose objects statements may read, such as `s3://bucket/sales`.
//!
//! The server is configured with the prefixes and has a client of each bucket; without a prefix no statement reaches an
//! object store. [`ObjectAccess`] checks a location as the statement wrote it. All reads and listings of DataFusion are
//! checked again by [`PrefixedObjects`], so that no other spelling leads elsewhere. Nothing is written to object stores.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::session_state::SessionState;
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::PATTERN;
use super::store::{is_hidden, to_store_error, unsupported};
use crate::error::{Error, ErrorKind, Result};

/// The scheme of locations in object stores.
const SCHEME: &str = "s3://";
const WRITES: &str = "write to object stores";

/// True for a location in an object store.
pub(in crate::engine) fn is_object(location: &str) -> bool {
    location.starts_with(SCHEME)
}

/// Refuses to write to an object store.
///
/// # Errors
/// [`ErrorKind::Unimplemented`] for a location in one.
pub(in crate::engine) fn refuse_object_write(location: &str) -> Result<()> {
    if !is_object(location) {
        return Ok(());
    }
    Err(Error::unimplemented(format!("location '{location}': statements read object stores, and do not {WRITES}")))
}

/// The error of Arrow files in an object store, which would be read into memory as a whole.
pub(in crate::engine) fn arrow_object_error(location: &str) -> Error {
    Error::unimplemented(format!(
        "location '{location}': of object stores, files of PARQUET, CSV and JSON can be read, not of ARROW"
    ))
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

/// A prefix of an object store that statements may read.
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

/// The prefixes of object stores that statements may read; none by default.
#[derive(Debug, Clone, Default)]
pub struct ObjectAccess {
    roots: Vec<ObjectRoot>,
}

impl ObjectAccess {
    /// Allows reading below these prefixes.
    pub fn new(roots: Vec<ObjectRoot>) -> Self {
        Self { roots }
    }

    /// Checks a location to be read.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the location and the setting that forbids it, and
    /// [`ErrorKind::InvalidArgument`] for a pattern.
    pub(in crate::engine) fn check_read(&self, location: &str) -> Result<()> {
        if location.contains(PATTERN) || location.contains('#') {
            return Err(Error::invalid(format!(
                "location '{location}': names in object stores have no pattern and no '#'; name an object, or a folder \
                 with a slash at its end"
            )));
        }
        let url = ListingTableUrl::parse(location)?;
        let store = url.object_store();
        let bucket = store.as_str().trim_start_matches(SCHEME).trim_end_matches('/');
        let is_below = |root: &ObjectRoot| root.bucket == bucket && url.prefix().prefix_matches(&root.prefix);
        if self.roots.iter().any(is_below) {
            return Ok(());
        }
        let message =
            format!("location '{location}' is not below any of the prefixes of the setting files.object_roots");
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// A store for each bucket, with the URL under which DataFusion finds it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a bucket whose name is none.
    pub(in crate::engine) fn stores(&self) -> Result<Vec<(ObjectStoreUrl, Arc<dyn ObjectStore>)>> {
        let mut stores: Vec<PrefixedObjects> = Vec::new();
        for root in &self.roots {
            match stores.iter_mut().find(|store| store.bucket == root.bucket) {
                Some(store) => store.prefixes.push(root.prefix.clone()),
                None => stores.push(PrefixedObjects {
                    bucket: root.bucket.clone(),
                    prefixes: vec![root.prefix.clone()],
                    store: Arc::clone(&root.store),
                }),
            }
        }
        let named = |store: PrefixedObjects| -> Result<(ObjectStoreUrl, Arc<dyn ObjectStore>)> {
            let url = ObjectStoreUrl::parse(format!("{SCHEME}{}", store.bucket))?;
            let objects: Arc<dyn ObjectStore> = Arc::new(store);
            Ok((url, objects))
        };
        stores.into_iter().map(named).collect()
    }
}

/// The objects of a bucket below the prefixes that statements may read.
struct PrefixedObjects {
    bucket: String,
    prefixes: Vec<ObjectPath>,
    store: Arc<dyn ObjectStore>,
}

impl PrefixedObjects {
    fn url(&self, location: &ObjectPath) -> String {
        format!("{SCHEME}{}/{location}", self.bucket)
    }

    fn check(&self, location: &ObjectPath) -> StoreResult<()> {
        if self.prefixes.iter().any(|prefix| location.prefix_matches(prefix)) {
            return Ok(());
        }
        let url = self.url(location);
        let message = format!("location '{url}' is not below any of the prefixes of the setting files.object_roots");
        Err(to_store_error(Path::new(&url), Error::new(ErrorKind::PermissionDenied, message)))
    }

    /// An error of the store with the name of the object, and without the body of the answer, which may repeat the request with
    /// its token.
    fn plain_error(&self, location: &ObjectPath, error: &StoreError) -> StoreError {
        let kind = match error {
            StoreError::NotFound { .. } => ErrorKind::NotFound,
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => ErrorKind::PermissionDenied,
            _ => ErrorKind::Unavailable,
        };
        let text = error.to_string();
        let head = text.split('<').next().unwrap_or_default().trim_end();
        let url = self.url(location);
        to_store_error(Path::new(&url), Error::new(kind, format!("cannot read {url}: {head}")))
    }
}

/// Without the client, which has the credentials.
impl fmt::Debug for PrefixedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PrefixedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "objects of {SCHEME}{}", self.bucket)
    }
}

#[async_trait]
impl ObjectStore for PrefixedObjects {
    async fn put_opts(&self, _: &ObjectPath, _: PutPayload, _: PutOptions) -> StoreResult<PutResult> {
        Err(unsupported(WRITES))
    }

    async fn put_multipart_opts(
        &self,
        _: &ObjectPath,
        _: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        Err(unsupported(WRITES))
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> StoreResult<GetResult> {
        self.check(location)?;
        self.store.get_opts(location, options).await.map_err(|error| self.plain_error(location, &error))
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> StoreResult<Vec<Bytes>> {
        self.check(location)?;
        self.store.get_ranges(location, ranges).await.map_err(|error| self.plain_error(location, &error))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, StoreResult<ObjectPath>>,
    ) -> BoxStream<'static, StoreResult<ObjectPath>> {
        locations.map(|_| Err(unsupported("delete objects"))).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let folder = prefix.cloned().unwrap_or_default();
        if let Err(error) = self.check(&folder) {
            return futures::stream::iter([Err(error)]).boxed();
        }
        let above = folder.parts().count();
        let names = Self { bucket: self.bucket.clone(), prefixes: Vec::new(), store: Arc::clone(&self.store) };
        let is_data = move |found: &ObjectMeta| {
            // An object without bytes marks a folder, or has no rows.
            found.size > 0 && !found.location.parts().skip(above).any(|part| is_hidden(&part))
        };
        let found = self.store.list(prefix).map_err(move |error| names.plain_error(&folder, &error));
        found.try_filter(move |found| futures::future::ready(is_data(found))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> StoreResult<ListResult> {
        let folder = prefix.cloned().unwrap_or_default();
        self.check(&folder)?;
        let found = self.store.list_with_delimiter(prefix).await;
        let mut found = found.map_err(|error| self.plain_error(&folder, &error))?;
        let is_data = |path: &ObjectPath| path.parts().next_back().is_none_or(|part| !is_hidden(&part));
        found.objects.retain(|object| object.size > 0 && is_data(&object.location));
        found.common_prefixes.retain(is_data);
        Ok(found)
    }

    async fn copy_opts(&self, _: &ObjectPath, _: &ObjectPath, _: CopyOptions) -> StoreResult<()> {
        Err(unsupported(WRITES))
    }
}
