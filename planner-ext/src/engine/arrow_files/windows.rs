//! An object as a file, of which some windows were fetched.
//!
//! Who reads where no window is gets an error, and the place is noted; once that window was fetched and added, the reader
//! begins again. So code that reads files finds the few bytes that it needs of a large object.

use std::io::{Error, Read, Result, Seek, SeekFrom};
use std::ops::Range;

use bytes::Bytes;

/// Bytes that are fetched on each side of a place.
const AROUND_BYTES: u64 = 64 << 10;

/// An object with the windows that were fetched so far.
#[derive(Debug)]
pub(super) struct Windows {
    len: u64,
    at: u64,
    /// Where each begins, and its bytes.
    fetched: Vec<(u64, Bytes)>,
    /// The range of the last read where no window was.
    missing: Option<Range<u64>>,
}

impl Windows {
    /// Most bytes of all windows together.
    pub(super) const MOST_BYTES: u64 = 64 << 20;

    /// An object of `len` bytes without windows.
    pub(super) fn new(len: u64) -> Self {
        Self { len, at: 0, fetched: Vec::new(), missing: None }
    }

    /// The window to fetch before the object is read again; `None`: every read found its bytes.
    pub(super) fn take_missing(&mut self) -> Option<Range<u64>> {
        let missing = self.missing.take()?;
        Some(missing.start.saturating_sub(AROUND_BYTES)..self.len.min(missing.end.saturating_add(AROUND_BYTES)))
    }

    /// Whether there is room for one more window.
    pub(super) fn has_room(&self, window: &Range<u64>) -> bool {
        let held: u64 = self.fetched.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        held.saturating_add(window.end.saturating_sub(window.start)) <= Self::MOST_BYTES
    }

    /// Adds the window that begins at `start`.
    pub(super) fn add(&mut self, start: u64, bytes: Bytes) {
        self.fetched.push((start, bytes));
    }
}

impl Read for Windows {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let wanted = self.len.saturating_sub(self.at).min(buffer.len() as u64);
        if wanted == 0 {
            return Ok(0);
        }
        let found = self.fetched.iter().find_map(|(start, bytes)| {
            let skipped = usize::try_from(self.at.checked_sub(*start)?).ok()?;
            bytes.get(skipped..).filter(|rest| !rest.is_empty())
        });
        let Some(found) = found else {
            self.missing = Some(self.at..self.at + wanted);
            return Err(Error::other("the bytes were not fetched yet"));
        };
        let len = found.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
        for (to, from) in buffer.iter_mut().zip(found.iter().take(len)) {
            *to = *from;
        }
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Windows {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| Error::other("a place before the first byte"))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reader_finds_its_bytes_after_the_windows_that_it_asked_for() {
        let object: Vec<u8> = (0..10 * AROUND_BYTES).map(|at| (at % 251) as u8).collect();
        let mut windows = Windows::new(object.len() as u64);
        let mut requests = 0;
        let mut read = |at: u64, len: usize| loop {
            windows.seek(SeekFrom::Start(at)).unwrap();
            let mut bytes = vec![0; len];
            let answer = windows.read_exact(&mut bytes);
            let Some(missing) = windows.take_missing() else {
                return answer.map(|()| (bytes, requests));
            };
            requests += 1;
            let part = &object[missing.start as usize..missing.end as usize];
            windows.add(missing.start, Bytes::copy_from_slice(part));
        };
        assert_eq!(read(0, 10).unwrap(), (object[..10].to_vec(), 1));
        assert_eq!(read(AROUND_BYTES - 5, 5).unwrap().1, 1, "it is in the first window");
        let end = object.len();
        assert_eq!(read(end as u64 - 10, 10).unwrap(), (object[end - 10..].to_vec(), 2));
        // From one window into what lies behind it.
        let from = AROUND_BYTES as usize;
        assert_eq!(read(AROUND_BYTES, 200_000).unwrap().0, object[from..from + 200_000]);
        assert!(read(end as u64 - 3, 4).is_err(), "the object ends before");
    }

    #[test]
    fn windows_have_a_limit() {
        let mut windows = Windows::new(1 << 40);
        let mut bytes = vec![0; 1 << 20];
        windows.seek(SeekFrom::End(-(1 << 30))).unwrap();
        assert!(windows.read(&mut bytes).is_err());
        let missing = windows.take_missing().unwrap();
        let at = (1 << 40) - (1 << 30);
        assert_eq!(missing, at - AROUND_BYTES..at + (1 << 20) + AROUND_BYTES);
        assert!(windows.has_room(&missing) && windows.take_missing().is_none());
        windows.add(0, Bytes::from(vec![0; Windows::MOST_BYTES as usize]));
        assert!(!windows.has_room(&missing));
        assert!(windows.seek(SeekFrom::Current(i64::MIN)).is_err());
    }
}
