//! Files that are compressed as a whole: decompressed while they are read.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// `gzip`; several members one behind the other are one file.
    Gzip,
    /// `zstd`; several frames one behind the other are one file.
    Zstd,
}

impl Compression {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Gzip, Self::Zstd];

    /// The last ending of a compressed file's name.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Gzip => "gz",
            Self::Zstd => "zst",
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
        })
    }
}
