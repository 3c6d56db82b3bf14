//! Why a message or a file from outside is not read.

use arrow::error::ArrowError;

/// Result of this crate.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a message or a file is not read; the text is for whoever sent it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is damaged, or not what it should be.
    #[error("{0}")]
    Malformed(String),
    /// It is larger than it may be, or than the memory there is.
    #[error("{0}")]
    TooLarge(String),
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        match error {
            ArrowError::IoError(_, io) => Self::Io(io),
            other => Self::Malformed(other.to_string()),
        }
    }
}

/// An error about something damaged.
pub(crate) fn malformed(what: impl Into<String>) -> Error {
    Error::Malformed(what.into())
}
