//! Decides which files and folders of the server's machine statements and HTTP requests may name.
//!
//! A path is allowed when it lies below a configured root and does not belong to the server itself: its data directory,
//! pools, spilled rows, configuration and keys. It may not lie in another data directory or a backup either. Both are
//! decided by the device and inode of opened folders, not by the text of the path:
//!
//! ```text
//!   path -> without links -> opened below its root -> checked by device and inode -> used through the descriptor
//!           (this file)      (opened)                 (this file)                    (store, draft)
//! ```
//!
//! - [`opened`]: opens folders and files without following links
//! - [`store`]: the object store that DataFusion uses, which checks every file when it is opened
//! - [`draft`]: files that are being written
//! - [`objects`]: the prefixes of object stores that statements may read and write
//! - [`bucket`]: the object store that DataFusion uses for a bucket, which checks every request
//!
//! [`FileAccess`] refuses early, with the path as the statement wrote it. All reads and writes of DataFusion are checked
//! again by [`CheckedFiles`], so that neither another spelling of a path nor a link that is swapped in after the first
//! check leads elsewhere.

mod bucket;
mod draft;
mod objects;
mod opened;
mod store;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::execution::session_state::SessionState;
use parking_lot::Mutex;
use terrace_tier_store::store::CATALOG_FILE;

use crate::error::{Error, ErrorKind, Result};
pub use draft::OutputPath;
pub use objects::{ObjectAccess, ObjectRoot};
pub(super) use objects::{is_object, objects_at, replacing_object};
use opened::{Folder, Identity};
pub(super) use store::{CheckedFiles, REPLACING};

/// Characters that make a path a pattern.
pub(super) const PATTERN: [char; 3] = ['*', '?', '['];
/// Name of the pool file when only its folder is named.
const POOL_FILE: &str = "terrace.pool";

/// The files that may be read and written.
#[derive(Debug, Clone)]
pub struct FileAccess {
    read: Roots,
    write: Roots,
    /// Those of backups; `None`: those of other files.
    backup: Option<Roots>,
    /// Those of pools of tiers; `None`: those of other files.
    pool: Option<Roots>,
    protected: Vec<PathBuf>,
    objects: ObjectAccess,
    /// Whether default roots are roots no more.
    is_closed: Arc<AtomicBool>,
    /// Files that were added to the server's own while it runs.
    added: Arc<Mutex<Vec<PathBuf>>>,
}

/// Folders below which files may be named.
#[derive(Debug, Clone)]
struct Roots {
    folders: Vec<PathBuf>,
    /// Whether they come from the configuration, not from its default, which holds for a server that is open to everybody.
    is_set: bool,
    setting: &'static str,
}

impl Roots {
    fn new(folders: Vec<PathBuf>, setting: &'static str) -> Self {
        Self { folders, is_set: true, setting }
    }
}

impl FileAccess {
    /// Allows reading and writing below these folders, except for `protected` files and folders, those of the server.
    pub fn new(read_roots: Vec<PathBuf>, write_roots: Vec<PathBuf>, protected: Vec<PathBuf>) -> Self {
        Self {
            read: Roots::new(read_roots, "files.read_roots"),
            write: Roots::new(write_roots, "files.write_roots"),
            backup: None,
            pool: None,
            protected,
            objects: ObjectAccess::default(),
            is_closed: Arc::default(),
            added: Arc::default(),
        }
    }

    /// Allows everything except for `protected`.
    pub fn unrestricted(protected: Vec<PathBuf>) -> Self {
        let root = || vec![PathBuf::from("/")];
        Self::new(root(), root(), protected)
    }

    /// Says which roots come from the configuration; the others hold until [`FileAccess::close_default_roots`].
    #[must_use]
    pub fn with_set_roots(mut self, read: bool, write: bool) -> Self {
        (self.read.is_set, self.write.is_set) = (read, write);
        self
    }

    /// Says below which folders backups, and pools of tiers, may be made, and nowhere else; `None`: where other files may be written.
    #[must_use]
    pub fn with_own_roots(mut self, backup: Option<Vec<PathBuf>>, pool: Option<Vec<PathBuf>>) -> Self {
        self.backup = backup.map(|folders| Roots::new(folders, "files.backup_roots"));
        self.pool = pool.map(|folders| Roots::new(folders, "files.pool_roots"));
        self
    }

    /// Lets statements name objects below these prefixes.
    #[must_use]
    pub fn with_objects(mut self, objects: ObjectAccess) -> Self {
        self.objects = objects;
        self
    }

