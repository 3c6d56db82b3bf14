//! The error of everything above the store: a kind that a caller can act on, and a message for a person.
//!
//! Errors of DataFusion, Arrow, Parquet and the store are mapped here and nowhere else. Messages are sent to clients
//! unchanged, so they hold no debug dumps and say what to do where that is known. The crate knows the model, whose
//! [`ErrorKind`] it re-exports, and no other crate of Terrace.

use std::time::Duration;

use arrow::error::ArrowError;
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use parquet::errors::ParquetError;
use terrace_model::error::Error as StoreError;

pub use terrace_model::error::ErrorKind;

/// Name of the hidden column of row positions. Statements cannot name it, so errors leave it out.
pub const ROW_COLUMN: &str = "__row";

/// Result of the fallible operations of the crates above the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the crates above the store.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
}

impl Error {
    /// An error of `kind` with a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    /// A wrong request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// A valid request for something that is not supported.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unimplemented, message)
    }

    /// The same error, telling the client that the request may succeed after `delay`.
    pub fn with_retry_after(self, delay: Duration) -> Self {
        Self { retry_after: Some(delay), ..self }
    }

    /// Time after which the same request may succeed; `None` where trying again does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Readable text.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        match error {
            ArrowError::ExternalError(inner) => from_boxed(inner),
            other => from_arrow(&other),
        }
    }
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        match error {
            // The optimizer adds this context to an error of the crate `regex-syntax`.
            DataFusionError::Context(context, inner) if context == "Invalid regex" => {
                Self::invalid(format!("the regular expression cannot be used: {}", Self::from(*inner).message))
            }
            DataFusionError::Context(context, inner) => {
                let inner = Self::from(*inner);
                // The names of optimizer rules and analyzer passes tell a user nothing.
                let silent = inner.kind == ErrorKind::Internal || context.contains("_") || context.is_empty();
                if silent && inner.kind != ErrorKind::Internal {
                    return inner;
                }
                Self { message: format!("{context}: {}", inner.message), ..inner }
            }
            DataFusionError::Diagnostic(_, inner) => Self::from(*inner),
            DataFusionError::Shared(inner) => from_reference(&inner),
            DataFusionError::Collection(errors) => {
                let mut errors = errors.into_iter().map(Self::from);
                errors.next().unwrap_or_else(|| Self::new(ErrorKind::Internal, "the planner failed and gave no reason"))
            }
            DataFusionError::External(inner) => from_boxed(inner),
            DataFusionError::ArrowError(inner, _) => Self::from(*inner),
            DataFusionError::SQL(inner, _) => {
                Self::invalid(format!("SQL syntax: {}", clean_parser(&inner.to_string())))
            }
            DataFusionError::NotImplemented(what) => not_implemented(first_part(&what)),
            DataFusionError::Plan(what) => plan_error(&what),
            DataFusionError::Configuration(what) => Self::invalid(first_part(&what)),
            DataFusionError::SchemaError(inner, _) => Self::invalid(schema_error(*inner)),
            DataFusionError::Execution(what) => Self::invalid(first_part(&what)),
            DataFusionError::ResourcesExhausted(what) => Self::new(ErrorKind::ResourceExhausted, out_of_memory(&what)),
            DataFusionError::ExecutionJoin(join) if join.is_cancelled() => {
                Self::new(ErrorKind::Cancelled, "the statement was cancelled")
            }
            DataFusionError::IoError(io) => from_io(&io),
            DataFusionError::ObjectStore(inner) => from_object_store(&inner),
            DataFusionError::ParquetError(inner) => from_parquet(&inner),
            DataFusionError::Internal(what) if is_bad_pattern(&what) => Self::invalid(first_part(&what)),
            other => Self::new(ErrorKind::Internal, first_part(&other.strip_backtrace())),
        }
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

/// Wraps a tier-store error for DataFusion; [`Error::from`] unwraps it.
pub fn store_error(error: StoreError) -> DataFusionError {
    Error::from(error).into()
}

fn from_boxed(inner: Box<dyn std::error::Error + Send + Sync>) -> Error {
    let inner = match inner.downcast::<ArrowError>() {
        Ok(arrow) => return Error::from(*arrow),
        Err(inner) => inner,
    };
    match inner.downcast::<DataFusionError>() {
        Ok(datafusion) => Error::from(*datafusion),
        Err(other) => from_any(other.as_ref()),
    }
}

