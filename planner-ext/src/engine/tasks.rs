//! Tasks on other runtimes, which end when nobody waits for them.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};
use tracing::Span;

use crate::error::{Error, ErrorKind, Result};

/// A task that is aborted when this is dropped.
pub(super) struct AbortOnDrop<T> {
    task: JoinHandle<T>,
    aborts: bool,
}

impl<T> AbortOnDrop<T> {
    pub(super) fn new(task: JoinHandle<T>) -> Self {
        Self { task, aborts: true }
    }

    /// Lets the task go on by itself.
    pub(super) fn detach(&mut self) {
        self.aborts = false;
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        if self.aborts {
            self.task.abort();
        }
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(context)
    }
}

/// The error of a task that was cancelled or panicked.
pub(super) fn join_error(error: &JoinError) -> Error {
    if error.is_cancelled() {
        Error::new(ErrorKind::Cancelled, "the statement was cancelled")
    } else {
        tracing::error!(%error, "a statement panicked");
        Error::new(ErrorKind::Internal, "the server hit a defect while it ran the statement; its log says where")
    }
}

/// Keeps work that another thread does in the span of the statement that asks for it.
pub(super) fn in_current_span<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = Span::current();
    move || span.in_scope(work)
}

/// Runs `work` on a runtime; dropping the returned future aborts it.
pub(super) async fn run_on<T, F>(runtime: &tokio::runtime::Handle, work: F) -> Result<T>
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    AbortOnDrop::new(runtime.spawn(work)).await.unwrap_or_else(|e| Err(join_error(&e)))
}
