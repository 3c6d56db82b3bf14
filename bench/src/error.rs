//! Errors of benchmarks. A missing peer has its own kind: `run` continues without it and names it at the end.

use std::path::Path;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something outside of this crate is missing; the text says how to get it.
    #[error("{0}")]
    Missing(String),
    /// A side failed, or two sides disagree.
    #[error("{0}")]
    Failed(String),
    /// A file or a process.
    #[error("{what}: {source}")]
    Io {
        /// The failed action.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] terrace_tier_store::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] terrace_planner_ext::Error),
    /// A server, or the connection to it.
    #[error(transparent)]
    Server(#[from] terrace_server::Error),
    /// DataFusion.
    #[error(transparent)]
    DataFusion(#[from] datafusion::error::DataFusionError),
    /// Arrow.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
    /// Parquet.
    #[error(transparent)]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A message between processes, or a result file.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An I/O error with the failed action.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// An I/O error on a path.
    pub fn path(action: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        Self::io(format!("cannot {action} {}", path.display()))
    }

    /// A failure described by `text`.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }
}