    /// The prefixes of object stores that may be named.
    pub(super) fn objects(&self) -> &ObjectAccess {
        &self.objects
    }

    /// Checks a location to be read: an object, or a file, a folder or a pattern of the server.
    ///
    /// # Errors
    /// Those of [`FileAccess::check_read`]; [`ErrorKind::InvalidArgument`] for a pattern in an object store.
    pub(super) fn check_location(&self, location: &str) -> Result<()> {
        if is_object(location) { self.objects.check_read(location) } else { self.check_read(Path::new(location)) }
    }

    /// Checks a location to be written: an object, or a file or folder of the server.
    ///
    /// # Errors
    /// Those of [`FileAccess::check_write`]; [`ErrorKind::InvalidArgument`] for a pattern in an object store. Whether an object is
    /// there says [`ObjectAccess::refuse_existing`].
    pub(super) fn check_target(&self, location: &str, overwrite: bool) -> Result<()> {
        match is_object(location) {
            true => self.objects.check_write(location),
            false => self.check_write(Path::new(location), overwrite),
        }
    }

    /// Lets roots that are not set be roots no more.
    pub(super) fn close_default_roots(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// The folders of roots that hold now.
    fn folders<'a>(&self, roots: &'a Roots) -> &'a [PathBuf] {
        if roots.is_set || !self.is_closed.load(Ordering::Relaxed) { &roots.folders } else { &[] }
    }

    /// Protects more files and folders.
    #[must_use]
    pub fn with_protected(mut self, more: impl IntoIterator<Item = PathBuf>) -> Self {
        self.protected.extend(more);
        self
    }

    /// The file access of a session state.
    pub(super) fn from_state(state: &SessionState) -> Result<Arc<Self>> {
        let access = state.config().get_extension::<Self>();
        access.ok_or_else(|| Error::new(ErrorKind::Internal, "the session has no rules for the files that it may name"))
    }

    /// Protects a file or folder that now belongs to the server, the pool of an added tier, until the server stops.
    pub(super) fn protect(&self, path: PathBuf) {
        self.added.lock().push(path);
    }

    /// Checks a file, a folder or a pattern to be read.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the path and the setting that forbids it.
    pub fn check_read(&self, path: &Path) -> Result<()> {
        let found = self.resolve(&without_pattern(path))?;
        let folder = self.open_folder(&found, &self.read)?;
        if let [name] = found.remaining.as_slice() {
            self.check_entry(&folder, name, &found.path(), true)?;
        }
        // Reading a folder reads everything in it, so it may not contain protected files.
        let real = found.path();
        let within = |own: &PathBuf| own.canonicalize().is_ok_and(|own| own.starts_with(&real));
        match self.protected().into_iter().find(within) {
            Some(own) => Err(protected_path_error(&real, &own)),
            None => Ok(()),
        }
    }

    /// Checks a file or folder to be written.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the path and the setting that forbids it; [`ErrorKind::AlreadyExists`] for a
    /// file that is there, unless it may be replaced.
    pub fn check_write(&self, path: &Path, overwrite: bool) -> Result<()> {
        self.check_write_below(&self.write, path, overwrite)
    }

    fn check_write_below(&self, roots: &Roots, path: &Path, overwrite: bool) -> Result<()> {
        let found = self.resolve(path)?;
        let folder = self.open_folder(&found, roots)?;
        found.refuse_catalog_name()?;
        match found.remaining.as_slice() {
            [name] => self.check_entry(&folder, name, &found.path(), overwrite),
            _ => Ok(()),
        }
    }

    /// Checks the path of a tier: a pool file, the folder for one, or a device. Returns the path to protect from then on.
    ///
    /// # Errors
    /// Those of [`FileAccess::check_write`].
    pub fn check_pool(&self, path: &Path) -> Result<PathBuf> {
        let pool = pool_file(path);
        let roots = self.pool.as_ref().unwrap_or(&self.write);
        if std::fs::metadata(&pool).is_ok_and(|found| found.file_type().is_char_device()) {
            let found = self.resolve(&pool)?;
            return self.open_folder(&found, roots).map(|_| pool);
        }
        self.check_write_below(roots, &pool, true).map(|()| pool)
    }

    /// Checks and opens the folder of a backup, which is written by the caller and replaces nothing.
    ///
    /// # Errors
    /// Those of [`FileAccess::check_write`]; [`ErrorKind::NotFound`] when there is no such folder.
    pub fn backup_path(&self, path: &Path) -> Result<OutputPath> {
        self.output_path_below(self.backup.as_ref().unwrap_or(&self.write), path, true, false)
    }

    /// Like [`Self::backup_path`], for files that statements write: with `make`, creates missing folders.
    fn output_path_with_folders(&self, path: &Path, overwrite: bool, make: bool) -> Result<OutputPath> {
        self.output_path_below(&self.write, path, overwrite, make)
    }

    fn output_path_below(&self, roots: &Roots, path: &Path, overwrite: bool, make: bool) -> Result<OutputPath> {
        let mut found = self.resolve(path)?;
        let shown = found.path();
        let named = found.refuse_catalog_name();
        let Some(name) = found.take_name() else {
            return Err(Error::invalid(format!("path {} does not end with a file name", path.display())));
        };
        let mut folder = self.open_folder(&found, roots)?;
        named?;
        if !make && !found.remaining.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no folder {}", found.path().display())));
        }
        for part in &found.remaining {
            folder = folder.make(part, &found)?;
        }
        if !found.remaining.is_empty() {
            self.check_folder(&folder, &found, roots)?;
        }
        self.check_entry(&folder, &name, &shown, overwrite)?;
        Ok(OutputPath::new(folder, name, shown))
    }

    /// Checks a file and opens it for reading.
    fn open_file(&self, path: &Path) -> Result<File> {
        let found = self.resolve(path)?;
        let [name] = found.remaining.as_slice() else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no file {}", path.display())));
        };
        let folder = self.open_folder(&found, &self.read)?;
        let (file, identity) = folder.open_file(name, &found.path())?;
        self.check_file(identity, &found.path()).map(|()| file)
    }

    /// Resolves the links in the existing part of a path.
    fn resolve(&self, path: &Path) -> Result<ResolvedPath> {
        let shown = path.display();
        let absolute =
            std::path::absolute(path).map_err(|e| Error::invalid(format!("'{shown}' is not a path: {e}")))?;
        if absolute.components().any(|part| part == Component::ParentDir) {
            return Err(Error::invalid(format!("path {shown} has '..' in it; write the path without it")));
        }
        let found = absolute.ancestors().find_map(|folder| Some((folder.canonicalize().ok()?, folder)));
        let (mut folder, there) = found.ok_or_else(|| Error::invalid(format!("no folder of path {shown} exists")))?;
        let rest = absolute.strip_prefix(there).unwrap_or(Path::new(""));
        let mut rest: Vec<OsString> = rest.components().map(|part| part.as_os_str().to_owned()).collect();
        // A dangling link would be followed when the file is created.
        if let Some(first) = rest.first()
            && folder.join(first).is_symlink()
        {
            return Err(Error::invalid(format!("path {shown} has a symbolic link whose target does not exist")));
        }
        if !folder.is_dir()
            && let (Some(parent), Some(name)) = (folder.parent(), folder.file_name())
        {
            if !rest.is_empty() {
                return Err(Error::invalid(format!("path {shown} goes through {}, which is a file", folder.display())));
            }
            rest.push(name.to_owned());
            folder = parent.to_owned();
        }
        Ok(ResolvedPath { folder, remaining: rest })
    }

    /// Opens the existing folder of a path below one of the roots, and checks it.
    fn open_folder(&self, found: &ResolvedPath, roots: &Roots) -> Result<Folder> {
        let roots_there = self.folders(roots).iter().filter_map(|root| root.canonicalize().ok());
        let mut last = Err(outside_roots(found, roots));
        for root in roots_there.filter(|root| found.folder.starts_with(root)) {
            last = Folder::open_below(&root, found);
            if last.is_ok() {
                break;
            }
        }
        let folder = last?;
        self.check_folder(&folder, found, roots).map(|()| folder)
    }

    /// Checks an open folder by its ancestors: those of the folder itself, whatever path led to it.
    fn check_folder(&self, folder: &Folder, found: &ResolvedPath, roots: &Roots) -> Result<()> {
        let own: Vec<(Identity, PathBuf)> = self.protected_identities().collect();
        let roots_there: Vec<Identity> = self.folders(roots).iter().filter_map(Identity::from_path).collect();
        let mut is_below = false;
        for ancestor in folder.ancestors() {
            let (ancestor, identity) = ancestor.map_err(|error| opened::errno_error("open", &found.path(), error))?;
            if let Some((_, own)) = own.iter().find(|(known, _)| *known == identity) {
                return Err(protected_path_error(&found.path(), own));
            }
            if ancestor.contains(CATALOG_FILE) {
                let shown = found.path();
                let message = format!("path {} lies in a data directory or a backup", shown.display());
                return Err(Error::new(ErrorKind::PermissionDenied, message));
            }
            is_below |= roots_there.contains(&identity);
        }
        if is_below { Ok(()) } else { Err(outside_roots(found, roots)) }
    }

    /// Checks the entry of a name in a checked folder, if there is one.
    fn check_entry(&self, folder: &Folder, name: &OsStr, shown: &Path, overwrite: bool) -> Result<()> {
        let Some(entry) = folder.entry(name, shown)? else { return Ok(()) };
        self.check_file(entry.identity, shown)?;
        if entry.is_folder {
            return Ok(());
        }
        if !entry.is_file {
            return Err(Error::invalid(format!("{} is neither a file nor a folder", shown.display())));
        }
        if !overwrite {
            let shown = shown.display();
            let message = format!("file {shown} exists already; choose another, or add OPTIONS (overwrite 'true')");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        Ok(())
    }

    /// Refuses a file of the server, also under another name (a hard link).
    fn check_file(&self, identity: Identity, shown: &Path) -> Result<()> {
        let is_own = |own: &PathBuf| {
            Identity::from_path(own)
                .is_some_and(|known| known == identity || (identity.has_links() && known.contains_file(own, identity)))
        };
        match self.protected().into_iter().find(is_own) {
            Some(own) => Err(protected_path_error(shown, &own)),
            None => Ok(()),
        }
    }

    fn protected(&self) -> Vec<PathBuf> {
        self.protected.iter().cloned().chain(self.added.lock().iter().cloned()).collect()
    }

    /// Identities of the protected files that exist, and of the kernel's file systems, which show memory and secrets of the
    /// process.
    fn protected_identities(&self) -> impl Iterator<Item = (Identity, PathBuf)> {
        let kernel = ["/proc", "/sys"].map(PathBuf::from);
        self.protected().into_iter().chain(kernel).filter_map(|own| Some((Identity::from_path(&own)?, own)))
    }
}

