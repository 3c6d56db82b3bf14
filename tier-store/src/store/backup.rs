//! Backups: a copy of all tables as of one commit, made while statements run; and back.
//!
//! ```text
//!   hold      one read transaction of the catalog, and the chunks of the versions around it: their files stay
//!   copy      into <target>.partial: each chunk file, verified on the way; a fresh catalog with the same entries
//!   appear    fsync of files and folders, then one rename: the target is there whole, or not at all
//! ```
//!
//! A backup is a data directory with a manifest (`backup.json`); restoring is the same copy the other way. Files are
//! copied, not linked: a link would share the disk's damage. Rows of tables with `durability = 'none'` are sealed first.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::{Progress, Watch};
use super::core::Core;
use super::description::Descriptions;
use super::recovery::{self, CATALOG_FILE, SSD_FOLDER};
use crate::catalog::records::decode;
use crate::catalog::{Catalog, Snapshot, Space, TableRecord, key_part};
use crate::error::{Error, Result};
use crate::io::AlignedBuffer;
use crate::io::files::{FileSystem, RealFiles, private_folder};
use crate::table::{Chunk, ChunkId, TableId};
use crate::tier::codec;
use crate::tier::ssd::cold;
use crate::tier::ssd::files::free_bytes;

const MANIFEST_FILE: &str = "backup.json";
const FORMAT_VERSION: u32 = 1;
const CACHE_BYTES: usize = 32 << 20;
/// How often chunks may be replaced between looking at the tables and at the catalog before a backup gives up.
const ATTEMPTS: usize = 10;
/// How often versions are looked at for one commit.
const LOOKS: usize = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Room left free on the target's disk for file system metadata.
const SLACK_BYTES: u64 = 1 << 20;

/// What a backup or a restore copied; also the manifest of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupReport {
    /// Layout of the backup.
    pub format_version: u32,
    /// When it was made, microseconds since the Unix epoch.
    pub created_unix_us: u64,
    /// Tables.
    pub tables: u64,
    /// Sealed chunks.
    pub chunks: u64,
    /// Rows of these.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Copies a data directory that no server uses to `target`, which must not exist or be empty.
///
/// # Errors
/// [`Error::Locked`], [`Error::NotFound`], [`Error::AlreadyExists`] for the target, [`Error::Io`] for a full disk,
/// [`Error::Corrupt`] when a file is damaged. The target is absent then.
pub fn backup(data_dir: &Path, target: &Path, watch: Watch<'_>) -> Result<BackupReport> {
    let core = whole(data_dir)?;
    // What is sealed counts as good from then on.
    if !core.catalog.is_sealed() {
        Catalog::verify(core.catalog.path(), CACHE_BYTES)?;
    }
    core.backup(target, watch)
}

/// Copies a backup to a new data directory, which must not exist or be empty. Every byte is verified.
///
/// # Errors
/// [`Error::Invalid`] when the source is no backup, and as of [`backup`].
pub fn restore(source: &Path, data_dir: &Path, watch: Watch<'_>) -> Result<BackupReport> {
    let manifest = manifest(source)?;
    Catalog::verify(&source.join(CATALOG_FILE), CACHE_BYTES)?;
    let core = whole(source)?;
    let held = core.hold()?;
    let created_unix_us = manifest.created_unix_us;
    Copying { core: &core, held: &held, created_unix_us, with_manifest: false }.to(data_dir, watch)
}

/// Opens a directory and insists that all of its tables load.
fn whole(dir: &Path) -> Result<Core> {
    let inspection = recovery::inspect(dir)?;
    match inspection.broken.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(inspection.core),
    }
}

fn manifest(source: &Path) -> Result<BackupReport> {
    let path = source.join(MANIFEST_FILE);
    let foreign = |why: String| {
        Error::Invalid(format!("{} is no backup: {why}. Name the folder that `terrace backup` made", source.display()))
    };
    let bytes = std::fs::read(&path).map_err(|e| foreign(format!("{MANIFEST_FILE} cannot be read ({e})")))?;
    let manifest: BackupReport =
        serde_json::from_slice(&bytes).map_err(|e| foreign(format!("{MANIFEST_FILE} makes no sense ({e})")))?;
    if manifest.format_version != FORMAT_VERSION {
        return Err(Error::UnsupportedFormat { path, found: manifest.format_version, supported: FORMAT_VERSION });
    }
    Ok(manifest)
}

