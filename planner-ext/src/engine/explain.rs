//! The memory that a query is expected to need, as the last row of EXPLAIN and EXPLAIN ANALYZE.

use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use datafusion::common::format::ExplainFormat;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use terrace_tier_store::units::human_bytes;

use super::admission::Demand;
use super::stream_exec::StreamExec;
use crate::error::Result;

/// Value of the column `plan_type`.
const PLAN_TYPE: &str = "memory_demand";

/// The query that an EXPLAIN explains in one of the formats that are read by people.
pub(super) fn explained_query(plan: &LogicalPlan) -> Option<&Arc<LogicalPlan>> {
    match plan {
        LogicalPlan::Explain(explain)
            if matches!(explain.explain_format, ExplainFormat::Indent | ExplainFormat::Tree) =>
        {
            Some(&explain.plan)
        }
        _ => None,
    }
}

/// Adds the row to the plan of an EXPLAIN.
pub(super) fn with_demand(plan: Arc<dyn ExecutionPlan>, demand: &Demand, limit_bytes: u64) -> Arc<dyn ExecutionPlan> {
    let text = format!(
        "{} weighted by time, at most {} of {} of query memory{}",
        human_bytes(demand.weighted_bytes()),
        human_bytes(demand.most_bytes()),
        human_bytes(limit_bytes),
        if demand.is_point() { "; a point statement" } else { "" }
    );
    let schema = plan.schema();
    let add_row = move |rows: datafusion::execution::SendableRecordBatchStream, _: &_| {
        let row = row(&schema, &text).map_err(Into::into);
        rows.chain(futures::stream::once(std::future::ready(row))).boxed()
    };
    Arc::new(StreamExec::new("MemoryDemandExec", plan, add_row))
}

fn row(schema: &SchemaRef, text: &str) -> Result<RecordBatch> {
    let columns = [PLAN_TYPE, text].map(|text| Arc::new(StringArray::from(vec![text])) as _);
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.into())?)
}
