//! The object store through which DataFusion reaches local files: it checks every file when it is opened.
//!
//! COPY, external tables and everything else that names files end here, so no spelling of a path bypasses [`FileAccess`].
//! Listings return names without a check. If a link in a listed folder leads to a file that may not be read, the
//! statement fails when it reads the file.

use std::fmt;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::{Path as ObjectPath, PathPart};
use datafusion::object_store::{
    Attributes, CopyOptions, Error as StoreError, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use terrace_heap::HeapAccount;

use super::FileAccess;
use super::draft::{Draft, Upload};
use crate::error::{Error, ErrorKind};

/// The scheme under which files are replaced; no user can write it.
pub(in crate::engine) const REPLACING: &str = "replace://";

/// Local files that are checked when they are opened.
#[derive(Debug)]
pub(in crate::engine) struct CheckedFiles {
    access: Arc<FileAccess>,
    /// Lists folders and converts locations to paths.
    names: LocalFileSystem,
    /// Whether a file that is there may be replaced.
    replace: bool,
}

impl CheckedFiles {
    pub(in crate::engine) fn new(access: Arc<FileAccess>, replace: bool) -> Self {
        Self { access, names: LocalFileSystem::new(), replace }
    }

    fn path(&self, location: &ObjectPath) -> Result<PathBuf> {
        self.names.path_to_filesystem(location)
    }

    fn check_folder(&self, prefix: Option<&ObjectPath>) -> Result<()> {
        let path = prefix.map_or_else(|| Ok(PathBuf::from("/")), |prefix| self.path(prefix))?;
        self.access.check_read(&path).map_err(|error| to_store_error(&path, error))
    }

    async fn draft(&self, location: &ObjectPath, replace: bool) -> Result<Draft> {
        let path = self.path(location)?;
        let access = Arc::clone(&self.access);
        blocking(move || {
            let made = access
                .output_path_with_folders(&path, replace, true)
                .and_then(|output_path| Draft::new(output_path, replace));
            made.map_err(|error| to_store_error(&path, error))
        })
        .await
    }
}

impl fmt::Display for CheckedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("files of the server")
    }
}

#[async_trait]
impl ObjectStore for CheckedFiles {
    async fn put_opts(&self, location: &ObjectPath, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let replace = self.replace && matches!(opts.mode, PutMode::Overwrite);
        let draft = self.draft(location, replace).await?;
        let path = self.path(location)?;
        let write = move || draft.write(&payload, 0).and_then(|()| draft.finish());
        blocking(move || write().map_err(|error| to_store_error(&path, error))).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload::new(self.draft(location, self.replace).await?)))
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let path = self.path(location)?;
        let access = Arc::clone(&self.access);
        let location = location.clone();
        blocking(move || {
            let (file, meta) = opened(&access, &path, location)?;
            options.check_preconditions(&meta)?;
            let range = match options.range {
                Some(range) => range.as_range(meta.size).map_err(|error| generic(Box::new(error)))?,
                None => 0..meta.size,
            };
            let payload = GetResultPayload::File(file, path);
            Ok(GetResult { payload, meta, range, attributes: Attributes::default() })
        })
        .await
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.path(location)?;
        let access = Arc::clone(&self.access);
        let location = location.clone();
        let ranges = ranges.to_vec();
        blocking(move || {
            let (file, meta) = opened(&access, &path, location)?;
            ranges.into_iter().map(|range| read(&file, range, meta.size)).collect()
        })
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        locations.map(|_| Err(unsupported("delete files"))).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.check_folder(prefix) {
            Ok(()) => {
                let above = prefix.map_or(0, |prefix| prefix.parts().count());
                let is_data =
                    move |found: &ObjectMeta| !found.location.parts().skip(above).any(|part| is_hidden(&part));
                self.names.list(prefix).try_filter(move |found| futures::future::ready(is_data(found))).boxed()
            }
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.check_folder(prefix)?;
        let mut found = self.names.list_with_delimiter(prefix).await?;
        let is_data = |path: &ObjectPath| path.parts().next_back().is_none_or(|part| !is_hidden(&part));
        found.objects.retain(|object| is_data(&object.location));
        found.common_prefixes.retain(is_data);
        Ok(found)
    }

    async fn copy_opts(&self, _: &ObjectPath, _: &ObjectPath, _: CopyOptions) -> Result<()> {
        Err(unsupported("copy files"))
    }
}

/// Whether a name in a data folder is no data: `_SUCCESS` and `.crc` files, but not the folder `_day=1` of a column.
pub(super) fn is_hidden(name: &PathPart<'_>) -> bool {
    let name = name.as_ref();
    name.starts_with('.') || name.starts_with('_') && !name.contains('=')
}

fn opened(access: &FileAccess, path: &Path, location: ObjectPath) -> Result<(File, ObjectMeta)> {
    let file = access.open_file(path).map_err(|error| to_store_error(path, error))?;
    let found = file.metadata().map_err(|error| generic(Box::new(error)))?;
    let last_modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH).into();
    let meta = ObjectMeta { location, last_modified, size: found.len(), e_tag: Some(e_tag(&found)), version: None };
    Ok((file, meta))
}

/// The entity tag of a file, in the format of `LocalFileSystem`, whose listings hold it too.
fn e_tag(found: &Metadata) -> String {
    let modified = found.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified_us = modified.unwrap_or(Duration::ZERO).as_micros();
    format!("{:x}-{modified_us:x}-{:x}", found.ino(), found.len())
}

fn read(file: &File, range: Range<u64>, file_bytes: u64) -> Result<Bytes> {
    let bytes = range.end.min(file_bytes).checked_sub(range.start).filter(|_| range.end <= file_bytes);
    let bytes =
        bytes.ok_or_else(|| generic(format!("cannot read bytes {range:?} of a file of {file_bytes} bytes").into()))?;
    let mut read = vec![0; bytes as usize];
    file.read_exact_at(&mut read, range.start).map_err(|error| generic(Box::new(error)))?;
    Ok(read.into())
}

/// Wraps an error of the engine in one of the object store; [`Error::from`] unwraps it.
pub(super) fn to_store_error(path: &Path, error: Error) -> StoreError {
    let kind = error.kind();
    let path = path.display().to_string();
    let source = Box::new(error);
    match kind {
        ErrorKind::NotFound => StoreError::NotFound { path, source },
        ErrorKind::AlreadyExists => StoreError::AlreadyExists { path, source },
        ErrorKind::PermissionDenied => StoreError::PermissionDenied { path, source },
        _ => generic(source),
    }
}

pub(super) fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> StoreError {
    StoreError::Generic { store: "files", source }
}

pub(super) fn unsupported(what: &str) -> StoreError {
    let source = Error::new(ErrorKind::Unimplemented, format!("statements do not {what}"));
    StoreError::NotSupported { source: Box::new(source) }
}

/// Runs work that waits for a disk on a thread for blocking calls, if there is a runtime.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn_blocking(HeapAccount::carry(work)).await.map_err(|error| generic(Box::new(error)))?
        }
        Err(_) => work(),
    }
}