/// One commit, and the chunks it names: while they are held, their files stay.
struct Held {
    snapshot: Snapshot,
    chunks: Vec<Arc<Chunk>>,
}

impl Core {
    /// Copies the store as it is now.
    pub(super) fn backup(&self, target: &Path, watch: Watch<'_>) -> Result<BackupReport> {
        if absolute(target)?.starts_with(absolute(&self.data_dir)?) {
            return Err(Error::Invalid(format!("{} is inside of the data directory", target.display())));
        }
        let held = self.hold()?;
        let created_unix_us = self.clock.unix_us();
        Copying { core: self, held: &held, created_unix_us, with_manifest: true }.to(target, watch)
    }

    /// The catalog reads one commit; versions are looked at before and after, so that chunks that come or go around that
    /// moment are among them. Only one that came and went in between is missing, and then it is tried again.
    fn hold(&self) -> Result<Held> {
        for _ in 0..ATTEMPTS {
            let mut known = HashMap::new();
            self.remember(&mut known);
            let snapshot = self.catalog.snapshot()?;
            for _ in 0..LOOKS {
                self.remember(&mut known);
                if let Some(chunks) = named(&snapshot, &known)? {
                    return Ok(Held { snapshot, chunks });
                }
                // A commit is in the catalog a moment before its version is there.
                self.clock.sleep(LOOK_AGAIN);
            }
        }
        Err(Error::Invalid("tables change too fast for a backup; try again".into()))
    }

    fn remember(&self, known: &mut Chunks) {
        for table in self.tables() {
            let chunks = table.version().chunks.clone();
            known.extend(chunks.iter().map(|entry| ((table.id(), entry.chunk.id), Arc::clone(&entry.chunk))));
        }
    }
}

type Chunks = HashMap<(TableId, ChunkId), Arc<Chunk>>;

/// The chunks that a commit names; `None` when one of them is not known.
fn named(snapshot: &Snapshot, known: &Chunks) -> Result<Option<Vec<Arc<Chunk>>>> {
    let mut chunks = Vec::new();
    let mut complete = true;
    snapshot.scan(Space::Chunks, &[], |k, _| {
        match known.get(&(TableId(key_part(k, 0)), ChunkId(key_part(k, 1)))) {
            Some(chunk) => chunks.push(Arc::clone(chunk)),
            None => complete = false,
        }
        Ok(complete)
    })?;
    Ok(complete.then_some(chunks))
}

/// A copy to be made.
struct Copying<'a> {
    core: &'a Core,
    held: &'a Held,
    created_unix_us: u64,
    with_manifest: bool,
}

impl Copying<'_> {
    /// Copies what is held to `target`, whole or not at all.
    fn to(&self, target: &Path, watch: Watch<'_>) -> Result<BackupReport> {
        check_target(target)?;
        let partial = partial(target);
        let parent = absolute(target)?.parent().map(Path::to_path_buf).unwrap_or_default();
        private_folder(&partial).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Invalid(format!(
                "{} is there: another copy to this place is running, or one was interrupted. Delete it and try again",
                partial.display()
            )),
            _ => Error::io("create", &partial, &error),
        })?;
        let copied = self.fill(&partial, watch).and_then(|report| {
            RealFiles.rename(&partial, target)?;
            RealFiles.sync_folder(&parent)?;
            Ok(report)
        });
        if copied.is_err() {
            // The first error is the one to report; what stays is named by the next try.
            let _ = std::fs::remove_dir_all(&partial);
        }
        copied
    }

    /// Writes everything into an empty folder; all of it is durable on return.
    fn fill(&self, folder: &Path, watch: Watch<'_>) -> Result<BackupReport> {
        let Self { core, held, created_unix_us, with_manifest } = *self;
        let catalog_bytes = std::fs::metadata(core.data_dir.join(CATALOG_FILE)).map_or(0, |m| m.len());
        let total_bytes = held.chunks.iter().map(|c| c.file_bytes).sum::<u64>() + catalog_bytes;
        check_space(folder, total_bytes + SLACK_BYTES)?;
        let ssd = folder.join(SSD_FOLDER);
        RealFiles.create_folder(&ssd)?;
        let mut done_bytes = 0;
        let mut rows = 0;
        let mut folders = BTreeSet::from([folder.to_owned(), ssd.clone()]);
        for chunk in &held.chunks {
            let path = ssd.join(core.ssd.relative(&chunk.path)?);
            let table = path.parent().unwrap_or(&ssd).to_owned();
            RealFiles.create_folder(&table)?;
            RealFiles.write(&path, verified(core, chunk)?.as_slice())?;
            folders.insert(table);
            done_bytes += chunk.file_bytes;
            rows += u64::from(chunk.rows);
            if !watch(Progress { done_bytes, total_bytes }) {
                return Err(Error::Cancelled);
            }
        }
        let tables = describe(held, folder)?;
        let catalog = folder.join(CATALOG_FILE);
        held.snapshot.copy_to(&catalog, CACHE_BYTES)?;
        let bytes = done_bytes + std::fs::metadata(&catalog).map_or(0, |m| m.len());
        let chunks = held.chunks.len() as u64;
        let report = BackupReport { format_version: FORMAT_VERSION, created_unix_us, tables, chunks, rows, bytes };
        if with_manifest {
            let text =
                serde_json::to_vec(&report).map_err(|e| Error::Invalid(format!("cannot write a manifest: {e}")))?;
            RealFiles.write(&folder.join(MANIFEST_FILE), &text)?;
        }
        folders.iter().try_for_each(|folder| RealFiles.sync_folder(folder))?;
        Ok(report)
    }
}

