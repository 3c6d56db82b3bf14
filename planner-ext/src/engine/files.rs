//! Which files and folders of the server's machine statements and HTTP requests may name.
//!
//! A path passes when it lies below a configured root and is no part of what the server itself keeps: its data directory,
//! pools, spilled rows, configuration and keys. Nor may it lie in another data directory or a backup. Both are decided for
//! the folders that were opened, by device and inode, not for the words of the path:
//!
//! ```text
//!   path -> without links -> opened below its root -> judged by what was opened -> used through the descriptor
//!           (this file)      (opened)                 (this file)                  (store, draft)
//! ```
//!
//! `FileAccess` says early, in the words of the statement, what is refused. What DataFusion reads and writes goes through
//! [`CheckedFiles`] besides, so that neither another spelling of a path nor a link that is swapped in between leads elsewhere.

mod draft;
mod opened;
mod store;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use datafusion::execution::session_state::SessionState;
use parking_lot::Mutex;
use terrace_tier_store::store::CATALOG_FILE;

use crate::error::{Error, ErrorKind, Result};
pub use draft::Place;
use opened::{Folder, Identity};
pub(super) use store::{CheckedFiles, REPLACING};

/// What makes a path a pattern.
pub(super) const PATTERN: [char; 3] = ['*', '?', '['];
/// The file that a pool has where only its folder is named.
const POOL_FILE: &str = "terrace.pool";

/// What may be read and written.
#[derive(Debug, Clone)]
pub struct FileAccess {
    read: Roots,
    write: Roots,
    protected: Vec<PathBuf>,
    /// What came to be the server's while it serves.
    added: Arc<Mutex<Vec<PathBuf>>>,
}

/// Folders below which files may be named.
#[derive(Debug, Clone)]
struct Roots {
    folders: Vec<PathBuf>,
    setting: &'static str,
}

impl FileAccess {
    /// Reading and writing below these folders, save what is `protected`: files and folders of the server itself.
    pub fn new(read_roots: Vec<PathBuf>, write_roots: Vec<PathBuf>, protected: Vec<PathBuf>) -> Self {
        Self {
            read: Roots { folders: read_roots, setting: "files.read_roots" },
            write: Roots { folders: write_roots, setting: "files.write_roots" },
            protected,
            added: Arc::default(),
        }
    }

    /// Everything but `protected`.
    pub fn open(protected: Vec<PathBuf>) -> Self {
        let root = || vec![PathBuf::from("/")];
        Self::new(root(), root(), protected)
    }

    /// The same with more that is protected.
    #[must_use]
    pub fn with_protected(mut self, more: impl IntoIterator<Item = PathBuf>) -> Self {
        self.protected.extend(more);
        self
    }

    /// The access that the sessions of a state have.
    pub(super) fn of(state: &SessionState) -> Result<Arc<Self>> {
        let access = state.config().get_extension::<Self>();
        access.ok_or_else(|| Error::new(ErrorKind::Internal, "the session does not know which files it may name"))
    }

    /// Protects a file or folder that came to be the server's: the pool of an added tier, until the server stops.
    pub(super) fn protect(&self, path: PathBuf) {
        self.added.lock().push(path);
    }

    /// Checks a file, a folder or a pattern to be read.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the path and the setting that forbids it.
    pub fn check_read(&self, path: &Path) -> Result<()> {
        let found = self.find(&without_pattern(path))?;
        let folder = self.folder(&found, &self.read)?;
        if let [name] = found.rest.as_slice() {
            self.judge_entry(&folder, name, &found.real(), true)?;
        }
        // A folder is read with all that lies in it.
        let real = found.real();
        let within = |own: &PathBuf| own.canonicalize().is_ok_and(|own| own.starts_with(&real));
        match self.protected().into_iter().find(within) {
            Some(own) => Err(belongs_to_the_server(&real, &own)),
            None => Ok(()),
        }
    }

    /// Checks a file or folder to be written.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the path and the setting that forbids it; [`ErrorKind::AlreadyExists`] for a
    /// file that is there, unless it may be replaced.
    pub fn check_write(&self, path: &Path, overwrite: bool) -> Result<()> {
        let found = self.find(path)?;
        let folder = self.folder(&found, &self.write)?;
        found.check_names()?;
        match found.rest.as_slice() {
            [name] => self.judge_entry(&folder, name, &found.real(), overwrite),
            _ => Ok(()),
        }
    }

