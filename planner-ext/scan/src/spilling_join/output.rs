//! Order, limit and count of the rows that a spilled join returns.
//!
//! DataFusion's hash join keeps the order of its probe side for some types of join, and plans rely on it. A spilled join
//! has no order, so its rows are sorted by all orders of the probe side, which hold together, and then by what else the plan
//! announces (the order of the build side within equal probe rows).

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::LimitStream;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;

use super::input::{InputExec, Inputs, Side, Slot};
use crate::compact;

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
            let compacted = rows.map(|batch| compact(batch?));
            let compacted = Slot::new(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), compacted)));
            let inputs = Inputs { build: compacted, probe: Arc::default(), memory: None };
            let sort = SortExec::new(sort_order(join, order)?, InputExec::for_rows(Side::Build, schema))
                .with_fetch(join.fetch());
            sort.execute(0, inputs.context(context, Arc::clone(context.memory_pool())))?
        }
        None => rows,
    };
    Ok(Box::pin(LimitStream::new(rows, 0, join.fetch(), BaselineMetrics::new(metrics, partition))))
}

/// The order that satisfies all that `join` announces: first the orders of its probe side, as columns of its output.
fn sort_order(join: &HashJoinExec, announced: &LexOrdering) -> Result<LexOrdering> {
    let before_probe = match join.join_type() {
        JoinType::Inner | JoinType::Right => join.left().schema().fields().len(),
        _ => 0,
    };
    let output = join.schema();
    let place = |column: usize| match &join.projection {
        Some(projection) => projection.iter().position(|projected| *projected == column + before_probe),
        None => Some(column + before_probe),
    };
    let in_output = |sort: &PhysicalSortExpr| -> Result<Option<PhysicalSortExpr>> {
        let mut is_complete = true;
        let expr = Arc::clone(&sort.expr).transform_up(|node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            let Some(at) = place(column.index()) else {
                is_complete = false;
                return Ok(Transformed::no(node));
            };
            let moved: Arc<dyn PhysicalExpr> = Arc::new(Column::new(output.field(at).name(), at));
            Ok(Transformed::yes(moved))
        });
        Ok(Some(PhysicalSortExpr::new(expr.data()?, sort.options)).filter(|_| is_complete))
    };
    let mut order = Vec::new();
    for ordering in join.right().equivalence_properties().oeq_class().iter() {
        for sort in ordering.iter() {
            // What follows a column that is not in the output is sorted only within its values.
            let Some(sort) = in_output(sort)? else { break };
            order.push(sort);
        }
    }
    order.extend(announced.iter().cloned());
    Ok(LexOrdering::new(order).unwrap_or_else(|| announced.clone()))
}