/// The bytes of a chunk's file, if they are what was written.
fn verified(core: &Core, chunk: &Chunk) -> Result<AlignedBuffer> {
    let file = core.ssd.load_file(chunk)?;
    let damaged = |what: String| Error::Corrupt {
        path: chunk.path.clone(),
        what: format!("{what}. `terrace check` names all damage and what to do; a backup copies none"),
    };
    if file.as_slice().len() as u64 != chunk.file_bytes {
        return Err(damaged(format!("it has {} bytes, {} were written", file.as_slice().len(), chunk.file_bytes)));
    }
    for (column, segment) in chunk.segments.iter().enumerate() {
        let stored = codec::stored(&segment.home, file.as_slice()).unwrap_or_default();
        cold::verified(chunk, column, stored).map_err(|error| match error {
            Error::Corrupt { what, .. } => damaged(what),
            other => other,
        })?;
    }
    codec::check_stamp(file.as_slice()).map_err(|error| match error {
        Error::Corrupt { what, .. } => damaged(format!("header or footer: {what}")),
        other => other,
    })?;
    Ok(file)
}

/// Writes the descriptions of the tables of the held commit; returns their number.
fn describe(held: &Held, folder: &Path) -> Result<u64> {
    let descriptions = Descriptions::of(Arc::new(RealFiles), folder);
    let mut tables = 0;
    held.snapshot.scan(Space::Tables, &[], |k, v| {
        descriptions.write(TableId(key_part(k, 0)), &decode::<TableRecord>(v, "a table")?)?;
        tables += 1;
        Ok(true)
    })?;
    Ok(tables)
}

/// Only a place where nothing is may become a backup or a data directory.
fn check_target(target: &Path) -> Result<()> {
    match std::fs::read_dir(target).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::AlreadyExists { kind: "folder", name: target.display().to_string() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            Err(Error::AlreadyExists { kind: "file", name: target.display().to_string() })
        }
        Err(error) => Err(Error::io("open", target, &error)),
    }
}

fn partial(target: &Path) -> PathBuf {
    let mut name = target.components().as_path().as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// The path from the root, with the links of what exists of it resolved.
fn absolute(path: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(path).map_err(|e| Error::io("resolve", path, &e))?;
    let existing = full.ancestors().find_map(|a| Some((a.canonicalize().ok()?, full.strip_prefix(a).ok()?.to_owned())));
    Ok(existing.map_or(full, |(existing, rest)| existing.join(rest)))
}

/// Refuses a disk without the room at once instead of at its end.
fn check_space(folder: &Path, needed_bytes: u64) -> Result<()> {
    match free_bytes(folder) {
        Some(free_bytes) if free_bytes < needed_bytes => {
            let message = format!(
                "{needed_bytes} bytes are needed and {free_bytes} are free on its disk: free space, or choose another"
            );
            Err(Error::Io { action: "write", path: folder.to_owned(), errno: Some(libc::ENOSPC), message })
        }
        _ => Ok(()),
    }
}
