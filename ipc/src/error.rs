//! The errors of reading messages and files from outside.

use arrow::error::ArrowError;

/// The result type of this crate.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a message or a file is not read; the text is for its sender.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is damaged, or not what it should be.
    #[error("{0}")]
    Malformed(String),
    /// It is larger than the limit or the available memory.
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

/// Makes the error of damaged input.
pub(crate) fn malformed(what: impl Into<String>) -> Error {
    Error::Malformed(what.into())
}
