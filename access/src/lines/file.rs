//! A file that is rotated by its size: `audit.log` becomes `audit.log.1`, which becomes `audit.log.2`, up to a number that is kept.
//! Where lines are kept for a time, it is rotated after an eighth of it, too, and files whose last line is older are removed.
//!
//! Only its owner may read it. It is opened to append, and opened anew where another file, or none, lies at its path: `logrotate`
//! may move it away. A write that fails leaves no half line, as far as the disk lets.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file holds the lines of this part of the time for which they are kept, so that little is kept longer.
const PART_OF_TIME: u32 = 8;

/// The place of a log, and how much of it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// Its path.
    pub path: PathBuf,
    /// Bytes at which it is rotated.
    pub max_bytes: u64,
    /// Rotated files that are kept.
    pub keep: u32,
    /// Time for which lines are kept at least; `None`: as long as there is room.
    pub keep_for: Option<Duration>,
}

impl LogFile {
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

    /// Whether a file that was begun then is to be rotated, whatever its size.
    fn is_aged(&self, begun_us: u64, now_us: u64) -> bool {
        let part_us = self.keep_for.map(|time| micros(time / PART_OF_TIME));
        part_us.is_some_and(|part_us| now_us.saturating_sub(begun_us) >= part_us)
    }

    /// Removes rotated files whose last line is too old.
    fn remove_old(&self, now_us: u64) {
        let Some(keep_us) = self.keep_for.map(micros) else { return };
        for path in (1..=self.keep).map(|number| self.rotated(number)) {
            let written = fs::metadata(&path).and_then(|about| about.modified());
            if written.is_ok_and(|at| now_us.saturating_sub(unix_us(at)) > keep_us) {
                // Tried again the next time.
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn unix_us(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros)
}

/// A file that is rotated by its size.
#[derive(Debug)]
pub(crate) struct RotatingFile {
    place: LogFile,
    /// `None` after an error.
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    bytes: u64,
    /// When its first line was written, in microseconds since the Unix epoch.
    begun_us: u64,
    /// Whether its last line was cut when the machine stopped.
    is_cut: bool,
    /// Device and number, which tell it from another file at its path.
    device: u64,
    inode: u64,
}

impl OpenFile {
    fn new(path: &Path, now_us: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let about = file.metadata()?;
        let bytes = about.len();
        let mut last = [b'\n'];
        let is_cut = bytes > 0 && file.read_at(&mut last, bytes - 1)? == 1 && last != [b'\n'];
        // Not all file systems know when a file was made.
        let made = || about.created().or_else(|_| about.modified()).map_or(now_us, unix_us);
        let begun_us = if bytes == 0 { now_us } else { made() };
        Ok(Self { file, bytes, begun_us, is_cut, device: about.dev(), inode: about.ino() })
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
    pub(crate) fn open(place: LogFile, now_us: u64) -> io::Result<Self> {
        let open = Some(OpenFile::new(&place.path, now_us)?);
        Ok(Self { place, open })
    }

    /// A file that is opened, and made, with the first line: until then it may be impossible.
    pub(crate) fn later(place: LogFile) -> Self {
        Self { place, open: None }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.place.path
    }

    /// Bytes at which it is rotated.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.place.max_bytes
    }

    /// Appends whole lines, all or none of them.
    pub(crate) fn append(&mut self, lines: &[u8], now_us: u64) -> io::Result<()> {
        let mut open = self.take_open(now_us)?;
        let more = lines.len() as u64;
        let is_full = open.bytes + more > self.place.max_bytes || self.place.is_aged(open.begun_us, now_us);
        if open.bytes > 0 && is_full {
            self.place.rotate()?;
            self.place.remove_old(now_us);
            open = OpenFile::new(&self.place.path, now_us)?;
        }
        open.append(lines)?;
        self.open = Some(open);
        Ok(())
    }

    /// Rotates a file that is too old and removes those whose lines all are, while nothing is appended.
    pub(crate) fn tidy(&mut self, now_us: u64) -> io::Result<()> {
        if self.place.keep_for.is_none() || !self.place.path.exists() {
            return Ok(());
        }
        let open = self.take_open(now_us)?;
        if open.bytes > 0 && self.place.is_aged(open.begun_us, now_us) {
            self.place.rotate()?;
        } else {
            self.open = Some(open);
        }
        self.place.remove_old(now_us);
        Ok(())
    }

    /// The open file, or another one where that does not lie at the path any more.
    fn take_open(&mut self, now_us: u64) -> io::Result<OpenFile> {
        let path = &self.place.path;
        match self.open.take() {
            Some(open) if open.lies_at(path) => Ok(open),
            _ => OpenFile::new(path, now_us),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn place(dir: &Path, keep: u32) -> LogFile {
        LogFile { path: dir.join("audit.log"), max_bytes: 20, keep, keep_for: None }
    }

    fn texts(place: &LogFile) -> Vec<Option<String>> {
        place.paths().iter().map(|path| fs::read_to_string(path).ok()).collect()
    }

    #[test]
    fn a_full_file_is_rotated_and_few_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), 2);
        let mut file = RotatingFile::open(place.clone(), 0).unwrap();
        for number in 0..9 {
            file.append(format!("line {number:03}\n").as_bytes(), 0).unwrap();
        }
        let two = |first, second| Some(format!("line {first:03}\nline {second:03}\n"));
        assert_eq!(texts(&place), [Some("line 008\n".to_owned()), two(6, 7), two(4, 5)]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "older ones are gone");
        let mode = fs::metadata(&place.path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Goes on after a restart, behind a line that was cut.
        fs::write(&place.path, "half").unwrap();
        RotatingFile::open(place.clone(), 0).unwrap().append(b"whole\n", 0).unwrap();
        assert_eq!(texts(&place)[0].as_deref(), Some("half\nwhole\n"));
    }

    #[test]
    fn without_rotated_files_the_file_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), 0);
        let mut file = RotatingFile::open(place.clone(), 0).unwrap();
        for line in ["twelve byte\n", "other twelve\n"] {
            file.append(line.as_bytes(), 0).unwrap();
        }
        assert_eq!(texts(&place), [Some("other twelve\n".to_owned())]);
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), 2);
        let mut file = RotatingFile::open(place.clone(), 0).unwrap();
        file.append(b"one\n", 0).unwrap();
        fs::rename(&place.path, dir.path().join("moved")).unwrap();
        file.append(b"two\n", 0).unwrap();
        assert_eq!(texts(&place)[0].as_deref(), Some("two\n"));
        assert_eq!(fs::read_to_string(dir.path().join("moved")).unwrap(), "one\n");
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_until_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let place = place(&folder, 1);
        let mut file = RotatingFile::open(place.clone(), 0).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(file.append(b"one\n", 0).is_err() && file.append(b"one\n", 0).is_err());
        fs::create_dir(&folder).unwrap();
        file.append(b"one\n", 0).unwrap();
        assert_eq!(texts(&place)[0].as_deref(), Some("one\n"));
        assert!(RotatingFile::open(LogFile { path: dir.path().join("none/audit.log"), ..place }, 0).is_err());
    }

    #[test]
    fn lines_that_are_too_old_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let hours = |hours: u64| hours * 3_600_000_000;
        let place =
            LogFile { max_bytes: 1 << 20, keep_for: Some(Duration::from_secs(8 * 3600)), ..place(dir.path(), 9) };
        let mut file = RotatingFile::open(place.clone(), hours(100)).unwrap();
        file.append(b"one\n", hours(100)).unwrap();
        file.append(b"two\n", hours(100) + 1).unwrap();
        assert_eq!(texts(&place)[..2], [Some("one\ntwo\n".to_owned()), None]);
        // An eighth of the time later the next file begins, with a line or without one.
        file.append(b"three\n", hours(101)).unwrap();
        assert_eq!(texts(&place)[..2], [Some("three\n".to_owned()), Some("one\ntwo\n".to_owned())]);
        file.tidy(hours(101) + 1).unwrap();
        file.tidy(hours(102)).unwrap();
        let rotated = [None, Some("three\n".to_owned()), Some("one\ntwo\n".to_owned()), None];
        assert_eq!(texts(&place)[..4], rotated);
        // They were written now, as far as the file system knows.
        let written = fs::metadata(place.rotated(2)).unwrap().modified().unwrap();
        let old = File::options().append(true).open(place.rotated(2)).unwrap();
        old.set_modified(written - Duration::from_secs(9 * 3600)).unwrap();
        let now_us = unix_us(written) + 1;
        file.append(b"four\n", now_us).unwrap();
        file.tidy(now_us).unwrap();
        assert_eq!(texts(&place)[..3], [Some("four\n".to_owned()), Some("three\n".to_owned()), None]);
        assert!(!place.rotated(3).exists());
    }

    #[test]
    fn a_file_may_be_made_with_its_first_line() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(&dir.path().join("folder"), 1);
        let mut file = RotatingFile::later(place.clone());
        file.tidy(0).unwrap();
        assert!(file.append(b"one\n", 0).is_err());
        fs::create_dir(dir.path().join("folder")).unwrap();
        file.append(b"one\n", 0).unwrap();
        assert_eq!(texts(&place)[0].as_deref(), Some("one\n"));
    }
}
