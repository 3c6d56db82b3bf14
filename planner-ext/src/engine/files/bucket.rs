//! The object store through which DataFusion reaches a bucket: it checks each name against the prefixes that statements may
//! read, or write.
//!
//! A long range is read in windows, each a request that begins when most of the bytes before it are taken: a request has
//! a time limit, its body included, and a statement may take rows slowly. All windows are of one version of the object
//! (`If-Match`). A new object appears when it is complete, and replaces none unless the statement says so. An upload in
//! parts cannot be told that; for it the name is looked up when it begins and again before it is completed.
//!
//! Upstream: none found; `FileMetadataCache` of DataFusion keeps metadata of Parquet files by name, length and time, for all
//! stores; the change of times here can go when it tells stores and entity tags apart.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::object_store::{
    Attributes, CopyOptions, Error as StoreError, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use terrace_heap::HeapAccount;

use super::draft::upload_ended;
use super::objects::{READ_SETTING, SCHEME, WRITE_SETTING, outside_prefixes};
use super::store::{generic, is_hidden, to_store_error, unsupported};
use crate::error::{Error, ErrorKind};

/// Bytes of the first window of a range: who looks for the end of a line reads no more.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;
/// Bytes of the longest window; each is twice as long as the one before it. Tests have small objects.
const WINDOW_BYTES: u64 = if cfg!(test) { 512 << 10 } else { 8 << 20 };
/// Windows of a range that are requested at once, and so the most that are in memory.
const WINDOWS_AT_ONCE: usize = 2;
const SECOND_NS: u64 = 1_000_000_000;

/// The objects of a bucket below the prefixes that statements may read, or write.
#[derive(Clone)]
pub(super) struct CheckedBucket {
    pub(super) bucket: String,
    pub(super) read: Vec<ObjectPath>,
    pub(super) write: Vec<ObjectPath>,
    pub(super) store: Arc<dyn ObjectStore>,
    /// Whether an object that is there may be replaced.
    pub(super) replace: bool,
}

impl CheckedBucket {
    fn url(&self, location: &ObjectPath) -> String {
        format!("{SCHEME}{}/{location}", self.bucket)
    }

    fn check(&self, location: &ObjectPath, prefixes: &[ObjectPath], setting: &str) -> Result<()> {
        if prefixes.iter().any(|prefix| location.prefix_matches(prefix)) {
            return Ok(());
        }
        let url = self.url(location);
        Err(to_store_error(Path::new(&url), outside_prefixes(&url, setting)))
    }

    fn check_read(&self, location: &ObjectPath) -> Result<()> {
        self.check(location, &self.read, READ_SETTING)
    }

    fn check_write(&self, location: &ObjectPath) -> Result<()> {
        self.check(location, &self.write, WRITE_SETTING)
    }

    /// An error of the store with the name of the object, and without the body of the answer, which may repeat the request with
    /// its token.
    fn plain_error(&self, location: &ObjectPath, error: &StoreError) -> StoreError {
        let url = self.url(location);
        let text = error.to_string();
        let head = text.split('<').next().unwrap_or_default().trim_end();
        let plain = match error {
            StoreError::NotFound { .. } => Error::new(ErrorKind::NotFound, format!("cannot find {url}: {head}")),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                Error::new(ErrorKind::PermissionDenied, format!("the object store refuses {url}: {head}"))
            }
            StoreError::Precondition { .. } => Error::new(
                ErrorKind::Aborted,
                format!("object {url} changed while it was read; run the statement again"),
            ),
            _ => Error::new(ErrorKind::Unavailable, format!("cannot reach {url}: {head}")),
        };
        to_store_error(Path::new(&url), plain)
    }

    /// The error of a request that writes.
    fn write_error(&self, location: &ObjectPath, error: &StoreError) -> StoreError {
        match error {
            StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } => self.exists(location),
            other => self.plain_error(location, other),
        }
    }

    fn exists(&self, location: &ObjectPath) -> StoreError {
        let url = self.url(location);
        let message = format!("object {url} exists already; choose another, or add OPTIONS (overwrite 'true')");
        to_store_error(Path::new(&url), Error::new(ErrorKind::AlreadyExists, message))
    }

    /// Refuses the name of an object that is there, unless it may be replaced.
    pub(super) async fn refuse_existing(&self, location: &ObjectPath) -> Result<()> {
        if self.replace {
            return Ok(());
        }
        match self.store.get_opts(location, GetOptions::new().with_head(true)).await {
            Ok(_) => Err(self.exists(location)),
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.plain_error(location, &error)),
        }
    }

    /// Where a statement stops, the task that writes may see the rows end before it is stopped itself, as if these were all.
    fn refuse_stopped(&self, location: &ObjectPath, account: Option<&Arc<HeapAccount>>) -> Result<()> {
        if account.is_none_or(|account| account.should_stop() != Some(true)) {
            return Ok(());
        }
        let url = self.url(location);
        let message = format!("the statement ended before '{url}' was complete");
        Err(to_store_error(Path::new(&url), Error::new(ErrorKind::Cancelled, message)))
    }

    /// Bytes of a range of one version of an object.
    async fn window(self, location: ObjectPath, e_tag: Option<String>, range: Range<u64>) -> Result<Bytes> {
        let options = GetOptions::new().with_range(Some(range)).with_if_match(e_tag);
        let found = self.store.get_opts(&location, options).await;
        let bytes = match found {
            Ok(found) => whole(found).await,
            Err(error) => Err(error),
        };
        bytes.map_err(|error| self.plain_error(&location, &error))
    }

    fn data_filter(&self, folder: ObjectPath) -> DataFilter {
        DataFilter { bucket: self.bucket.clone(), folder }
    }
}

