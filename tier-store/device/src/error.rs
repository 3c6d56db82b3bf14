//! Why an operation of a device failed.

use terrace_model::error::ErrorKind;

/// Result of the operations of a device.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation of a device failed. Whoever gets one computes the same on the processor: homes hold all data.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such device, or no driver for it.
    #[error("device '{device}' is not available: {reason}")]
    Unavailable {
        /// Name as asked for.
        device: String,
        /// What is missing.
        reason: String,
    },
    /// The memory of the device is full.
    #[error("device '{device}' has no room for {asked_bytes} bytes; {free_bytes} bytes are free")]
    OutOfMemory {
        /// Name of the device.
        device: String,
        /// Bytes needed.
        asked_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// The driver refused an operation; the next one may succeed.
    #[error("device '{device}' cannot {action}: {message}")]
    Failed {
        /// Name of the device.
        device: String,
        /// The attempted operation, as a verb ("launch").
        action: &'static str,
        /// The driver's message.
        message: String,
    },
    /// The device does not answer any more; what its memory held is gone.
    #[error("device '{device}' is lost: {message}")]
    Lost {
        /// Name of the device.
        device: String,
        /// What was seen first.
        message: String,
    },
    /// A wrong argument.
    #[error("{0}")]
    Invalid(String),
    /// The kernels do not compute this.
    #[error("not supported by the kernels: {0}")]
    Unsupported(String),
}

impl Error {
    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unavailable { .. } | Self::Lost { .. } => ErrorKind::Unavailable,
            Self::OutOfMemory { .. } => ErrorKind::ResourceExhausted,
            Self::Failed { .. } => ErrorKind::Internal,
            Self::Invalid(_) => ErrorKind::InvalidArgument,
            Self::Unsupported(_) => ErrorKind::Unimplemented,
        }
    }
}
