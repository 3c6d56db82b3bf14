//! The lines of a log, the newest first, while others are appended.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use super::file::LogFile;

/// Bytes that are read at once.
const BLOCK_BYTES: u64 = 1 << 20;

/// The lines of a log, the newest first, without their ends. Holds one block of a file at a time, however large the files are.
#[derive(Debug)]
pub struct NewestFirst {
    /// Files that are still to be read, the newest first.
    files: std::vec::IntoIter<File>,
    /// The file that is read, from its end to its beginning.
    open: Option<OpenFile>,
    /// What was read and not given out. It ends with a whole line; the first one may begin in what is not read yet.
    text: Vec<u8>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Bytes at its beginning that are not read yet.
    unread: u64,
}

impl OpenFile {
    fn new(file: File) -> io::Result<Self> {
        let unread = file.metadata()?.len();
        Ok(Self { file, unread })
    }

    /// Reads the last block of what is not read yet. It is shorter where a line was taken back that could not be written whole.
    fn read_block(&mut self) -> io::Result<Vec<u8>> {
        let size = self.unread.min(BLOCK_BYTES);
        self.unread -= size;
        self.file.seek(SeekFrom::Start(self.unread))?;
        let mut block = Vec::new();
        self.file.by_ref().take(size).read_to_end(&mut block)?;
        Ok(block)
    }
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
        Ok(NewestFirst { files: files.into_iter(), open: None, text: Vec::new() })
    }
}

impl NewestFirst {
    /// Takes the last line of the text, if all of it was read.
    fn pop_line(&mut self) -> Option<Vec<u8>> {
        let end = self.text.len().checked_sub(1)?;
        let begin = match self.text.get(..end)?.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if self.has_unread() => return None,
            None => 0,
        };
        let line = self.text.get(begin..end)?.to_vec();
        self.text.truncate(begin);
        Some(line)
    }

    fn has_unread(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.unread > 0)
    }

    /// Reads one more block of the file, or opens the next one. False when there is none.
    fn read_more(&mut self) -> io::Result<bool> {
        if let Some(open) = self.open.as_mut().filter(|open| open.unread > 0) {
            let mut block = open.read_block()?;
            if self.text.is_empty() {
                // A line that is being written, or was cut, has no end.
                let whole = block.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                block.truncate(whole);
            }
            block.append(&mut self.text);
            self.text = block;
            return Ok(true);
        }
        let Some(file) = self.files.next() else { return Ok(false) };
        self.open = Some(OpenFile::new(file)?);
        Ok(true)
    }
}

impl Iterator for NewestFirst {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(line) = self.pop_line() {
                return Some(Ok(line));
            }
            match self.read_more() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    // Goes on with the next file.
                    (self.open, self.text) = (None, Vec::new());
                    return Some(Err(error));
                }
            }
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
    fn lines_may_lie_in_several_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile { path: dir.path().join("log"), max_bytes: 1 << 30, keep: 1, keep_for: None };
        let block = usize::try_from(BLOCK_BYTES).unwrap();
        // The last one fills a block with its end, and so does the one behind it, which was cut.
        let sizes = [7, 2 * block + 5, 0, 3, block - 1];
        let expected: Vec<String> = sizes.iter().map(|size| "x".repeat(*size)).collect();
        fs::write(&log.path, expected.join("\n") + "\n" + &"y".repeat(block)).unwrap();
        let found = lines(&log);
        assert!(found.iter().eq(expected.iter().rev()), "{:?}", found.iter().map(String::len).collect::<Vec<_>>());
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
