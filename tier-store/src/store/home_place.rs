//! Where the chunk files of a data directory lie, and the proof that they are those of this directory.
//!
//! With a home elsewhere, `home.json` in the data directory names it, and the marker at the home has the same id. A start
//! compares both before it removes what no table names: else a wrong address would empty the home of another directory.
//! A home in the data directory itself needs neither, as both move together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_model::clock::Clock;
use terrace_model::{Account, Error, Result};
use terrace_storage::catalog::{Catalog, Space};
use terrace_storage::io::objects::{ObjectEngine, Objects};
use terrace_storage::io::{BlockIo, FileSystem, IoRules};
use terrace_storage::tier::Home;
use terrace_storage::tier::object_home::ObjectHome;
use terrace_storage::tier::ssd::SsdTier;
use terrace_storage::tier::ssd::files::replace_durably;
use terrace_storage::tier::stored_file::MARKER_NAME;

/// The folder of the chunk files in a data directory, and in a backup.
pub(super) const SSD_FOLDER: &str = "ssd";
pub(super) const HOME_FILE: &str = "home.json";
const FORMAT_VERSION: u32 = 1;

/// The place of the chunk files.
#[derive(Debug, Clone, Default)]
pub enum HomePlace {
    /// The folder `ssd` in the data directory.
    #[default]
    DataDir,
    /// Another folder, which may be one of a file server.
    Folder(PathBuf),
    /// Below a prefix of an object store.
    Objects {
        /// The client of the store.
        objects: Arc<dyn Objects>,
        /// Most reads that are under way at once.
        requests: usize,
    },
}

/// What `home.json` and the marker at the home hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HomeRecord {
    format_version: u32,
    id: String,
    /// The home as it was named last; for people, and for programs that read the directory without a server.
    url: String,
}

/// What a home is made of.
pub(super) struct HomeParts {
    pub(super) data_dir: PathBuf,
    /// Limit of the bytes of its files.
    pub(super) limit_bytes: u64,
    pub(super) files: Arc<dyn FileSystem>,
    /// The engine of the files of this machine.
    pub(super) io: Arc<dyn BlockIo>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) io_account: Arc<Account>,
}

/// The queue of the engine of an object store.
#[derive(Clone, Copy)]
pub(super) struct QueueOptions {
    pub(super) rules: IoRules,
    /// See [`Depth::beside_points`](terrace_storage::io::Depth::beside_points).
    pub(super) beside_points_bytes: u64,
}

/// The data directory that takes possession of a home.
pub(super) struct DataDirectory<'a> {
    pub(super) files: &'a dyn FileSystem,
    pub(super) path: &'a Path,
    /// The time of day, in microseconds.
    pub(super) unix_us: u64,
}

impl HomePlace {
    /// The address as users give it; `None` for the data directory itself.
    fn url(&self) -> Option<String> {
        match self {
            Self::DataDir => None,
            Self::Folder(folder) => Some(absolute(folder)),
            Self::Objects { objects, .. } => Some(objects.url().to_owned()),
        }
    }

    /// Opens the home.
    ///
    /// # Errors
    /// [`Error::Io`] when a folder cannot be made. Object stores are not asked.
    pub(super) fn open(&self, queue: QueueOptions, parts: HomeParts) -> Result<Arc<dyn Home>> {
        let HomeParts { data_dir, limit_bytes, files, io, clock, io_account } = parts;
        let folder = match self {
            Self::DataDir => data_dir.join(SSD_FOLDER),
            Self::Folder(folder) => folder.clone(),
            Self::Objects { objects, requests } => {
                let io = Arc::new(ObjectEngine::start(Arc::clone(objects), *requests));
                io.set_rules(queue.rules);
                io.depth().set_beside_points(queue.beside_points_bytes);
                let stored = Account::new("object", limit_bytes);
                return Ok(Arc::new(ObjectHome::new(Arc::clone(objects), io, clock, io_account, stored)));
            }
        };
        Ok(Arc::new(SsdTier::new(folder, files, io, clock, io_account, Account::new("ssd", limit_bytes))?))
    }

    /// The place that a data directory names, for programs that read it without a server.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an object store, which only a server reads; [`Error::Corrupt`] for a damaged `home.json`.
    pub(super) fn recorded(files: &dyn FileSystem, data_dir: &Path) -> Result<Self> {
        match read_record(files, data_dir)? {
            None => Ok(Self::DataDir),
            Some(HomeRecord { url, .. }) if Path::new(&url).is_absolute() => Ok(Self::Folder(url.into())),
            Some(HomeRecord { url, .. }) => Err(Error::Unsupported(format!(
                "the tables of {} lie at {url}, which is read by a running server only: name the server instead",
                data_dir.display()
            ))),
        }
    }

    /// The folder of the chunk files, for programs that read them without a server.
    ///
    /// # Errors
    /// Those of [`Self::recorded`].
    pub(super) fn recorded_folder(files: &dyn FileSystem, data_dir: &Path) -> Result<PathBuf> {
        Ok(match Self::recorded(files, data_dir)? {
            Self::Folder(folder) => folder,
            Self::DataDir | Self::Objects { .. } => data_dir.join(SSD_FOLDER),
        })
    }

