//! Errors of the crate, and the one place where engine errors become gRPC codes.
//!
//! A message reaches the client as the engine wrote it, never as a debug dump. It travels in the trailers, whose size
//! clients limit (8 KiB in several stacks), so it is cut there. Where trying again helps, the status says after which
//! time, as `google.rpc.RetryInfo` in its details.

use std::time::Duration;

use arrow::error::ArrowError;
use arrow_flight::sql::Any;
use prost::Message;
use tonic::{Code, Status};

use crate::{
    engine::{EngineError, ErrorKind},
    proto::{DetailedStatus, RETRY_INFO_URL, RetryInfo},
};

/// Longest message sent to a client, in bytes; percent-encoding may triple it.
const MAX_MESSAGE_BYTES: usize = 2048;
/// The same of a status with details, which repeat the message.
const MAX_DETAILED_MESSAGE_BYTES: usize = 1024;

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
        match error.retry_after {
            Some(delay) => retry_later(code(error.kind), error.message, delay),
            None => Status::new(code(error.kind), shorten(error.message)),
        }
    }
}

/// A refusal of a call that may succeed after `delay`.
pub(crate) fn retry_later(code: Code, message: impl Into<String>, delay: Duration) -> Status {
    let message = shorten_to(message.into(), MAX_DETAILED_MESSAGE_BYTES);
    let retry = RetryInfo { retry_delay: Some(delay.into()) };
    let details = vec![Any { type_url: RETRY_INFO_URL.to_owned(), value: retry.encode_to_vec().into() }];
    // Clients read the message from the details where there are some.
    let details = DetailedStatus { code: code as i32, message: message.clone(), details }.encode_to_vec();
    Status::with_details(code, message, details.into())
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

fn shorten(message: String) -> String {
    shorten_to(message, MAX_MESSAGE_BYTES)
}

fn shorten_to(mut message: String, max_bytes: usize) -> String {
    if message.len() > max_bytes {
        let end = (0..=max_bytes).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
        message.truncate(end);
        message.push_str(" ...");
    }
    message
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let status = Status::from(EngineError::new(ErrorKind::NotFound, "ä".repeat(MAX_MESSAGE_BYTES)));
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().len() <= MAX_MESSAGE_BYTES + 4);
        assert!(status.message().ends_with("ä ..."));
        assert!(status.details().is_empty());
    }

    #[test]
    fn an_error_that_passes_says_when_to_try_again() {
        let long = "ä".repeat(MAX_MESSAGE_BYTES);
        let error = EngineError::new(ErrorKind::ResourceExhausted, long).with_retry_after(Duration::from_millis(2500));
        let status = Status::from(error);
        assert!(status.message().len() <= MAX_DETAILED_MESSAGE_BYTES + 4);
        // Field 1 of `google.rpc.Status` is the code 8, field 3 holds the type and the value of the detail.
        let details = status.details();
        assert_eq!(details[..2], [0x08, 8]);
        assert!(details.windows(RETRY_INFO_URL.len()).any(|window| window == RETRY_INFO_URL.as_bytes()));
        // `RetryInfo { retry_delay: Duration { seconds: 2, nanos: 500_000_000 } }`.
        let value = [0x12, 10, 0x0a, 8, 0x08, 2, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01];
        assert!(details.ends_with(&value), "{details:x?}");

        let decoded = DetailedStatus::decode(details).unwrap();
        assert_eq!(decoded.message, status.message());
    }
}
