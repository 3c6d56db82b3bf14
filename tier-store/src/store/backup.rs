//! Backup and restore: copies all tables as of one commit while statements run.
//!
//! ```text
//!   pin       open one read transaction of the catalog and keep its chunks alive, so that their files stay
//!   copy      into <target>.partial: each chunk file, verified on the way, and a fresh catalog with the same entries
//!   rename    fsync files and folders, then rename once: the target appears complete or not at all
//! ```
//!
//! A backup is a data directory with a manifest (`backup.json`); a restore is the same copy in the other direction.
//! Files are copied, not linked: a link would share the disk's damage. Rows of tables with `durability = 'none'` are
//! sealed first.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_model::{ChunkId, Error, Result, TableId};
use terrace_storage::catalog::records::decode;
use terrace_storage::catalog::{Catalog, Snapshot, Space, TableRecord, key_part};
use terrace_storage::io::AlignedBuffer;
use terrace_storage::io::Class;
use terrace_storage::io::files::{FileSystem, RealFiles, create_private_folder};
use terrace_storage::table::Chunk;
use terrace_storage::tier::codec;
use terrace_storage::tier::reader::cold;
use terrace_storage::tier::ssd::files::{DiskSpace, disk_space};

use super::check::{Progress, Watch};
use super::core::Core;
use super::description::Descriptions;
use super::home_place::SSD_FOLDER;
use super::recovery::{self, CATALOG_FILE};

const MANIFEST_FILE: &str = "backup.json";
const FORMAT_VERSION: u32 = 1;
const CACHE_BYTES: usize = 32 << 20;
/// Number of attempts to pin a commit before a backup gives up because chunks are replaced too fast.
const ATTEMPTS: usize = 10;
/// Number of times that the table versions are read for one catalog snapshot.
const CHECKS_PER_COMMIT: usize = 20;
const CHECK_PAUSE: Duration = Duration::from_millis(5);
/// Room left free on the target's disk for file system metadata.
const SLACK_BYTES: u64 = 1 << 20;

/// Result of a backup or a restore; also the manifest of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupReport {
    /// Layout of the backup.
    pub format_version: u32,
    /// When it was made, microseconds since the Unix epoch.
    pub created_unix_us: u64,
    /// Tables.
    pub tables: u64,
    /// Sealed chunks.
    pub chunks: u64,
    /// Rows of these chunks.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Copies a data directory that no server uses to `target`, which must not exist or be empty.
///
/// # Errors
/// [`Error::Locked`], [`Error::NotFound`], [`Error::AlreadyExists`] for the target, [`Error::Io`] for a full disk,
/// [`Error::Corrupt`] when a file is damaged. The target is absent after an error.
pub fn backup(data_dir: &Path, target: &Path, watch: Watch<'_>) -> Result<BackupReport> {
    let core = open_complete(data_dir)?;
    // A sealed catalog proves its values by their checksums; an older one is verified page by page.
    if !core.catalog.is_sealed() {
        Catalog::verify(core.catalog.path(), CACHE_BYTES)?;
    }
    core.backup(target, watch)
}

/// Copies a backup to a new data directory, which must not exist or be empty. Every byte is verified.
///
/// # Errors
/// [`Error::Invalid`] when the source is no backup, and the errors of [`backup`].
pub fn restore(source: &Path, data_dir: &Path, watch: Watch<'_>) -> Result<BackupReport> {
    let manifest = read_manifest(source)?;
    Catalog::verify(&source.join(CATALOG_FILE), CACHE_BYTES)?;
    let core = open_complete(source)?;
    let commit = core.pin_commit()?;
    let created_unix_us = manifest.created_unix_us;
    CopyJob { core: &core, commit: &commit, created_unix_us, with_manifest: false }.copy_to(data_dir, watch)
}

/// Opens a directory; fails with the first error when one of its tables cannot be loaded.
fn open_complete(dir: &Path) -> Result<Core> {
    let inspection = recovery::inspect(dir)?;
    match inspection.broken.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(inspection.core),
    }
}

