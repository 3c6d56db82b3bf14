//! Writing rows: the sink of INSERT, and the bridge from asynchronous plans to the store's blocking ingest.
//!
//! An [`IngestWriter`] owns a blocking thread that feeds [`Ingest`]; two batches may wait for it. Rows become visible at
//! `finish` and not before: dropping the writer leaves the store as it was.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexRequirement, PhysicalSortRequirement};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::StreamExt;
use terrace_tier_store::table::{Ingest, Table};
use terrace_tier_store::{Result as StoreResult, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::engine::types::with_columns;
use crate::error::{Error, ErrorKind, Result, missing_table};

/// The plan of an INSERT into `table`: sorts by the table's `cluster_by` columns, then writes. Its one row is the count.
///
/// # Errors
/// Only plain INSERT is offered.
pub fn insert_plan(
    store: Arc<Store>,
    table: Arc<Table>,
    input: Arc<dyn ExecutionPlan>,
    op: InsertOp,
) -> PlanResult<Arc<dyn ExecutionPlan>> {
    if op != InsertOp::Append {
        return Err(
            Error::unimplemented(format!("{op} is not supported; use CREATE OR REPLACE TABLE .. AS SELECT")).into()
        );
    }
    let order = cluster_requirement(&table);
    Ok(Arc::new(DataSinkExec::new(input, Arc::new(TableSink { store, table }), order)))
}

/// Ascending order by the columns the table is clustered by.
fn cluster_requirement(table: &Table) -> Option<LexRequirement> {
    let ascending = Some(SortOptions { descending: false, nulls_first: false });
    let columns = table.options().cluster_by.iter().filter_map(|name| {
        let (index, _) = table.schema().column_with_name(name)?;
        Some(PhysicalSortRequirement::new(Arc::new(Column::new(name, index)), ascending))
    });
    LexRequirement::new(columns.collect::<Vec<_>>())
}

/// The end of an INSERT.
#[derive(Debug)]
struct TableSink {
    store: Arc<Store>,
    table: Arc<Table>,
}

impl DisplayAs for TableSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableSink(table={})", self.table.name())
    }
}

#[async_trait]
impl DataSink for TableSink {
    fn schema(&self) -> &SchemaRef {
        self.table.schema()
    }

    async fn write_all(&self, data: SendableRecordBatchStream, _: &Arc<TaskContext>) -> PlanResult<u64> {
        let (store, table) = (Arc::clone(&self.store), Arc::clone(&self.table));
        let current = store.table(table.name()).ok().filter(|t| t.id() == table.id());
        if current.is_none() {
            return Err(missing_table(&table.name().to_string()).into());
        }
        let mut writer = IngestWriter::start(move || Ok(store.ingest(&table)));
        let adapt = |batch: &RecordBatch| with_columns(self.table.schema(), batch.columns().to_vec(), batch.num_rows());
        writer.write_all(data, adapt).await?;
        writer.finish().await.map_err(DataFusionError::from)
    }
}

enum Message {
    Rows(RecordBatch),
    Finish,
    Abort,
}

/// Feeds a blocking [`Ingest`] from asynchronous code.
pub(crate) struct IngestWriter {
    sender: mpsc::Sender<Message>,
    /// `None` once its result was taken.
    task: Option<JoinHandle<StoreResult<Option<u64>>>>,
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
                    Message::Finish => return ingest.finish().map(Some),
                    Message::Abort => break,
                }
            }
            Ok(None)
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

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
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
        self.end().await
    }

    async fn end(&mut self) -> Result<u64> {
        let lost = || Error::new(ErrorKind::Internal, "the ingest ended early");
        let task = self.task.take().ok_or_else(lost)?;
        match task.await {
            Ok(Ok(Some(rows))) => Ok(rows),
            Ok(Ok(None)) => Err(lost()),
            Ok(Err(error)) => Err(error.into()),
            Err(join) => Err(Error::new(ErrorKind::Internal, format!("the ingest ended early: {join}"))),
        }
    }
}