    /// Checks what a tier is to stand on: a pool file, the folder for one, or a device. Returns what to protect from then on.
    ///
    /// # Errors
    /// As of [`FileAccess::check_write`].
    pub fn check_pool(&self, path: &Path) -> Result<PathBuf> {
        let pool = pool_file(path);
        if std::fs::metadata(&pool).is_ok_and(|found| found.file_type().is_char_device()) {
            let found = self.find(&pool)?;
            return self.folder(&found, &self.write).map(|_| pool);
        }
        self.check_write(&pool, true).map(|()| pool)
    }

    /// Opens the folder of what is to be written, judged, for those who write by themselves and replace nothing.
    ///
    /// # Errors
    /// As of [`FileAccess::check_write`]; [`ErrorKind::NotFound`] when there is no such folder.
    pub fn place(&self, path: &Path) -> Result<Place> {
        self.place_to_write(path, true, false)
    }

    /// The same for files that statements write, whose folders are made.
    fn place_to_write(&self, path: &Path, overwrite: bool, make: bool) -> Result<Place> {
        let mut found = self.find(path)?;
        let shown = found.real();
        let named = found.check_names();
        let Some(name) = found.take_name() else {
            return Err(Error::invalid(format!("path {} has no name", path.display())));
        };
        let mut folder = self.folder(&found, &self.write)?;
        named?;
        if !make && !found.rest.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no folder {}", found.real().display())));
        }
        for part in &found.rest {
            folder = folder.make(part, &found)?;
        }
        if !found.rest.is_empty() {
            self.judge(&folder, &found, &self.write)?;
        }
        self.judge_entry(&folder, &name, &shown, overwrite)?;
        Ok(Place::new(folder, name, shown))
    }

    /// Opens a file for reading, judged.
    fn open_file(&self, path: &Path) -> Result<File> {
        let found = self.find(path)?;
        let [name] = found.rest.as_slice() else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no file {}", path.display())));
        };
        let folder = self.folder(&found, &self.read)?;
        let (file, identity) = folder.open_file(name, &found.real())?;
        self.judge_file(identity, &found.real()).map(|()| file)
    }

    /// The path that is meant, its existing part without links.
    fn find(&self, path: &Path) -> Result<Found> {
        let shown = path.display();
        let absolute = std::path::absolute(path).map_err(|e| Error::invalid(format!("'{shown}' is no path: {e}")))?;
        if absolute.components().any(|part| part == Component::ParentDir) {
            return Err(Error::invalid(format!("path {shown} has '..' in it; write it without")));
        }
        let found = absolute.ancestors().find_map(|folder| Some((folder.canonicalize().ok()?, folder)));
        let (mut folder, there) = found.ok_or_else(|| Error::invalid(format!("path {shown} has no folder")))?;
        let rest = absolute.strip_prefix(there).unwrap_or(Path::new(""));
        let mut rest: Vec<OsString> = rest.components().map(|part| part.as_os_str().to_owned()).collect();
        // A link to nothing would be followed when the file is made.
        if let Some(first) = rest.first()
            && folder.join(first).is_symlink()
        {
            return Err(Error::invalid(format!("path {shown} leads over a link to nothing")));
        }
        if !folder.is_dir()
            && let (Some(parent), Some(name)) = (folder.parent(), folder.file_name())
        {
            if !rest.is_empty() {
                return Err(Error::invalid(format!("path {shown} leads through {}, a file", folder.display())));
            }
            rest.push(name.to_owned());
            folder = parent.to_owned();
        }
        Ok(Found { folder, rest })
    }

    /// Opens the existing folder of a path, below one of the roots, and judges it.
    fn folder(&self, found: &Found, roots: &Roots) -> Result<Folder> {
        let roots_there = roots.folders.iter().filter_map(|root| root.canonicalize().ok());
        let mut last = Err(outside(found, roots));
        for root in roots_there.filter(|root| found.folder.starts_with(root)) {
            last = Folder::below(&root, found);
            if last.is_ok() {
                break;
            }
        }
        let folder = last?;
        self.judge(&folder, found, roots).map(|()| folder)
    }

    /// Judges an open folder by its ancestors: those of the folder itself, whatever path led to it.
    fn judge(&self, folder: &Folder, found: &Found, roots: &Roots) -> Result<()> {
        let own: Vec<(Identity, PathBuf)> = self.identities().collect();
        let roots_there: Vec<Identity> = roots.folders.iter().filter_map(Identity::of).collect();
        let mut is_below = false;
        for ancestor in folder.ancestors() {
            let (ancestor, identity) = ancestor.map_err(|error| opened::failed("open", &found.real(), error))?;
            if let Some((_, own)) = own.iter().find(|(known, _)| *known == identity) {
                return Err(belongs_to_the_server(&found.real(), own));
            }
            if ancestor.has(CATALOG_FILE) {
                let shown = found.real();
                let message = format!("path {} lies in a data directory or a backup", shown.display());
                return Err(Error::new(ErrorKind::PermissionDenied, message));
            }
            is_below |= roots_there.contains(&identity);
        }
        if is_below { Ok(()) } else { Err(outside(found, roots)) }
    }

    /// Judges what lies under a name in a judged folder, if anything.
    fn judge_entry(&self, folder: &Folder, name: &OsStr, shown: &Path, overwrite: bool) -> Result<()> {
        let Some(entry) = folder.entry(name, shown)? else { return Ok(()) };
        self.judge_file(entry.identity, shown)?;
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

    /// Refuses a file of the server under another name.
    fn judge_file(&self, identity: Identity, shown: &Path) -> Result<()> {
        let is_own = |own: &PathBuf| {
            Identity::of(own)
                .is_some_and(|known| known == identity || (identity.has_links() && known.holds(own, identity)))
        };
        match self.protected().into_iter().find(is_own) {
            Some(own) => Err(belongs_to_the_server(shown, &own)),
            None => Ok(()),
        }
    }

    fn protected(&self) -> Vec<PathBuf> {
        self.protected.iter().cloned().chain(self.added.lock().iter().cloned()).collect()
    }

    /// What is protected and there, with the file systems of the kernel, which show memory and secrets of the process.
    fn identities(&self) -> impl Iterator<Item = (Identity, PathBuf)> {
        let kernel = ["/proc", "/sys"].map(PathBuf::from);
        self.protected().into_iter().chain(kernel).filter_map(|own| Some((Identity::of(&own)?, own)))
    }
}