fn read_manifest(source: &Path) -> Result<BackupReport> {
    let path = source.join(MANIFEST_FILE);
    let foreign = |why: String| {
        Error::Invalid(format!(
            "{} is not a backup: {why}. Name the folder that `terrace backup` made",
            source.display()
        ))
    };
    let bytes = std::fs::read(&path).map_err(|e| foreign(format!("{MANIFEST_FILE} cannot be read ({e})")))?;
    let manifest: BackupReport =
        serde_json::from_slice(&bytes).map_err(|e| foreign(format!("{MANIFEST_FILE} cannot be parsed ({e})")))?;
    if manifest.format_version != FORMAT_VERSION {
        return Err(Error::UnsupportedFormat { path, found: manifest.format_version, supported: FORMAT_VERSION });
    }
    Ok(manifest)
}

/// A catalog snapshot and the chunks that it names. The files of these chunks are not deleted while this lives.
struct PinnedCommit {
    snapshot: Snapshot,
    chunks: Vec<Arc<Chunk>>,
}

impl Core {
    /// Copies the store as it is now.
    pub(super) fn backup(&self, target: &Path, watch: Watch<'_>) -> Result<BackupReport> {
        if absolute(target)?.starts_with(absolute(&self.data_dir)?) {
            return Err(Error::Invalid(format!("{} is inside the data directory", target.display())));
        }
        let commit = self.pin_commit()?;
        let created_unix_us = self.clock.unix_us();
        CopyJob { core: self, commit: &commit, created_unix_us, with_manifest: true }.copy_to(target, watch)
    }

    /// Takes a catalog snapshot and references to all of its chunks.
    ///
    /// Table versions are read before and after the snapshot, so chunks that are added or removed around it are found.
    /// Only a chunk that was added and removed between the two reads can be missing; then all of it is tried again.
    fn pin_commit(&self) -> Result<PinnedCommit> {
        for _ in 0..ATTEMPTS {
            let mut known = HashMap::new();
            self.add_current_chunks(&mut known);
            let snapshot = self.catalog.snapshot()?;
            for _ in 0..CHECKS_PER_COMMIT {
                self.add_current_chunks(&mut known);
                if let Some(chunks) = chunks_of_snapshot(&snapshot, &known)? {
                    return Ok(PinnedCommit { snapshot, chunks });
                }
                // The catalog has a commit shortly before the table publishes its version.
                self.clock.sleep(CHECK_PAUSE);
            }
        }
        Err(Error::Invalid("the tables change too fast for a backup; try again".into()))
    }

    /// Adds the chunks of the current version of each table.
    fn add_current_chunks(&self, known: &mut KnownChunks) {
        for table in self.tables() {
            let chunks = table.version().chunks.clone();
            known.extend(chunks.iter().map(|entry| ((table.id(), entry.chunk.id), Arc::clone(&entry.chunk))));
        }
    }
}

type KnownChunks = HashMap<(TableId, ChunkId), Arc<Chunk>>;

/// Looks up the chunks that a snapshot names; `None` when one of them is not in `known`.
fn chunks_of_snapshot(snapshot: &Snapshot, known: &KnownChunks) -> Result<Option<Vec<Arc<Chunk>>>> {
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

/// A copy of a pinned commit, for a backup or a restore.
struct CopyJob<'a> {
    core: &'a Core,
    commit: &'a PinnedCommit,
    created_unix_us: u64,
    with_manifest: bool,
}

