//! Writing rows: the bridge from asynchronous plans to the store's blocking ingest.
//!
//! An [`IngestWriter`] owns a blocking thread that feeds [`Ingest`]; two batches may wait for it. Its rows become visible
//! when it finishes, or are handed over to a transaction; dropping the writer leaves the store as it was.

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use terrace_tier_store::Result as StoreResult;
use terrace_tier_store::table::{Ingest, NewRows};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind, Result};

enum Message {
    Rows(RecordBatch),
    Finish,
    HandOver,
    Abort,
}

/// How an ingest ended.
enum Ended {
    Aborted,
    Stored(u64),
    Written(NewRows),
}

/// Feeds a blocking [`Ingest`] from asynchronous code.
pub(crate) struct IngestWriter {
    sender: mpsc::Sender<Message>,
    /// `None` once its result was taken.
    task: Option<JoinHandle<StoreResult<Ended>>>,
}

impl IngestWriter {
    /// Starts the ingest that `open` makes, on a blocking thread of the current runtime.
    pub(crate) fn start(open: impl FnOnce() -> StoreResult<Ingest> + Send + 'static) -> Self {
        let (sender, mut receiver) = mpsc::channel(2);
        let task = tokio::task::spawn_blocking(move || {
            let mut ingest = open()?;
            while let Some(message) = receiver.blocking_recv() {
                match message {
                    Message::Rows(batch) => ingest.write(batch)?,
                    Message::Finish => return ingest.finish().map(Ended::Stored),
                    Message::HandOver => return ingest.written().map(Ended::Written),
                    Message::Abort => break,
                }
            }
            Ok(Ended::Aborted)
        });
        Self { sender, task: Some(task) }
    }

    /// Takes all of `rows`, each batch as `adapt` turns it into the table's schema. Waits while the store is behind. After
    /// an error nothing of the rows is left, on disk neither.
    pub(crate) async fn write_all(
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

    /// Ends without a commit and waits until the files are gone.
    async fn abort(&mut self) {
        if let Some(task) = self.task.take() {
            let _ = self.sender.send(Message::Abort).await;
            let _ = task.await;
        }
    }

    /// Takes some rows. Waits while the store is behind.
    pub(crate) async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        match self.sender.send(Message::Rows(batch)).await {
            Ok(()) => Ok(()),
            Err(_) => self.end().await.map(|_| ()),
        }
    }

    /// Makes all rows durable and visible; returns their number.
    pub(crate) async fn finish(mut self) -> Result<u64> {
        let _ = self.sender.send(Message::Finish).await;
        match self.end().await? {
            Ended::Stored(rows) => Ok(rows),
            _ => Err(lost()),
        }
    }

    /// Writes all rows and leaves the commit to the caller.
    pub(crate) async fn hand_over(mut self) -> Result<NewRows> {
        let _ = self.sender.send(Message::HandOver).await;
        match self.end().await? {
            Ended::Written(rows) => Ok(rows),
            _ => Err(lost()),
        }
    }

    async fn end(&mut self) -> Result<Ended> {
        match self.task.take().ok_or_else(lost)?.await {
            Ok(ended) => Ok(ended?),
            Err(join) => Err(Error::new(ErrorKind::Internal, format!("the ingest ended early: {join}"))),
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Internal, "the ingest ended early")
}