/// The windows of a range, one behind the other.
fn windows(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    let mut bytes = FIRST_WINDOW_BYTES;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min(start.saturating_add(bytes));
        bytes = WINDOW_BYTES.min(2 * bytes);
        (start < at).then_some(start..at)
    })
}

/// The bytes of an answer, which has to be as long as its range: a body that broke off is continued by a second request, whose
/// answer may be the whole object.
async fn whole(found: GetResult) -> Result<Bytes> {
    let wanted = usize::try_from(found.range.end.saturating_sub(found.range.start)).unwrap_or(usize::MAX);
    let mut bytes = BytesMut::new();
    let mut pieces = found.into_stream();
    while let Some(piece) = pieces.try_next().await? {
        if piece.len() > wanted.saturating_sub(bytes.len()) {
            return Err(generic("the answer is longer than the range".into()));
        }
        bytes.extend_from_slice(&piece);
    }
    if bytes.len() < wanted {
        return Err(generic("the answer is shorter than the range".into()));
    }
    Ok(bytes.freeze())
}

/// Which objects in a folder are data.
struct DataFilter {
    bucket: String,
    folder: ObjectPath,
}

impl DataFilter {
    /// False for `_SUCCESS` and its like, in the folder and in those below it.
    fn is_data(&self, location: &ObjectPath) -> bool {
        location.prefix_match(&self.folder).is_some_and(|mut parts| !parts.any(|part| is_hidden(&part)))
    }

    /// An object that was found in the folder; `None`: it is no data. One without bytes marks a folder, or has no rows.
    fn data(&self, found: ObjectMeta) -> Option<ObjectMeta> {
        (found.size > 0 && self.is_data(&found.location)).then(|| stamped(&self.bucket, found))
    }
}

/// An object with a time of change that also depends on its bucket and its version. DataFusion keeps metadata of Parquet files by
/// the name in the bucket, their length and this time, which object stores give in whole seconds.
fn stamped(bucket: &str, mut found: ObjectMeta) -> ObjectMeta {
    let mut hasher = DefaultHasher::new();
    bucket.hash(&mut hasher);
    found.e_tag.hash(&mut hasher);
    found.version.hash(&mut hasher);
    found.last_modified += Duration::from_nanos(hasher.finish() % SECOND_NS);
    found
}

/// Without the client, which has the credentials.
impl fmt::Debug for CheckedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CheckedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "objects of {SCHEME}{}", self.bucket)
    }
}

