//! Errors on their way from a node to the coordinator.
//!
//! The transport keeps the text of an error and, of DataFusion's own, the kind; an error of Terrace would arrive as text alone.
//! So a node writes kind and message of each error into the text, between marks, and whoever receives it reads them back. An
//! error without marks comes from the transport, or from a node that failed before it had the statement: it becomes
//! `Unavailable`, and names the node. Where memory ran out the error keeps DataFusion's kind, by which statements start again.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use datafusion::error::DataFusionError;
use serde::{Deserialize, Serialize};
use terrace_error::{Error, ErrorKind};

const BEGIN: &str = "[[terrace-error:";
const END: &str = "]]";

/// Most bytes of a message that is sent: errors travel in headers, of which a connection takes 16 KiB.
const MOST_BYTES: usize = 2_000;

/// The kinds of errors by the names with which they are sent.
const KINDS: [(ErrorKind, &str); 14] = [
    (ErrorKind::InvalidArgument, "invalid-argument"),
    (ErrorKind::NotFound, "not-found"),
    (ErrorKind::AlreadyExists, "already-exists"),
    (ErrorKind::Unimplemented, "unimplemented"),
    (ErrorKind::ResourceExhausted, "resource-exhausted"),
    (ErrorKind::Unauthenticated, "unauthenticated"),
    (ErrorKind::PermissionDenied, "permission-denied"),
    (ErrorKind::Cancelled, "cancelled"),
    (ErrorKind::Unavailable, "unavailable"),
    (ErrorKind::FailedPrecondition, "failed-precondition"),
    (ErrorKind::Aborted, "aborted"),
    (ErrorKind::DeadlineExceeded, "deadline-exceeded"),
    (ErrorKind::DataLoss, "data-loss"),
    (ErrorKind::Internal, "internal"),
];

/// An error as it is sent.
#[derive(Serialize, Deserialize)]
struct SentError {
    kind: String,
    message: String,
    retry_after_ms: Option<u64>,
}

/// The error with which a node ends its part of a statement, in a form that keeps its kind on the way.
pub fn to_coordinator(error: DataFusionError) -> DataFusionError {
    if is_out_of_memory(&error) || error.to_string().contains(BEGIN) {
        return error;
    }
    let error = Error::from(error);
    let kind = KINDS.iter().find(|(kind, _)| *kind == error.kind()).map_or("internal", |(_, name)| *name);
    let retry_after_ms = error.retry_after().map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
    let message = beginning(error.message());
    let sent = SentError { kind: kind.to_owned(), message, retry_after_ms };
    match serde_json::to_vec(&sent) {
        Ok(bytes) => DataFusionError::Execution(format!("{BEGIN}{}{END}", BASE64_STANDARD.encode(bytes))),
        Err(_) => error.into(),
    }
}

/// The beginning of a message, of at most [`MOST_BYTES`] as it is sent.
fn beginning(message: &str) -> String {
    let mut bytes = 0;
    let fits = |character: &char| {
        bytes += match character {
            // As JSON writes them.
            '"' | '\\' => 2,
            control if control.is_ascii_control() => 6,
            other => other.len_utf8(),
        };
        bytes <= MOST_BYTES
    };
    message.chars().take_while(fits).collect()
}

/// The error that came from `node` as the node meant it; for one of the transport, one that names the node.
pub fn from_node(error: DataFusionError, node: &str) -> DataFusionError {
    if is_out_of_memory(&error) {
        return error;
    }
    let text = error.strip_backtrace();
    let error = sent_error(&text).unwrap_or_else(|| {
        let message =
            format!("node {node} did not complete its part of the statement, which may be tried again: {text}");
        Error::new(ErrorKind::Unavailable, message)
    });
    error.into()
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// The error between marks in a text.
fn sent_error(text: &str) -> Option<Error> {
    let (_, behind) = text.split_once(BEGIN)?;
    let (encoded, _) = behind.split_once(END)?;
    let sent: SentError = serde_json::from_slice(&BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    let (kind, _) = KINDS.iter().find(|(_, name)| *name == sent.kind)?;
    let error = Error::new(*kind, sent.message);
    Some(match sent.retry_after_ms {
        Some(delay) => error.with_retry_after(Duration::from_millis(delay)),
        None => error,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;

    /// What the transport leaves of an error: text, wrapped in further text.
    fn transported(error: DataFusionError) -> DataFusionError {
        DataFusionError::External(format!("Status: {}, source: None", to_coordinator(error)).into())
    }

    #[test]
    fn each_kind_of_error_arrives_with_its_message() {
        for (kind, name) in KINDS {
            let message = format!("no {name} '[[x]]' \u{e9}\n");
            let sent = Error::new(kind, message.clone()).with_retry_after(Duration::from_millis(1500));
            let found = Error::from(from_node(transported(sent.into()), "2"));
            assert_eq!((found.kind(), found.message()), (kind, message.as_str()));
            assert_eq!(found.retry_after(), Some(Duration::from_millis(1500)));
        }
    }

    #[test]
    fn a_long_message_arrives_in_part() {
        for character in ["x", "\u{4e2d}", "\u{1}", "\""] {
            let sent = to_coordinator(Error::new(ErrorKind::NotFound, character.repeat(100_000)).into());
            // In base64 once more.
            assert!(sent.to_string().len() < 3_500, "{}", sent.to_string().len());
            let found = Error::from(from_node(DataFusionError::External(sent.to_string().into()), "1"));
            assert_eq!(found.kind(), ErrorKind::NotFound);
            assert!(found.message().starts_with(&character.repeat(300)), "{}", found.message());
        }
    }

    #[test]
    fn an_error_of_the_transport_names_the_node() {
        let broken = DataFusionError::External("h2 protocol error".into());
        let found = Error::from(from_node(broken, "2 (127.0.0.1:9)"));
        assert_eq!(found.kind(), ErrorKind::Unavailable);
        assert!(found.message().contains("node 2 (127.0.0.1:9)") && found.message().contains("h2 protocol error"));
        let forged = DataFusionError::External(format!("{BEGIN}?{END}").into());
        assert_eq!(Error::from(from_node(forged, "1")).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_lack_of_memory_stays_what_it_is() {
        let little = || DataFusionError::ResourcesExhausted("too little".into()).context("while it sorted");
        for error in [to_coordinator(little()), from_node(little(), "1")] {
            assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
        }
    }
}
