//! Order, limit and count of the rows that a spilled join returns.
//!
//! DataFusion's hash join keeps the order of its probe side for some types of join, and plans rely on it. A spilled join
//! has no order, so its rows are sorted by all orders that the plan announces, one after the other. In the rows of the join
//! in memory these orders agree, so a row that is less by the first is not greater by the others.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::LimitStream;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::input::{InputExec, Inputs, Side, Slot};
use super::rows::compact;

/// Returns the rows of a spilled partition as `join` announces them.
pub(super) fn finished(
    rows: SendableRecordBatchStream,
    join: &HashJoinExec,
    context: &TaskContext,
    metrics: &ExecutionPlanMetricsSet,
    partition: usize,
) -> Result<SendableRecordBatchStream> {
    let rows = match join.properties().output_ordering() {
        Some(order) => {
            let schema = rows.schema();
            // A sort counts the buffers of each batch, and the texts of joined rows lie in those of the build side.
            let compacted = rows.map(|batch| compact(&batch?));
            let compacted = Slot::new(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), compacted)));
            let inputs = Inputs { build: compacted, probe: Arc::default(), memory: None };
            let sort = SortExec::new(order.clone(), InputExec::for_rows(Side::Build, schema)).with_fetch(join.fetch());
            sort.execute(0, inputs.context(context, Arc::clone(context.memory_pool())))?
        }
        None => rows,
    };
    Ok(Box::pin(LimitStream::new(rows, 0, join.fetch(), BaselineMetrics::new(metrics, partition))))
}
