//! The lines of a log, the newest first, while others are appended.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use super::file::LogFile;

/// The lines of a log, the newest first, without their ends. Holds the text of one file at a time.
#[derive(Debug)]
pub struct NewestFirst {
    /// Files that are still to be read, the newest first.
    files: std::vec::IntoIter<File>,
    /// What is left of the file that is read, whole lines.
    text: Vec<u8>,
}

impl LogFile {
    /// The lines that the log has now. All files are opened at once, the newest first: one that is rotated meanwhile is found again
    /// under its next name, and not read twice.
    ///
    /// # Errors
    /// When a file is there and cannot be opened.
    pub fn newest_first(&self) -> io::Result<NewestFirst> {
        let mut known = HashSet::new();
        let mut files = Vec::new();
        for path in self.paths() {
            let file = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let about = file.metadata()?;
            if known.insert((about.dev(), about.ino())) {
                files.push(file);
            }
        }
        Ok(NewestFirst { files: files.into_iter(), text: Vec::new() })
    }
}

impl NewestFirst {
    /// Takes the last line of the text.
    fn pop_line(&mut self) -> Option<Vec<u8>> {
        let end = self.text.len().checked_sub(1)?;
        let begin = self.text.get(..end)?.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line = self.text.get(begin..end)?.to_vec();
        self.text.truncate(begin);
        Some(line)
    }
}

impl Iterator for NewestFirst {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(line) = self.pop_line() {
                return Some(Ok(line));
            }
            let mut file = self.files.next()?;
            if let Err(error) = file.read_to_end(&mut self.text) {
                self.text.clear();
                return Some(Err(error));
            }
            // A line that is being written, or was cut, has no end.
            let whole = self.text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            self.text.truncate(whole);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::super::RotatingFile;
    use super::*;

    fn lines(log: &LogFile) -> Vec<String> {
        log.newest_first().unwrap().map(|line| String::from_utf8(line.unwrap()).unwrap()).collect()
    }

    #[test]
    fn lines_of_all_files_come_the_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile { path: dir.path().join("log"), max_bytes: 20, keep: 2, keep_for: None };
        assert!(lines(&log).is_empty());
        let mut file = RotatingFile::open(log.clone(), 0).unwrap();
        for number in 0..9 {
            file.append(format!("line {number:03}\n").as_bytes(), 0).unwrap();
        }
        assert_eq!(lines(&log), ["line 008", "line 007", "line 006", "line 005", "line 004"]);
        // The end of a line that is being written, or of one that was cut, is left out.
        fs::write(&log.path, "line 008\n\nline 0").unwrap();
        assert_eq!(lines(&log), ["", "line 008", "line 007", "line 006", "line 005", "line 004"]);
    }

    #[test]
    fn a_rotation_while_a_log_is_read_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile { path: dir.path().join("log"), max_bytes: 20, keep: 3, keep_for: None };
        let mut file = RotatingFile::open(log.clone(), 0).unwrap();
        for number in 0..5 {
            file.append(format!("line {number:03}\n").as_bytes(), 0).unwrap();
        }
        let mut reading = log.newest_first().unwrap();
        for number in 5..9 {
            file.append(format!("line {number:03}\n").as_bytes(), 0).unwrap();
        }
        // The newest file was open, and gets one more line before it is full.
        let found: Vec<_> = reading.by_ref().map(|line| String::from_utf8(line.unwrap()).unwrap()).collect();
        assert_eq!(found, ["line 005", "line 004", "line 003", "line 002", "line 001", "line 000"]);
        // As if it had been rotated between two files that were opened.
        fs::hard_link(dir.path().join("log.1"), dir.path().join("log.3.new")).unwrap();
        fs::rename(dir.path().join("log.3.new"), dir.path().join("log.3")).unwrap();
        assert_eq!(lines(&log), ["line 008", "line 007", "line 006", "line 005", "line 004"]);
    }
}