#[async_trait]
impl ObjectStore for CheckedBucket {
    async fn put_opts(&self, location: &ObjectPath, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.check_write(location)?;
        self.refuse_stopped(location, HeapAccount::current().as_ref())?;
        let may_replace = self.replace && matches!(opts.mode, PutMode::Overwrite);
        let mode = if may_replace { PutMode::Overwrite } else { PutMode::Create };
        let put = self.store.put_opts(location, payload, PutOptions { mode, ..opts }).await;
        put.map_err(|error| self.write_error(location, &error))
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check_write(location)?;
        self.refuse_existing(location).await?;
        let upload = self.store.put_multipart_opts(location, opts).await;
        let upload = upload.map_err(|error| self.write_error(location, &error))?;
        let location = location.clone();
        let account = HeapAccount::current();
        Ok(Box::new(CheckedUpload { upload: Some(upload), bucket: self.clone(), location, account }))
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.check_read(location)?;
        let is_short = matches!(&options.range, Some(GetRange::Bounded(range))
            if range.end.saturating_sub(range.start) <= WINDOW_BYTES);
        let asked = if options.head || is_short { options.clone() } else { GetOptions::new().with_head(true) };
        let found = self.store.get_opts(location, asked).await.map_err(|error| self.plain_error(location, &error))?;
        let meta = found.meta.clone();
        let (range, payload) = if options.head {
            (found.range.clone(), found.payload)
        } else if is_short {
            let range = found.range.clone();
            let bytes = whole(found).await.map_err(|error| self.plain_error(location, &error))?;
            (range, GetResultPayload::Stream(futures::stream::iter([Ok(bytes)]).boxed()))
        } else {
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range.as_range(meta.size).map_err(|error| generic(Box::new(error)))?,
                None => 0..meta.size,
            };
            let bucket = self.clone();
            let location = location.clone();
            let e_tag = meta.e_tag.clone();
            let requests = futures::stream::iter(windows(range.clone()))
                .map(move |window| bucket.clone().window(location.clone(), e_tag.clone(), window));
            (range, GetResultPayload::Stream(requests.buffered(WINDOWS_AT_ONCE).boxed()))
        };
        Ok(GetResult { payload, meta: stamped(&self.bucket, meta), range, attributes: Attributes::default() })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        locations.map(|_| Err(unsupported("delete objects"))).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        let folder = prefix.cloned().unwrap_or_default();
        if let Err(error) = self.check_read(&folder) {
            return futures::stream::iter([Err(error)]).boxed();
        }
        let bucket = self.clone();
        let filter = self.data_filter(folder.clone());
        let found = self.store.list(prefix).map_err(move |error| bucket.plain_error(&folder, &error));
        found.try_filter_map(move |found| futures::future::ready(Ok(filter.data(found)))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let folder = prefix.cloned().unwrap_or_default();
        self.check_read(&folder)?;
        let found = self.store.list_with_delimiter(prefix).await;
        let found = found.map_err(|error| self.plain_error(&folder, &error))?;
        let filter = self.data_filter(folder);
        let mut common_prefixes = found.common_prefixes;
        common_prefixes.retain(|path| filter.is_data(path));
        Ok(ListResult {
            common_prefixes,
            objects: found.objects.into_iter().filter_map(|meta| filter.data(meta)).collect(),
        })
    }

    async fn copy_opts(&self, _: &ObjectPath, _: &ObjectPath, _: CopyOptions) -> Result<()> {
        Err(unsupported("copy objects"))
    }
}

/// An upload in parts.
struct CheckedUpload {
    /// `None` once it has ended.
    upload: Option<Box<dyn MultipartUpload>>,
    bucket: CheckedBucket,
    location: ObjectPath,
    /// The account of the statement that writes it, which says whether the statement has to stop.
    account: Option<Arc<HeapAccount>>,
}

/// Without the upload, which has the client.
impl fmt::Debug for CheckedUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upload of {}", self.bucket.url(&self.location))
    }
}

#[async_trait]
impl MultipartUpload for CheckedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(upload) = &mut self.upload else { return Box::pin(async { Err(upload_ended()) }) };
        let part = upload.put_part(data);
        let bucket = self.bucket.clone();
        let location = self.location.clone();
        Box::pin(async move { part.await.map_err(|error| bucket.write_error(&location, &error)) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let Some(mut upload) = self.upload.take() else { return Err(upload_ended()) };
        let allowed = match self.bucket.refuse_stopped(&self.location, self.account.as_ref()) {
            Ok(()) => self.bucket.refuse_existing(&self.location).await,
            stopped => stopped,
        };
        let completed = match allowed {
            Ok(()) => upload.complete().await.map_err(|error| self.bucket.write_error(&self.location, &error)),
            Err(error) => Err(error),
        };
        if completed.is_err() {
            // The first error is the one to report. Parts that stay are removed by a rule of the bucket.
            let _ = upload.abort().await;
        }
        completed
    }

    async fn abort(&mut self) -> Result<()> {
        match self.upload.take() {
            Some(mut upload) => upload.abort().await.map_err(|error| self.bucket.plain_error(&self.location, &error)),
            None => Ok(()),
        }
    }
}

