//! The executions of a query: the name of the statement that runs, by which the engine cancels it, and cancelling before there is one.
//!
//! The engine names a statement when its first rows are known, which may take long. Whoever cancels marks the executions and asks for the
//! name then; whoever starts a statement notes its name and looks for the mark then. So one of the two finds what the other did.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::engine::{BatchStream, EngineError, EngineResult, ErrorKind, Statement, StatementId, Texts};

/// An execution that has not begun.
#[derive(Clone)]
pub(crate) struct Execution {
    pub(crate) statement: Arc<dyn Statement>,
    pub(crate) parameters: Option<RecordBatch>,
    pub(crate) texts: Texts,
}

/// The executions of a query, one after the other.
pub(crate) struct Executions {
    /// The statement that runs, once it has a name.
    statement: Mutex<Option<StatementId>>,
    is_cancelled: watch::Sender<bool>,
}

impl Default for Executions {
    fn default() -> Self {
        Self { statement: Mutex::default(), is_cancelled: watch::Sender::new(false) }
    }
}

impl Executions {
    /// Starts a statement and returns its rows. [`ErrorKind::Cancelled`] where the executions are cancelled before it has a name.
    pub(crate) async fn start(&self, execution: Execution) -> EngineResult<BatchStream> {
        let Execution { statement, parameters, texts } = execution;
        *self.statement.lock() = None;
        let mut mark = self.is_cancelled.subscribe();
        let cancelled = async move {
            // The sender lives as long as `self`.
            let _ = mark.wait_for(|is_cancelled| *is_cancelled).await;
        };
        let started = tokio::select! {
            biased;
            () = cancelled => return Err(was_cancelled()),
            started = statement.query(parameters, texts) => started?,
        };
        *self.statement.lock() = Some(started.id);
        let is_cancelled = *self.is_cancelled.borrow();
        if is_cancelled { Err(was_cancelled()) } else { Ok(started.batches) }
    }

    /// Lets no statement start any more, nor get a name. Returns the name of the one that runs: the engine cancels that.
    pub(crate) fn cancel(&self) -> Option<StatementId> {
        self.is_cancelled.send_replace(true);
        self.statement.lock().clone()
    }
}

/// The error of a query that was cancelled.
pub(crate) fn was_cancelled() -> EngineError {
    EngineError::new(ErrorKind::Cancelled, "the query was cancelled")
}
