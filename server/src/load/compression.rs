//! Files that are compressed as a whole: decompressed while they are read.

use std::io::{self, Read};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// `gzip`; several members one behind the other are one file.
    Gzip,
    /// `zstd`; several frames one behind the other are one file.
    Zstd,
    /// `bzip2`; several streams one behind the other are one file.
    Bzip2,
}

impl Compression {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Gzip, Self::Zstd, Self::Bzip2];

    /// The last ending of a compressed file's name.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Gzip => "gz",
            Self::Zstd => "zst",
            Self::Bzip2 => "bz2",
        }
    }

    /// The decompressed bytes.
    ///
    /// # Errors
    /// When the decoder cannot be made.
    pub fn reader(self, bytes: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(bytes)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::new(bytes)?),
            Self::Bzip2 => Box::new(MultiBzDecoder::new(bytes)),
        })
    }
}
