//! The bytes of a source: of a file, or of standard input.
//!
//! A file is opened as often as wanted. Standard input is read once: its first bytes are kept, so that they can decide the
//! types of the columns before all of it is read.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::compression::Compression;
use crate::error::{Error, Result};

/// Bytes of standard input that decide the types of columns, at most; decompressed as many again.
const SAMPLE_BYTES: u64 = 8 << 20;

/// A reader of bytes.
pub type Reader = Box<dyn Read + Send>;

/// Where bytes come from.
#[derive(Debug, Clone)]
pub enum Input {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin(Arc<Stdin>),
}

/// Standard input, and how far it was read.
#[derive(Debug, Default)]
pub struct Stdin(Mutex<Progress>);

#[derive(Debug, Default)]
enum Progress {
    #[default]
    Nothing,
    /// These are its first bytes.
    Begun(Bytes),
    All,
}

/// The start of an input.
pub struct Sample {
    /// Its bytes, decompressed.
    pub reader: Reader,
    /// True where they end within the input, perhaps within a row.
    pub is_cut: bool,
}

impl Input {
    /// Its name in messages.
    pub fn name(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Stdin(_) => PathBuf::from("standard input"),
        }
    }

    /// All bytes, decompressed.
    ///
    /// # Errors
    /// For a file that cannot be opened, and for standard input that was read already.
    pub fn open(&self, compression: Option<Compression>) -> Result<Reader> {
        let bytes: Reader = match self {
            Self::File(path) => {
                Box::new(File::open(path).map_err(|e| Error::file(path, format!("cannot open it: {e}")))?)
            }
            Self::Stdin(stdin) => stdin.rest()?,
        };
        self.plain(bytes, compression)
    }

    /// The bytes that decide the types of columns: those of a file, the first ones of standard input.
    ///
    /// # Errors
    /// Like [`Self::open`].
    pub fn sample(&self, compression: Option<Compression>) -> Result<Sample> {
        let Self::Stdin(stdin) = self else {
            return Ok(Sample { reader: self.open(compression)?, is_cut: false });
        };
        let start = stdin.start()?;
        let is_part = start.len() as u64 >= SAMPLE_BYTES;
        let mut plain = Vec::new();
        let read = self.plain(Box::new(Cursor::new(start)), compression)?.take(SAMPLE_BYTES).read_to_end(&mut plain);
        // A part of a compressed file has no end.
        if let Err(error) = read
            && !is_part
        {
            return Err(Error::file(self.name(), error));
        }
        let is_cut = is_part || plain.len() as u64 >= SAMPLE_BYTES;
        Ok(Sample { reader: Box::new(Cursor::new(plain)), is_cut })
    }

    fn plain(&self, bytes: Reader, compression: Option<Compression>) -> Result<Reader> {
        match compression {
            None => Ok(bytes),
            Some(compression) => compression.reader(bytes).map_err(|e| Error::file(self.name(), e)),
        }
    }
}

impl Stdin {
    /// The first bytes, which are read once.
    fn start(&self) -> Result<Bytes> {
        let mut progress = self.0.lock();
        let start = match std::mem::replace(&mut *progress, Progress::All) {
            Progress::Nothing => {
                let mut start = Vec::new();
                io::stdin().take(SAMPLE_BYTES).read_to_end(&mut start).map_err(|e| Error::file("standard input", e))?;
                Bytes::from(start)
            }
            Progress::Begun(start) => start,
            Progress::All => return Err(read_already()),
        };
        *progress = Progress::Begun(start.clone());
        Ok(start)
    }

    /// All bytes.
    fn rest(&self) -> Result<Reader> {
        match std::mem::replace(&mut *self.0.lock(), Progress::All) {
            Progress::Nothing => Ok(Box::new(io::stdin())),
            Progress::Begun(start) => Ok(Box::new(Cursor::new(start).chain(io::stdin()))),
            Progress::All => Err(read_already()),
        }
    }
}

fn read_already() -> Error {
    Error::Usage("standard input can be read once only".to_owned())
}
