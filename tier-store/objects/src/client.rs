//! Requests to an object store: each runs on the threads of the client and blocks its caller, wherever that runs.
//!
//! An object is one request up to [`PART_BYTES`], else an upload in parts, which shows the object when the last request has
//! succeeded; one that fails is withdrawn. `object_store` repeats single requests; what goes wrong between them is repeated
//! here, as a whole, within the same time: an answer that breaks off, or the last answer of an upload that was lost, after
//! which the store does not know the upload any more.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, UploadPart,
};
use terrace_model::{Error, Result};
use terrace_storage::io::AlignedBuffer;
use terrace_storage::io::objects::{Objects, StoredObject, object_path};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::address::ObjectAddress;
use super::s3::{S3Options, connect};

/// Size of a part of an upload; S3 wants 5 MiB at least.
const PART_BYTES: usize = 8 << 20;
/// Parts of one object that are sent at once.
const PARTS_AT_ONCE: usize = 4;
/// Pauses between two tries of requests that belong together.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// What an upload is called of which the store knows nothing any more.
const GONE: &str = "upload that is gone";
/// Threads that speak with the store.
const THREADS: usize = 2;

type StoreResult<T> = std::result::Result<T, StoreError>;

/// A client of one prefix of an object store.
pub struct ObjectClient {
    url: String,
    prefix: Path,
    store: Arc<dyn ObjectStore>,
    retry_time: Duration,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
}

/// Shows the address only: the client below has the credentials.
impl fmt::Debug for ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectClient").field("url", &self.url).finish_non_exhaustive()
    }
}

impl ObjectClient {
    /// A client of a bucket of S3. It asks for nothing yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that do not fit together, [`Error::Io`] without threads.
    pub fn open(address: &ObjectAddress, options: &S3Options) -> Result<Self> {
        Self::over(connect(address, options)?, address, options.retry_time)
    }