/// Converts an error of an unknown type that is only borrowed.
fn from_any(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Error {
    if let Some(own) = error.downcast_ref::<Error>() {
        return own.clone();
    }
    if let Some(store) = error.downcast_ref::<StoreError>() {
        return Error::from(store.clone());
    }
    if let Some(arrow) = error.downcast_ref::<ArrowError>() {
        return from_arrow(arrow);
    }
    if let Some(datafusion) = error.downcast_ref::<DataFusionError>() {
        return from_reference(datafusion);
    }
    if let Some(parquet) = error.downcast_ref::<ParquetError>() {
        return from_parquet(parquet);
    }
    if let Some(io) = error.downcast_ref::<std::io::Error>() {
        return from_io(io);
    }
    if let Some(regex) = error.downcast_ref::<regex::Error>() {
        return Error::invalid(format!("the regular expression cannot be used: {regex}"));
    }
    if let Some(own) = own_cause(error) {
        return own;
    }
    let text = error.to_string();
    // An error of the crate `glob`, which is a dependency of DataFusion only.
    let kind = if text.starts_with("Pattern syntax error") { ErrorKind::InvalidArgument } else { ErrorKind::Internal };
    Error::new(kind, text)
}

/// Most errors of Arrow are caused by values, by files that it reads, or by the request, so they are no internal errors.
fn from_arrow(error: &ArrowError) -> Error {
    match error {
        ArrowError::ExternalError(inner) => from_any(inner.as_ref()),
        ArrowError::DivideByZero => Error::invalid("division by zero"),
        ArrowError::NotYetImplemented(what) => Error::unimplemented(format!("not supported: {what}")),
        ArrowError::IoError(_, io) => from_io(io),
        ArrowError::ArithmeticOverflow(what) => Error::invalid(format!("arithmetic overflow: {what}")),
        ArrowError::ParquetError(what) => Error::invalid(format!("cannot read Parquet: {what}")),
        ArrowError::IpcError(what) => Error::invalid(format!("cannot read Arrow: {what}")),
        ArrowError::CastError(what)
        | ArrowError::ParseError(what)
        | ArrowError::ComputeError(what)
        | ArrowError::InvalidArgumentError(what)
        | ArrowError::SchemaError(what)
        | ArrowError::CsvError(what)
        | ArrowError::JsonError(what) => Error::invalid(what.clone()),
        other => Error::new(ErrorKind::Internal, other.to_string()),
    }
}

/// An error of Parquet concerns a file of the user, as tables are not stored in Parquet.
fn from_parquet(error: &ParquetError) -> Error {
    match error {
        ParquetError::External(inner) if inner.is::<DataFusionError>() || inner.is::<ArrowError>() => {
            from_any(inner.as_ref())
        }
        other => own_cause(other).unwrap_or_else(|| Error::invalid(format!("cannot read Parquet: {other}"))),
    }
}

/// Converts a shared error, which can only be borrowed.
fn from_reference(error: &DataFusionError) -> Error {
    match error.find_root() {
        DataFusionError::External(inner) => from_any(inner.as_ref()),
        DataFusionError::ArrowError(inner, _) => from_arrow(inner),
        DataFusionError::ParquetError(inner) => from_parquet(inner),
        DataFusionError::ObjectStore(inner) => from_object_store(inner),
        DataFusionError::IoError(io) => from_io(io),
        DataFusionError::ResourcesExhausted(what) => Error::new(ErrorKind::ResourceExhausted, out_of_memory(what)),
        DataFusionError::Execution(what) | DataFusionError::Plan(what) | DataFusionError::Configuration(what) => {
            Error::invalid(first_part(what))
        }
        DataFusionError::NotImplemented(what) => not_implemented(first_part(what)),
        DataFusionError::Internal(what) if is_bad_pattern(what) => Error::invalid(first_part(what)),
        other => Error::new(ErrorKind::Internal, first_part(&other.strip_backtrace())),
    }
}

/// Whether the error is a regular expression that does not compile, which DataFusion reports as internal.
fn is_bad_pattern(what: &str) -> bool {
    what.contains("Regular expression did not compile")
}

/// A number with too many digits is a mistake of the statement; DataFusion reports it as not implemented.
fn not_implemented(what: String) -> Error {
    match what.starts_with("Decimal precision") {
        true => {
            Error::invalid(format!("a number has too many digits: {what}; CAST('..' AS DOUBLE) reads it as a float"))
        }
        false => Error::unimplemented(format!("not supported: {what}")),
    }
}

fn from_io(error: &std::io::Error) -> Error {
    // Writers of files get the errors of an object store in this form.
    if let Some(own) = own_cause(error) {
        return own;
    }
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.to_string())
}

