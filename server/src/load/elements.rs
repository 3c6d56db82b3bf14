//! The objects of a JSON file one after the other, as Arrow reads them: without the brackets and the commas of a list
//! around them.
//!
//! A file whose first character is no bracket passes as it is, line breaks within objects included.

use std::io::{Error, ErrorKind, Read, Result};

/// A reader of the elements of a list.
#[derive(Debug)]
pub struct Elements<R> {
    inner: R,
    place: Place,
    /// Open brackets within an element.
    depth: u32,
    quotes: Quotes,
}

/// Where the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    /// In a file without a list around it.
    Plain,
    BeforeFirst,
    BeforeNext,
    Within,
    Behind,
    End,
}

/// Whether the next byte within an element is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quotes {
    Outside,
    Inside,
    /// Behind a backslash.
    Escaped,
}

impl<R: Read> Elements<R> {
    /// The elements of the list in `inner`, or its objects where there is no list.
    pub fn new(inner: R) -> Self {
        Self { inner, place: Place::Start, depth: 0, quotes: Quotes::Outside }
    }

    /// Replaces a byte by what stands for it.
    fn pass(&mut self, byte: u8) -> std::result::Result<u8, &'static str> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match (self.place, byte) {
            (Place::Plain, _) => {}
            (Place::Within, _) => self.pass_within(byte),
            (_, _) if is_space => {}
            // Programs on Windows write a byte order mark.
            (Place::Start, 0xef | 0xbb | 0xbf) => return Ok(b' '),
            (Place::Start, b'[') => return Ok(self.go_to(Place::BeforeFirst, b' ')),
            (Place::Start, _) => self.place = Place::Plain,
            (Place::BeforeFirst | Place::BeforeNext, b'{') => {
                self.place = Place::Within;
                self.depth = 1;
            }
            (Place::BeforeFirst | Place::Behind, b']') => return Ok(self.go_to(Place::End, b' ')),
            (Place::BeforeFirst | Place::BeforeNext, _) => return Err("an element of its list is no object"),
            (Place::Behind, b',') => return Ok(self.go_to(Place::BeforeNext, b'\n')),
            (Place::Behind, _) => return Err("two elements of its list have no comma between them"),
            (Place::End, _) => return Err("there is more behind the end of its list"),
        }
        Ok(byte)
    }

    fn go_to(&mut self, place: Place, byte: u8) -> u8 {
        self.place = place;
        byte
    }

    fn pass_within(&mut self, byte: u8) {
        self.quotes = match (self.quotes, byte) {
            (Quotes::Inside, b'\\') => Quotes::Escaped,
            (Quotes::Inside, b'"') => Quotes::Outside,
            (Quotes::Escaped | Quotes::Inside, _) => Quotes::Inside,
            (Quotes::Outside, b'"') => Quotes::Inside,
            (Quotes::Outside, _) => Quotes::Outside,
        };
        if self.quotes != Quotes::Outside {
            return;
        }
        match byte {
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        if self.depth == 0 {
            self.place = Place::Behind;
        }
    }
}

impl<R: Read> Read for Elements<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && !buffer.is_empty() && !matches!(self.place, Place::Start | Place::Plain | Place::End) {
            return Err(Error::new(ErrorKind::UnexpectedEof, "its list has no end"));
        }
        if self.place != Place::Plain {
            for byte in buffer.iter_mut().take(read) {
                *byte = self.pass(*byte).map_err(|why| Error::new(ErrorKind::InvalidData, why))?;
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What is read in parts of `step` bytes.
    fn read(text: &str, step: usize) -> Result<String> {
        let mut elements = Elements::new(text.as_bytes());
        let mut all = Vec::new();
        let mut part = vec![0; step];
        loop {
            let read = elements.read(&mut part)?;
            if read == 0 {
                return Ok(String::from_utf8(all).unwrap());
            }
            all.extend_from_slice(&part[..read]);
        }
    }

    #[test]
    fn lists_become_objects_one_after_the_other() {
        for (text, expected) in [
            ("", ""),
            ("{\"a\":1}\n{\"a\":2}", "{\"a\":1}\n{\"a\":2}"),
            (" [ ] \n", "     \n"),
            ("[{\"a\":1},{\"a\":2}]", " {\"a\":1}\n{\"a\":2} "),
            (
                "[\n {\"a\": [1, {\"b\": \"],[\"}],\n  \"c\": \"\\\\\\\"]\"} ,\n {}\n]\n",
                " \n {\"a\": [1, {\"b\": \"],[\"}],\n  \"c\": \"\\\\\\\"]\"} \n\n {}\n \n",
            ),
        ] {
            for step in [1, 2, 7, 100] {
                assert_eq!(read(text, step).unwrap(), expected, "{text}");
            }
        }
        assert_eq!(read("\u{feff}[{}]", 2).unwrap(), "    {} ");
    }

    #[test]
    fn lists_that_are_none_are_refused() {
        for (text, words) in [
            ("[1, 2]", "no object"),
            ("[{},]", "no object"),
            ("[{} {}]", "no comma"),
            ("[{}] {}", "behind the end"),
            ("[{}", "no end"),
            ("[{\"a\": \"]\"", "no end"),
            ("[", "no end"),
        ] {
            assert!(read(text, 3).unwrap_err().to_string().contains(words), "{text}");
        }
    }
}
