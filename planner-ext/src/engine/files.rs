//! Which files and folders of the server's machine statements and HTTP requests may name.
//!
//! A path passes when it lies below a configured root and is no part of what the server itself keeps: its data directory,
//! its pools, spilled rows, configuration and keys. Both are decided for the folder that the path really means, links
//! followed, and compared by device and inode, so that no other name of a folder passes.
//!
//! Not covered: a link that is swapped between this check and the use of the path.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use datafusion::execution::session_state::SessionState;

use crate::error::{Error, ErrorKind, Result};

/// What may be read and written.
#[derive(Debug, Clone)]
pub struct FileAccess {
    /// Folders below which files may be read.
    pub read_roots: Vec<PathBuf>,
    /// Folders below which files may be written.
    pub write_roots: Vec<PathBuf>,
    /// Files and folders of the server itself.
    pub protected: Vec<PathBuf>,
}

impl FileAccess {
    /// Everything but `protected`.
    pub fn open(protected: Vec<PathBuf>) -> Self {
        let root = || vec![PathBuf::from("/")];
        Self { read_roots: root(), write_roots: root(), protected }
    }

    /// The access that the sessions of a state have.
    pub(super) fn of(state: &SessionState) -> Result<std::sync::Arc<Self>> {
        let access = state.config().get_extension::<Self>();
        access.ok_or_else(|| Error::new(ErrorKind::Internal, "the session does not know which files it may name"))
    }

    /// Checks a file, a folder or a pattern to be read.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the path and the setting that forbids it.
    pub fn check_read(&self, path: &Path) -> Result<()> {
        let real = self.real(&without_pattern(path))?;
        self.check_root(&real, &self.read_roots, "files.read_roots")?;
        let within = |own: &&PathBuf| own.canonicalize().is_ok_and(|own| own.starts_with(&real));
        match self.protected.iter().find(within) {
            Some(own) => Err(belongs_to_the_server(&real, own)),
            None => Ok(()),
        }
    }

    /// Checks a file or folder to be written.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with the path and the setting that forbids it; [`ErrorKind::AlreadyExists`] for a
    /// file that is there, unless it may be replaced.
    pub fn check_write(&self, path: &Path, overwrite: bool) -> Result<()> {
        let real = self.real(path)?;
        self.check_root(&real, &self.write_roots, "files.write_roots")?;
        if real.is_file() && !overwrite {
            let shown = real.display();
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("file {shown} exists already; choose another, or add OPTIONS (overwrite 'true')"),
            ));
        }
        Ok(())
    }

    /// The path that is meant: absolute, its existing part without links.
    fn real(&self, path: &Path) -> Result<PathBuf> {
        let shown = path.display();
        let absolute = std::path::absolute(path).map_err(|e| Error::invalid(format!("'{shown}' is no path: {e}")))?;
        if absolute.components().any(|part| part == Component::ParentDir) {
            return Err(Error::invalid(format!("path {shown} has '..' in it; write it without")));
        }
        let found = absolute.ancestors().find_map(|folder| Some((folder.canonicalize().ok()?, folder)));
        let (existing, folder) = found.ok_or_else(|| Error::invalid(format!("path {shown} has no folder")))?;
        let rest = absolute.strip_prefix(folder).unwrap_or(Path::new(""));
        // A link to nothing would be followed when the file is made.
        if let Some(first) = rest.components().next()
            && existing.join(first).is_symlink()
        {
            return Err(Error::invalid(format!("path {shown} leads over a link to nothing")));
        }
        let real = if rest.as_os_str().is_empty() { existing } else { existing.join(rest) };
        let own = real.ancestors().filter_map(identity).find_map(|folder| self.protected_as(folder));
        match own {
            Some(own) => Err(belongs_to_the_server(&real, own)),
            None => Ok(real),
        }
    }

    fn protected_as(&self, wanted: (u64, u64)) -> Option<&PathBuf> {
        self.protected.iter().find(|own| identity(own) == Some(wanted))
    }

    fn check_root(&self, real: &Path, roots: &[PathBuf], setting: &str) -> Result<()> {
        let below = |root: &PathBuf| root.canonicalize().is_ok_and(|root| real.starts_with(root));
        if roots.iter().any(below) {
            return Ok(());
        }
        let shown = real.display();
        Err(Error::new(
            ErrorKind::PermissionDenied,
            format!("path {shown} lies below none of the folders of the setting {setting}"),
        ))
    }
}

fn belongs_to_the_server(real: &Path, own: &Path) -> Error {
    let (shown, own) = (real.display(), own.display());
    Error::new(ErrorKind::PermissionDenied, format!("path {shown} reaches {own}, which belongs to the server itself"))
}

/// Device and inode, links followed.
fn identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The folder in which a pattern is looked for.
fn without_pattern(path: &Path) -> PathBuf {
    let is_pattern = |part: &Component<'_>| part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    path.components().take_while(|part| !is_pattern(part)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kind(result: Result<()>) -> ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn no_name_of_the_servers_folders_passes() {
        let top = tempfile::tempdir().unwrap();
        let data = top.path().join("data");
        std::fs::create_dir_all(data.join("ssd")).unwrap();
        std::fs::write(data.join("catalog.redb"), "x").unwrap();
        std::os::unix::fs::symlink(&data, top.path().join("link")).unwrap();
        std::os::unix::fs::symlink(data.join("new"), top.path().join("dangling")).unwrap();
        let access = FileAccess::open(vec![data.clone()]);
        for path in
            ["data/catalog.redb", "data/new.parquet", "data/ssd/deep/new", "link/catalog.redb", "link/new", "data"]
        {
            assert_eq!(kind(access.check_write(&top.path().join(path), true)), ErrorKind::PermissionDenied, "{path}");
            assert_eq!(kind(access.check_read(&top.path().join(path))), ErrorKind::PermissionDenied, "{path}");
        }
        for path in ["other/../data/x", "dangling"] {
            assert_eq!(kind(access.check_write(&top.path().join(path), true)), ErrorKind::InvalidArgument, "{path}");
        }
        for pattern in ["*/*.parquet", "", "data*/x"] {
            assert_eq!(kind(access.check_read(&top.path().join(pattern))), ErrorKind::PermissionDenied, "{pattern}");
        }
        access.check_write(&top.path().join("elsewhere/new.parquet"), false).unwrap();
    }

    #[test]
    fn files_are_replaced_only_when_told_and_roots_are_kept() {
        let top = tempfile::tempdir().unwrap();
        let (inside, outside) = (top.path().join("in"), top.path().join("out"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::fs::write(inside.join("a"), "x").unwrap();
        let roots = vec![inside.clone()];
        let access = FileAccess { read_roots: roots.clone(), write_roots: roots, protected: Vec::new() };
        assert_eq!(kind(access.check_write(&inside.join("a"), false)), ErrorKind::AlreadyExists);
        access.check_write(&inside.join("a"), true).unwrap();
        access.check_read(&inside.join("a")).unwrap();
        for path in [outside.join("b"), inside.join("link/b"), PathBuf::from("/etc/passwd")] {
            assert_eq!(kind(access.check_write(&path, true)), ErrorKind::PermissionDenied);
            assert_eq!(kind(access.check_read(&path)), ErrorKind::PermissionDenied);
        }
    }
}
