//! Files being written: each has a temporary name until it is complete, in a folder that was checked and is open.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::object_store::{self, MultipartUpload, PutPayload, PutResult, UploadPart};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use terrace_heap::HeapAccount;

use super::opened::{Folder, errno_error};
use super::store::{blocking, to_store_error};
use crate::error::{Error, ErrorKind, Result};

const CREATE_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Most drafts of one name, being written or left over.
const MOST_DRAFTS: u32 = 10_000;

/// A name in a checked and opened folder, to be written.
#[derive(Debug)]
pub struct OutputPath {
    folder: Folder,
    name: OsString,
    shown: PathBuf,
}

impl OutputPath {
    pub(super) fn new(folder: Folder, name: OsString, shown: PathBuf) -> Self {
        Self { folder, name, shown }
    }

    /// The path by which this process reaches it as long as this value lives, even if folders above are renamed.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Replaces [`OutputPath::path`] in a message by the path that users know.
    pub fn with_shown_path(&self, message: &str) -> String {
        let inner = self.folder.path();
        let shown = self.shown.parent().unwrap_or(Path::new("/"));
        message.replace(&*inner.to_string_lossy(), &shown.to_string_lossy())
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Draft {
    output_path: OutputPath,
    temporary: OsString,
    file: Arc<File>,
    replace: bool,
    is_done: bool,
    /// The account of the statement that writes it, which says whether the statement has to stop.
    account: Option<Arc<HeapAccount>>,
}

impl Draft {
    pub(super) fn new(output_path: OutputPath, replace: bool) -> Result<Self> {
        for number in 1..=MOST_DRAFTS {
            // Listings skip names with such an ending.
            let mut temporary = output_path.name.clone();
            temporary.push(format!("#{number}"));
            match openat(&output_path.folder, &temporary, CREATE_FILE, Mode::from_raw_mode(0o666)) {
                Ok(file) => {
                    let file = Arc::new(File::from(file));
                    let account = HeapAccount::current();
                    return Ok(Self { output_path, temporary, file, replace, is_done: false, account });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(errno_error("write", &output_path.shown, error)),
            }
        }
        Err(errno_error("write", &output_path.shown, Errno::EXIST))
    }

    pub(super) fn write(&self, payload: &PutPayload, mut offset: u64) -> Result<()> {
        write_all(&self.file, payload, &mut offset).map_err(|error| self.write_error(&error))
    }

    /// Gives the file its final name, atomically.
    pub(super) fn finish(mut self) -> Result<()> {
        let OutputPath { folder, name, shown } = &self.output_path;
        // Where a statement stops, the task that writes may see the rows end before it is stopped itself, as if these were all.
        if self.account.as_ref().is_some_and(|account| account.should_stop() == Some(true)) {
            let message = format!("the statement ended before '{}' was complete", shown.display());
            return Err(Error::new(ErrorKind::Cancelled, message));
        }
        let renamed = if self.replace {
            renameat(folder, &self.temporary, folder, name)
        } else {
            match renameat_with(folder, &self.temporary, folder, name, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS) => link_and_unlink(folder, &self.temporary, name),
                done => done,
            }
        };
        renamed.map_err(|error| errno_error("write", shown, error))?;
        self.is_done = true;
        Ok(())
    }

    fn write_error(&self, error: &std::io::Error) -> Error {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        errno_error("write", &self.output_path.shown, errno)
    }
}

/// Gives a file its final name where the file system cannot rename without replacing.
fn link_and_unlink(folder: &Folder, temporary: &OsStr, name: &OsStr) -> std::result::Result<(), Errno> {
    linkat(folder, temporary, folder, name, AtFlags::empty())?;
    unlinkat(folder, temporary, AtFlags::empty())
}

fn write_all(file: &File, payload: &PutPayload, offset: &mut u64) -> std::io::Result<()> {
    for bytes in payload {
        file.write_all_at(bytes, *offset)?;
        *offset += bytes.len() as u64;
    }
    Ok(())
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = unlinkat(&self.output_path.folder, &self.temporary, AtFlags::empty());
        }
    }
}

/// A draft that DataFusion writes in parts.
#[derive(Debug)]
pub(super) struct Upload {
    draft: Option<Draft>,
    offset: u64,
}

impl Upload {
    pub(super) fn new(draft: Draft) -> Self {
        Self { draft: Some(draft), offset: 0 }
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let mut offset = self.offset;
        self.offset += data.content_length() as u64;
        let output_path = self.draft.as_ref().map(|draft| (Arc::clone(&draft.file), draft.output_path.shown.clone()));
        Box::pin(async move {
            let Some((file, shown)) = output_path else { return Err(upload_ended()) };
            blocking(move || {
                write_all(&file, &data, &mut offset).map_err(|error| {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    to_store_error(&shown, errno_error("write", &shown, errno))
                })
            })
            .await
        })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let Some(draft) = self.draft.take() else { return Err(upload_ended()) };
        let shown = draft.output_path.shown.clone();
        blocking(move || draft.finish().map_err(|error| to_store_error(&shown, error))).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.draft = None;
        Ok(())
    }
}

pub(super) fn upload_ended() -> object_store::Error {
    object_store::Error::Generic {
        store: "files",
        source: "the file was already written or its upload was aborted".into(),
    }
}
