//! Writing rows: the bridge from asynchronous plans to the store's blocking ingest.
//!
//! An [`IngestWriter`] owns a blocking thread that feeds [`Ingest`]; two batches may wait for it. Its rows become visible
//! when it finishes, or are handed over to a transaction; dropping the writer leaves the store as it was.

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use terrace_error::{Error, ErrorKind, Result};
use terrace_tier_store::Result as StoreResult;
use terrace_tier_store::table::{Ingest, NewRows};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

enum WriterMessage {
    Rows(RecordBatch),
    Finish,
    HandOver,
    Abort,
}

/// How an ingest ended.
enum IngestEnd {
    Aborted,
    Stored(u64),
    Written(NewRows),
}

/// Feeds a blocking [`Ingest`] from asynchronous code.
pub struct IngestWriter {
    sender: mpsc::Sender<WriterMessage>,
    /// `None` once its result was taken.
    task: Option<JoinHandle<StoreResult<IngestEnd>>>,
}

impl IngestWriter {
    /// Starts the ingest that `open` returns, on a blocking thread of the current runtime.
    pub fn start(open: impl FnOnce() -> StoreResult<Ingest> + Send + 'static) -> Self {
        let (sender, mut receiver) = mpsc::channel(2);
        let span = tracing::Span::current();
        let task = tokio::task::spawn_blocking(move || {
            // Lines of the log name the statement, whichever thread writes its rows.
            let _in_span = span.enter();
            let mut ingest = open()?;
            while let Some(message) = receiver.blocking_recv() {
                match message {
                    WriterMessage::Rows(batch) => ingest.write(batch)?,
                    WriterMessage::Finish => return ingest.finish().map(IngestEnd::Stored),
                    WriterMessage::HandOver => return ingest.into_new_rows().map(IngestEnd::Written),
                    WriterMessage::Abort => break,
                }
            }
            Ok(IngestEnd::Aborted)
        });
        Self { sender, task: Some(task) }
    }

    /// Writes all of `rows`, after `adapt` has converted each batch to the table's schema. Waits while the store is behind.
    /// After an error none of the rows are left, also not on disk.
    pub async fn write_all(
        &mut self,
        mut rows: SendableRecordBatchStream,
        mut adapt: impl FnMut(&RecordBatch) -> Result<RecordBatch>,
    ) -> Result<()> {
        while let Some(batch) = rows.next().await {
            let written = match batch.map_err(Error::from).and_then(|b| adapt(&b)) {
                Ok(batch) => self.write(batch).await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                self.abort().await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends without a commit and waits until the files are deleted.
    async fn abort(&mut self) {
        if let Some(task) = self.task.take() {
            let _ = self.sender.send(WriterMessage::Abort).await;
            let _ = task.await;
        }
    }

    /// Writes a batch of rows. Waits while the store is behind.
    pub async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        match self.sender.send(WriterMessage::Rows(batch)).await {
            Ok(()) => Ok(()),
            Err(_) => self.end().await.map(|_| ()),
        }
    }

    /// Makes all rows durable and visible; returns their number.
    pub async fn finish(mut self) -> Result<u64> {
        let _ = self.sender.send(WriterMessage::Finish).await;
        match self.end().await? {
            IngestEnd::Stored(rows) => Ok(rows),
            _ => Err(writer_ended_early()),
        }
    }

    /// Writes all rows and leaves the commit to the caller.
    pub async fn hand_over(mut self) -> Result<NewRows> {
        let _ = self.sender.send(WriterMessage::HandOver).await;
        match self.end().await? {
            IngestEnd::Written(rows) => Ok(rows),
            _ => Err(writer_ended_early()),
        }
    }

    async fn end(&mut self) -> Result<IngestEnd> {
        match self.task.take().ok_or_else(writer_ended_early)?.await {
            Ok(ended) => Ok(ended?),
            Err(join) => Err(Error::new(ErrorKind::Internal, format!("the ingest ended early: {join}"))),
        }
    }
}

fn writer_ended_early() -> Error {
    Error::new(ErrorKind::Internal, "the ingest ended early")
}
