//! The errors of the command line and the server: each says what to do next.

use std::path::PathBuf;

/// Result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reasons for which a command fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong; every fault is listed.
    #[error("configuration: {0}")]
    Config(String),
    /// The configured parts need more memory than there is.
    #[error("{0}")]
    Memory(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {addr} ({key}): {message}")]
    Listen {
        /// The address.
        addr: String,
        /// The configuration key.
        key: &'static str,
        /// The cause and a way out.
        message: String,
    },
    /// No server answers.
    #[error(
        "no Terrace server answers at {url}: {message}. Start one with `terrace serve`, or give another address with --url or --http-addr"
    )]
    Unreachable {
        /// Its address.
        url: String,
        /// The cause.
        message: String,
    },
    /// The server refused a request.
    #[error("{message}")]
    Server {
        /// gRPC code, as text.
        code: String,
        /// The server's message.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        message: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] terrace_tier_store::Error),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] terrace_planner_ext::Error),
    /// Arrow refused an operation.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
    /// A run-time, a channel or the terminal failed.
    #[error("{0}")]
    System(String),
    /// The command is not valid; says what to do instead.
    #[error("{0}")]
    Usage(String),
    /// A check found damage; the report was printed.
    #[error("found damage: {0}; do what each finding advises")]
    Damage(String),
    /// The reader of the output closed it, so a command that only writes output ended.
    #[error("the program that read the output has closed it")]
    OutputClosed,
    /// The log has the error already, and takes nothing but lines of JSON.
    #[error("the log has the error")]
    Logged,
    /// The two runs of the demo differ.
    #[error("the two runs gave different answers to {0}")]
    AnswersDiffer(String),
}

impl Error {
    /// A file error with its path.
    pub fn file(path: impl Into<PathBuf>, message: impl ToString) -> Self {
        Self::File { path: path.into(), message: message.to_string() }
    }
}

impl From<arrow_flight::error::FlightError> for Error {
    fn from(error: arrow_flight::error::FlightError) -> Self {
        match error {
            arrow_flight::error::FlightError::Tonic(status) => (*status).into(),
            other => Self::Server { code: "Unknown".to_owned(), message: other.to_string() },
        }
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        let broken = std::error::Error::source(&status).filter(|cause| cause.is::<tonic::transport::Error>());
        let message = match broken.map(root_cause) {
            None => status.message().to_owned(),
            // What clients see of a server that refuses them without saying why.
            Some(cause) if is_refusal(&cause) => format!(
                "the connection broke: {cause}. If the server has TLS, its address is grpc+tls://HOST:PORT; if it wants a \
                 certificate, give --cert and --cert-key"
            ),
            Some(cause) => format!("the connection broke: {cause}"),
        };
        Self::Server { code: format!("{:?}", status.code()), message }
    }
}

/// Whether a connection broke as it does when one side wants TLS, or a certificate, and the other gives none.
fn is_refusal(cause: &str) -> bool {
    ["broken pipe", "reset", "frame", "alert", "closed"].iter().any(|word| cause.to_ascii_lowercase().contains(word))
}

/// The message of the innermost cause.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
