//! Tasks on other runtimes, which end when nobody waits for them.

use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind, Result};

/// A task that is aborted when this is dropped.
pub(super) struct AbortOnDrop<T>(pub(super) JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The error of a task that was cancelled or panicked.
pub(super) fn join_error(error: &tokio::task::JoinError) -> Error {
    if error.is_cancelled() {
        Error::new(ErrorKind::Cancelled, "the statement was cancelled")
    } else {
        tracing::error!(%error, "a statement panicked");
        Error::new(ErrorKind::Internal, "the server hit a defect while it ran the statement; its log says where")
    }
}

/// Runs `work` on a runtime; dropping the returned future aborts it.
pub(super) async fn run_on<T, F>(runtime: &tokio::runtime::Handle, work: F) -> Result<T>
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let mut task = AbortOnDrop(runtime.spawn(work));
    (&mut task.0).await.unwrap_or_else(|e| Err(join_error(&e)))
}
