//! A table provider whose rows a function computes when the table is scanned, on a blocking thread.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result as PlanResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

use crate::error::Result;

type ComputeRows = Arc<dyn Fn() -> Result<RecordBatch> + Send + Sync>;

/// A table of one record batch that is computed at each scan.
#[derive(Clone)]
pub(super) struct ComputedTable {
    schema: SchemaRef,
    rows: ComputeRows,
}

impl fmt::Debug for ComputedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComputedTable").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl ComputedTable {
    /// Makes a table of these columns; `rows` is called once for each execution of the statement.
    pub(super) fn new(fields: Vec<Field>, rows: impl Fn() -> Result<RecordBatch> + Send + Sync + 'static) -> Self {
        Self { schema: Arc::new(Schema::new(fields)), rows: Arc::new(rows) }
    }
}

#[async_trait]
impl TableProvider for ComputedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        let schema = Arc::clone(&self.schema);
        let rows = Arc::new(self.clone());
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![rows], projection, None, false, limit)?))
    }
}

impl PartitionStream for ComputedTable {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.schema), 1);
        let sender = builder.tx();
        let rows = Arc::clone(&self.rows);
        builder.spawn_blocking(move || {
            let _ = sender.blocking_send(Ok(rows()?));
            Ok(())
        });
        builder.build()
    }
}
