//! What the tasks of a statement hold, so that it goes with the statement.
//!
//! The library forgets a task some time after its statement has ended: its map of tasks frees what was removed from it when later
//! statements come. So it gets the part of a plan that a task executes in a shell: when the statement ends, the part goes and so do
//! its streams, and with them hash tables, reservations of memory, and versions of tables.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;

type Plan = Mutex<Option<Arc<dyn ExecutionPlan>>>;
type Rows = Mutex<Option<SendableRecordBatchStream>>;

/// What the tasks of one statement hold, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Parts(Arc<Held>);

impl Parts {
    /// A shell around the part of a plan.
    pub(crate) fn keep(&self, part: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let properties = Arc::clone(part.properties());
        let plan = Arc::new(Mutex::new(Some(part)));
        self.0.plans.lock().push(Arc::clone(&plan));
        Arc::new(PartExec { plan, properties, held: Arc::clone(&self.0) })
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[derive(Debug, Default)]
struct Held {
    has_ended: AtomicBool,
    plans: Mutex<Vec<Arc<Plan>>>,
    streams: Mutex<Vec<Weak<Rows>>>,
}

impl Held {
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        let plans = std::mem::take(&mut *self.plans.lock());
        plans.iter().for_each(|plan| drop(plan.lock().take()));
        let streams = std::mem::take(&mut *self.streams.lock());
        streams.iter().filter_map(Weak::upgrade).for_each(|rows| free(&rows));
    }
}

/// Frees a stream, unless it is polled just now: whoever polls it frees it then.
fn free(rows: &Rows) {
    if let Some(mut rows) = rows.try_lock() {
        drop(rows.take());
    }
}

fn ended() -> DataFusionError {
    exec_datafusion_err!("the statement of a task has ended")
}

/// The shell of a part.
#[derive(Debug)]
struct PartExec {
    plan: Arc<Plan>,
    properties: Arc<PlanProperties>,
    held: Arc<Held>,
}

impl DisplayAs for PartExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for PartExec {
    fn name(&self) -> &str {
        "PartExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let plan = self.plan.lock().clone().ok_or_else(ended)?;
        let schema = plan.schema();
        let rows = Arc::new(Mutex::new(Some(plan.execute(partition, context)?)));
        self.held.streams.lock().push(Arc::downgrade(&rows));
        if self.held.has_ended() {
            free(&rows);
        }
        Ok(Box::pin(PartRows { rows, schema, held: Arc::clone(&self.held) }))
    }
}

/// The rows of one partition of a part.
struct PartRows {
    rows: Arc<Rows>,
    schema: SchemaRef,
    held: Arc<Held>,
}

impl Stream for PartRows {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = match self.rows.lock().as_mut() {
            Some(rows) => rows.poll_next_unpin(context),
            None => Poll::Ready(Some(Err(ended()))),
        };
        if self.held.has_ended() {
            free(&self.rows);
        }
        polled
    }
}

impl RecordBatchStream for PartRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::datatypes::Schema;
    use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;

    use super::*;

    #[tokio::test]
    async fn a_part_and_its_streams_go_with_their_statement() {
        let parts = Parts::default();
        let part: Arc<dyn ExecutionPlan> = Arc::new(PlaceholderRowExec::new(Arc::new(Schema::empty())));
        let known = Arc::downgrade(&part);
        let shell = parts.keep(part);
        let mut read = shell.execute(0, Arc::default()).unwrap();
        assert_eq!(read.next().await.unwrap().unwrap().num_rows(), 1);
        assert!(read.next().await.is_none());
        let mut open = shell.execute(0, Arc::default()).unwrap();
        assert!(known.upgrade().is_some());
        drop(parts);
        assert!(known.upgrade().is_none(), "the part is kept");
        let text = |error: DataFusionError| error.strip_backtrace();
        assert!(open.next().await.unwrap().is_err_and(|error| text(error).contains("has ended")));
        assert!(shell.execute(0, Arc::default()).is_err_and(|error| text(error).contains("has ended")));
    }
}
