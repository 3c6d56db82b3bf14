//! A file to be written: under another name until it is whole, always through the folder that was judged.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::object_store::{self, MultipartUpload, PutPayload, PutResult, UploadPart};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::opened::{Folder, failed};
use super::store::{blocking, refused};
use crate::error::{Error, Result};

const MAKE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Files of one name that are written at the same time, or were left over.
const MOST_DRAFTS: u32 = 10_000;

/// A name in a judged folder, for what is to be written there.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    name: OsString,
    shown: PathBuf,
}

impl Place {
    pub(super) fn new(folder: Folder, name: OsString, shown: PathBuf) -> Self {
        Self { folder, name, shown }
    }

    /// The path by which this process reaches it, whatever becomes of the folders above; while this lives.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// The path as people know it, for messages in which [`Place::path`] stands.
    pub fn named(&self, message: &str) -> String {
        let inner = self.folder.path();
        let shown = self.shown.parent().unwrap_or(Path::new("/"));
        message.replace(&*inner.to_string_lossy(), &shown.to_string_lossy())
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Draft {
    place: Place,
    temporary: OsString,
    file: Arc<File>,
    replace: bool,
    is_done: bool,
}

impl Draft {
    pub(super) fn new(place: Place, replace: bool) -> Result<Self> {
        for number in 1..=MOST_DRAFTS {
            // Listings of folders leave out what ends so.
            let mut temporary = place.name.clone();
            temporary.push(format!("#{number}"));
            match openat(&place.folder, &temporary, MAKE, Mode::from_raw_mode(0o666)) {
                Ok(file) => {
                    let file = Arc::new(File::from(file));
                    return Ok(Self { place, temporary, file, replace, is_done: false });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(failed("write", &place.shown, error)),
            }
        }
        Err(failed("write", &place.shown, Errno::EXIST))
    }

    pub(super) fn write(&self, payload: &PutPayload, mut offset: u64) -> Result<()> {
        write_all(&self.file, payload, &mut offset).map_err(|error| self.unwritten(&error))
    }

    /// Gives the file its name, all at once.
    pub(super) fn finish(mut self) -> Result<()> {
        let Place { folder, name, shown } = &self.place;
        let named = if self.replace {
            renameat(folder, &self.temporary, folder, name)
        } else {
            match renameat_with(folder, &self.temporary, folder, name, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS) => linked(folder, &self.temporary, name),
                done => done,
            }
        };
        named.map_err(|error| failed("write", shown, error))?;
        self.is_done = true;
        Ok(())
    }

    fn unwritten(&self, error: &std::io::Error) -> Error {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        failed("write", &self.place.shown, errno)
    }
}

/// Names a file where the file system cannot rename without replacing.
fn linked(folder: &Folder, temporary: &OsStr, name: &OsStr) -> std::result::Result<(), Errno> {
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
            let _ = unlinkat(&self.place.folder, &self.temporary, AtFlags::empty());
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
        let place = self.draft.as_ref().map(|draft| (Arc::clone(&draft.file), draft.place.shown.clone()));
        Box::pin(async move {
            let Some((file, shown)) = place else { return Err(ended()) };
            blocking(move || {
                write_all(&file, &data, &mut offset).map_err(|error| {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    refused(&shown, failed("write", &shown, errno))
                })
            })
            .await
        })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let Some(draft) = self.draft.take() else { return Err(ended()) };
        let shown = draft.place.shown.clone();
        blocking(move || draft.finish().map_err(|error| refused(&shown, error))).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.draft = None;
        Ok(())
    }
}

fn ended() -> object_store::Error {
    object_store::Error::Generic { store: "files", source: "the file was written or given up before".into() }
}
