//! Messages that the `arrow-flight` crate does not have.
//!
//! Session options, and the result of preparing a statement with the `is_update` field, from `Flight.proto` and
//! `FlightSql.proto` of Arrow 18 and later; details of an error, from `status.proto`, `error_details.proto` and
//! `duration.proto` of Google's common types.

use std::{collections::HashMap, time::Duration};

use arrow_flight::{FlightEndpoint, sql::Any};
use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// Result of preparing a statement.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreatePreparedStatementResult {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) prepared_statement_handle: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) dataset_schema: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) parameter_schema: Bytes,
    #[prost(bool, optional, tag = "4")]
    pub(crate) is_update: Option<bool>,
}

/// Value of a session option.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionOptionValue {
    #[prost(oneof = "OptionValue", tags = "1, 2, 3, 4, 5")]
    pub(crate) value: Option<OptionValue>,
}

/// The kinds of values.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum OptionValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(sfixed64, tag = "3")]
    Integer(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(message, tag = "5")]
    List(StringList),
}

/// A list of strings.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringList {
    #[prost(string, repeated, tag = "1")]
    pub(crate) values: Vec<String>,
}

impl SessionOptionValue {
    pub(crate) fn text(value: String) -> Self {
        Self { value: Some(OptionValue::Text(value)) }
    }

    /// The value as text for the engine; `None` resets the option to its default.
    pub(crate) fn into_text(self) -> Option<String> {
        Some(match self.value? {
            OptionValue::Text(value) => value,
            OptionValue::Bool(value) => value.to_string(),
            OptionValue::Integer(value) => value.to_string(),
            OptionValue::Double(value) => value.to_string(),
            OptionValue::List(list) => list.values.join(","),
        })
    }
}

/// Request to set options.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetSessionOptionsRequest {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) session_options: HashMap<String, SessionOptionValue>,
}

/// Options that were not set, with the reason.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetSessionOptionsResult {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) errors: HashMap<String, SessionOptionError>,
}

/// The reason for which an option was not set.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct SessionOptionError {
    #[prost(enumeration = "SessionOptionErrorValue", tag = "1")]
    pub(crate) value: i32,
}

/// Reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum SessionOptionErrorValue {
    Unspecified = 0,
    InvalidName = 1,
    InvalidValue = 2,
    Error = 3,
}

/// The options of a session.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetSessionOptionsResult {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) session_options: HashMap<String, SessionOptionValue>,
}

/// Answer to the close of a session.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct CloseSessionResult {
    #[prost(enumeration = "CloseSessionStatus", tag = "1")]
    pub(crate) status: i32,
}

/// The outcome of closing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum CloseSessionStatus {
    Unspecified = 0,
    Closed = 1,
    Closing = 2,
    NotCloseable = 3,
}

/// Sets the time at which an endpoint expires, in microseconds of Unix time.
pub(crate) fn set_expiration(endpoint: &mut FlightEndpoint, unix_us: u64) {
    let time = endpoint.expiration_time.get_or_insert_default();
    time.seconds = i64::try_from(unix_us / 1_000_000).unwrap_or(i64::MAX);
    time.nanos = i32::try_from(unix_us % 1_000_000 * 1_000).unwrap_or_default();
}

/// Type of [`RetryInfo`] in the details of a status.
pub(crate) const RETRY_INFO_URL: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// An error with details, as gRPC sends it beside the code and the message (`google.rpc.Status`).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DetailedStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

/// Time after which a client may send the request again (`google.rpc.RetryInfo`).
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub(crate) retry_delay: Option<Delay>,
}

/// A span of time (`google.protobuf.Duration`).
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Delay {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

impl From<Duration> for Delay {
    fn from(delay: Duration) -> Self {
        Self {
            seconds: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(delay.subsec_nanos()).unwrap_or_default(),
        }
    }
}