impl Drop for CheckedUpload {
    fn drop(&mut self) {
        let upload = self.upload.take();
        if let (Some(mut upload), Ok(runtime)) = (upload, tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn(async move {
                let _ = upload.abort().await;
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::object_store::ObjectStoreExt;
    use datafusion::object_store::memory::InMemory;

    use super::*;

    fn bucket(replace: bool) -> (Arc<InMemory>, CheckedBucket) {
        let memory = Arc::new(InMemory::new());
        let store: Arc<dyn ObjectStore> = Arc::clone(&memory) as Arc<dyn ObjectStore>;
        let [read, write] = ["in", "out"].map(|prefix| vec![ObjectPath::from(prefix)]);
        (memory, CheckedBucket { bucket: "lake".to_owned(), read, write, store, replace })
    }

    #[test]
    fn windows_cover_a_range_and_grow() {
        let all: Vec<_> = windows(5..5 + 5 * WINDOW_BYTES).collect();
        assert_eq!((all[0].start, all.last().unwrap().end), (5, 5 + 5 * WINDOW_BYTES));
        assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
        let lengths: Vec<u64> = all.iter().map(|window| window.end - window.start).collect();
        assert_eq!((lengths[0], lengths[1]), (FIRST_WINDOW_BYTES, WINDOW_BYTES.min(2 * FIRST_WINDOW_BYTES)));
        assert!(lengths.iter().all(|bytes| (1..=WINDOW_BYTES).contains(bytes)));
        assert_eq!((windows(7..7).count(), windows(7..8).count()), (0, 1));
    }

    #[tokio::test]
    async fn long_ranges_are_read_in_windows_of_one_version() {
        let (memory, bucket) = bucket(false);
        let long = ObjectPath::from("in/long");
        let bytes: Vec<u8> = (0..5 * WINDOW_BYTES + 3).map(|at| (at % 251) as u8).collect();
        memory.put(&long, bytes.clone().into()).await.unwrap();
        assert_eq!(bucket.get(&long).await.unwrap().bytes().await.unwrap(), bytes);
        let part = bucket.get_range(&long, 7..2 * WINDOW_BYTES + 9).await.unwrap();
        assert_eq!(part, bytes[7..(2 * WINDOW_BYTES + 9) as usize]);
        assert_eq!(bucket.get_range(&long, 7..9).await.unwrap(), bytes[7..9]);
        let short = ObjectPath::from("in/short");
        memory.put(&short, PutPayload::new()).await.unwrap();
        assert!(bucket.get(&short).await.unwrap().bytes().await.unwrap().is_empty());
        // Another version ends the read.
        let mut pieces = bucket.get(&long).await.unwrap().into_stream();
        assert!(pieces.next().await.unwrap().is_ok());
        memory.put(&long, vec![1; bytes.len()].into()).await.unwrap();
        let rest: Vec<_> = pieces.collect().await;
        assert!(rest.last().unwrap().as_ref().is_err_and(|error| error.to_string().contains("changed")), "{rest:?}");
    }

    #[tokio::test]
    async fn objects_of_different_buckets_and_versions_have_different_times() {
        let (memory, bucket) = bucket(false);
        let name = ObjectPath::from("in/a");
        memory.put(&name, "a".into()).await.unwrap();
        let first = bucket.head(&name).await.unwrap();
        let listed: Vec<_> = bucket.list(Some(&ObjectPath::from("in"))).try_collect().await.unwrap();
        assert_eq!(listed, std::slice::from_ref(&first));
        assert_eq!(bucket.get(&name).await.unwrap().meta, first);
        let plain = memory.head(&name).await.unwrap();
        let other = ObjectMeta { e_tag: Some("other".to_owned()), ..plain.clone() };
        let times = [stamped("lake", plain.clone()), stamped("pond", plain), stamped("lake", other)];
        let times = times.map(|found| found.last_modified);
        assert!(times[0] == first.last_modified && times[0] != times[1] && times[0] != times[2], "{times:?}");
    }

    #[tokio::test]
    async fn objects_are_replaced_only_by_those_who_say_so() {
        let name = ObjectPath::from("out/a");
        for replace in [false, true] {
            let (memory, bucket) = bucket(replace);
            bucket.put(&name, "first".into()).await.unwrap();
            assert_eq!(bucket.put(&name, "second".into()).await.is_ok(), replace);
            assert_eq!(bucket.put_multipart(&name).await.is_ok(), replace);
            // One that another has written meanwhile.
            let late = ObjectPath::from("out/late");
            let mut upload = bucket.put_multipart(&late).await.unwrap();
            upload.put_part("third".into()).await.unwrap();
            memory.put(&late, "others".into()).await.unwrap();
            assert_eq!(upload.complete().await.is_ok(), replace);
            let kept = memory.get(&late).await.unwrap().bytes().await.unwrap();
            assert_eq!(kept, if replace { "third" } else { "others" });
            for outside in ["in/a", "outer/a", "a"] {
                let outside = ObjectPath::from(outside);
                assert!(
                    bucket.put(&outside, "x".into()).await.is_err() && bucket.put_multipart(&outside).await.is_err()
                );
            }
        }
    }

    #[tokio::test]
    async fn an_object_of_a_statement_that_stops_does_not_appear() {
        let (memory, bucket) = bucket(false);
        let account = HeapAccount::new();
        account.set_stop_check(|| true);
        let name = ObjectPath::from("out/a");
        assert!(account.charge(bucket.put(&name, "x".into())).await.is_err());
        let mut upload = account.charge(bucket.put_multipart(&name)).await.unwrap();
        upload.put_part("x".into()).await.unwrap();
        assert!(upload.complete().await.is_err_and(|error| error.to_string().contains("ended before")));
        assert!(memory.head(&name).await.is_err());
    }
}