/// A path, its existing part without links.
#[derive(Debug)]
struct Found {
    /// The deepest folder of it that exists.
    folder: PathBuf,
    /// The names below that: of an existing file, or of what does not exist.
    rest: Vec<OsString>,
}

impl Found {
    fn real(&self) -> PathBuf {
        self.rest.iter().fold(self.folder.clone(), |path, part| path.join(part))
    }

    /// Refuses to make what would have its folder taken for a data directory, which no statement may name.
    fn check_names(&self) -> Result<()> {
        if !self.rest.iter().any(|part| part == CATALOG_FILE) {
            return Ok(());
        }
        let message =
            format!("path {}: only a data directory has a {CATALOG_FILE}; choose another name", self.real().display());
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Takes the last name off, also that of an existing folder.
    fn take_name(&mut self) -> Option<OsString> {
        let name = self.rest.pop();
        name.or_else(|| {
            let name = self.folder.file_name()?.to_owned();
            self.folder = self.folder.parent()?.to_owned();
            Some(name)
        })
    }
}

/// The pool file that is meant by the path of a tier.
pub fn pool_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(POOL_FILE) } else { path.to_owned() }
}

fn outside(found: &Found, roots: &Roots) -> Error {
    let shown = found.real();
    let setting = roots.setting;
    let message = format!("path {} lies below none of the folders of the setting {setting}", shown.display());
    Error::new(ErrorKind::PermissionDenied, message)
}

fn belongs_to_the_server(real: &Path, own: &Path) -> Error {
    let shown = real.display();
    let own = own.display();
    Error::new(ErrorKind::PermissionDenied, format!("path {shown} reaches {own}, which belongs to the server itself"))
}

/// Refuses a pattern among the folders of a path: DataFusion finds nothing by it (`ListingTableUrl::contains`).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] that says what to write.
pub(super) fn check_pattern(path: &str) -> Result<()> {
    match path.rsplit_once('/') {
        Some((folders, _)) if folders.contains(PATTERN) => Err(Error::invalid(format!(
            "'{path}': a pattern stands for the name of a file; name the folder itself to read folders in it that are \
             named column=value"
        ))),
        _ => Ok(()),
    }
}

/// The folder in which a pattern is looked for.
fn without_pattern(path: &Path) -> PathBuf {
    let is_pattern = |part: &Component<'_>| part.as_os_str().to_string_lossy().contains(PATTERN);
    path.components().take_while(|part| !is_pattern(part)).collect()
}

#[cfg(test)]
mod tests;
