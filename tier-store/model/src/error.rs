//! The error type of the tier store, which names the object, the place and the cause, and the kinds of errors by what a
//! caller can do.

use std::path::PathBuf;

/// Result of every fallible operation of the tier store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error, by what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong: syntax, types, unknown columns.
    InvalidArgument,
    /// A named thing does not exist.
    NotFound,
    /// A thing of that name exists already, or a row with that key.
    AlreadyExists,
    /// Valid, but not supported.
    Unimplemented,
    /// Memory, disk, slots or a limit are used up; trying again later may help.
    ResourceExhausted,
    /// No valid credentials.
    Unauthenticated,
    /// Valid credentials that lack the required permission.
    PermissionDenied,
    /// Ended by the user or an administrator.
    Cancelled,
    /// The server is starting, stopping or overloaded; try again.
    Unavailable,
    /// The state of the system does not allow it.
    FailedPrecondition,
    /// Another transaction committed a conflicting change first; the caller may try again.
    Aborted,
    /// A time limit passed.
    DeadlineExceeded,
    /// Stored data is damaged.
    DataLoss,
    /// A defect of the server.
    Internal,
}

/// Why an operation of the tier store failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file or device.
    #[error("cannot {action} {}: {message}", path.display())]
    Io {
        /// The attempted operation, as a verb ("read", "create").
        action: &'static str,
        /// The file, folder or device.
        path: PathBuf,
        /// `errno` if there was one.
        errno: Option<i32>,
        /// The operating system's message.
        message: String,
    },
    /// Stored bytes differ from the written ones.
    #[error("{} is damaged: {what}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The chunk, column and offset, and what is wrong there.
        what: String,
    },
    /// A file or catalog of a format this build does not know.
    #[error("{} has format version {found}; this build reads version {supported}. Use a matching release, or export and load again", path.display())]
    UnsupportedFormat {
        /// The file.
        path: PathBuf,
        /// Version found.
        found: u32,
        /// Version this build reads.
        supported: u32,
    },
    /// Nothing of that name exists.
    #[error("{kind} '{name}' does not exist{}", hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    NotFound {
        /// "table", "tier", "schema", ...
        kind: &'static str,
        /// The name as given, and nothing else: it is shown in quotes.
        name: String,
        /// Names that exist instead.
        hint: Option<String>,
    },
    /// The name is taken.
    #[error("{kind} '{name}' already exists")]
    AlreadyExists {
        /// "table", "view", ...
        kind: &'static str,
        /// The name as given.
        name: String,
    },
    /// Two rows of a table that enforces its primary key have the same one.
    #[error("duplicate key in table '{table}': {key} {what}")]
    DuplicateKey {
        /// The table.
        table: String,
        /// Columns and values.
        key: String,
        /// Place of the other row, and what to do.
        what: &'static str,
    },
    /// Rows do not fit the table.
    #[error("rows do not fit table '{table}': {what}")]
    SchemaMismatch {
        /// The table.
        table: String,
        /// Column, expected and found type.
        what: String,
    },
    /// A byte limit would be exceeded.
    #[error("the budget of {account} is exhausted: {asked_bytes} bytes needed, {used_bytes} of {limit_bytes} in use")]
    BudgetExceeded {
        /// The tier or memory account.
        account: String,
        /// Bytes needed.
        asked_bytes: u64,
        /// Bytes in use.
        used_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Another transaction changed the same rows, or the table itself, first; nothing of this one was stored.
    #[error("table '{table}' was changed concurrently: {what}; run the transaction again")]
    Conflict {
        /// The table.
        table: String,
        /// The change that the other transaction made.
        what: &'static str,
    },
    /// Another process has the data directory open.
    #[error("{} is in use by another server (process {holder}); stop it or choose another --data-dir", path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
        /// Process id of the holder, or "unknown".
        holder: String,
    },
    /// The catalog refused or failed.
    #[error("catalog: {0}")]
    Catalog(String),
    /// Nothing can be stored at present; reads go on.
    #[error("nothing can be stored at present: {what}")]
    ReadOnly {
        /// `errno` of the disk, if its answer was the cause.
        errno: Option<i32>,
        /// The cause, and what to do.
        what: String,
    },
    /// An invalid request; the message says what to do instead.
    #[error("{0}")]
    Invalid(String),
    /// A feature that Terrace does not have.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The operation was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Arrow refused an operation.
    #[error("arrow: {0}")]
    Arrow(String),
}

impl Error {
    /// [`Error::NotFound`] without a hint.
    pub fn not_found(kind: &'static str, name: impl Into<String>) -> Self {
        Self::NotFound { kind, name: name.into(), hint: None }
    }

    /// [`Error::NotFound`] for a tier; `tiers` are the names of all tiers, for the hint.
    pub fn unknown_tier(name: impl Into<String>, tiers: &[String]) -> Self {
        let hint = Some(format!("the tiers are {}", tiers.join(", ")));
        Self::NotFound { kind: "tier", name: name.into(), hint }
    }

    /// Wraps an I/O error with what was attempted and where.
    pub fn io(action: &'static str, path: impl Into<PathBuf>, source: &std::io::Error) -> Self {
        Self::Io { action, path: path.into(), errno: source.raw_os_error(), message: source.to_string() }
    }

    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Corrupt { .. } => ErrorKind::DataLoss,
            Self::UnsupportedFormat { .. } | Self::Locked { .. } => ErrorKind::FailedPrecondition,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::AlreadyExists { .. } | Self::DuplicateKey { .. } => ErrorKind::AlreadyExists,
            Self::Conflict { .. } => ErrorKind::Aborted,
            Self::SchemaMismatch { .. } | Self::Invalid(_) => ErrorKind::InvalidArgument,
            Self::BudgetExceeded { .. } => ErrorKind::ResourceExhausted,
            Self::Io { errno: Some(libc::ENOSPC | libc::EDQUOT), .. }
            | Self::ReadOnly { errno: Some(libc::ENOSPC | libc::EDQUOT), .. } => ErrorKind::ResourceExhausted,
            Self::ReadOnly { .. } => ErrorKind::Unavailable,
            Self::Unsupported(_) => ErrorKind::Unimplemented,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Io { .. } | Self::Catalog(_) | Self::Arrow(_) => ErrorKind::Internal,
        }
    }

    /// True when a device does not work: it fails, is full, is disconnected, or does not answer. Errors of one file
    /// (missing, damaged), of the process (no memory, too many open files) and of the request are not faults of a
    /// device.
    pub fn is_device_fault(&self) -> bool {
        /// `errno` values of faulty block devices, of file systems on them and of remote file systems.
        const FAULTS: [i32; 15] = [
            libc::EIO,
            libc::ENXIO,
            libc::ENODEV,
            libc::ENOSPC,
            libc::EDQUOT,
            libc::EROFS,
            libc::ETIMEDOUT,
            libc::ENOLINK,
            libc::EREMOTEIO,
            libc::EREMCHG,
            libc::EBADE,
            libc::ENODATA,
            libc::EILSEQ,
            libc::ESTALE,
            libc::ENOTCONN,
        ];
        matches!(self, Self::Io { errno: Some(errno), .. } if FAULTS.contains(errno))
    }
}

impl From<arrow::error::ArrowError> for Error {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::Arrow(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_the_name_and_nothing_else() {
        let tiers = ["dram".to_owned(), "ssd".to_owned()];
        let error = Error::unknown_tier("gpu", &tiers).to_string();
        assert_eq!(error, "tier 'gpu' does not exist; the tiers are dram, ssd");
        assert_eq!(Error::not_found("table", "t").to_string(), "table 't' does not exist");
    }
}