    /// Makes sure that the home is that of this data directory, and takes possession of a new one.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the directory has its tables elsewhere, or the home belongs to another directory, and says
    /// what to do; [`Error::UnsupportedFormat`] for a home of a newer version; [`Error::Io`].
    pub(super) fn claim(&self, owner: &DataDirectory<'_>, catalog: &Catalog, home: &dyn Home) -> Result<()> {
        let DataDirectory { files, path: dir, .. } = *owner;
        let recorded = read_record(files, dir)?;
        match (self.url(), recorded) {
            (None, recorded) => claim_own(owner, recorded, catalog, home),
            (Some(url), recorded) => {
                if recorded.is_none() && has_chunks(catalog)? {
                    return Err(elsewhere(dir, &dir.join(SSD_FOLDER).display().to_string()));
                }
                let known = recorded.clone().map(|recorded| recorded.id);
                let marker = read_marker(home, &url)?;
                match (marker, known) {
                    (Some(marker), Some(id)) if marker.id == id => {
                        let record = HomeRecord { url, ..marker };
                        if recorded.as_ref() == Some(&record) { Ok(()) } else { write_record(files, dir, &record) }
                    }
                    (Some(_), _) => Err(foreign(dir, &url)),
                    (None, Some(_)) if has_chunks(catalog)? => Err(Error::Invalid(format!(
                        "{url} is empty or not the home of {}: its marker is missing. Name the right home, or restore a backup",
                        dir.display()
                    ))),
                    (None, _) => take(owner, home, url, recorded),
                }
            }
        }
    }
}

fn has_chunks(catalog: &Catalog) -> Result<bool> {
    let mut found = false;
    catalog.scan(Space::Chunks, &[], |_, _| {
        found = true;
        Ok(false)
    })?;
    Ok(found)
}

/// Makes sure that the folder in the data directory is nobody else's home, and makes it the home again if it was elsewhere.
fn claim_own(
    owner: &DataDirectory<'_>,
    recorded: Option<HomeRecord>,
    catalog: &Catalog,
    home: &dyn Home,
) -> Result<()> {
    let DataDirectory { files, path: dir, .. } = *owner;
    let folder = dir.join(SSD_FOLDER);
    let url = folder.display().to_string();
    let marker = read_marker(home, &url)?;
    if let Some(recorded) = &recorded
        && has_chunks(catalog)?
    {
        return Err(elsewhere(dir, &recorded.url));
    }
    if let Some(marker) = marker {
        if recorded.as_ref().is_none_or(|recorded| recorded.id != marker.id) {
            return Err(foreign(dir, &url));
        }
        // It was named as a home elsewhere, though it is the one in the directory.
        files.remove_file(&folder.join(MARKER_NAME))?;
        files.sync_folder(&folder)?;
    }
    if recorded.is_some() { files.remove_file(&dir.join(HOME_FILE)) } else { Ok(()) }
}

/// Takes possession of a home without a marker. The record comes first: a start that was stopped in between finds it, and goes
/// on from there with the same id, as the marker that it sent may still arrive.
fn take(owner: &DataDirectory<'_>, home: &dyn Home, url: String, recorded: Option<HomeRecord>) -> Result<()> {
    let DataDirectory { files, path: dir, unix_us } = *owner;
    if let Some(file) = home.list()?.into_iter().find(|file| file.chunk.is_some()) {
        return Err(Error::Invalid(format!(
            "{url} has no marker, but files of tables ({}): name an empty folder or prefix as the home",
            file.path.display()
        )));
    }
    let known = recorded.filter(|recorded| recorded.url == url).map(|recorded| recorded.id);
    let id = known.unwrap_or_else(|| format!("{unix_us:x}-{:x}", std::process::id()));
    let record = HomeRecord { format_version: FORMAT_VERSION, id, url: url.clone() };
    write_record(files, dir, &record)?;
    let created = home.create_marker(&to_json(&record)?)?;
    // The answer to the first try may have been lost; then the marker is ours.
    match created || read_marker(home, &url)?.is_some_and(|marker| marker.id == record.id) {
        true => Ok(()),
        false => Err(foreign(dir, &url)),
    }
}

fn elsewhere(dir: &Path, url: &str) -> Error {
    Error::Invalid(format!(
        "the tables of {} lie at {url}: start with that home, or choose another --data-dir. A backup, restored elsewhere, \
         moves tables",
        dir.display()
    ))
}

fn foreign(dir: &Path, url: &str) -> Error {
    Error::Invalid(format!(
        "{url} is the home of another data directory than {}, or that directory was lost: choose another folder or prefix",
        dir.display()
    ))
}

fn read_record(files: &dyn FileSystem, dir: &Path) -> Result<Option<HomeRecord>> {
    let path = dir.join(HOME_FILE);
    files.len(&path)?.map(|_| parse(&files.read(&path)?, &path)).transpose()
}

fn write_record(files: &dyn FileSystem, dir: &Path, record: &HomeRecord) -> Result<()> {
    replace_durably(files, &dir.join(HOME_FILE), &to_json(record)?)
}

fn read_marker(home: &dyn Home, url: &str) -> Result<Option<HomeRecord>> {
    home.read_marker()?.map(|bytes| parse(&bytes, &Path::new(url).join(MARKER_NAME))).transpose()
}

fn parse(bytes: &[u8], path: &Path) -> Result<HomeRecord> {
    let damaged = |error: serde_json::Error| Error::Corrupt { path: path.to_owned(), what: error.to_string() };
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(damaged)?;
    // A newer version may have other fields.
    let found = value.get("format_version").and_then(serde_json::Value::as_u64).unwrap_or_default();
    if found > u64::from(FORMAT_VERSION) {
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        return Err(Error::UnsupportedFormat { path: path.to_owned(), found, supported: FORMAT_VERSION });
    }
    serde_json::from_value(value).map_err(damaged)
}

fn to_json(record: &HomeRecord) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|error| Error::Invalid(format!("cannot describe the home: {error}")))
}

fn absolute(folder: &Path) -> String {
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).display().to_string()
}

#[cfg(test)]
mod tests;