impl CopyJob<'_> {
    /// Copies the pinned commit to `target`; on an error the target stays absent.
    fn copy_to(&self, target: &Path, watch: Watch<'_>) -> Result<BackupReport> {
        check_target(target)?;
        let partial = partial_path(target);
        let parent = absolute(target)?.parent().map(Path::to_path_buf).unwrap_or_default();
        create_private_folder(&partial).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Invalid(format!(
                "{} exists: another copy to this target is running, or one was interrupted. Delete it and try again",
                partial.display()
            )),
            _ => Error::io("create", &partial, &error),
        })?;
        let copied = self.write_files(&partial, watch).and_then(|report| {
            RealFiles.rename(&partial, target)?;
            RealFiles.sync_folder(&parent)?;
            Ok(report)
        });
        if copied.is_err() {
            // The first error is reported; if files remain, the next attempt refuses and names the folder.
            let _ = std::fs::remove_dir_all(&partial);
        }
        copied
    }

    /// Writes all files into an empty folder; they are durable on return.
    fn write_files(&self, folder: &Path, watch: Watch<'_>) -> Result<BackupReport> {
        let Self { core, commit, created_unix_us, with_manifest } = *self;
        let catalog_bytes = std::fs::metadata(core.data_dir.join(CATALOG_FILE)).map_or(0, |m| m.len());
        let total_bytes = commit.chunks.iter().map(|c| c.file_bytes).sum::<u64>() + catalog_bytes;
        check_space(folder, total_bytes + SLACK_BYTES)?;
        let ssd = folder.join(SSD_FOLDER);
        RealFiles.create_folder(&ssd)?;
        let mut done_bytes = 0;
        let mut rows = 0;
        let mut folders = BTreeSet::from([folder.to_owned(), ssd.clone()]);
        for chunk in &commit.chunks {
            let path = ssd.join(core.home.relative(&chunk.path)?);
            let table = path.parent().unwrap_or(&ssd).to_owned();
            RealFiles.create_folder(&table)?;
            RealFiles.write_through(
                core.local_io.as_ref(),
                Class::Upkeep.into(),
                &path,
                &load_verified_file(core, chunk)?,
            )?;
            folders.insert(table);
            done_bytes += chunk.file_bytes;
            rows += u64::from(chunk.rows);
            if !watch(Progress { done_bytes, total_bytes }) {
                return Err(Error::Cancelled);
            }
        }
        let tables = write_descriptions(commit, folder)?;
        let catalog = folder.join(CATALOG_FILE);
        commit.snapshot.copy_to(&catalog, CACHE_BYTES)?;
        let bytes = done_bytes + std::fs::metadata(&catalog).map_or(0, |m| m.len());
        let chunks = commit.chunks.len() as u64;
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

/// Reads a chunk's file and verifies its size, the checksums of its columns and its stamp.
fn load_verified_file(core: &Core, chunk: &Chunk) -> Result<AlignedBuffer> {
    let file = core.home.load_file(chunk)?;
    let damaged = |what: String| Error::Corrupt {
        path: chunk.path.clone(),
        what: format!("{what}. `terrace check` lists all damage with advice; a backup does not copy damaged files"),
    };
    if file.as_slice().len() as u64 != chunk.file_bytes {
        return Err(damaged(format!("its size is {} bytes, expected {}", file.as_slice().len(), chunk.file_bytes)));
    }
    for (column, segment) in chunk.segments.iter().enumerate() {
        let stored = codec::stored_bytes(&segment.home, file.as_slice()).unwrap_or_default();
        cold::verify_column(chunk, column, stored).map_err(|error| match error {
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

/// Writes the description of each table of the pinned commit; returns the number of tables.
fn write_descriptions(commit: &PinnedCommit, folder: &Path) -> Result<u64> {
    let descriptions = Descriptions::new(Arc::new(RealFiles), folder);
    let mut tables = 0;
    commit.snapshot.scan(Space::Tables, &[], |k, v| {
        descriptions.write(TableId(key_part(k, 0)), &decode::<TableRecord>(v, "a table")?)?;
        tables += 1;
        Ok(true)
    })?;
    Ok(tables)
}

/// Refuses a target that is a file or a folder with entries.
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

fn partial_path(target: &Path) -> PathBuf {
    let mut name = target.components().as_path().as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Makes a path absolute and resolves the links of its longest existing ancestor.
fn absolute(path: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(path).map_err(|e| Error::io("resolve", path, &e))?;
    let existing = full.ancestors().find_map(|a| Some((a.canonicalize().ok()?, full.strip_prefix(a).ok()?.to_owned())));
    Ok(existing.map_or(full, |(existing, rest)| existing.join(rest)))
}

/// Fails early when the disk has too little free space for the copy.
fn check_space(folder: &Path, needed_bytes: u64) -> Result<()> {
    match disk_space(folder) {
        Some(DiskSpace { free_bytes, .. }) if free_bytes < needed_bytes => {
            let message = format!(
                "the copy needs {needed_bytes} bytes, its disk has {free_bytes} free: free space, or choose another"
            );
            Err(Error::Io { action: "write", path: folder.to_owned(), errno: Some(libc::ENOSPC), message })
        }
        _ => Ok(()),
    }
}