/// A path, its existing part without links.
#[derive(Debug)]
struct ResolvedPath {
    /// The deepest folder of it that exists.
    folder: PathBuf,
    /// The names below that folder: of an existing file, or of folders and a file that do not exist.
    remaining: Vec<OsString>,
}

impl ResolvedPath {
    fn path(&self) -> PathBuf {
        self.remaining.iter().fold(self.folder.clone(), |path, part| path.join(part))
    }

    /// Refuses to create a file named like the catalog: its folder would count as a data directory, which no statement may
    /// name.
    fn refuse_catalog_name(&self) -> Result<()> {
        if !self.remaining.iter().any(|part| part == CATALOG_FILE) {
            return Ok(());
        }
        let message = format!(
            "path {}: only a data directory may have a {CATALOG_FILE}; choose another name",
            self.path().display()
        );
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Removes and returns the last name, also that of an existing folder.
    fn take_name(&mut self) -> Option<OsString> {
        let name = self.remaining.pop();
        name.or_else(|| {
            let name = self.folder.file_name()?.to_owned();
            self.folder = self.folder.parent()?.to_owned();
            Some(name)
        })
    }
}

/// The pool file of a tier, whose path names the file or its folder.
pub fn pool_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(POOL_FILE) } else { path.to_owned() }
}