    /// A client of any object store; its objects are named as if they were at the address. What fails is repeated for
    /// `retry_time`.
    ///
    /// # Errors
    /// [`Error::Io`] without threads.
    pub fn over(store: Arc<dyn ObjectStore>, address: &ObjectAddress, retry_time: Duration) -> Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(THREADS).thread_name("terrace-objects").enable_all().build();
        let runtime = runtime.map_err(|error| Error::io("start", address.url(), &error))?;
        Ok(Self { url: address.url(), prefix: address.prefix().clone(), store, retry_time, runtime: Some(runtime) })
    }

    fn location(&self, name: &str) -> StoreResult<Path> {
        let separator = if self.prefix.as_ref().is_empty() { "" } else { "/" };
        Ok(Path::parse(format!("{}{separator}{name}", self.prefix))?)
    }

    fn path(&self, name: &str) -> PathBuf {
        object_path(self, name)
    }

    /// Runs a request on the threads of the client.
    fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            drop(runtime.spawn(work));
        }
    }

    /// Runs requests and waits for their answer. Those that fail in a way that may pass are repeated, after pauses that grow.
    fn answer<T, W>(&self, work: impl Fn(Arc<dyn ObjectStore>) -> W + Send + Sync + 'static) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Future<Output = StoreResult<T>> + Send + 'static,
    {
        let (sender, receiver) = mpsc::sync_channel(1);
        let store = Arc::clone(&self.store);
        let retry_time = self.retry_time;
        self.start(async move {
            let deadline = Instant::now() + retry_time;
            let mut pause = FIRST_PAUSE;
            let answer = loop {
                let attempt = work(Arc::clone(&store));
                match attempt.await {
                    Err(error) if may_pass(&error) && Instant::now() + pause < deadline => {}
                    answer => break answer,
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
            };
            // The receiver waits for it.
            let _ = sender.send(answer);
        });
        receiver.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// The name of an object below the prefix; `None` for one elsewhere.
    fn name_at(&self, location: &Path) -> Option<String> {
        let location = location.as_ref();
        let inside = match self.prefix.as_ref() {
            "" => Some(location),
            prefix => location.strip_prefix(prefix)?.strip_prefix('/'),
        };
        inside.map(str::to_owned)
    }

    fn stored(&self, found: &ObjectMeta) -> Option<StoredObject> {
        let written_unix_us = u64::try_from(found.last_modified.timestamp_micros()).unwrap_or_default();
        Some(StoredObject { name: self.name_at(&found.location)?, bytes: found.size, written_unix_us })
    }

    fn failed(&self, action: &'static str, name: &str, error: &StoreError) -> Error {
        let message = error.to_string();
        let errno = match error {
            StoreError::NotFound { .. } => libc::ENOENT,
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => libc::EACCES,
            _ if is_full(&message) => libc::ENOSPC,
            _ => libc::EREMOTEIO,
        };
        Error::Io { action, path: self.path(name), errno: Some(errno), message: without_body(&message) }
    }
}

impl Objects for ObjectClient {
    fn url(&self) -> &str {
        &self.url
    }

    fn read(&self, name: &str, range: Range<u64>, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        // No request can ask for nothing.
        if range.is_empty() {
            return Ok(());
        }
        let failed = |error: StoreError| self.failed("read", name, &error);
        let location = self.location(name).map_err(failed)?;
        let store = Arc::clone(&self.store);
        // Its caller takes the pieces as they come, and a read is no longer than its range.
        let (sender, receiver) = mpsc::channel();
        self.start(async move {
            let end = send_range(store.as_ref(), &location, range, &sender).await.map(|()| Bytes::new());
            let _ = sender.send(end);
        });
        for piece in receiver {
            match piece.map_err(failed)? {
                end if end.is_empty() => return Ok(()),
                piece => take(&piece),
            }
        }
        Err(failed(stopped()))
    }

    fn write(&self, name: &str, bytes: &AlignedBuffer) -> Result<()> {
        let bytes = Arc::new(bytes.part(0..bytes.as_slice().len()));
        let written = self.location(name).and_then(|location| {
            self.answer(move |store| {
                let (location, bytes) = (location.clone(), Arc::clone(&bytes));
                async move { put(store.as_ref(), &location, &bytes).await }
            })
        });
        written.map_err(|error| self.failed("write", name, &error))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let payload = PutPayload::from(bytes.to_vec());
        let created = self.location(name).and_then(|location| {
            self.answer(move |store| {
                let (location, payload) = (location.clone(), payload.clone());
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                async move { store.put_opts(&location, payload, options).await.map(drop) }
            })
        });
        match created {
            Ok(()) => Ok(true),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(false),
            Err(error) => Err(self.failed("write", name, &error)),
        }
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        let locations: StoreResult<Vec<Path>> = names.iter().map(|name| self.location(name)).collect();
        let removed = locations.and_then(|locations| {
            self.answer(move |store| {
                let locations = locations.clone();
                async move { delete(store.as_ref(), locations).await }
            })
        });
        removed.map_err(|error| self.failed("delete", names.first().map_or("", String::as_str), &error))
    }

    fn find(&self, name: &str) -> Result<Option<StoredObject>> {
        let found = self.location(name).and_then(|location| {
            self.answer(move |store| {
                let location = location.clone();
                async move {
                    let found = store.get_opts(&location, GetOptions::new().with_head(true)).await;
                    found.map(|found| found.meta)
                }
            })
        });
        match found {
            Ok(found) => Ok(self.stored(&found)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("inspect", name, &error)),
        }
    }

    fn list(&self) -> Result<Vec<StoredObject>> {
        let prefix = Some(self.prefix.clone()).filter(|prefix| !prefix.as_ref().is_empty());
        let found = self.answer(move |store| {
            let prefix = prefix.clone();
            async move { store.list(prefix.as_ref()).try_collect::<Vec<ObjectMeta>>().await }
        });
        let found = found.map_err(|error| self.failed("list", "", &error))?;
        Ok(found.iter().filter_map(|found| self.stored(found)).collect())
    }
}

impl Drop for ObjectClient {
    fn drop(&mut self) {
        // Dropping a runtime waits, which panics inside another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sends a range of an object in pieces with bytes; none, if the object ends before it.
async fn send_range(
    store: &dyn ObjectStore,
    location: &Path,
    range: Range<u64>,
    sender: &mpsc::Sender<StoreResult<Bytes>>,
) -> StoreResult<()> {
    let Range { start, end } = range;
    let found = match store.get_opts(location, GetOptions::new().with_range(Some(range))).await {
        Ok(found) => found,
        Err(error) if is_range_refused(&error) => {
            let meta = store.get_opts(location, GetOptions::new().with_head(true)).await?.meta;
            return if meta.size <= start { Ok(()) } else { Err(error) };
        }
        Err(error) => return Err(error),
    };
    let mut pieces = found.into_stream();
    let mut left = end.saturating_sub(start);
    while let Some(piece) = pieces.try_next().await? {
        left = left_after(left, &piece)?;
        // An empty one would mean the end.
        if !piece.is_empty() && sender.send(Ok(piece)).is_err() {
            break;
        }
    }
    Ok(())
}

/// Bytes of a range that are left after a piece. An answer with more is not that to the range: a body that broke off is
/// continued by a second request, whose answer may be the whole object.
fn left_after(left: u64, piece: &Bytes) -> StoreResult<u64> {
    let longer = || StoreError::Generic { store: "terrace", source: "the answer is longer than the range".into() };
    left.checked_sub(piece.len() as u64).ok_or_else(longer)
}

/// True for an answer that says that a range begins behind the object's end: a store of S3 sends a status, others check it here.
fn is_range_refused(error: &StoreError) -> bool {
    let text = error.to_string();
    ["416", "InvalidRange", "Wanted range starting"].iter().any(|mark| text.contains(mark))
}

/// Deletes objects; those that are gone already are no error.
async fn delete(store: &dyn ObjectStore, locations: Vec<Path>) -> StoreResult<()> {
    let mut answers = store.delete_stream(futures::stream::iter(locations.into_iter().map(Ok)).boxed());
    let mut deleted = Ok(());
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => deleted = Err(error),
        }
    }
    deleted
}

/// Writes an object, in parts if it is large.
async fn put(store: &dyn ObjectStore, location: &Path, bytes: &AlignedBuffer) -> StoreResult<()> {
    let len = bytes.as_slice().len();
    if len <= PART_BYTES {
        return store.put_opts(location, payload(bytes, 0..len), PutOptions::default()).await.map(drop);
    }
    let mut upload = store.put_multipart_opts(location, PutMultipartOptions::default()).await?;
    let sent = match send_parts(upload.as_mut(), bytes).await {
        Ok(()) => upload.complete().await.map(drop).map_err(|error| match error {
            StoreError::NotFound { source, .. } => StoreError::Generic { store: GONE, source },
            other => other,
        }),
        failed => failed,
    };
    if sent.is_err() {
        // The first error is the one to report. Parts that stay are removed by a rule of the bucket.
        let _ = upload.abort().await;
    }
    sent
}

async fn send_parts(upload: &mut dyn MultipartUpload, bytes: &AlignedBuffer) -> StoreResult<()> {
    let len = bytes.as_slice().len();
    let starts = (0..len).step_by(PART_BYTES);
    let parts: Vec<UploadPart> =
        starts.map(|start| upload.put_part(payload(bytes, start..len.min(start + PART_BYTES)))).collect();
    futures::stream::iter(parts).buffer_unordered(PARTS_AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
}

/// A part of a buffer, which shares its memory.
fn payload(bytes: &AlignedBuffer, range: Range<usize>) -> PutPayload {
    PutPayload::from(Bytes::from_owner(bytes.part(range)))
}

/// True for a failure that may pass: not for an answer that refuses the request as it is.
fn may_pass(error: &StoreError) -> bool {
    match error {
        StoreError::Generic { store, .. } if *store == GONE => true,
        StoreError::Generic { .. } => !error.to_string().contains("status code: 4"),
        _ => false,
    }
}

/// True for an answer of a store that has no room: S3 has no such answer, others have one of these.
fn is_full(message: &str) -> bool {
    ["QuotaExceeded", "StorageFull", "507 Insufficient Storage"].iter().any(|mark| message.contains(mark))
}

/// The message of an error with the code and the message of the body of the answer only: the rest repeats the request, and of
/// one whose signature or token is refused that includes the token.
fn without_body(message: &str) -> String {
    let Some((head, body)) = message.split_once('<') else { return message.to_owned() };
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("{name}>"))?;
        rest.split_once("</").map(|(text, _)| text).filter(|text| !text.is_empty())
    };
    let parts: Vec<&str> = ["Code", "Message"].into_iter().filter_map(element).collect();
    format!("{head}{}", parts.join(": ")).trim_end().to_owned()
}

fn stopped() -> StoreError {
    StoreError::Generic { store: "terrace", source: "the client is stopping".into() }
}

#[cfg(test)]
mod tests;