/// The error of this crate among the causes of another one.
fn own_cause(error: &(dyn std::error::Error + 'static)) -> Option<Error> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<Error>().cloned())
}

fn from_object_store(error: &datafusion::object_store::Error) -> Error {
    let text = error.to_string();
    if let Some(own) = own_cause(error) {
        own
    } else if matches!(error, datafusion::object_store::Error::InvalidPath { .. }) {
        Error::invalid(text)
    } else if text.contains("not found") || text.contains("No such file") {
        Error::new(ErrorKind::NotFound, format!("file not found: {text}"))
    } else {
        Error::new(ErrorKind::Internal, format!("cannot access files: {text}"))
    }
}

/// Converts an error of the planner, which reports a missing table as `table 'catalog.schema.name' not found`.
fn plan_error(what: &str) -> Error {
    let what = first_part(what);
    let lower = what.to_ascii_lowercase();
    if lower.starts_with("table '")
        && lower.ends_with("not found")
        && let Some(name) = what.split('\'').nth(1)
    {
        return missing_table(name.strip_prefix("terrace.public.").unwrap_or(name));
    }
    Error::invalid(reworded(&what).unwrap_or(what))
}

/// A message of the planner in the words of who wrote the statement; nothing where its own will do.
fn reworded(what: &str) -> Option<String> {
    if let Some(rest) = what.strip_prefix("Invalid function '") {
        let mut quoted = rest.split('\'').step_by(2);
        let name = quoted.next()?;
        let near = quoted.next().map_or_else(String::new, |near| format!("; the most similar name is '{near}'"));
        return Some(format!(
            "function '{name}' does not exist{near}; information_schema.routines lists the functions there are"
        ));
    }
    let rest = what.strip_prefix("Inconsistent data length across values list: got ")?;
    let (given, rest) = rest.split_once(" values in row ")?;
    let (row, wanted) = rest.split_once(" but expected ")?;
    let row: u64 = row.parse().ok()?;
    Some(format!("row {} of VALUES has {given} values where {wanted} are wanted", row + 1))
}

/// The error of a table that does not exist.
pub fn missing_table(name: &str) -> Error {
    let name = name.strip_prefix("public.").unwrap_or(name);
    Error::new(ErrorKind::NotFound, format!("table '{name}' does not exist; SHOW TABLES lists the tables there are"))
}

fn schema_error(error: SchemaError) -> String {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            // Users cannot name the column of row positions.
            let known = valid_fields.iter().filter(|c| c.name.trim_end_matches('_') != ROW_COLUMN);
            let near: Vec<String> = known.take(12).map(|c| c.name.clone()).collect();
            if near.is_empty() {
                format!("column '{}' does not exist", field.name)
            } else {
                format!("column '{}' does not exist; there are: {}", field.name, near.join(", "))
            }
        }
        other => other.to_string(),
    }
}

fn out_of_memory(what: &str) -> String {
    let what = first_part(what);
    format!(
        "the statement needs more memory or spill space than it may use ({what}); raise the limit, or try again when fewer statements run"
    )
}

fn clean_parser(text: &str) -> String {
    let text = text.strip_prefix("sql parser error: ").unwrap_or(text);
    text.trim_matches('"').to_owned()
}

/// Cuts off the backtrace and the request to report bugs that DataFusion appends; neither is for users.
fn first_part(text: &str) -> String {
    let cut = ["\n\nbacktrace:", "\nThis issue was likely caused", "\nThis was likely caused"];
    let end = cut.iter().filter_map(|c| text.find(c)).min().unwrap_or(text.len());
    text.get(..end).unwrap_or(text).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn messages_of_the_planner_are_for_who_wrote_the_statement() {
        let says = |what: &str| Error::from(DataFusionError::Plan(what.to_owned())).message().to_owned();
        assert_eq!(
            says("Invalid function 'json_extract'.\nDid you mean 'union_extract'?"),
            "function 'json_extract' does not exist; the most similar name is 'union_extract'; information_schema.routines \
             lists the functions there are"
        );
        assert_eq!(
            says("Inconsistent data length across values list: got 2 values in row 1 but expected 3"),
            "row 2 of VALUES has 2 values where 3 are wanted"
        );
        for other in ["Invalid function", "Inconsistent data length across values list: got few"] {
            assert_eq!(says(other), other);
        }
    }

    #[test]
    fn an_error_of_ours_is_found_below_those_of_stores_and_files() {
        let store = || datafusion::object_store::Error::AlreadyExists {
            path: "a".to_owned(),
            source: Box::new(Error::new(ErrorKind::AlreadyExists, "it is there")),
        };
        for error in [DataFusionError::from(store()), DataFusionError::IoError(store().into())] {
            let error = Error::from(error);
            assert_eq!((error.kind(), error.message()), (ErrorKind::AlreadyExists, "it is there"));
        }
    }

    /// However an error of a file or of a pattern is wrapped, it is the request that is wrong.
    #[test]
    #[allow(clippy::unwrap_used, clippy::expect_used)]
    fn faults_of_files_and_patterns_are_those_of_the_request() {
        let bad_pattern = || "(".parse::<regex::Regex>().expect_err("it has no end");
        let parquet = || ParquetError::General("corrupt footer".to_owned());
        let errors = || -> Vec<DataFusionError> {
            vec![
                DataFusionError::External(Box::new(bad_pattern())),
                DataFusionError::External(Box::new(parquet())),
                DataFusionError::ParquetError(Box::new(parquet())),
                DataFusionError::from(ArrowError::ParquetError("corrupt footer".to_owned())),
                DataFusionError::from(ArrowError::IpcError("no magic".to_owned())),
                DataFusionError::from(ArrowError::ExternalError(Box::new(parquet()))),
                DataFusionError::from(ArrowError::CsvError("unequal lengths".to_owned())),
            ]
        };
        for error in errors() {
            let text = error.to_string();
            assert_eq!(Error::from(error).kind(), ErrorKind::InvalidArgument, "{text}");
        }
        for error in errors() {
            let text = error.to_string();
            let shared = DataFusionError::Shared(Arc::new(error));
            assert_eq!(Error::from(shared).kind(), ErrorKind::InvalidArgument, "shared: {text}");
        }
    }
}