fn outside_roots(found: &ResolvedPath, roots: &Roots) -> Error {
    let shown = found.path();
    let setting = roots.setting;
    let message = format!("path {} is not below any of the folders of the setting {setting}", shown.display());
    Error::new(ErrorKind::PermissionDenied, message)
}

fn protected_path_error(real: &Path, own: &Path) -> Error {
    let shown = real.display();
    let own = own.display();
    Error::new(ErrorKind::PermissionDenied, format!("path {shown} reaches {own}, which belongs to the server itself"))
}

/// Refuses a pattern in the folders of a path: DataFusion finds no file by it (`ListingTableUrl::contains`).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] that says what to write.
pub(super) fn check_pattern(path: &str) -> Result<()> {
    match path.rsplit_once('/') {
        Some((folders, _)) if folders.contains(PATTERN) => Err(Error::invalid(format!(
            "'{path}': only the file name of a path may have a pattern; name the folder itself to read folders in it \
             that are named column=value"
        ))),
        _ => Ok(()),
    }
}

/// The part of a path before its first pattern.
fn without_pattern(path: &Path) -> PathBuf {
    let is_pattern = |part: &Component<'_>| part.as_os_str().to_string_lossy().contains(PATTERN);
    path.components().take_while(|part| !is_pattern(part)).collect()
}

#[cfg(test)]
mod tests;
