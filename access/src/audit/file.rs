//! A file that is rotated by its size: `audit.log` becomes `audit.log.1`, which becomes `audit.log.2`, up to a number that is kept.
//!
//! Only its owner may read it. It is opened to append, and opened anew where another file, or none, lies at its path: `logrotate`
//! may move it away. A write that fails leaves no half line, as far as the disk lets.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The place of a trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrailFile {
    /// Its path.
    pub path: PathBuf,
    /// Bytes at which it is rotated.
    pub max_bytes: u64,
    /// Rotated files that are kept.
    pub keep: u32,
}

impl TrailFile {
    /// The path of a rotated file; 1 is the newest.
    fn rotated(&self, number: u32) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(format!(".{number}"));
        path.into()
    }

    /// The paths of the file and of all rotated ones.
    pub fn paths(&self) -> Vec<PathBuf> {
        let rotated = (1..=self.keep).map(|number| self.rotated(number));
        std::iter::once(self.path.clone()).chain(rotated).collect()
    }

    fn rotate(&self) -> io::Result<()> {
        if self.keep == 0 {
            return fs::remove_file(&self.path);
        }
        for number in (1..self.keep).rev() {
            match fs::rename(self.rotated(number), self.rotated(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.rotated(1))
    }
}

/// A file that is rotated by its size.
#[derive(Debug)]
pub(super) struct RotatingFile {
    place: TrailFile,
    /// `None` after an error.
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    bytes: u64,
    /// Whether its last line was cut when the machine stopped.
    is_cut: bool,
    /// Device and number, which tell it from another file at its path.
    device: u64,
    inode: u64,
}

impl OpenFile {
    fn new(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let about = file.metadata()?;
        let bytes = about.len();
        let mut last = [b'\n'];
        let is_cut = bytes > 0 && file.read_at(&mut last, bytes - 1)? == 1 && last != [b'\n'];
        Ok(Self { file, bytes, is_cut, device: about.dev(), inode: about.ino() })
    }

    /// Appends whole lines, all or none of them. Only here a line that was cut is ended: a full disk lets the server start.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let end: &[u8] = if self.is_cut { b"\n" } else { b"" };
        if let Err(error) = self.file.write_all(end).and_then(|()| self.file.write_all(lines)) {
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += (end.len() + lines.len()) as u64;
        self.is_cut = false;
        Ok(())
    }

    fn lies_at(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|about| about.dev() == self.device && about.ino() == self.inode)
    }
}

impl RotatingFile {
    /// Opens the file, and makes it where there is none.
    pub(super) fn open(place: TrailFile) -> io::Result<Self> {
        let open = Some(OpenFile::new(&place.path)?);
        Ok(Self { place, open })
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.place.path
    }

    /// Bytes at which it is rotated.
    pub(super) fn max_bytes(&self) -> u64 {
        self.place.max_bytes
    }

    /// Appends whole lines, all or none of them.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let path = &self.place.path;
        let mut open = match self.open.take() {
            Some(open) if open.lies_at(path) => open,
            _ => OpenFile::new(path)?,
        };
        let more = lines.len() as u64;
        if open.bytes > 0 && open.bytes + more > self.place.max_bytes {
            self.place.rotate()?;
            open = OpenFile::new(path)?;
        }
        open.append(lines)?;
        self.open = Some(open);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn place(dir: &Path, keep: u32) -> TrailFile {
        TrailFile { path: dir.join("audit.log"), max_bytes: 20, keep }
    }

    fn texts(place: &TrailFile) -> Vec<Option<String>> {
        place.paths().iter().map(|path| fs::read_to_string(path).ok()).collect()
    }

    #[test]
    fn a_full_file_is_rotated_and_few_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), 2);
        let mut file = RotatingFile::open(place.clone()).unwrap();
        for number in 0..9 {
            file.append(format!("line {number:03}\n").as_bytes()).unwrap();
        }
        let two = |first, second| Some(format!("line {first:03}\nline {second:03}\n"));
        assert_eq!(texts(&place), [Some("line 008\n".to_owned()), two(6, 7), two(4, 5)]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "older ones are gone");
        let mode = fs::metadata(&place.path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Goes on after a restart, behind a line that was cut.
        fs::write(&place.path, "half").unwrap();
        RotatingFile::open(place.clone()).unwrap().append(b"whole\n").unwrap();
        assert_eq!(texts(&place)[0].as_deref(), Some("half\nwhole\n"));
    }

    #[test]
    fn without_rotated_files_the_file_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), 0);
        let mut file = RotatingFile::open(place.clone()).unwrap();
        for line in ["twelve byte\n", "other twelve\n"] {
            file.append(line.as_bytes()).unwrap();
        }
        assert_eq!(texts(&place), [Some("other twelve\n".to_owned())]);
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), 2);
        let mut file = RotatingFile::open(place.clone()).unwrap();
        file.append(b"one\n").unwrap();
        fs::rename(&place.path, dir.path().join("moved")).unwrap();
        file.append(b"two\n").unwrap();
        assert_eq!(texts(&place)[0].as_deref(), Some("two\n"));
        assert_eq!(fs::read_to_string(dir.path().join("moved")).unwrap(), "one\n");
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_until_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let place = place(&folder, 1);
        let mut file = RotatingFile::open(place.clone()).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(file.append(b"one\n").is_err() && file.append(b"one\n").is_err());
        fs::create_dir(&folder).unwrap();
        file.append(b"one\n").unwrap();
        assert_eq!(texts(&place)[0].as_deref(), Some("one\n"));
        assert!(RotatingFile::open(TrailFile { path: dir.path().join("none/audit.log"), ..place }).is_err());
    }
}
