//! Errors of the crate, and the one place where engine errors become gRPC codes.
//!
//! A message reaches the client as the engine wrote it, never as a debug dump. It travels in the trailers, whose size
//! clients limit (8 KiB in several stacks), so it is cut there.

use arrow::error::ArrowError;
use tonic::{Code, Status};

use crate::engine::{EngineError, ErrorKind};

/// Longest message sent to a client, in bytes; percent-encoding may triple it.
const MAX_MESSAGE_BYTES: usize = 2048;

/// Reasons for which the service ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transport failed.
    #[error("the Flight SQL listener failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The listener's address could not be read.
    #[error("the Flight SQL listener has no address: {0}")]
    Listener(#[from] std::io::Error),
}

/// The gRPC code of a kind of errors.
fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::Unimplemented => Code::Unimplemented,
        ErrorKind::ResourceExhausted => Code::ResourceExhausted,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::PermissionDenied => Code::PermissionDenied,
        ErrorKind::Cancelled => Code::Cancelled,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::Aborted => Code::Aborted,
        ErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
        ErrorKind::DataLoss => Code::DataLoss,
        ErrorKind::Internal => Code::Internal,
    }
}

impl From<EngineError> for Status {
    fn from(error: EngineError) -> Self {
        Status::new(code(error.kind), shorten(error.message))
    }
}

/// Converts a status to an engine error, for streams that come from a client.
pub(crate) fn from_status(status: &Status) -> EngineError {
    let kind = match status.code() {
        Code::ResourceExhausted | Code::OutOfRange => ErrorKind::ResourceExhausted,
        Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Code::Cancelled | Code::Aborted | Code::Unavailable | Code::Unknown | Code::Internal => ErrorKind::Cancelled,
        _ => ErrorKind::InvalidArgument,
    };
    EngineError::new(kind, format!("the client's stream ended early: {}", status.message()))
}

/// A failure to encode the engine's result: a defect of the server.
pub(crate) fn encoding(error: ArrowError) -> Status {
    Status::internal(shorten(format!("the result cannot be encoded: {error}")))
}

/// A request that cannot be understood.
pub(crate) fn malformed(what: &str, error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(shorten(format!("malformed {what}: {error}")))
}

fn shorten(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let end = (0..=MAX_MESSAGE_BYTES).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
        message.truncate(end);
        message.push_str(" ...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let status = Status::from(EngineError::new(ErrorKind::NotFound, "ä".repeat(MAX_MESSAGE_BYTES)));
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().len() <= MAX_MESSAGE_BYTES + 4);
        assert!(status.message().ends_with("ä ..."));
    }
}
